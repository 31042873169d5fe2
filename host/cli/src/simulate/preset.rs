//! How a step is put together.

use nearfield_bench::values::named;
use nearfield_techniques::offload::{Encoder, Expansion, Placement, Upstream};
use serde::{Deserialize, Serialize};

use super::case::Case;

/// Named defaults.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Preset {
    /// What the Smart-Infinity paper measured.
    #[default]
    Paper,
    /// What `nearfield train` does by default.
    Nearfield,
}

/// The choices of a runtime, as flags and as keys of a file.
#[derive(Debug, Clone, Default, Deserialize, clap::Args)]
#[serde(deny_unknown_fields, default)]
pub struct Strategy {
    /// How the step is put together, where no flag below says it: paper or nearfield
    #[arg(long, value_parser = named::<Preset>, value_name = "NAME", default_value = "paper", help_heading = "Strategy")]
    preset: Preset,
    /// How weights come back: fp32-storage or fp16-local
    #[arg(long, value_parser = named::<Upstream>, value_name = "NAME", help_heading = "Strategy")]
    upstream: Option<Upstream>,
    /// How state is placed: equal-rr, flat-equal or subgroup-rr [default: equal-rr]
    #[arg(long, value_parser = named::<Placement>, value_name = "NAME", help_heading = "Strategy")]
    placement: Option<Placement>,
    /// Pieces in which the overlapped handler hands a subgroup over; 1 is the paper's whole variables
    #[arg(long, value_name = "N", help_heading = "Strategy")]
    pieces: Option<u32>,
    /// With su+o+c: who selects what is kept, host or device
    #[arg(long, value_parser = named::<Encoder>, value_name = "NAME", help_heading = "Strategy")]
    select_on: Option<Encoder>,
    /// Whether the GPU computes while gradients leave it
    #[arg(long, value_name = "true|false", help_heading = "Strategy")]
    gradient_overlap: Option<bool>,
    /// With su+o and su+o+c: update each subgroup as soon as its gradient is on its drive, and expect that nothing
    /// overflows or is clipped; other systems run as they always do
    #[arg(long, num_args = 0..=1, default_missing_value = "true", value_name = "true|false", help_heading = "Strategy")]
    overlap_update: Option<bool>,
}

impl Strategy {
    /// Sets the choices of `case`.
    pub fn apply(&self, case: &mut Case) {
        let paper = self.preset == Preset::Paper;
        let (upstream, encoder, expansion) = if paper {
            (Upstream::Fp32Storage, Encoder::Device, Expansion::Separate)
        } else {
            (Upstream::Fp16Local, Encoder::Host, Expansion::Merged)
        };
        case.upstream = self.upstream.unwrap_or(upstream);
        case.encoder = self.select_on.unwrap_or(encoder);
        case.expansion = expansion;
        case.placement = self.placement.unwrap_or(Placement::EqualRr);
        case.pieces = self.pieces.unwrap_or(if paper { 1 } else { 4 });
        case.overlap_update = self.overlap_update.unwrap_or(false);
        case.gradient_overlap = self.gradient_overlap.unwrap_or(!paper);
    }
}
