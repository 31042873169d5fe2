//! One pass of an update rule over its arrays, with the checksums of what it reads and writes on the way.

use super::dither::Dither;
use super::isa::Isa;
use super::lanes::Lanes;
use super::moment::Moment;
use super::rules::{Adagrad, AdamL2, Adamw, Broadcast, Rule, SgdMomentum, State};
use super::run::{GradientRef, Run, WeightsOut};
use super::scalars::Scalars;
use super::update::UpdateSums;
use crate::types::Optimizer;

/// How many elements ahead the arrays are asked for. Division and root fill the processor's window of
/// instructions, so it would not reach far enough ahead by itself. 1 KiB to 4 KiB are equally good as measured.
const PREFETCH: usize = 512;

/// Updates the arrays of `run`, which lie from `first_element` on in their subgroup.
pub(super) fn pass<M: Moment>(
    isa: Isa,
    kind: Optimizer,
    s: &Scalars,
    run: Run<M>,
    dither: &Dither,
    first_element: u64,
) -> UpdateSums {
    match kind {
        Optimizer::Adamw => by_isa::<Adamw, M>(isa, s, run, dither, first_element),
        Optimizer::Adam => by_isa::<AdamL2, M>(isa, s, run, dither, first_element),
        Optimizer::Adagrad => by_isa::<Adagrad, M>(isa, s, run, dither, first_element),
        Optimizer::SgdMomentum => by_isa::<SgdMomentum, M>(isa, s, run, dither, first_element),
    }
}

fn by_isa<R: Rule, M: Moment>(
    isa: Isa,
    s: &Scalars,
    run: Run<M>,
    dither: &Dither,
    first_element: u64,
) -> UpdateSums {
    match isa.checked() {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: `checked` returns only what this processor has.
        Isa::Avx512 => unsafe { avx512::<R, M>(s, run, dither, first_element) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above.
        Isa::Avx2 => unsafe { avx2::<R, M>(s, run, dither, first_element) },
        _ => whole_and_rest::<f32, R, M>(s, run, dither, first_element),
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,f16c")]
fn avx2<R: Rule, M: Moment>(
    s: &Scalars,
    run: Run<M>,
    dither: &Dither,
    first_element: u64,
) -> UpdateSums {
    whole_and_rest::<std::arch::x86_64::__m256, R, M>(s, run, dither, first_element)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,f16c,avx512f,avx512bw,avx512dq,avx512vl")]
fn avx512<R: Rule, M: Moment>(
    s: &Scalars,
    run: Run<M>,
    dither: &Dither,
    first_element: u64,
) -> UpdateSums {
    whole_and_rest::<std::arch::x86_64::__m512, R, M>(s, run, dither, first_element)
}

/// Whole vectors, and before and after them the elements that fill none.
#[inline(always)]
fn whole_and_rest<L: Lanes, R: Rule, M: Moment>(
    s: &Scalars,
    run: Run<M>,
    dither: &Dither,
    first_element: u64,
) -> UpdateSums {
    // Two 16-bit elements share a word of the checksum, and vectors hold whole words.
    let odd = (run.g.width() == 2 || M::NARROW) && first_element % 2 == 1;
    let head = if L::WIDTH > 1 && odd { run.len().min(1) } else { 0 };
    let (first, run) = run.split_at(head);
    let whole = run.len() - run.len() % L::WIDTH;
    let (middle, rest) = run.split_at(whole);
    let mut element = first_element;
    let mut sums = UpdateSums::default();
    if head > 0 {
        sums.add(&elements::<f32, R, M>(s, first, dither, element));
        element = element.wrapping_add(head as u64);
    }
    sums.add(&elements::<L, R, M>(s, middle, dither, element));
    if rest.len() > 0 {
        sums.add(&elements::<f32, R, M>(s, rest, dither, element.wrapping_add(whole as u64)));
    }
    sums
}

/// The loop. The arrays' length is a multiple of the lanes.
#[inline(always)]
fn elements<L: Lanes, R: Rule, M: Moment>(
    s: &Scalars,
    run: Run<M>,
    dither: &Dither,
    first_element: u64,
) -> UpdateSums {
    let length = run.len();
    let Run { g, p, m, v, mut out } = run;
    assert!(
        length.is_multiple_of(L::WIDTH)
            && g.len() == length
            && (!R::M || m.len() == length)
            && (!R::V || v.len() == length)
            && out.len().is_none_or(|elements| elements == length),
        "the arrays of a pass are equally long"
    );
    let s = Broadcast::<L>::new(s);
    let mut weights = L::weights(first_element);
    let mut half_weights =
        if g.width() == 2 || M::NARROW { L::half_weights(first_element) } else { L::zero_sum() };
    let mut counters = L::counters(dither.counter(first_element));
    let mut gradient_in = L::zero_sum();
    let (mut p_in, mut m_in, mut v_in) = (L::zero_sum(), L::zero_sum(), L::zero_sum());
    let (mut p_out, mut m_out, mut v_out) = (L::zero_sum(), L::zero_sum(), L::zero_sum());
    let mut at = 0;
    while at < length {
        let ahead = at + PREFETCH;
        match g {
            GradientRef::Fp32(g) => L::prefetch(g.as_ptr().wrapping_add(ahead)),
            GradientRef::Fp16(g) | GradientRef::Bf16(g) => {
                L::prefetch(g.as_ptr().wrapping_add(ahead));
            }
        }
        L::prefetch(p.as_ptr().wrapping_add(ahead));
        if R::M {
            L::prefetch(m.as_ptr().wrapping_add(ahead));
        }
        if R::V {
            L::prefetch(v.as_ptr().wrapping_add(ahead));
        }
        // SAFETY: `at + WIDTH` is at most the length of every array that is used, as asserted above.
        let (g, old) = unsafe {
            let zero = L::splat(0.0);
            let old = State {
                p: L::load(p.as_ptr().add(at)),
                m: if R::M { M::load(m.as_ptr().add(at)) } else { zero },
                v: if R::V { M::load(v.as_ptr().add(at)) } else { zero },
            };
            let g = match g {
                GradientRef::Fp32(g) => {
                    let g = L::load(g.as_ptr().add(at));
                    gradient_in = g.sum(gradient_in, weights);
                    g
                }
                GradientRef::Fp16(bits) => {
                    let from = bits.as_ptr().add(at);
                    gradient_in = L::sum_halves(from, gradient_in, half_weights);
                    L::load_f16(from)
                }
                GradientRef::Bf16(bits) => {
                    let from = bits.as_ptr().add(at);
                    gradient_in = L::sum_halves(from, gradient_in, half_weights);
                    L::load_bf16(from)
                }
            };
            (g, old)
        };
        let new = R::step(&s, g, old);
        let new = State {
            p: new.p.canonical(),
            m: if R::M { new.m.canonical() } else { new.m },
            v: if R::V { new.v.canonical() } else { new.v },
        };
        // SAFETY: as above.
        unsafe {
            new.p.store(p.as_mut_ptr().add(at));
            let random = if M::NARROW { L::scramble(counters, dither.keys) } else { counters };
            if R::M {
                let at = m.as_mut_ptr().add(at);
                m_in = M::sum(at, old.m, m_in, weights, half_weights);
                M::store(new.m, at, random);
                m_out = M::sum(at, new.m, m_out, weights, half_weights);
            }
            if R::V {
                let at = v.as_mut_ptr().add(at);
                v_in = M::sum(at, old.v, v_in, weights, half_weights);
                M::store(new.v, at, L::upper_halves(random));
                v_out = M::sum(at, new.v, v_out, weights, half_weights);
            }
            match &mut out {
                WeightsOut::None => {}
                WeightsOut::Fp32(out) => new.p.store(out.as_mut_ptr().add(at)),
                WeightsOut::Fp16(out) => new.p.store_f16(out.as_mut_ptr().add(at)),
                WeightsOut::Bf16(out) => new.p.store_bf16(out.as_mut_ptr().add(at)),
            }
        }
        p_in = old.p.sum(p_in, weights);
        p_out = new.p.sum(p_out, weights);
        weights = L::advance(weights);
        half_weights = L::advance_halves(half_weights);
        if M::NARROW {
            counters = L::advance_counters(counters);
        }
        at += L::WIDTH;
    }
    UpdateSums {
        gradient_in: L::total(gradient_in),
        param_in: L::total(p_in),
        m_in: L::total(m_in),
        v_in: L::total(v_in),
        param_out: L::total(p_out),
        m_out: L::total(m_out),
        v_out: L::total(v_out),
    }
}
