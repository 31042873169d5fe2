//! The update rules, element by element. What is written here is the normative order of operations.

use super::isa::for_each_isa;
use super::scalars::Scalars;

#[inline(always)]
fn adam_body(s: &Scalars, g: &[f32], p: &mut [f32], m: &mut [f32], v: &mut [f32]) {
    for (((&g, p), m), v) in g.iter().zip(p).zip(m).zip(v) {
        // With decoupled decay `decay` is 0, and adding 0·p would turn -0.0 into 0.0, so it is not added.
        let g = g * s.unscale;
        *v = g * g * s.one_minus_beta2 + *v * s.beta2;
        *m = g * s.one_minus_beta1 + *m * s.beta1;
        *p = s.omega * *p + (*m / (v.sqrt() * s.bias_root + s.eps)) * s.alpha;
    }
}

#[inline(always)]
fn adam_l2_body(s: &Scalars, g: &[f32], p: &mut [f32], m: &mut [f32], v: &mut [f32]) {
    for (((&g, p), m), v) in g.iter().zip(p).zip(m).zip(v) {
        let g = g * s.unscale + s.decay * *p;
        *v = g * g * s.one_minus_beta2 + *v * s.beta2;
        *m = g * s.one_minus_beta1 + *m * s.beta1;
        *p += (*m / (v.sqrt() * s.bias_root + s.eps)) * s.alpha;
    }
}

#[inline(always)]
fn adagrad_body(s: &Scalars, g: &[f32], p: &mut [f32], v: &mut [f32]) {
    for ((&g, p), v) in g.iter().zip(p).zip(v) {
        let g0 = g * s.unscale;
        let g1 = g0 + s.decay * *p;
        *v += g1 * g1;
        // The numerator is the gradient without its decay term, as in the paper's kernel.
        *p += (g0 / (v.sqrt() + s.eps)) * s.alpha;
    }
}

#[inline(always)]
fn sgd_body(s: &Scalars, g: &[f32], p: &mut [f32], m: &mut [f32]) {
    for ((&g, p), m) in g.iter().zip(p).zip(m) {
        let g = g * s.unscale + s.decay * *p;
        *m = s.one_minus_beta1 * g + s.beta1 * *m;
        *p += s.alpha * *m;
    }
}

for_each_isa! {
    /// AdamW: `g' = g·u; v = g'·g'·(1-β2) + v·β2; m = g'·(1-β1) + m·β1; p = ω·p + (m/(√v·r2 + ε))·α`.
    pub(super) fn adamw(s: &Scalars, g: &[f32], p: &mut [f32], m: &mut [f32], v: &mut [f32]) = adam_body
}
for_each_isa! {
    /// Adam with L2: `g' = g·u + λ·p`, then as AdamW with ω = 1.
    pub(super) fn adam_l2(s: &Scalars, g: &[f32], p: &mut [f32], m: &mut [f32], v: &mut [f32]) = adam_l2_body
}
for_each_isa! {
    /// AdaGrad: `g0 = g·u; g1 = g0 + λ·p; v = g1·g1 + v; p = p + (g0/(√v + ε))·(-lr)`.
    pub(super) fn adagrad(s: &Scalars, g: &[f32], p: &mut [f32], v: &mut [f32]) = adagrad_body
}
for_each_isa! {
    /// SGD: `g' = g·u + λ·p; m = (1-β1)·g' + β1·m; p = p + (-lr)·m`.
    pub(super) fn sgd(s: &Scalars, g: &[f32], p: &mut [f32], m: &mut [f32]) = sgd_body
}
