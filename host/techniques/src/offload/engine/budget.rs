//! What memory a run takes, decided before the first step.

use nearfield_runtime::codec;
use nearfield_runtime::layout::Layout;
use serde::Serialize;

use super::buffers::BufferSizes;
use crate::offload::options::{Encoder, OffloadOptions, WeightsPlace};
use crate::offload::plan::Pieces;
use crate::offload::plan::gradient::{Paging, Staging};
use crate::offload::plan::update_host::host_sets;

/// Bytes by purpose.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct MemoryBudget {
    /// Local memory of each device.
    pub device_local_bytes: Vec<u64>,
    /// Update buffers of the baselines in host memory.
    pub host_update_bytes: u64,
    /// Gradients (and kept pairs) on their way to the drives.
    pub staging_bytes: u64,
    /// Master weights on their way up, and scratch.
    pub weight_read_bytes: u64,
    /// Residuals of error feedback on their way down.
    pub residual_write_bytes: u64,
    /// Master weights and outputs of units on their way between drives and the compute device.
    pub paging_bytes: u64,
    /// Working weights.
    pub weights_bytes: u64,
    /// Residuals of error feedback.
    pub residual_bytes: u64,
    /// State and gradients of `--system memory`.
    pub state_bytes: u64,
}

/// Bytes of one of a drive's two buffers for weights on their way up.
pub(super) fn weight_read_bytes(layout: &Layout, options: &OffloadOptions, drive: u32) -> u64 {
    let longest = Pieces::new(layout, options, drive).capacities().first().copied().unwrap_or(0);
    4 * longest.max(layout.align_elements)
}

/// Bytes of a drive's buffer for residuals on their way down.
pub(super) fn residual_write_bytes(layout: &Layout, options: &OffloadOptions, drive: u32) -> u64 {
    /// Longer pieces are no faster.
    const MOST: u64 = 4 << 20;
    if !options.error_feedback {
        return 0;
    }
    MOST.min(4 * layout.longest(Some(drive)).max(layout.align_elements))
}

impl MemoryBudget {
    /// The budget of a run.
    pub fn new(
        layout: &Layout,
        options: &OffloadOptions,
        staging: Staging,
        paging: &Paging,
    ) -> Self {
        let weights_bytes = match options.weights {
            WeightsPlace::Host => layout.elements * options.weights_dtype.bytes(),
            WeightsPlace::Drive => 0,
        };
        if !options.system.on_drives() {
            let width = options.state_bytes_per_element() + options.gradient_dtype.bytes();
            return Self {
                weights_bytes,
                state_bytes: width * layout.padded_total(),
                ..Self::default()
            };
        }
        let drives = 0..layout.drives;
        let sizes = |drive| BufferSizes::for_drive(layout, options, drive).arena_bytes();
        let device = |drive| if options.system.near_storage() { sizes(drive) } else { 0 };
        let pairs = if options.compressed() {
            8 * codec::kept(options.topk_keep, staging.elements)
        } else {
            0
        };
        // Where the compute device selects, only pairs arrive.
        let dense = if options.compressed() && options.encoder == Encoder::Device {
            0
        } else {
            staging.elements * options.gradient_dtype.bytes()
        };
        Self {
            device_local_bytes: drives.clone().map(device).collect(),
            host_update_bytes: u64::from(host_sets(options.system))
                * drives.clone().map(sizes).sum::<u64>(),
            staging_bytes: u64::from(staging.buffers) * (dense + pairs),
            weight_read_bytes: drives
                .clone()
                .map(|d| 2 * weight_read_bytes(layout, options, d))
                .sum(),
            residual_write_bytes: drives.map(|d| residual_write_bytes(layout, options, d)).sum(),
            paging_bytes: paging.weights_bytes() + paging.outputs_bytes(),
            weights_bytes,
            residual_bytes: if options.error_feedback { 4 * layout.padded_total() } else { 0 },
            state_bytes: 0,
        }
    }

    /// Buffers of the update and of gradient offload: what does not grow with the model.
    pub fn buffers_bytes(&self) -> u64 {
        self.device_local_bytes.iter().sum::<u64>()
            + self.host_update_bytes
            + self.staging_bytes
            + self.weight_read_bytes
            + self.residual_write_bytes
            + self.paging_bytes
    }

    /// What of it lies in host memory, where local memory of the devices does or does not.
    pub fn host_bytes(&self, local_in_host: bool) -> u64 {
        let local: u64 = self.device_local_bytes.iter().sum();
        self.total_bytes() - if local_in_host { 0 } else { local }
    }

    /// Everything.
    pub fn total_bytes(&self) -> u64 {
        self.buffers_bytes() + self.weights_bytes + self.residual_bytes + self.state_bytes
    }
}
