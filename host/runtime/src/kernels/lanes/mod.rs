//! Elements side by side: one `f32`, or a vector of an instruction set.
//!
//! Every operation rounds each element once, as IEEE 754 prescribes, so the width does not show in the results.

use super::dither::MULTIPLIERS;

#[cfg(target_arch = "x86_64")]
mod halves;
#[cfg(target_arch = "x86_64")]
mod vectors;

/// The NaN of [`Lanes::canonical`].
const CANONICAL_NAN: u32 = 0x7fc0_0000;

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
    /// One 32-bit number for each element.
    type Words: Copy;

    /// # Safety
    /// `WIDTH` elements from `from` on can be read; no alignment is needed.
    unsafe fn load(from: *const f32) -> Self;
    /// # Safety
    /// `WIDTH` elements from `to` on can be written; no alignment is needed.
    unsafe fn store(self, to: *mut f32);
    fn splat(value: f32) -> Self;
    /// Asks for the cache line of an address, which need not belong to the program.
    fn prefetch<T>(address: *const T);
    fn add(self, other: Self) -> Self;
    fn mul(self, other: Self) -> Self;
    fn div(self, other: Self) -> Self;
    fn sqrt(self) -> Self;
    /// The same numbers, and one NaN for all that are none: which of two NaN an operation passes on depends on the machine.
    fn canonical(self) -> Self;

    /// The weights of the words from `first_word` on.
    fn weights(first_word: u64) -> Self::Weights;
    /// The weights of the `WIDTH` words that follow.
    fn advance(weights: Self::Weights) -> Self::Weights;
    fn zero_sum() -> Self::Sum;
    /// Adds the bits of all elements, each times its weight.
    fn sum(self, sum: Self::Sum, weights: Self::Weights) -> Self::Sum;
    fn total(sum: Self::Sum) -> u64;

    /// Widens fp16 bits.
    ///
    /// # Safety
    /// As [`Lanes::load`], with elements of two bytes; so are the methods below.
    unsafe fn load_f16(from: *const u16) -> Self;
    /// Widens bfloat16 bits.
    unsafe fn load_bf16(from: *const u16) -> Self;
    /// Rounds to fp16 bits.
    unsafe fn store_f16(self, to: *mut u16);
    /// Rounds to bfloat16 bits.
    unsafe fn store_bf16(self, to: *mut u16);
    /// Rounds to bfloat16 bits, up or down as the lower 16 of the random bits say.
    unsafe fn store_bf16_dithered(self, to: *mut u16, random: Self::Words);
    /// The numbers from `first` on.
    fn counters(first: u32) -> Self::Words;
    /// The `WIDTH` numbers that follow.
    fn advance_counters(counters: Self::Words) -> Self::Words;
    /// The random bits of counters (see [`super::Dither`]).
    fn scramble(counters: Self::Words, keys: [u32; 2]) -> Self::Words;
    /// The upper 16 bits of each number.
    fn upper_halves(words: Self::Words) -> Self::Words;
    /// The weights of the words that hold the 16-bit elements from `first_element` on, two a word; the first
    /// element is even where `WIDTH` is.
    fn half_weights(first_element: u64) -> Self::Sum;
    /// The weights for the `WIDTH` elements that follow.
    fn advance_halves(weights: Self::Sum) -> Self::Sum;
    /// Adds the bits of `WIDTH` 16-bit elements, each word times its weight.
    unsafe fn sum_halves(from: *const u16, sum: Self::Sum, weights: Self::Sum) -> Self::Sum;
}

/// The weight of a word in a checksum: odd, so that no change of a single word goes unnoticed.
pub(super) const fn weight_of(word: u64) -> u32 {
    (word as u32).wrapping_mul(2).wrapping_add(1)
}

impl Lanes for f32 {
    const WIDTH: usize = 1;
    type Weights = u32;
    type Sum = u64;
    type Words = u32;

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
    fn prefetch<T>(_: *const T) {}
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
    fn canonical(self) -> Self {
        if self.is_nan() { f32::from_bits(CANONICAL_NAN) } else { self }
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
    #[inline(always)]
    unsafe fn load_f16(from: *const u16) -> Self {
        // SAFETY: the caller's promise.
        half::f16::from_bits(unsafe { from.read_unaligned() }).to_f32()
    }
    #[inline(always)]
    unsafe fn load_bf16(from: *const u16) -> Self {
        // SAFETY: the caller's promise.
        f32::from_bits(u32::from(unsafe { from.read_unaligned() }) << 16)
    }
    #[inline(always)]
    unsafe fn store_f16(self, to: *mut u16) {
        // SAFETY: the caller's promise.
        unsafe { to.write_unaligned(half::f16::from_f32(self).to_bits()) }
    }
    #[inline(always)]
    unsafe fn store_bf16(self, to: *mut u16) {
        // SAFETY: the caller's promise.
        unsafe { to.write_unaligned(bf16_bits(self)) }
    }
    #[inline(always)]
    unsafe fn store_bf16_dithered(self, to: *mut u16, random: u32) {
        // SAFETY: the caller's promise.
        unsafe { to.write_unaligned(bf16_dithered(self, random)) }
    }
    #[inline(always)]
    fn counters(first: u32) -> u32 {
        first
    }
    #[inline(always)]
    fn advance_counters(counter: u32) -> u32 {
        counter.wrapping_add(1)
    }
    #[inline(always)]
    fn scramble(counter: u32, keys: [u32; 2]) -> u32 {
        let mut word = counter ^ keys[0];
        word = (word ^ (word >> 16)).wrapping_mul(MULTIPLIERS[0]) ^ keys[1];
        word = (word ^ (word >> 15)).wrapping_mul(MULTIPLIERS[1]);
        word ^ (word >> 16)
    }
    #[inline(always)]
    fn upper_halves(word: u32) -> u32 {
        word >> 16
    }
    /// The next element's place.
    #[inline(always)]
    fn half_weights(first_element: u64) -> u64 {
        first_element
    }
    #[inline(always)]
    fn advance_halves(element: u64) -> u64 {
        element.wrapping_add(1)
    }
    #[inline(always)]
    unsafe fn sum_halves(from: *const u16, sum: u64, element: u64) -> u64 {
        // SAFETY: the caller's promise.
        let bits = u64::from(unsafe { from.read_unaligned() }) << (element % 2 * 16);
        sum.wrapping_add(bits * u64::from(weight_of(element / 2)))
    }
}

/// `value` rounded to bfloat16. A NaN must not be rounded to infinity: it is cut and made quiet.
#[inline(always)]
pub(super) fn bf16_bits(value: f32) -> u16 {
    let bits = value.to_bits();
    let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16;
    let quiet = (bits >> 16) | 0x40;
    let nan = bits & 0x7fff_ffff > 0x7f80_0000;
    (if nan { quiet } else { rounded }) as u16
}

/// `value` rounded to bfloat16, away from zero with the probability that its lower bits say: the lower 16 of `random` are
/// added to them. A NaN stays one, as in [`bf16_bits`].
#[inline(always)]
pub(super) fn bf16_dithered(value: f32, random: u32) -> u16 {
    let bits = value.to_bits();
    let rounded = bits.wrapping_add(random & 0xffff) >> 16;
    let quiet = (bits >> 16) | 0x40;
    let nan = bits & 0x7fff_ffff > 0x7f80_0000;
    (if nan { quiet } else { rounded }) as u16
}
