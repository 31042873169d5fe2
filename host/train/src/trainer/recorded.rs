//! What a run leaves on its drives with each step, beside the state: what it is, and where its loss scale stands.

use nearfield_runtime::store::StepRecord;
use nearfield_runtime::types::HyperParameters;
use serde::{Deserialize, Serialize};

use super::options::TrainOptions;
use crate::error::{Error, Result};
use crate::model::Architecture;
use crate::scaler::ScalerState;

/// State of the trainer after an iteration, as recorded with it on the drives.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Recorded {
    #[serde(rename = "identity")]
    pub owner: Owner,
    /// `None` before the first iteration of a state that was brought in.
    #[serde(default)]
    pub scaler: Option<ScalerState>,
    pub skipped: u64,
    /// Loss of the iteration, where one was run.
    #[serde(default)]
    pub loss: Option<f64>,
}

/// What a state on drives belongs to.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(untagged)]
pub(super) enum Owner {
    /// A run, which goes on with the same options only.
    Run(Identity),
    /// No run yet: a model that was brought in, and belongs to the run that goes on with it.
    Import { model: Architecture },
}

impl Owner {
    /// The model.
    pub fn model(&self) -> &Architecture {
        match self {
            Self::Run(identity) => &identity.model,
            Self::Import { model } => model,
        }
    }

    /// Digest of the data that the run has seen.
    pub fn data(&self) -> Option<&str> {
        match self {
            Self::Run(identity) => Some(&identity.text),
            Self::Import { .. } => None,
        }
    }
}

/// What makes a run the same run: it must not change when it is resumed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Identity {
    seed: u64,
    batch: u32,
    accumulate: u32,
    dtype: String,
    model: Architecture,
    seq: u32,
    threads: usize,
    text: String,
}

impl Identity {
    pub fn new(options: &TrainOptions, model: Architecture, text: String) -> Self {
        Self {
            seed: options.seed,
            batch: options.batch,
            accumulate: options.accumulate,
            dtype: options.offload.weights_dtype.name().to_owned(),
            model,
            seq: options.seq,
            threads: options.threads,
            text,
        }
    }

    /// Names the first option that differs from those of the run on the drives. A model that was brought in has no
    /// options yet: any run may go on with it.
    pub fn check(&self, owner: &Owner) -> Result<()> {
        let stored = match owner {
            Owner::Run(stored) => stored,
            Owner::Import { model } => &Self { model: model.clone(), ..self.clone() },
        };
        let heads = |identity: &Self| identity.model.heads.to_string();
        let pairs = [
            ("--seed", self.seed.to_string(), stored.seed.to_string()),
            ("--batch", self.batch.to_string(), stored.batch.to_string()),
            ("--accumulate", self.accumulate.to_string(), stored.accumulate.to_string()),
            ("--dtype", self.dtype.clone(), stored.dtype.clone()),
            ("--heads", heads(self), heads(stored)),
            ("the model", described(&self.model), described(&stored.model)),
            ("--seq", self.seq.to_string(), stored.seq.to_string()),
            ("--threads", self.threads.to_string(), stored.threads.to_string()),
            (
                "data (by its digest; see --data, --order, --packing)",
                self.text.clone(),
                stored.text.clone(),
            ),
        ];
        for (name, own, stored) in pairs {
            if own != stored {
                return Err(Error::Invalid(format!(
                    "the run on the drives has {name} {stored}, not {own}; resume it with the same, or start anew with --overwrite"
                )));
            }
        }
        if self.model != stored.model {
            return Err(Error::Invalid(
                "the run on the drives has a model with other options in its config.json; resume it with the same, or start anew \
                 with --overwrite"
                    .into(),
            ));
        }
        Ok(())
    }
}

fn described(model: &Architecture) -> String {
    format!(
        "{} of {} blocks, width {}, {} tokens",
        model.family.name(),
        model.layers,
        model.hidden,
        model.vocab
    )
}

/// The record of an iteration.
pub(super) fn record(
    iteration: u64,
    step: u64,
    unscale: f32,
    groups: Vec<HyperParameters>,
    recorded: &Recorded,
) -> Result<StepRecord> {
    let blob = serde_json::to_vec(recorded).map_err(|error| {
        Error::Invalid(format!("the trainer's state cannot be written: {error}"))
    })?;
    Ok(StepRecord { iteration, step, unscale, groups, blob })
}

/// The record of a state that was brought in after `step` steps. Each counts as an iteration.
pub(crate) fn imported(step: u64, model: Architecture) -> Result<StepRecord> {
    let recorded =
        Recorded { owner: Owner::Import { model }, scaler: None, skipped: 0, loss: None };
    record(step, step, 0.0, Vec::new(), &recorded)
}

/// The trainer's state, as recorded on the drives.
pub(super) fn recorded(blob: &[u8]) -> Result<Recorded> {
    serde_json::from_slice(blob).map_err(|error| {
        Error::Invalid(format!(
            "the trainer's state on the drives cannot be read ({error}); they hold a run of another program"
        ))
    })
}

/// The model of a state, as recorded on its drives.
pub(crate) fn recorded_model(blob: &[u8]) -> Result<Architecture> {
    Ok(recorded(blob)?.owner.model().clone())
}
