//! Error feedback: what a step drops is added to the gradient of the next.

use super::pairs::check_pairs;
use crate::error::{Error, Result};

/// Error feedback of one subgroup, around the selection of its pairs.
///
/// The residual `r` has no loss scale, so that it stays right when the scale changes. In each step, with the scaled
/// gradient `g` and the loss scale `s`, per element and in fp32 without fused operations:
///
/// 1. [`ErrorFeedback::add`]: `g = g + r · s`, two roundings;
/// 2. the selection keeps pairs of the new `g`;
/// 3. [`ErrorFeedback::keep`]: `r = +0.0` where a pair was kept, else `r = g / s`.
///
/// With a scale that is a power of two nothing is lost in scaling, so kept values and `r · s` add up to `g` exactly
/// (barring under- and overflow). Take the overflow check on `g` before the first operation; after a skipped step
/// the residual of the step before is the valid one.
#[derive(Debug)]
pub struct ErrorFeedback;

impl ErrorFeedback {
    /// Adds to the scaled `gradient` what earlier steps dropped.
    ///
    /// # Errors
    /// [`Error::Invalid`] when the lengths differ or `scale` is not a positive number.
    pub fn add(residual: &[f32], scale: f32, gradient: &mut [f32]) -> Result<()> {
        check(residual, scale, gradient)?;
        for (gradient, residual) in gradient.iter_mut().zip(residual) {
            *gradient += residual * scale;
        }
        Ok(())
    }

    /// Takes into `residual` what the pairs of `indices` do not keep of the scaled `gradient`.
    ///
    /// # Errors
    /// As [`ErrorFeedback::add`], and when `indices` do not ascend strictly within the gradient.
    pub fn keep(gradient: &[f32], indices: &[u32], scale: f32, residual: &mut [f32]) -> Result<()> {
        check(residual, scale, gradient)?;
        check_pairs(indices, gradient.len() as u64)?;
        for (residual, gradient) in residual.iter_mut().zip(gradient) {
            *residual = gradient / scale;
        }
        for &index in indices {
            residual[index as usize] = 0.0;
        }
        Ok(())
    }
}

fn check(residual: &[f32], scale: f32, gradient: &[f32]) -> Result<()> {
    if residual.len() != gradient.len() {
        return Err(Error::Invalid(format!(
            "error feedback: the residual has {} elements, the gradient {}",
            residual.len(),
            gradient.len()
        )));
    }
    if scale.is_finite() && scale > 0.0 {
        Ok(())
    } else {
        Err(Error::Invalid(format!(
            "error feedback: the loss scale {scale} is not a positive number"
        )))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::{TopK, scatter};
    use super::*;

    /// Loss after gradient descent on an ill-conditioned quadratic `Σ hᵢ·xᵢ²/2` whose gradients are selected.
    fn quadratic(keep: f64, feedback: bool) -> f64 {
        const STEPS: usize = 300;
        let length = 4096;
        let h: Vec<f32> = (0..length).map(|i| 0.01_f32.powf(i as f32 / length as f32)).collect();
        let mut x = vec![1.0_f32; length];
        let mut residual = vec![0.0; length];
        let mut topk = TopK::new(length, 1).unwrap();
        for _ in 0..STEPS {
            let mut gradient: Vec<f32> = h.iter().zip(&x).map(|(h, x)| h * x).collect();
            if feedback {
                ErrorFeedback::add(&residual, 1.0, &mut gradient).unwrap();
            }
            let pairs = super::super::kept(keep, length as u64) as usize;
            let (mut indices, mut values) = (vec![0; pairs], vec![0.0; pairs]);
            topk.select(&gradient, pairs, &mut indices, &mut values).unwrap();
            ErrorFeedback::keep(&gradient, &indices, 1.0, &mut residual).unwrap();
            for (&index, value) in indices.iter().zip(&values) {
                x[index as usize] -= 0.5 * value;
            }
        }
        h.iter().zip(&x).map(|(h, x)| f64::from(h * x * x) / 2.0).sum()
    }

    #[test]
    fn selection_alone_lags_on_an_ill_conditioned_problem_and_feedback_mends_it() {
        let dense = quadratic(1.0, false);
        let alone = quadratic(0.01, false);
        let mended = quadratic(0.01, true);
        assert!(alone > 3.0 * dense, "{alone} {dense}");
        assert!(mended < alone, "{mended} {alone}");
    }

    proptest! {
        #[test]
        fn kept_values_and_residual_add_up_to_the_gradient(
            gradient in prop::collection::vec(-1e3_f32..1e3, 1..200),
            keep in any::<prop::sample::Index>(),
            exponent in 0..17,
        ) {
            let scale = 2_f32.powi(exponent);
            let n = gradient.len();
            let k = keep.index(n) + 1;
            let mut residual: Vec<f32> = gradient.iter().rev().map(|g| g / 8.0).collect();
            let mut summed = gradient.clone();
            ErrorFeedback::add(&residual, scale, &mut summed).unwrap();
            for i in 0..n {
                prop_assert_eq!(summed[i], gradient[i] + residual[i] * scale);
            }
            let (mut indices, mut values) = (vec![0; k], vec![0.0; k]);
            TopK::new(n, 1).unwrap().select(&summed, k, &mut indices, &mut values).unwrap();
            ErrorFeedback::keep(&summed, &indices, scale, &mut residual).unwrap();
            let mut decoded = vec![0.0; n];
            scatter(&indices, &values, 0, &mut decoded).unwrap();
            for i in 0..n {
                prop_assert_eq!(decoded[i] + residual[i] * scale, summed[i]);
                prop_assert!(decoded[i] == 0.0 || residual[i].to_bits() == 0);
            }
        }
    }

    #[test]
    fn the_residual_survives_a_change_of_the_loss_scale() {
        let mut residual = [0.0; 2];
        ErrorFeedback::keep(&[256.0, 8.0], &[0], 16.0, &mut residual).unwrap();
        assert_eq!(residual, [0.0, 0.5]);
        let mut gradient = [1.0, 1.0];
        ErrorFeedback::add(&residual, 4.0, &mut gradient).unwrap();
        assert_eq!(gradient, [1.0, 3.0]);
    }

    #[test]
    fn wrong_lengths_scales_and_indices_are_refused() {
        let (mut two, mut gradient) = ([0.0; 2], [1.0; 2]);
        assert!(ErrorFeedback::add(&[0.0], 1.0, &mut gradient).is_err());
        for scale in [0.0, -1.0, f32::NAN, f32::INFINITY] {
            assert!(ErrorFeedback::add(&two, scale, &mut gradient).is_err());
            assert!(ErrorFeedback::keep(&gradient, &[], scale, &mut two).is_err());
        }
        assert!(ErrorFeedback::keep(&gradient, &[2], 1.0, &mut two).is_err());
        assert!(ErrorFeedback::keep(&gradient, &[1, 0], 1.0, &mut two).is_err());
    }
}
