//! Vectors of x86-64.

use std::arch::x86_64::*;

use super::{Lanes, MULTIPLIERS, halves, weight_of};

/// Implements [`Lanes`] for a vector type. A multiplication of words takes the lower half of each 64-bit
/// element, so words of even and odd place are weighted one after the other.
macro_rules! vector_lanes {
    ($vector:ty, $integers:ty, $width:literal, $load:ident, $store:ident, $splat:ident, $add:ident, $mul:ident,
     $div:ident, $sqrt:ident, $bits:ident, $load_integers:ident, $store_integers:ident, $splat_words:ident,
     $add_words:ident, $mul_words:ident, $add_sums:ident, $shift:ident, $zero:ident, $shift_words:ident, $xor:ident,
     $multiply_words:ident, $halves:ident) => {
        impl Lanes for $vector {
            const WIDTH: usize = $width;
            /// Weights of the words of even places, and of odd ones.
            type Weights = ($integers, $integers);
            type Sum = $integers;
            type Words = $integers;

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
            fn prefetch<T>(address: *const T) {
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
            fn canonical(self) -> Self {
                // SAFETY: as above.
                unsafe { halves::$halves::canonical(self) }
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
            #[inline(always)]
            unsafe fn load_f16(from: *const u16) -> Self {
                // SAFETY: the caller's promise; only reached where the processor has the instruction set.
                unsafe { halves::$halves::load_f16(from) }
            }
            #[inline(always)]
            unsafe fn load_bf16(from: *const u16) -> Self {
                // SAFETY: as above.
                unsafe { halves::$halves::load_bf16(from) }
            }
            #[inline(always)]
            unsafe fn store_f16(self, to: *mut u16) {
                // SAFETY: as above.
                unsafe { halves::$halves::store_f16(self, to) }
            }
            #[inline(always)]
            unsafe fn store_bf16(self, to: *mut u16) {
                // SAFETY: as above.
                unsafe { halves::$halves::store_bf16(self, to) }
            }
            #[inline(always)]
            unsafe fn store_bf16_dithered(self, to: *mut u16, random: Self::Words) {
                // SAFETY: as above.
                unsafe { halves::$halves::store_bf16_dithered(self, to, random) }
            }
            #[inline(always)]
            fn counters(first: u32) -> Self::Words {
                let mut words = [0_u32; $width];
                for (place, word) in words.iter_mut().enumerate() {
                    *word = first.wrapping_add(place as u32);
                }
                // SAFETY: as above; the array is as large as the vector.
                unsafe { $load_integers(words.as_ptr().cast()) }
            }
            #[inline(always)]
            fn advance_counters(counters: Self::Words) -> Self::Words {
                // SAFETY: as above.
                unsafe { $add_words(counters, $splat_words($width)) }
            }
            #[inline(always)]
            fn scramble(counters: Self::Words, keys: [u32; 2]) -> Self::Words {
                // SAFETY: as above.
                unsafe {
                    let key = |index: usize| $splat_words(keys[index] as i32);
                    let factor = |index: usize| $splat_words(MULTIPLIERS[index] as i32);
                    let word = $xor(counters, key(0));
                    let word = $xor(word, $shift_words::<16>(word));
                    let word = $xor($multiply_words(word, factor(0)), key(1));
                    let word = $xor(word, $shift_words::<15>(word));
                    let word = $multiply_words(word, factor(1));
                    $xor(word, $shift_words::<16>(word))
                }
            }
            #[inline(always)]
            fn upper_halves(words: Self::Words) -> Self::Words {
                // SAFETY: as above.
                unsafe { $shift_words::<16>(words) }
            }
            #[inline(always)]
            fn half_weights(first_element: u64) -> Self::Sum {
                debug_assert!(first_element.is_multiple_of(2));
                let mut weights = [0_u64; $width / 2];
                for (place, weight) in weights.iter_mut().enumerate() {
                    *weight = u64::from(weight_of((first_element / 2).wrapping_add(place as u64)));
                }
                // SAFETY: as above; the array is as large as the vector.
                unsafe { $load_integers(weights.as_ptr().cast()) }
            }
            #[inline(always)]
            fn advance_halves(weights: Self::Sum) -> Self::Sum {
                // SAFETY: as above. The upper halves are not multiplied, so what they hold does not matter.
                unsafe { $add_words(weights, $splat_words($width)) }
            }
            #[inline(always)]
            unsafe fn sum_halves(
                from: *const u16,
                sum: Self::Sum,
                weights: Self::Sum,
            ) -> Self::Sum {
                // SAFETY: as above.
                unsafe { $add_sums(sum, $mul_words(halves::$halves::load_words(from), weights)) }
            }
        }
    };
}

vector_lanes! {
    __m256, __m256i, 8, _mm256_loadu_ps, _mm256_storeu_ps, _mm256_set1_ps, _mm256_add_ps, _mm256_mul_ps,
    _mm256_div_ps, _mm256_sqrt_ps, _mm256_castps_si256, _mm256_loadu_si256, _mm256_storeu_si256, _mm256_set1_epi32,
    _mm256_add_epi32, _mm256_mul_epu32, _mm256_add_epi64, _mm256_srli_epi64, _mm256_setzero_si256,
    _mm256_srli_epi32, _mm256_xor_si256, _mm256_mullo_epi32, of_256
}
vector_lanes! {
    __m512, __m512i, 16, _mm512_loadu_ps, _mm512_storeu_ps, _mm512_set1_ps, _mm512_add_ps, _mm512_mul_ps,
    _mm512_div_ps, _mm512_sqrt_ps, _mm512_castps_si512, _mm512_loadu_si512, _mm512_storeu_si512, _mm512_set1_epi32,
    _mm512_add_epi32, _mm512_mul_epu32, _mm512_add_epi64, _mm512_srli_epi64, _mm512_setzero_si512,
    _mm512_srli_epi32, _mm512_xor_si512, _mm512_mullo_epi32, of_512
}
