//! The state of `--system memory`: all of it in host memory.

use nearfield_runtime::kernels::{self, GradientRef, Isa, Moments, Segment, WeightsOut};
use nearfield_runtime::layout::Layout;
use nearfield_runtime::types::{DType, Optimizer, Variable};
use nearfield_runtime::{Error, Result};
use parking_lot::Mutex;
use rayon::ThreadPool;

/// Master weights, moments and gradients of every part.
#[derive(Debug)]
pub(super) struct MemoryState {
    optimizer: Optimizer,
    gradient_dtype: DType,
    parts: Vec<Mutex<PartState>>,
}

#[derive(Debug)]
pub(super) struct PartState {
    /// The stored variables in the optimizer's order, padded elements each.
    pub variables: Vec<Vec<f32>>,
    /// Gradient as fp32, or the bits of a 16-bit format in the low halves.
    gradient: GradientStore,
}

#[derive(Debug)]
enum GradientStore {
    Full(Vec<f32>),
    Half(Vec<u16>),
}

impl MemoryState {
    pub fn new(layout: &Layout, optimizer: Optimizer, gradient_dtype: DType) -> Self {
        let parts = (0..layout.parts.len())
            .map(|part| {
                let padded = layout.padded(part) as usize;
                let gradient = match gradient_dtype {
                    DType::Fp32 => GradientStore::Full(vec![0.0; padded]),
                    DType::Fp16 | DType::Bf16 => GradientStore::Half(vec![0; padded]),
                };
                let variables = optimizer.variables().iter().map(|_| vec![0.0; padded]).collect();
                Mutex::new(PartState { variables, gradient })
            })
            .collect();
        Self { optimizer, gradient_dtype, parts }
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
            GradientStore::Full(gradient) => {
                let target =
                    gradient.get_mut(first..first + bytes.len() / 4).ok_or_else(outside)?;
                for (element, bytes) in target.iter_mut().zip(bytes.chunks_exact(4)) {
                    *element = f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
                }
            }
            GradientStore::Half(gradient) => {
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
    pub fn update(
        &self,
        part: usize,
        segments: &[Segment],
        copy: &mut [u16],
        copy_dtype: DType,
        isa: Isa,
        pool: &ThreadPool,
    ) -> Result<()> {
        let mut state = self.part(part);
        let PartState { variables, gradient } = &mut *state;
        let gradient = match (&*gradient, self.gradient_dtype) {
            (GradientStore::Full(gradient), _) => GradientRef::Fp32(gradient),
            (GradientStore::Half(gradient), DType::Bf16) => GradientRef::Bf16(gradient),
            (GradientStore::Half(gradient), _) => GradientRef::Fp16(gradient),
        };
        let (mut param, mut m, mut v) = (None, None, None);
        for (variable, data) in self.optimizer.variables().iter().zip(variables.iter_mut()) {
            match variable {
                Variable::Param => param = Some(data.as_mut_slice()),
                Variable::ExpAvg => m = Some(data.as_mut_slice()),
                _ => v = Some(data.as_mut_slice()),
            }
        }
        let param = param.ok_or_else(|| Error::Invalid("no master weights".into()))?;
        let out = match copy_dtype {
            DType::Fp32 => WeightsOut::None,
            DType::Fp16 => WeightsOut::Fp16(copy),
            DType::Bf16 => WeightsOut::Bf16(copy),
        };
        let moments = Moments { m, v };
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
