//! How fast the compute device runs blocks, for descriptions of machines.

use std::path::Path;
use std::time::{Duration, Instant};

use nearfield_runtime::graph::{Op, Place};
use nearfield_runtime::io::IoOptions;
use nearfield_runtime::store::Durability;
use nearfield_runtime::types::{DType, HyperParameters};
use nearfield_techniques::offload::plan::gradient::MicroStep;
use nearfield_techniques::offload::{DeviceChoice, OffloadOptions, System};
use tch::{Kind, Tensor};

use crate::data::CorpusOptions;
use crate::error::{Error, Result};
use crate::model::{Shape, parse_device};
use crate::scaler::LossScale;
use crate::schedule::{Schedule, Shape as ScheduleShape};
use crate::trainer::{GraphKind, ModelSource, TrainOptions, Trainer};

/// Widths of the blocks that are measured.
const WIDTHS: [u32; 8] = [32, 64, 96, 128, 192, 256, 384, 512];
/// Tokens of a sequence, and sequences.
const TOKENS: (u32, u32) = (128, 8);
/// Seconds that each measurement may take, warm-up aside.
const SECONDS: f64 = 0.25;
/// Iterations that are measured at least.
const LEAST_ITERATIONS: u32 = 2;
/// Time of computation before anything is measured.
const WARM_UP: Duration = Duration::from_secs(2);
/// Blocks in a row.
const LAYERS: u32 = 3;
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

/// Measures blocks of several widths on `compute` (`auto`, `cpu`, `cuda`), in `dtype`, on `threads` threads of the
/// processor. Small models of such blocks are trained for a moment with their state in memory, so that the threads are
/// those of a step; `directory` holds their text meanwhile.
///
/// # Errors
/// A device that is not there, and what libtorch reports.
pub fn blocks(compute: &str, dtype: DType, threads: usize, directory: &Path) -> Result<Blocks> {
    let text = directory.join("calibration.txt");
    let content = "Nothing is learned from this.\n".repeat(100);
    std::fs::write(&text, content).map_err(|error| Error::data_io("write it", &text, &error))?;
    let measured = Probe { compute, dtype, threads, text: &text }.blocks();
    // What is left behind would only take space.
    let _ = std::fs::remove_file(&text);
    measured
}

struct Probe<'a> {
    compute: &'a str,
    dtype: DType,
    threads: usize,
    text: &'a Path,
}

impl Probe<'_> {
    fn blocks(&self) -> Result<Blocks> {
        let wide = |width: u32| self.block(width, (width / HEAD).max(1));
        // Processors that have rested are faster for a while than those of a run that lasts.
        let begin = Instant::now();
        while begin.elapsed() < WARM_UP {
            wide(WIDTHS[WIDTHS.len() - 1])?;
        }
        let mut blocks: Vec<BlockTime> = WIDTHS.into_iter().map(wide).collect::<Result<_>>()?;
        let (width, head) = NARROW;
        let narrow = self.block(width, width / head)?;
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

    fn options(&self, shape: Shape) -> TrainOptions {
        let hyper = HyperParameters::default();
        TrainOptions {
            corpus: CorpusOptions { evaluation_fraction: 0.0, ..CorpusOptions::new(self.text) },
            model: ModelSource::Scratch(shape),
            optimizer_state: None,
            tokenizer: None,
            seq: shape.seq,
            batch: TOKENS.1,
            accumulate: 1,
            iterations: u64::MAX,
            schedule: Schedule {
                shape: ScheduleShape::Constant,
                peak: hyper.lr,
                minimum: hyper.lr,
                warmup_steps: 0,
                total_steps: u64::MAX,
            },
            hyper,
            loss_scale: LossScale::Static(1.0),
            clip: 1.0,
            seed: 0,
            compute: self.compute.to_owned(),
            threads: self.threads,
            evaluation_batches: 0,
            offload: OffloadOptions {
                system: System::Memory,
                weights_dtype: self.dtype,
                ..OffloadOptions::default()
            },
            drives: Vec::new(),
            io: IoOptions::default(),
            durability: Durability::Process,
            device: DeviceChoice::Software,
            resume: false,
            overwrite: false,
        }
    }

    fn block(&self, hidden: u32, heads: u32) -> Result<BlockTime> {
        let shape = Shape { layers: LAYERS, hidden, heads, vocab: 256, seq: TOKENS.0, tied: true };
        let mut trainer = Trainer::new(self.options(shape))?;
        trainer.step()?;
        let mut times = Times::default();
        let begin = Instant::now();
        let mut iterations = 0;
        while iterations < LEAST_ITERATIONS || begin.elapsed().as_secs_f64() < SECONDS {
            let report = trainer.step()?;
            for (kind, _, timeline) in &report.timelines {
                if *kind == GraphKind::Gradient(MicroStep::Offload) {
                    times.add(trainer.graph(*kind), timeline);
                }
            }
            iterations += 1;
        }
        times.median()
    }
}

/// Spans of the tasks of blocks.
#[derive(Default)]
struct Times {
    forward: Vec<f64>,
    backward: Vec<f64>,
    load: Vec<f64>,
    forward_flops: u64,
    score_bytes: u64,
    weight_bytes: u64,
}

impl Times {
    fn add(
        &mut self,
        graph: &nearfield_runtime::graph::Graph,
        timeline: &nearfield_runtime::timeline::Timeline,
    ) {
        for task in graph.tasks() {
            let span = timeline.span(task.id);
            let seconds = span.end_seconds - span.start_seconds;
            let of_block = task.label.contains("block");
            let backward = graph.phases()[task.phase.0 as usize] == "backward";
            match task.op {
                Op::Compute { flops, bytes } if of_block && !backward => {
                    self.forward.push(seconds);
                    (self.forward_flops, self.score_bytes) = (flops, bytes);
                }
                Op::Compute { .. } if of_block => self.backward.push(seconds),
                Op::Transfer { from: Place::Host(_), bytes, .. }
                    if of_block && task.label.starts_with("load weights") =>
                {
                    self.load.push(seconds);
                    self.weight_bytes = bytes;
                }
                _ => {}
            }
        }
    }

    fn median(self) -> Result<BlockTime> {
        let median = |mut times: Vec<f64>| {
            times.sort_by(f64::total_cmp);
            let middle = times.get(times.len() / 2).copied();
            middle.ok_or_else(|| Error::Invalid("no block was measured".into()))
        };
        Ok(BlockTime {
            forward_flops: self.forward_flops,
            forward_seconds: median(self.forward)?,
            backward_seconds: median(self.backward)?,
            score_bytes: self.score_bytes,
            weight_bytes: self.weight_bytes,
            load_seconds: median(self.load)?,
        })
    }
}

/// Number of CUDA devices that libtorch sees.
pub fn cuda_devices() -> i64 {
    if tch::Cuda::is_available() { tch::Cuda::device_count() } else { 0 }
}

/// Bytes a second of copies to the compute device and back; `None` where it computes in the host's memory.
///
/// # Errors
/// A device that is not there, and what libtorch reports.
pub fn copies(compute: &str) -> Result<Option<(f64, f64)>> {
    const BYTES: i64 = 64 << 20;
    let device = parse_device(compute)?;
    let tch::Device::Cuda(index) = device else { return Ok(None) };
    let torch = |error| Error::torch("a copy that is measured", &error);
    let make = |device| Tensor::f_zeros([BYTES], (Kind::Uint8, device)).map_err(torch);
    let (mut host, mut far) = (make(tch::Device::Cpu)?, make(device)?);
    let rate = |to: &mut Tensor, from: &Tensor| -> Result<f64> {
        let mut best = f64::INFINITY;
        for _ in 0..9 {
            let begin = Instant::now();
            to.f_copy_(from).map_err(torch)?;
            tch::Cuda::synchronize(index as i64);
            best = best.min(begin.elapsed().as_secs_f64());
        }
        Ok(BYTES as f64 / best)
    };
    let down = rate(&mut far, &host)?;
    let up = rate(&mut host, &far)?;
    Ok(Some((down, up)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wider_blocks_have_more_operations_and_take_time() {
        let root = tempfile::tempdir().unwrap();
        let text = root.path().join("text.txt");
        std::fs::write(&text, "some text\n".repeat(200)).unwrap();
        let probe = Probe { compute: "cpu", dtype: DType::Fp32, threads: 1, text: &text };
        let [small, large] = [32, 64].map(|width| probe.block(width, 1).unwrap());
        assert!(large.forward_flops > 2 * small.forward_flops);
        assert!(small.forward_seconds > 0.0 && small.backward_seconds > 0.0);
        assert!(large.weight_bytes > small.weight_bytes && large.load_seconds > 0.0);
        assert_eq!(small.score_bytes, 4 * 8 * 128 * 128);
    }
}
