//! The checksum of stored arrays.

use super::isa::Isa;
use super::lanes::{Lanes, weight_of};

/// Vectors that are summed side by side.
const SIDE_BY_SIDE: usize = 4;

#[inline(always)]
fn body<L: Lanes>(bytes: &[u8], first_word: u64) -> u64 {
    let vector_bytes = 4 * L::WIDTH;
    let blocks = bytes.chunks_exact(vector_bytes * SIDE_BY_SIDE);
    let rest = blocks.remainder();
    let rest_first = first_word.wrapping_add(((bytes.len() - rest.len()) / 4) as u64);
    let mut sums = [L::zero_sum(); SIDE_BY_SIDE];
    let mut weights = L::weights(first_word);
    for block in blocks {
        for (place, sum) in sums.iter_mut().enumerate() {
            // SAFETY: the block holds `SIDE_BY_SIDE` vectors.
            let words = unsafe { L::load(block.as_ptr().add(place * vector_bytes).cast()) };
            *sum = words.sum(*sum, weights);
            weights = L::advance(weights);
        }
    }
    let mut total = sums.into_iter().fold(0, |total: u64, sum| total.wrapping_add(L::total(sum)));
    for (index, word) in rest.chunks(4).enumerate() {
        let mut padded = [0; 4];
        padded[..word.len()].copy_from_slice(word);
        let weight = weight_of(rest_first.wrapping_add(index as u64));
        total = total.wrapping_add(u64::from(u32::from_le_bytes(padded)) * u64::from(weight));
    }
    total
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,f16c")]
fn avx2(bytes: &[u8], first_word: u64) -> u64 {
    body::<std::arch::x86_64::__m256>(bytes, first_word)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,f16c,avx512f,avx512bw,avx512dq,avx512vl")]
fn avx512(bytes: &[u8], first_word: u64) -> u64 {
    body::<std::arch::x86_64::__m512>(bytes, first_word)
}

/// Position-weighted sum of little-endian 32-bit words: `Σ ((2i+1) mod 2^32)·wᵢ mod 2^64`, where `i` counts from
/// `first_word`. Sums of consecutive pieces add up (wrapping) to the sum of the whole. A rest of less than four
/// bytes counts as if followed by zeros.
pub fn checksum(isa: Isa, bytes: &[u8], first_word: u64) -> u64 {
    match isa.checked() {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: `checked` returns only what this processor has.
        Isa::Avx512 => unsafe { avx512(bytes, first_word) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above.
        Isa::Avx2 => unsafe { avx2(bytes, first_word) },
        _ => body::<f32>(bytes, first_word),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn plain(bytes: &[u8]) -> u64 {
        bytes.chunks(4).enumerate().fold(0_u64, |sum, (index, word)| {
            let mut padded = [0; 4];
            padded[..word.len()].copy_from_slice(word);
            let weight = (2 * index as u64 + 1) & 0xffff_ffff;
            sum.wrapping_add(u64::from(u32::from_le_bytes(padded)).wrapping_mul(weight))
        })
    }

    proptest! {
        #[test]
        fn every_isa_gives_the_plain_sum_and_pieces_add_up(
            bytes in prop::collection::vec(any::<u8>(), 0..700),
            cut in 0_usize..175,
        ) {
            let cut = (cut * 4).min(bytes.len() / 4 * 4);
            for &isa in Isa::available() {
                prop_assert_eq!(checksum(isa, &bytes, 0), plain(&bytes));
                let (a, b) = bytes.split_at(cut);
                let sum = checksum(isa, a, 0).wrapping_add(checksum(isa, b, (cut / 4) as u64));
                prop_assert_eq!(sum, plain(&bytes));
            }
        }

        #[test]
        fn a_flipped_bit_and_swapped_words_are_noticed(
            mut words in prop::collection::vec(any::<u32>(), 2..200),
            at in any::<prop::sample::Index>(), other in any::<prop::sample::Index>(), bit in 0_u32..32,
        ) {
            let bytes = |words: &[u32]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<_>>();
            let before = checksum(Isa::detect(), &bytes(&words), 0);
            let (a, b) = (at.index(words.len()), other.index(words.len()));
            words[a] ^= 1 << bit;
            prop_assert_ne!(checksum(Isa::detect(), &bytes(&words), 0), before);
            words[a] ^= 1 << bit;
            if words[a] != words[b] {
                words.swap(a, b);
                prop_assert_ne!(checksum(Isa::detect(), &bytes(&words), 0), before);
            }
        }
    }
}
