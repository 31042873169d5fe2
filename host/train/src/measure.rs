//! How fast the compute device runs blocks, for descriptions of machines.

use std::time::Instant;

use nearfield_runtime::types::DType;
use tch::{Kind, Tensor};

use crate::error::{Error, Result};
use crate::model::{Model, Shape, Unit, WeightSource, parse_device};

/// Widths of the blocks that are measured.
const WIDTHS: [u32; 5] = [32, 64, 128, 256, 512];
/// Tokens of a sequence, and sequences.
const TOKENS: (u32, u32) = (128, 8);
/// Seconds that each measurement may take, warm-up aside.
const SECONDS: f64 = 0.3;

/// What one block takes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BlockTime {
    /// Floating-point operations of its forward pass; the backward pass, which recomputes it, has three times as many.
    pub forward_flops: u64,
    /// Seconds of its forward pass.
    pub forward_seconds: f64,
    /// Seconds of its backward pass.
    pub backward_seconds: f64,
}

/// Small weights.
struct Ones(DType);

impl WeightSource for Ones {
    fn copy_out(&self, _: u64, out: &mut [u8]) {
        let value = 0.01_f32;
        match self.0 {
            DType::Fp32 => {
                out.chunks_exact_mut(4).for_each(|to| to.copy_from_slice(&value.to_le_bytes()));
            }
            DType::Fp16 => {
                let bits = half::f16::from_f32(value).to_le_bytes();
                out.chunks_exact_mut(2).for_each(|to| to.copy_from_slice(&bits));
            }
            DType::Bf16 => {
                let bits = half::bf16::from_f32(value).to_le_bytes();
                out.chunks_exact_mut(2).for_each(|to| to.copy_from_slice(&bits));
            }
        }
    }
}

/// Measures blocks of several widths on `compute` (`auto`, `cpu`, `cuda`), in `dtype`, on `threads` threads of the
/// processor.
///
/// # Errors
/// A device that is not there, and what libtorch reports.
pub fn blocks(compute: &str, dtype: DType, threads: usize) -> Result<Vec<BlockTime>> {
    let device = parse_device(compute)?;
    tch::set_num_threads(threads as i32);
    WIDTHS.iter().map(|&width| block(width, dtype, device)).collect()
}

fn block(hidden: u32, dtype: DType, device: tch::Device) -> Result<BlockTime> {
    let (seq, batch) = TOKENS;
    let shape = Shape { layers: 1, hidden, heads: hidden.div_ceil(64), vocab: 16, seq, tied: true };
    let model = Model::new(shape, dtype, device)?;
    let weights = model.load(Unit::Block(0), &Ones(dtype))?;
    let kind = match dtype {
        DType::Fp32 => Kind::Float,
        DType::Fp16 => Kind::Half,
        DType::Bf16 => Kind::BFloat16,
    };
    let sizes = [i64::from(batch), i64::from(seq), i64::from(hidden)];
    let ones = Tensor::f_ones(sizes, (kind, device));
    let input = ones
        .and_then(|ones| ones.f_mul_scalar(0.1))
        .map_err(|error| Error::torch("the input of a measurement", &error))?;
    let forward_seconds = seconds(device, || {
        let _ = model.forward(&weights, &input)?;
        Ok(())
    })?;
    let backward_seconds = seconds(device, || {
        let _ = model.backward_block(&weights, &input, &input, &mut |_, _| Ok(()))?;
        Ok(())
    })?;
    let elements = model.plans()[1].elements();
    let forward_flops = shape.forward_flops(Unit::Block(0), elements, batch);
    Ok(BlockTime { forward_flops, forward_seconds, backward_seconds })
}

/// Median seconds of `work`, finished on `device`.
fn seconds(device: tch::Device, mut work: impl FnMut() -> Result<()>) -> Result<f64> {
    let mut once = || -> Result<f64> {
        let begin = Instant::now();
        work()?;
        if let tch::Device::Cuda(index) = device {
            tch::Cuda::synchronize(index as i64);
        }
        Ok(begin.elapsed().as_secs_f64())
    };
    once()?;
    let begin = Instant::now();
    let mut times = Vec::new();
    while times.len() < 3 || begin.elapsed().as_secs_f64() < SECONDS {
        times.push(once()?);
    }
    times.sort_by(f64::total_cmp);
    Ok(times[times.len() / 2])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wider_blocks_have_more_operations_and_take_time() {
        let device = parse_device("cpu").unwrap();
        let [small, large] = [32, 64].map(|width| block(width, DType::Fp32, device).unwrap());
        assert!(large.forward_flops > 2 * small.forward_flops);
        assert!(small.forward_seconds > 0.0 && small.backward_seconds > 0.0);
    }
}
