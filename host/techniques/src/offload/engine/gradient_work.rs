//! The work behind the tasks of a gradient graph: the model's part and the engine's.

use nearfield_runtime::Result;
use nearfield_runtime::exec::Work;
use nearfield_runtime::graph::Task;
use nearfield_runtime::timeline::Timeline;

use super::paging::HostWeights;
use super::{OffloadEngine, WeightSource};
use crate::offload::plan::gradient::MicroStep;
#[cfg(doc)]
use crate::offload::plan::gradient::UnitShape;
use crate::offload::plan::{Action, Plan};

/// The model's part of a micro-step. Called from several threads, as the graph allows.
pub trait ModelWork: Sync {
    /// Forward, backward, accumulation, and outputs that the model keeps: everything that the other methods do not.
    ///
    /// # Errors
    /// Whatever the model's computation reports.
    fn compute(&self, action: Action) -> Result<()>;

    /// Brings the weights of `unit` to the compute device, for its backward pass or its forward pass.
    ///
    /// # Errors
    /// Whatever the model's computation or `weights` reports.
    fn load(&self, unit: usize, backward: bool, weights: &dyn WeightSource) -> Result<()>;

    /// Copies the output of `unit` to host memory: [`UnitShape::output_bytes`] bytes.
    ///
    /// # Errors
    /// Whatever the model's computation reports.
    fn save_output(&self, unit: usize, to: &mut [u8]) -> Result<()>;

    /// Copies it back to the compute device.
    ///
    /// # Errors
    /// Whatever the model's computation reports.
    fn load_output(&self, unit: usize, from: &[u8]) -> Result<()>;

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

    /// Whether it is certain by now that the update will not be the one expected by [`OffloadEngine::run_ahead`]: from a
    /// gradient that has overflowed, or a norm that will be clipped. Once true it stays so.
    fn overturned(&self) -> bool {
        false
    }
}

pub(super) struct GradientWork<'a> {
    engine: &'a OffloadEngine,
    plan: &'a Plan,
    model: &'a dyn ModelWork,
    loss_scale: f64,
}

impl<'a> GradientWork<'a> {
    pub fn new(
        engine: &'a OffloadEngine,
        plan: &'a Plan,
        model: &'a dyn ModelWork,
        loss_scale: f64,
    ) -> Self {
        Self { engine, plan, model, loss_scale }
    }
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
            Action::ReadUnit { unit, drive, buffer } => engine.read_unit(unit, drive, buffer),
            Action::LoadUnit { unit, backward, buffer: Some(buffer) } => {
                self.model.load(unit, backward, &engine.unit_weights(unit, buffer)?)
            }
            Action::LoadUnit { unit, backward, buffer: None } => {
                let width = engine.options().weights_dtype.bytes();
                let weights = HostWeights { vector: engine.weights(), width };
                self.model.load(unit, backward, &weights)
            }
            Action::SaveActivation { unit, buffer: Some(buffer) } => {
                engine.with_output(unit, buffer, |to| self.model.save_output(unit, to))
            }
            Action::LoadActivation { unit, buffer: Some(buffer) } => {
                engine.with_output(unit, buffer, |from| self.model.load_output(unit, from))
            }
            Action::WriteActivation { unit, buffer } => engine.write_output(unit, buffer),
            Action::ReadActivation { unit, buffer } => engine.read_output(unit, buffer),
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
        self.refresh_weights()?;
        let plan = self.gradient_plan(step);
        let work = GradientWork::new(self, plan, model, loss_scale);
        self.executor.run(&plan.graph, &work)
    }
}
