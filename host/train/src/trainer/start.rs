//! What a new run starts from.

use std::path::Path;

use nearfield_runtime::types::{Optimizer, Variable};
use nearfield_techniques::offload::InitialState;

use super::options::{ModelSource, TrainOptions};
use crate::checkpoint::Checkpoint;
use crate::error::{Error, Result};
use crate::exchange::OptimizerState;
use crate::model::TensorList;

/// Weights, random or of a model, and the state of an optimizer that ran elsewhere.
pub(crate) struct Start<'a> {
    list: &'a TensorList,
    seed: u64,
    checkpoint: Option<Checkpoint>,
    optimizer: Option<OptimizerState>,
}

impl<'a> Start<'a> {
    /// Opens what the options of a run name.
    pub fn of(options: &TrainOptions, list: &'a TensorList) -> Result<Self> {
        let pretrained = match &options.model {
            ModelSource::Pretrained(directory) => Some(directory.as_path()),
            ModelSource::Scratch(_) => None,
        };
        let state = options.optimizer_state.as_deref();
        Ok(Self {
            seed: options.seed,
            ..Self::open(pretrained, state, options.offload.optimizer, list)?
        })
    }

    /// Opens the weights in a model's directory, and the state of an optimizer; the new one is `optimizer`.
    ///
    /// # Errors
    /// Files that are not of this model, or not of that kind.
    pub fn open(
        pretrained: Option<&Path>,
        state: Option<&Path>,
        optimizer: Optimizer,
        list: &'a TensorList,
    ) -> Result<Self> {
        let checkpoint =
            pretrained.map(|directory| Checkpoint::open(directory, list)).transpose()?;
        if state.is_some() && !matches!(optimizer, Optimizer::Adamw | Optimizer::Adam) {
            return Err(Error::Invalid(format!(
                "the state of an optimizer is that of adamw or adam, but the run's optimizer is {}",
                optimizer.name()
            )));
        }
        let state = state.map(|path| OptimizerState::open(path, list)).transpose()?;
        Ok(Self { list, seed: 0, checkpoint, optimizer: state })
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
