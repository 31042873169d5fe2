//! Vectors of 16-bit numbers: widened, rounded to nearest, ties to even, and as words of checksums.

/// With 256-bit vectors: AVX2 and F16C.
pub(super) mod of_256 {
    use std::arch::x86_64::*;

    use super::super::CANONICAL_NAN;

    /// # Safety
    /// As below.
    #[inline(always)]
    pub unsafe fn canonical(value: __m256) -> __m256 {
        // SAFETY: the caller's promise.
        unsafe {
            let nan = _mm256_castsi256_ps(_mm256_set1_epi32(CANONICAL_NAN as i32));
            _mm256_blendv_ps(value, nan, _mm256_cmp_ps::<_CMP_UNORD_Q>(value, value))
        }
    }

    /// # Safety
    /// 16 bytes can be read, and the processor has AVX2 and F16C; so it is for every function here.
    #[inline(always)]
    pub unsafe fn load_f16(from: *const u16) -> __m256 {
        // SAFETY: the caller's promise.
        unsafe { _mm256_cvtph_ps(_mm_loadu_si128(from.cast())) }
    }

    #[inline(always)]
    pub unsafe fn load_bf16(from: *const u16) -> __m256 {
        // SAFETY: the caller's promise.
        unsafe {
            let words = _mm256_cvtepu16_epi32(_mm_loadu_si128(from.cast()));
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(words))
        }
    }

    /// # Safety
    /// 16 bytes can be written.
    #[inline(always)]
    pub unsafe fn store_f16(value: __m256, to: *mut u16) {
        // SAFETY: the caller's promise.
        unsafe {
            let bits = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(value);
            _mm_storeu_si128(to.cast(), bits);
        }
    }

    /// # Safety
    /// 16 bytes can be written.
    #[inline(always)]
    pub unsafe fn store_bf16(value: __m256, to: *mut u16) {
        // SAFETY: the caller's promise.
        unsafe {
            let bits = _mm256_castps_si256(value);
            let top = _mm256_srli_epi32::<16>(bits);
            let odd = _mm256_and_si256(top, _mm256_set1_epi32(1));
            let half = _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff));
            let rounded = _mm256_srli_epi32::<16>(_mm256_add_epi32(bits, half));
            let quiet = _mm256_or_si256(top, _mm256_set1_epi32(0x40));
            let nan = _mm256_castps_si256(_mm256_cmp_ps::<_CMP_UNORD_Q>(value, value));
            store_lower_halves(_mm256_blendv_epi8(rounded, quiet, nan), to);
        }
    }

    /// # Safety
    /// 16 bytes can be written.
    #[inline(always)]
    unsafe fn store_lower_halves(words: __m256i, to: *mut u16) {
        // SAFETY: the caller's promise.
        unsafe {
            // Packing works within halves of the vector, so each half's result lies in quarters 0 and 2.
            let packed = _mm256_permute4x64_epi64::<0b1000>(_mm256_packus_epi32(words, words));
            _mm_storeu_si128(to.cast(), _mm256_castsi256_si128(packed));
        }
    }

    /// # Safety
    /// 16 bytes can be written.
    #[inline(always)]
    pub unsafe fn store_bf16_dithered(value: __m256, to: *mut u16, random: __m256i) {
        // SAFETY: the caller's promise.
        unsafe {
            let bits = _mm256_castps_si256(value);
            let quiet = _mm256_or_si256(_mm256_srli_epi32::<16>(bits), _mm256_set1_epi32(0x40));
            let dither = _mm256_and_si256(random, _mm256_set1_epi32(0xffff));
            let rounded = _mm256_srli_epi32::<16>(_mm256_add_epi32(bits, dither));
            let nan = _mm256_castps_si256(_mm256_cmp_ps::<_CMP_UNORD_Q>(value, value));
            store_lower_halves(_mm256_blendv_epi8(rounded, quiet, nan), to);
        }
    }

    /// Four words of two elements, each in 64 bits.
    #[inline(always)]
    pub unsafe fn load_words(from: *const u16) -> __m256i {
        // SAFETY: the caller's promise.
        unsafe { _mm256_cvtepu32_epi64(_mm_loadu_si128(from.cast())) }
    }
}

/// With 512-bit vectors: AVX-512 F.
pub(super) mod of_512 {
    use std::arch::x86_64::*;

    use super::super::CANONICAL_NAN;

    /// # Safety
    /// As below.
    #[inline(always)]
    pub unsafe fn canonical(value: __m512) -> __m512 {
        // SAFETY: the caller's promise.
        unsafe {
            let nan = _mm512_castsi512_ps(_mm512_set1_epi32(CANONICAL_NAN as i32));
            _mm512_mask_mov_ps(value, _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(value, value), nan)
        }
    }

    /// # Safety
    /// 32 bytes can be read, and the processor has AVX-512 F; so it is for every function here.
    #[inline(always)]
    pub unsafe fn load_f16(from: *const u16) -> __m512 {
        // SAFETY: the caller's promise.
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(from.cast())) }
    }

    #[inline(always)]
    pub unsafe fn load_bf16(from: *const u16) -> __m512 {
        // SAFETY: the caller's promise.
        unsafe {
            let words = _mm512_cvtepu16_epi32(_mm256_loadu_si256(from.cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(words))
        }
    }

    /// # Safety
    /// 32 bytes can be written.
    #[inline(always)]
    pub unsafe fn store_f16(value: __m512, to: *mut u16) {
        // SAFETY: the caller's promise.
        unsafe {
            let bits = _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(value);
            _mm256_storeu_si256(to.cast(), bits);
        }
    }

    /// # Safety
    /// 32 bytes can be written.
    #[inline(always)]
    pub unsafe fn store_bf16(value: __m512, to: *mut u16) {
        // SAFETY: the caller's promise.
        unsafe {
            let bits = _mm512_castps_si512(value);
            let top = _mm512_srli_epi32::<16>(bits);
            let odd = _mm512_and_si512(top, _mm512_set1_epi32(1));
            let half = _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff));
            let rounded = _mm512_srli_epi32::<16>(_mm512_add_epi32(bits, half));
            let quiet = _mm512_or_si512(top, _mm512_set1_epi32(0x40));
            let nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(value, value);
            let words = _mm512_mask_blend_epi32(nan, rounded, quiet);
            _mm256_storeu_si256(to.cast(), _mm512_cvtepi32_epi16(words));
        }
    }

    /// # Safety
    /// 32 bytes can be written.
    #[inline(always)]
    pub unsafe fn store_bf16_dithered(value: __m512, to: *mut u16, random: __m512i) {
        // SAFETY: the caller's promise.
        unsafe {
            let bits = _mm512_castps_si512(value);
            let quiet = _mm512_or_si512(_mm512_srli_epi32::<16>(bits), _mm512_set1_epi32(0x40));
            let dither = _mm512_and_si512(random, _mm512_set1_epi32(0xffff));
            let rounded = _mm512_srli_epi32::<16>(_mm512_add_epi32(bits, dither));
            let nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(value, value);
            let words = _mm512_mask_blend_epi32(nan, rounded, quiet);
            _mm256_storeu_si256(to.cast(), _mm512_cvtepi32_epi16(words));
        }
    }

    /// Eight words of two elements, each in 64 bits.
    #[inline(always)]
    pub unsafe fn load_words(from: *const u16) -> __m512i {
        // SAFETY: the caller's promise.
        unsafe { _mm512_cvtepu32_epi64(_mm256_loadu_si256(from.cast())) }
    }
}
