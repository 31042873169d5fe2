//! Builds the graph of one micro-step.

use std::collections::HashMap;

use nearfield_runtime::codec;
use nearfield_runtime::graph::{
    Collective, Direction, GraphBuilder, MemoryClaim, Op, Place, ResourceId, TaskId,
};
use nearfield_runtime::layout::Layout;

use super::outputs::OUTPUTS;
use super::paging::Paging;
use super::staging::{Staging, arrivals};
use super::{Begun, MicroStep, UnitShape};
use crate::offload::options::{ActivationPlace, Encoder, OffloadOptions, System, WeightsPlace};
use crate::offload::plan::{Action, PlanBuilder};

/// Units whose weights are on a compute device at a time: one in use, one on its way.
const WEIGHT_UNITS: usize = 2;

pub(super) fn plan(
    layout: &Layout,
    options: &OffloadOptions,
    units: &[UnitShape],
    staging: Staging,
    step: MicroStep,
) -> Begun {
    let mut plan = PlanBuilder::default();
    let engines = Engines::new(&mut plan.graph, layout, options);
    let mut planner = Planner {
        paging: Paging::new(layout, options, units),
        unit_loads: Vec::new(),
        output_uses: Vec::new(),
        output_saves: Vec::new(),
        layout,
        options,
        units,
        engines,
        staging,
        plan,
        collectives: 0,
        written: Vec::new(),
        residuals: Vec::new(),
        weight_uses: Vec::new(),
    };
    planner.claims();
    let forward = planner.forward();
    planner.backward(&forward, step);
    Begun { plan: planner.plan, written: planner.written, weight_uses: planner.weight_uses }
}

/// The engines of one compute device.
pub(super) struct Gpu {
    pub(super) h2d: ResourceId,
    pub(super) d2h: ResourceId,
    pub(super) compute: ResourceId,
    /// Transfers among compute devices, where there are several.
    pub(super) peers: Option<ResourceId>,
}

pub(super) struct Engines {
    pub(super) gpus: Vec<Gpu>,
    pub(super) cpu: ResourceId,
    pub(super) read: Vec<ResourceId>,
    pub(super) write: Vec<ResourceId>,
}

impl Engines {
    fn new(builder: &mut GraphBuilder, layout: &Layout, options: &OffloadOptions) -> Self {
        let drives = if options.system.on_drives() { layout.drives } else { 0 };
        let reads =
            options.weights == WeightsPlace::Drive || options.activations == ActivationPlace::Drive;
        let gpus = (0..options.tensor_parallel)
            .map(|number| {
                let mut engine = |name: &str| {
                    builder.resource(&format!("gpu{number}.{name}"), Place::Gpu(number), 1)
                };
                Gpu {
                    h2d: engine("h2d"),
                    d2h: engine("d2h"),
                    compute: engine("compute"),
                    peers: (options.tensor_parallel > 1).then(|| engine("peers")),
                }
            })
            .collect();
        Self {
            gpus,
            cpu: builder.resource("host.cpu", Place::HOST, 1),
            read: drive_engines(builder, if reads { drives } else { 0 }, "read"),
            write: drive_engines(builder, drives, "write"),
        }
    }
}

fn drive_engines(builder: &mut GraphBuilder, drives: u32, name: &str) -> Vec<ResourceId> {
    // Two lanes: the next transfer's requests are queued before the last one's drain.
    let mut engine =
        |drive| builder.resource(&format!("drive{drive}.{name}"), Place::Drive(drive), 2);
    (0..drives).map(&mut engine).collect()
}

pub(super) struct Planner<'a> {
    pub(super) paging: Paging,
    /// Loads of units to compute devices so far, of each pass of a unit: after them its host buffer is free.
    pub(super) unit_loads: Vec<Vec<TaskId>>,
    /// Tasks after which each host buffer for outputs is free.
    pub(super) output_uses: Vec<Vec<TaskId>>,
    /// Copies of outputs from each device to host memory so far, by unit.
    pub(super) output_saves: Vec<Vec<TaskId>>,
    pub(super) layout: &'a Layout,
    pub(super) options: &'a OffloadOptions,
    pub(super) units: &'a [UnitShape],
    pub(super) engines: Engines,
    pub(super) staging: Staging,
    pub(super) plan: PlanBuilder,
    /// Collective operations so far.
    pub(super) collectives: u32,
    /// Complete parts so far, with the task that writes each.
    written: Vec<(usize, TaskId)>,
    /// The last task of each drive that writes a residual: all of them use one buffer.
    residuals: Vec<Option<TaskId>>,
    /// Units whose weights were loaded, with the task.
    weight_uses: Vec<(usize, TaskId)>,
}

/// Staging buffers while the graph is built.
struct Slots {
    /// Of each part that has begun to arrive: its buffer, the elements still missing, the last copies to it.
    open: HashMap<usize, (u32, u64, Vec<TaskId>)>,
    /// Free buffers with the tasks that emptied them, least recently used first.
    free: Vec<(u32, Vec<TaskId>)>,
}

impl Planner<'_> {
    pub(super) fn gpus(&self) -> u32 {
        self.options.tensor_parallel
    }

    /// What one of the compute devices has of `total`, at least 1.
    pub(super) fn share(&self, total: u64, gpu: u32) -> u64 {
        let gpus = u64::from(self.gpus());
        (total / gpus + u64::from(u64::from(gpu) < total % gpus)).max(1)
    }

    /// Memory that is held for the whole micro-step.
    fn claims(&mut self) {
        let weights = self.options.weights_dtype.bytes();
        let gradients = self.options.gradient_dtype.bytes();
        let most = |of: fn(&UnitShape) -> u64| self.units.iter().map(of).max().unwrap_or(0);
        let outputs: u64 = self.units.iter().map(|unit| unit.output_bytes).sum();
        let (outputs_on_gpu, outputs) = match self.options.activations {
            ActivationPlace::Device => (outputs, 0),
            ActivationPlace::Host => (0, outputs),
            ActivationPlace::Drive => (0, self.paging.outputs_bytes()),
        };
        let on_device = self.options.compressed() && self.options.encoder == Encoder::Device;
        let pairs = 8 * codec::kept(self.options.topk_keep, self.staging.elements);
        let staged = if on_device { pairs } else { gradients * self.staging.elements };
        let staged = staged * u64::from(self.staging.buffers);
        let mut claims = vec![(Place::HOST, staged + outputs + self.paging.weights_bytes())];
        // Incomplete parts, and magnitudes and indices of the one that is sorted.
        let parts = if on_device {
            (4 * u64::from(self.staging.open) + 12) * self.staging.elements
        } else {
            0
        };
        let gradient_units = if self.options.gradient_overlap { 2 } else { 1 };
        let of_unit = |unit: &UnitShape| unit.gradients.iter().map(|&(_, elements)| elements).sum();
        let on_gpus = WEIGHT_UNITS as u64 * weights * most(|unit| unit.weight_elements)
            + gradient_units * weights * most(of_unit)
            + most(|unit| unit.output_bytes + unit.working_bytes)
            + outputs_on_gpu
            + parts;
        for gpu in 0..self.gpus() {
            claims.push((Place::Gpu(gpu), self.share(on_gpus, gpu)));
        }
        for (place, bytes) in claims {
            self.plan.graph.claim(MemoryClaim { place, bytes, from: None, to: None });
        }
    }

    /// Weights of `unit` to a compute device. Two units fit there at a time: `free` ends the use by the one before
    /// the last.
    fn load_unit(
        &mut self,
        unit: usize,
        gpu: u32,
        backward: bool,
        free: &[TaskId],
        reads: &[TaskId],
    ) -> TaskId {
        let shape = &self.units[unit];
        let bytes = self.share(shape.weight_elements * self.options.weights_dtype.bytes(), gpu);
        let op = Op::Transfer { from: Place::HOST, to: Place::Gpu(gpu), bytes };
        let label = format!("load weights of {}", shape.name);
        let buffer = self.unit_buffer();
        let action = Action::LoadUnit { unit, backward, buffer };
        let after = [free, reads].concat();
        let h2d = self.engines.gpus[gpu as usize].h2d;
        let load = self.plan.task(h2d, op, action, label, &after);
        self.weight_uses.push((unit, load));
        load
    }

    /// The host buffer of the unit that is loaded next, where weights lie on drives.
    fn unit_buffer(&self) -> Option<u32> {
        let buffers = self.paging.unit_buffers as usize;
        (buffers > 0).then(|| (self.unit_loads.len() % buffers) as u32)
    }

    /// Reads a unit's weights from the drives, ahead of its turn, as soon as a host buffer is free.
    fn read_unit(&mut self, unit: usize) -> Vec<TaskId> {
        let Some(buffer) = self.unit_buffer() else { return Vec::new() };
        let earlier = self.unit_loads.len().checked_sub(self.paging.unit_buffers as usize);
        let free = earlier.map(|index| self.unit_loads[index].clone()).unwrap_or_default();
        let mut reads = Vec::new();
        for drive in 0..self.layout.drives {
            let bytes = self.paging.unit_bytes_on(unit, drive);
            if bytes == 0 {
                continue;
            }
            let op = Op::Storage { direction: Direction::Read, drive, other: Place::HOST, bytes };
            let label = format!("read weights of {} from drive {drive}", self.units[unit].name);
            let action = Action::ReadUnit { unit, drive, buffer };
            reads.push(self.plan.task(self.engines.read[drive as usize], op, action, label, &free));
        }
        reads
    }

    /// Runs a unit on one compute device.
    fn compute(&mut self, unit: usize, gpu: u32, backward: bool, after: &[TaskId]) -> TaskId {
        let shape = &self.units[unit];
        // Recomputing costs one more forward pass, the gradients two.
        let (passes, verb, action) = if backward {
            (3, "backward", Action::Backward { unit })
        } else {
            (1, "forward", Action::Forward { unit })
        };
        let flops = shape.forward_flops.saturating_mul(passes);
        let flops = if flops == 0 { 0 } else { self.share(flops, gpu) };
        let bytes = shape.score_bytes.saturating_mul(passes);
        let bytes = if bytes == 0 { 0 } else { self.share(bytes, gpu) };
        let op = Op::Compute { flops, bytes };
        let label = format!("{verb} {}", shape.name);
        self.plan.task(self.engines.gpus[gpu as usize].compute, op, action, label, after)
    }

    /// Sums what the compute devices have found of a unit: after attention and after the feed-forward layer, in each
    /// pass over them. Returns what follows `computed` on each device.
    fn all_reduce(&mut self, unit: usize, backward: bool, computed: Vec<TaskId>) -> Vec<TaskId> {
        let shape = &self.units[unit];
        if self.gpus() == 1 || shape.forward_flops == 0 {
            return computed;
        }
        let (times, action) =
            if backward { (4, Action::Backward { unit }) } else { (2, Action::Forward { unit }) };
        let group = self.collectives;
        self.collectives += 1;
        let bytes = times * shape.output_bytes.max(1);
        let op = Op::Collective { kind: Collective::AllReduce, group, bytes };
        let label = format!("sum outputs of {}", shape.name);
        let mut summed = Vec::new();
        for (gpu, before) in (0..self.gpus()).zip(computed) {
            let engines = &self.engines.gpus[gpu as usize];
            let resource = engines.peers.unwrap_or(engines.compute);
            self.plan.graph.rank(gpu);
            summed.push(self.plan.task(resource, op.clone(), action, label.clone(), &[before]));
        }
        self.plan.graph.rank(0);
        summed
    }

    /// Forward through all units that need it; returns the tasks that saved each unit's output.
    fn forward(&mut self) -> Vec<Vec<TaskId>> {
        self.plan.graph.phase("forward");
        let mut saved = vec![Vec::new(); self.units.len()];
        let mut computed: Vec<Vec<TaskId>> = Vec::new();
        for (unit, saved) in saved.iter_mut().enumerate() {
            if !self.units[unit].forward {
                continue;
            }
            let (mut done, mut loads) = (Vec::new(), Vec::new());
            let reads = self.read_unit(unit);
            for gpu in 0..self.gpus() {
                self.plan.graph.rank(gpu);
                let free: Vec<TaskId> = earlier(&computed, WEIGHT_UNITS, gpu);
                let load = self.load_unit(unit, gpu, false, &free, &reads);
                loads.push(load);
                let mut after = vec![load];
                after.extend(earlier(&computed, 1, gpu));
                // Outputs do not pile up on the device when they leave it slowly.
                after.extend(earlier(&self.output_saves, OUTPUTS, gpu));
                done.push(self.compute(unit, gpu, false, &after));
            }
            self.unit_loads.push(loads);
            let done = self.all_reduce(unit, false, done);
            computed.push(done.clone());
            *saved = self.save_output(unit, done);
        }
        self.plan.graph.rank(0);
        saved
    }

    fn backward(&mut self, saved: &[Vec<TaskId>], step: MicroStep) {
        self.plan.graph.phase("backward");
        let mut slots = Slots {
            open: HashMap::new(),
            free: (0..self.staging.buffers).map(|buffer| (buffer, Vec::new())).collect(),
        };
        let arrivals = arrivals(self.layout, self.units);
        let mut next_arrival = 0;
        let mut computed: Vec<Vec<TaskId>> = Vec::new();
        // Tasks after which each unit's gradients have left the compute devices.
        let mut left: Vec<Vec<TaskId>> = Vec::new();
        let gradient_units = if self.options.gradient_overlap { 2 } else { 1 };
        let forward_end = saved.iter().rfind(|saved| !saved.is_empty());
        for unit in (0..self.units.len()).rev() {
            let mut done = Vec::new();
            let needed = self.units[unit].backward_weights;
            let reads = if needed { self.read_unit(unit) } else { Vec::new() };
            let mut loads = Vec::new();
            for gpu in 0..self.gpus() {
                self.plan.graph.rank(gpu);
                let mut free = earlier(&computed, WEIGHT_UNITS, gpu);
                if free.is_empty() {
                    free.extend(forward_end.and_then(|saved| saved.get(gpu as usize)));
                }
                if needed {
                    loads.push(self.load_unit(unit, gpu, true, &free, &reads));
                }
            }
            let input =
                unit.checked_sub(1).map(|input| self.load_output(input, &saved[input], &computed));
            for gpu in 0..self.gpus() {
                self.plan.graph.rank(gpu);
                let mut after: Vec<TaskId> = loads.get(gpu as usize).copied().into_iter().collect();
                after.extend(input.as_ref().and_then(|loaded| loaded.get(gpu as usize)));
                after.extend(earlier(&computed, 1, gpu));
                if let Some(earlier) = left.len().checked_sub(gradient_units) {
                    after.extend(&left[earlier]);
                }
                done.push(self.compute(unit, gpu, true, &after));
            }
            self.plan.graph.rank(0);
            if needed {
                self.unit_loads.push(loads);
            }
            let done = self.all_reduce(unit, true, done);
            computed.push(done.clone());
            let mut leaving = Vec::new();
            match step {
                MicroStep::Accumulate => leaving = self.accumulate(unit, &done),
                MicroStep::Offload => {
                    while let Some(&(of_unit, part, elements)) = arrivals.get(next_arrival) {
                        if of_unit != unit {
                            break;
                        }
                        next_arrival += 1;
                        leaving.extend(self.offload(unit, part, elements, &done, &mut slots));
                    }
                }
            }
            left.push(leaving);
        }
    }

    /// Copies each device's share of `elements` of a gradient to host memory.
    fn gradient_copies(
        &mut self,
        elements: u64,
        action: Action,
        label: &str,
        after: &[TaskId],
    ) -> Vec<TaskId> {
        let mut copied = Vec::new();
        for gpu in 0..self.gpus() {
            self.plan.graph.rank(gpu);
            let bytes = self.share(elements * self.options.gradient_dtype.bytes(), gpu);
            let op = Op::Transfer { from: Place::Gpu(gpu), to: Place::HOST, bytes };
            let d2h = self.engines.gpus[gpu as usize].d2h;
            copied.push(self.plan.task(d2h, op, action, label.to_owned(), after));
        }
        self.plan.graph.rank(0);
        copied
    }

    fn accumulate(&mut self, unit: usize, computed: &[TaskId]) -> Vec<TaskId> {
        let shape = &self.units[unit];
        let elements: u64 = shape.gradients.iter().map(|&(_, elements)| elements).sum();
        if elements == 0 {
            return Vec::new();
        }
        let label = format!("accumulate gradients of {}", shape.name);
        self.gradient_copies(elements, Action::Accumulate { unit }, &label, computed)
    }

    /// Brings one unit's share of one part to its staging buffer, and sends the part off when it is complete. Returns
    /// the tasks after which the share has left the unit's own memory.
    fn offload(
        &mut self,
        unit: usize,
        part: usize,
        elements: u64,
        computed: &[TaskId],
        slots: &mut Slots,
    ) -> Vec<TaskId> {
        let mut after = computed.to_vec();
        let in_memory = self.options.system == System::Memory;
        let (staging, missing, last) = slots.open.remove(&part).unwrap_or_else(|| {
            let missing = self.layout.parts[part].elements;
            if in_memory {
                return (0, missing, Vec::new());
            }
            // `staging()` counted the buffers for this very order, so one is always free.
            let (buffer, emptied) = slots.free.remove(0);
            (buffer, missing, emptied)
        });
        // Copies to one buffer keep their order: the first of them waits for the buffer.
        after.extend(last);
        let encodes = self.options.compressed() && self.options.encoder == Encoder::Device;
        let copied = if encodes {
            // The share stays on the device until the part is complete.
            after
        } else {
            let label = format!("offload gradient of {} for part {part}", self.units[unit].name);
            let action = Action::Offload { unit, part, staging };
            self.gradient_copies(elements, action, &label, &after)
        };
        if missing > elements {
            slots.open.insert(part, (staging, missing - elements, copied.clone()));
            return copied;
        }
        if in_memory {
            return copied;
        }
        if encodes {
            let (selected, emptied) = self.select(part, staging, &copied);
            slots.free.push((staging, emptied));
            return selected;
        }
        let emptied = self.send(part, staging, &copied);
        slots.free.push((staging, emptied));
        copied
    }

    fn write(
        &mut self,
        part: usize,
        bytes: u64,
        action: Action,
        what: &str,
        after: &[TaskId],
    ) -> TaskId {
        let drive = self.layout.parts[part].drive;
        let op = Op::Storage { direction: Direction::Write, drive, other: Place::HOST, bytes };
        let label = format!("write {what} of part {part} to drive {drive}");
        self.plan.task(self.engines.write[drive as usize], op, action, label, after)
    }

    fn pairs_bytes(&self, part: usize) -> u64 {
        8 * codec::kept(self.options.topk_keep, self.layout.padded(part))
    }

    /// Selects the pairs of a complete part on the compute devices, each in its share, and writes them. Returns the
    /// tasks of the selection, and those after which the staging buffer is free.
    fn select(
        &mut self,
        part: usize,
        staging: u32,
        complete: &[TaskId],
    ) -> (Vec<TaskId>, Vec<TaskId>) {
        let (mut selected, mut fetched) = (Vec::new(), Vec::new());
        for gpu in 0..self.gpus() {
            self.plan.graph.rank(gpu);
            let elements = self.share(self.layout.padded(part), gpu);
            let op = Op::Kernel { name: "topk", elements, bytes: elements * 4 };
            let label = format!("compress gradient of part {part}");
            let action = Action::Encode { part, staging };
            let engines = &self.engines.gpus[gpu as usize];
            let (compute, d2h) = (engines.compute, engines.d2h);
            let encoded = self.plan.task(compute, op, action, label, complete);
            selected.push(encoded);
            let bytes = self.share(self.pairs_bytes(part), gpu);
            let op = Op::Transfer { from: Place::Gpu(gpu), to: Place::HOST, bytes };
            let label = format!("fetch kept pairs of part {part}");
            let action = Action::FetchPairs { part, staging };
            fetched.push(self.plan.task(d2h, op, action, label, &[encoded]));
        }
        self.plan.graph.rank(0);
        let bytes = self.pairs_bytes(part);
        let action = Action::WriteGradient { part, staging };
        let written = self.write(part, bytes, action, "kept pairs", &fetched);
        self.written.push((part, written));
        (selected, vec![written])
    }

    /// A complete gradient to its drive; returns the tasks after which its staging buffer is free.
    fn send(&mut self, part: usize, staging: u32, complete: &[TaskId]) -> Vec<TaskId> {
        let padded = self.layout.padded(part);
        let action = Action::WriteGradient { part, staging };
        if !self.options.compressed() {
            let bytes = padded * self.options.gradient_dtype.bytes();
            let written = self.write(part, bytes, action, "gradient", complete);
            self.written.push((part, written));
            return vec![written];
        }
        let op = Op::Kernel { name: "topk", elements: padded, bytes: padded * 4 };
        let label = format!("compress gradient of part {part}");
        let encode = Action::Encode { part, staging };
        let encoded = self.plan.task(self.engines.cpu, op, encode, label, complete);
        let bytes = self.pairs_bytes(part);
        let written = self.write(part, bytes, action, "kept pairs", &[encoded]);
        self.written.push((part, written));
        let mut emptied = vec![written];
        if self.options.error_feedback {
            let drive = self.layout.parts[part].drive as usize;
            self.residuals.resize(self.layout.drives as usize, None);
            let mut after = vec![encoded];
            after.extend(self.residuals[drive]);
            let action = Action::WriteResidual { part, staging };
            let residual = self.write(part, 4 * padded, action, "residual", &after);
            self.residuals[drive] = Some(residual);
            emptied.push(residual);
        }
        emptied
    }
}

/// What device `gpu` computed `back` units ago, if there is such a unit.
pub(super) fn earlier(computed: &[Vec<TaskId>], back: usize, gpu: u32) -> Vec<TaskId> {
    let unit = computed.len().checked_sub(back).and_then(|index| computed.get(index));
    unit.and_then(|tasks| tasks.get(gpu as usize)).copied().into_iter().collect()
}
