//! What a new run starts from.

use nearfield_runtime::types::{Optimizer, Variable};
use nearfield_techniques::offload::InitialState;

use super::options::{ModelSource, TrainOptions};
use crate::checkpoint::Checkpoint;
use crate::error::{Error, Result};
use crate::exchange::OptimizerState;
use crate::model::TensorList;

/// Weights, random or of a model, and the state of an optimizer that ran elsewhere.
pub(super) struct Start<'a> {
    list: &'a TensorList,
    seed: u64,
    checkpoint: Option<Checkpoint>,
    optimizer: Option<OptimizerState>,
}

impl<'a> Start<'a> {
    /// Opens what `options` name.
    pub fn open(options: &TrainOptions, list: &'a TensorList) -> Result<Self> {
        let checkpoint = match &options.model {
            ModelSource::Pretrained(directory) => Some(Checkpoint::open(directory, list)?),
            ModelSource::Scratch(_) => None,
        };
        let optimizer = match &options.optimizer_state {
            Some(path) => {
                if !matches!(options.offload.optimizer, Optimizer::Adamw | Optimizer::Adam) {
                    return Err(Error::Invalid(format!(
                        "--optimizer-state is that of adamw or adam, but --optimizer is {}",
                        options.offload.optimizer.name()
                    )));
                }
                Some(OptimizerState::open(path, list)?)
            }
            None => None,
        };
        Ok(Self { list, seed: options.seed, checkpoint, optimizer })
    }

    /// Reads everything once, so that a number that is none does not cost the state of an older run.
    pub fn verify(&self, threads: usize) -> Result<()> {
        if let Some(checkpoint) = &self.checkpoint {
            checkpoint.verify(threads)?;
        }
        if let Some(optimizer) = &self.optimizer {
            optimizer.verify()?;
        }
        Ok(())
    }

    /// Optimizer steps done.
    pub fn step(&self) -> u64 {
        self.optimizer.as_ref().map_or(0, OptimizerState::step)
    }

    /// Names of tensors in the model's files that it does not have.
    pub fn unused(&self) -> Vec<String> {
        self.checkpoint.as_ref().map_or_else(Vec::new, |checkpoint| checkpoint.unused().to_vec())
    }
}

impl InitialState for Start<'_> {
    fn read(
        &self,
        variable: Variable,
        first: u64,
        out: &mut [f32],
    ) -> nearfield_runtime::Result<()> {
        match (variable, &self.checkpoint, &self.optimizer) {
            (Variable::Param, Some(checkpoint), _) => checkpoint.read(first, out)?,
            (Variable::Param, None, _) => self.list.initialise(self.seed, first, out),
            (_, _, Some(optimizer)) => optimizer.read(variable, first, out)?,
            (_, _, None) => out.fill(0.0),
        }
        Ok(())
    }

    fn is_zero(&self, variable: Variable) -> bool {
        variable != Variable::Param && self.optimizer.is_none()
    }
}
