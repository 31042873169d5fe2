//! Properties of the whole codec, against a full sort.

use half::f16;
use proptest::prelude::*;

use super::element::Element;
use super::lanes::Lanes;
use super::{TopK, kept, sample, scatter};

const SIZES: [usize; 11] = [0, 1, 15, 16, 17, 1023, 1024, 1025, 65_535, 65_536, 65_537];
const KEEP: [f64; 7] = [1e-6, 0.005, 0.01, 0.025, 0.05, 0.49, 1.0];

/// Indices of `gradient`, greatest magnitude first, lower index first among equal ones.
fn ranking<T: Element>(gradient: &[T]) -> Vec<u32> {
    let mut order: Vec<u32> = (0..gradient.len() as u32).collect();
    order.sort_by_key(|&index| std::cmp::Reverse(gradient[index as usize].magnitude()));
    order
}

/// Selects on one instruction set and checks the pairs against `ranking`.
fn check<T: Element>(topk: &mut TopK, gradient: &[T], ranking: &[u32], k: usize) {
    let (mut indices, mut values) = (vec![u32::MAX; k], vec![T::from_bits(0x5555); k]);
    topk.select(gradient, k, &mut indices, &mut values).unwrap();
    let mut expected = ranking[..k].to_vec();
    expected.sort_unstable();
    assert!(indices == expected, "{k} of {}: wrong indices", gradient.len());
    for (&index, value) in indices.iter().zip(&values) {
        assert_eq!(value.bits(), gradient[index as usize].bits(), "value of element {index}");
    }
}

fn counts(elements: usize) -> Vec<usize> {
    let mut counts: Vec<usize> = KEEP
        .iter()
        .flat_map(|&keep| {
            let exact = (keep * elements as f64) as usize;
            [exact, exact.max(1).min(elements), kept(keep, elements as u64) as usize]
        })
        .collect();
    counts.sort_unstable();
    counts.dedup();
    counts
}

/// Checks `gradient` for each fraction, instruction set and thread count.
fn check_all<T: Element>(gradient: &[T]) {
    let ranking = ranking(gradient);
    for lanes in Lanes::available() {
        for threads in [1, 2, 3] {
            let mut topk = TopK::with_lanes(gradient.len(), threads, lanes).unwrap();
            for k in counts(gradient.len()) {
                check(&mut topk, gradient, &ranking, k);
            }
        }
    }
}

/// As [`check_all`] for long gradients: each instruction set with one thread count.
fn check_some<T: Element>(gradient: &[T], counts: &[usize]) {
    let ranking = ranking(gradient);
    for (lanes, threads) in Lanes::available().into_iter().zip([3, 1, 2]) {
        let mut topk = TopK::with_lanes(gradient.len(), threads, lanes).unwrap();
        for &k in counts {
            check(&mut topk, gradient, &ranking, k);
        }
    }
}

fn random_bits(seed: u64) -> impl FnMut() -> u32 {
    let mut state = seed;
    move || {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        (state >> 32) as u32 ^ (state >> 13) as u32
    }
}

const PATTERNS: u64 = 12;

/// A gradient of one of the shapes that selection may meet.
fn pattern(kind: u64, elements: usize, seed: u64) -> Vec<f32> {
    let mut bits = random_bits(seed);
    let mut normal = move || {
        let sum: f32 = (0..4).map(|_| bits() as f32 / u32::MAX as f32 - 0.5).sum();
        sum * 1e-3
    };
    let mut bits = random_bits(!seed);
    let scale = elements.max(1) as f32;
    (0..elements)
        .map(|i| match kind % PATTERNS {
            0 => normal(),
            1 => f32::from_bits(bits()),
            2 => (bits() % 7) as f32 - 3.0,
            3 => -2.5,
            4 => [0.0, -0.0][i % 2],
            5 => i as f32 / scale,
            6 => (elements - i) as f32 / scale - 0.5,
            // Mostly zero, with fewer others than are kept or a few more.
            7 => [0.0, normal()][usize::from(bits().is_multiple_of(150))],
            8 => f32::from_bits(bits() & 0x807f_ffff),
            9 => [normal(), f32::NAN, f32::NEG_INFINITY][(bits() % 50).saturating_sub(47) as usize],
            // The great ones all at one end.
            10 => normal() * if i > elements - elements / 50 { 1e6 } else { 1.0 },
            _ => [1.0, 1e-3, normal()][(bits() % 3) as usize],
        })
        .collect()
}

#[test]
fn selection_equals_a_full_sort_at_every_size_and_fraction() {
    for elements in SIZES {
        for kind in 0..PATTERNS {
            check_all(&pattern(kind, elements, elements as u64));
        }
    }
}

#[test]
fn selection_equals_a_full_sort_for_a_million_elements() {
    let counts = counts(1_000_000);
    for kind in 0..PATTERNS {
        check_some(&pattern(kind, 1_000_000, 1), &counts);
    }
}

#[test]
fn half_precision_selection_equals_a_full_sort() {
    for elements in [1, 17, 1025, 65_537, 400_000] {
        for kind in 0..PATTERNS {
            let gradient: Vec<u16> = pattern(kind, elements, 2)
                .into_iter()
                .map(|x| f16::from_f32(x * 1e3).to_bits())
                .collect();
            check_some(&gradient, &counts(elements));
        }
    }
}

#[test]
fn a_misleading_sample_costs_time_but_not_exactness() {
    let elements = 1_000_000;
    let mut bits = random_bits(3);
    let plain: Vec<f32> = (0..elements).map(|_| 1.0 + bits() as f32 / u32::MAX as f32).collect();
    // Only sampled elements are great: the guessed bound is too high.
    let mut high = plain.clone();
    // Only sampled elements are small: the guessed bound is too low.
    let mut low = plain;
    for (number, position) in sample::positions(elements).enumerate() {
        high[position] = 1e6 + number as f32;
        low[position] = 1e-6;
    }
    for gradient in [high, low] {
        check_some(&gradient, &[1, 1000, 10_000, 100_000, 300_000]);
    }
}

#[test]
fn selector_serves_shorter_gradients_and_both_formats() {
    let mut topk = TopK::new(300_000, 2).unwrap();
    for elements in [300_000, 5, 200_000, 1024, 0] {
        let gradient = pattern(0, elements, 4);
        check(&mut topk, &gradient, &ranking(&gradient), elements / 100);
        let gradient: Vec<u16> = gradient.iter().map(|x| (x.to_bits() >> 16) as u16).collect();
        check(&mut topk, &gradient, &ranking(&gradient), elements / 100);
    }
}

#[test]
fn an_all_zero_gradient_keeps_the_lowest_indices() {
    let mut topk = TopK::new(200_000, 2).unwrap();
    let (mut indices, mut values) = (vec![0; 2048], vec![1.0_f32; 2048]);
    topk.select(&vec![0.0; 200_000], 2048, &mut indices, &mut values).unwrap();
    assert!(indices.iter().copied().eq(0..2048));
    assert!(values.iter().all(|value| value.to_bits() == 0));
}

#[test]
fn requests_that_do_not_fit_are_refused() {
    let mut topk = TopK::new(4, 1).unwrap();
    let (mut indices, mut values) = ([0; 2], [0.0; 2]);
    for (gradient, k) in [(&[0.0; 5][..], 2), (&[0.0; 1], 2), (&[0.0; 4], 1), (&[0.0; 4], 3)] {
        assert!(topk.select(gradient, k, &mut indices, &mut values).is_err());
    }
    assert!(topk.select(&[0.0; 4], 2, &mut indices, &mut values[..1]).is_err());
    assert!(TopK::new(u32::MAX as usize + 1, 1).is_err());
}

/// Compresses and expands.
fn round_trip(gradient: &[f32], k: usize) -> (Vec<u32>, Vec<f32>) {
    let (mut indices, mut values) = (vec![0; k], vec![0.0; k]);
    let mut out = vec![f32::NAN; gradient.len()];
    TopK::new(gradient.len(), 2).unwrap().select(gradient, k, &mut indices, &mut values).unwrap();
    scatter(&indices, &values, 0, &mut out).unwrap();
    (indices, out)
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

fn sum_squares(values: impl Iterator<Item = f32>) -> f64 {
    values.map(|value| f64::from(value).powi(2)).sum()
}

proptest! {
    #[test]
    fn selection_equals_a_full_sort_for_any_bits(
        raw in prop::collection::vec(any::<u32>(), 0..600),
        mask in prop::sample::select(vec![u32::MAX, 0xff80_0000, 0x8000_0003, 0x7fc0_0001]),
    ) {
        let gradient: Vec<f32> = raw.iter().map(|bits| f32::from_bits(bits & mask)).collect();
        check_all(&gradient);
        check_all(&raw.iter().map(|bits| (bits & mask >> 16) as u16).collect::<Vec<_>>());
    }

    #[test]
    fn compression_keeps_the_greatest_and_is_a_contraction(
        kind in prop::sample::select(vec![0_u64, 2, 3, 4, 5, 6, 7, 8, 10, 11]),
        elements in 1_usize..5000,
        seed in any::<u64>(),
        keep in 1e-6_f64..1.0,
    ) {
        let gradient = pattern(kind, elements, seed);
        let k = kept(keep, elements as u64).min((keep * elements as f64) as u64 + 1) as usize;
        let (indices, decoded) = round_trip(&gradient, k);
        prop_assert_eq!(indices.len(), k);
        let mut is_kept = vec![false; elements];
        indices.iter().for_each(|&index| is_kept[index as usize] = true);
        for i in 0..elements {
            let expected = if is_kept[i] { gradient[i] } else { 0.0 };
            prop_assert_eq!(decoded[i].to_bits(), expected.to_bits());
        }
        let least = (0..elements).filter(|&i| is_kept[i]).map(|i| gradient[i].abs());
        let most = (0..elements).filter(|&i| !is_kept[i]).map(|i| gradient[i].abs());
        prop_assert!(least.fold(f32::INFINITY, f32::min) >= most.fold(0.0, f32::max));
        let error = sum_squares(gradient.iter().zip(&decoded).map(|(g, d)| g - d));
        let bound = (1.0 - k as f64 / elements as f64) * sum_squares(gradient.iter().copied());
        prop_assert!(error <= bound * (1.0 + 1e-12), "{error} {bound}");
    }

    #[test]
    fn compression_is_idempotent_and_commutes_with_powers_of_two(
        elements in 1_usize..5000,
        seed in any::<u64>(),
        exponent in -20_i32..20,
        part in 1_usize..100,
    ) {
        let gradient = pattern(0, elements, seed);
        let k = (elements * part / 100).max(1);
        let (indices, once) = round_trip(&gradient, k);
        let (again, twice) = round_trip(&once, k);
        prop_assert_eq!(bits(&once), bits(&twice));
        // Kept zeros are ties with dropped ones, so only the others have to be chosen again.
        for index in indices {
            prop_assert!(once[index as usize] == 0.0 || again.binary_search(&index).is_ok());
        }
        let factor = 2_f32.powi(exponent);
        let scale = |values: &[f32]| values.iter().map(|value| value * factor).collect::<Vec<_>>();
        prop_assert_eq!(bits(&round_trip(&scale(&gradient), k).1), bits(&scale(&once)));
    }
}

#[test]
fn keeping_all_restores_the_gradient_bit_by_bit() {
    let gradient = pattern(1, 70_000, 5);
    assert_eq!(bits(&round_trip(&gradient, 70_000).1), bits(&gradient));
}
