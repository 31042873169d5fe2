//! Where each block's kept pairs go, and writing them there.

use super::crew::{Crew, split};
use super::dense::Source;
use super::element::Element;
use super::lanes::{Positions, Tally};

/// What one block contributes to the output.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Share {
    /// Pairs of all blocks before.
    pub before: u32,
    /// Pairs of this block.
    pub pairs: u32,
    /// How many of them are equal to the threshold.
    pub equal: u32,
}

/// The next free places of the output.
#[derive(Debug)]
pub(super) struct Writer<'a, T> {
    pub indices: &'a mut [u32],
    pub values: &'a mut [T],
    pub used: usize,
}

impl<T> Writer<'_, T> {
    #[inline(always)]
    pub fn push(&mut self, index: u32, value: T) {
        self.indices[self.used] = index;
        self.values[self.used] = value;
        self.used += 1;
    }
}

/// Fills `shares`, one for each block of `source`, for the `k` pairs from `threshold` up; equal ones with a lower
/// index come first. Returns false, with `shares` in no useful state, when more than `k` elements are above
/// `threshold` or fewer reach it.
pub(super) fn place<T: Element, S: Source<T>>(
    crew: &Crew,
    source: &S,
    threshold: u32,
    k: usize,
    shares: &mut [Share],
) -> bool {
    crew.run(|| count(crew, source, threshold, 0, shares));
    let (mut greater, mut equal) = (0_u64, 0_u64);
    for share in shares.iter() {
        greater += u64::from(share.pairs);
        equal += u64::from(share.equal);
    }
    let k = k as u64;
    if greater > k || greater + equal < k {
        return false;
    }
    let (mut before, mut left) = (0, (k - greater) as u32);
    for share in shares {
        share.equal = share.equal.min(left);
        left -= share.equal;
        share.pairs += share.equal;
        share.before = before;
        before += share.pairs;
    }
    true
}

/// Counts into `shares`, which belong to the blocks from `first` on, what is above the threshold (as `pairs`) and
/// equal to it.
fn count<T: Element, S: Source<T>>(
    crew: &Crew,
    source: &S,
    threshold: u32,
    first: usize,
    shares: &mut [Share],
) {
    if let Some(half) = split(shares.len(), S::LEAF) {
        let (left, right) = shares.split_at_mut(half);
        crew.join(
            || count(crew, source, threshold, first, left),
            || count(crew, source, threshold, first + half, right),
        );
        return;
    }
    for (offset, share) in shares.iter_mut().enumerate() {
        let Tally { greater, equal } = source.tally(first + offset, threshold);
        *share = Share { before: 0, pairs: greater, equal };
    }
}

/// Writes the pairs that `shares` has placed. `indices` and `values` have the room for exactly all of them.
pub(super) fn write<T: Element, S: Source<T>>(
    crew: &Crew,
    source: &S,
    threshold: u32,
    shares: &[Share],
    indices: &mut [u32],
    values: &mut [T],
) {
    crew.run(|| write_from(crew, source, threshold, 0, shares, indices, values));
}

fn write_from<T: Element, S: Source<T>>(
    crew: &Crew,
    source: &S,
    threshold: u32,
    first: usize,
    shares: &[Share],
    indices: &mut [u32],
    values: &mut [T],
) {
    if let Some(half) = split(shares.len(), S::LEAF) {
        let (left, right) = shares.split_at(half);
        let pairs = (right[0].before - left[0].before) as usize;
        let (indices, right_indices) = indices.split_at_mut(pairs);
        let (values, right_values) = values.split_at_mut(pairs);
        crew.join(
            || write_from(crew, source, threshold, first, left, indices, values),
            || {
                let first = first + half;
                write_from(crew, source, threshold, first, right, right_indices, right_values);
            },
        );
        return;
    }
    let mut scratch = Positions::new();
    let base = shares.first().map_or(0, |share| share.before);
    for (offset, &share) in shares.iter().enumerate() {
        if share.pairs == 0 {
            continue;
        }
        let from = (share.before - base) as usize;
        let range = from..from + share.pairs as usize;
        let out =
            Writer { indices: &mut indices[range.clone()], values: &mut values[range], used: 0 };
        source.emit(first + offset, threshold, share, out, &mut scratch);
    }
}
