//! Rotary position embeddings: wavelengths with their scalings, tables of cosines and sines, and the rotation.

use std::f64::consts::TAU;

use parking_lot::Mutex;
use tch::{Device, Kind, TchError, Tensor};

use super::architecture::{Rope, RopeScaling};

type Result<T> = std::result::Result<T, TchError>;

/// Cosines and sines of the first positions, `[positions, width / 2]` each, in the working format on the compute device.
#[derive(Debug)]
pub(super) struct Rotation {
    /// Behind a lock, because tensors are not shared among threads.
    tables: Mutex<[Tensor; 2]>,
}

impl Rotation {
    /// Tables for `seq` positions of a model trained on sequences of `trained`, with heads of `width`.
    pub fn new(
        rope: &Rope,
        width: u32,
        seq: u32,
        trained: u32,
        kind: Kind,
        device: Device,
    ) -> Result<Self> {
        let _guard = tch::no_grad_guard();
        let (inverse, scale) = inverse_wavelengths(rope, width, seq, trained)?;
        let positions = Tensor::f_arange(i64::from(seq), (Kind::Float, Device::Cpu))?;
        let inverse = Tensor::f_from_slice(&inverse)?;
        let angles = positions.f_unsqueeze(1)?.f_mul(&inverse.f_unsqueeze(0)?)?;
        let table = |values: Tensor| {
            values.f_mul_scalar(f64::from(scale))?.f_to_kind(kind)?.f_to_device(device)
        };
        Ok(Self { tables: Mutex::new([table(angles.f_cos()?)?, table(angles.f_sin()?)?]) })
    }

    /// Rotates `[batch, heads, tokens, width]`: element i of a head with element i + width / 2, by the token's position.
    pub fn apply(&self, heads: &Tensor) -> Result<Tensor> {
        let (length, half) = (heads.size()[2], heads.size()[3] / 2);
        let (cos, sin) = {
            let [cos, sin] = &*self.tables.lock();
            (cos.f_narrow(0, 0, length)?, sin.f_narrow(0, 0, length)?)
        };
        let (low, high) = (heads.f_narrow(3, 0, half)?, heads.f_narrow(3, half, half)?);
        let turned_low = low.f_mul(&cos)?.f_sub(&high.f_mul(&sin)?)?;
        let turned_high = high.f_mul(&cos)?.f_add(&low.f_mul(&sin)?)?;
        Tensor::f_cat(&[turned_low, turned_high], -1)
    }
}

/// Radians per token of each pair of elements, and the factor of cosines and sines.
///
/// In fp32 and with libtorch's power, because that is what models were trained with: at position 100 000 one unit in the last place is
/// a visible angle.
fn inverse_wavelengths(rope: &Rope, width: u32, seq: u32, trained: u32) -> Result<(Vec<f32>, f32)> {
    let mut theta = rope.theta;
    let dimensions = f64::from(width);
    if let RopeScaling::Dynamic { factor } = rope.scaling {
        // The trained length itself leaves the base as it is.
        let stretch = f64::from(seq.max(trained)) / f64::from(trained);
        theta *= (factor * stretch - (factor - 1.0)).powf(dimensions / (dimensions - 2.0));
    }
    let exponents =
        Tensor::f_arange_start_step(0, i64::from(width), 2, (Kind::Int64, Device::Cpu))?
            .f_to_kind(Kind::Float)?
            .f_div_scalar(dimensions)?;
    let wavelengths = Tensor::f_pow_scalar(theta, &exponents)?;
    let count = wavelengths.numel();
    let mut inverse = vec![0.0_f32; count];
    wavelengths.f_reciprocal()?.f_copy_data(&mut inverse, count)?;
    let mut scale = 1.0;
    match rope.scaling {
        RopeScaling::None | RopeScaling::Dynamic { .. } => {}
        RopeScaling::Linear { factor } => {
            inverse.iter_mut().for_each(|value| *value /= factor as f32);
        }
        RopeScaling::Llama3 { factor, low, high, original } => {
            let original = f64::from(original);
            for value in &mut inverse {
                let rotations = original * f64::from(*value) / TAU;
                let full = f64::from(*value) / factor;
                let stretched = if rotations < low {
                    full
                } else if rotations > high {
                    f64::from(*value)
                } else {
                    let smooth = (rotations - low) / (high - low);
                    (1.0 - smooth) * full + smooth * f64::from(*value)
                };
                *value = stretched as f32;
            }
        }
        RopeScaling::Yarn {
            factor,
            beta_fast,
            beta_slow,
            attention_factor,
            original,
            truncate,
        } => {
            scale = attention_factor;
            let bound = |rotations: f64| {
                let turns = f64::from(original) / (rotations * TAU);
                dimensions * turns.ln() / (2.0 * theta.ln())
            };
            let (mut first, mut last) = (bound(beta_fast), bound(beta_slow));
            if truncate {
                (first, last) = (first.floor(), last.ceil());
            }
            let first = first.max(0.0);
            let mut last = last.min(dimensions - 1.0);
            if first == last {
                last += 0.001;
            }
            for (index, value) in inverse.iter_mut().enumerate() {
                let ramp = ((index as f64 - first) / (last - first)).clamp(0.0, 1.0);
                let plain = f64::from(*value);
                *value = (plain / factor * ramp + plain * (1.0 - ramp)) as f32;
            }
        }
    }
    Ok((inverse, scale as f32))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inverse(scaling: RopeScaling) -> Vec<f32> {
        inverse_wavelengths(&Rope { theta: 1e4, scaling }, 8, 64, 32).unwrap().0
    }

    #[test]
    fn wavelengths_are_a_geometric_row() {
        let plain = inverse(RopeScaling::None);
        assert_eq!(plain.len(), 4);
        for (value, expected) in plain.iter().zip([1.0, 0.1, 0.01, 0.001]) {
            assert!((value - expected).abs() <= 1e-7 * expected, "{value}");
        }
        assert_eq!(inverse(RopeScaling::Linear { factor: 2.0 })[1], plain[1] / 2.0);
    }

    #[test]
    fn scalings_keep_short_wavelengths_and_stretch_long_ones() {
        let plain = inverse(RopeScaling::None);
        let llama = RopeScaling::Llama3 { factor: 8.0, low: 1.0, high: 4.0, original: 32 };
        let yarn = RopeScaling::Yarn {
            factor: 8.0,
            beta_fast: 32.0,
            beta_slow: 1.0,
            attention_factor: 1.2,
            original: 32,
            truncate: true,
        };
        for scaling in [llama, yarn] {
            let scaled = inverse(scaling);
            assert!((scaled[0] / plain[0] - 1.0).abs() < 0.2, "{scaling:?} {scaled:?}");
            assert!((scaled[3] * 8.0 / plain[3] - 1.0).abs() < 1e-6, "{scaling:?} {scaled:?}");
        }
    }

    #[test]
    fn a_dynamic_base_grows_only_beyond_the_trained_length() {
        let rope = Rope { theta: 1e4, scaling: RopeScaling::Dynamic { factor: 2.0 } };
        let at = |seq| inverse_wavelengths(&rope, 8, seq, 32).unwrap().0;
        assert_eq!(at(16), inverse(RopeScaling::None));
        assert!(at(64)[3] < at(16)[3]);
    }

    #[test]
    fn rotation_keeps_lengths_and_depends_on_distances_only() {
        let rope = Rope { theta: 100.0, scaling: RopeScaling::None };
        let rotation = Rotation::new(&rope, 8, 16, 16, Kind::Double, Device::Cpu).unwrap();
        let row = |seed: f64| (Tensor::arange(8, (Kind::Double, Device::Cpu)) * seed).sin();
        let (query, key) = (row(1.3), row(0.7));
        let all =
            |row: &Tensor| rotation.apply(&row.view([1, 1, 1, 8]).repeat([1, 1, 16, 1])).unwrap();
        let scores = all(&query).matmul(&all(&key).transpose(2, 3)).view([16, 16]);
        let at = |i: i64, j: i64| scores.double_value(&[i, j]);
        assert!((at(3, 3) - query.dot(&key).double_value(&[])).abs() < 1e-6);
        assert!((at(9, 4) - at(12, 7)).abs() < 1e-6);
        assert!((at(9, 4) - at(4, 9)).abs() > 1e-3);
    }
}
