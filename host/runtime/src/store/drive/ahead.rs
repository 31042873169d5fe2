//! Updates that are written before it is certain that they happen.

use super::{DriveStore, Durability, Phase};
use crate::error::{Error, Result};
use crate::store::geometry::VARIABLES_MAX;
use crate::store::slots::{SlotMove, SlotState};

impl DriveStore {
    /// Where each part may be written ahead for `step`, the next one: to a slot that is free from the start.
    ///
    /// Nothing is recorded. Whatever is written there counts when [`DriveStore::adopt`] says so; until then, and after a
    /// restart, the slots are free.
    ///
    /// # Errors
    /// [`Error::Invalid`] in the middle of an update, and when there are fewer free slots than parts.
    pub fn write_ahead(&self, step: u64) -> Result<Vec<SlotMove>> {
        let mut inner = self.inner.lock();
        let next = inner.last.as_ref().is_some_and(|last| last.content.step + 1 == step);
        if inner.phase != Phase::Idle || !next {
            return Err(self.out_of_order("write_ahead", step, inner.phase));
        }
        let free = self.free_slots(&inner);
        if free.len() < inner.current.len() {
            return Err(Error::Invalid(format!(
                "{self:?} has {} free slots for {} parts; --overlap-update needs one for each",
                free.len(),
                inner.current.len()
            )));
        }
        let current = inner.current.iter().flatten();
        let moves = self.geometry.parts.iter().zip(current).zip(free);
        let moves: Vec<SlotMove> = moves
            .map(|((&part, state), to_slot)| SlotMove {
                part,
                from_slot: state.slot,
                to_slot,
                ready_after: None,
            })
            .collect();
        inner.ahead = Some((step, moves.clone()));
        Ok(moves)
    }

    /// Makes what was written ahead the state of all parts at `step`, whose intent every drive has. `checksums` are those of
    /// each part's padded variables, in the order of [`DriveStore::parts`] and of the optimizer. One flush makes the data
    /// durable before the first header, whatever their number; [`DriveStore::finish_update`] does it for the headers.
    ///
    /// # Errors
    /// [`Error::Invalid`] out of turn, and unless every part was written ahead for this step.
    pub fn adopt(&self, step: u64, checksums: &[Vec<u64>]) -> Result<()> {
        let moves = {
            let mut inner = self.inner.lock();
            let intended = inner.last.as_ref().is_some_and(|last| last.content.step == step);
            let ahead = inner.ahead.take().filter(|(of, _)| *of == step);
            match ahead {
                Some((_, moves)) if inner.phase == Phase::Intended && intended => moves,
                _ => return Err(self.out_of_order("adopt", step, inner.phase)),
            }
        };
        if checksums.len() != moves.len() {
            return Err(Error::Invalid(format!(
                "{} of the {} parts of {self:?} were written ahead",
                checksums.len(),
                moves.len()
            )));
        }
        if self.durability == Durability::Power {
            self.guarded(|| self.files.engine.flush(&self.files.slots))?;
        }
        for (place, (one, checksums)) in moves.iter().zip(checksums).enumerate() {
            let checksums = self.sums(one.part, checksums)?;
            self.write_header(place, one.to_slot, step, checksums, || Ok(()))?;
            let state = SlotState { slot: one.to_slot, generation: step, checksums };
            self.inner.lock().current[place] = Some(state);
        }
        let mut inner = self.inner.lock();
        inner.moves.clear();
        inner.sealed = 0;
        inner.phase = Phase::Updating;
        Ok(())
    }

    /// One sum for each variable, in the form of a header.
    pub(super) fn sums(&self, part: usize, checksums: &[u64]) -> Result<[u64; VARIABLES_MAX]> {
        let stored = self.geometry.variables.len();
        if checksums.len() != stored {
            return Err(Error::Invalid(format!(
                "part {part}: {} checksums for {stored} variables",
                checksums.len()
            )));
        }
        let mut sums = [0; VARIABLES_MAX];
        sums[..stored].copy_from_slice(checksums);
        Ok(sums)
    }
}
