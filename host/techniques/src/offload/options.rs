//! What the user chooses: the system, placement, number formats, buffers.

use nearfield_runtime::types::{DType, Optimizer, Variable};
use nearfield_runtime::{Error, Result};
use serde::{Deserialize, Serialize};

/// Where the optimizer state lives, where the update runs, and how transfers overlap
/// (Smart-Infinity, section 7.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum System {
    /// State in host memory, update on the host: the lower bound when memory suffices.
    #[serde(rename = "memory")]
    Memory,
    /// State striped over the drives, streamed through the host, one subgroup after the other.
    #[serde(rename = "base")]
    Base,
    /// The same with the next subgroup read and the last one written while one is updated.
    #[serde(rename = "base-pipe")]
    BasePipe,
    /// SmartUpdate: the update runs beside each drive, tasklets one after the other.
    #[serde(rename = "su")]
    Su,
    /// SmartUpdate with the optimised transfer handler.
    #[serde(rename = "su+o")]
    SuO,
    /// The same with top-k compressed gradients.
    #[serde(rename = "su+o+c")]
    SuOC,
}

impl System {
    /// All systems, baselines first.
    pub const ALL: [Self; 6] =
        [Self::Memory, Self::Base, Self::BasePipe, Self::Su, Self::SuO, Self::SuOC];

    /// The name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Base => "base",
            Self::BasePipe => "base-pipe",
            Self::Su => "su",
            Self::SuO => "su+o",
            Self::SuOC => "su+o+c",
        }
    }

    /// Whether the state lies on drives.
    pub const fn on_drives(self) -> bool {
        !matches!(self, Self::Memory)
    }

    /// Whether the update runs beside the drive, so that only gradients and weights cross the shared link.
    pub const fn near_storage(self) -> bool {
        matches!(self, Self::Su | Self::SuO | Self::SuOC)
    }

    /// Whether updates can be written ahead, within the backward pass: with the overlapped handler.
    pub const fn can_overlap_update(self) -> bool {
        matches!(self, Self::SuO | Self::SuOC)
    }

    /// Whether every subgroup is striped over all drives (software RAID 0), as the baselines do.
    pub const fn striped(self) -> bool {
        matches!(self, Self::Base | Self::BasePipe)
    }
}

/// How the flat parameter vector is cut and given to the drives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Placement {
    /// Each drive owns an equal contiguous share, cut into pieces of at most the subgroup size; tensors may be split.
    FlatEqual,
    /// Each drive owns an equal share of equal pieces, at most of the subgroup size, dealt in turn along the flat vector,
    /// so that gradients go to all drives at a time; tensors may be split.
    EqualRr,
    /// Whole tensors are collected until the subgroup size is reached; subgroup `s` lies on drive `s mod n`.
    SubgroupRr,
}

/// How updated weights reach host memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Upstream {
    /// The fp32 master weights are read back from the drive and rounded by the host: 4 bytes a parameter.
    Fp32Storage,
    /// The kernel also emits a copy in the working precision, fetched from the device's local memory.
    Fp16Local,
}

/// Where the inputs of units wait for the backward pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ActivationPlace {
    /// On the compute device.
    Device,
    /// In host memory.
    Host,
    /// On the drives, but for the last ones, which are needed at once.
    Drive,
}

/// Where the working weights are read from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WeightsPlace {
    /// A copy of all of them in host memory.
    Host,
    /// The master weights on the drives, unit by unit: nothing in host memory grows with the model.
    Drive,
}

/// Who selects the kept pairs of a gradient.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Encoder {
    /// The host's processor; the dense gradient comes to host memory.
    Host,
    /// The compute device (Smart-Infinity, section 4.5); only the pairs come to host memory.
    Device,
}

/// How the device uses kept pairs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Expansion {
    /// The update merges them into its stream of gradients; local memory holds no dense gradient.
    Merged,
    /// A kernel of its own expands them to a dense gradient in local memory first (Smart-Infinity, section 4.5).
    Separate,
}

/// Options of the offload technique.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OffloadOptions {
    /// Which system.
    pub system: System,
    /// Which update rule.
    pub optimizer: Optimizer,
    /// How state is placed.
    pub placement: Placement,
    /// Share of each drive, relative to the others; empty for equal shares.
    pub drive_weights: Vec<f64>,
    /// Most elements of a subgroup (with [`Placement::SubgroupRr`]: the size at which one is closed).
    pub subgroup_elements: u64,
    /// Number format of gradients on their way to the drive.
    pub gradient_dtype: DType,
    /// Number format of the working weights.
    pub weights_dtype: DType,
    /// Number format of the moments, fp32 or bf16: a third less state of Adam to read, write and keep.
    pub moment_dtype: DType,
    /// How weights come back, where host memory has a copy of them.
    pub upstream: Upstream,
    /// Where the working weights are read from.
    pub weights: WeightsPlace,
    /// Where the inputs of units wait for the backward pass.
    pub activations: ActivationPlace,
    /// Fraction of gradient elements kept by top-k; used by [`System::SuOC`].
    pub topk_keep: f64,
    /// Whether what top-k drops is added to the next gradient.
    pub error_feedback: bool,
    /// Who selects the kept pairs.
    pub encoder: Encoder,
    /// How the device uses them. Real runs merge.
    pub expansion: Expansion,
    /// Whether a unit is computed while the gradients of the one before it leave the compute device; without it, they
    /// have left first, and the device holds those of one unit.
    pub gradient_overlap: bool,
    /// Compute devices that share every unit (tensor parallelism). Real runs have one.
    pub tensor_parallel: u32,
    /// Whether a part is updated as soon as its gradient is on its drive, while others are still computed: before it is known
    /// whether gradients overflow or are clipped. Old state is kept until it is; each part has a slot more for that.
    pub overlap_update: bool,
    /// Into how many pieces a tasklet's buffers are cut, so that a piece is updated while the next one
    /// is read; 1 is the paper's hand-over of whole variables.
    pub pieces: u32,
}

impl Default for OffloadOptions {
    fn default() -> Self {
        Self {
            system: System::SuO,
            optimizer: Optimizer::Adamw,
            placement: Placement::EqualRr,
            drive_weights: Vec::new(),
            subgroup_elements: 40_000_000,
            gradient_dtype: DType::Fp32,
            weights_dtype: DType::Fp32,
            moment_dtype: DType::Fp32,
            upstream: Upstream::Fp16Local,
            weights: WeightsPlace::Host,
            activations: ActivationPlace::Host,
            topk_keep: 0.01,
            error_feedback: false,
            encoder: Encoder::Host,
            expansion: Expansion::Merged,
            gradient_overlap: true,
            tensor_parallel: 1,
            overlap_update: false,
            pieces: 4,
        }
    }
}

impl OffloadOptions {
    /// Stored parts are padded to this many elements, so that every transfer is a multiple of 4096 bytes.
    pub const fn align_elements(&self) -> u64 {
        let (gradient, moment) = (self.gradient_dtype.bytes(), self.moment_dtype.bytes());
        4096 / if gradient < moment { gradient } else { moment }
    }

    /// Bytes of one element of a variable as it lies on the drives.
    pub fn variable_bytes(&self, variable: Variable) -> u64 {
        match variable {
            Variable::Gradient => self.gradient_dtype.bytes(),
            Variable::ExpAvg | Variable::ExpAvgSq => self.moment_dtype.bytes(),
            _ => 4,
        }
    }

    /// Bytes that the stored variables take together for each element.
    pub fn state_bytes_per_element(&self) -> u64 {
        self.optimizer.variables().iter().map(|&variable| self.variable_bytes(variable)).sum()
    }

    /// Whether gradients are compressed.
    pub fn compressed(&self) -> bool {
        self.system == System::SuOC
    }

    /// Whether the device emits a copy of the weights in a format of its own.
    pub fn emits_weights(&self) -> bool {
        self.weights_come_back() == Some(Upstream::Fp16Local) && self.weights_dtype != DType::Fp32
    }

    /// How updated weights reach host memory; `None` where they stay on the drives.
    pub fn weights_come_back(&self) -> Option<Upstream> {
        (self.weights == WeightsPlace::Host).then_some(self.upstream)
    }

    /// Whether the update has a buffer for all elements of the gradient, and not only for kept pairs.
    pub fn holds_dense_gradient(&self) -> bool {
        !self.compressed() || self.expansion == Expansion::Separate
    }

    /// Bytes that a buffer set for the update takes for each element: the stored variables, the gradient where it is
    /// dense, and the weights' copy where one is emitted.
    pub fn buffer_bytes_per_element(&self) -> u64 {
        let copy = if self.emits_weights() { self.weights_dtype.bytes() } else { 0 };
        let gradient = if self.holds_dense_gradient() { self.gradient_dtype.bytes() } else { 0 };
        self.state_bytes_per_element() + gradient + copy
    }

    /// Pieces that the system really uses: only the overlapped handler hands over pieces.
    pub fn effective_pieces(&self) -> u32 {
        match self.system {
            System::SuO | System::SuOC => self.pieces.max(1),
            _ => 1,
        }
    }

    /// Checks that the options do not contradict each other.
    ///
    /// # Errors
    /// [`Error::Invalid`] that names both options and what to change.
    pub fn validate(&self) -> Result<()> {
        let invalid = |text: String| Err(Error::Invalid(text));
        if self.subgroup_elements == 0 {
            return invalid("--subgroup-size must be at least 1 element".into());
        }
        if self.pieces == 0 || self.pieces > 1024 {
            return invalid(format!("--pieces {} must be between 1 and 1024", self.pieces));
        }
        if self.moment_dtype == DType::Fp16 {
            return invalid(
                "--moment-dtype fp16 cannot hold the squares of small gradients; use bf16 or fp32"
                    .into(),
            );
        }
        if self.tensor_parallel == 0 || self.tensor_parallel > 64 {
            let count = self.tensor_parallel;
            return invalid(format!("--gpus {count} must be between 1 and 64"));
        }
        if let Some(weight) =
            self.drive_weights.iter().find(|weight| !(1e-3..=1e3).contains(*weight))
        {
            return invalid(format!(
                "the weight {weight} of a drive is not between 0.001 and 1000; --drive DIR=2 gives it twice the share of DIR=1"
            ));
        }
        let needs_drives = [
            ("--weights drive", self.weights == WeightsPlace::Drive),
            ("--activations drive", self.activations == ActivationPlace::Drive),
        ];
        if let (false, Some((option, _))) =
            (self.system.on_drives(), needs_drives.iter().find(|(_, wanted)| *wanted))
        {
            return invalid(format!("{option} needs a system with drives, not --system memory"));
        }
        if self.error_feedback && self.encoder == Encoder::Device {
            return invalid("--error-feedback needs the selection on the host".into());
        }
        if !(self.topk_keep > 0.0 && self.topk_keep <= 1.0) {
            return invalid(format!(
                "--topk-keep {} must be above 0 and at most 1 (0.01 keeps 1 % of the elements)",
                self.topk_keep
            ));
        }
        if self.overlap_update && !self.system.can_overlap_update() {
            return invalid(format!(
                "--overlap-update needs --system su+o or su+o+c, but the system is {}",
                self.system.name()
            ));
        }
        if self.compressed() {
            if self.gradient_dtype != DType::Fp32 {
                return invalid(format!(
                    "--gradient-dtype {} cannot be combined with --system su+o+c, whose kept values travel as fp32; leave it at fp32",
                    self.gradient_dtype.name()
                ));
            }
        } else if self.error_feedback {
            return invalid(format!(
                "--error-feedback needs compressed gradients (--system su+o+c), but the system is {}",
                self.system.name()
            ));
        }
        Ok(())
    }
}
