//! The work behind the tasks of a gradient graph: the model's part and the engine's.

use nearfield_runtime::Result;
use nearfield_runtime::exec::Work;
use nearfield_runtime::graph::Task;
use nearfield_runtime::timeline::Timeline;

use super::OffloadEngine;
use crate::offload::plan::gradient::MicroStep;
use crate::offload::plan::{Action, Plan};

/// The model's part of a micro-step. Called from several threads, as the graph allows.
pub trait ModelWork: Sync {
    /// Loads, forward, backward, accumulation: everything but gradients on their way to drives.
    ///
    /// # Errors
    /// Whatever the model's computation reports.
    fn compute(&self, action: Action) -> Result<()>;

    /// Hands over the gradient of `unit` within `[start, start + elements)` of the flat vector, in runs:
    /// `sink` takes the first element of a run and its bytes in the gradient's format.
    ///
    /// # Errors
    /// Whatever the model's computation or `sink` reports.
    fn offload(
        &self,
        unit: usize,
        start: u64,
        elements: u64,
        sink: &mut dyn FnMut(u64, &[u8]) -> Result<()>,
    ) -> Result<()>;
}

struct GradientWork<'a> {
    engine: &'a OffloadEngine,
    plan: &'a Plan,
    model: &'a dyn ModelWork,
    loss_scale: f64,
}

impl Work for GradientWork<'_> {
    fn perform(&self, task: &Task) -> Result<()> {
        let engine = self.engine;
        match self.plan.actions[task.id.index()] {
            Action::Offload { unit, part, staging } => {
                let run = engine.layout().parts[part];
                self.model.offload(unit, run.start, run.elements, &mut |first, bytes| {
                    engine.stage_gradient(part, staging, first, bytes)
                })
            }
            Action::Encode { part, staging } => {
                engine.encode_gradient(part, staging, self.loss_scale)
            }
            Action::WriteGradient { part, staging } => engine.write_gradient(part, staging),
            Action::WriteResidual { part, .. } => engine.write_residual(part),
            action => self.model.compute(action),
        }
    }
}

impl OffloadEngine {
    /// Runs one micro-step of `model`; gradients carry `loss_scale`.
    ///
    /// # Errors
    /// What the model or the drives report. The optimizer state is untouched.
    pub fn run_gradients(
        &self,
        step: MicroStep,
        model: &dyn ModelWork,
        loss_scale: f64,
    ) -> Result<Timeline> {
        let plan = self.gradient_plan(step);
        let work = GradientWork { engine: self, plan, model, loss_scale };
        self.executor.run(&plan.graph, &work)
    }
}
