//! The gradient graph: forward, backward, and each gradient's way to its drive
//! (Smart-Infinity, section 2; block streaming as in ZeRO-Infinity).

use std::collections::HashMap;

use nearfield_runtime::graph::{
    Direction, GraphBuilder, MemoryClaim, Op, Place, ResourceId, TaskId,
};
use nearfield_runtime::layout::Layout;
use nearfield_runtime::{Result, codec};

use super::{Action, Plan, PlanBuilder};
use crate::offload::options::{OffloadOptions, System};

/// What the graph needs to know of one unit of the model: a block, the embedding, or the head.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnitShape {
    /// Name for labels.
    pub name: String,
    /// Elements of the weights it reads.
    pub weight_elements: u64,
    /// Bytes of its output for one micro-batch, kept as the next unit's checkpoint.
    pub output_bytes: u64,
    /// Floating-point operations of its forward pass for one micro-batch.
    pub forward_flops: u64,
    /// Whether a forward pass of its own is needed; the head's runs within its backward pass.
    pub forward: bool,
    /// Flat runs `(first element, elements)` whose gradient is complete after its backward pass.
    pub gradients: Vec<(u64, u64)>,
}

/// How much the staging of gradients in host memory holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Staging {
    /// Buffers.
    pub buffers: u32,
    /// Elements of each.
    pub elements: u64,
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
    let mut plan = PlanBuilder::default();
    let engines = Engines::new(&mut plan.graph, layout, options);
    let staging = staging(layout, options, units);
    let mut planner = Planner { layout, options, units, engines, staging, plan };
    let forward = planner.forward();
    planner.backward(&forward, step);
    let staging_bytes =
        options.gradient_dtype.bytes() * staging.elements * u64::from(staging.buffers);
    planner.plan.graph.claim(MemoryClaim {
        place: Place::HOST,
        bytes: staging_bytes,
        from: None,
        to: None,
    });
    Ok((planner.plan.build()?, staging))
}

/// Staging buffers that the order of gradients needs: one for each part that is incomplete at a time, and
/// one more so that a part is written while the next one fills.
fn staging(layout: &Layout, options: &OffloadOptions, units: &[UnitShape]) -> Staging {
    let elements = layout.longest(None);
    if options.system == System::Memory {
        return Staging { buffers: 0, elements };
    }
    let mut missing: HashMap<usize, u64> = HashMap::new();
    let mut open = 0_u32;
    let mut most = 0;
    for (_, part, overlap) in arrivals(layout, units) {
        let left = missing.entry(part).or_insert_with(|| {
            open += 1;
            layout.parts[part].elements
        });
        most = most.max(open);
        *left -= overlap;
        if *left == 0 {
            open -= 1;
        }
    }
    Staging { buffers: most + 1, elements }
}

/// `(unit, part, elements)` in the order in which gradients leave the compute device: units backward,
/// and within a unit the later parts first, as they are the ones that are complete first.
fn arrivals(layout: &Layout, units: &[UnitShape]) -> Vec<(usize, usize, u64)> {
    let mut arrivals = Vec::new();
    for (unit, shape) in units.iter().enumerate().rev() {
        let mut of_unit: Vec<(usize, u64)> = Vec::new();
        for &(start, elements) in &shape.gradients {
            for part in layout.overlapping(start, elements) {
                let run = &layout.parts[part];
                let overlap = (start + elements).min(run.end()) - start.max(run.start);
                match of_unit.iter_mut().find(|(other, _)| *other == part) {
                    Some((_, total)) => *total += overlap,
                    None => of_unit.push((part, overlap)),
                }
            }
        }
        of_unit.sort_unstable_by_key(|&(part, _)| std::cmp::Reverse(part));
        arrivals.extend(of_unit.into_iter().map(|(part, overlap)| (unit, part, overlap)));
    }
    arrivals
}

struct Engines {
    h2d: ResourceId,
    d2h: ResourceId,
    compute: ResourceId,
    cpu: ResourceId,
    write: Vec<ResourceId>,
}

impl Engines {
    fn new(builder: &mut GraphBuilder, layout: &Layout, options: &OffloadOptions) -> Self {
        let gpu = Place::Gpu(0);
        let drives = if options.system.on_drives() { layout.drives } else { 0 };
        Self {
            h2d: builder.resource("gpu0.h2d", gpu, 1),
            d2h: builder.resource("gpu0.d2h", gpu, 1),
            compute: builder.resource("gpu0.compute", gpu, 1),
            cpu: builder.resource("host.cpu", Place::HOST, 1),
            write: (0..drives)
                .map(|drive| {
                    builder.resource(&format!("drive{drive}.write"), Place::Drive(drive), 2)
                })
                .collect(),
        }
    }
}

struct Planner<'a> {
    layout: &'a Layout,
    options: &'a OffloadOptions,
    units: &'a [UnitShape],
    engines: Engines,
    staging: Staging,
    plan: PlanBuilder,
}

/// State of the staging buffers while the graph is built.
struct Slots {
    /// Of each part that has begun to arrive: its buffer, the elements still missing, the last copy to it.
    open: HashMap<usize, (u32, u64, Option<TaskId>)>,
    /// Free buffers with the tasks that emptied them, least recently used first.
    free: Vec<(u32, Vec<TaskId>)>,
}

impl Planner<'_> {
    /// Weights of `unit` to the compute device. Two units fit there at a time: `free` ends the use by the
    /// one before the last.
    fn load_unit(&mut self, unit: usize, backward: bool, free: Option<TaskId>) -> TaskId {
        let shape = &self.units[unit];
        let bytes = (shape.weight_elements * self.options.weights_dtype.bytes()).max(1);
        let op = Op::Transfer { from: Place::HOST, to: Place::Gpu(0), bytes };
        let label = format!("load weights of {}", shape.name);
        let after: Vec<TaskId> = free.into_iter().collect();
        self.plan.task(self.engines.h2d, op, Action::LoadUnit { unit, backward }, label, &after)
    }

    /// Forward through all units that need it; returns the task that saved each unit's output.
    fn forward(&mut self) -> Vec<Option<TaskId>> {
        self.plan.graph.phase("forward");
        let mut saved = vec![None; self.units.len()];
        let mut computed: Vec<TaskId> = Vec::new();
        for (unit, saved) in saved.iter_mut().enumerate() {
            if !self.units[unit].forward {
                continue;
            }
            let free = computed.len().checked_sub(2).map(|index| computed[index]);
            let loaded = self.load_unit(unit, false, free);
            let mut after = vec![loaded];
            after.extend(computed.last());
            let shape = &self.units[unit];
            let op = Op::Compute { flops: shape.forward_flops, bytes: 0 };
            let label = format!("forward {}", shape.name);
            let task =
                self.plan.task(self.engines.compute, op, Action::Forward { unit }, label, &after);
            computed.push(task);
            let shape = &self.units[unit];
            let op = Op::Transfer {
                from: Place::Gpu(0),
                to: Place::HOST,
                bytes: shape.output_bytes.max(1),
            };
            let label = format!("save output of {}", shape.name);
            let action = Action::SaveActivation { unit };
            *saved = Some(self.plan.task(self.engines.d2h, op, action, label, &[task]));
        }
        saved
    }

    fn backward(&mut self, saved: &[Option<TaskId>], step: MicroStep) {
        self.plan.graph.phase("backward");
        let mut slots = Slots {
            open: HashMap::new(),
            free: (0..self.staging.buffers).map(|buffer| (buffer, Vec::new())).collect(),
        };
        let arrivals = arrivals(self.layout, self.units);
        let mut next_arrival = 0;
        let mut computed: Vec<TaskId> = Vec::new();
        // Tasks after which each unit's gradients have left the compute device; two units fit there.
        let mut left: Vec<Vec<TaskId>> = Vec::new();
        let forward_end = saved.iter().flatten().last().copied();
        for unit in (0..self.units.len()).rev() {
            let free = computed.len().checked_sub(2).map(|index| computed[index]).or(forward_end);
            let mut after = vec![self.load_unit(unit, true, free)];
            if let Some(input) = unit.checked_sub(1) {
                after.push(self.load_activation(input, saved[input]));
            }
            after.extend(computed.last());
            if let Some(earlier) = left.len().checked_sub(2) {
                after.extend(&left[earlier]);
            }
            let shape = &self.units[unit];
            // Recomputing costs one more forward pass, the gradients two.
            let op = Op::Compute { flops: 3 * shape.forward_flops, bytes: 0 };
            let label = format!("backward {}", shape.name);
            let action = Action::Backward { unit };
            let computed_now = self.plan.task(self.engines.compute, op, action, label, &after);
            computed.push(computed_now);
            match step {
                MicroStep::Accumulate => {
                    left.push(self.accumulate(unit, computed_now).into_iter().collect());
                }
                MicroStep::Offload => {
                    let mut leaving = Vec::new();
                    while let Some(&(of_unit, part, elements)) = arrivals.get(next_arrival) {
                        if of_unit != unit {
                            break;
                        }
                        next_arrival += 1;
                        leaving.push(self.offload(unit, part, elements, computed_now, &mut slots));
                    }
                    left.push(leaving);
                }
            }
        }
    }

    fn load_activation(&mut self, unit: usize, saved: Option<TaskId>) -> TaskId {
        let shape = &self.units[unit];
        let op =
            Op::Transfer { from: Place::HOST, to: Place::Gpu(0), bytes: shape.output_bytes.max(1) };
        let label = format!("load output of {}", shape.name);
        let after: Vec<TaskId> = saved.into_iter().collect();
        self.plan.task(self.engines.h2d, op, Action::LoadActivation { unit }, label, &after)
    }

    fn gradient_copy(&self, elements: u64) -> Op {
        let bytes = elements * self.options.gradient_dtype.bytes();
        Op::Transfer { from: Place::Gpu(0), to: Place::HOST, bytes }
    }

    fn accumulate(&mut self, unit: usize, computed: TaskId) -> Option<TaskId> {
        let shape = &self.units[unit];
        let elements: u64 = shape.gradients.iter().map(|&(_, elements)| elements).sum();
        if elements == 0 {
            return None;
        }
        let op = self.gradient_copy(elements);
        let label = format!("accumulate gradients of {}", shape.name);
        Some(self.plan.task(self.engines.d2h, op, Action::Accumulate { unit }, label, &[computed]))
    }

    /// Copies one unit's share of one part to its staging buffer; sends the part off when it is complete.
    fn offload(
        &mut self,
        unit: usize,
        part: usize,
        elements: u64,
        computed: TaskId,
        slots: &mut Slots,
    ) -> TaskId {
        let mut after = vec![computed];
        let in_memory = self.options.system == System::Memory;
        let (staging, missing, last) = slots.open.remove(&part).unwrap_or_else(|| {
            let missing = self.layout.parts[part].elements;
            if in_memory {
                return (0, missing, None);
            }
            // `staging()` counted the buffers for this very order, so one is always free.
            let (buffer, emptied) = slots.free.remove(0);
            after.extend(emptied);
            (buffer, missing, None)
        });
        // Copies to one buffer keep their order: the first of them waits for the buffer.
        after.extend(last);
        let op = self.gradient_copy(elements);
        let label = format!("offload gradient of {} for part {part}", self.units[unit].name);
        let action = Action::Offload { unit, part, staging };
        let copied = self.plan.task(self.engines.d2h, op, action, label, &after);
        if missing > elements {
            slots.open.insert(part, (staging, missing - elements, Some(copied)));
        } else if !in_memory {
            let emptied = self.send(part, staging, copied);
            slots.free.push((staging, emptied));
        }
        copied
    }

    /// A complete gradient to its drive; returns the tasks after which its staging buffer is free.
    fn send(&mut self, part: usize, staging: u32, complete: TaskId) -> Vec<TaskId> {
        let drive = self.layout.parts[part].drive;
        let padded = self.layout.padded(part);
        let write = self.engines.write[drive as usize];
        let to_drive =
            |bytes| Op::Storage { direction: Direction::Write, drive, other: Place::HOST, bytes };
        if !self.options.compressed() {
            let op = to_drive(padded * self.options.gradient_dtype.bytes());
            let label = format!("write gradient of part {part} to drive {drive}");
            let action = Action::WriteGradient { part, staging };
            return vec![self.plan.task(write, op, action, label, &[complete])];
        }
        let op = Op::Kernel { name: "topk", elements: padded, bytes: padded * 4 };
        let label = format!("compress gradient of part {part}");
        let action = Action::Encode { part, staging };
        let encoded = self.plan.task(self.engines.cpu, op, action, label, &[complete]);
        let op = to_drive(8 * codec::kept(self.options.topk_keep, padded));
        let label = format!("write kept pairs of part {part} to drive {drive}");
        let action = Action::WriteGradient { part, staging };
        let mut emptied = vec![self.plan.task(write, op, action, label, &[encoded])];
        if self.options.error_feedback {
            let label = format!("write residual of part {part} to drive {drive}");
            let action = Action::WriteResidual { part, staging };
            emptied.push(self.plan.task(write, to_drive(4 * padded), action, label, &[encoded]));
        }
        emptied
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::offload::placement::{FlatModel, TensorRun, layout};
    use crate::offload::plan::formulas;

    /// Decay tensors of 3 blocks first, then their biases: each block's gradient lies in two runs.
    fn model() -> (FlatModel, Vec<UnitShape>) {
        let run = |elements, group| TensorRun { name: "t".into(), elements, group };
        let model = FlatModel::new(vec![
            run(5000, 0),
            run(9000, 0),
            run(9000, 0),
            run(300, 1),
            run(500, 1),
            run(500, 1),
        ])
        .unwrap();
        let unit = |name: &str, gradients: Vec<(u64, u64)>| UnitShape {
            name: name.into(),
            weight_elements: 100,
            output_bytes: 64,
            forward_flops: 10,
            forward: true,
            gradients,
        };
        let units = vec![
            unit("embed", vec![(0, 5000), (23_000, 300)]),
            unit("block0", vec![(5000, 9000), (23_300, 500)]),
            unit("block1", vec![(14_000, 9000), (23_800, 500)]),
        ];
        (model, units)
    }

    #[test]
    fn every_gradient_reaches_its_drive_once_and_the_bytes_are_the_formula() {
        let (model, units) = model();
        for system in [System::Base, System::SuO, System::SuOC] {
            for drives in [1, 2, 3] {
                let options =
                    OffloadOptions { system, subgroup_elements: 4096, ..OffloadOptions::default() };
                let layout = layout(&model, &options, drives).unwrap();
                let (plan, staging) =
                    super::plan(&layout, &options, &units, MicroStep::Offload).unwrap();
                let formula = formulas::step_traffic(&layout, &options).shared_down;
                let state = if system == System::Base { 12 * layout.padded_total() } else { 0 };
                assert_eq!(plan.graph.traffic().shared_down, formula - state);
                assert!(staging.buffers <= 4, "{staging:?}");
                let mut written: Vec<usize> = plan
                    .actions
                    .iter()
                    .filter_map(|action| match action {
                        Action::WriteGradient { part, .. } => Some(*part),
                        _ => None,
                    })
                    .collect();
                written.sort_unstable();
                assert_eq!(written, (0..layout.parts.len()).collect::<Vec<_>>());
            }
        }
    }

    #[test]
    fn staging_does_not_grow_with_the_number_of_subgroups() {
        let (model, units) = model();
        let buffers = |subgroup_elements| {
            let options = OffloadOptions { subgroup_elements, ..OffloadOptions::default() };
            let layout = layout(&model, &options, 1).unwrap();
            super::plan(&layout, &options, &units, MicroStep::Offload).unwrap().1.buffers
        };
        assert!(buffers(1024) <= buffers(8192) + 1);
    }

    #[test]
    fn a_staging_buffer_is_refilled_only_after_its_write() {
        let (model, units) = model();
        let options = OffloadOptions { subgroup_elements: 2048, ..OffloadOptions::default() };
        let layout = layout(&model, &options, 2).unwrap();
        let (plan, _) = super::plan(&layout, &options, &units, MicroStep::Offload).unwrap();
        let mut owner: HashMap<u32, (usize, Option<TaskId>)> = HashMap::new();
        for (task, action) in plan.graph.tasks().iter().zip(&plan.actions) {
            match *action {
                Action::Offload { part, staging, .. } => {
                    let last = owner.insert(staging, (part, None));
                    if let Some((other, written)) = last
                        && other != part
                    {
                        let written = written.expect("the buffer's last part was written");
                        assert!(plan.graph.predecessors(task.id).contains(&written));
                    }
                }
                Action::WriteGradient { part, staging } => {
                    assert_eq!(owner[&staging].0, part);
                    owner.insert(staging, (part, Some(task.id)));
                }
                _ => {}
            }
        }
    }
}
