//! The arrays of one kernel launch.

use super::checksum::checksum;
use super::dither::Dither;
use super::isa::Isa;
use crate::codec::pairs_in;
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

/// Kept pairs of a compressed gradient, as those of a run of elements: all others are zero.
#[derive(Debug, Clone, Copy)]
pub struct PairsRef<'a> {
    indices: &'a [u32],
    values: &'a [f32],
    /// Place of the first pair among those of the subgroup.
    first_pair: u64,
    /// Place of the first element in the subgroup.
    first_element: u64,
    elements: usize,
}

impl<'a> PairsRef<'a> {
    /// The pairs of elements `[first_element, first_element + elements)` of a subgroup, out of all of its pairs.
    /// `indices` count from the start of the subgroup and ascend (see [`crate::codec::check_pairs`]).
    ///
    /// # Errors
    /// [`Error::Invalid`] when the lengths differ.
    pub fn new(
        indices: &'a [u32],
        values: &'a [f32],
        first_element: u64,
        elements: usize,
    ) -> Result<Self> {
        if indices.len() != values.len() {
            let (indices, values) = (indices.len(), values.len());
            return Err(Error::Invalid(format!(
                "sparse gradient: {indices} indices but {values} values"
            )));
        }
        let range = pairs_in(indices, first_element, elements as u64);
        Ok(Self {
            indices: &indices[range.clone()],
            values: &values[range.clone()],
            first_pair: range.start as u64,
            first_element,
            elements,
        })
    }

    /// Their values as a dense gradient. Elements are looked for by value, so that unsorted indices cannot lead astray.
    pub(super) fn expand(&self, out: &mut [f32]) {
        out.fill(0.0);
        for (&index, &value) in self.indices.iter().zip(self.values) {
            let place = u64::from(index).wrapping_sub(self.first_element);
            if let Some(out) = usize::try_from(place).ok().and_then(|place| out.get_mut(place)) {
                *out = value;
            }
        }
    }

    /// Checksum of the values, by their places in the array of all values.
    pub(super) fn checksum(&self, isa: Isa) -> u64 {
        checksum(isa, as_bytes(self.values), self.first_pair)
    }
}

/// A gradient as an update takes it.
#[derive(Debug, Clone, Copy)]
pub enum Gradient<'a> {
    /// All elements.
    Dense(GradientRef<'a>),
    /// The kept ones.
    Pairs(PairsRef<'a>),
}

impl<'a> From<GradientRef<'a>> for Gradient<'a> {
    fn from(dense: GradientRef<'a>) -> Self {
        Self::Dense(dense)
    }
}

impl<'a> From<PairsRef<'a>> for Gradient<'a> {
    fn from(pairs: PairsRef<'a>) -> Self {
        Self::Pairs(pairs)
    }
}

/// Something that is cut together with the arrays of a run.
pub(super) trait Elements: Copy {
    fn elements(&self) -> usize;
    fn cut(self, at: usize) -> (Self, Self);
}

impl Elements for GradientRef<'_> {
    fn elements(&self) -> usize {
        self.len()
    }

    fn cut(self, at: usize) -> (Self, Self) {
        self.split_at(at)
    }
}

impl Elements for Gradient<'_> {
    fn elements(&self) -> usize {
        match self {
            Self::Dense(dense) => dense.len(),
            Self::Pairs(pairs) => pairs.elements,
        }
    }

    fn cut(self, at: usize) -> (Self, Self) {
        match self {
            Self::Dense(dense) => {
                let (a, b) = dense.split_at(at);
                (Self::Dense(a), Self::Dense(b))
            }
            Self::Pairs(pairs) => {
                let next = pairs.first_element + at as u64;
                let pair = pairs.indices.partition_point(|&index| u64::from(index) < next);
                let (indices, later_indices) = pairs.indices.split_at(pair);
                let (values, later_values) = pairs.values.split_at(pair);
                let first = PairsRef { indices, values, elements: at, ..pairs };
                let second = PairsRef {
                    indices: later_indices,
                    values: later_values,
                    first_pair: pairs.first_pair + pair as u64,
                    first_element: next,
                    elements: pairs.elements - at,
                };
                (Self::Pairs(first), Self::Pairs(second))
            }
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
pub(super) struct Run<'a, M, G = GradientRef<'a>> {
    pub g: G,
    pub p: &'a mut [f32],
    pub m: &'a mut [M],
    pub v: &'a mut [M],
    pub out: WeightsOut<'a>,
}

impl<'a, M, G: Elements> Run<'a, M, G> {
    /// Checks that the arrays that `kind` needs are there and equally long.
    pub fn new(
        kind: Optimizer,
        g: G,
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
        if g.elements() != p.len()
            || m.len() != wanted(needs_m)
            || v.len() != wanted(needs_v)
            || out.len().is_some_and(|length| length != p.len())
        {
            return Err(Error::Invalid(format!(
                "an update of {} weights got {} gradients, {} first and {} second moments, {:?} outputs",
                p.len(),
                g.elements(),
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

    /// The same arrays with another gradient.
    pub fn with<H>(self, g: H) -> Run<'a, M, H> {
        let Self { g: _, p, m, v, out } = self;
        Run { g, p, m, v, out }
    }

    pub fn split_at(self, at: usize) -> (Self, Self) {
        let (g, g_rest) = self.g.cut(at);
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
