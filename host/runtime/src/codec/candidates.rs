//! The elements that may be among the greatest, gathered in one pass.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::bins::{Bin, Bins};
use super::crew::Crew;
use super::dense::{Dense, Source};
use super::element::Element;
use super::lanes::{BLOCK, Positions, Tally};
use super::place::{self, Share, Writer};
use super::sample::Bracket;
use super::threshold::{self, Counts, Digit, NO_COUNTS};

/// Blocks of the gradient that one thread gathers from at a time.
const GATHER_LEAF: usize = 32;

/// Candidates that a thread takes room for at a time, so that threads seldom meet at the count of what is taken.
const ROOM: usize = 1024;

/// Candidates of one bin that there is room for.
const MEMBERS: usize = 1 << 16;

/// Memory for candidates.
///
/// Threads take room for candidates as they find them, in any order, and may leave some unused; `extents` says where those of
/// each block are, so what is read later does not depend on that order.
#[derive(Debug)]
pub(super) struct Candidates {
    /// A candidate each: bits of the value above its index.
    pairs: Vec<u64>,
    /// For each block the place of its first candidate above their number.
    extents: Vec<u64>,
    /// Candidates of the bin that holds the k-th magnitude: the magnitude above the index.
    members: Vec<u64>,
}

/// What a pass has gathered: all elements that reach the lower bound, and their counts by bin.
#[derive(Debug)]
pub(super) struct Found<'a> {
    bins: Bins,
    counts: Counts,
    members: &'a mut [u64],
    pub list: List<'a>,
}

/// Candidates of each block.
#[derive(Debug, Clone, Copy)]
pub(super) struct List<'a> {
    /// Number of candidates.
    pub count: usize,
    pairs: &'a [u64],
    extents: &'a [u64],
}

impl Candidates {
    /// Room for `capacity` candidates of a gradient of at most `elements`. The system commits the memory when it is
    /// first used.
    pub fn new(elements: usize, capacity: usize) -> Self {
        Self {
            pairs: vec![0; capacity],
            extents: vec![0; elements.div_ceil(BLOCK)],
            members: vec![0; MEMBERS],
        }
    }

    /// How many candidates there is room for.
    pub fn capacity(&self) -> usize {
        self.pairs.len()
    }

    /// Gathers the elements whose magnitude reaches the lower bound of `bracket`; none when there is no room for all.
    pub fn gather<T: Element>(
        &mut self,
        crew: &Crew,
        dense: Dense<'_, T>,
        bracket: Bracket,
    ) -> Option<Found<'_>> {
        let bins = Bins::new(bracket);
        let extents = &mut self.extents[..dense.blocks()];
        let pass = Pass {
            dense,
            bins,
            lower: bracket.lower,
            pairs: shared(&mut self.pairs),
            extents: shared(extents),
            used: AtomicU64::new(0),
        };
        let counts = crew.reduce(
            0..dense.blocks(),
            GATHER_LEAF,
            &|run| {
                let mut room = 0..0;
                let (mut counts, mut positions) = (NO_COUNTS, Positions::new());
                for block in run {
                    pass.take(block, &mut room, &mut counts, &mut positions);
                }
                counts
            },
            &threshold::add,
        );
        let used = pass.used.into_inner() as usize;
        let members = &mut self.members;
        let count = counts.iter().map(|&count| count as usize).sum();
        let list = List { count, pairs: self.pairs.get(..used)?, extents };
        Some(Found { bins, counts, members, list })
    }
}

/// The pass over the gradient, as its threads share it.
struct Pass<'a, T> {
    dense: Dense<'a, T>,
    bins: Bins,
    lower: u32,
    pairs: &'a [AtomicU64],
    extents: &'a [AtomicU64],
    /// Room taken so far, also beyond what there is.
    used: AtomicU64,
}

impl<T: Element> Pass<'_, T> {
    /// Gathers the candidates of `block` into `room`, or into more of it, unless there are too many already.
    fn take(
        &self,
        block: usize,
        room: &mut Range<usize>,
        counts: &mut Counts,
        positions: &mut Positions,
    ) {
        if self.used.load(Relaxed) > self.pairs.len() as u64 {
            return;
        }
        let elements = self.dense.block(block);
        let count = T::positions(self.dense.lanes, elements, self.lower, positions);
        if room.len() < count {
            let size = count.max(ROOM);
            let first = self.used.fetch_add(size as u64, Relaxed) as usize;
            *room = first..first + size;
        }
        let first = room.start;
        room.start += count;
        self.extents[block].store((first as u64) << 32 | count as u64, Relaxed);
        let Some(places) = self.pairs.get(first..first + count) else { return };
        let base = self.dense.first(block);
        for (place, &position) in places.iter().zip(&positions.0[..count]) {
            let element = elements[position as usize];
            self.bins.count(element.magnitude(), counts);
            place.store(u64::from(element.bits()) << 32 | u64::from(base + position), Relaxed);
        }
    }
}

impl Found<'_> {
    /// Places the `k` greatest candidates in `shares` and returns the k-th magnitude; none when there are fewer, or
    /// so many near the k-th magnitude that a search in [`Self::list`] is needed.
    pub fn place<T: Element>(
        &mut self,
        crew: &Crew,
        k: usize,
        shares: &mut [Share],
    ) -> Option<u32> {
        let bin = self.bins.find(&self.counts, k)?;
        if bin.from == bin.to {
            return place::place::<T, _>(crew, &self.list, bin.from, k, shares).then_some(bin.from);
        }
        let members = self.members.get_mut(..bin.members as usize)?;
        split_at_bin::<T>(crew, self.list, bin, shared(members), shares);
        let wanted = members.len() - bin.rank as usize;
        let threshold = (*members.select_nth_unstable(wanted).1 >> 32) as u32;
        for &member in members.iter() {
            let (magnitude, index) = ((member >> 32) as u32, member as u32);
            let share = &mut shares[index as usize / BLOCK];
            share.pairs += u32::from(magnitude > threshold);
            share.equal += u32::from(magnitude == threshold);
        }
        place::settle(shares, k).then_some(threshold)
    }
}

/// Counts in `shares` the candidates above `bin`, and collects its members in any order.
fn split_at_bin<T: Element>(
    crew: &Crew,
    list: List<'_>,
    bin: Bin,
    members: &[AtomicU64],
    shares: &mut [Share],
) {
    let used = AtomicU64::new(0);
    let split = |block| {
        let mut pairs = 0;
        for &pair in list.block(block) {
            let magnitude = element::<T>(pair).magnitude();
            pairs += u32::from(magnitude > bin.to);
            if (bin.from..=bin.to).contains(&magnitude) {
                let place = used.fetch_add(1, Relaxed) as usize;
                members[place].store(u64::from(magnitude) << 32 | pair & INDEX, Relaxed);
            }
        }
        Share { before: 0, pairs, equal: 0 }
    };
    place::fill(crew, shares, <List<'_> as Source<T>>::LEAF, 0, &split);
}

/// The bits of a pair that are its index.
const INDEX: u64 = u32::MAX as u64;

fn element<T: Element>(pair: u64) -> T {
    T::from_bits((pair >> 32) as u32)
}

impl<'a> List<'a> {
    fn block(&self, block: usize) -> &'a [u64] {
        let (first, count) = ((self.extents[block] >> 32) as usize, self.extents[block] as u32);
        &self.pairs[first..first + count as usize]
    }
}

impl<T: Element> Source<T> for List<'_> {
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
        equal: u32,
        out: Writer<'_, T>,
        scratch: &mut Positions,
    ) {
        let pairs = self.block(block);
        let (mut count, mut left) = (0, equal);
        // Without branches: whether a candidate is kept cannot be predicted.
        for (position, &pair) in pairs.iter().enumerate() {
            let magnitude = element::<T>(pair).magnitude();
            let take = u32::from(magnitude == threshold) & u32::from(left > 0);
            left -= take;
            scratch.0[count] = position as u32;
            count += (u32::from(magnitude > threshold) | take) as usize;
        }
        let kept = scratch.0[..count].iter().map(|&position| pairs[position as usize]);
        for ((pair, index), value) in kept.zip(out.indices).zip(out.values) {
            *index = pair as u32;
            *value = element(pair);
        }
    }
}

/// Lets several threads store into a slice that the caller owns alone.
fn shared(slice: &mut [u64]) -> &[AtomicU64] {
    let slice: *mut [u64] = slice;
    // SAFETY: `AtomicU64` has the size and bit validity of `u64` and, as checked below, its alignment; the exclusive
    // borrow lasts as long as the result, so nothing else reads or writes the memory.
    unsafe { &*(slice as *const [AtomicU64]) }
}

const _: () = assert!(align_of::<AtomicU64>() == align_of::<u64>());
