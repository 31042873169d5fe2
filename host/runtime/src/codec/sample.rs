//! A lower bound of the k-th magnitude, guessed from a sample.

use super::element::Element;

/// Elements looked at. More of them narrow the margin, fewer are faster to fetch from all over the gradient.
const SAMPLES: usize = 16_384;

/// Gradients shorter than this many samples are searched as they are.
const SHORTEST: usize = 8 * SAMPLES;

/// Standard deviations of the sampled count between the guess and the k-th magnitude.
const MARGIN: f64 = 5.0;

/// The sample's memory.
#[derive(Debug)]
pub(super) struct Sample {
    magnitudes: Vec<u32>,
}

impl Sample {
    pub fn new() -> Self {
        Self { magnitudes: vec![0; SAMPLES] }
    }

    /// A magnitude that, for all but about one in a million samples, at least `k` elements reach and few more.
    ///
    /// None when the gradient is too short to be worth it or when more than `capacity` elements would reach it.
    pub fn bound<T: Element>(&mut self, gradient: &[T], k: usize, capacity: usize) -> Option<u32> {
        let elements = gradient.len();
        if elements < SHORTEST {
            return None;
        }
        let expected = k as f64 * SAMPLES as f64 / elements as f64;
        let rank = (expected + MARGIN * expected.sqrt() + MARGIN).ceil() as usize;
        // One in eight of the capacity is left for the error of the sample.
        if rank as f64 * elements as f64 / SAMPLES as f64 > capacity as f64 * 0.875 {
            return None;
        }
        for (magnitude, position) in self.magnitudes.iter_mut().zip(positions(elements)) {
            *magnitude = gradient[position].magnitude();
        }
        let last = SAMPLES.checked_sub(rank)?;
        Some(*self.magnitudes.select_nth_unstable(last).1)
    }
}

/// Where a gradient of `elements` is sampled: once in each of equal runs, at a fixed pseudo-random offset. So
/// sorted gradients are sampled evenly, and periods in them do not fall in step with the sample.
pub(super) fn positions(elements: usize) -> impl Iterator<Item = usize> {
    let stride = elements as u64 / SAMPLES as u64;
    (0..SAMPLES as u64).map(move |number| {
        let first = number * elements as u64 / SAMPLES as u64;
        (first + scramble(number) % stride) as usize
    })
}

/// A well-mixed function of `number` (the finalizer of SplitMix64).
fn scramble(number: u64) -> u64 {
    let mut mixed = number.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    (mixed ^ mixed >> 31) >> 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bound_is_reached_by_the_k_wanted_and_few_more() {
        let elements = 1_000_003;
        let gradient: Vec<f32> = (0..elements).map(|i| scramble(i) as f32).collect();
        for k in [1, 1000, 10_000, 100_000] {
            let bound = Sample::new().bound(&gradient, k, gradient.len()).unwrap();
            let reached = gradient.iter().filter(|x| x.magnitude() >= bound).count();
            assert!(reached >= k, "{reached} of {k}");
            assert!(reached <= 2 * k + 3000, "{reached} of {k}");
        }
    }

    #[test]
    fn short_gradients_and_large_counts_are_not_sampled() {
        let gradient = vec![1.0_f32; SHORTEST];
        assert!(Sample::new().bound(&gradient[1..], 10, SHORTEST).is_none());
        assert!(Sample::new().bound(&gradient, SHORTEST / 2, SHORTEST / 8).is_none());
        assert_eq!(Sample::new().bound(&gradient, 10, SHORTEST), Some(1.0_f32.to_bits()));
    }
}
