//! How a step is put together where the user does not say it.

use nearfield_techniques::offload::{Encoder, Placement, Upstream};
use serde::{Deserialize, Serialize};

use super::SimulateArgs;
use super::case::Case;

/// Named defaults.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Preset {
    /// What the Smart-Infinity paper measured.
    Paper,
    /// What `nearfield train` does by default.
    Nearfield,
}

impl From<&SimulateArgs> for Case {
    fn from(args: &SimulateArgs) -> Self {
        let paper = args.preset == Preset::Paper;
        let (upstream, encoder) = if paper {
            (Upstream::Fp32Storage, Encoder::Device)
        } else {
            (Upstream::Fp16Local, Encoder::Host)
        };
        Self {
            model: args.model.clone(),
            gpu: args.gpu.clone(),
            gpus: args.gpus,
            topology: args.topology.clone(),
            drives: args.drives,
            system: args.system,
            optimizer: args.optimizer,
            topk_keep: args.topk_keep,
            batch: args.batch,
            seq: args.seq,
            dtype: args.dtype,
            gradient_dtype: args.gradient_dtype,
            upstream: args.upstream.unwrap_or(upstream),
            placement: args.placement.unwrap_or(Placement::EqualRr),
            subgroup_size: args.subgroup_size,
            pieces: args.pieces.unwrap_or(if paper { 1 } else { 4 }),
            encoder: args.select_on.unwrap_or(encoder),
            gradient_overlap: args.gradient_overlap.unwrap_or(!paper),
        }
    }
}
