//! What a kernel launch gets beside its arrays.

use crate::types::{HyperParameters, Optimizer};

/// Scalars of one parameter group in one step, prepared in fp64 and rounded once (Smart-Infinity, section 5).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Scalars {
    /// Multiplies each gradient element: unscaling and clipping in one.
    pub unscale: f32,
    /// Decay of the first moment.
    pub beta1: f32,
    /// `1 - beta1`.
    pub one_minus_beta1: f32,
    /// Decay of the second moment.
    pub beta2: f32,
    /// `1 - beta2`.
    pub one_minus_beta2: f32,
    /// `1 / sqrt(1 - beta2^t)`.
    pub bias_root: f32,
    /// `-lr / (1 - beta1^t)`, for rules without bias correction `-lr`.
    pub alpha: f32,
    /// Added to the denominator.
    pub eps: f32,
    /// `1 - lr·λ` with decoupled decay, else 1.
    pub omega: f32,
    /// λ where it enters the gradient, else 0.
    pub decay: f32,
}

impl Scalars {
    /// The scalars of optimizer step `step`, from 1.
    pub fn new(kind: Optimizer, hyper: &HyperParameters, step: u64, unscale: f32) -> Self {
        let HyperParameters { lr, beta1, beta2, eps, weight_decay } = *hyper;
        let power = |beta: f64| beta.powf(step as f64);
        let corrected = matches!(kind, Optimizer::Adam | Optimizer::Adamw);
        let decoupled = kind == Optimizer::Adamw;
        let alpha = if corrected { -lr / (1.0 - power(beta1)) } else { -lr };
        let bias_root = if corrected { 1.0 / (1.0 - power(beta2)).sqrt() } else { 1.0 };
        Self {
            unscale,
            beta1: beta1 as f32,
            one_minus_beta1: (1.0 - beta1) as f32,
            beta2: beta2 as f32,
            one_minus_beta2: (1.0 - beta2) as f32,
            bias_root: bias_root as f32,
            alpha: alpha as f32,
            eps: eps as f32,
            omega: if decoupled { (1.0 - lr * weight_decay) as f32 } else { 1.0 },
            decay: if decoupled { 0.0 } else { weight_decay as f32 },
        }
    }
}

/// A run of elements with scalars of its own.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Segment {
    /// Its length.
    pub elements: usize,
    /// Its scalars.
    pub scalars: Scalars,
}
