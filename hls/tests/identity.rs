//! The kernels' sources give the bits of the CPU's kernels: parameters, moments, copies of weights, checksums.

#![allow(clippy::unwrap_used)] // A test fails by panicking.

use std::sync::Arc;

use nearfield_hls::{NativeKernels, Random};
use nearfield_runtime::device::{
    CpuKernels, Kernels, Launch, LocalGradient, PairsCheck, pair_bounds_bytes,
};
use nearfield_runtime::kernels::{Dither, Isa, Scalars, Segment, UpdateSums};
use nearfield_runtime::memory::{Arena, Region};
use nearfield_runtime::types::{DType, HyperParameters, Optimizer};
use proptest::prelude::*;

const OPTIMIZERS: [Optimizer; 4] =
    [Optimizer::Adamw, Optimizer::Adam, Optimizer::Adagrad, Optimizer::SgdMomentum];

/// Mostly ordinary numbers, now and then one of any bits.
fn wild(random: &mut Random, scale: f32) -> f32 {
    let ordinary = random.value(scale);
    match random.word() % 64 {
        0 => f32::from_bits(random.word()),
        1 => -0.0,
        2 => f32::from_bits(random.word() % 0x0100_0000),
        _ => ordinary,
    }
}

/// What an update works on.
#[derive(Clone)]
struct Case {
    optimizer: Optimizer,
    elements: usize,
    first_element: u64,
    segments: Vec<Segment>,
    gradient: DType,
    moments: DType,
    weights: Option<DType>,
    /// Share of kept pairs; `None` for a dense gradient.
    keep: Option<f64>,
    /// Whether numbers of any bits occur.
    wild: bool,
    seed: u64,
}

/// Memory of both devices.
struct Arrays {
    gradient: Region,
    indices: Region,
    values: Region,
    bounds: Region,
    pairs: u64,
    param: Region,
    exp_avg: Option<Region>,
    exp_avg_sq: Option<Region>,
    weights: Option<Region>,
}

fn region(bytes: usize) -> Region {
    let bytes = (bytes as u64).next_multiple_of(4096).max(4096);
    Arena::new("test", bytes, false).unwrap().allocate(bytes).unwrap()
}

impl Case {
    fn arrays(&self) -> Arrays {
        let mut random = Random::new(self.seed);
        let mut fill = |dtype: DType, scale: f32, positive: bool| {
            let mut region = region(self.elements * dtype.bytes() as usize);
            for index in 0..self.elements {
                let mut value = wild(&mut random, scale);
                if !self.wild && !value.is_finite() {
                    value = scale;
                }
                let value = if positive { value.abs() } else { value };
                match dtype {
                    DType::Fp32 => region.as_f32_mut()[index] = value,
                    DType::Bf16 => region.as_u16_mut()[index] = (value.to_bits() >> 16) as u16,
                    DType::Fp16 => {
                        let bits = random.word();
                        // Finite, unless everything may occur.
                        let bits = if self.wild { bits } else { bits & 0xbfff };
                        region.as_u16_mut()[index] = bits as u16;
                    }
                }
            }
            region
        };
        let gradient = fill(self.gradient, 1.0, false);
        let param = fill(DType::Fp32, 8.0, false);
        let exp_avg = fill(self.moments, 0.1, false);
        let exp_avg_sq = fill(self.moments, 0.01, true);
        let whole = self.first_element as usize + self.elements;
        let keep = self.keep.unwrap_or(0.0);
        let kept: Vec<u32> = (0..whole as u32)
            .filter(|_| f64::from(random.word()) < keep * f64::from(u32::MAX))
            .collect();
        let (mut indices, mut values) = (region(4 * kept.len()), region(4 * kept.len()));
        for (place, &index) in kept.iter().enumerate() {
            indices.as_u32_mut()[place] = index;
            let value = wild(&mut random, 1.0);
            values.as_f32_mut()[place] = if !self.wild && !value.is_finite() { 1.0 } else { value };
        }
        Arrays {
            gradient,
            indices,
            values,
            bounds: region(pair_bounds_bytes(whole as u64) as usize),
            pairs: kept.len() as u64,
            param,
            exp_avg: (self.optimizer != Optimizer::Adagrad).then_some(exp_avg),
            exp_avg_sq: (self.optimizer != Optimizer::SgdMomentum).then_some(exp_avg_sq),
            weights: self.weights.map(|dtype| region(self.elements * dtype.bytes() as usize)),
        }
    }

    fn run(&self, kernels: &dyn Kernels) -> (UpdateSums, Option<PairsCheck>, Arrays) {
        let mut arrays = self.arrays();
        let whole = self.first_element + self.elements as u64;
        let check = self.keep.map(|_| {
            kernels.check_pairs(&arrays.indices, arrays.pairs, whole, &mut arrays.bounds).unwrap()
        });
        let gradient = match self.keep {
            None => LocalGradient::Dense(&arrays.gradient, self.gradient),
            Some(_) => LocalGradient::Pairs {
                indices: &arrays.indices,
                values: &arrays.values,
                bounds: &arrays.bounds,
                pairs: arrays.pairs,
            },
        };
        let sums = kernels
            .update(Launch {
                optimizer: self.optimizer,
                segments: &self.segments,
                first_element: self.first_element,
                elements: self.elements,
                gradient,
                param: &mut arrays.param,
                exp_avg: arrays.exp_avg.as_mut(),
                exp_avg_sq: arrays.exp_avg_sq.as_mut(),
                moments: self.moments,
                dither: Dither::new(7, 12_345 * 32),
                weights: arrays.weights.as_mut().zip(self.weights),
            })
            .unwrap();
        (sums, check, arrays)
    }

    fn check(&self) {
        let cpu = CpuKernels { isa: Isa::detect(), pool: None };
        let (expected, expected_check, a) = self.run(&cpu);
        let (sums, check, b) = self.run(&NativeKernels);
        let what = format!(
            "{:?}, {} elements from {}, gradient {:?} {:?}, moments {:?}, weights {:?}, {} segments",
            self.optimizer,
            self.elements,
            self.first_element,
            self.gradient,
            self.keep,
            self.moments,
            self.weights,
            self.segments.len()
        );
        assert_eq!(check, expected_check, "{what}");
        let same = |name: &str, a: &Region, b: &Region, bytes: usize| {
            let differs = (0..self.elements * bytes).find(|&at| a[at] != b[at]);
            if let Some(at) = differs {
                let at = at / bytes * bytes;
                panic!(
                    "{what}: {name} {}: {:x?}, {:x?}",
                    at / bytes,
                    &a[at..at + bytes],
                    &b[at..at + bytes]
                );
            }
        };
        let width = self.moments.bytes() as usize;
        same("param", &a.param, &b.param, 4);
        let both =
            [("exp_avg", &a.exp_avg, &b.exp_avg), ("exp_avg_sq", &a.exp_avg_sq, &b.exp_avg_sq)];
        for (name, a, b) in both {
            if let (Some(a), Some(b)) = (a, b) {
                same(name, a, b, width);
            }
        }
        if let (Some(a), Some(b), Some(dtype)) = (&a.weights, &b.weights, self.weights) {
            same("weights", a, b, dtype.bytes() as usize);
        }
        assert_eq!(sums, expected, "{what}");
    }
}

fn scalars(optimizer: Optimizer, lr: f64) -> Scalars {
    let hyper = HyperParameters { lr, weight_decay: 0.01, ..HyperParameters::default() };
    Scalars::new(optimizer, &hyper, 3, 0.5)
}

fn case(optimizer: Optimizer, elements: usize) -> Case {
    Case {
        optimizer,
        elements,
        first_element: 0,
        segments: vec![Segment { elements, scalars: scalars(optimizer, 1e-2) }],
        gradient: DType::Fp32,
        moments: DType::Fp32,
        weights: Some(DType::Fp16),
        keep: None,
        wild: false,
        seed: 1,
    }
}

/// Sizes at the borders of words, pages and chunks.
const SIZES: [usize; 13] =
    [0, 1, 15, 16, 17, 1023, 1024, 1025, 65_535, 65_536, 65_537, 200_000, 1_000_000];

#[test]
fn every_rule_at_every_size_with_every_format() {
    for optimizer in OPTIMIZERS {
        for (number, elements) in SIZES.into_iter().enumerate() {
            let formats = [DType::Fp32, DType::Fp16, DType::Bf16];
            let mut case = case(optimizer, elements);
            case.gradient = formats[number % 3];
            case.weights =
                [None, Some(DType::Fp16), Some(DType::Bf16), Some(DType::Fp32)][number % 4];
            case.check();
            case.moments = DType::Bf16;
            case.check();
        }
    }
}

#[test]
fn kept_pairs_of_every_density() {
    for (number, keep) in
        [0.0, 1e-6, 0.005, 0.01, 0.025, 0.05, 0.49, 0.9, 1.0].into_iter().enumerate()
    {
        for elements in [1, 17, 1024, 65_537, 300_000] {
            let mut case = case(OPTIMIZERS[number % 4], elements);
            case.keep = Some(keep);
            case.check();
            case.first_element = 65_536 * 2 - 1024;
            case.moments = DType::Bf16;
            case.check();
        }
    }
}

#[test]
fn padding_and_groups_that_end_anywhere() {
    for keep in [None, Some(0.1)] {
        for optimizer in OPTIMIZERS {
            let mut case = case(optimizer, 140_000);
            case.first_element = 1024;
            case.keep = keep;
            case.wild = true;
            case.segments = [1, 31, 33, 64_000, 0, 7, 65_536, 5]
                .into_iter()
                .zip(1..)
                .map(|(elements, lr)| Segment {
                    elements,
                    scalars: scalars(optimizer, f64::from(lr) * 1e-3),
                })
                .collect();
            for moments in [DType::Fp32, DType::Bf16] {
                case.moments = moments;
                case.check();
            }
        }
    }
}

#[test]
fn indices_that_are_wrong_are_found() {
    let elements = 200_000_u64;
    for (list, wrong) in [
        (vec![], None),
        (vec![0], None),
        (vec![199_999], None),
        (vec![200_000], Some(0)),
        ((0..40).chain([39]).collect(), Some(40)),
        ((0..40).chain([5, 41]).collect(), Some(40)),
        ((0..16).chain([15]).collect(), Some(16)),
        ((0..100_000).map(|i| 2 * i).collect(), None),
        ((0..100_001).map(|i| 2 * i).collect(), Some(100_000)),
        (vec![5, u32::MAX], Some(1)),
    ] {
        let mut indices = region(4 * list.len());
        indices.as_u32_mut()[..list.len()].copy_from_slice(&list);
        let mut bounds = region(pair_bounds_bytes(elements) as usize);
        let pairs = list.len() as u64;
        let found = NativeKernels.check_pairs(&indices, pairs, elements, &mut bounds).unwrap();
        assert_eq!(found.first_wrong, wrong);
        let cpu = CpuKernels { isa: Isa::detect(), pool: None };
        let expected = cpu.check_pairs(&indices, pairs, elements, &mut region(4096)).unwrap();
        assert_eq!(found, expected);
        if wrong.is_none() {
            for chunk in 0..=elements.div_ceil(65_536) {
                let below = list.iter().filter(|&&i| u64::from(i) < chunk * 65_536).count();
                assert_eq!(bounds.as_u32()[chunk as usize] as usize, below, "chunk {chunk}");
            }
        }
    }
}

#[test]
fn pairs_that_were_not_checked_are_refused() {
    let mut case = case(Optimizer::Adamw, 1024);
    case.keep = Some(0.1);
    let mut arrays = case.arrays();
    arrays.bounds.as_u32_mut()[1] = 1 << 30;
    let kernels: Arc<dyn Kernels> = Arc::new(NativeKernels);
    let error = kernels
        .update(Launch {
            optimizer: case.optimizer,
            segments: &case.segments,
            first_element: 0,
            elements: 1024,
            gradient: LocalGradient::Pairs {
                indices: &arrays.indices,
                values: &arrays.values,
                bounds: &arrays.bounds,
                pairs: arrays.pairs,
            },
            param: &mut arrays.param,
            exp_avg: arrays.exp_avg.as_mut(),
            exp_avg_sq: arrays.exp_avg_sq.as_mut(),
            moments: DType::Fp32,
            dither: Dither::new(0, 0),
            weights: None,
        })
        .unwrap_err();
    assert!(error.to_string().contains("have not been checked"), "{error}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn random_cases(
        optimizer in prop::sample::select(&OPTIMIZERS[..]),
        elements in 0_usize..150_000,
        first in 0_u64..5000,
        gradient in prop::sample::select(&[DType::Fp32, DType::Fp16, DType::Bf16][..]),
        moments in prop::sample::select(&[DType::Fp32, DType::Bf16][..]),
        weights in prop::option::of(prop::sample::select(&[DType::Fp32, DType::Fp16, DType::Bf16][..])),
        keep in prop::option::of(0.0_f64..1.0),
        cuts in prop::collection::vec(0_usize..40_000, 0..6),
        wild in any::<bool>(),
        seed in any::<u64>(),
    ) {
        let mut left = elements;
        let mut segments = Vec::new();
        for (number, cut) in cuts.into_iter().enumerate() {
            let elements = cut.min(left);
            left -= elements;
            segments.push(Segment { elements, scalars: scalars(optimizer, 1e-3 * (number + 1) as f64) });
        }
        let first_element = first * 32;
        Case { optimizer, elements, first_element, segments, gradient, moments, weights, keep, wild, seed }.check();
    }
}
