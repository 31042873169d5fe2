//! How fast the compute device runs blocks, for descriptions of machines.

use std::time::{Duration, Instant};

use nearfield_runtime::types::DType;
use tch::{Kind, Tensor};

use crate::error::{Error, Result};
use crate::model::{Model, Shape, Unit, WeightSource, parse_device};

/// Widths of the blocks that are measured.
const WIDTHS: [u32; 8] = [32, 64, 96, 128, 192, 256, 384, 512];
/// Tokens of a sequence, and sequences.
const TOKENS: (u32, u32) = (128, 8);
/// Seconds that each measurement may take, warm-up aside.
const SECONDS: f64 = 0.25;
/// Time of computation before anything is measured.
const WARM_UP: Duration = Duration::from_secs(2);
/// Blocks in a row.
const LAYERS: u32 = 4;
/// Pause between rounds, as long as an update may take.
const PAUSE: Duration = Duration::from_millis(10);

/// Width of heads, and of those in which one more block is measured for the price of its attention scores.
const HEAD: u32 = 64;
const NARROW: (u32, u32) = (256, 16);

/// What blocks take.
#[derive(Debug, Clone, PartialEq)]
pub struct Blocks {
    /// Blocks of several widths, without their attention scores.
    pub blocks: Vec<BlockTime>,
    /// Bytes of attention scores a second; `None` where they take no time that could be measured.
    pub score_bytes_per_second: Option<f64>,
}

/// What one block takes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BlockTime {
    /// Floating-point operations of its forward pass; the backward pass, which recomputes it, has three times as many.
    pub forward_flops: u64,
    /// Seconds of its forward pass.
    pub forward_seconds: f64,
    /// Seconds of its backward pass.
    pub backward_seconds: f64,
    /// Bytes of its attention scores in fp32.
    pub score_bytes: u64,
    /// Bytes of its weights.
    pub weight_bytes: u64,
    /// Seconds until its weights are on the compute device.
    pub load_seconds: f64,
}

/// Weights that are all the same.
struct Constant(DType);

impl WeightSource for Constant {
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
pub fn blocks(compute: &str, dtype: DType, threads: usize) -> Result<Blocks> {
    // On a thread of its own, as in a step: memory comes slower there than on the first thread of a process.
    std::thread::scope(|scope| {
        let measured = scope.spawn(|| blocks_here(compute, dtype, threads));
        measured.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

fn blocks_here(compute: &str, dtype: DType, threads: usize) -> Result<Blocks> {
    let device = parse_device(compute)?;
    tch::set_num_threads(threads as i32);
    let wide = |width: u32| block(width, (width / HEAD).max(1), dtype, device);
    // Processors that have rested are faster for a while than those of a run that lasts.
    let begin = Instant::now();
    while begin.elapsed() < WARM_UP {
        wide(WIDTHS[WIDTHS.len() - 1])?;
    }
    let mut blocks: Vec<BlockTime> = WIDTHS.into_iter().map(wide).collect::<Result<_>>()?;
    let (width, head) = NARROW;
    let narrow = block(width, width / head, dtype, device)?;
    let same = blocks.iter().find(|block| block.forward_flops == narrow.forward_flops);
    // The backward pass computes the scores again, and their gradients: three times the bytes.
    let rate = same.and_then(|same| {
        let seconds = narrow.forward_seconds + narrow.backward_seconds
            - same.forward_seconds
            - same.backward_seconds;
        (seconds > 0.0).then(|| 4.0 * (narrow.score_bytes - same.score_bytes) as f64 / seconds)
    });
    if let Some(rate) = rate {
        for block in &mut blocks {
            let scores = block.score_bytes as f64 / rate;
            // Noise must not leave nothing.
            block.forward_seconds -= scores.min(block.forward_seconds / 2.0);
            block.backward_seconds -= (3.0 * scores).min(block.backward_seconds / 2.0);
        }
    }
    Ok(Blocks { blocks, score_bytes_per_second: rate })
}

fn block(hidden: u32, heads: u32, dtype: DType, device: tch::Device) -> Result<BlockTime> {
    let (seq, batch) = TOKENS;
    let shape = Shape { layers: LAYERS, hidden, heads, vocab: 16, seq, tied: true };
    let model = Model::new(shape, dtype, device)?;
    let source = Constant(dtype);
    let kind = match dtype {
        DType::Fp32 => Kind::Float,
        DType::Fp16 => Kind::Half,
        DType::Bf16 => Kind::BFloat16,
    };
    let sizes = [i64::from(batch), i64::from(seq), i64::from(hidden)];
    let input = Tensor::f_randn(sizes, (kind, device))
        .map_err(|error| Error::torch("the input of a measurement", &error))?;
    let (mut forward, mut backward, mut load) = (Vec::new(), Vec::new(), Vec::new());
    let begin = Instant::now();
    // As in a step: forward through blocks, backward through them, each with weights that have just arrived, then a
    // pause. The first round warms up.
    for round in 0.. {
        if round > 3 && begin.elapsed().as_secs_f64() > SECONDS {
            break;
        }
        let mut inputs = vec![input.shallow_clone()];
        for layer in 0..LAYERS {
            let unit = Unit::Block(layer);
            let (weights, seconds) = timed(device, || model.load(unit, &source))?;
            load.push(seconds);
            let (output, seconds) =
                timed(device, || model.forward(&weights, &inputs[layer as usize]))?;
            inputs.push(output);
            forward.push(seconds);
        }
        let mut gradient = inputs.pop().unwrap_or(input.shallow_clone());
        for layer in (0..LAYERS).rev() {
            let weights = model.load(Unit::Block(layer), &source)?;
            let input = &inputs[layer as usize];
            let (next, seconds) = timed(device, || {
                model.backward_block(&weights, input, &gradient, &mut |_, _| Ok(()))
            })?;
            gradient = next;
            backward.push(seconds);
        }
        if round == 0 {
            forward.clear();
            backward.clear();
            load.clear();
        }
        std::thread::sleep(PAUSE);
    }
    let elements = model.plans()[1].elements();
    let forward_flops = shape.forward_flops(Unit::Block(0), elements, batch);
    Ok(BlockTime {
        forward_flops,
        forward_seconds: median(forward),
        backward_seconds: median(backward),
        score_bytes: 4 * u64::from(batch * heads) * u64::from(seq) * u64::from(seq),
        weight_bytes: elements * dtype.bytes(),
        load_seconds: median(load),
    })
}

/// Bytes a second of copies to the compute device and back; `None` where it computes in the host's memory.
///
/// # Errors
/// A device that is not there, and what libtorch reports.
pub fn copies(compute: &str) -> Result<Option<(f64, f64)>> {
    const BYTES: i64 = 64 << 20;
    let device = parse_device(compute)?;
    if device == tch::Device::Cpu {
        return Ok(None);
    }
    let torch = |error| Error::torch("a copy that is measured", &error);
    let make = |device| Tensor::f_zeros([BYTES], (Kind::Uint8, device)).map_err(torch);
    let (mut host, mut far) = (make(tch::Device::Cpu)?, make(device)?);
    let (mut down, mut up) = (Vec::new(), Vec::new());
    for _ in 0..9 {
        down.push(timed(device, || far.f_copy_(&host).map(|_| ()).map_err(torch))?.1);
        up.push(timed(device, || host.f_copy_(&far).map(|_| ()).map_err(torch))?.1);
    }
    Ok(Some((BYTES as f64 / median(down), BYTES as f64 / median(up))))
}

/// The result of `work`, and the seconds until `device` has finished it.
fn timed<T>(device: tch::Device, work: impl FnOnce() -> Result<T>) -> Result<(T, f64)> {
    let begin = Instant::now();
    let result = work()?;
    if let tch::Device::Cuda(index) = device {
        tch::Cuda::synchronize(index as i64);
    }
    Ok((result, begin.elapsed().as_secs_f64()))
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times.get(times.len() / 2).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wider_blocks_have_more_operations_and_take_time() {
        let device = parse_device("cpu").unwrap();
        let [small, large] = [32, 64].map(|width| block(width, 1, DType::Fp32, device).unwrap());
        assert!(large.forward_flops > 2 * small.forward_flops);
        assert!(small.forward_seconds > 0.0 && small.backward_seconds > 0.0);
        assert!(large.weight_bytes > small.weight_bytes && large.load_seconds > 0.0);
    }
}
