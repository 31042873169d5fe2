//! The arrays of one kernel launch.

use super::dither::Dither;
use crate::error::{Error, Result};
use crate::types::Optimizer;

/// A gradient in one of its formats; 16-bit ones as bits.
#[derive(Debug, Clone, Copy)]
pub enum GradientRef<'a> {
    /// fp32.
    Fp32(&'a [f32]),
    /// fp16.
    Fp16(&'a [u16]),
    /// bfloat16.
    Bf16(&'a [u16]),
}

impl<'a> GradientRef<'a> {
    /// Number of elements.
    pub const fn len(&self) -> usize {
        match self {
            Self::Fp32(g) => g.len(),
            Self::Fp16(g) | Self::Bf16(g) => g.len(),
        }
    }

    /// Whether there is none.
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(super) fn split_at(self, at: usize) -> (Self, Self) {
        match self {
            Self::Fp32(g) => (Self::Fp32(&g[..at]), Self::Fp32(&g[at..])),
            Self::Fp16(g) => (Self::Fp16(&g[..at]), Self::Fp16(&g[at..])),
            Self::Bf16(g) => (Self::Bf16(&g[..at]), Self::Bf16(&g[at..])),
        }
    }

    /// Bytes of one element.
    pub(super) const fn width(&self) -> usize {
        match self {
            Self::Fp32(_) => 4,
            Self::Fp16(_) | Self::Bf16(_) => 2,
        }
    }
}

/// Where the weights' copy in the working format goes.
#[derive(Debug)]
pub enum WeightsOut<'a> {
    /// Nowhere.
    None,
    /// fp32.
    Fp32(&'a mut [f32]),
    /// fp16 bits.
    Fp16(&'a mut [u16]),
    /// bfloat16 bits.
    Bf16(&'a mut [u16]),
}

impl WeightsOut<'_> {
    pub(super) fn len(&self) -> Option<usize> {
        match self {
            Self::None => None,
            Self::Fp32(out) => Some(out.len()),
            Self::Fp16(out) | Self::Bf16(out) => Some(out.len()),
        }
    }

    fn split_at(self, at: usize) -> (Self, Self) {
        match self {
            Self::None => (Self::None, Self::None),
            Self::Fp32(out) => {
                let (a, b) = out.split_at_mut(at);
                (Self::Fp32(a), Self::Fp32(b))
            }
            Self::Fp16(out) => {
                let (a, b) = out.split_at_mut(at);
                (Self::Fp16(a), Self::Fp16(b))
            }
            Self::Bf16(out) => {
                let (a, b) = out.split_at_mut(at);
                (Self::Bf16(a), Self::Bf16(b))
            }
        }
    }
}

/// The moments that the optimizer keeps, in the format in which they are stored.
#[derive(Debug)]
pub enum Moments<'a> {
    /// fp32.
    Fp32 {
        /// First moment.
        m: Option<&'a mut [f32]>,
        /// Second moment.
        v: Option<&'a mut [f32]>,
    },
    /// bfloat16 bits, rounded stochastically.
    Bf16 {
        /// First moment.
        m: Option<&'a mut [u16]>,
        /// Second moment.
        v: Option<&'a mut [u16]>,
        /// The random bits of the step.
        dither: Dither,
    },
}

/// All arrays of a launch, equally long.
pub(super) struct Run<'a, M> {
    pub g: GradientRef<'a>,
    pub p: &'a mut [f32],
    pub m: &'a mut [M],
    pub v: &'a mut [M],
    pub out: WeightsOut<'a>,
}

impl<'a, M> Run<'a, M> {
    /// Checks that the arrays that `kind` needs are there and equally long.
    pub fn new(
        kind: Optimizer,
        g: GradientRef<'a>,
        p: &'a mut [f32],
        moments: [Option<&'a mut [M]>; 2],
        out: WeightsOut<'a>,
    ) -> Result<Self> {
        let (needs_m, needs_v) = match kind {
            Optimizer::Adam | Optimizer::Adamw => (true, true),
            Optimizer::Adagrad => (false, true),
            Optimizer::SgdMomentum => (true, false),
        };
        let [m, v] = moments.map(Option::unwrap_or_default);
        let wanted = |needed: bool| if needed { p.len() } else { 0 };
        if g.len() != p.len()
            || m.len() != wanted(needs_m)
            || v.len() != wanted(needs_v)
            || out.len().is_some_and(|length| length != p.len())
        {
            return Err(Error::Invalid(format!(
                "an update of {} weights got {} gradients, {} first and {} second moments, {:?} outputs",
                p.len(),
                g.len(),
                m.len(),
                v.len(),
                out.len()
            )));
        }
        Ok(Self { g, p, m, v, out })
    }

    pub fn len(&self) -> usize {
        self.p.len()
    }

    pub fn split_at(self, at: usize) -> (Self, Self) {
        let (g, g_rest) = self.g.split_at(at);
        let (p, p_rest) = self.p.split_at_mut(at);
        let (m, m_rest) = self.m.split_at_mut(at.min(self.m.len()));
        let (v, v_rest) = self.v.split_at_mut(at.min(self.v.len()));
        let (out, out_rest) = self.out.split_at(at);
        (
            Self { g, p, m, v, out },
            Self { g: g_rest, p: p_rest, m: m_rest, v: v_rest, out: out_rest },
        )
    }
}

/// The bytes of plain numbers.
pub(super) fn as_bytes<T: Copy>(numbers: &[T]) -> &[u8] {
    // SAFETY: used for f32 and u16 only, which have no padding; the length is that of the slice.
    unsafe { std::slice::from_raw_parts(numbers.as_ptr().cast(), size_of_val(numbers)) }
}
