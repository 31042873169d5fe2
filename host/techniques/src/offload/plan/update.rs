//! The update graph: from durable gradients to durable new state and weights in host memory.

use nearfield_runtime::graph::{Direction, MemoryClaim, Op, Place, ResourceId, TaskId};
use nearfield_runtime::layout::Layout;
use nearfield_runtime::store::spare_slots;
use nearfield_runtime::types::Variable;
use nearfield_runtime::{Result, codec};

use super::{Action, PieceRange, Plan, PlanBuilder, update_host, update_near};
use crate::offload::options::{OffloadOptions, System};

/// Bytes of a slot header or a journal record.
pub(super) const RECORD_BYTES: u64 = 4096;

/// Builds the update graph for `parts` (indices into the layout, ascending; all of them in a normal step,
/// those that are left over when an interrupted step is redone).
///
/// # Errors
/// [`nearfield_runtime::Error::Graph`] if the graph is not valid, which is a defect.
pub fn plan(layout: &Layout, options: &OffloadOptions, parts: &[usize]) -> Result<Plan> {
    let mut planner = Planner::new(PlanBuilder::default(), layout, options, parts);
    planner.plan.graph.phase("update");
    match options.system {
        System::Memory => planner.in_memory(),
        _ => {
            let begin = planner.begin();
            match options.system {
                System::Base => update_host::serial(&mut planner, begin),
                System::BasePipe => update_host::pipelined(&mut planner, begin),
                System::Su => update_near::serial(&mut planner, begin),
                _ => update_near::overlapped(&mut planner, begin),
            }
            planner.end(begin);
        }
    }
    planner.plan.build()
}

/// The engines of one drive.
#[derive(Debug, Clone, Copy)]
pub(super) struct DriveResources {
    pub read: ResourceId,
    pub write: ResourceId,
    pub seal: ResourceId,
    pub kernel: ResourceId,
    pub up: ResourceId,
}

/// What all systems share while their graph is built.
pub(super) struct Planner<'a> {
    pub layout: &'a Layout,
    pub options: &'a OffloadOptions,
    /// Parts to update, by drive, in flat order.
    pub by_drive: Vec<Vec<usize>>,
    pub drives: Vec<DriveResources>,
    pub cpu: ResourceId,
    pub plan: PlanBuilder,
    /// Position of each part among the parts to update on its drive.
    position: Vec<usize>,
    /// Spare slots of each drive.
    spare: Vec<usize>,
    /// Seal tasks of each drive so far.
    seals: Vec<Vec<TaskId>>,
    /// Uses of each drive's two host buffers for master weights on their way up.
    weight_reads: Vec<Vec<TaskId>>,
}

impl<'a> Planner<'a> {
    /// Goes on with `plan`; on each drive the parts keep their order.
    pub fn new(
        mut plan: PlanBuilder,
        layout: &'a Layout,
        options: &'a OffloadOptions,
        parts: &[usize],
    ) -> Self {
        let cpu = plan.graph.resource("host.cpu", Place::HOST, 1);
        let on_drives = if options.system.on_drives() { layout.drives } else { 0 };
        let drives = (0..on_drives)
            .map(|drive| {
                let place = Place::Drive(drive);
                let mut engine = |name: &str, place, lanes| {
                    plan.graph.resource(&format!("drive{drive}.{name}"), place, lanes)
                };
                DriveResources {
                    // Two lanes: the next transfer's requests are queued before the last one's drain.
                    read: engine("read", place, 2),
                    write: engine("write", place, 2),
                    seal: engine("seal", place, 1),
                    kernel: engine("kernel", Place::Local(drive), 1),
                    up: engine("up", Place::Local(drive), 1),
                }
            })
            .collect();
        let count = layout.drives as usize;
        let mut stored = vec![0; count];
        for part in &layout.parts {
            stored[part.drive as usize] += 1;
        }
        let mut by_drive = vec![Vec::new(); count];
        let mut position = vec![0; layout.parts.len()];
        for &part in parts {
            let on_drive: &mut Vec<usize> = &mut by_drive[layout.parts[part].drive as usize];
            position[part] = on_drive.len();
            on_drive.push(part);
        }
        let spare = |&parts: &u64| if options.overlap_update { parts } else { spare_slots(parts) };
        let spare = stored.iter().map(|parts| spare(parts) as usize).collect();
        Self {
            layout,
            options,
            by_drive,
            position,
            spare,
            drives,
            cpu,
            plan,
            seals: vec![Vec::new(); count],
            weight_reads: vec![Vec::new(); count],
        }
    }

    pub fn mark(&mut self, label: &str, after: &[TaskId]) -> TaskId {
        self.plan.task(self.cpu, Op::Mark, Action::Mark, label.to_owned(), after)
    }

    pub fn drive_of(&self, part: usize) -> u32 {
        self.layout.parts[part].drive
    }

    /// Where the update of this system runs, as seen from `drive`.
    pub fn place(&self, drive: u32) -> Place {
        if self.options.system.near_storage() { Place::Local(drive) } else { Place::HOST }
    }

    /// Memory that is held for the whole step.
    pub fn claim(&mut self, place: Place, bytes: u64) {
        self.plan.graph.claim(MemoryClaim { place, bytes, from: None, to: None });
    }

    fn in_memory(&mut self) {
        let parts: Vec<usize> = self.by_drive.concat();
        for part in parts {
            let range =
                PieceRange { part, piece: 0, offset: 0, elements: self.layout.padded(part) };
            self.update(range, 0, self.cpu, &[]);
        }
    }

    /// Intent records on every drive, then one mark that all updates wait for.
    pub fn begin(&mut self) -> TaskId {
        let intents: Vec<TaskId> = (0..self.layout.drives)
            .map(|drive| self.record(drive, Action::Intent { drive }, "intent", &[]))
            .collect();
        self.mark("all intents are durable", &intents)
    }

    /// The last flush on each drive, then the commit records.
    pub fn end(&mut self, begin: TaskId) {
        let finished: Vec<TaskId> = (0..self.layout.drives)
            .map(|drive| {
                let mut after = self.seals[drive as usize].clone();
                after.push(begin);
                self.record(drive, Action::Finish { drive }, "finish", &after)
            })
            .collect();
        let all = self.mark("all headers are durable", &finished);
        for drive in 0..self.layout.drives {
            self.record(drive, Action::Commit { drive }, "commit", &[all]);
        }
    }

    /// Makes what was written ahead the state, on each drive by itself.
    pub fn adopt(&mut self, begin: TaskId) {
        for drive in 0..self.layout.drives {
            let parts = self.by_drive[drive as usize].len() as u64;
            let op = Op::Seal { drive, metadata_bytes: parts * RECORD_BYTES };
            let label = format!("adopt the parts of drive {drive}");
            let resource = self.drives[drive as usize].seal;
            let adopted = self.plan.task(resource, op, Action::Adopt { drive }, label, &[begin]);
            self.seals[drive as usize].push(adopted);
        }
    }

    fn record(&mut self, drive: u32, action: Action, name: &str, after: &[TaskId]) -> TaskId {
        let metadata_bytes = if matches!(action, Action::Finish { .. }) { 0 } else { RECORD_BYTES };
        let resource = self.drives[drive as usize].seal;
        let op = Op::Seal { drive, metadata_bytes };
        self.plan.task(resource, op, action, format!("{name} on drive {drive}"), after)
    }

    /// A transfer between a drive and where the update runs.
    fn storage(&self, direction: Direction, drive: u32, bytes: u64) -> Op {
        Op::Storage { direction, drive, other: self.place(drive), bytes }
    }

    pub fn load(
        &mut self,
        range: PieceRange,
        variable: Variable,
        set: u32,
        after: &[TaskId],
    ) -> TaskId {
        let drive = self.drive_of(range.part);
        let bytes = range.elements * self.options.variable_bytes(variable);
        let op = self.storage(Direction::Read, drive, bytes);
        let label = self.label("read", variable, range);
        let resource = self.drives[drive as usize].read;
        self.plan.task(resource, op, Action::Load { range, variable, set }, label, after)
    }

    pub fn load_pairs(&mut self, part: usize, after: &[TaskId]) -> TaskId {
        let drive = self.drive_of(part);
        let pairs = codec::kept(self.options.topk_keep, self.layout.padded(part));
        let op = self.storage(Direction::Read, drive, 8 * pairs);
        let label = format!("read kept pairs of part {part} from drive {drive}");
        self.plan.task(
            self.drives[drive as usize].read,
            op,
            Action::LoadPairs { part },
            label,
            after,
        )
    }

    /// Checks kept pairs where they lie.
    pub fn check_pairs(&mut self, part: usize, after: &[TaskId]) -> TaskId {
        let pairs = codec::kept(self.options.topk_keep, self.layout.padded(part));
        let op = Op::Kernel { name: "check_pairs", elements: pairs, bytes: 4 * pairs };
        let label = format!("check kept pairs of part {part}");
        let kernel = self.drives[self.drive_of(part) as usize].kernel;
        self.plan.task(kernel, op, Action::CheckPairs { part }, label, after)
    }

    /// Kept pairs that fall into a piece, if they are spread evenly.
    fn pairs_in(&self, range: PieceRange) -> u64 {
        let pairs = codec::kept(self.options.topk_keep, self.layout.padded(range.part));
        pairs * range.elements / self.layout.padded(range.part).max(1)
    }

    /// Expands the kept pairs of a piece into its gradient buffer. A kernel of its own, so that it runs while the
    /// states are still being read.
    pub fn decompress(&mut self, range: PieceRange, after: &[TaskId]) -> TaskId {
        let share = self.pairs_in(range);
        let op = Op::Kernel {
            name: "decompress",
            elements: range.elements,
            // Zeros, then for each pair an index, a value, and the value's place.
            bytes: 4 * range.elements + 12 * share,
        };
        let label = format!("decompress gradient of part {}.{}", range.part, range.piece);
        let kernel = self.drives[self.drive_of(range.part) as usize].kernel;
        self.plan.task(kernel, op, Action::Decompress { range }, label, after)
    }

    /// Rounds or copies the result of an update in host memory to the working weights.
    pub fn publish(&mut self, range: PieceRange, set: u32, updated: TaskId) -> TaskId {
        let width = self.options.weights_dtype.bytes();
        let from = if self.options.emits_weights() { width } else { 4 };
        let op = Op::Kernel {
            name: "cast",
            elements: range.elements,
            bytes: range.elements * (from + width),
        };
        let label = format!("publish weights of part {}.{}", range.part, range.piece);
        self.plan.task(self.cpu, op, Action::Publish { range, set }, label, &[updated])
    }

    pub fn update(
        &mut self,
        range: PieceRange,
        set: u32,
        resource: ResourceId,
        after: &[TaskId],
    ) -> TaskId {
        let state = self.options.state_bytes_per_element();
        let copy =
            if self.options.emits_weights() { self.options.weights_dtype.bytes() } else { 0 };
        let bytes = range.elements * (2 * state + copy);
        let (name, gradient) = if self.options.holds_dense_gradient() {
            ("update", range.elements * self.options.gradient_dtype.bytes())
        } else {
            ("update_topk", 8 * self.pairs_in(range))
        };
        let op = Op::Kernel { name, elements: range.elements, bytes: bytes + gradient };
        let label = format!("update part {}.{}", range.part, range.piece);
        self.plan.task(resource, op, Action::Update { range, set }, label, after)
    }

    /// Writes one variable. Waits for the header that frees the slot it goes to (see [`spare_slots`]).
    pub fn store(
        &mut self,
        range: PieceRange,
        variable: Variable,
        set: u32,
        after: &[TaskId],
    ) -> TaskId {
        let drive = self.drive_of(range.part);
        let mut after = after.to_vec();
        after.extend(self.slot_is_free(range.part));
        let bytes = range.elements * self.options.variable_bytes(variable);
        let op = self.storage(Direction::Write, drive, bytes);
        let label = self.label("write", variable, range);
        let resource = self.drives[drive as usize].write;
        self.plan.task(resource, op, Action::Store { range, variable, set }, label, &after)
    }

    /// The seal after which the destination slot of `part` is free, if it is not free from the start.
    ///
    /// Part number `i` of a drive goes to the slot given up by part `i - spare`. That one is free once the
    /// header of its successor is durable, and headers become durable with the flush of the next seal.
    fn slot_is_free(&self, part: usize) -> Option<TaskId> {
        let drive = self.drive_of(part) as usize;
        let (index, spare) = (self.position[part], self.spare[drive]);
        if index < spare { None } else { self.seals[drive].get(index + 1 - spare).copied() }
    }

    pub fn seal(&mut self, part: usize, stores: &[TaskId]) -> TaskId {
        let drive = self.drive_of(part);
        let op = Op::Seal { drive, metadata_bytes: RECORD_BYTES };
        let label = format!("seal part {part} on drive {drive}");
        let resource = self.drives[drive as usize].seal;
        // Seals of a drive keep their order, whatever order the writes end in.
        let mut after = stores.to_vec();
        after.extend(self.seals[drive as usize].last());
        let seal = self.plan.task(resource, op, Action::SealPart { part }, label, &after);
        self.seals[drive as usize].push(seal);
        seal
    }

    /// Working weights out of local memory.
    pub fn fetch_weights(&mut self, range: PieceRange, after: &[TaskId]) -> TaskId {
        let drive = self.drive_of(range.part);
        let op = Op::Transfer {
            from: Place::Local(drive),
            to: Place::HOST,
            bytes: range.elements * self.options.weights_dtype.bytes(),
        };
        let label = format!("fetch weights of part {}.{}", range.part, range.piece);
        let resource = self.drives[drive as usize].up;
        self.plan.task(resource, op, Action::FetchWeights { range }, label, after)
    }

    /// Master weights read back from the drive, then rounded on the host after `free`; two buffers a drive.
    pub fn read_weights(&mut self, range: PieceRange, stored: TaskId, free: &[TaskId]) -> TaskId {
        let drive = self.drive_of(range.part);
        let uses = &self.weight_reads[drive as usize];
        let buffer = (uses.len() % 2) as u32;
        let mut after = vec![stored];
        if let Some(earlier) = uses.len().checked_sub(2) {
            after.push(uses[earlier]);
        }
        let bytes = range.elements * 4;
        let op = Op::Storage { direction: Direction::Read, drive, other: Place::HOST, bytes };
        let label = format!("read new weights of part {}.{}", range.part, range.piece);
        let resource = self.drives[drive as usize].read;
        let read =
            self.plan.task(resource, op, Action::ReadWeights { range, buffer }, label, &after);
        let width = 4 + self.options.weights_dtype.bytes();
        let op =
            Op::Kernel { name: "cast", elements: range.elements, bytes: range.elements * width };
        let label = format!("cast weights of part {}.{}", range.part, range.piece);
        let after = [&[read], free].concat();
        let cast =
            self.plan.task(self.cpu, op, Action::CastWeights { range, buffer }, label, &after);
        self.weight_reads[drive as usize].push(cast);
        cast
    }

    fn label(&self, verb: &str, variable: Variable, range: PieceRange) -> String {
        let part = &self.layout.parts[range.part];
        format!(
            "{verb} {} of subgroup {} ({}.{}) on drive {}",
            variable.name(),
            part.subgroup,
            range.part,
            range.piece,
            part.drive
        )
    }
}
