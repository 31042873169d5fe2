//! Number formats that can be selected from: sign-magnitude floats whose magnitude orders like an integer.

use super::lanes::{self, Lanes, Positions};

/// A gradient element: `f32`, or the bits of an fp16 or bf16 number as `u16`.
///
/// Both 16-bit formats order alike, so one implementation serves them.
pub trait Element: Copy + Default + Send + Sync + sealed::Sealed {
    /// Bits of the magnitude.
    #[doc(hidden)]
    const MAGNITUDE_BITS: u32;

    /// The number without its sign as an integer: it orders as `|x|` does, -0.0 equals +0.0, and a NaN is
    /// greater than infinity.
    #[doc(hidden)]
    fn magnitude(self) -> u32;

    /// All bits of the number.
    #[doc(hidden)]
    fn bits(self) -> u32;

    /// The number with these bits.
    #[doc(hidden)]
    fn from_bits(bits: u32) -> Self;

    /// Writes the positions in `block` whose magnitude is at least `bound`, ascending, and returns how many.
    #[doc(hidden)]
    fn positions(lanes: Lanes, block: &[Self], bound: u32, out: &mut Positions) -> usize;
}

impl Element for f32 {
    const MAGNITUDE_BITS: u32 = 31;

    #[inline(always)]
    fn magnitude(self) -> u32 {
        self.to_bits() & 0x7fff_ffff
    }

    #[inline(always)]
    fn bits(self) -> u32 {
        self.to_bits()
    }

    #[inline(always)]
    fn from_bits(bits: u32) -> Self {
        f32::from_bits(bits)
    }

    fn positions(lanes: Lanes, block: &[Self], bound: u32, out: &mut Positions) -> usize {
        lanes::positions_f32(lanes, block, bound, out)
    }
}

impl Element for u16 {
    const MAGNITUDE_BITS: u32 = 15;

    #[inline(always)]
    fn magnitude(self) -> u32 {
        u32::from(self & 0x7fff)
    }

    #[inline(always)]
    fn bits(self) -> u32 {
        u32::from(self)
    }

    #[inline(always)]
    fn from_bits(bits: u32) -> Self {
        bits as u16
    }

    fn positions(lanes: Lanes, block: &[Self], bound: u32, out: &mut Positions) -> usize {
        lanes::positions_u16(lanes, block, bound, out)
    }
}

mod sealed {
    /// Keeps the trait to the formats of this module: the selection relies on what it says of magnitudes.
    pub trait Sealed {}
    impl Sealed for f32 {}
    impl Sealed for u16 {}
}
