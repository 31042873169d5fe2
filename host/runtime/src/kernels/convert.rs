//! Conversion between number formats, to nearest, ties to even.

use half::slice::HalfFloatSliceExt;

use super::isa::{Isa, for_each_isa};
use super::lanes::bf16_bits;

/// Rounds fp32 to fp16 bits; as many elements as the shorter slice has.
pub fn f32_to_f16(from: &[f32], to: &mut [u16]) {
    let length = from.len().min(to.len());
    let target: &mut [half::f16] =
        half::slice::HalfBitsSliceExt::reinterpret_cast_mut(&mut to[..length]);
    target.convert_from_f32_slice(&from[..length]);
}

/// Widens fp16 bits to fp32; as many elements as the shorter slice has.
pub fn f16_to_f32(from: &[u16], to: &mut [f32]) {
    let length = from.len().min(to.len());
    let source: &[half::f16] = half::slice::HalfBitsSliceExt::reinterpret_cast(&from[..length]);
    source.convert_to_f32_slice(&mut to[..length]);
}

#[inline(always)]
fn to_bf16_body(from: &[f32], to: &mut [u16]) {
    for (to, &from) in to.iter_mut().zip(from) {
        *to = bf16_bits(from);
    }
}

#[inline(always)]
fn from_bf16_body(from: &[u16], to: &mut [f32]) {
    for (to, &from) in to.iter_mut().zip(from) {
        *to = f32::from_bits(u32::from(from) << 16);
    }
}

for_each_isa! { fn to_bf16(from: &[f32], to: &mut [u16]) = to_bf16_body }
for_each_isa! { fn from_bf16(from: &[u16], to: &mut [f32]) = from_bf16_body }

/// Rounds fp32 to bfloat16 bits; as many elements as the shorter slice has.
pub fn f32_to_bf16(from: &[f32], to: &mut [u16]) {
    to_bf16(Isa::detect(), from, to);
}

/// Widens bfloat16 bits to fp32; as many elements as the shorter slice has.
pub fn bf16_to_f32(from: &[u16], to: &mut [f32]) {
    from_bf16(Isa::detect(), from, to);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every sign and exponent with significands around each rounding boundary of both formats.
    fn edge_values() -> Vec<f32> {
        let significands = (0..23).flat_map(|bit| {
            let tie = 1_u32 << bit;
            [tie - 1, tie, tie + 1, tie | 0x40_0000, 0x7f_ffff ^ tie]
        });
        let significands: Vec<u32> =
            significands.chain([0, 0x1000, 0x3000, 0x8000, 0x18000]).collect();
        (0..512_u32)
            .flat_map(|top| {
                significands.iter().map(move |low| f32::from_bits(top << 23 | (low & 0x7f_ffff)))
            })
            .collect()
    }

    #[test]
    fn rounding_equals_the_half_crate_on_every_boundary() {
        let values = edge_values();
        let (mut f16, mut bf16) = (vec![0; values.len()], vec![0; values.len()]);
        f32_to_f16(&values, &mut f16);
        for &isa in Isa::available() {
            to_bf16(isa, &values, &mut bf16);
            for (value, (f16, bf16)) in values.iter().zip(f16.iter().zip(&bf16)) {
                if !value.is_nan() {
                    assert_eq!(*f16, half::f16::from_f32(*value).to_bits(), "{value:e}");
                    assert_eq!(*bf16, half::bf16::from_f32(*value).to_bits(), "{value:e}");
                } else {
                    assert!(
                        half::f16::from_bits(*f16).is_nan()
                            && half::bf16::from_bits(*bf16).is_nan()
                    );
                }
            }
        }
    }

    #[test]
    fn widening_is_exact_for_all_bits() {
        let bits: Vec<u16> = (0..=u16::MAX).collect();
        let mut wide = vec![0.0; bits.len()];
        f16_to_f32(&bits, &mut wide);
        for (bits, wide) in bits.iter().zip(&wide) {
            let expected = half::f16::from_bits(*bits).to_f32();
            assert!(expected.to_bits() == wide.to_bits() || expected.is_nan() && wide.is_nan());
        }
        bf16_to_f32(&bits, &mut wide);
        for (bits, wide) in bits.iter().zip(&wide) {
            assert_eq!(wide.to_bits(), u32::from(*bits) << 16);
        }
    }
}
