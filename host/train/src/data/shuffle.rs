//! Permutations that need no memory, so that a run is resumed anywhere in an epoch.

use crate::random::{Purpose, Random, split};

/// Rounds of the network; four mix both halves twice.
const ROUNDS: u32 = 4;

/// Place `index` of `0..count` in the order of `epoch`: a bijection for each seed and epoch.
///
/// A Feistel network over the next even number of bits, walked until the value lies in the range (Black and Rogaway 2002): at most four
/// times on average.
pub(super) fn shuffled(seed: u64, epoch: u64, index: u64, count: u64) -> u64 {
    debug_assert!(index < count);
    let half = (64 - count.saturating_sub(1).leading_zeros()).div_ceil(2).max(1);
    let mask = (1_u64 << half) - 1;
    let random = Random::new(seed, Purpose::Shuffle);
    let [low, high] = split(epoch);
    let mut value = index;
    loop {
        let (mut left, mut right) = (value >> half, value & mask);
        for round in 0..ROUNDS {
            // Halves have at most 32 bits.
            let words = random.words([right as u32, round, low, high]);
            (left, right) = (right, left ^ (u64::from(words[0]) & mask));
        }
        value = left << half | right;
        if value < count {
            return value;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_place_is_taken_once() {
        for count in [1, 2, 3, 5, 16, 17, 1000] {
            let mut places: Vec<u64> = (0..count).map(|i| shuffled(3, 1, i, count)).collect();
            if count == 1000 {
                assert!(!places.is_sorted());
            }
            places.sort_unstable();
            assert!(places.into_iter().eq(0..count), "{count}");
        }
    }

    #[test]
    fn orders_differ_by_epoch_and_seed_and_go_far() {
        let order =
            |seed, epoch| (0..100).map(|i| shuffled(seed, epoch, i, 100)).collect::<Vec<_>>();
        assert_eq!(order(1, 0), order(1, 0));
        assert_ne!(order(1, 0), order(1, 1));
        assert_ne!(order(1, 0), order(2, 0));
        let moved: u64 = order(5, 0).iter().zip(0..).map(|(&place, i)| place.abs_diff(i)).sum();
        // A random permutation moves an element by a third of the count on average.
        assert!((20..47).contains(&(moved / 100)), "{moved}");
    }
}
