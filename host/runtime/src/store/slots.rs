//! `slots.nf`: where master weights and moments lie, and in which order slots are taken and given up.

use super::block::{self, Block, Fields, Magic, Take};
use super::geometry::VARIABLES_MAX;
use super::superblock::RunId;
use crate::error::{Error, Result};

const SLOT_MAGIC: Magic = *b"NFSLOT\0\0";

/// The header of a slot: one sealed block in front of the slot's variables.
///
/// `slots.nf` is a row of equal slots: `[header][param][exp_avg][exp_avg_sq]`, with the variables that the
/// optimizer keeps, each `L_max` elements (moments: fp32 or bf16, as the superblock says) and rounded up to the drive's
/// alignment. A drive has a slot for each of its parts and up to three more, or one more for each. State is **never overwritten in place**: the update of
/// a part reads its slot and writes a free one.
///
/// Order, and what it protects (`Durability::Power`):
/// 1. The new data is written into a free slot. A crash here leaves the old slot as it was.
/// 2. `slots.nf` is flushed. The data of this part, and every header written before, is now durable.
/// 3. The header is written. From when it is durable, the part has the new generation; until then the old.
/// 4. The flush in step 2 of the *next* part (or the last flush of the update) makes the header durable.
///    Only then may the slot that the part gave up be written: a part has a whole slot at every moment.
///
/// Parts may be written ahead, all of them: step 1 then comes before the intent, to slots that are free from the start, and
/// once the intents are durable, one flush (step 2) is followed by the headers of all parts (step 3) and a flush (step 4).
///
/// The newest whole header of a part wins. The headers of free slots keep saying what was there before;
/// they are of older generations, so they never win. The sums of the data are verified by whoever reads it.
///
/// Body: run id 16, slot u32, part u32, subgroup u32, variables u32, generation u64, elements u64 (padded),
/// sum u64 of each of three variables (unused ones 0). The stamp of the block is the generation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SlotHeader {
    pub run: RunId,
    pub slot: u32,
    pub part: u32,
    pub subgroup: u32,
    pub variables: u32,
    pub generation: u64,
    pub elements: u64,
    pub checksums: [u64; VARIABLES_MAX],
}

/// What a slot's header block turned out to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SlotFound {
    Empty,
    Header(SlotHeader),
    Torn,
    Damaged { expected: u64, found: u64 },
}

impl SlotHeader {
    pub fn encode(&self, out: &mut [u8]) {
        let mut body = Fields::default();
        body.bytes(&self.run.0)
            .u32(self.slot)
            .u32(self.part)
            .u32(self.subgroup)
            .u32(self.variables);
        body.u64(self.generation).u64(self.elements);
        for sum in self.checksums {
            body.u64(sum);
        }
        block::encode(&SLOT_MAGIC, self.generation, &body.0, out);
    }

    fn from_body(body: &[u8]) -> Option<Self> {
        let mut take = Take(body);
        let header = Self {
            run: RunId(take.id()?),
            slot: take.u32()?,
            part: take.u32()?,
            subgroup: take.u32()?,
            variables: take.u32()?,
            generation: take.u64()?,
            elements: take.u64()?,
            checksums: [take.u64()?, take.u64()?, take.u64()?],
        };
        take.end()?;
        Some(header)
    }
}

impl SlotFound {
    pub fn decode(bytes: &[u8]) -> Self {
        match block::decode(&SLOT_MAGIC, bytes) {
            Block::Empty => Self::Empty,
            Block::Torn => Self::Torn,
            Block::Damaged { expected, found } => Self::Damaged { expected, found },
            Block::Valid { stamp, body } => match SlotHeader::from_body(&body) {
                Some(header) => Self::Header(header),
                None => Self::Damaged { expected: stamp, found: body.len() as u64 },
            },
        }
    }
}

/// One part's way in an update: which slot it is read from and which it is written to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlotMove {
    /// Index of the part in the layout.
    pub part: usize,
    /// Slot that holds the part's state of the step before; free once the part's new header is durable.
    pub from_slot: u32,
    /// Slot to write the new state to.
    pub to_slot: u32,
    /// The part whose `seal` must have **returned** before the first byte goes to `to_slot`; `None`: free now.
    pub ready_after: Option<usize>,
}

/// The current state of a part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlotState {
    /// The slot.
    pub slot: u32,
    /// The optimizer step that made it; 0 is the initial state.
    pub generation: u64,
    /// Sum of each stored variable, in the optimizer's order; unused entries are 0.
    pub checksums: [u64; VARIABLES_MAX],
}

/// The moves of one update over `parts` (layout index and current slot), in order.
///
/// The i-th part goes to the i-th of the `free` slots (ascending) as far as they reach; each later one to the
/// slot that the part `free.len()` places before it gives up. That one is free when its header is durable: with
/// flushes, after the seal of the part that follows it; without, after its own seal.
pub(crate) fn rotation(
    parts: &[(usize, u32)],
    free: &[u32],
    flushes: bool,
) -> Result<Vec<SlotMove>> {
    let spare = free.len();
    if spare == 0 && !parts.is_empty() || (flushes && spare == 1 && parts.len() > 1) {
        return Err(Error::Invalid(format!(
            "{spare} free slots are too few to update {} parts",
            parts.len()
        )));
    }
    let moves = parts.iter().enumerate().map(|(index, &(part, from_slot))| {
        let (to_slot, ready_after) = match index.checked_sub(spare) {
            None => (free[index], None),
            Some(giver) => {
                let sealed = if flushes { giver + 1 } else { giver };
                (parts[giver].1, Some(parts[sealed].0))
            }
        };
        SlotMove { part, from_slot, to_slot, ready_after }
    });
    Ok(moves.collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn header_comes_back_and_every_flipped_bit_is_noticed() {
        let header = SlotHeader {
            run: RunId([5; 16]),
            slot: 3,
            part: 9,
            subgroup: 4,
            variables: 2,
            generation: 77,
            elements: 1024,
            checksums: [1, u64::MAX, 0],
        };
        let mut bytes = vec![0; 4096];
        header.encode(&mut bytes);
        assert_eq!(SlotFound::decode(&bytes), SlotFound::Header(header));
        for bit in 0..bytes.len() * 8 {
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(matches!(SlotFound::decode(&bytes), SlotFound::Damaged { .. }), "bit {bit}");
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
    }

    proptest! {
        /// Plays updates of random length with the flush rule and checks that no part ever lacks a durable slot.
        #[test]
        fn a_slot_is_written_only_when_no_part_needs_it(
            count in 1_usize..12,
            flushes: bool,
            subsets in proptest::collection::vec(any::<u16>(), 1..6),
        ) {
            let spare = count.min(3);
            let mut current: Vec<u32> = (0..count as u32).collect();
            for subset in subsets {
                let parts: Vec<(usize, u32)> =
                    (0..count).filter(|part| subset >> part & 1 == 1).map(|part| (part, current[part])).collect();
                let free: Vec<u32> =
                    (0..(count + spare) as u32).filter(|slot| !current.contains(slot)).collect();
                let moves = rotation(&parts, &free, flushes).unwrap();
                // A slot is needed from the start by its owner, until the owner's new header is durable.
                let mut needed = current.clone();
                let mut needed_after = Vec::new();
                let mut unflushed: Option<&SlotMove> = None;
                for step in &moves {
                    // The seal of `step`: its flush makes the header before it durable, then its own is written.
                    if flushes && let Some(before) = unflushed {
                        needed[before.part] = before.to_slot;
                    }
                    unflushed = Some(step);
                    if !flushes {
                        needed[step.part] = step.to_slot;
                    }
                    needed_after.push(needed.clone());
                }
                for step in &moves {
                    // The earliest moment at which the executor may start to write the slot.
                    let needed = match step.ready_after {
                        None => &current,
                        Some(part) => {
                            let at = moves.iter().position(|other| other.part == part).unwrap();
                            &needed_after[at]
                        }
                    };
                    prop_assert!(!needed.contains(&step.to_slot), "{step:?} while {needed:?}");
                }
                for step in &moves {
                    current[step.part] = step.to_slot;
                }
                let mut distinct = current.clone();
                distinct.sort_unstable();
                distinct.dedup();
                prop_assert_eq!(distinct.len(), count);
            }
        }
    }
}
