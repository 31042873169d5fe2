//! The state of a model and an optimizer that ran elsewhere, brought to drives. The run that goes on with it chooses its own
//! data and options.

use std::path::PathBuf;

use nearfield_runtime::types::{DType, Optimizer};
use nearfield_techniques::offload::OffloadOptions;

use crate::checkpoint::Config;
use crate::error::Result;
use crate::model::TensorList;
use crate::saved::NewLayout;
use crate::trainer::{Start, imported};

/// What is brought in, and what the run that goes on with it will have.
#[derive(Debug, Clone)]
pub struct Import {
    /// A model's directory, as Hugging Face keeps models.
    pub model: PathBuf,
    /// State of a `torch.optim.AdamW` or `Adam`; without it, moments are zero and no step is done.
    pub optimizer_state: Option<PathBuf>,
    /// The update rule.
    pub optimizer: Optimizer,
    /// Number format of the moments on the drives.
    pub moment_dtype: DType,
    /// Number format of gradients on the drives.
    pub gradient_dtype: DType,
    /// With compressed gradients: the fraction that is kept.
    pub topk_keep: f64,
    /// With compressed gradients: whether what is left out is kept for the next step.
    pub error_feedback: bool,
    /// Threads that read.
    pub threads: usize,
}

/// What was brought in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Imported {
    /// Parameters of the model.
    pub parameters: u64,
    /// Optimizer steps done.
    pub step: u64,
    /// Digest of the state.
    pub digest: String,
    /// Tensors in the model's files that are not part of it.
    pub unused: Vec<String>,
}

impl Import {
    /// Makes the state on `drives`. Everything is read and checked before a state that is there is replaced.
    ///
    /// # Errors
    /// Files that are damaged or not of this model, numbers that are none, and drives that are too small, in use or hold
    /// another run.
    pub fn run(&self, drives: &[PathBuf], layout: &NewLayout) -> Result<Imported> {
        let list = TensorList::new(Config::read(&self.model)?.architecture)?;
        let state = self.optimizer_state.as_deref();
        let start = Start::open(Some(&self.model), state, self.optimizer, &list)?;
        start.verify(self.threads)?;
        let contents = OffloadOptions {
            optimizer: self.optimizer,
            moment_dtype: self.moment_dtype,
            gradient_dtype: self.gradient_dtype,
            topk_keep: self.topk_keep,
            error_feedback: self.error_feedback,
            ..OffloadOptions::default()
        };
        let record = imported(start.step(), list.architecture().clone())?;
        Ok(Imported {
            digest: layout.lay_out(drives, contents, &list, &record, &start)?,
            parameters: list.elements(),
            step: start.step(),
            unused: start.unused(),
        })
    }
}
