//! One pass of an update rule over its arrays, with the checksums of what it reads and writes on the way.

use super::isa::Isa;
use super::lanes::Lanes;
use super::rules::{Adagrad, AdamL2, Adamw, Broadcast, Rule, SgdMomentum, State};
use super::run::{GradientRef, Run, WeightsOut};
use super::scalars::Scalars;
use super::update::UpdateSums;
use crate::types::Optimizer;

/// How many elements ahead the arrays are asked for. Division and root fill the processor's window of
/// instructions, so it would not reach far enough ahead by itself. 1 KiB to 4 KiB are equally good as measured.
const AHEAD: usize = 512;

/// Updates the arrays of `run`, which lie from `first_element` on in their subgroup.
pub(super) fn pass(
    isa: Isa,
    kind: Optimizer,
    s: &Scalars,
    run: Run,
    first_element: u64,
) -> UpdateSums {
    match kind {
        Optimizer::Adamw => by_isa::<Adamw>(isa, s, run, first_element),
        Optimizer::Adam => by_isa::<AdamL2>(isa, s, run, first_element),
        Optimizer::Adagrad => by_isa::<Adagrad>(isa, s, run, first_element),
        Optimizer::SgdMomentum => by_isa::<SgdMomentum>(isa, s, run, first_element),
    }
}

fn by_isa<R: Rule>(isa: Isa, s: &Scalars, run: Run, first_element: u64) -> UpdateSums {
    match isa.checked() {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: `checked` returns only what this processor has.
        Isa::Avx512 => unsafe { avx512::<R>(s, run, first_element) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above.
        Isa::Avx2 => unsafe { avx2::<R>(s, run, first_element) },
        _ => whole_and_rest::<f32, R>(s, run, first_element),
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,f16c")]
fn avx2<R: Rule>(s: &Scalars, run: Run, first_element: u64) -> UpdateSums {
    whole_and_rest::<std::arch::x86_64::__m256, R>(s, run, first_element)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,f16c,avx512f,avx512bw,avx512dq,avx512vl")]
fn avx512<R: Rule>(s: &Scalars, run: Run, first_element: u64) -> UpdateSums {
    whole_and_rest::<std::arch::x86_64::__m512, R>(s, run, first_element)
}

/// Whole vectors, and before and after them the elements that fill none.
#[inline(always)]
fn whole_and_rest<L: Lanes, R: Rule>(s: &Scalars, run: Run, first_element: u64) -> UpdateSums {
    // Two 16-bit elements share a word of the checksum, and vectors hold whole words.
    let odd = run.g.width() == 2 && first_element % 2 == 1;
    let head = if L::WIDTH > 1 && odd { run.len().min(1) } else { 0 };
    let (first, run) = run.split_at(head);
    let whole = run.len() - run.len() % L::WIDTH;
    let (middle, rest) = run.split_at(whole);
    let mut element = first_element;
    let mut sums = UpdateSums::default();
    if head > 0 {
        sums.add(&elements::<f32, R>(s, first, element));
        element = element.wrapping_add(head as u64);
    }
    sums.add(&elements::<L, R>(s, middle, element));
    if rest.len() > 0 {
        sums.add(&elements::<f32, R>(s, rest, element.wrapping_add(whole as u64)));
    }
    sums
}

/// The loop. The arrays' length is a multiple of the lanes.
#[inline(always)]
fn elements<L: Lanes, R: Rule>(s: &Scalars, run: Run, first_element: u64) -> UpdateSums {
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
        if g.width() == 2 { L::half_weights(first_element) } else { L::zero_sum() };
    let mut gradient_in = L::zero_sum();
    let (mut p_in, mut m_in, mut v_in) = (L::zero_sum(), L::zero_sum(), L::zero_sum());
    let (mut p_out, mut m_out, mut v_out) = (L::zero_sum(), L::zero_sum(), L::zero_sum());
    let mut at = 0;
    while at < length {
        let ahead = at + AHEAD;
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
                m: if R::M { L::load(m.as_ptr().add(at)) } else { zero },
                v: if R::V { L::load(v.as_ptr().add(at)) } else { zero },
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
        // SAFETY: as above.
        unsafe {
            new.p.store(p.as_mut_ptr().add(at));
            if R::M {
                new.m.store(m.as_mut_ptr().add(at));
            }
            if R::V {
                new.v.store(v.as_mut_ptr().add(at));
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
        if R::M {
            m_in = old.m.sum(m_in, weights);
            m_out = new.m.sum(m_out, weights);
        }
        if R::V {
            v_in = old.v.sum(v_in, weights);
            v_out = new.v.sum(v_out, weights);
        }
        weights = L::advance(weights);
        half_weights = L::advance_halves(half_weights);
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
