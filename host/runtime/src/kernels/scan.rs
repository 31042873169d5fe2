//! Overflow flag and squared norm of a gradient.

use super::isa::{Isa, for_each_isa};
use super::{GradientRef, bf16_to_f32, f16_to_f32};

/// Partial sums side by side; their number is part of the result.
const LANES: usize = 16;
/// Elements widened at a time; a multiple of [`LANES`].
const TILE: usize = 1024;

/// What a pass over a gradient finds.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct GradientScan {
    /// Whether an element is infinite or not a number.
    pub overflow: bool,
    /// Sum of squares in fp64.
    pub sum_squares: f64,
}

#[inline(always)]
fn tile_body(g: &[f32], sums: &mut [f64; LANES], exponents: &mut u32) {
    for block in g.chunks(LANES) {
        for (sum, &g) in sums.iter_mut().zip(block) {
            let wide = f64::from(g);
            *sum += wide * wide;
            *exponents |= u32::from(g.to_bits() & 0x7f80_0000 == 0x7f80_0000);
        }
    }
}

for_each_isa! { fn tile(g: &[f32], sums: &mut [f64; LANES], exponents: &mut u32) = tile_body }

/// Scans `gradient` in an order that depends on nothing but its length, so that every run gives the same bits.
pub fn scan_gradient(isa: Isa, gradient: GradientRef) -> GradientScan {
    let mut sums = [0.0; LANES];
    let mut not_finite = 0;
    match gradient {
        GradientRef::Fp32(g) => tile(isa, g, &mut sums, &mut not_finite),
        GradientRef::Fp16(bits) | GradientRef::Bf16(bits) => {
            let mut wide = [0.0; TILE];
            for bits in bits.chunks(TILE) {
                let wide = &mut wide[..bits.len()];
                match gradient {
                    GradientRef::Fp16(_) => f16_to_f32(bits, wide),
                    _ => bf16_to_f32(bits, wide),
                }
                tile(isa, wide, &mut sums, &mut not_finite);
            }
        }
    }
    GradientScan { overflow: not_finite != 0, sum_squares: sums.iter().sum() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_isa_gives_the_same_bits_and_finds_overflow() {
        let mut g: Vec<f32> = (0..5003).map(|i| ((i * 37 % 1009) as f32 - 504.0) * 1e-3).collect();
        let exact: f64 = g.iter().map(|&g| f64::from(g) * f64::from(g)).sum();
        let first = scan_gradient(Isa::Scalar, GradientRef::Fp32(&g));
        for &isa in Isa::available() {
            let scan = scan_gradient(isa, GradientRef::Fp32(&g));
            assert_eq!(scan.sum_squares.to_bits(), first.sum_squares.to_bits());
            assert!(!scan.overflow && (scan.sum_squares / exact - 1.0).abs() < 1e-12);
        }
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            g[5002] = bad;
            assert!(scan_gradient(Isa::detect(), GradientRef::Fp32(&g)).overflow);
        }
        assert!(scan_gradient(Isa::detect(), GradientRef::Fp16(&[0x7c00])).overflow);
        assert!(!scan_gradient(Isa::detect(), GradientRef::Bf16(&[0x3f80; 5])).overflow);
    }
}
