//! Updates that are written before it is certain that they happen.

use super::{DriveStore, Durability, Phase};
use crate::error::{Error, Result};
use crate::store::geometry::VARIABLES_MAX;
use crate::store::slots::{SlotMove, SlotState};

/// The new state of one part, written ahead to a slot that was free.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WrittenAhead {
    /// Index of the part in the layout.
    pub part: usize,
    /// The slot.
    pub slot: u32,
    /// Sums of the padded variables, in the optimizer's order.
    pub checksums: Vec<u64>,
}

impl DriveStore {
    /// Where each part may be written ahead for `step`, the next one: to a slot that is free from the start.
    ///
    /// Nothing is recorded. Whatever is written there counts when [`DriveStore::adopt`] says so; until then, and after a
    /// restart, the slots are free.
    ///
    /// # Errors
    /// [`Error::Invalid`] in the middle of an update, and when there are fewer free slots than parts.
    pub fn write_ahead(&self, step: u64) -> Result<Vec<SlotMove>> {
        let inner = self.inner.lock();
        let next = inner.last.as_ref().is_some_and(|last| last.content.step + 1 == step);
        if inner.phase != Phase::Idle || !next {
            return Err(self.out_of_order("write_ahead", step, inner.phase));
        }
        let current: Vec<u32> = inner.current.iter().flatten().map(|state| state.slot).collect();
        let free: Vec<u32> =
            (0..self.geometry.slots).filter(|slot| !current.contains(slot)).collect();
        if free.len() < current.len() {
            return Err(Error::Invalid(format!(
                "{self:?} has {} free slots for {} parts; --overlap-update needs one for each",
                free.len(),
                current.len()
            )));
        }
        let moves = self.geometry.parts.iter().zip(current).zip(free);
        let moves = moves.map(|((&part, from_slot), to_slot)| SlotMove {
            part,
            from_slot,
            to_slot,
            ready_after: None,
        });
        Ok(moves.collect())
    }

    /// Makes what was written ahead the state of all parts at `step`, whose intent every drive has. One flush makes the
    /// data durable before the first header, whatever their number; [`DriveStore::finish_update`] does it for the headers.
    ///
    /// # Errors
    /// [`Error::Invalid`] out of turn, and unless each part comes once, in the drive's order, in a slot of its own.
    pub fn adopt(&self, step: u64, written: &[WrittenAhead]) -> Result<()> {
        {
            let inner = self.inner.lock();
            let intended = inner.last.as_ref().is_some_and(|last| last.content.step == step);
            if inner.phase != Phase::Intended || !intended {
                return Err(self.out_of_order("adopt", step, inner.phase));
            }
            let current: Vec<u32> = inner.current.iter().flatten().map(|s| s.slot).collect();
            let mut taken = current.clone();
            for one in written {
                if one.slot >= self.geometry.slots || taken.contains(&one.slot) {
                    return Err(Error::Invalid(format!(
                        "part {} was written ahead to slot {}, which is not free on {self:?}",
                        one.part, one.slot
                    )));
                }
                taken.push(one.slot);
            }
            if !written.iter().map(|one| &one.part).eq(&self.geometry.parts) {
                return Err(Error::Invalid(format!(
                    "what was written ahead are not the {} parts of {self:?}",
                    self.geometry.parts.len()
                )));
            }
        }
        if self.durability == Durability::Power {
            self.guarded(|| self.files.engine.flush(&self.files.slots))?;
        }
        for (place, one) in written.iter().enumerate() {
            let checksums = self.sums(one.part, &one.checksums)?;
            self.write_header(place, one.slot, step, checksums, || Ok(()))?;
            let state = SlotState { slot: one.slot, generation: step, checksums };
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
