//! A micro-step of a few blocks, without drives: what computing takes in memory and time.

use std::time::{Duration, Instant};

use nearfield_runtime::exec::{Executor, ThreadedExecutor, Work};
use nearfield_runtime::graph::Task;
use nearfield_techniques::offload::plan::gradient::MicroStep;
use nearfield_techniques::offload::plan::{Action, Plan};
use nearfield_techniques::offload::{
    ActivationPlace, Blueprint, ModelWork, OffloadOptions, System, WeightSource, WeightsPlace,
};
use parking_lot::{Condvar, Mutex};

use super::options::TrainOptions;
use super::work::MicroBatch;
use super::{flat_model, unit_shapes};
use crate::data::Batch;
use crate::error::Result;
use crate::memory;
use crate::model::{Architecture, Model, Windows, parse_device};

/// Blocks that are rehearsed: two whose weights are on the device, and one before them.
const BLOCKS: u32 = 3;
/// Times that they are, at least and at most: memory comes to rest after some.
const TIMES: (usize, usize) = (2, 10);
/// Time after which only what must be done is.
const ENOUGH: Duration = Duration::from_secs(8);

/// Longest time that gradients wait for a unit.
const LATEST: Duration = Duration::from_secs(60);

/// What computing takes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rehearsal {
    /// Bytes of host memory at their peak, without working weights, block inputs and the runtime's buffers.
    pub host_bytes: u64,
    /// Seconds of all forward passes of a micro-step.
    pub forward_seconds: f64,
    /// Seconds of all backward passes of a micro-step.
    pub backward_seconds: f64,
}

/// Rehearses a micro-step of `options` with a few blocks of `architecture`.
///
/// # Errors
/// A device that is not there, and what libtorch reports.
pub(super) fn rehearse(options: &TrainOptions, architecture: &Architecture) -> Result<Rehearsal> {
    let layers = architecture.layers.min(BLOCKS);
    let windows = architecture.windows.as_ref().map(|windows| Windows {
        tokens: windows.tokens,
        layers: windows.layers.iter().copied().take(layers as usize).collect(),
    });
    let few = Architecture { layers, windows, ..architecture.clone() };
    let device = parse_device(&options.compute)?;
    let model = Model::new(few, options.seq, options.offload.weights_dtype, device)?;
    let units = unit_shapes(options, &model);
    let offload = OffloadOptions {
        system: System::Memory,
        drive_weights: Vec::new(),
        error_feedback: false,
        overlap_update: false,
        weights: WeightsPlace::Host,
        activations: ActivationPlace::Host,
        ..options.offload.clone()
    };
    let blueprint = Blueprint::new(&offload, &flat_model(&model)?, 0, &units)?;
    let plan = blueprint.gradient(MicroStep::Offload);
    let executor = ThreadedExecutor::default();
    let size = options.batch as usize * options.seq as usize;
    let vocab = i64::from(architecture.vocab);
    let tokens = |shift: i64| (0..size as i64).map(|index| (index * 31 + shift) % vocab).collect();
    let batch =
        Batch { inputs: tokens(0), targets: tokens(1), documents: None, sequences: options.batch };
    let (mut forward, mut backward) = (f64::INFINITY, f64::INFINITY);
    memory::forget_peak();
    let before = memory::resident_bytes();
    let begin = Instant::now();
    for time in 0..TIMES.1 {
        if time >= TIMES.0 && begin.elapsed() > ENOUGH {
            break;
        }
        let work = Few {
            plan,
            blueprint: &blueprint,
            micro: MicroBatch::new(
                &model,
                model.batch(&batch)?,
                1.0,
                options.offload.gradient_dtype,
                None,
            ),
            width: model.dtype().bytes(),
            done: Mutex::new(usize::MAX),
            changed: Condvar::new(),
        };
        let timeline = executor.run(&plan.graph, &work)?;
        let of = |backward: bool| {
            let mut sum = 0.0;
            for (task, action) in plan.graph.tasks().iter().zip(&plan.actions) {
                let (unit, own) = match action {
                    Action::Forward { unit } => (*unit, !backward),
                    Action::Backward { unit } => (*unit, backward),
                    _ => continue,
                };
                if own {
                    let span = timeline.span(task.id);
                    let block = unit > 0 && unit + 1 < units.len();
                    let times = f64::from(architecture.layers) / f64::from(layers);
                    let times = if block { times } else { 1.0 };
                    sum += times * (span.end_seconds - span.start_seconds);
                }
            }
            sum
        };
        // The first is slower, because memory is new to it.
        forward = forward.min(of(false));
        backward = backward.min(of(true));
    }
    let peak = memory::peak_bytes().saturating_sub(before);
    let held = blueprint.outputs_bytes;
    Ok(Rehearsal {
        host_bytes: peak.saturating_sub(held),
        forward_seconds: forward,
        backward_seconds: backward,
    })
}

struct Few<'a> {
    plan: &'a Plan,
    blueprint: &'a Blueprint,
    micro: MicroBatch<'a>,
    /// Bytes of a weight.
    width: u64,
    /// The last unit that has run backward.
    done: Mutex<usize>,
    changed: Condvar,
}

impl Few<'_> {
    /// Waits until the unit before `unit` has run backward: the latest that gradients can leave, where drives are slow.
    fn leave_late(&self, unit: usize) {
        let mut done = self.done.lock();
        // Long enough for any unit; a rehearsal must not hang.
        let end = Instant::now() + LATEST;
        while unit > 0 && *done >= unit {
            if self.changed.wait_until(&mut done, end).timed_out() {
                return;
            }
        }
    }
}

impl Work for Few<'_> {
    fn perform(&self, task: &Task) -> nearfield_runtime::Result<()> {
        match self.plan.actions[task.id.index()] {
            Action::LoadUnit { unit, backward, .. } => self.micro.load(unit, backward, self),
            Action::Offload { unit, part, .. } => {
                self.leave_late(unit);
                let run = self.blueprint.layout.parts[part];
                self.micro.offload(unit, run.start, run.elements, &mut |_, _| Ok(()))
            }
            action => {
                let computed = self.micro.compute(action);
                if let Action::Backward { unit } = action {
                    *self.done.lock() = unit;
                    self.changed.notify_all();
                }
                computed
            }
        }
    }
}

impl WeightSource for Few<'_> {
    /// Small numbers of both signs: a model that computes like any other.
    fn copy_out(&self, first_element: u64, out: &mut [u8]) -> nearfield_runtime::Result<()> {
        for (index, bytes) in out.chunks_exact_mut(self.width as usize).enumerate() {
            let value = ((first_element + index as u64) * 7 % 61) as f32 * 0.001 - 0.03;
            // The upper half of an fp32 is a bf16; as fp16 it is a number below 1 as well.
            let raw = value.to_le_bytes();
            bytes.copy_from_slice(&raw[4 - self.width as usize..]);
        }
        Ok(())
    }
}
