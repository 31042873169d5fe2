//! Bounds of the k-th magnitude, guessed from a sample.

use super::crew::{Crew, split};
use super::element::Element;

/// Gradients shorter than this are not worth a sample.
const SHORTEST: usize = 32_768;

/// One in so many elements is looked at, within the limits below. More of them narrow the margin, fewer are faster
/// to fetch from all over the gradient.
const PERIOD: usize = 1024;

/// Least number of elements looked at.
const SAMPLES_MIN: usize = 2048;

/// Greatest number of elements looked at.
const SAMPLES_MAX: usize = 16_384;

/// Samples that one thread takes at a time.
const LEAF: usize = 1024;

/// Standard deviations of the sampled count between a guess and the k-th magnitude.
const MARGIN: f64 = 4.0;

/// The sample's memory.
#[derive(Debug)]
pub(super) struct Sample {
    magnitudes: Vec<u32>,
}

/// Magnitudes between which the k-th most likely lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Bracket {
    /// At least `k` elements should reach this, and few more.
    pub lower: u32,
    /// Fewer than `k` elements should exceed this; not less than `lower`.
    pub upper: u32,
}

impl Sample {
    pub fn new() -> Self {
        Self { magnitudes: vec![0; SAMPLES_MAX] }
    }

    /// Guesses where the k-th magnitude lies; a guess is wrong for about one in ten thousand gradients.
    ///
    /// None when the gradient is too short to be worth it or when more than `capacity` elements would reach the
    /// lower bound.
    pub fn bracket<T: Element>(
        &mut self,
        crew: &Crew,
        gradient: &[T],
        k: usize,
        capacity: usize,
    ) -> Option<Bracket> {
        let elements = gradient.len();
        if elements < SHORTEST {
            return None;
        }
        let samples = samples(elements);
        let share = samples as f64 / elements as f64;
        let expected = k as f64 * share;
        let margin = MARGIN * (expected.sqrt() + 1.0);
        let rank = (expected + margin).ceil();
        // A quarter of the capacity is left for the error of the sample and for room that threads leave unused.
        if rank > samples as f64 || rank / share > capacity as f64 * 0.75 {
            return None;
        }
        let magnitudes = &mut self.magnitudes[..samples];
        take(crew, gradient, 0, magnitudes);
        let rank = rank as usize;
        let (_, &mut lower, greater) = magnitudes.select_nth_unstable(samples - rank);
        let upper_rank = ((expected - margin).max(1.0) as usize).min(greater.len());
        let upper = match greater.len() - upper_rank {
            _ if greater.is_empty() => lower,
            place => *greater.select_nth_unstable(place).1,
        };
        Some(Bracket { lower, upper })
    }
}

/// Samples `gradient` into `magnitudes`, which belong to the samples from `first` on.
fn take<T: Element>(crew: &Crew, gradient: &[T], first: usize, magnitudes: &mut [u32]) {
    if let Some(half) = split(magnitudes.len(), LEAF) {
        let (left, right) = magnitudes.split_at_mut(half);
        crew.join(
            || take(crew, gradient, first, left),
            || take(crew, gradient, first + half, right),
        );
        return;
    }
    for (magnitude, position) in magnitudes.iter_mut().zip(positions(gradient.len()).skip(first)) {
        *magnitude = gradient[position].magnitude();
    }
}

/// How many elements of a gradient are looked at.
fn samples(elements: usize) -> usize {
    (elements / PERIOD).clamp(SAMPLES_MIN, SAMPLES_MAX)
}

/// Where a gradient is sampled: once in each of equal runs, at a fixed pseudo-random offset. So sorted gradients
/// are sampled evenly, and periods in them do not fall in step with the sample.
pub(super) fn positions(elements: usize) -> impl ExactSizeIterator<Item = usize> {
    let samples = samples(elements);
    let stride = (elements / samples) as u64;
    (0..samples)
        .map(|number| number as u64)
        .map(move |number| (number * stride + ((scramble(number) * stride) >> 32)) as usize)
}

/// A well-mixed 32-bit function of `number` (the finalizer of SplitMix64).
fn scramble(number: u64) -> u64 {
    let mut mixed = number.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed >> 32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bracket_holds_the_kth_magnitude_and_few_more() {
        for elements in [40_000, 1_000_003, 3_000_000] {
            let gradient: Vec<f32> = (0..elements).map(|i| scramble(i) as f32).collect();
            for k in [1, 1000, 10_000] {
                let bracket =
                    Sample::new().bracket(&Crew::alone(), &gradient, k, gradient.len()).unwrap();
                let count = |from| gradient.iter().filter(|x| x.magnitude() >= from).count();
                let reached = count(bracket.lower);
                assert!(reached >= k, "{reached} of {k}");
                let most = 2 * k + 20 * elements as usize / samples(elements as usize);
                assert!(reached <= most, "{reached} of {k}");
                if k > 1000 {
                    assert!(count(bracket.upper + 1) < k);
                }
            }
        }
    }

    #[test]
    fn positions_lie_in_the_gradient_and_ascend() {
        for elements in [SHORTEST, 100_000, 5_000_001] {
            let all: Vec<usize> = positions(elements).collect();
            assert_eq!(all.len(), samples(elements));
            assert!(all.is_sorted() && all[all.len() - 1] < elements);
        }
    }

    #[test]
    fn short_gradients_and_large_counts_are_not_sampled() {
        let gradient = vec![1.0_f32; SHORTEST];
        assert!(Sample::new().bracket(&Crew::alone(), &gradient[1..], 10, SHORTEST).is_none());
        assert!(
            Sample::new().bracket(&Crew::alone(), &gradient, SHORTEST / 2, SHORTEST / 8).is_none()
        );
        assert!(
            Sample::new().bracket(&Crew::alone(), &gradient, SHORTEST - 1, usize::MAX).is_none()
        );
        let one = 1.0_f32.to_bits();
        assert_eq!(
            Sample::new().bracket(&Crew::alone(), &gradient, 10, SHORTEST),
            Some(Bracket { lower: one, upper: one })
        );
    }
}
