//! Elements side by side: one `f32`, or a vector of an instruction set.
//!
//! Every operation rounds each element once, as IEEE 754 prescribes, so the width does not show in the results.

/// Consecutive fp32 elements, and the checksums over their bits.
///
/// The methods of the vector types must only be reached from functions compiled for their instruction set.
pub(super) trait Lanes: Copy {
    /// Number of elements.
    const WIDTH: usize;
    /// Weights of the words of one step in a checksum.
    type Weights: Copy;
    /// Partial sums of a checksum.
    type Sum: Copy;

    /// # Safety
    /// `WIDTH` elements from `from` on can be read; no alignment is needed.
    unsafe fn load(from: *const f32) -> Self;
    /// # Safety
    /// `WIDTH` elements from `to` on can be written; no alignment is needed.
    unsafe fn store(self, to: *mut f32);
    fn splat(value: f32) -> Self;
    /// Asks for the cache line of an address, which need not belong to the program.
    fn prefetch(address: *const f32);
    fn add(self, other: Self) -> Self;
    fn mul(self, other: Self) -> Self;
    fn div(self, other: Self) -> Self;
    fn sqrt(self) -> Self;

    /// The weights of the words from `first_word` on.
    fn weights(first_word: u64) -> Self::Weights;
    /// The weights of the `WIDTH` words that follow.
    fn advance(weights: Self::Weights) -> Self::Weights;
    fn zero_sum() -> Self::Sum;
    /// Adds the bits of all elements, each times its weight.
    fn sum(self, sum: Self::Sum, weights: Self::Weights) -> Self::Sum;
    fn total(sum: Self::Sum) -> u64;
}

/// The weight of a word in a checksum: odd, so that no change of a single word goes unnoticed.
pub(super) const fn weight_of(word: u64) -> u32 {
    (word as u32).wrapping_mul(2).wrapping_add(1)
}

impl Lanes for f32 {
    const WIDTH: usize = 1;
    type Weights = u32;
    type Sum = u64;

    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        // SAFETY: the caller's promise.
        unsafe { from.read_unaligned() }
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: the caller's promise.
        unsafe { to.write_unaligned(self) }
    }
    #[inline(always)]
    fn splat(value: f32) -> Self {
        value
    }
    #[inline(always)]
    fn prefetch(_: *const f32) {}
    #[inline(always)]
    fn add(self, other: Self) -> Self {
        self + other
    }
    #[inline(always)]
    fn mul(self, other: Self) -> Self {
        self * other
    }
    #[inline(always)]
    fn div(self, other: Self) -> Self {
        self / other
    }
    #[inline(always)]
    fn sqrt(self) -> Self {
        f32::sqrt(self)
    }
    #[inline(always)]
    fn weights(first_word: u64) -> u32 {
        weight_of(first_word)
    }
    #[inline(always)]
    fn advance(weights: u32) -> u32 {
        weights.wrapping_add(2)
    }
    #[inline(always)]
    fn zero_sum() -> u64 {
        0
    }
    #[inline(always)]
    fn sum(self, sum: u64, weights: u32) -> u64 {
        sum.wrapping_add(u64::from(self.to_bits()) * u64::from(weights))
    }
    #[inline(always)]
    fn total(sum: u64) -> u64 {
        sum
    }
}

/// Vectors of x86-64.
#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use super::{Lanes, weight_of};

    /// Implements [`Lanes`] for a vector type. A multiplication of words takes the lower half of each 64-bit
    /// element, so words of even and odd place are weighted one after the other.
    macro_rules! vector_lanes {
        ($vector:ty, $integers:ty, $width:literal, $load:ident, $store:ident, $splat:ident, $add:ident, $mul:ident,
         $div:ident, $sqrt:ident, $bits:ident, $load_integers:ident, $store_integers:ident, $splat_words:ident,
         $add_words:ident, $mul_words:ident, $add_sums:ident, $shift:ident, $zero:ident) => {
            impl Lanes for $vector {
                const WIDTH: usize = $width;
                /// Weights of the words of even places, and of odd ones.
                type Weights = ($integers, $integers);
                type Sum = $integers;

                #[inline(always)]
                unsafe fn load(from: *const f32) -> Self {
                    // SAFETY: the caller's promise.
                    unsafe { $load(from) }
                }
                #[inline(always)]
                unsafe fn store(self, to: *mut f32) {
                    // SAFETY: the caller's promise.
                    unsafe { $store(to, self) }
                }
                #[inline(always)]
                fn splat(value: f32) -> Self {
                    // SAFETY: only reached where the processor has the instruction set.
                    unsafe { $splat(value) }
                }
                #[inline(always)]
                fn prefetch(address: *const f32) {
                    // SAFETY: as above; a prefetch neither faults nor accesses what the program can see.
                    unsafe { _mm_prefetch::<_MM_HINT_T0>(address.cast()) }
                }
                #[inline(always)]
                fn add(self, other: Self) -> Self {
                    // SAFETY: as above.
                    unsafe { $add(self, other) }
                }
                #[inline(always)]
                fn mul(self, other: Self) -> Self {
                    // SAFETY: as above.
                    unsafe { $mul(self, other) }
                }
                #[inline(always)]
                fn div(self, other: Self) -> Self {
                    // SAFETY: as above.
                    unsafe { $div(self, other) }
                }
                #[inline(always)]
                fn sqrt(self) -> Self {
                    // SAFETY: as above.
                    unsafe { $sqrt(self) }
                }
                #[inline(always)]
                fn weights(first_word: u64) -> Self::Weights {
                    let mut words = [0_u32; $width];
                    for (place, word) in words.iter_mut().enumerate() {
                        *word = weight_of(first_word.wrapping_add(place as u64));
                    }
                    // SAFETY: as above; the array is as large as the vector.
                    unsafe {
                        let even = $load_integers(words.as_ptr().cast());
                        (even, $shift::<32>(even))
                    }
                }
                #[inline(always)]
                fn advance((even, odd): Self::Weights) -> Self::Weights {
                    // SAFETY: as above.
                    unsafe {
                        let step = $splat_words(2 * $width);
                        ($add_words(even, step), $add_words(odd, step))
                    }
                }
                #[inline(always)]
                fn zero_sum() -> Self::Sum {
                    // SAFETY: as above.
                    unsafe { $zero() }
                }
                #[inline(always)]
                fn sum(self, sum: Self::Sum, (even, odd): Self::Weights) -> Self::Sum {
                    // SAFETY: as above.
                    unsafe {
                        let words = $bits(self);
                        let sum = $add_sums(sum, $mul_words(words, even));
                        $add_sums(sum, $mul_words($shift::<32>(words), odd))
                    }
                }
                #[inline(always)]
                fn total(sum: Self::Sum) -> u64 {
                    let mut parts = [0_u64; $width / 2];
                    // SAFETY: as above; the array is as large as the vector.
                    unsafe { $store_integers(parts.as_mut_ptr().cast(), sum) };
                    parts.iter().fold(0, |total, part| total.wrapping_add(*part))
                }
            }
        };
    }

    vector_lanes! {
        __m256, __m256i, 8, _mm256_loadu_ps, _mm256_storeu_ps, _mm256_set1_ps, _mm256_add_ps, _mm256_mul_ps,
        _mm256_div_ps, _mm256_sqrt_ps, _mm256_castps_si256, _mm256_loadu_si256, _mm256_storeu_si256, _mm256_set1_epi32,
        _mm256_add_epi32, _mm256_mul_epu32, _mm256_add_epi64, _mm256_srli_epi64, _mm256_setzero_si256
    }
    vector_lanes! {
        __m512, __m512i, 16, _mm512_loadu_ps, _mm512_storeu_ps, _mm512_set1_ps, _mm512_add_ps, _mm512_mul_ps,
        _mm512_div_ps, _mm512_sqrt_ps, _mm512_castps_si512, _mm512_loadu_si512, _mm512_storeu_si512, _mm512_set1_epi32,
        _mm512_add_epi32, _mm512_mul_epu32, _mm512_add_epi64, _mm512_srli_epi64, _mm512_setzero_si512
    }
}
