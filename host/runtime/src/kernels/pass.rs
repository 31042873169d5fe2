//! One pass of an update rule over its arrays, with the checksums of what it reads and writes on the way.

use super::isa::Isa;
use super::lanes::Lanes;
use super::rules::{Adagrad, AdamL2, Adamw, Broadcast, Rule, SgdMomentum, State};
use super::scalars::Scalars;
use super::update::UpdateSums;
use crate::types::Optimizer;

/// How many elements ahead the arrays are asked for: 1 KiB, the best of 256 B to 4 KiB as measured. Division and
/// root fill the processor's window of instructions, so it would not reach far enough ahead by itself, and its own
/// prefetchers stop at the end of each page.
const AHEAD: usize = 256;

/// What is summed in a pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sums {
    /// Nothing.
    None,
    /// The weights and moments, before and after.
    State,
    /// Those, and the gradient.
    All,
}

const NONE: u8 = Sums::None as u8;
const STATE: u8 = Sums::State as u8;
const ALL: u8 = Sums::All as u8;

/// Arrays of equal length; a moment that the rule does not keep is empty.
pub(super) struct Arrays<'a> {
    pub g: &'a [f32],
    pub p: &'a mut [f32],
    pub m: &'a mut [f32],
    pub v: &'a mut [f32],
}

/// Updates `arrays`, whose elements are the words from `first_word` on of their checksums.
pub(super) fn pass(
    isa: Isa,
    kind: Optimizer,
    sums: Sums,
    s: &Scalars,
    arrays: Arrays,
    first_word: u64,
) -> UpdateSums {
    match kind {
        Optimizer::Adamw => by_sums::<Adamw>(isa, sums, s, arrays, first_word),
        Optimizer::Adam => by_sums::<AdamL2>(isa, sums, s, arrays, first_word),
        Optimizer::Adagrad => by_sums::<Adagrad>(isa, sums, s, arrays, first_word),
        Optimizer::SgdMomentum => by_sums::<SgdMomentum>(isa, sums, s, arrays, first_word),
    }
}

fn by_sums<R: Rule>(
    isa: Isa,
    sums: Sums,
    s: &Scalars,
    arrays: Arrays,
    first_word: u64,
) -> UpdateSums {
    match sums {
        Sums::None => by_isa::<R, NONE>(isa, s, arrays, first_word),
        Sums::State => by_isa::<R, STATE>(isa, s, arrays, first_word),
        Sums::All => by_isa::<R, ALL>(isa, s, arrays, first_word),
    }
}

fn by_isa<R: Rule, const SUMS: u8>(
    isa: Isa,
    s: &Scalars,
    arrays: Arrays,
    first_word: u64,
) -> UpdateSums {
    let Arrays { g, p, m, v } = arrays;
    match isa.checked() {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: `checked` returns only what this processor has.
        Isa::Avx512 => unsafe { avx512::<R, SUMS>(s, g, p, m, v, first_word) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above.
        Isa::Avx2 => unsafe { avx2::<R, SUMS>(s, g, p, m, v, first_word) },
        _ => whole_and_rest::<f32, R, SUMS>(s, g, p, m, v, first_word),
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,f16c")]
fn avx2<R: Rule, const SUMS: u8>(
    s: &Scalars,
    g: &[f32],
    p: &mut [f32],
    m: &mut [f32],
    v: &mut [f32],
    first_word: u64,
) -> UpdateSums {
    whole_and_rest::<std::arch::x86_64::__m256, R, SUMS>(s, g, p, m, v, first_word)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,f16c,avx512f,avx512bw,avx512dq,avx512vl")]
fn avx512<R: Rule, const SUMS: u8>(
    s: &Scalars,
    g: &[f32],
    p: &mut [f32],
    m: &mut [f32],
    v: &mut [f32],
    first_word: u64,
) -> UpdateSums {
    whole_and_rest::<std::arch::x86_64::__m512, R, SUMS>(s, g, p, m, v, first_word)
}

/// Whole vectors first, then the elements that fill none.
#[inline(always)]
fn whole_and_rest<L: Lanes, R: Rule, const SUMS: u8>(
    s: &Scalars,
    g: &[f32],
    p: &mut [f32],
    m: &mut [f32],
    v: &mut [f32],
    first_word: u64,
) -> UpdateSums {
    let whole = g.len() - g.len() % L::WIDTH;
    let (g, g_rest) = g.split_at(whole);
    let (p, p_rest) = p.split_at_mut(whole);
    let (m, m_rest) = m.split_at_mut(if R::M { whole } else { 0 });
    let (v, v_rest) = v.split_at_mut(if R::V { whole } else { 0 });
    let mut sums = run::<L, R, SUMS>(s, g, p, m, v, first_word);
    if L::WIDTH > 1 && !g_rest.is_empty() {
        let next = first_word.wrapping_add(whole as u64);
        sums.add(&run::<f32, R, SUMS>(s, g_rest, p_rest, m_rest, v_rest, next));
    }
    sums
}

/// The loop. The arrays' length is a multiple of the lanes.
#[inline(always)]
fn run<L: Lanes, R: Rule, const SUMS: u8>(
    s: &Scalars,
    g: &[f32],
    p: &mut [f32],
    m: &mut [f32],
    v: &mut [f32],
    first_word: u64,
) -> UpdateSums {
    let length = g.len();
    assert!(
        length.is_multiple_of(L::WIDTH)
            && p.len() == length
            && (!R::M || m.len() == length)
            && (!R::V || v.len() == length),
        "the arrays of a pass are equally long"
    );
    let s = Broadcast::<L>::new(s);
    let mut weights = L::weights(first_word);
    let mut gradient_in = L::zero_sum();
    let (mut p_in, mut m_in, mut v_in) = (L::zero_sum(), L::zero_sum(), L::zero_sum());
    let (mut p_out, mut m_out, mut v_out) = (L::zero_sum(), L::zero_sum(), L::zero_sum());
    let mut at = 0;
    while at < length {
        let ahead = at + AHEAD;
        L::prefetch(g.as_ptr().wrapping_add(ahead));
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
            let state = State {
                p: L::load(p.as_ptr().add(at)),
                m: if R::M { L::load(m.as_ptr().add(at)) } else { zero },
                v: if R::V { L::load(v.as_ptr().add(at)) } else { zero },
            };
            (L::load(g.as_ptr().add(at)), state)
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
        }
        if SUMS == ALL {
            gradient_in = g.sum(gradient_in, weights);
        }
        if SUMS != NONE {
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
