//! The update rules. What is written here is the normative order of operations, whatever the width.

use super::lanes::Lanes;
use super::scalars::Scalars;

/// One element, or several side by side, of the arrays that are updated.
#[derive(Clone, Copy)]
pub(super) struct State<L> {
    pub p: L,
    pub m: L,
    pub v: L,
}

/// An update rule (Smart-Infinity, section 5).
pub(super) trait Rule {
    /// Whether it keeps a first moment.
    const M: bool;
    /// Whether it keeps a second moment.
    const V: bool;
    /// The state after gradient `g`.
    fn step<L: Lanes>(s: &Broadcast<L>, g: L, old: State<L>) -> State<L>;
}

/// [`Scalars`] in all lanes.
pub(super) struct Broadcast<L> {
    unscale: L,
    beta1: L,
    one_minus_beta1: L,
    beta2: L,
    one_minus_beta2: L,
    bias_root: L,
    alpha: L,
    eps: L,
    omega: L,
    decay: L,
}

impl<L: Lanes> Broadcast<L> {
    #[inline(always)]
    pub fn new(s: &Scalars) -> Self {
        Self {
            unscale: L::splat(s.unscale),
            beta1: L::splat(s.beta1),
            one_minus_beta1: L::splat(s.one_minus_beta1),
            beta2: L::splat(s.beta2),
            one_minus_beta2: L::splat(s.one_minus_beta2),
            bias_root: L::splat(s.bias_root),
            alpha: L::splat(s.alpha),
            eps: L::splat(s.eps),
            omega: L::splat(s.omega),
            decay: L::splat(s.decay),
        }
    }

    /// `g' = g·u + λ·p`.
    #[inline(always)]
    fn decayed(&self, g: L, p: L) -> L {
        g.mul(self.unscale).add(self.decay.mul(p))
    }

    /// `v = g'·g'·(1-β2) + v·β2; m = g'·(1-β1) + m·β1`, and the step `(m/(√v·r2 + ε))·α`.
    #[inline(always)]
    fn moments(&self, g: L, old: State<L>) -> (L, L, L) {
        let v = g.mul(g).mul(self.one_minus_beta2).add(old.v.mul(self.beta2));
        let m = g.mul(self.one_minus_beta1).add(old.m.mul(self.beta1));
        let step = m.div(v.sqrt().mul(self.bias_root).add(self.eps)).mul(self.alpha);
        (m, v, step)
    }
}

/// `g' = g·u`; v, m; `p = ω·p + step`.
pub(super) struct Adamw;
/// `g' = g·u + λ·p`; v, m; `p = p + step`.
pub(super) struct AdamL2;
/// `g0 = g·u; g1 = g0 + λ·p; v = g1·g1 + v; p = p + (g0/(√v + ε))·(-lr)`.
pub(super) struct Adagrad;
/// `g' = g·u + λ·p; m = (1-β1)·g' + β1·m; p = p + (-lr)·m`.
pub(super) struct SgdMomentum;

impl Rule for Adamw {
    const M: bool = true;
    const V: bool = true;
    #[inline(always)]
    fn step<L: Lanes>(s: &Broadcast<L>, g: L, old: State<L>) -> State<L> {
        // λ is 0 here, but 0·p is not added to the gradient: it would turn -0 into 0.
        let (m, v, step) = s.moments(g.mul(s.unscale), old);
        State { p: s.omega.mul(old.p).add(step), m, v }
    }
}

impl Rule for AdamL2 {
    const M: bool = true;
    const V: bool = true;
    #[inline(always)]
    fn step<L: Lanes>(s: &Broadcast<L>, g: L, old: State<L>) -> State<L> {
        let (m, v, step) = s.moments(s.decayed(g, old.p), old);
        State { p: old.p.add(step), m, v }
    }
}

impl Rule for Adagrad {
    const M: bool = false;
    const V: bool = true;
    #[inline(always)]
    fn step<L: Lanes>(s: &Broadcast<L>, g: L, old: State<L>) -> State<L> {
        let g1 = s.decayed(g, old.p);
        let v = g1.mul(g1).add(old.v);
        // The numerator is the gradient without its decay term, as in the paper's kernel.
        let step = g.mul(s.unscale).div(v.sqrt().add(s.eps)).mul(s.alpha);
        State { p: old.p.add(step), m: old.m, v }
    }
}

impl Rule for SgdMomentum {
    const M: bool = true;
    const V: bool = false;
    #[inline(always)]
    fn step<L: Lanes>(s: &Broadcast<L>, g: L, old: State<L>) -> State<L> {
        let m = s.one_minus_beta1.mul(s.decayed(g, old.p)).add(s.beta1.mul(old.m));
        State { p: old.p.add(s.alpha.mul(m)), m, v: old.v }
    }
}
