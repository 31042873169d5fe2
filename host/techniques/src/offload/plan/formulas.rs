//! Traffic of one step in closed form (Smart-Infinity, section 3 and 4): the check on graphs and counters.

use nearfield_runtime::codec;
use nearfield_runtime::device::pair_bounds_bytes;
use nearfield_runtime::graph::Traffic;
use nearfield_runtime::layout::Layout;

use crate::offload::options::{OffloadOptions, System, Upstream};

/// Kept pairs of all parts together: the `K` of the formulas.
pub fn kept_total(layout: &Layout, options: &OffloadOptions) -> u64 {
    (0..layout.parts.len()).map(|part| codec::kept(options.topk_keep, layout.padded(part))).sum()
}

/// Data bytes of one step: gradient offload and update. What units read of their weights and inputs on drives is not in it: see
/// [`super::gradient::paged_traffic`].
pub fn step_traffic(layout: &Layout, options: &OffloadOptions) -> Traffic {
    let elements = layout.padded_total();
    let state = options.state_bytes_per_element() * elements;
    let gradient = if options.compressed() {
        8 * kept_total(layout, options)
    } else {
        options.gradient_dtype.bytes() * elements
    };
    let residual = if options.error_feedback { 4 * elements } else { 0 };
    match options.system {
        System::Memory => Traffic::default(),
        System::Base | System::BasePipe => Traffic {
            shared_down: gradient + state,
            shared_up: state + gradient,
            internal_read: 0,
            internal_write: 0,
            media_read: state + gradient,
            media_write: gradient + state,
        },
        System::Su | System::SuO | System::SuOC => {
            let (upstream, reread) = match options.weights_come_back() {
                Some(Upstream::Fp32Storage) => (4 * elements, 4 * elements),
                Some(Upstream::Fp16Local) => (options.weights_dtype.bytes() * elements, 0),
                None => (0, 0),
            };
            Traffic {
                shared_down: gradient + residual,
                shared_up: upstream,
                internal_read: state + gradient,
                internal_write: state,
                media_read: state + gradient + reread,
                media_write: gradient + residual + state,
            }
        }
    }
}

/// Local memory of one device for the overlapped handler: one buffer set for the longest part
/// (section 4.4: `G`, one buffer a variable, the 16-bit copy, and the pairs when compressed).
pub fn local_memory_bytes(layout: &Layout, options: &OffloadOptions, drive: u32) -> u64 {
    let longest = layout.longest(Some(drive));
    let pairs = if options.compressed() {
        8 * codec::kept(options.topk_keep, longest) + pair_bounds_bytes(longest)
    } else {
        0
    };
    options.buffer_bytes_per_element() * longest + pairs
}
