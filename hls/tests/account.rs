//! What the kernels cost, from how often their loops run: the figures that are promised, and the simulator's cost model.

#![allow(clippy::unwrap_used)] // A test fails by panicking.

use nearfield_hls::NativeKernels;
use nearfield_hls::account::{CLOCK_HERTZ, Counts, Limit, MEMORY_BYTES_PER_SECOND, paper_seconds};
use nearfield_hls::native::take_counts;
use nearfield_runtime::device::{Kernels, Launch, LocalGradient, pair_bounds_bytes};
use nearfield_runtime::kernels::{Dither, Scalars, Segment};
use nearfield_runtime::memory::{Arena, Region};
use nearfield_runtime::types::{DType, HyperParameters, Optimizer};
use nearfield_sim::fabric::{Fabric, KernelDesign};

const ELEMENTS: u64 = 1 << 20;

fn region(bytes: u64) -> Region {
    let bytes = bytes.next_multiple_of(4096);
    Arena::new("test", bytes, false).unwrap().allocate(bytes).unwrap()
}

/// Counts of a check of pairs, and of an update with the given pairs or with a dense gradient.
fn counts(pairs: Option<&[u32]>, moments: DType) -> (Counts, Counts) {
    let kind = Optimizer::Adamw;
    let scalars = Scalars::new(kind, &HyperParameters::default(), 1, 1.0);
    let [gradient, mut param, mut exp_avg, mut exp_avg_sq, mut indices, values] =
        std::array::from_fn(|_| region(4 * ELEMENTS));
    let mut weights = region(2 * ELEMENTS);
    let mut bounds = region(pair_bounds_bytes(ELEMENTS));
    take_counts();
    let count = pairs.map_or(0, <[u32]>::len) as u64;
    if let Some(pairs) = pairs {
        indices.as_u32_mut()[..pairs.len()].copy_from_slice(pairs);
        NativeKernels.check_pairs(&indices, count, ELEMENTS, &mut bounds).unwrap();
    }
    let check = take_counts();
    let gradient = match pairs {
        None => LocalGradient::Dense(&gradient, DType::Fp32),
        Some(_) => LocalGradient::Pairs {
            indices: &indices,
            values: &values,
            bounds: &bounds,
            pairs: count,
        },
    };
    NativeKernels
        .update(Launch {
            optimizer: kind,
            segments: &[Segment { elements: ELEMENTS as usize, scalars }],
            first_element: 0,
            elements: ELEMENTS as usize,
            gradient,
            param: &mut param,
            exp_avg: Some(&mut exp_avg),
            exp_avg_sq: Some(&mut exp_avg_sq),
            moments,
            dither: Dither::new(1, 0),
            weights: Some((&mut weights, DType::Fp16)),
        })
        .unwrap();
    (check, take_counts())
}

/// Every so many elements, or so many in a row at the start of each chunk.
fn spread(keep: f64) -> Vec<u32> {
    let mut sum = 0.0;
    let kept = |_: &u32| {
        sum += keep;
        let here = sum >= 1.0;
        if here {
            sum -= 1.0;
        }
        here
    };
    (0..ELEMENTS as u32).filter(kept).collect()
}

fn gathered(keep: f64) -> Vec<u32> {
    (0..ELEMENTS as u32).filter(|i| f64::from(i % 65_536) < 65_536.0 * keep).collect()
}

fn seconds(counts: &Counts) -> f64 {
    counts.seconds(CLOCK_HERTZ, MEMORY_BYTES_PER_SECOND)
}

#[test]
fn a_dense_update_takes_a_word_a_cycle_and_is_bound_by_the_memory() {
    let (_, dense) = counts(None, DType::Fp32);
    assert_eq!(dense.memory_bytes(), 30 * ELEMENTS);
    assert_eq!((dense.longest, dense.chunks), (ELEMENTS / 16, ELEMENTS / 65_536));
    let rate = 16.0 * ELEMENTS as f64 / seconds(&dense);
    assert!(rate >= 7e9, "{rate:e} bytes of state a second");
    assert_eq!(dense.limit(CLOCK_HERTZ, MEMORY_BYTES_PER_SECOND), Limit::Memory);
    assert_eq!(dense.limit(CLOCK_HERTZ, 1e12), Limit::Port);
    // Moments of two bytes.
    let (_, narrow) = counts(None, DType::Bf16);
    assert_eq!(narrow.memory_bytes(), 22 * ELEMENTS);
}

#[test]
fn kept_pairs_cost_their_own_bytes_and_no_dense_gradient() {
    let (_, dense) = counts(None, DType::Fp32);
    for keep in [1e-6, 0.005, 0.01, 0.025, 0.05, 0.25, 0.49, 0.5, 1.0] {
        for pairs in [spread(keep), gathered(keep)] {
            let (check, update) = counts(Some(&pairs), DType::Fp32);
            let kept = pairs.len() as u64;
            // A word of pairs at the border of two chunks is read for both.
            let borders = 2 * 64 * ELEMENTS / 65_536;
            let least = 26 * ELEMENTS + 8 * kept;
            assert!((least..=least + borders).contains(&update.memory_bytes()), "{keep}");
            assert!(check.memory_bytes() <= 4 * kept + 64 + pair_bounds_bytes(ELEMENTS));
            // At worst a cycle for each word of pairs and a cycle for each word of the gradient.
            assert!(update.longest <= (ELEMENTS + kept) / 16 + 2 * update.chunks, "{keep}");
            if keep < 0.499 {
                assert!(seconds(&update) < seconds(&dense), "{keep}");
            }
            if keep <= 0.25 {
                assert!(seconds(&update) + seconds(&check) < seconds(&dense), "{keep}");
            }
        }
    }
}

#[test]
fn one_percent_is_at_least_two_and_a_half_times_as_fast_as_the_papers_kernels() {
    let pairs = spread(0.01);
    let (check, update) = counts(Some(&pairs), DType::Fp32);
    let count = Some(pairs.len() as u64);
    let paper = paper_seconds(ELEMENTS, count, CLOCK_HERTZ, MEMORY_BYTES_PER_SECOND);
    let ratio = paper / (seconds(&update) + seconds(&check));
    assert!(ratio >= 2.5, "{ratio}");
}

#[test]
fn the_simulator_charges_what_the_account_says() {
    let fabric = Fabric::shipped("smartssd-falcon").unwrap().unwrap();
    let mut pipeline = fabric.drive.near.unwrap().pipeline.unwrap();
    // With the card's memory and with one that is no limit.
    for memory in [MEMORY_BYTES_PER_SECOND, 1e15] {
        pipeline.memory_bytes_per_second = memory.try_into().unwrap();
        let charged = |name: &str, elements: u64, counts: &Counts| {
            let bytes = counts.memory_bytes();
            pipeline.seconds(KernelDesign::Dataflow, name, elements, bytes).unwrap()
        };
        let (_, dense) = counts(None, DType::Fp32);
        let of = |counts: &Counts| counts.seconds(CLOCK_HERTZ, memory);
        assert!((charged("update", ELEMENTS, &dense) / of(&dense) - 1.0).abs() < 1e-9);
        for keep in [0.01, 0.5, 1.0] {
            let pairs = spread(keep);
            let (check, update) = counts(Some(&pairs), DType::Fp32);
            let ratio = charged("update_topk", ELEMENTS, &update) / of(&update);
            // How pairs lie is not known there: at worst twice the cycles.
            assert!((1.0 - 1e-9..2.0).contains(&ratio), "{keep}: {ratio}");
            let ratio = charged("check_pairs", pairs.len() as u64, &check) / of(&check);
            assert!((ratio - 1.0).abs() < 0.03, "{keep}: {ratio}");
        }
    }
}
