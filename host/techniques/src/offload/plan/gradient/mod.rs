//! The gradient graph: forward, backward, and each gradient's way to its drive
//! (Smart-Infinity, section 2; block streaming as in ZeRO-Infinity).

mod outputs;
mod paging;
mod planner;
mod staging;
#[cfg(test)]
mod tests;

use nearfield_runtime::Result;
use nearfield_runtime::graph::TaskId;
use nearfield_runtime::layout::Layout;

use super::{Plan, PlanBuilder};
use crate::offload::options::OffloadOptions;

pub use paging::{Paging, Segment, paged_traffic};
pub use staging::Staging;

/// What the graph needs to know of one unit of the model: a block, the embedding, or the head.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnitShape {
    /// Name for labels.
    pub name: String,
    /// Elements of the weights it reads.
    pub weight_elements: u64,
    /// Bytes of its output for one micro-batch, kept as the next unit's checkpoint.
    pub output_bytes: u64,
    /// Bytes that its backward pass keeps of what it computes, for one micro-batch.
    pub working_bytes: u64,
    /// Floating-point operations of its forward pass for one micro-batch.
    pub forward_flops: u64,
    /// Bytes of its attention scores in fp32, for one micro-batch: work that is bound by memory, and not in its operations.
    pub score_bytes: u64,
    /// Whether a forward pass of its own is needed; the head's runs within its backward pass.
    pub forward: bool,
    /// Whether the backward pass needs the weights; that of an embedding does not.
    pub backward_weights: bool,
    /// Flat runs `(first element, elements)` of the weights it reads, ascending.
    pub reads: Vec<(u64, u64)>,
    /// Flat runs `(first element, elements)` whose gradient is complete after its backward pass.
    pub gradients: Vec<(u64, u64)>,
}

/// What a micro-step does with its gradients.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MicroStep {
    /// Adds them to accumulators in host memory.
    Accumulate,
    /// Sends them (with what was accumulated) to the drives.
    Offload,
}

/// Builds the graph of one micro-step.
///
/// # Errors
/// [`nearfield_runtime::Error::Graph`] if the graph is not valid, which is a defect.
pub fn plan(
    layout: &Layout,
    options: &OffloadOptions,
    units: &[UnitShape],
    step: MicroStep,
) -> Result<(Plan, Staging)> {
    let (plan, staging) = begin(layout, options, units, step);
    Ok((plan.plan.build()?, staging))
}

/// A micro-step whose graph may still grow.
pub(super) struct Begun {
    pub plan: PlanBuilder,
    /// Parts in the order in which their gradients are complete, with the task after which each is on its drive.
    pub written: Vec<(usize, TaskId)>,
    /// Units whose weights are copied to a compute device, with the task that does it.
    pub weight_uses: Vec<(usize, TaskId)>,
}

/// Begins the graph of one micro-step.
pub(super) fn begin(
    layout: &Layout,
    options: &OffloadOptions,
    units: &[UnitShape],
    step: MicroStep,
) -> (Begun, Staging) {
    let staging = staging::staging(layout, options, units);
    (planner::plan(layout, options, units, staging, step), staging)
}
