//! The checksum of stored arrays.

use super::isa::for_each_isa;

/// Words that are summed side by side.
const LANES: usize = 16;

#[inline(always)]
fn whole_words_body(bytes: &[u8], first_word: u64) -> u64 {
    let mut sums = [0_u64; LANES];
    let mut weights = [0_u32; LANES];
    for (lane, weight) in weights.iter_mut().enumerate() {
        *weight = weight_of(first_word.wrapping_add(lane as u64));
    }
    let blocks = bytes.chunks_exact(4 * LANES);
    let rest = blocks.remainder();
    let rest_first = first_word.wrapping_add(((bytes.len() - rest.len()) / 4) as u64);
    for block in blocks {
        for lane in 0..LANES {
            let at = lane * 4;
            let word = u32::from_le_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]]);
            sums[lane] = sums[lane].wrapping_add(u64::from(word) * u64::from(weights[lane]));
            weights[lane] = weights[lane].wrapping_add(2 * LANES as u32);
        }
    }
    let mut sum = sums.iter().fold(0_u64, |sum, lane| sum.wrapping_add(*lane));
    for (index, word) in rest.chunks(4).enumerate() {
        let mut padded = [0; 4];
        padded[..word.len()].copy_from_slice(word);
        let weight = weight_of(rest_first.wrapping_add(index as u64));
        sum = sum.wrapping_add(u64::from(u32::from_le_bytes(padded)) * u64::from(weight));
    }
    sum
}

/// Odd, so that no change of a single word goes unnoticed.
const fn weight_of(word: u64) -> u32 {
    (word as u32).wrapping_mul(2).wrapping_add(1)
}

for_each_isa! {
    fn dispatch(bytes: &[u8], first_word: u64) -> u64 = whole_words_body
}

/// Position-weighted sum of little-endian 32-bit words: `Σ ((2i+1) mod 2^32)·wᵢ mod 2^64`, where `i` counts from
/// `first_word`. Sums of consecutive pieces add up (wrapping) to the sum of the whole. A rest of less than four
/// bytes counts as if followed by zeros.
pub fn checksum(isa: super::Isa, bytes: &[u8], first_word: u64) -> u64 {
    dispatch(isa, bytes, first_word)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::Isa;
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
