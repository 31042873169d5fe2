//! Bins between the bounds that the sample gave: one count of the candidates nearly finds the k-th magnitude.

use super::sample::Bracket;
use super::threshold::{Counts, NO_COUNTS};

/// The bin of everything above the bracket.
const LAST: u32 = NO_COUNTS.len() as u32 - 1;

/// Equal runs of magnitudes from the lower bound on; the last bin takes all above the upper bound.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bins {
    lower: u32,
    shift: u32,
}

/// The bin of the k-th magnitude.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Bin {
    /// Its least magnitude.
    pub from: u32,
    /// Its greatest magnitude.
    pub to: u32,
    /// Its elements.
    pub members: u32,
    /// How many of them, the greatest first, are wanted.
    pub rank: u32,
}

impl Bins {
    /// Bins as narrow as the bracket allows.
    pub fn new(bracket: Bracket) -> Self {
        let width = bracket.upper - bracket.lower;
        let shift = (0..32).find(|&shift| width >> shift < LAST).unwrap_or_default();
        Self { lower: bracket.lower, shift }
    }

    /// Counts a `magnitude`, which is not below the lower bound.
    #[inline(always)]
    pub fn count(self, magnitude: u32, counts: &mut Counts) {
        let bin = ((magnitude - self.lower) >> self.shift).min(LAST);
        counts[bin as usize] += 1;
    }

    /// The bin in which the k-th greatest of the counted magnitudes lies; none when fewer were counted.
    pub fn find(self, counts: &Counts, k: usize) -> Option<Bin> {
        let mut rank = k as u64;
        for (bin, &members) in counts.iter().enumerate().rev() {
            if rank <= u64::from(members) {
                let bin = bin as u32;
                let from = self.lower + (bin << self.shift);
                let to = if bin == LAST { u32::MAX } else { from + (1 << self.shift) - 1 };
                return Some(Bin { from, to, members, rank: rank as u32 });
            }
            rank -= u64::from(members);
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_bin_found_holds_the_kth_magnitude(
            mut magnitudes in prop::collection::vec(0_u32..1 << 31, 1..300),
            lower in 0_u32..1 << 31,
            width in 0_u32..31,
            pick in any::<prop::sample::Index>(),
        ) {
            let upper = lower.saturating_add(1 << width).min((1 << 31) - 1);
            let bins = Bins::new(Bracket { lower, upper });
            magnitudes.iter_mut().for_each(|magnitude| *magnitude |= lower);
            magnitudes.sort_unstable_by(|a, b| b.cmp(a));
            let mut counts = NO_COUNTS;
            magnitudes.iter().for_each(|&magnitude| bins.count(magnitude, &mut counts));
            let k = pick.index(magnitudes.len()) + 1;
            let bin = bins.find(&counts, k).unwrap();
            let members: Vec<u32> =
                magnitudes.iter().copied().filter(|m| (bin.from..=bin.to).contains(m)).collect();
            prop_assert_eq!(members.len(), bin.members as usize);
            prop_assert_eq!(members[bin.rank as usize - 1], magnitudes[k - 1]);
            prop_assert_eq!(bins.find(&counts, magnitudes.len() + 1), None);
        }
    }
}
