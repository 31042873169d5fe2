//! The inner loops of the codecs for each instruction set; all give the same result.

use super::element::Element;

/// Elements of a block: small enough that a block and the positions found in it stay in the first-level cache.
pub(super) const BLOCK: usize = 4096;

/// Positions found in one block. A vector store may write a whole vector past the last position.
pub struct Positions(pub(super) [u32; BLOCK + VECTOR]);

/// Elements of the widest vector.
const VECTOR: usize = 16;

impl Positions {
    pub(super) const fn new() -> Self {
        Self([0; BLOCK + VECTOR])
    }
}

/// The instruction sets that the loops exist for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lanes {
    /// Portable code.
    Scalar,
    /// 256-bit vectors.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// 512-bit vectors with compression.
    #[cfg(target_arch = "x86_64")]
    Avx512,
}

impl Lanes {
    /// The sets that this processor has, narrowest first.
    pub(super) fn available() -> Vec<Self> {
        let mut found = vec![Self::Scalar];
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("popcnt") {
            found.push(Self::Avx2);
            if is_x86_feature_detected!("avx512f") {
                found.push(Self::Avx512);
            }
        }
        found
    }

    /// The widest set that this processor has.
    pub(super) fn detect() -> Self {
        Self::available().into_iter().next_back().unwrap_or(Self::Scalar)
    }
}

/// Elements of a block above a magnitude and equal to it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Tally {
    pub greater: u32,
    pub equal: u32,
}

/// Counts the elements of `block` above `magnitude` and equal to it.
pub(super) fn tally<T: Element>(lanes: Lanes, block: &[T], magnitude: u32) -> Tally {
    match lanes {
        Lanes::Scalar => tally_body(block, magnitude),
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a `Lanes` beyond scalar is only made after the processor was asked for its features.
        Lanes::Avx2 => unsafe { x86::tally_avx2(block, magnitude) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above.
        Lanes::Avx512 => unsafe { x86::tally_avx512(block, magnitude) },
    }
}

/// Sum of the bits of all elements, modulo 2^32: it has to load each of them and does little else.
pub(super) fn sum<T: Element>(lanes: Lanes, elements: &[T]) -> u32 {
    match lanes {
        Lanes::Scalar => sum_body(elements),
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a `Lanes` beyond scalar is only made after the processor was asked for its features.
        Lanes::Avx2 => unsafe { x86::sum_avx2(elements) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above.
        Lanes::Avx512 => unsafe { x86::sum_avx512(elements) },
    }
}

/// Positions of `block` whose magnitude is at least `bound`; returns their number.
pub(super) fn positions_f32(lanes: Lanes, block: &[f32], bound: u32, out: &mut Positions) -> usize {
    match lanes {
        Lanes::Scalar => positions_body(block, 0, bound, out, 0),
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a `Lanes` beyond scalar is only made after the processor was asked for its features.
        Lanes::Avx2 => unsafe { x86::positions_f32_avx2(block, bound, out) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above.
        Lanes::Avx512 => unsafe { x86::positions_f32_avx512(block, bound, out) },
    }
}

/// As [`positions_f32`], for fp16 and bf16.
pub(super) fn positions_u16(lanes: Lanes, block: &[u16], bound: u32, out: &mut Positions) -> usize {
    match lanes {
        Lanes::Scalar => positions_body(block, 0, bound, out, 0),
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a `Lanes` beyond scalar is only made after the processor was asked for its features.
        Lanes::Avx2 => unsafe { x86::positions_u16_avx2(block, bound, out) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above.
        Lanes::Avx512 => unsafe { x86::positions_u16_avx512(block, bound, out) },
    }
}

#[inline(always)]
fn tally_body<T: Element>(block: &[T], magnitude: u32) -> Tally {
    let (mut greater, mut equal) = (0, 0);
    for element in block {
        greater += u32::from(element.magnitude() > magnitude);
        equal += u32::from(element.magnitude() == magnitude);
    }
    Tally { greater, equal }
}

#[inline(always)]
fn sum_body<T: Element>(elements: &[T]) -> u32 {
    elements.iter().fold(0, |sum: u32, element| sum.wrapping_add(element.bits()))
}

/// Appends to the `count` positions in `out` those of `block`, whose first element is at position `first`.
#[inline(always)]
fn positions_body<T: Element>(
    block: &[T],
    first: usize,
    bound: u32,
    out: &mut Positions,
    mut count: usize,
) -> usize {
    for (position, element) in block.iter().enumerate() {
        out.0[count] = (first + position) as u32;
        count += usize::from(element.magnitude() >= bound);
    }
    count
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use super::{BLOCK, Element, Positions, Tally, positions_body, sum_body, tally_body};

    #[target_feature(enable = "avx2,popcnt")]
    pub(super) fn tally_avx2<T: Element>(block: &[T], magnitude: u32) -> Tally {
        tally_body(block, magnitude)
    }

    #[target_feature(enable = "avx512f,avx2,popcnt")]
    pub(super) fn tally_avx512<T: Element>(block: &[T], magnitude: u32) -> Tally {
        tally_body(block, magnitude)
    }

    #[target_feature(enable = "avx2,popcnt")]
    pub(super) fn sum_avx2<T: Element>(elements: &[T]) -> u32 {
        sum_body(elements)
    }

    #[target_feature(enable = "avx512f,avx2,popcnt")]
    pub(super) fn sum_avx512<T: Element>(elements: &[T]) -> u32 {
        sum_body(elements)
    }

    /// For each mask of 8 lanes the numbers of its lanes, packed to the front, one a byte.
    static PACKED: [u64; 256] = {
        let mut table = [0_u64; 256];
        let mut mask = 0;
        while mask < 256 {
            let (mut lane, mut place) = (0, 0);
            while lane < 8 {
                if mask >> lane & 1 == 1 {
                    table[mask] |= lane << (8 * place);
                    place += 1;
                }
                lane += 1;
            }
            mask += 1;
        }
        table
    };

    /// The magnitudes of a vector are compared as signed numbers, of which a bound above all is none.
    const GREATEST: u32 = i32::MAX as u32;

    macro_rules! positions_avx512 {
        ($name:ident, $element:ty, $load:expr, $magnitude:literal) => {
            #[target_feature(enable = "avx512f,avx2,popcnt")]
            pub(super) fn $name(block: &[$element], bound: u32, out: &mut Positions) -> usize {
                assert!(block.len() <= BLOCK, "a block has at most {BLOCK} elements");
                if bound > GREATEST {
                    return 0;
                }
                let limit = _mm512_set1_epi32(bound as i32);
                let magnitude = _mm512_set1_epi32($magnitude);
                let step = _mm512_set1_epi32(16);
                let mut at =
                    _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
                let mut count = 0;
                let (vectors, rest) = block.as_chunks::<16>();
                for vector in vectors {
                    // SAFETY: `vector` has 16 elements; the load is unaligned.
                    let bits = unsafe { $load(vector.as_ptr().cast()) };
                    let keep = _mm512_cmpge_epi32_mask(_mm512_and_si512(bits, magnitude), limit);
                    let packed = _mm512_maskz_compress_epi32(keep, at);
                    // SAFETY: `count` is at most the elements seen before, so at most `BLOCK`, and `out` has a
                    // vector more than `BLOCK`.
                    unsafe { _mm512_storeu_si512(out.0.as_mut_ptr().add(count).cast(), packed) };
                    count += keep.count_ones() as usize;
                    at = _mm512_add_epi32(at, step);
                }
                positions_body(rest, block.len() - rest.len(), bound, out, count)
            }
        };
    }

    macro_rules! positions_avx2 {
        ($name:ident, $element:ty, $load:expr, $magnitude:literal) => {
            #[target_feature(enable = "avx2,popcnt")]
            pub(super) fn $name(block: &[$element], bound: u32, out: &mut Positions) -> usize {
                assert!(block.len() <= BLOCK, "a block has at most {BLOCK} elements");
                if bound > GREATEST {
                    return 0;
                }
                let below = _mm256_set1_epi32(bound as i32 - 1);
                let magnitude = _mm256_set1_epi32($magnitude);
                let mut count = 0;
                let (vectors, rest) = block.as_chunks::<8>();
                for (number, vector) in vectors.iter().enumerate() {
                    // SAFETY: `vector` has 8 elements; the load is unaligned.
                    let bits = unsafe { $load(vector.as_ptr().cast()) };
                    let keep = _mm256_cmpgt_epi32(_mm256_and_si256(bits, magnitude), below);
                    let mask = _mm256_movemask_ps(_mm256_castsi256_ps(keep)) as usize & 0xff;
                    let lanes = _mm256_cvtepu8_epi32(_mm_cvtsi64_si128(PACKED[mask] as i64));
                    let packed = _mm256_add_epi32(lanes, _mm256_set1_epi32(number as i32 * 8));
                    // SAFETY: `count` is at most the elements seen before, so at most `BLOCK`, and `out` has more
                    // than 8 beyond `BLOCK`.
                    unsafe { _mm256_storeu_si256(out.0.as_mut_ptr().add(count).cast(), packed) };
                    count += mask.count_ones() as usize;
                }
                positions_body(rest, block.len() - rest.len(), bound, out, count)
            }
        };
    }

    positions_avx512!(positions_f32_avx512, f32, _mm512_loadu_si512, 0x7fff_ffff);
    positions_avx512!(
        positions_u16_avx512,
        u16,
        |at| _mm512_cvtepu16_epi32(_mm256_loadu_si256(at)),
        0x7fff
    );
    positions_avx2!(positions_f32_avx2, f32, _mm256_loadu_si256, 0x7fff_ffff);
    positions_avx2!(
        positions_u16_avx2,
        u16,
        |at| _mm256_cvtepu16_epi32(_mm_loadu_si128(at)),
        0x7fff
    );
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn every_instruction_set_finds_the_same(
            bits in prop::collection::vec(any::<u32>(), 0..200),
            pick in any::<prop::sample::Index>(),
            offset in -1_i64..=1,
        ) {
            let floats: Vec<f32> = bits.iter().map(|&bits| f32::from_bits(bits)).collect();
            let halves: Vec<u16> = bits.iter().map(|&bits| bits as u16).collect();
            let near = |magnitudes: Vec<u32>| match magnitudes.as_slice() {
                [] => 0,
                some => (i64::from(*pick.get(some)) + offset).max(0) as u32,
            };
            check(&floats, near(floats.iter().map(|x| x.magnitude()).collect()))?;
            check(&halves, near(halves.iter().map(|x| x.magnitude()).collect()))?;
        }
    }

    fn check<T: Element>(block: &[T], bound: u32) -> Result<(), TestCaseError> {
        let expected: Vec<u32> = (0..block.len() as u32)
            .filter(|&position| block[position as usize].magnitude() >= bound)
            .collect();
        let tally = Tally {
            greater: block.iter().filter(|x| x.magnitude() > bound).count() as u32,
            equal: block.iter().filter(|x| x.magnitude() == bound).count() as u32,
        };
        for lanes in Lanes::available() {
            let mut out = Positions::new();
            let count = T::positions(lanes, block, bound, &mut out);
            prop_assert_eq!(&out.0[..count], &expected[..], "{:?}", lanes);
            prop_assert_eq!(super::tally(lanes, block, bound), tally, "{:?}", lanes);
            prop_assert_eq!(sum(lanes, block), sum_body(block), "{:?}", lanes);
        }
        Ok(())
    }

    #[test]
    fn a_full_block_fits_when_all_is_kept() {
        for lanes in Lanes::available() {
            let mut out = Positions::new();
            assert_eq!(f32::positions(lanes, &[1.0; BLOCK], 0, &mut out), BLOCK);
            assert_eq!(out.0[BLOCK - 1], BLOCK as u32 - 1);
            assert_eq!(f32::positions(lanes, &[f32::NAN; BLOCK], 1 << 31, &mut out), 0);
        }
    }
}
