//! Where the outputs of units wait for the backward pass: on the device, in host memory, or on drives.

use nearfield_runtime::graph::{Direction, Op, Place, TaskId};

use super::planner::{Planner, earlier};
use crate::offload::options::ActivationPlace;
use crate::offload::plan::Action;

/// Outputs that are on a compute device at a time, beside those that stay there: one in use, one on its way.
pub(super) const OUTPUTS: usize = 2;
impl Planner<'_> {
    /// The host buffer of a unit's output, where outputs go to drives.
    fn output_buffer(&self, unit: usize) -> Option<u32> {
        let buffers = self.paging.activation_buffers as usize;
        (buffers > 0).then(|| (unit % buffers) as u32)
    }

    /// Brings a unit's output to where it waits for the backward pass; returns the tasks after which it is there, by
    /// device where it stays on devices or goes to host memory.
    pub(super) fn save_output(&mut self, unit: usize, computed: Vec<TaskId>) -> Vec<TaskId> {
        if self.options.activations == ActivationPlace::Device {
            return computed;
        }
        let buffer = self.output_buffer(unit);
        let free = match buffer {
            Some(buffer) => self.output_uses.get(buffer as usize).cloned().unwrap_or_default(),
            None => Vec::new(),
        };
        let mut saved = Vec::new();
        for (gpu, done) in (0..self.gpus()).zip(computed) {
            self.plan.graph.rank(gpu);
            let shape = &self.units[unit];
            let op = Op::Transfer {
                from: Place::Gpu(gpu),
                to: Place::HOST,
                bytes: self.share(shape.output_bytes, gpu),
            };
            let label = format!("save output of {}", shape.name);
            let action = Action::SaveActivation { unit, buffer };
            let d2h = self.engines.gpus[gpu as usize].d2h;
            let after = [&[done], &free[..]].concat();
            saved.push(self.plan.task(d2h, op, action, label, &after));
        }
        self.plan.graph.rank(0);
        self.output_saves.push(saved.clone());
        let Some(buffer) = buffer else { return saved };
        let written = if unit < self.paging.written {
            vec![self.page_output(unit, buffer, Direction::Write, &saved)]
        } else {
            // It is needed again before its buffer is.
            saved
        };
        self.output_uses.resize(self.paging.activation_buffers as usize, Vec::new());
        self.output_uses[buffer as usize].clone_from(&written);
        written
    }

    /// Moves a unit's output between its host buffer and its drive.
    fn page_output(
        &mut self,
        unit: usize,
        buffer: u32,
        direction: Direction,
        after: &[TaskId],
    ) -> TaskId {
        let (drive, _) = self.paging.activation_place(unit, self.layout.drives);
        let bytes = self.paging.activation_bytes;
        let op = Op::Storage { direction, drive, other: Place::HOST, bytes };
        let name = &self.units[unit].name;
        let (resource, action, label) = match direction {
            Direction::Write => (
                self.engines.write[drive as usize],
                Action::WriteActivation { unit, buffer },
                format!("write output of {name} to drive {drive}"),
            ),
            Direction::Read => (
                self.engines.read[drive as usize],
                Action::ReadActivation { unit, buffer },
                format!("read output of {name} from drive {drive}"),
            ),
        };
        self.plan.task(resource, op, action, label, after)
    }

    /// Reads outputs of units back from the drives: each as soon as its buffer is free.
    fn read_output(&mut self, unit: usize, saved: &[TaskId]) -> Vec<TaskId> {
        let Some(buffer) = self.output_buffer(unit).filter(|_| unit < self.paging.written) else {
            return saved.to_vec();
        };
        let mut after = self.output_uses[buffer as usize].clone();
        after.extend(saved);
        vec![self.page_output(unit, buffer, Direction::Read, &after)]
    }

    /// Brings a unit's output back to each compute device; returns the tasks after which it is there.
    pub(super) fn load_output(
        &mut self,
        unit: usize,
        saved: &[TaskId],
        computed: &[Vec<TaskId>],
    ) -> Vec<TaskId> {
        if self.options.activations == ActivationPlace::Device {
            return saved.to_vec();
        }
        let there = self.read_output(unit, saved);
        let buffer = self.output_buffer(unit);
        let mut loaded = Vec::new();
        for gpu in 0..self.gpus() {
            self.plan.graph.rank(gpu);
            let shape = &self.units[unit];
            let bytes = self.share(shape.output_bytes, gpu);
            let op = Op::Transfer { from: Place::HOST, to: Place::Gpu(gpu), bytes };
            let label = format!("load output of {}", shape.name);
            let action = Action::LoadActivation { unit, buffer };
            let h2d = self.engines.gpus[gpu as usize].h2d;
            // Not ahead of the backward pass by more than one unit: each takes memory of the device.
            let mut after = there.clone();
            after.extend(earlier(computed, OUTPUTS, gpu));
            loaded.push(self.plan.task(h2d, op, action, label, &after));
        }
        self.plan.graph.rank(0);
        if let Some(buffer) = buffer {
            self.output_uses[buffer as usize].clone_from(&loaded);
        }
        loaded
    }
}
