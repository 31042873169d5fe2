//! All instruction sets, thread counts and cuts give the bits of one plain loop.

use proptest::prelude::*;

use super::*;
use crate::kernels::run::as_bytes;
use crate::kernels::{bf16_to_f32, checksum, f16_to_f32};
use crate::types::HyperParameters;

const KINDS: [Optimizer; 4] =
    [Optimizer::Adam, Optimizer::Adamw, Optimizer::Adagrad, Optimizer::SgdMomentum];
const SIZES: [usize; 11] = [0, 1, 15, 16, 17, 1023, 1024, 1025, 65_535, 65_536, 65_537];

#[derive(Clone, PartialEq, Debug)]
struct State {
    p: Vec<u32>,
    m: Vec<u32>,
    v: Vec<u32>,
}

/// Values of all magnitudes, some of them special.
fn value(index: usize, salt: u64) -> f32 {
    let mut x = (index as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ salt;
    x ^= x >> 29;
    x = x.wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x ^= x >> 32;
    match x % 97 {
        0 => -0.0,
        1 => 1e-40,
        2 => 0.0,
        3 => f32::MIN_POSITIVE,
        _ => ((x >> 8) as i32 as f32) * 2.0_f32.powi(-31 - (x % 13) as i32),
    }
}

fn arrays(length: usize) -> (Vec<f32>, Vec<f32>, Vec<f32>, Vec<f32>) {
    let make = |salt| (0..length).map(|index| value(index, salt)).collect::<Vec<f32>>();
    let v = make(4).into_iter().map(f32::abs).collect();
    (make(1), make(2), make(3), v)
}

fn hyper(lr: f64, weight_decay: f64) -> HyperParameters {
    HyperParameters { lr, weight_decay, ..HyperParameters::default() }
}

/// The rules again, one element at a time, as the paper's sheet writes them.
fn plain(kind: Optimizer, s: &Scalars, g: f32, p: &mut f32, m: &mut f32, v: &mut f32) {
    match kind {
        Optimizer::Adam | Optimizer::Adamw => {
            let scaled = g * s.unscale;
            let g = if kind == Optimizer::Adam { scaled + s.decay * *p } else { scaled };
            let square = g * g;
            let fresh = square * s.one_minus_beta2;
            *v = fresh + *v * s.beta2;
            *m = g * s.one_minus_beta1 + *m * s.beta1;
            let root = v.sqrt() * s.bias_root;
            let step = *m / (root + s.eps);
            *p = s.omega * *p + step * s.alpha;
        }
        Optimizer::Adagrad => {
            let g0 = g * s.unscale;
            let g1 = g0 + s.decay * *p;
            *v += g1 * g1;
            *p += (g0 / (v.sqrt() + s.eps)) * s.alpha;
        }
        Optimizer::SgdMomentum => {
            let g = g * s.unscale + s.decay * *p;
            *m = s.one_minus_beta1 * g + s.beta1 * *m;
            *p += s.alpha * *m;
        }
    }
}

fn bits(data: &[f32]) -> Vec<u32> {
    data.iter().map(|value| value.to_bits()).collect()
}

fn expected(kind: Optimizer, length: usize, segments: &[Segment]) -> State {
    let (g, mut p, mut m, mut v) = arrays(length);
    let mut start = 0;
    for segment in segments {
        for i in start..start + segment.elements {
            plain(kind, &segment.scalars, g[i], &mut p[i], &mut m[i], &mut v[i]);
        }
        start += segment.elements;
    }
    State { p: bits(&p), m: bits(&m), v: bits(&v) }
}

fn keeps(kind: Optimizer) -> (bool, bool) {
    match kind {
        Optimizer::Adagrad => (false, true),
        Optimizer::SgdMomentum => (true, false),
        _ => (true, true),
    }
}

fn run(
    isa: Isa,
    kind: Optimizer,
    length: usize,
    segments: &[Segment],
    threads: usize,
) -> (State, UpdateSums) {
    let (g, mut p, mut m, mut v) = arrays(length);
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
    let (with_m, with_v) = keeps(kind);
    let moments =
        Moments::Fp32 { m: with_m.then_some(&mut m[..]), v: with_v.then_some(&mut v[..]) };
    let mut copy = vec![0; length];
    let out = WeightsOut::Bf16(&mut copy);
    let g = GradientRef::Fp32(&g);
    let sums = update(Some(&pool), isa, kind, segments, g, &mut p, moments, out, 0).unwrap();
    let mut again = vec![0; length];
    f32_to_bf16(&p, &mut again);
    assert_eq!(copy, again);
    assert_eq!(sums.param_out, checksum(isa, as_bytes(&p), 0));
    (State { p: bits(&p), m: bits(&m), v: bits(&v) }, sums)
}

#[test]
fn every_isa_and_thread_count_gives_the_bits_of_the_plain_rule() {
    for kind in KINDS {
        for length in SIZES {
            let scalars = Scalars::new(kind, &hyper(1e-3, 0.01), 3, 0.25);
            let segments = [Segment { elements: length, scalars }];
            let expected = expected(kind, length, &segments);
            let (_, sums) = run(Isa::Scalar, kind, length, &segments, 1);
            for &isa in Isa::available() {
                for threads in [1, 3] {
                    let (state, same) = run(isa, kind, length, &segments, threads);
                    assert!(
                        state == expected,
                        "{kind:?} {isa:?} {length} elements, {threads} threads"
                    );
                    assert_eq!(same, sums);
                }
            }
        }
    }
}

/// The same arrays with moments in bfloat16, at element `origin` of the flat vector: the plain rule, its moments rounded by
/// the element's random bits, and what the kernel makes of them.
fn narrow(
    isa: Isa,
    kind: Optimizer,
    length: usize,
    cuts: &[usize],
    threads: usize,
    origin: u64,
) -> (State, State, UpdateSums) {
    let scalars = Scalars::new(kind, &hyper(1e-3, 0.01), 3, 0.25);
    let dither = Dither::new(3, origin);
    let (g, mut p, m, v) = arrays(length);
    let (mut m_bits, mut v_bits) = (vec![0; length], vec![0; length]);
    f32_to_bf16(&m, &mut m_bits);
    f32_to_bf16(&v, &mut v_bits);
    let (with_m, with_v) = keeps(kind);
    let mut plain_state = State { p: Vec::new(), m: Vec::new(), v: Vec::new() };
    for i in 0..length {
        let wide = |bits: u16| f32::from_bits(u32::from(bits) << 16);
        let (mut p, mut m, mut v) = (p[i], wide(m_bits[i]), wide(v_bits[i]));
        plain(kind, &scalars, g[i], &mut p, &mut m, &mut v);
        let round = |value: f32, random: u32| (value.to_bits() + (random & 0xffff)) >> 16;
        plain_state.p.push(p.to_bits());
        let (m, v) = (round(m, dither.bits(i as u64)), round(v, dither.bits(i as u64) >> 16));
        plain_state.m.push(if with_m { m } else { m_bits[i].into() });
        plain_state.v.push(if with_v { v } else { v_bits[i].into() });
    }
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
    let mut sums = UpdateSums::default();
    let edges: Vec<usize> = [&[0], cuts, &[length]].concat();
    for pair in edges.windows(2) {
        let run = pair[0]..pair[1];
        let moments = Moments::Bf16 {
            m: with_m.then_some(&mut m_bits[run.clone()]),
            v: with_v.then_some(&mut v_bits[run.clone()]),
            dither,
        };
        let (g, first) = (GradientRef::Fp32(&g[run.clone()]), run.start as u64);
        let segments = [Segment { elements: run.len(), scalars }];
        let (p, out) = (&mut p[run], WeightsOut::None);
        let piece = update(Some(&pool), isa, kind, &segments, g, p, moments, out, first).unwrap();
        sums.add(&piece);
    }
    let sum = |bits: &[u16], kept: bool| if kept { checksum(isa, as_bytes(bits), 0) } else { 0 };
    assert_eq!((sums.m_out, sums.v_out), (sum(&m_bits, with_m), sum(&v_bits, with_v)));
    let widen = |bits: &[u16]| bits.iter().map(|&bits| bits.into()).collect();
    let state = State { p: bits(&p), m: widen(&m_bits), v: widen(&v_bits) };
    (plain_state, state, sums)
}

#[test]
fn narrow_moments_are_rounded_alike_by_every_isa_and_thread_count() {
    for kind in KINDS {
        for length in SIZES {
            let (expected, _, sums) = narrow(Isa::Scalar, kind, length, &[], 1, 77);
            for &isa in Isa::available() {
                for threads in [1, 3] {
                    let (_, state, same) = narrow(isa, kind, length, &[], threads, 77);
                    assert!(state == expected, "{kind:?} {isa:?} {length}, {threads} threads");
                    assert_eq!(same, sums);
                }
            }
        }
    }
}

#[test]
fn narrow_moments_keep_nan_infinity_and_sign() {
    let length = boundaries().len();
    let h = HyperParameters { lr: 0.0, beta1: 1.0, beta2: 1.0, ..HyperParameters::default() };
    let scalars = Scalars::new(Optimizer::SgdMomentum, &h, 1, 1.0);
    let segments = [Segment { elements: length, scalars }];
    let dither = Dither::new(1, 0);
    let kept = |isa| {
        let mut m = vec![0; length];
        f32_to_bf16(&boundaries(), &mut m);
        let moments = Moments::Bf16 { m: Some(&mut m), v: None, dither };
        let (g, mut p) = (vec![0.0; length], vec![0.0; length]);
        let (kind, out) = (Optimizer::SgdMomentum, WeightsOut::None);
        let g = GradientRef::Fp32(&g);
        update(None, isa, kind, &segments, g, &mut p, moments, out, 0).unwrap();
        m
    };
    let mut before = vec![0; length];
    f32_to_bf16(&boundaries(), &mut before);
    for &isa in Isa::available() {
        // What a bfloat16 holds needs no rounding: 0·(1-β) is added to it, which may turn -0 into 0.
        for (&before, after) in before.iter().zip(kept(isa)) {
            // There is one NaN.
            let nan = half::bf16::from_bits(before).is_nan();
            let before = if nan { 0x7fc0 } else { before };
            assert!(before == after || before & 0x7fff == 0 && after == 0, "{isa:?} {before:x}");
        }
    }
}

/// A gradient that is not a number, with all lower bits set: whatever is added to them would carry into the exponent.
#[test]
fn a_moment_that_is_not_a_number_stays_so_whatever_the_random_bits() {
    const LENGTH: usize = 4096;
    for sign in [0, 1 << 31] {
        let g = vec![f32::from_bits(0x7fff_ffff | sign); LENGTH];
        for &isa in Isa::available() {
            let (mut p, mut m, mut v) = (vec![0.0; LENGTH], vec![0; LENGTH], vec![0; LENGTH]);
            let scalars = Scalars::new(Optimizer::Adamw, &hyper(1e-3, 0.0), 1, 1.0);
            let dither = Dither::new(1, 0);
            let moments = Moments::Bf16 { m: Some(&mut m), v: Some(&mut v), dither };
            adamw(isa, scalars, GradientRef::Fp32(&g), &mut p, moments).unwrap();
            let all = m.iter().chain(&v);
            assert!(all.clone().all(|&bits| half::bf16::from_bits(bits).is_nan()), "{isa:?}");
        }
    }
    assert!((0..4096).any(|i| Dither::new(1, 0).bits(i) & 0xffff > 0));
    // The scalar the vectors are compared with.
    for random in [0, 1, 0xffff, u32::MAX] {
        for bits in [0x7fff_ffff, 0xffff_ffff, 0x7f80_0001] {
            let rounded = crate::kernels::lanes::bf16_dithered(f32::from_bits(bits), random);
            assert!(half::bf16::from_bits(rounded).is_nan(), "{bits:x} {random:x}");
        }
    }
}

/// Second moments that fall by a thousandth each step: rounded to the nearest, they would never change.
#[test]
fn stochastic_rounding_follows_changes_below_the_last_place() {
    const LENGTH: usize = 4096;
    let mut v = vec![half::bf16::ONE.to_bits(); LENGTH];
    let (mut p, mut m) = (vec![0.0; LENGTH], vec![0; LENGTH]);
    assert_eq!(half::bf16::from_f32(0.999).to_f32(), 1.0);
    for step in 1..=1000 {
        let scalars = Scalars::new(Optimizer::Adamw, &hyper(0.0, 0.0), step, 1.0);
        let dither = Dither::new(step, 0);
        let moments = Moments::Bf16 { m: Some(&mut m), v: Some(&mut v), dither };
        let g = vec![0.0; LENGTH];
        adamw(Isa::detect(), scalars, GradientRef::Fp32(&g), &mut p, moments).unwrap();
    }
    let wide: Vec<f64> = v.iter().map(|&bits| half::bf16::from_bits(bits).to_f64()).collect();
    let mean = wide.iter().sum::<f64>() / LENGTH as f64;
    let spread = wide.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / LENGTH as f64;
    let exact = 0.999_f64.powi(1000);
    assert!((mean / exact - 1.0).abs() < 0.01, "{mean} {exact}");
    assert!(spread.sqrt() / exact < 0.08, "{}", spread.sqrt() / exact);
}

/// AdamW on all elements with one set of scalars.
fn adamw(
    isa: Isa,
    scalars: Scalars,
    g: GradientRef,
    p: &mut [f32],
    moments: Moments,
) -> Result<UpdateSums> {
    let segments = [Segment { elements: p.len(), scalars }];
    update(None, isa, Optimizer::Adamw, &segments, g, p, moments, WeightsOut::None, 0)
}

#[test]
fn arrays_of_different_length_are_refused() {
    let s = Scalars::new(Optimizer::Adamw, &hyper(1e-3, 0.0), 1, 1.0);
    let (mut p, mut m) = ([0.0; 4], [0.0; 4]);
    let moments = Moments::Fp32 { m: Some(&mut m), v: None };
    let g = GradientRef::Fp32(&[0.0; 4]);
    assert!(adamw(Isa::Scalar, s, g, &mut p, moments).is_err());
}

#[test]
fn a_moment_that_the_rule_does_not_keep_is_refused() {
    let scalars = Scalars::new(Optimizer::SgdMomentum, &hyper(1e-3, 0.0), 1, 1.0);
    let (mut p, mut m, mut v) = ([0.0; 4], [0.0; 4], [0.0; 4]);
    let moments = Moments::Fp32 { m: Some(&mut m), v: Some(&mut v) };
    let g = GradientRef::Fp32(&[0.0; 4]);
    let segments = [Segment { elements: 4, scalars }];
    let kind = Optimizer::SgdMomentum;
    let out = WeightsOut::None;
    assert!(update(None, Isa::Scalar, kind, &segments, g, &mut p, moments, out, 0).is_err());
}

#[test]
fn sixteen_bit_gradients_equal_their_widened_values() {
    let (wide, _, _, _) = arrays(3000);
    for half in [true, false] {
        let mut narrow = vec![0; wide.len()];
        let mut back = vec![0.0; wide.len()];
        if half {
            f32_to_f16(&wide, &mut narrow);
            f16_to_f32(&narrow, &mut back);
        } else {
            f32_to_bf16(&wide, &mut narrow);
            bf16_to_f32(&narrow, &mut back);
        }
        let scalars = Scalars::new(Optimizer::Adamw, &hyper(1e-3, 0.01), 1, 1.0);
        let update_with = |g: GradientRef| {
            let (_, mut p, mut m, mut v) = arrays(3000);
            let moments = Moments::Fp32 { m: Some(&mut m), v: Some(&mut v) };
            adamw(Isa::detect(), scalars, g, &mut p, moments).unwrap();
            bits(&p)
        };
        let narrow = if half { GradientRef::Fp16(&narrow) } else { GradientRef::Bf16(&narrow) };
        assert_eq!(update_with(narrow), update_with(GradientRef::Fp32(&back)));
    }
}

/// The largest step over `lr` times the bias corrections that a row of gradients causes.
fn largest_step(gradients: impl Iterator<Item = f32>) -> f64 {
    let h = hyper(1e-2, 0.0);
    let (mut p, mut m, mut v) = ([0.0_f32], [0.0_f32], [0.0_f32]);
    let mut largest: f64 = 0.0;
    for (g, step) in gradients.zip(1..) {
        let s = Scalars::new(Optimizer::Adamw, &h, step, 1.0);
        let before = p[0];
        let moments = Moments::Fp32 { m: Some(&mut m), v: Some(&mut v) };
        adamw(Isa::detect(), s, GradientRef::Fp32(&[g]), &mut p, moments).unwrap();
        let bias = (1.0 - h.beta2.powf(step as f64)).sqrt() / (1.0 - h.beta1.powf(step as f64));
        largest = largest.max(f64::from((p[0] - before).abs()) / (h.lr * bias));
    }
    largest
}

#[test]
fn an_adam_step_is_bounded_whatever_the_gradients_were() {
    let h = hyper(1e-2, 0.0);
    // Rare gradients, as selection leaves them: one alone moves a weight by at most this.
    let alone = (1.0 - h.beta1) / (1.0 - h.beta2).sqrt();
    assert!(largest_step((1..200).map(|i| if i % 40 == 0 { 1e3 } else { 0.0 })) <= alone * 1.001);
    // Several in a row after silence move it further; by the inequality of Cauchy and Schwarz never beyond this.
    let bound = alone / (1.0 - h.beta1 * h.beta1 / h.beta2).sqrt();
    let burst = largest_step((0..2000).map(|i| if i < 1900 { 0.0 } else { 1.0 }));
    assert!(burst > 1.5 * alone && burst <= bound * 1.001, "{burst} {alone} {bound}");
    let growing = largest_step((0..2000).map(|i| 1.05_f32.powi(i - 2000)));
    assert!(growing <= bound * 1.001, "{growing} {bound}");
}

/// Every sign and exponent, with significands around the rounding boundaries of the 16-bit formats.
fn boundaries() -> Vec<f32> {
    let significands = (0..23)
        .flat_map(|bit| [(1_u32 << bit) - 1, 1 << bit, (1 << bit) + 1, 0x7f_ffff ^ (1 << bit)]);
    let significands: Vec<u32> = significands.chain([0, 0x1000, 0x3000, 0x8000, 0x18000]).collect();
    let with = |top: u32| significands.iter().map(move |low| f32::from_bits(top << 23 | low));
    (0..512).flat_map(with).collect()
}

#[test]
fn every_isa_rounds_weights_alike_at_every_boundary_and_for_nan() {
    let scalars = Scalars::new(Optimizer::Adamw, &hyper(0.0, 0.0), 1, 1.0);
    let g = vec![0.0; boundaries().len()];
    let segments = [Segment { elements: g.len(), scalars }];
    let copy = |isa, half: bool| {
        let (mut p, mut m, mut v) = (boundaries(), g.clone(), g.clone());
        let mut bits = vec![0; g.len()];
        let moments = Moments::Fp32 { m: Some(&mut m), v: Some(&mut v) };
        let out = if half { WeightsOut::Fp16(&mut bits) } else { WeightsOut::Bf16(&mut bits) };
        let g = GradientRef::Fp32(&g);
        update(None, isa, Optimizer::Adamw, &segments, g, &mut p, moments, out, 0).unwrap();
        bits
    };
    for half in [true, false] {
        let expected: Vec<u16> = boundaries()
            .iter()
            .map(|&p| {
                // There is one NaN.
                let p = if p.is_nan() { f32::from_bits(0x7fc0_0000) } else { p };
                if half {
                    half::f16::from_f32(p).to_bits()
                } else {
                    half::bf16::from_f32(p).to_bits()
                }
            })
            .collect();
        for &isa in Isa::available() {
            assert!(copy(isa, half) == expected, "{isa:?}, fp16: {half}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]
    #[test]
    fn sums_of_16_bit_gradients_add_up_wherever_they_are_cut(length in 1_usize..3000, cut in any::<prop::sample::Index>()) {
        let cut = cut.index(length);
        let (wide, _, _, _) = arrays(length);
        let mut g = vec![0; length];
        f32_to_bf16(&wide, &mut g);
        let scalars = Scalars::new(Optimizer::Adamw, &hyper(1e-3, 0.1), 1, 1.0);
        let whole = checksum(Isa::Scalar, as_bytes(&g), 0);
        for &isa in Isa::available() {
            // All updated, then all padding.
            for covered in [true, false] {
                let (_, mut p, mut m, mut v) = arrays(length);
                let mut total = UpdateSums::default();
                for (from, to) in [(0, cut), (cut, length)] {
                    let moments = Moments::Fp32 { m: Some(&mut m[from..to]), v: Some(&mut v[from..to]) };
                    let elements = if covered { to - from } else { 0 };
                    let g = GradientRef::Bf16(&g[from..to]);
                    total.add(&update(
                        None, isa, Optimizer::Adamw, &[Segment { elements, scalars }], g, &mut p[from..to], moments,
                        WeightsOut::None, from as u64,
                    ).unwrap());
                }
                prop_assert_eq!(total.gradient_in, whole);
                prop_assert_eq!(total.param_out, checksum(isa, as_bytes(&p), 0));
            }
        }
    }

    #[test]
    fn narrow_moments_are_the_same_wherever_they_are_cut_and_wherever_they_lie(
        length in 1_usize..3000, cut in any::<prop::sample::Index>(), origin in any::<u64>(),
        kind in prop::sample::select(KINDS.to_vec()),
    ) {
        let cut = cut.index(length);
        let (expected, whole, sums) = narrow(Isa::Scalar, kind, length, &[], 1, origin);
        prop_assert!(whole == expected);
        for &isa in Isa::available() {
            let (_, state, same) = narrow(isa, kind, length, &[cut], 1, origin);
            prop_assert!(state == expected);
            prop_assert_eq!(same, sums);
        }
    }

    #[test]
    fn segments_have_their_own_scalars_and_padding_is_left_alone(
        lengths in prop::collection::vec(0_usize..4000, 1..4), padding in 0_usize..3000,
        kind in prop::sample::select(KINDS.to_vec()),
    ) {
        let segments: Vec<Segment> = lengths.iter().enumerate().map(|(index, &elements)| Segment {
            elements,
            scalars: Scalars::new(kind, &hyper(1e-3 * (index + 1) as f64, 0.1 * index as f64), 2, 0.5),
        }).collect();
        let length = lengths.iter().sum::<usize>() + padding;
        let (state, _) = run(Isa::detect(), kind, length, &segments, 2);
        prop_assert!(state == expected(kind, length, &segments));
    }

    #[test]
    fn sums_of_pieces_add_up_to_the_sums_of_the_whole(length in 1_usize..9000, cut in any::<prop::sample::Index>()) {
        let kind = Optimizer::Adamw;
        let cut = cut.index(length);
        let scalars = Scalars::new(kind, &hyper(1e-3, 0.1), 1, 1.0);
        let (whole, sums) = run(Isa::detect(), kind, length, &[Segment { elements: length, scalars }], 1);
        let (g, mut p, mut m, mut v) = arrays(length);
        let mut total = UpdateSums::default();
        for (from, to) in [(0, cut), (cut, length)] {
            let moments = Moments::Fp32 { m: Some(&mut m[from..to]), v: Some(&mut v[from..to]) };
            let segments = [Segment { elements: to - from, scalars }];
            let g = GradientRef::Fp32(&g[from..to]);
            total.add(&update(None, Isa::detect(), kind, &segments, g, &mut p[from..to], moments, WeightsOut::None, from as u64).unwrap());
        }
        prop_assert_eq!(total, sums);
        prop_assert_eq!(bits(&p), whole.p);
    }
}
