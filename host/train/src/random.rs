//! Random numbers as a pure function of (seed, purpose, counter): Philox4x32-10 (Salmon et al., SC 2011).
//!
//! A counter-based generator has no state, so any element of any tensor and any batch of any iteration can be made on its own, in
//! any order and on any thread, with the same bits. Normal numbers use the pure-Rust `libm`, because the system's `log` and `sin`
//! differ between C libraries.

/// What the numbers are for; each purpose has its own sequence under one seed.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Purpose {
    /// Initial weights.
    Initial = 0,
    /// Choice of training sequences.
    Batch = 1,
    /// Order of sequences in an epoch.
    Shuffle = 3,
    /// Sampling of generated text.
    Sample = 2,
}

/// The numbers of one seed and purpose.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Random {
    key: [u32; 2],
}

impl Random {
    pub(crate) fn new(seed: u64, purpose: Purpose) -> Self {
        let words = philox([purpose as u32, 0, 0, 0], split(seed));
        Self { key: [words[0], words[1]] }
    }

    /// Four independent uniform words.
    pub(crate) fn words(&self, counter: [u32; 4]) -> [u32; 4] {
        philox(counter, self.key)
    }

    /// A uniform integer below `bound` (> 0); the bias of the multiply-shift is below `bound`/2^64.
    pub(crate) fn below(&self, counter: [u32; 4], bound: u64) -> u64 {
        let words = self.words(counter);
        let word = u64::from(words[0]) | u64::from(words[1]) << 32;
        let product = u128::from(word) * u128::from(bound);
        (product >> 64) as u64
    }

    /// A uniform number in [0, 1) with 53 random bits.
    pub(crate) fn unit(&self, counter: [u32; 4]) -> f64 {
        const SCALE: f64 = 1.0 / (1u64 << 53) as f64;
        let words = self.words(counter);
        let word = u64::from(words[0]) | u64::from(words[1]) << 32;
        (word >> 11) as f64 * SCALE
    }

    /// Four independent standard normal numbers (Box-Muller on pairs of words; the largest magnitude is 6.66).
    pub(crate) fn normals(&self, counter: [u32; 4]) -> [f64; 4] {
        const SCALE: f64 = 1.0 / (1u64 << 32) as f64;
        let words = self.words(counter);
        let pair = |a: u32, b: u32| {
            let radius = (-2.0 * libm::log((f64::from(a) + 1.0) * SCALE)).sqrt();
            let angle = std::f64::consts::TAU * (f64::from(b) + 0.5) * SCALE;
            let (sin, cos) = libm::sincos(angle);
            (radius * cos, radius * sin)
        };
        let (a, b) = pair(words[0], words[1]);
        let (c, d) = pair(words[2], words[3]);
        [a, b, c, d]
    }
}

/// The low and the high word.
pub(crate) const fn split(value: u64) -> [u32; 2] {
    [value as u32, (value >> 32) as u32]
}

/// Ten rounds of the Philox4x32 bijection.
fn philox(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    for _ in 0..10 {
        let a = u64::from(counter[0]) * 0xD251_1F53;
        let b = u64::from(counter[2]) * 0xCD9E_8D57;
        counter = [
            (b >> 32) as u32 ^ counter[1] ^ key[0],
            b as u32,
            (a >> 32) as u32 ^ counter[3] ^ key[1],
            a as u32,
        ];
        key = [key[0].wrapping_add(0x9E37_79B9), key[1].wrapping_add(0xBB67_AE85)];
    }
    counter
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Known answers published with Random123.
    #[test]
    fn philox_gives_the_published_answers() {
        let cases = [
            ([0; 4], [0; 2], [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]),
            ([u32::MAX; 4], [u32::MAX; 2], [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]),
            (
                [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344],
                [0xa409_3822, 0x299f_31d0],
                [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1],
            ),
        ];
        for (counter, key, expected) in cases {
            assert_eq!(philox(counter, key), expected);
        }
    }

    #[test]
    fn purposes_and_seeds_give_different_sequences() {
        let words = |seed, purpose| Random::new(seed, purpose).words([5, 0, 0, 0]);
        let all = [
            words(7, Purpose::Initial),
            words(7, Purpose::Batch),
            words(7, Purpose::Sample),
            words(8, Purpose::Initial),
            words(7 + (1 << 32), Purpose::Initial),
        ];
        for (i, a) in all.iter().enumerate() {
            assert!(all[i + 1..].iter().all(|b| a != b));
        }
    }

    #[test]
    fn normals_have_mean_0_variance_1_kurtosis_3() {
        let random = Random::new(1, Purpose::Initial);
        let count = 50_000;
        let values: Vec<f64> = (0..count).flat_map(|i| random.normals([i, 0, 0, 0])).collect();
        let moment = |power| values.iter().map(|x: &f64| x.powi(power)).sum::<f64>() / 2e5;
        assert!(moment(1).abs() < 0.01);
        assert!((moment(2) - 1.0).abs() < 0.02);
        assert!((moment(4) - 3.0).abs() < 0.1);
    }

    #[test]
    fn below_reaches_every_value_and_never_the_bound() {
        let random = Random::new(3, Purpose::Batch);
        let mut seen = [0u32; 5];
        for i in 0..1000 {
            seen[random.below([i, 0, 0, 0], 5) as usize] += 1;
        }
        assert!(seen.iter().all(|&count| (150..250).contains(&count)));
    }
}
