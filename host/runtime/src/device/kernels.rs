//! The kernels beside a drive, on buffers that are already at hand: those of the CPU, or others that give the same bits.

use std::sync::Arc;

use rayon::ThreadPool;

use super::PairsCheck;
use crate::codec;
use crate::error::{Error, Result};
use crate::kernels::{
    self, Dither, Gradient, GradientRef, Isa, Moments, PairsRef, Segment, UpdateSums, WeightsOut,
};
use crate::memory::Region;
use crate::types::{DType, Optimizer};

/// The gradient of a [`Launch`].
#[derive(Debug)]
pub enum LocalGradient<'a> {
    /// All elements, in a number format.
    Dense(&'a Region, DType),
    /// Kept pairs.
    Pairs {
        /// `u32` indices from the start of the subgroup, ascending.
        indices: &'a Region,
        /// fp32 values.
        values: &'a Region,
        /// What [`Kernels::check_pairs`] has left there.
        bounds: &'a Region,
        /// Number of pairs of the whole subgroup.
        pairs: u64,
    },
}

/// One launch of an update kernel, as [`super::UpdateCall`] with the buffers' memory. Buffers may be longer than what is
/// worked on.
#[derive(Debug)]
pub struct Launch<'a> {
    /// Update rule.
    pub optimizer: Optimizer,
    /// Consecutive runs with their own hyper-parameters; what follows the last is padding.
    pub segments: &'a [Segment],
    /// Position of the run in its subgroup, in elements.
    pub first_element: u64,
    /// Elements of the run, padding included.
    pub elements: usize,
    /// The gradient.
    pub gradient: LocalGradient<'a>,
    /// Master weights, fp32.
    pub param: &'a mut Region,
    /// First moments, if the rule keeps them.
    pub exp_avg: Option<&'a mut Region>,
    /// Second moments, if the rule keeps them.
    pub exp_avg_sq: Option<&'a mut Region>,
    /// Number format of the moments: fp32 or bf16.
    pub moments: DType,
    /// The random bits with which moments in bf16 are rounded.
    pub dither: Dither,
    /// Where the weights' copy in another format goes.
    pub weights: Option<(&'a mut Region, DType)>,
}

/// What a device computes. Every implementation gives the same bits.
pub trait Kernels: Send + Sync + std::fmt::Debug {
    /// Checks whether the first `pairs` indices ascend strictly and stay below `elements`. May leave in `bounds` what helps
    /// [`Kernels::update`] to find pairs.
    ///
    /// # Errors
    /// Buffers that are too short.
    fn check_pairs(
        &self,
        indices: &Region,
        pairs: u64,
        elements: u64,
        bounds: &mut Region,
    ) -> Result<PairsCheck>;

    /// Runs the update kernel; returns checksums of all it read and wrote.
    ///
    /// # Errors
    /// Buffers that are missing or too short.
    fn update(&self, launch: Launch<'_>) -> Result<UpdateSums>;
}

/// The SIMD kernels of [`crate::kernels`].
#[derive(Debug, Clone)]
pub struct CpuKernels {
    /// Instruction set.
    pub isa: Isa,
    /// Threads, shared by all drives of a run; `None` runs kernels on the calling thread.
    pub pool: Option<Arc<ThreadPool>>,
}

fn short() -> Error {
    Error::Invalid("a buffer of a kernel is too short".into())
}

impl Kernels for CpuKernels {
    fn check_pairs(
        &self,
        indices: &Region,
        pairs: u64,
        elements: u64,
        _bounds: &mut Region,
    ) -> Result<PairsCheck> {
        let indices = indices.as_u32().get(..pairs as usize).ok_or_else(short)?;
        Ok(PairsCheck {
            checksum: kernels::checksum(self.isa, bytemuck::cast_slice(indices), 0),
            first_wrong: codec::first_wrong_pair(indices, elements).map(|place| place as u64),
        })
    }

    fn update(&self, launch: Launch<'_>) -> Result<UpdateSums> {
        let elements = launch.elements;
        let gradient: Gradient = match launch.gradient {
            LocalGradient::Dense(buffer, dtype) => {
                let bits = || buffer.as_u16().get(..elements).ok_or_else(short);
                match dtype {
                    DType::Fp32 => {
                        GradientRef::Fp32(buffer.as_f32().get(..elements).ok_or_else(short)?)
                    }
                    DType::Fp16 => GradientRef::Fp16(bits()?),
                    DType::Bf16 => GradientRef::Bf16(bits()?),
                }
                .into()
            }
            LocalGradient::Pairs { indices, values, pairs, .. } => {
                let pairs = pairs as usize;
                let indices = indices.as_u32().get(..pairs).ok_or_else(short)?;
                let values = values.as_f32().get(..pairs).ok_or_else(short)?;
                PairsRef::new(indices, values, launch.first_element, elements)?.into()
            }
        };
        let moments = match launch.moments {
            DType::Bf16 => Moments::Bf16 {
                m: bits(launch.exp_avg, elements)?,
                v: bits(launch.exp_avg_sq, elements)?,
                dither: launch.dither,
            },
            _ => Moments::Fp32 {
                m: wide(launch.exp_avg, elements)?,
                v: wide(launch.exp_avg_sq, elements)?,
            },
        };
        let out = match launch.weights {
            None => WeightsOut::None,
            Some((buffer, DType::Fp32)) => {
                WeightsOut::Fp32(buffer.as_f32_mut().get_mut(..elements).ok_or_else(short)?)
            }
            Some((buffer, DType::Fp16)) => {
                WeightsOut::Fp16(buffer.as_u16_mut().get_mut(..elements).ok_or_else(short)?)
            }
            Some((buffer, DType::Bf16)) => {
                WeightsOut::Bf16(buffer.as_u16_mut().get_mut(..elements).ok_or_else(short)?)
            }
        };
        kernels::update(
            self.pool.as_deref(),
            self.isa,
            launch.optimizer,
            launch.segments,
            gradient,
            launch.param.as_f32_mut().get_mut(..elements).ok_or_else(short)?,
            moments,
            out,
            launch.first_element,
        )
    }
}

fn wide(buffer: Option<&mut Region>, elements: usize) -> Result<Option<&mut [f32]>> {
    buffer.map(|buffer| buffer.as_f32_mut().get_mut(..elements).ok_or_else(short)).transpose()
}

fn bits(buffer: Option<&mut Region>, elements: usize) -> Result<Option<&mut [u16]>> {
    buffer.map(|buffer| buffer.as_u16_mut().get_mut(..elements).ok_or_else(short)).transpose()
}
