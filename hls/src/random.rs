//! Random numbers for comparisons of kernels.

/// Random bits, the same whatever the machine.
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// Bits that follow from a seed.
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// 32 bits.
    pub fn word(&mut self) -> u32 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 32) as u32
    }

    /// A number from `-scale` to `scale`.
    pub fn value(&mut self, scale: f32) -> f32 {
        (self.word() as f32 / u32::MAX as f32 - 0.5) * 2.0 * scale
    }
}
