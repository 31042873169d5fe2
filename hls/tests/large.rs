//! Subgroups whose arrays are longer than 2^31 bytes, and indices up to the last.

#![allow(clippy::unwrap_used)] // A test fails by panicking.

use nearfield_hls::interface::{Kind, UPDATE, UPDATE_TOPK};
use nearfield_hls::launch::{RESULT_BYTES, sums};
use nearfield_hls::{NativeKernels, native};
use nearfield_runtime::device::{Kernels, pair_bounds_bytes};
use nearfield_runtime::kernels::{Scalars, checksum};
use nearfield_runtime::memory::{Arena, Region};
use nearfield_runtime::types::{HyperParameters, Optimizer};

/// 2.3 GB of fp32, of which only the end is touched.
const ELEMENTS: u64 = (1 << 29) + (1 << 25) + 96;
const TOUCHED: u64 = 70_016;

#[repr(C, align(64))]
struct ResultWord([u8; RESULT_BYTES]);

/// Memory of which the system gives only the pages that are touched.
struct Sparse {
    words: Vec<u32>,
    first: usize,
}

impl Sparse {
    fn new(bytes: u64) -> Self {
        let words = vec![0_u32; bytes as usize / 4 + 32];
        let first = words.as_ptr().align_offset(64);
        Self { words, first }
    }

    fn address(&mut self) -> u64 {
        self.words[self.first..].as_mut_ptr() as u64
    }

    fn words(&mut self) -> &mut [u32] {
        &mut self.words[self.first..]
    }
}

fn region(bytes: u64) -> Region {
    let bytes = bytes.next_multiple_of(4096);
    Arena::new("test", bytes, false).unwrap().allocate(bytes).unwrap()
}

/// Arrays that begin `first` elements into the subgroup: the whole of it, or the end alone.
fn run(first: u64, pairs: Option<&[u32]>) -> (Vec<u32>, [u64; 2]) {
    let length = ELEMENTS - first;
    let [mut gradient, mut param, mut exp_avg, mut exp_avg_sq, mut weights] =
        std::array::from_fn(|_| Sparse::new(4 * length));
    let start = length - TOUCHED;
    for place in start..length {
        let value = (place - start) as f32 * 1e-3 - 30.0;
        param.words()[place as usize] = value.to_bits();
        gradient.words()[place as usize] = (-value * 0.01).to_bits();
    }
    let mut bounds = region(pair_bounds_bytes(ELEMENTS));
    let (mut indices, mut values) = (region(4 * TOUCHED), region(4 * TOUCHED));
    if let Some(pairs) = pairs {
        for (place, &index) in pairs.iter().enumerate() {
            indices.as_u32_mut()[place] = index;
            values.as_f32_mut()[place] = place as f32 - 7.0;
        }
        let count = pairs.len() as u64;
        let found = NativeKernels.check_pairs(&indices, count, ELEMENTS, &mut bounds).unwrap();
        assert_eq!(found.first_wrong, None);
    }
    let kind = Optimizer::Adamw;
    let s = Scalars::new(kind, &HyperParameters::default(), 1, 1.0);
    let mut result = ResultWord([0; RESULT_BYTES]);
    let kernel = if pairs.is_some() { &UPDATE_TOPK } else { &UPDATE };
    let slots: Vec<u64> = kernel
        .arguments
        .iter()
        .map(|argument| match argument.name {
            "gradient" => gradient.address(),
            "indices" => indices.as_ptr() as u64,
            "values" => values.as_ptr() as u64,
            "bounds" => bounds.as_ptr() as u64,
            "param_in" | "param_out" => param.address(),
            "exp_avg_in" | "exp_avg_out" => exp_avg.address(),
            "exp_avg_sq_in" | "exp_avg_sq_out" => exp_avg_sq.address(),
            "weights_out" => weights.address(),
            "result" => (&raw mut result) as u64,
            "start" | "begin" => start,
            "elements" => TOUCHED,
            "end" => length,
            "first_element" => first,
            "rule" | "gradient_format" | "moment_format" => 1,
            "weights_format" => 2,
            "unscale" => u64::from(s.unscale.to_bits()),
            "beta1" => u64::from(s.beta1.to_bits()),
            "one_minus_beta1" => u64::from(s.one_minus_beta1.to_bits()),
            "beta2" => u64::from(s.beta2.to_bits()),
            "one_minus_beta2" => u64::from(s.one_minus_beta2.to_bits()),
            "bias_root" => u64::from(s.bias_root.to_bits()),
            "alpha" => u64::from(s.alpha.to_bits()),
            "eps" => u64::from(s.eps.to_bits()),
            "omega" => u64::from(s.omega.to_bits()),
            other => {
                assert!(matches!(other, "origin" | "key0" | "key1" | "decay"), "{other}");
                assert!(
                    !argument.kind.is_memory() && argument.kind != Kind::U64 || other == "origin"
                );
                0
            }
        })
        .collect();
    // SAFETY: all memory that the launch touches lies in the regions above, which nothing else uses.
    unsafe { native::run(kernel, &slots).unwrap() };
    let end = &param.words()[start as usize..length as usize];
    let (sums, counted) = sums(&result.0);
    assert_eq!(counted, pairs.map_or(TOUCHED, |pairs| pairs.len() as u64));
    let bytes: Vec<u8> = end.iter().flat_map(|word| word.to_le_bytes()).collect();
    let isa = nearfield_runtime::kernels::Isa::detect();
    assert_eq!(sums.param_out, checksum(isa, &bytes, ELEMENTS - TOUCHED));
    (end.to_vec(), [sums.gradient_in, sums.param_in])
}

#[test]
fn the_end_of_a_long_subgroup_is_updated_as_if_it_stood_alone() {
    // Of the whole launch, what lies before its start is not touched.
    assert_eq!(run(0, None), run(ELEMENTS - TOUCHED, None));
    let first = (ELEMENTS - TOUCHED) as u32;
    let pairs = [first, first + 5, first + 40_000, first + 40_001, ELEMENTS as u32 - 1];
    let (whole, alone) = (run(0, Some(&pairs)), run(ELEMENTS - TOUCHED, Some(&pairs)));
    assert_eq!(whole, alone);
    assert_ne!(whole.0[5], run(ELEMENTS - TOUCHED, None).0[5]);
}
