//! One drive directory of a run, open for work.

mod ahead;
mod gradients;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::files::{Files, MetadataBytes};
use super::geometry::{Geometry, VARIABLES_MAX};
use super::gradients::{GradientInfo, ResidualInfo};
use super::journal::{Record, RecordKind, StepRecord};
use super::lock::DriveLock;
use super::slots::{SlotHeader, SlotMove, SlotState, rotation};
use super::superblock::{StateSpec, Superblock};
use crate::error::{Error, Result};
use crate::io::{DriveFile, IoEngine};
use crate::types::Variable;

/// What the state must survive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Durability {
    /// A power cut at any moment: data is flushed before anything relies on it.
    #[default]
    Power,
    /// A kill of the process at any moment, but no power cut: no flushes.
    Process,
}

/// Where the drive stands in the step; each call is legal in one phase only.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Being created: parts get their initial state in any order.
    Creating,
    /// Between updates, at the step of the last record.
    Idle,
    /// The intent of the step is durable.
    Intended,
    /// Parts are being written.
    Updating,
    /// All parts are durable at the new step; the commit is missing.
    Finished,
}

pub(crate) struct Inner {
    phase: Phase,
    /// Current slot of each part, by place; `None` while created.
    current: Vec<Option<SlotState>>,
    moves: Vec<SlotMove>,
    /// Where parts are written ahead, and for which step.
    ahead: Option<(u64, Vec<SlotMove>)>,
    /// Moves that are sealed.
    sealed: usize,
    /// Last record written to this drive; `None` while created.
    last: Option<Record>,
    gradients: Vec<Option<GradientInfo>>,
    residual: Vec<[Option<ResidualInfo>; 2]>,
    /// Gradient or residual headers were written since the last flush.
    gradients_unflushed: bool,
}

/// One drive directory of a run, open for work and locked against others.
///
/// The data of slots and gradients is moved by the caller's tasks, straight to and from
/// [`Self::slots_file`] and [`Self::gradients_file`] at the offsets given here. The store writes the headers and the
/// journal, and keeps the order that recovery relies on. A step on each drive:
///
/// 1. write the gradients, [`Self::seal_gradient`] for each part;
/// 2. [`Self::intent`] on **every** drive (it flushes the gradients first); none may begin an update before;
/// 3. [`Self::begin_update`] gives the moves; for each in order: read `from_slot`, update, write `to_slot` (not before the
///    seal of `ready_after` has returned), [`Self::seal`]. Seals are called in the order of the moves;
///    Or, for parts that were written ahead of the intent ([`Self::write_ahead`]): [`Self::adopt`] for all of them;
/// 4. [`Self::finish_update`]; when it has returned on **every** drive, [`Self::commit`] on every drive;
/// 5. nothing of the next step is recorded before that.
///
/// After an error of the operating system the store refuses all further writes: what a failed flush left
/// behind is not known. Open the drives again; recovery finds the truth.
pub struct DriveStore {
    path: PathBuf,
    superblock: Superblock,
    spec: Arc<StateSpec>,
    geometry: Geometry,
    durability: Durability,
    files: Files,
    inner: Mutex<Inner>,
    failed: AtomicBool,
    _lock: DriveLock,
}

impl std::fmt::Debug for DriveStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "drive {} ({})", self.superblock.drive, self.path.display())
    }
}

/// What a store is put together from, by creation or recovery.
pub(crate) struct Parts {
    pub path: PathBuf,
    pub superblock: Superblock,
    pub spec: Arc<StateSpec>,
    pub geometry: Geometry,
    pub durability: Durability,
    pub files: Files,
    pub lock: DriveLock,
}

/// State of a drive that recovery found.
pub(crate) struct Restored {
    pub current: Vec<SlotState>,
    pub last: Record,
    pub gradients: Vec<Option<GradientInfo>>,
    pub residual: Vec<[Option<ResidualInfo>; 2]>,
}

impl DriveStore {
    pub(crate) fn assemble(parts: Parts, restored: Option<Restored>) -> Self {
        let count = parts.geometry.parts.len();
        let inner = match restored {
            Some(restored) => Inner {
                phase: if restored.last.kind == RecordKind::Intent {
                    Phase::Intended
                } else {
                    Phase::Idle
                },
                current: restored.current.into_iter().map(Some).collect(),
                moves: Vec::new(),
                ahead: None,
                sealed: 0,
                last: Some(restored.last),
                gradients: restored.gradients,
                residual: restored.residual,
                gradients_unflushed: false,
            },
            None => Inner {
                phase: Phase::Creating,
                current: vec![None; count],
                moves: Vec::new(),
                ahead: None,
                sealed: 0,
                last: None,
                gradients: vec![None; count],
                residual: vec![[None; 2]; count],
                gradients_unflushed: false,
            },
        };
        Self {
            path: parts.path,
            superblock: parts.superblock,
            spec: parts.spec,
            geometry: parts.geometry,
            durability: parts.durability,
            files: parts.files,
            inner: Mutex::new(inner),
            failed: AtomicBool::new(false),
            _lock: parts.lock,
        }
    }

    /// Index of the drive in the run.
    pub fn drive(&self) -> u32 {
        self.superblock.drive
    }

    /// The drive directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Identity and formats of the drive.
    pub fn superblock(&self) -> &Superblock {
        &self.superblock
    }

    /// What the run stores, the layout of all drives included.
    pub fn spec(&self) -> &Arc<StateSpec> {
        &self.spec
    }

    /// Layout indices of the parts on this drive, in flat order, which is the order of its updates.
    pub fn parts(&self) -> &[usize] {
        &self.geometry.parts
    }

    /// Elements of one variable of a slot (`L_max` of this drive).
    pub fn capacity(&self) -> u64 {
        self.geometry.capacity
    }

    /// What the state survives.
    pub fn durability(&self) -> Durability {
        self.durability
    }

    /// The engine that moves this drive's data.
    pub fn engine(&self) -> &Arc<IoEngine> {
        &self.files.engine
    }

    /// `slots.nf`, for the data at [`Self::data_offset`].
    pub fn slots_file(&self) -> &DriveFile {
        &self.files.slots
    }

    /// `gradients.nf`, for the data at [`Self::gradient_offset`].
    pub fn gradients_file(&self) -> &DriveFile {
        &self.files.gradients
    }

    /// `residual.nf`, when the run keeps residuals.
    pub fn residual_file(&self) -> Option<&DriveFile> {
        self.files.residual.as_ref()
    }

    /// Headers and journal records moved so far.
    pub fn metadata_bytes(&self) -> MetadataBytes {
        self.files.metadata()
    }

    /// Offset in `slots.nf` of a variable of a slot; its part takes its padded elements times the bytes of
    /// [`StateSpec::dtype`] there.
    pub fn data_offset(&self, slot: u32, variable: Variable) -> Result<u64> {
        self.geometry.slot_data(slot, variable)
    }

    /// Current slot of a part, the step it belongs to, and the sums that its data must have.
    pub fn expected(&self, part: usize) -> Result<SlotState> {
        let place = self.geometry.place(part)?;
        self.inner.lock().current[place].ok_or_else(|| {
            Error::Invalid(format!(
                "part {part} has no state yet: its initial values were not sealed"
            ))
        })
    }

    /// Slot for the initial state of a part, while the run is being created.
    pub fn initial_slot(&self, part: usize) -> Result<u32> {
        Ok(self.geometry.place(part)? as u32)
    }

    /// Optimizer step of the last record of this drive.
    pub fn step(&self) -> u64 {
        self.inner.lock().last.as_ref().map_or(0, |record| record.content.step)
    }

    /// The moves of the update of `step`, in the order in which they are sealed.
    ///
    /// Parts that already are at `step` (after a restart) have none.
    ///
    /// # Errors
    /// [`Error::Invalid`] unless the intent of `step` was recorded.
    pub fn begin_update(&self, step: u64) -> Result<Vec<SlotMove>> {
        let mut inner = self.inner.lock();
        let intended = inner
            .last
            .as_ref()
            .is_some_and(|last| last.kind == RecordKind::Intent && last.content.step == step);
        if inner.phase != Phase::Intended || !intended {
            return Err(self.out_of_order("begin_update", step, inner.phase));
        }
        let mut open = Vec::with_capacity(inner.current.len());
        for (&part, state) in self.geometry.parts.iter().zip(&inner.current) {
            let state =
                state.ok_or_else(|| self.out_of_order("begin_update", step, Phase::Creating))?;
            if state.generation != step {
                open.push((part, state.slot));
            }
        }
        let free = self.free_slots(&inner);
        inner.moves = rotation(&open, &free, self.durability == Durability::Power)?;
        inner.ahead = None;
        inner.sealed = 0;
        inner.phase = Phase::Updating;
        Ok(inner.moves.clone())
    }

    /// Slots that hold no part's state, ascending.
    fn free_slots(&self, inner: &Inner) -> Vec<u32> {
        let mut taken = vec![false; self.geometry.slots as usize];
        for state in inner.current.iter().flatten() {
            taken[state.slot as usize] = true;
        }
        (0..self.geometry.slots).filter(|&slot| !taken[slot as usize]).collect()
    }

    /// Makes `slot` the state of `part` at `generation`; its data must have been written completely.
    ///
    /// With `Durability::Power` the data and all headers before are flushed first. When this returns, every part
    /// sealed **before** this one is durable; this one's header is made durable by the next seal or by
    /// [`Self::finish_update`]. `checksums` are those of the padded variables, in the optimizer's order.
    ///
    /// # Errors
    /// [`Error::Invalid`] when the call is not the next of the moves of the update.
    pub fn seal(&self, part: usize, slot: u32, generation: u64, checksums: &[u64]) -> Result<()> {
        let place = self.geometry.place(part)?;
        let sums = self.sums(part, checksums)?;
        let creating = {
            let inner = self.inner.lock();
            // A state that comes from elsewhere begins at a step of its own, which the first record has as well.
            let creating = inner.phase == Phase::Creating && slot as usize == place;
            let next = inner.moves.get(inner.sealed);
            let in_turn = inner.phase == Phase::Updating
                && next.is_some_and(|next| next.part == part && next.to_slot == slot)
                && inner.last.as_ref().is_some_and(|last| last.content.step == generation);
            if !creating && !in_turn {
                return Err(Error::Invalid(format!(
                    "seal of part {part} in slot {slot} at step {generation} is out of turn on {self:?}: next is {next:?}"
                )));
            }
            creating
        };
        self.write_header(place, slot, generation, sums, || match self.durability {
            Durability::Power if !creating => self.files.engine.flush(&self.files.slots),
            _ => Ok(()),
        })?;

        let mut inner = self.inner.lock();
        inner.current[place] = Some(SlotState { slot, generation, checksums: sums });
        if !creating {
            inner.sealed += 1;
        }
        Ok(())
    }

    /// Writes the header of a slot, after `before`.
    fn write_header(
        &self,
        place: usize,
        slot: u32,
        generation: u64,
        checksums: [u64; VARIABLES_MAX],
        before: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        let part = self.geometry.parts[place];
        let header = SlotHeader {
            run: self.superblock.run,
            slot,
            part: part as u32,
            subgroup: self.spec.layout.parts[part].subgroup,
            variables: self.geometry.variables.len() as u32,
            generation,
            elements: self.geometry.padded[place],
            checksums,
        };
        let offset = self.geometry.slot_header(slot);
        self.guarded(|| {
            self.files.write_block(&self.files.slots, offset, before, |out| header.encode(out))
        })
    }

    /// Makes the last headers of the update durable.
    ///
    /// # Errors
    /// [`Error::Invalid`] while parts are missing.
    pub fn finish_update(&self) -> Result<()> {
        {
            let inner = self.inner.lock();
            if inner.phase != Phase::Updating || inner.sealed != inner.moves.len() {
                return Err(Error::Invalid(format!(
                    "finish_update on {self:?}: {} of {} parts are sealed",
                    inner.sealed,
                    inner.moves.len()
                )));
            }
        }
        if self.durability == Durability::Power {
            self.guarded(|| self.files.engine.flush(&self.files.slots))?;
        }
        self.inner.lock().phase = Phase::Finished;
        Ok(())
    }

    /// Records that the step is about to be updated; flushes the gradients first.
    ///
    /// `record.blob` is the trainer's state **after** this iteration: once every drive has the intent, the step
    /// happens, if need be after a restart.
    ///
    /// # Errors
    /// [`Error::Invalid`] when `record.step` is not the next step.
    pub fn intent(&self, record: &StepRecord) -> Result<()> {
        self.flush_gradients()?;
        self.append(
            RecordKind::Intent,
            Phase::Idle,
            |step| step + 1 == record.step,
            record,
            Phase::Intended,
        )
    }

    /// Records that the step is complete. Call it when `finish_update` has returned on **every** drive.
    pub fn commit(&self) -> Result<()> {
        let last = self.inner.lock().last.clone();
        let Some(last) = last else {
            return Err(self.out_of_order("commit", 0, Phase::Creating));
        };
        self.append(RecordKind::Commit, Phase::Finished, |_| true, &last.content, Phase::Idle)
    }

    /// Records an iteration without update: `record.step` is the last step done, unchanged.
    pub fn skip(&self, record: &StepRecord) -> Result<()> {
        self.append(RecordKind::Skip, Phase::Idle, |step| step == record.step, record, Phase::Idle)
    }

    fn append(
        &self,
        kind: RecordKind,
        from: Phase,
        fits: impl FnOnce(u64) -> bool,
        content: &StepRecord,
        to: Phase,
    ) -> Result<()> {
        content.check()?;
        let sequence = {
            let inner = self.inner.lock();
            match &inner.last {
                Some(last) if inner.phase == from && fits(last.content.step) => last.sequence + 1,
                _ => return Err(self.out_of_order("journal record", content.step, inner.phase)),
            }
        };
        let record = Record { run: self.superblock.run, kind, sequence, content: content.clone() };
        self.write_record(record)?;
        self.inner.lock().phase = to;
        Ok(())
    }

    /// Writes a record as it is and flushes it.
    pub(crate) fn write_record(&self, record: Record) -> Result<()> {
        let offset = self.geometry.journal_record(record.sequence);
        self.guarded(|| {
            self.files.write_block(
                &self.files.journal,
                offset,
                || Ok(()),
                |out| record.encode(out),
            )?;
            match self.durability {
                Durability::Power => self.files.engine.flush(&self.files.journal),
                Durability::Process => Ok(()),
            }
        })?;
        let mut inner = self.inner.lock();
        if inner.phase == Phase::Intended && record.kind != RecordKind::Intent {
            inner.phase = Phase::Idle;
        }
        inner.last = Some(record);
        Ok(())
    }

    /// Ends creation: everything durable, then the first record. The superblock is the caller's last act.
    pub(crate) fn begin_run(&self, content: &StepRecord) -> Result<()> {
        content.check()?;
        if let Some(place) = self.inner.lock().current.iter().position(Option::is_none) {
            let part = self.geometry.parts[place];
            return Err(Error::Invalid(format!("part {part} was not given its initial values")));
        }
        self.guarded(|| self.files.flush_all())?;
        self.write_record(Record {
            run: self.superblock.run,
            kind: RecordKind::Begin,
            sequence: 0,
            content: content.clone(),
        })?;
        self.guarded(|| self.files.flush_all())
    }

    /// Makes durable what was found when the drive was opened: a killed run may have left it in volatile caches, and
    /// whatever is recorded or overwritten from here on relies on it.
    pub(crate) fn settle(&self) -> Result<()> {
        match self.durability {
            Durability::Power => self.guarded(|| self.files.flush_all()),
            Durability::Process => Ok(()),
        }
    }

    pub(crate) fn created(&self) {
        self.inner.lock().phase = Phase::Idle;
    }

    fn out_of_order(&self, call: &str, step: u64, phase: Phase) -> Error {
        Error::Invalid(format!(
            "{call} of step {step} is out of turn on {self:?} (phase {phase:?}): resume the run if an update has failed before; else \
             this is a defect of the task graph"
        ))
    }

    /// Runs work that writes; after it has failed once nothing more is written.
    fn guarded(&self, work: impl FnOnce() -> Result<()>) -> Result<()> {
        if self.failed.load(Ordering::Acquire) {
            return Err(Error::Cancelled(format!(
                "an earlier write to {self:?} failed; resume the run"
            )));
        }
        work().inspect_err(|_| self.failed.store(true, Ordering::Release))
    }
}
