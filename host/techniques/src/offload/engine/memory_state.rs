//! The state of `--system memory`: all of it in host memory.

use std::borrow::Cow;

use nearfield_runtime::kernels::{self, Dither, GradientRef, Isa, Moments, Segment, WeightsOut};
use nearfield_runtime::layout::Layout;
use nearfield_runtime::types::{DType, Optimizer, Variable};
use nearfield_runtime::{Error, Result};
use parking_lot::Mutex;
use rayon::ThreadPool;

use crate::offload::options::OffloadOptions;

/// Master weights, moments and gradients of every part.
#[derive(Debug)]
pub(super) struct MemoryState {
    optimizer: Optimizer,
    gradient_dtype: DType,
    moment_dtype: DType,
    parts: Vec<Mutex<PartState>>,
}

#[derive(Debug)]
pub(super) struct PartState {
    /// Master weights, padded elements; so are the others.
    pub param: Vec<f32>,
    /// The moments that the optimizer keeps, in its order.
    moments: Vec<Numbers>,
    gradient: Numbers,
}

/// fp32, or the bits of a 16-bit format.
#[derive(Debug)]
enum Numbers {
    Full(Vec<f32>),
    Half(Vec<u16>),
}

impl Numbers {
    fn zero(dtype: DType, elements: usize) -> Self {
        match dtype {
            DType::Fp32 => Self::Full(vec![0.0; elements]),
            DType::Fp16 | DType::Bf16 => Self::Half(vec![0; elements]),
        }
    }

    fn full(&mut self) -> Option<&mut [f32]> {
        match self {
            Self::Full(numbers) => Some(numbers),
            Self::Half(_) => None,
        }
    }

    fn half(&mut self) -> Option<&mut [u16]> {
        match self {
            Self::Half(bits) => Some(bits),
            Self::Full(_) => None,
        }
    }
}

impl PartState {
    /// Sets the first elements of a moment, by its place among the optimizer's.
    pub fn set_moment(&mut self, place: usize, values: &[f32]) {
        match &mut self.moments[place] {
            Numbers::Full(numbers) => numbers[..values.len()].copy_from_slice(values),
            Numbers::Half(bits) => kernels::f32_to_bf16(values, bits),
        }
    }

    /// The first elements of a moment as fp32.
    pub fn moment(&self, place: usize, elements: usize) -> Cow<'_, [f32]> {
        match &self.moments[place] {
            Numbers::Full(numbers) => Cow::Borrowed(&numbers[..elements]),
            Numbers::Half(bits) => {
                let mut wide = vec![0.0; elements];
                kernels::bf16_to_f32(bits, &mut wide);
                Cow::Owned(wide)
            }
        }
    }
}

impl MemoryState {
    pub fn new(layout: &Layout, options: &OffloadOptions) -> Self {
        let OffloadOptions { optimizer, gradient_dtype, moment_dtype, .. } = *options;
        let parts = (0..layout.parts.len())
            .map(|part| {
                let padded = layout.padded(part) as usize;
                let moments = optimizer.variables().len() - 1;
                Mutex::new(PartState {
                    param: vec![0.0; padded],
                    moments: (0..moments).map(|_| Numbers::zero(moment_dtype, padded)).collect(),
                    gradient: Numbers::zero(gradient_dtype, padded),
                })
            })
            .collect();
        Self { optimizer, gradient_dtype, moment_dtype, parts }
    }

    /// The state of one part.
    pub fn part(&self, part: usize) -> parking_lot::MutexGuard<'_, PartState> {
        self.parts[part].lock()
    }

    /// Stores a run of a part's gradient, given as bytes of the gradient's format.
    pub fn set_gradient(&self, part: usize, first_element: u64, bytes: &[u8]) -> Result<()> {
        let mut state = self.part(part);
        let first = first_element as usize;
        let outside = || Error::Invalid(format!("a gradient run exceeds part {part}"));
        match &mut state.gradient {
            Numbers::Full(gradient) => {
                let target =
                    gradient.get_mut(first..first + bytes.len() / 4).ok_or_else(outside)?;
                for (element, bytes) in target.iter_mut().zip(bytes.chunks_exact(4)) {
                    *element = f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
                }
            }
            Numbers::Half(gradient) => {
                let target =
                    gradient.get_mut(first..first + bytes.len() / 2).ok_or_else(outside)?;
                for (element, bytes) in target.iter_mut().zip(bytes.chunks_exact(2)) {
                    *element = u16::from_le_bytes([bytes[0], bytes[1]]);
                }
            }
        }
        Ok(())
    }

    /// Updates one part; `copy` receives the weights in the working format where that is not fp32.
    #[allow(clippy::too_many_arguments)]
    pub fn update(
        &self,
        part: usize,
        segments: &[Segment],
        dither: Dither,
        copy: &mut [u16],
        copy_dtype: DType,
        isa: Isa,
        pool: &ThreadPool,
    ) -> Result<()> {
        let mut state = self.part(part);
        let PartState { param, moments, gradient } = &mut *state;
        let gradient = match (&*gradient, self.gradient_dtype) {
            (Numbers::Full(gradient), _) => GradientRef::Fp32(gradient),
            (Numbers::Half(gradient), DType::Bf16) => GradientRef::Bf16(gradient),
            (Numbers::Half(gradient), _) => GradientRef::Fp16(gradient),
        };
        let (mut m, mut v) = (None, None);
        for (variable, numbers) in self.optimizer.variables()[1..].iter().zip(moments) {
            match variable {
                Variable::ExpAvg => m = Some(numbers),
                _ => v = Some(numbers),
            }
        }
        let out = match copy_dtype {
            DType::Fp32 => WeightsOut::None,
            DType::Fp16 => WeightsOut::Fp16(copy),
            DType::Bf16 => WeightsOut::Bf16(copy),
        };
        let moments = match self.moment_dtype {
            DType::Bf16 => {
                Moments::Bf16 { m: m.and_then(Numbers::half), v: v.and_then(Numbers::half), dither }
            }
            _ => Moments::Fp32 { m: m.and_then(Numbers::full), v: v.and_then(Numbers::full) },
        };
        kernels::update(
            Some(pool),
            isa,
            self.optimizer,
            segments,
            gradient,
            param,
            moments,
            out,
            0,
        )?;
        Ok(())
    }
}
