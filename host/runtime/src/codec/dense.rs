//! The whole gradient as the place to search in.

use super::element::Element;
use super::lanes::{self, BLOCK, Lanes, Positions, Tally};
use super::place::{Share, Writer};
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

    /// Writes the pairs of `block` above `threshold`, and the first `share.equal` of those equal to it.
    fn emit(
        &self,
        block: usize,
        threshold: u32,
        share: Share,
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
    pub fn first(&self, block: usize) -> usize {
        block * BLOCK
    }

    /// The elements of `block`.
    pub fn block(&self, block: usize) -> &'a [T] {
        let first = self.first(block);
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
        share: Share,
        mut out: Writer<'_, T>,
        scratch: &mut Positions,
    ) {
        let (elements, first) = (self.block(block), self.first(block));
        let bound = threshold + u32::from(share.equal == 0);
        let count = T::positions(self.lanes, elements, bound, scratch);
        let mut equal = share.equal;
        for &position in &scratch.0[..count] {
            let element = elements[position as usize];
            if element.magnitude() == threshold {
                if equal == 0 {
                    continue;
                }
                equal -= 1;
            }
            out.push(first as u32 + position, element);
        }
    }
}
