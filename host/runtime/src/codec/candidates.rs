//! The elements that may be among the greatest, gathered in one pass.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::crew::Crew;
use super::dense::{Dense, Source};
use super::element::Element;
use super::lanes::{BLOCK, Positions, Tally};
use super::place::{Share, Writer};
use super::threshold::{Counts, Digit};

/// Memory for candidates.
///
/// Threads take room for the candidates of a block as they find them, in any order; `extents` says where those of
/// each block are, so what is read later does not depend on that order.
#[derive(Debug)]
pub(super) struct Candidates {
    /// A candidate each: bits of the value above its index.
    pairs: Vec<u64>,
    /// For each block the place of its first candidate above their number.
    extents: Vec<u64>,
}

/// What a pass has gathered.
pub(super) enum Gathered<'a> {
    /// All elements that reach the bound.
    All(Found<'a>),
    /// There were more than the memory holds.
    TooMany,
}

/// Candidates of each block.
#[derive(Debug, Clone, Copy)]
pub(super) struct Found<'a> {
    pairs: &'a [u64],
    extents: &'a [u64],
}

impl Candidates {
    /// Room for `capacity` candidates of a gradient of at most `elements`. The system commits the memory when it is first used.
    pub fn new(elements: usize, capacity: usize) -> Self {
        Self { pairs: vec![0; capacity], extents: vec![0; elements.div_ceil(BLOCK)] }
    }

    /// How many candidates there is room for.
    pub fn capacity(&self) -> usize {
        self.pairs.len()
    }

    /// Gathers the elements whose magnitude is at least `bound`.
    pub fn gather<T: Element>(
        &mut self,
        crew: &Crew,
        dense: Dense<'_, T>,
        bound: u32,
    ) -> Gathered<'_> {
        let blocks = dense.blocks();
        let pairs = shared(&mut self.pairs);
        let extents = shared(&mut self.extents[..blocks]);
        let used = AtomicU64::new(0);
        crew.run(|| {
            let leaf = <Dense<'_, T> as Source<T>>::LEAF;
            crew.reduce(
                0..blocks,
                leaf,
                &|run| {
                    let mut positions = Positions::new();
                    for block in run {
                        if used.load(Relaxed) > pairs.len() as u64 {
                            return;
                        }
                        let elements = dense.block(block);
                        let count = T::positions(dense.lanes, elements, bound, &mut positions);
                        let first = used.fetch_add(count as u64, Relaxed);
                        extents[block].store(first << 32 | count as u64, Relaxed);
                        let Some(room) = pairs.get(first as usize..first as usize + count) else {
                            return;
                        };
                        let base = dense.first(block) as u32;
                        for (place, &position) in room.iter().zip(&positions.0[..count]) {
                            let bits = elements[position as usize].bits();
                            let index = base + position;
                            place.store(u64::from(bits) << 32 | u64::from(index), Relaxed);
                        }
                    }
                },
                &|(), ()| (),
            );
        });
        let used = used.into_inner() as usize;
        match self.pairs.get(..used) {
            Some(pairs) => Gathered::All(Found { pairs, extents: &self.extents[..blocks] }),
            None => Gathered::TooMany,
        }
    }
}

impl<'a> Found<'a> {
    /// Number of candidates.
    pub fn len(&self) -> usize {
        self.pairs.len()
    }

    fn block(&self, block: usize) -> &'a [u64] {
        let (first, count) = ((self.extents[block] >> 32) as usize, self.extents[block] as u32);
        &self.pairs[first..first + count as usize]
    }
}

fn element<T: Element>(pair: u64) -> T {
    T::from_bits((pair >> 32) as u32)
}

impl<T: Element> Source<T> for Found<'_> {
    const LEAF: usize = 256;

    fn blocks(&self) -> usize {
        self.extents.len()
    }

    fn histogram(&self, block: usize, digit: Digit, counts: &mut Counts) {
        for &pair in self.block(block) {
            digit.count(element::<T>(pair).magnitude(), counts);
        }
    }

    fn tally(&self, block: usize, magnitude: u32) -> Tally {
        let mut tally = Tally::default();
        for &pair in self.block(block) {
            tally.greater += u32::from(element::<T>(pair).magnitude() > magnitude);
            tally.equal += u32::from(element::<T>(pair).magnitude() == magnitude);
        }
        tally
    }

    fn emit(
        &self,
        block: usize,
        threshold: u32,
        share: Share,
        mut out: Writer<'_, T>,
        _scratch: &mut Positions,
    ) {
        let mut equal = share.equal;
        for &pair in self.block(block) {
            let value = element::<T>(pair);
            let magnitude = value.magnitude();
            if magnitude > threshold || (magnitude == threshold && equal > 0) {
                equal -= u32::from(magnitude == threshold);
                out.push(pair as u32, value);
            }
        }
    }
}

/// Lets several threads store into a slice that the caller owns alone.
fn shared(slice: &mut [u64]) -> &[AtomicU64] {
    let slice: *mut [u64] = slice;
    // SAFETY: `AtomicU64` has the size and bit validity of `u64`, and on this architecture (checked below) its
    // alignment; the exclusive borrow lasts as long as the result, so nothing else reads or writes the memory.
    unsafe { &*(slice as *const [AtomicU64]) }
}

const _: () = assert!(align_of::<AtomicU64>() == align_of::<u64>());
