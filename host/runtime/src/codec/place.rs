//! Where each block's kept pairs go, and writing them there.

use super::crew::{Crew, split};
use super::dense::Source;
use super::element::Element;
use super::lanes::{Positions, Tally};

/// What one block contributes to the output.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Share {
    /// Pairs of all blocks before; set by [`settle`].
    pub before: u32,
    /// Pairs of this block: first those above the threshold, after [`settle`] also the equal ones.
    pub pairs: u32,
    /// Elements equal to the threshold: first all, after [`settle`] those taken.
    pub equal: u32,
}

/// The output places of one block.
#[derive(Debug)]
pub(super) struct Writer<'a, T> {
    pub indices: &'a mut [u32],
    pub values: &'a mut [T],
}

/// Fills `shares`, one for each block of `source`, for the `k` pairs from `threshold` up. Returns false when that is
/// not the k-th magnitude, see [`settle`].
pub(super) fn place<T: Element, S: Source<T>>(
    crew: &Crew,
    source: &S,
    threshold: u32,
    k: usize,
    shares: &mut [Share],
) -> bool {
    let tally = |block| {
        let Tally { greater, equal } = source.tally(block, threshold);
        Share { before: 0, pairs: greater, equal }
    };
    fill(crew, shares, S::LEAF, 0, &tally);
    settle(shares, k)
}

/// Sets each of `shares`, which belong to the blocks from `first` on, to `share` of its block.
pub(super) fn fill(
    crew: &Crew,
    shares: &mut [Share],
    leaf: usize,
    first: usize,
    share: &(impl Fn(usize) -> Share + Sync),
) {
    let Some(half) = split(shares.len(), leaf) else {
        for (offset, place) in shares.iter_mut().enumerate() {
            *place = share(first + offset);
        }
        return;
    };
    let (left, right) = shares.split_at_mut(half);
    crew.join(
        || fill(crew, left, leaf, first, share),
        || fill(crew, right, leaf, first + half, share),
    );
}

/// Turns the counts above and at a threshold into places for `k` pairs; of equal elements those of lower index are
/// taken. Returns false, with `shares` unchanged, when more than `k` elements are above the threshold or fewer reach it.
pub(super) fn settle(shares: &mut [Share], k: usize) -> bool {
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

/// Writes the pairs that `shares`, of the blocks from `first` on, have places for. `indices` and `values` begin with
/// the first block's place and end after the last one's.
pub(super) fn write<T: Element, S: Source<T>>(
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
            || write(crew, source, threshold, first, left, indices, values),
            || {
                let first = first + half;
                write(crew, source, threshold, first, right, right_indices, right_values);
            },
        );
        return;
    }
    let mut scratch = Positions::new();
    let (mut indices, mut values) = (indices, values);
    for (offset, &share) in shares.iter().enumerate().filter(|(_, share)| share.pairs > 0) {
        let (block_indices, later_indices) = indices.split_at_mut(share.pairs as usize);
        let (block_values, later_values) = values.split_at_mut(share.pairs as usize);
        let out = Writer { indices: block_indices, values: block_values };
        source.emit(first + offset, threshold, share.equal, out, &mut scratch);
        (indices, values) = (later_indices, later_values);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shares(counts: &[(u32, u32)]) -> Vec<Share> {
        counts.iter().map(|&(pairs, equal)| Share { before: 0, pairs, equal }).collect()
    }

    #[test]
    fn equal_elements_are_taken_from_the_first_blocks() {
        let mut some = shares(&[(1, 2), (0, 3), (2, 4)]);
        assert!(settle(&mut some, 7));
        let expected = [(0, 3, 2), (3, 2, 2), (5, 2, 0)];
        assert_eq!(some, expected.map(|(before, pairs, equal)| Share { before, pairs, equal }));
    }

    #[test]
    fn a_threshold_that_is_not_the_kth_magnitude_is_refused() {
        for (k, right) in [(0, false), (2, false), (3, true), (12, true), (13, false)] {
            assert_eq!(settle(&mut shares(&[(1, 2), (0, 3), (2, 4)]), k), right, "{k}");
        }
    }
}
