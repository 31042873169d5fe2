//! The exact k-th magnitude of a source, by a radix search from the highest digit.

use super::crew::Crew;
use super::dense::Source;
use super::element::Element;

/// Bits of a digit: the counts of all its values fit in the first-level cache.
const DIGIT_BITS: u32 = 11;

/// How many elements have each value of a digit.
pub(super) type Counts = [u32; 1 << DIGIT_BITS];

/// Nothing counted yet.
pub(super) const NO_COUNTS: Counts = [0; 1 << DIGIT_BITS];

/// A digit of the magnitudes that begin with known higher digits.
#[derive(Debug, Clone, Copy)]
pub(super) struct Digit {
    /// The higher digits.
    prefix: u32,
    /// Bits below this digit.
    shift: u32,
    /// Bits of this digit.
    width: u32,
}

impl Digit {
    /// Counts `magnitude` if it begins with the known digits.
    #[inline(always)]
    pub fn count(self, magnitude: u32, counts: &mut Counts) {
        let upper = magnitude >> self.shift;
        if upper >> self.width == self.prefix {
            counts[upper as usize & ((1 << DIGIT_BITS) - 1) & ((1 << self.width) - 1)] += 1;
        }
    }
}

/// The magnitude that exactly `k` elements of `source` reach or exceed, counting only as many of those equal to
/// it as are needed; `k` is at least 1 and at most the number of elements.
pub(super) fn threshold<T: Element, S: Source<T>>(crew: &Crew, source: &S, k: usize) -> u32 {
    let (mut prefix, mut undecided, mut rank) = (0, T::MAGNITUDE_BITS, k as u64);
    while undecided > 0 {
        let width = undecided.min(DIGIT_BITS);
        undecided -= width;
        let digit = Digit { prefix, shift: undecided, width };
        let counts = histogram(crew, source, digit);
        let mut value = (1 << width) - 1;
        while u64::from(counts[value]) < rank {
            rank -= u64::from(counts[value]);
            // With no more than all elements asked for, the counts add up before the values end.
            value = value.saturating_sub(1);
        }
        prefix = prefix << width | value as u32;
    }
    prefix
}

fn histogram<T: Element, S: Source<T>>(crew: &Crew, source: &S, digit: Digit) -> Counts {
    crew.reduce(
        0..source.blocks(),
        S::LEAF,
        &|blocks| {
            let mut counts = NO_COUNTS;
            for block in blocks {
                source.histogram(block, digit, &mut counts);
            }
            counts
        },
        &add,
    )
}

/// The counts of both.
pub(super) fn add(mut left: Counts, right: Counts) -> Counts {
    for (left, right) in left.iter_mut().zip(right) {
        *left += right;
    }
    left
}
