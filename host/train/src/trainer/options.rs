//! Everything that a training run is made of.

use std::path::PathBuf;

use nearfield_runtime::io::IoOptions;
use nearfield_runtime::store::Durability;
use nearfield_runtime::types::{HyperParameters, THREADS_MAX};
use nearfield_techniques::offload::{ActivationPlace, DeviceChoice, OffloadOptions, WeightsPlace};

use crate::checkpoint::Config;
use crate::data::CorpusOptions;
use crate::error::{Error, Result};
use crate::model::{Architecture, Shape};
use crate::scaler::LossScale;
use crate::schedule::Schedule;

/// Where the model comes from.
#[derive(Debug, Clone)]
pub enum ModelSource {
    /// A GPT with random weights.
    Scratch(Shape),
    /// The weights in a directory, as Hugging Face keeps them.
    Pretrained(PathBuf),
}

impl ModelSource {
    /// The model, and the keys of its `config.json` where it has one.
    ///
    /// # Errors
    /// A `config.json` that cannot be used.
    pub fn read(&self) -> Result<(Architecture, Option<Config>)> {
        match self {
            Self::Scratch(shape) => {
                shape.validate()?;
                Ok(((*shape).into(), None))
            }
            Self::Pretrained(directory) => {
                let config = Config::read(directory)?;
                Ok((config.architecture.clone(), Some(config)))
            }
        }
    }
}

/// Options of a [`super::Trainer`].
#[derive(Debug, Clone)]
pub struct TrainOptions {
    /// Data.
    pub corpus: CorpusOptions,
    /// Model.
    pub model: ModelSource,
    /// State of an optimizer that ran elsewhere, from which a new run starts.
    pub optimizer_state: Option<PathBuf>,
    /// The tokenizer's file, where it is not that of the model's directory; without both, bytes are tokens.
    pub tokenizer: Option<PathBuf>,
    /// Tokens of a sequence.
    pub seq: u32,
    /// Sequences of a micro-batch.
    pub batch: u32,
    /// Micro-batches of a step.
    pub accumulate: u32,
    /// Iterations of the whole run, skipped ones included.
    pub iterations: u64,
    /// Learning rate over the steps.
    pub schedule: Schedule,
    /// Hyper-parameters of the decay group; `lr` is the schedule's.
    pub hyper: HyperParameters,
    /// Loss scale.
    pub loss_scale: LossScale,
    /// Largest global gradient norm, 0 for no clipping.
    pub clip: f64,
    /// Seed of initial weights and data order.
    pub seed: u64,
    /// `cpu`, `cuda` or `cuda:N`.
    pub compute: String,
    /// CPU threads of model and kernels.
    pub threads: usize,
    /// Batches of one evaluation.
    pub evaluation_batches: u64,
    /// The offload technique; its working format is the model's.
    pub offload: OffloadOptions,
    /// One directory a drive.
    pub drives: Vec<PathBuf>,
    /// Storage I/O.
    pub io: IoOptions,
    /// What a step survives.
    pub durability: Durability,
    /// What stands beside each drive.
    pub device: DeviceChoice,
    /// Continue the run on the drives.
    pub resume: bool,
    /// Replace another run on the drives.
    pub overwrite: bool,
}

impl TrainOptions {
    /// Checks ranges that no other part checks.
    ///
    /// # Errors
    /// [`Error::Invalid`] that names the option and what to change.
    pub fn validate(&self) -> Result<()> {
        self.schedule.validate()?;
        self.loss_scale.validate()?;
        self.offload.validate()?;
        let invalid = |text: String| Err(Error::Invalid(text));
        let counts = [
            ("--batch", u64::from(self.batch)),
            ("--accumulate", u64::from(self.accumulate)),
            ("--steps", self.iterations),
        ];
        if let Some((name, _)) = counts.iter().find(|(_, count)| *count == 0) {
            return invalid(format!("{name} must be at least 1"));
        }
        if self.threads == 0 || self.threads > THREADS_MAX {
            return invalid(format!(
                "--threads {} must be between 1 and {THREADS_MAX}",
                self.threads
            ));
        }
        let HyperParameters { beta1, beta2, eps, weight_decay, .. } = self.hyper;
        for (name, beta) in [("--beta1", beta1), ("--beta2", beta2)] {
            if !(0.0..1.0).contains(&beta) {
                return invalid(format!("{name} {beta} must be at least 0 and below 1"));
            }
        }
        if !(eps.is_finite() && eps > 0.0) {
            return invalid(format!("--eps {eps} must be a finite number above 0"));
        }
        if !(weight_decay.is_finite() && weight_decay >= 0.0) {
            return invalid(format!(
                "--weight-decay {weight_decay} must be a finite number of at least 0"
            ));
        }
        if !(self.clip.is_finite() && self.clip >= 0.0) {
            return invalid(format!("--clip {} must be a finite number of at least 0", self.clip));
        }
        if self.offload.system.on_drives() && self.drives.is_empty() {
            return invalid(format!(
                "--system {} keeps its state on drives: give at least one --drive DIR, or use --system memory",
                self.offload.system.name()
            ));
        }
        if !self.offload.system.on_drives() && !self.drives.is_empty() {
            return invalid(
                "--system memory uses no drives: leave out --drive, or use --system su+o".into(),
            );
        }
        Ok(())
    }
}

impl TrainOptions {
    /// Checks that what must stay in host memory fits the machine, before anything is made. What a step needs beside
    /// it is not known here.
    ///
    /// # Errors
    /// [`Error::Invalid`] with what is needed and what to change.
    pub fn check_memory(&self, model: &Architecture) -> Result<()> {
        let Some(total) = crate::memory::machine_bytes().map(u128::from) else { return Ok(()) };
        let parameters = model.parameters();
        let width = u128::from(self.offload.weights_dtype.bytes());
        let state = if self.offload.system.on_drives() { 0 } else { 16 };
        let copy = match self.offload.weights {
            WeightsPlace::Host => width,
            WeightsPlace::Drive => 0,
        };
        let accumulators = if self.accumulate > 1 { 4 } else { 0 };
        // Tensors' names and the units' plans take some kilobytes a block.
        let weights = parameters * (copy + state + accumulators) + u128::from(model.layers) * 8192;
        let tokens = u128::from(self.batch) * u128::from(self.seq);
        let outputs = match self.offload.activations {
            ActivationPlace::Host => {
                (u128::from(model.layers) + 1) * tokens * u128::from(model.hidden) * width
            }
            ActivationPlace::Device | ActivationPlace::Drive => 0,
        };
        if weights + outputs <= total {
            return Ok(());
        }
        let gigabytes = |bytes: u128| bytes as f64 / 1e9;
        Err(Error::Invalid(format!(
            "{:.1} GB of working weights and {:.1} GB of block outputs exceed the {:.1} GB of this machine's memory; \
             use a smaller model (--layers, --hidden), --batch or --seq, --dtype bf16, or --weights drive and --activations drive",
            gigabytes(weights),
            gigabytes(outputs),
            gigabytes(total)
        )))
    }
}
