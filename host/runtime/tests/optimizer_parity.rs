//! Every instruction set and number of threads gives the bits of scalar code on one thread, in all formats.

use nearfield_runtime::kernels::{
    GradientRef, Isa, Moments, Scalars, Segment, UpdateSums, WeightsOut, checksum, f32_to_bf16,
    f32_to_f16, update,
};
use nearfield_runtime::types::{DType, HyperParameters, Optimizer};

const KINDS: [Optimizer; 4] =
    [Optimizer::Adam, Optimizer::Adamw, Optimizer::Adagrad, Optimizer::SgdMomentum];
const DTYPES: [DType; 3] = [DType::Fp32, DType::Fp16, DType::Bf16];
const SIZES: [usize; 11] = [0, 1, 15, 16, 17, 1023, 1024, 1025, 65_535, 65_536, 65_537];
/// Where the arrays lie in their subgroup.
const FIRST_ELEMENT: u64 = 6;

/// Values of many magnitudes; the last elements are zero, as padding is.
fn values(length: usize, salt: u32) -> Vec<f32> {
    (0..length as u32)
        .map(|index| {
            let mixed = index.wrapping_add(salt).wrapping_mul(0x9e37_79b1) ^ salt.rotate_left(9);
            let scale = 2.0_f32.powi(-(mixed as i32 & 15));
            if index + 5 >= length as u32 { 0.0 } else { (mixed as i32 as f32) * scale / 2e9 }
        })
        .collect()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

fn narrow(values: &[f32], dtype: DType) -> Vec<u16> {
    let mut out = vec![0; values.len()];
    match dtype {
        DType::Fp32 => {}
        DType::Fp16 => f32_to_f16(values, &mut out),
        DType::Bf16 => f32_to_bf16(values, &mut out),
    }
    out
}

/// All that an update leaves behind.
#[derive(PartialEq)]
struct Outcome {
    state: [Vec<u32>; 3],
    wide: Vec<u32>,
    narrow: Vec<u16>,
    sums: UpdateSums,
}

fn outcome(
    pool: Option<&rayon::ThreadPool>,
    isa: Isa,
    kind: Optimizer,
    gradient: DType,
    weights: DType,
    length: usize,
) -> Outcome {
    let g = values(length, 1);
    let g16 = narrow(&g, gradient);
    let (mut p, mut m) = (values(length, 2), values(length, 3));
    let mut v: Vec<f32> = values(length, 4).into_iter().map(f32::abs).collect();
    // Two groups that meet at an odd element, and padding of up to five elements.
    let covered = length.saturating_sub(5);
    let first = (covered / 3) | usize::from(covered > 0);
    let scalars = |weight_decay| {
        let hyper = HyperParameters { weight_decay, ..HyperParameters::default() };
        Scalars::new(kind, &hyper, 3, 0.5)
    };
    let segments = [
        Segment { elements: first, scalars: scalars(0.1) },
        Segment { elements: covered - first, scalars: scalars(0.0) },
    ];
    let (with_m, with_v) = (kind != Optimizer::Adagrad, kind != Optimizer::SgdMomentum);
    let moments =
        Moments::Fp32 { m: with_m.then_some(&mut m[..]), v: with_v.then_some(&mut v[..]) };
    let (mut wide, mut copy) = (vec![9.0; length], vec![9; length]);
    let out = match weights {
        DType::Fp32 => WeightsOut::Fp32(&mut wide),
        DType::Fp16 => WeightsOut::Fp16(&mut copy),
        DType::Bf16 => WeightsOut::Bf16(&mut copy),
    };
    let g = match gradient {
        DType::Fp32 => GradientRef::Fp32(&g),
        DType::Fp16 => GradientRef::Fp16(&g16),
        DType::Bf16 => GradientRef::Bf16(&g16),
    };
    let sums = update(pool, isa, kind, &segments, g, &mut p, moments, out, FIRST_ELEMENT)
        .expect("the arrays fit");
    match weights {
        DType::Fp32 => assert_eq!(bits(&wide), bits(&p)),
        dtype => assert_eq!(copy, narrow(&p, dtype)),
    }
    let bytes: Vec<u8> = match gradient {
        DType::Fp32 => values(length, 1).iter().flat_map(|value| value.to_le_bytes()).collect(),
        _ => g16.iter().flat_map(|value| value.to_le_bytes()).collect(),
    };
    let first_word = FIRST_ELEMENT * gradient.bytes() / 4;
    assert_eq!(sums.gradient_in, checksum(Isa::Scalar, &bytes, first_word));
    Outcome { state: [bits(&p), bits(&m), bits(&v)], wide: bits(&wide), narrow: copy, sums }
}

#[test]
fn every_isa_thread_count_rule_and_format_gives_the_bits_of_scalar_code() {
    let pools: Vec<_> = [1, 2, 3]
        .into_iter()
        .map(|threads| rayon::ThreadPoolBuilder::new().num_threads(threads).build())
        .collect::<Result<_, _>>()
        .expect("the system has threads to give");
    for kind in KINDS {
        for gradient in DTYPES {
            for weights in DTYPES {
                for length in SIZES {
                    let scalar = outcome(None, Isa::Scalar, kind, gradient, weights, length);
                    for &isa in Isa::available() {
                        for pool in &pools {
                            let same = outcome(Some(pool), isa, kind, gradient, weights, length);
                            assert!(
                                same == scalar,
                                "{kind:?}, gradient {gradient:?}, weights {weights:?}, {length} \
                                 elements, {isa:?}, {} threads",
                                pool.current_num_threads()
                            );
                        }
                    }
                }
            }
        }
    }
}
