//! Where the search for the k-th magnitude takes place, and the whole gradient as such a place.

use super::element::Element;
use super::lanes::{self, BLOCK, Lanes, Positions, Tally};
use super::place::Writer;
use super::threshold::{Counts, Digit};

/// Something that holds elements in blocks of ascending index: the whole gradient or its candidates.
pub(super) trait Source<T: Element>: Sync {
    /// Blocks that one thread takes at a time.
    const LEAF: usize;

    /// Number of blocks.
    fn blocks(&self) -> usize;

    /// Counts the elements of `block` that belong to `digit`, by its value.
    fn histogram(&self, block: usize, digit: Digit, counts: &mut Counts);

    /// Counts the elements of `block` above `magnitude` and equal to it.
    fn tally(&self, block: usize, magnitude: u32) -> Tally;

    /// Writes the pairs of `block` above `threshold` and the first `equal` of those equal to it, which are as many as
    /// `out` has places.
    fn emit(
        &self,
        block: usize,
        threshold: u32,
        equal: u32,
        out: Writer<'_, T>,
        scratch: &mut Positions,
    );
}

/// The gradient itself.
#[derive(Debug, Clone, Copy)]
pub(super) struct Dense<'a, T> {
    pub gradient: &'a [T],
    pub lanes: Lanes,
}

impl<'a, T: Element> Dense<'a, T> {
    /// Index of the first element of `block`.
    pub fn first(&self, block: usize) -> u32 {
        (block * BLOCK) as u32
    }

    /// The elements of `block`.
    pub fn block(&self, block: usize) -> &'a [T] {
        let first = block * BLOCK;
        &self.gradient[first..self.gradient.len().min(first + BLOCK)]
    }
}

impl<T: Element> Source<T> for Dense<'_, T> {
    const LEAF: usize = 16;

    fn blocks(&self) -> usize {
        self.gradient.len().div_ceil(BLOCK)
    }

    fn histogram(&self, block: usize, digit: Digit, counts: &mut Counts) {
        for element in self.block(block) {
            digit.count(element.magnitude(), counts);
        }
    }

    fn tally(&self, block: usize, magnitude: u32) -> Tally {
        lanes::tally(self.lanes, self.block(block), magnitude)
    }

    fn emit(
        &self,
        block: usize,
        threshold: u32,
        equal: u32,
        out: Writer<'_, T>,
        scratch: &mut Positions,
    ) {
        let (elements, first) = (self.block(block), self.first(block));
        // Without equal ones to take, they need not be found either.
        let bound = threshold + u32::from(equal == 0);
        let found = T::positions(self.lanes, elements, bound, scratch);
        let mut left = equal;
        let chosen = scratch.0[..found].iter().filter(|&&position| {
            if elements[position as usize].magnitude() > threshold {
                return true;
            }
            let take = left > 0;
            left -= u32::from(take);
            take
        });
        for ((&position, index), value) in chosen.zip(out.indices).zip(out.values) {
            *index = first + position;
            *value = elements[position as usize];
        }
    }
}
