//! The work behind the tasks of an update graph.

use std::sync::Arc;

use nearfield_runtime::device::{BufferRange, CheckPairsCall, GradientBuffers, UpdateCall};
use nearfield_runtime::exec::Work;
use nearfield_runtime::graph::Task;
use nearfield_runtime::kernels::{self, Dither, Scalars, Segment, UpdateSums};
use nearfield_runtime::layout::Part;
use nearfield_runtime::store::{SlotMove, StepRecord};
use nearfield_runtime::types::{DType, Variable};
use nearfield_runtime::{Error, Result};
use parking_lot::Mutex;

use super::buffers::BufferSet;
use super::{DriveUnit, OffloadEngine};
use crate::offload::plan::{Action, PieceRange, Plan};

/// What comes before the first part of an update.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Begin {
    /// Intents on every drive, and the slots that parts go to.
    Intent,
    /// The slots only: the intents are there, from a step that was cut short.
    Redo,
    /// The intents only: all parts were written ahead.
    Ahead,
}

/// Everything that one run of an update graph needs.
pub(super) struct UpdateWork<'a> {
    engine: &'a OffloadEngine,
    plan: &'a Plan,
    record: &'a StepRecord,
    /// Scalars of each parameter group.
    scalars: Vec<Scalars>,
    /// What comes before the first part.
    begin: Begin,
    /// Where each part goes, known once its drive has the intent.
    moves: Vec<Mutex<Option<SlotMove>>>,
    /// Checksums of each part, added up over its pieces.
    sums: Vec<Mutex<UpdateSums>>,
}

impl<'a> UpdateWork<'a> {
    pub fn new(
        engine: &'a OffloadEngine,
        plan: &'a Plan,
        record: &'a StepRecord,
        begin: Begin,
    ) -> Self {
        let optimizer = engine.options.optimizer;
        let scalars = record
            .groups
            .iter()
            .map(|group| Scalars::new(optimizer, group, record.step, record.unscale))
            .collect();
        let parts = engine.layout().parts.len();
        Self {
            engine,
            plan,
            record,
            scalars,
            begin,
            moves: (0..parts).map(|_| Mutex::new(None)).collect(),
            sums: (0..parts).map(|_| Mutex::new(UpdateSums::default())).collect(),
        }
    }

    /// The work on parts that go where `moves` say.
    pub fn with_moves(
        engine: &'a OffloadEngine,
        plan: &'a Plan,
        record: &'a StepRecord,
        moves: &[SlotMove],
        begin: Begin,
    ) -> Self {
        let work = Self::new(engine, plan, record, begin);
        for one in moves {
            *work.moves[one.part].lock() = Some(*one);
        }
        work
    }

    /// Checksums of each part so far.
    pub fn sums(&self) -> Vec<UpdateSums> {
        self.sums.iter().map(|sums| *sums.lock()).collect()
    }

    /// Takes over checksums of work that was done before.
    pub fn set_sums(&mut self, sums: &[UpdateSums]) {
        self.sums = sums.iter().map(|&sums| Mutex::new(sums)).collect();
    }

    fn part(&self, part: usize) -> Part {
        self.engine.layout().parts[part]
    }

    fn drive(&self, part: usize) -> &DriveUnit {
        self.engine.drive(self.part(part).drive)
    }

    fn slots(&self, part: usize) -> Result<SlotMove> {
        self.moves[part]
            .lock()
            .ok_or_else(|| Error::Invalid(format!("part {part} has no slot to go to")))
    }

    /// The drive's buffers: beside the drive or in host memory.
    fn with_buffers<T>(
        &self,
        part: usize,
        set: u32,
        work: impl FnOnce(&BufferSet) -> Result<T>,
    ) -> Result<T> {
        let unit = self.drive(part);
        let buffers = match &self.engine.host {
            Some(host) => Arc::clone(host.set(set, self.part(part).drive)?),
            None => unit
                .buffers
                .lock()
                .clone()
                .ok_or_else(|| Error::Invalid(format!("part {part} has no buffers")))?,
        };
        work(&buffers)
    }

    fn intent(&self, drive: u32) -> Result<()> {
        let store = &self.engine.drive(drive).store;
        if self.begin != Begin::Redo {
            store.intent(self.record)?;
        }
        if self.begin == Begin::Ahead {
            return Ok(());
        }
        for slot_move in store.begin_update(self.record.step)? {
            *self.moves[slot_move.part].lock() = Some(slot_move);
        }
        Ok(())
    }

    /// Offset in the slot file of a piece of the part's old or new state.
    fn slot_offset(&self, range: PieceRange, variable: Variable, slot: u32) -> Result<u64> {
        let start = self.drive(range.part).store.data_offset(slot, variable)?;
        Ok(start + range.offset * self.engine.options.variable_bytes(variable))
    }

    fn load(&self, range: PieceRange, variable: Variable, set: u32) -> Result<()> {
        let unit = self.drive(range.part);
        let width = self.engine.options.variable_bytes(variable);
        let (file, offset) = if variable == Variable::Gradient {
            let start = unit.store.gradient_offset(range.part, variable)?;
            (unit.store.gradients_file(), start + range.offset * width)
        } else {
            let slot = self.slots(range.part)?.from_slot;
            (unit.store.slots_file(), self.slot_offset(range, variable, slot)?)
        };
        let bytes = range.elements * width;
        self.with_buffers(range.part, set, |buffers| {
            let buffer = buffers.of(variable, range.piece)?;
            match &self.engine.host {
                Some(host) => {
                    let mut memory = host.bank.write(buffer)?;
                    let bounds =
                        host.bank.bounds(BufferRange::start_of(buffer, bytes), memory.len())?;
                    unit.device.storage_to_host(file, offset, &mut memory[bounds])
                }
                None => {
                    unit.device.storage_to_local(file, offset, BufferRange::start_of(buffer, bytes))
                }
            }
        })
    }

    fn load_pairs(&self, part: usize) -> Result<()> {
        let unit = self.drive(part);
        self.with_buffers(part, 0, |buffers| {
            let pairs = buffers.pairs()?;
            let both =
                [(Variable::GradientIndex, pairs.indices), (Variable::GradientValue, pairs.values)];
            both.into_iter().try_for_each(|(variable, buffer)| {
                let bytes = unit.store.gradient_bytes(part, variable)?;
                let offset = unit.store.gradient_offset(part, variable)?;
                let range = BufferRange::start_of(buffer, bytes);
                unit.device.storage_to_local(unit.store.gradients_file(), offset, range)
            })
        })
    }

    /// Checks indices before they are used. Values are summed as the update reads them.
    fn check_pairs(&self, part: usize) -> Result<()> {
        let unit = self.drive(part);
        let info = unit.store.gradient_info(part)?;
        self.with_buffers(part, 0, |buffers| {
            let call = CheckPairsCall {
                buffers: buffers.pairs()?,
                pairs: info.count,
                elements: self.engine.layout().padded(part),
            };
            let (expected, found) = (info.checksums[0], unit.device.check_pairs(&call)?);
            if found.checksum != expected {
                let found = found.checksum;
                return Err(unit.store.corrupt(part, Variable::GradientIndex, expected, found));
            }
            match found.first_wrong {
                None => Ok(()),
                Some(pair) => Err(Error::Invalid(format!(
                    "part {part}: kept pair {pair} does not come after the one before it, or lies outside the subgroup"
                ))),
            }
        })
    }

    fn update(&self, range: PieceRange, set: u32) -> Result<()> {
        let engine = self.engine;
        let part = self.part(range.part);
        if let Some(state) = &engine.memory {
            let segments = self.segments(range);
            return engine.with_scratch(range.elements, |copy| {
                let dtype = engine.options.weights_dtype;
                let dither = self.dither(range.part);
                let (isa, pool) = (engine.isa, &engine.pool);
                state.update(range.part, &segments, dither, copy, dtype, isa, pool)?;
                match dtype {
                    DType::Fp32 => {
                        let state = state.part(range.part);
                        engine.publish_f32(part.start, &state.param[..part.elements as usize])
                    }
                    _ => engine.publish_bits(part.start, &copy[..part.elements as usize]),
                }
            });
        }
        let unit = self.drive(range.part);
        let segments = self.segments(range);
        let compressed = engine.options.compressed();
        let pairs = if compressed { unit.store.gradient_info(range.part)?.count } else { 0 };
        let sums = self.with_buffers(range.part, set, |buffers| {
            let weights = buffers.weights(range.piece).map(|id| (id, engine.options.weights_dtype));
            let gradient = if compressed {
                GradientBuffers::Pairs { buffers: buffers.pairs()?, pairs }
            } else {
                buffers.gradient(range.piece)?
            };
            let call = UpdateCall {
                optimizer: engine.options.optimizer,
                segments: &segments,
                first_element: range.offset,
                elements: range.elements,
                gradient,
                param: buffers.of(Variable::Param, range.piece)?,
                exp_avg: buffers.optional(Variable::ExpAvg, range.piece)?,
                exp_avg_sq: buffers.optional(Variable::ExpAvgSq, range.piece)?,
                moments: engine.options.moment_dtype,
                dither: self.dither(range.part),
                weights,
            };
            match &engine.host {
                Some(host) => host.bank.update(&call, &engine.kernels()),
                None => unit.device.update(&call),
            }
        })?;
        self.sums[range.part].lock().add(&sums);
        Ok(())
    }

    /// With what the moments of a part are rounded in this step.
    fn dither(&self, part: usize) -> Dither {
        Dither::new(self.record.step, self.part(part).start)
    }

    /// The runs of equal hyper-parameters among the real elements of a piece.
    fn segments(&self, range: PieceRange) -> Vec<Segment> {
        let real = self.real_elements(range);
        self.engine
            .model
            .group_runs(self.part(range.part).start + range.offset, real)
            .into_iter()
            .map(|(group, elements)| Segment {
                elements: elements as usize,
                scalars: self.scalars[group],
            })
            .collect()
    }

    fn real_elements(&self, range: PieceRange) -> u64 {
        self.part(range.part).elements.saturating_sub(range.offset).min(range.elements)
    }

    /// Baselines: the kernel's output in host memory becomes the working weights.
    fn publish(&self, range: PieceRange, set: u32) -> Result<()> {
        let Some(host) = &self.engine.host else { return Ok(()) };
        let real = self.real_elements(range) as usize;
        let first = self.part(range.part).start + range.offset;
        self.with_buffers(range.part, set, |buffers| match buffers.weights(range.piece) {
            Some(buffer) => {
                let memory = host.bank.read(buffer)?;
                self.engine.publish_bits(first, &memory.as_u16()[..real])
            }
            None => {
                let memory = host.bank.read(buffers.of(Variable::Param, range.piece)?)?;
                self.engine.publish_f32(first, &memory.as_f32()[..real])
            }
        })
    }

    fn store(&self, range: PieceRange, variable: Variable, set: u32) -> Result<()> {
        let unit = self.drive(range.part);
        let slot = self.slots(range.part)?.to_slot;
        let offset = self.slot_offset(range, variable, slot)?;
        let file = unit.store.slots_file();
        let bytes = range.elements * self.engine.options.variable_bytes(variable);
        self.with_buffers(range.part, set, |buffers| {
            let buffer = buffers.of(variable, range.piece)?;
            match &self.engine.host {
                Some(host) => {
                    let memory = host.bank.read(buffer)?;
                    let bounds =
                        host.bank.bounds(BufferRange::start_of(buffer, bytes), memory.len())?;
                    unit.device.host_to_storage(&memory[bounds], file, offset)
                }
                None => {
                    unit.device.local_to_storage(BufferRange::start_of(buffer, bytes), file, offset)
                }
            }
        })
    }

    /// Checks all that the update of a part has read; returns the sums of what it has written.
    pub fn verified(&self, part: usize) -> Result<Vec<u64>> {
        let unit = self.drive(part);
        let sums = *self.sums[part].lock();
        // Of kept pairs, indices were checked before they were used.
        let (gradient, place) = if self.engine.options.compressed() {
            (Variable::GradientValue, 1)
        } else {
            (Variable::Gradient, 0)
        };
        let expected = unit.store.gradient_info(part)?.checksums[place];
        if sums.gradient_in != expected {
            return Err(unit.store.corrupt(part, gradient, expected, sums.gradient_in));
        }
        let variables = self.engine.options.optimizer.variables();
        let expected = unit.store.expected(part)?.checksums;
        let mut written = Vec::with_capacity(variables.len());
        for (&variable, expected) in variables.iter().zip(expected) {
            let (read, new) = match variable {
                Variable::Param => (sums.param_in, sums.param_out),
                Variable::ExpAvg => (sums.m_in, sums.m_out),
                _ => (sums.v_in, sums.v_out),
            };
            if read != expected {
                return Err(unit.store.corrupt(part, variable, expected, read));
            }
            written.push(new);
        }
        Ok(written)
    }

    /// Makes the new slot of a part valid, unless the update has read something wrong.
    fn seal(&self, part: usize) -> Result<()> {
        let written = self.verified(part)?;
        let slot = self.slots(part)?.to_slot;
        self.drive(part).store.seal(part, slot, self.record.step, &written)
    }

    /// The same for all parts of a drive that were written ahead.
    fn adopt(&self, drive: u32) -> Result<()> {
        let store = &self.engine.drive(drive).store;
        let sums = store.parts().iter().map(|&part| self.verified(part));
        store.adopt(self.record.step, &sums.collect::<Result<Vec<_>>>()?)
    }

    /// Copies updated weights up; padding travels too, but goes nowhere.
    fn fetch_weights(&self, range: PieceRange) -> Result<()> {
        let engine = self.engine;
        let unit = self.drive(range.part);
        let width = engine.options.weights_dtype.bytes();
        let first = self.part(range.part).start + range.offset;
        let real = self.real_elements(range) * width;
        self.with_buffers(range.part, 0, |buffers| {
            let buffer = match buffers.weights(range.piece) {
                Some(buffer) => buffer,
                None => buffers.of(Variable::Param, range.piece)?,
            };
            engine.weights.fill(first * width, real as usize, |done, target| {
                let bytes = target.len() as u64;
                unit.device
                    .local_to_host(BufferRange { buffer, offset: done as u64, bytes }, target)
            })?;
            let mut padding = [0; 4096];
            let mut offset = real;
            while offset < range.elements * width {
                let bytes = (range.elements * width - offset).min(padding.len() as u64);
                let target = &mut padding[..bytes as usize];
                unit.device.local_to_host(BufferRange { buffer, offset, bytes }, target)?;
                offset += bytes;
            }
            Ok(())
        })
    }

    fn read_weights(&self, range: PieceRange, buffer: u32) -> Result<()> {
        let unit = self.drive(range.part);
        let slot = self.slots(range.part)?.to_slot;
        let offset = self.slot_offset(range, Variable::Param, slot)?;
        let mut memory = unit.weight_reads[buffer as usize].lock();
        let bytes = range.elements as usize * 4;
        unit.device.storage_to_host(unit.store.slots_file(), offset, &mut memory[..bytes])
    }

    fn cast_weights(&self, range: PieceRange, buffer: u32) -> Result<()> {
        let memory = self.drive(range.part).weight_reads[buffer as usize].lock();
        let real = self.real_elements(range) as usize;
        let first = self.part(range.part).start + range.offset;
        self.engine.publish_f32(first, &memory.as_f32()[..real])
    }

    fn allocate(&self, part: usize) -> Result<()> {
        let unit = self.drive(part);
        let engine = self.engine;
        let elements = engine.layout().padded(part);
        let sizes =
            super::buffers::BufferSizes::for_part(elements, engine.layout(), &engine.options);
        let set =
            BufferSet::allocate(&sizes, &mut |bytes, reach| unit.device.allocate(bytes, reach))?;
        *unit.buffers.lock() = Some(Arc::new(set));
        Ok(())
    }

    fn release(&self, part: usize) -> Result<()> {
        let unit = self.drive(part);
        let set = unit.buffers.lock().take();
        set.iter().flat_map(|set| set.all()).try_for_each(|buffer| unit.device.release(buffer))
    }
}

impl Work for UpdateWork<'_> {
    fn perform(&self, task: &Task) -> Result<()> {
        let action = self.plan.actions[task.id.index()];
        if action.publishes() {
            self.engine.weights_are_stale();
        }
        match action {
            Action::Intent { drive } => self.intent(drive),
            Action::Adopt { drive } => self.adopt(drive),
            Action::Finish { drive } => self.engine.drive(drive).store.finish_update(),
            Action::Commit { drive } => self.engine.drive(drive).store.commit(),
            Action::Allocate { part } => self.allocate(part),
            Action::Release { part } => self.release(part),
            Action::Load { range, variable, set } => self.load(range, variable, set),
            Action::LoadPairs { part } => self.load_pairs(part),
            Action::CheckPairs { part } => self.check_pairs(part),
            Action::Update { range, set } => self.update(range, set),
            Action::Publish { range, set } => self.publish(range, set),
            Action::Store { range, variable, set } => self.store(range, variable, set),
            Action::SealPart { part } => self.seal(part),
            Action::FetchWeights { range } => self.fetch_weights(range),
            Action::ReadWeights { range, buffer } => self.read_weights(range, buffer),
            Action::CastWeights { range, buffer } => self.cast_weights(range, buffer),
            other => Err(Error::Invalid(format!("{other:?} does not belong to an update"))),
        }
    }
}

/// Rounds fp32 weights to the bytes of another format.
pub(super) fn round_into(dtype: DType, from: &[f32], to: &mut [u8]) {
    match dtype {
        DType::Fp32 => {
            for (bytes, value) in to.chunks_exact_mut(4).zip(from) {
                bytes.copy_from_slice(&value.to_le_bytes());
            }
        }
        DType::Fp16 | DType::Bf16 => {
            let mut bits = [0_u16; 1024];
            for (to, from) in to.chunks_mut(2048).zip(from.chunks(1024)) {
                let bits = &mut bits[..from.len()];
                if dtype == DType::Fp16 {
                    kernels::f32_to_f16(from, bits);
                } else {
                    kernels::f32_to_bf16(from, bits);
                }
                for (bytes, value) in to.chunks_exact_mut(2).zip(bits.iter()) {
                    bytes.copy_from_slice(&value.to_le_bytes());
                }
            }
        }
    }
}
