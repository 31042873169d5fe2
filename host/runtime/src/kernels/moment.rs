//! Moments in the format in which they are stored.

use super::lanes::Lanes;
use super::run::as_bytes;
use super::{Isa, checksum};

/// A number in which moments are stored: fp32, or the bits of a bfloat16.
pub(super) trait Moment: Copy + Default + Send + Sync {
    /// Whether two of them share a word of a checksum.
    const NARROW: bool;

    /// # Safety
    /// `L::WIDTH` numbers from `from` on can be read; so it is for the other methods.
    unsafe fn load<L: Lanes>(from: *const Self) -> L;
    /// Rounds with the lower 16 of the random bits.
    unsafe fn store<L: Lanes>(value: L, to: *mut Self, random: L::Words);
    /// Adds what lies at `at`, which holds `value`, to a checksum.
    unsafe fn sum<L: Lanes>(
        at: *const Self,
        value: L,
        sum: L::Sum,
        weights: L::Weights,
        half_weights: L::Sum,
    ) -> L::Sum;
    /// The checksum of numbers that lie from `first_element` on in their array.
    fn checksum(isa: Isa, numbers: &[Self], first_element: u64) -> u64;
}

impl Moment for f32 {
    const NARROW: bool = false;

    #[inline(always)]
    unsafe fn load<L: Lanes>(from: *const Self) -> L {
        // SAFETY: the caller's promise; so it is below.
        unsafe { L::load(from) }
    }
    #[inline(always)]
    unsafe fn store<L: Lanes>(value: L, to: *mut Self, _: L::Words) {
        // SAFETY: as above.
        unsafe { value.store(to) }
    }
    #[inline(always)]
    unsafe fn sum<L: Lanes>(
        _: *const Self,
        value: L,
        sum: L::Sum,
        weights: L::Weights,
        _: L::Sum,
    ) -> L::Sum {
        value.sum(sum, weights)
    }
    fn checksum(isa: Isa, numbers: &[Self], first_element: u64) -> u64 {
        checksum(isa, as_bytes(numbers), first_element)
    }
}

impl Moment for u16 {
    const NARROW: bool = true;

    #[inline(always)]
    unsafe fn load<L: Lanes>(from: *const Self) -> L {
        // SAFETY: the caller's promise; so it is below.
        unsafe { L::load_bf16(from) }
    }
    #[inline(always)]
    unsafe fn store<L: Lanes>(value: L, to: *mut Self, random: L::Words) {
        // SAFETY: as above.
        unsafe { value.store_bf16_dithered(to, random) }
    }
    #[inline(always)]
    unsafe fn sum<L: Lanes>(
        at: *const Self,
        _: L,
        sum: L::Sum,
        _: L::Weights,
        half_weights: L::Sum,
    ) -> L::Sum {
        // SAFETY: as above.
        unsafe { L::sum_halves(at, sum, half_weights) }
    }
    fn checksum(isa: Isa, numbers: &[Self], first_element: u64) -> u64 {
        // Numbers may begin in the middle of a word.
        match numbers.split_first() {
            Some((&first, others)) if first_element % 2 == 1 => {
                let word = u32::from(first) << 16;
                let others = checksum(isa, as_bytes(others), first_element / 2 + 1);
                checksum(isa, &word.to_le_bytes(), first_element / 2).wrapping_add(others)
            }
            _ => checksum(isa, as_bytes(numbers), first_element / 2),
        }
    }
}
