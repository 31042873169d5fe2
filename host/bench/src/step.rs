//! Update phases of whole steps.

use std::path::PathBuf;
use std::time::Instant;

use anyhow::ensure;
use nearfield_runtime::Result;
use nearfield_runtime::io::limit::{Pattern, RawLimit};
use nearfield_runtime::io::{IoOptions, IoStats};
use nearfield_runtime::store::{Durability, StepRecord};
use nearfield_runtime::timeline::{Timeline, TraceFile};
use nearfield_runtime::types::{DType, HyperParameters, Optimizer};
use nearfield_sim::VirtualExecutor;
use nearfield_sim::fabric::{Fabric, FabricCosts, Selection};
use nearfield_techniques::offload::plan::Action;
use nearfield_techniques::offload::plan::gradient::{MicroStep, UnitShape};
use nearfield_techniques::offload::{
    DeviceChoice, EngineConfig, FlatModel, ModelWork, OffloadEngine, OffloadOptions, System,
    WeightSource,
};
use serde::Serialize;

use crate::output::Output;
use crate::scratch::ScratchDirectory;
use crate::values::{bytes, median, named, thread_count, threads};

/// Elements of the synthetic gradient; it repeats, because no time depends on its values.
const PERIOD: u64 = 1 << 20;

/// Seconds between the measured and the predicted step in a trace.
const TRACE_GAP: f64 = 0.1;

/// Flags of `nearfield bench step`.
#[derive(Debug, Clone, clap::Args)]
pub struct StepArgs {
    /// Parameters of the model
    #[arg(long, default_value_t = 200_000_000)]
    params: u64,
    /// Most parameters of a subgroup
    #[arg(long, visible_alias = "subgroup-size", default_value_t = 25_000_000)]
    subgroup: u64,
    /// Drive directory; once for each drive
    #[arg(long, required = true)]
    drive: Vec<PathBuf>,
    /// Steps to measure, after one that is not counted
    #[arg(long, default_value_t = 5)]
    steps: u64,
    /// base, base-pipe, su or su+o
    #[arg(long, default_value = "su+o", value_parser = named::<System>)]
    system: System,
    /// Update rule
    #[arg(long, default_value = "adamw", value_parser = named::<Optimizer>)]
    optimizer: Optimizer,
    /// Format of the working weights
    #[arg(long, default_value = "fp16", value_parser = named::<DType>)]
    weights_dtype: DType,
    /// Format of the gradients
    #[arg(long, default_value = "fp32", value_parser = named::<DType>)]
    gradient_dtype: DType,
    /// Format of the moments
    #[arg(long, default_value = "fp32", value_parser = named::<DType>)]
    moment_dtype: DType,
    /// Pieces of a tasklet's buffers
    #[arg(long)]
    pieces: Option<u32>,
    /// What a step survives: power or process
    #[arg(long, default_value = "power", value_parser = named::<Durability>)]
    durability: Durability,
    /// Threads of the kernels; 0 for one a processor
    #[arg(long, default_value_t = 0, value_parser = thread_count)]
    threads: usize,
    /// Requests in flight on each drive
    #[arg(long)]
    queue_depth: Option<u32>,
    /// Bytes of one request
    #[arg(long, value_parser = bytes)]
    block_size: Option<u64>,
    /// Description of this machine, as `nearfield calibrate` writes it; the summary then has predicted seconds
    #[arg(long, value_name = "FILE")]
    fabric: Option<String>,
    /// Write a trace of the last step for Perfetto or chrome://tracing; with --fabric the predicted step follows it
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Print JSON, one object a line
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct StepLine {
    step: u64,
    seconds: f64,
    bytes_read: u64,
    bytes_written: u64,
}

#[derive(Serialize)]
struct Summary {
    system: System,
    params: u64,
    drives: usize,
    steps: u64,
    seconds: f64,
    limit_seconds: f64,
    ratio: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    predicted_seconds: Option<f64>,
    bytes_read: u64,
    bytes_written: u64,
    gb_per_second: f64,
    limit_gb_per_second: f64,
    limit_request_bytes: u64,
    limit_depth: u32,
    limit_seconds_each: Vec<f64>,
    engine: String,
}

/// A model whose gradient is there without computation.
struct Synthetic {
    width: u64,
    bytes: Vec<u8>,
}

impl Synthetic {
    fn new(dtype: DType) -> Self {
        let values = (0..PERIOD).map(|index| {
            let bits = index.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56;
            (bits as f32 - 128.0) / 128.0
        });
        let bytes = match dtype {
            DType::Fp32 => values.flat_map(f32::to_le_bytes).collect(),
            DType::Fp16 => {
                values.flat_map(|value| half::f16::from_f32(value).to_le_bytes()).collect()
            }
            DType::Bf16 => {
                values.flat_map(|value| half::bf16::from_f32(value).to_le_bytes()).collect()
            }
        };
        Self { width: dtype.bytes(), bytes }
    }
}

impl ModelWork for Synthetic {
    fn compute(&self, _: Action) -> Result<()> {
        Ok(())
    }

    fn load(&self, _: usize, _: bool, _: &dyn WeightSource) -> Result<()> {
        Ok(())
    }

    fn save_output(&self, _: usize, _: &mut [u8]) -> Result<()> {
        Ok(())
    }

    fn load_output(&self, _: usize, _: &[u8]) -> Result<()> {
        Ok(())
    }

    fn offload(
        &self,
        _: usize,
        start: u64,
        elements: u64,
        sink: &mut dyn FnMut(u64, &[u8]) -> Result<()>,
    ) -> Result<()> {
        let mut done = 0;
        while done < elements {
            let length = PERIOD.min(elements - done);
            sink(start + done, &self.bytes[..(length * self.width) as usize])?;
            done += length;
        }
        Ok(())
    }
}

fn initial(first: u64, out: &mut [f32]) -> nearfield_runtime::Result<()> {
    for (index, value) in out.iter_mut().enumerate() {
        let bits = (first + index as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
        *value = bits as f32 * 2.0_f32.powi(-25) - 0.25;
    }
    Ok(())
}

fn record(step: u64) -> StepRecord {
    let hyper = HyperParameters { lr: 1e-4, weight_decay: 0.01, ..HyperParameters::default() };
    StepRecord { iteration: step, step, unscale: 1.0, groups: vec![hyper], blob: Vec::new() }
}

fn config(args: &StepArgs, drives: Vec<PathBuf>) -> EngineConfig {
    let defaults = OffloadOptions::default();
    let options = OffloadOptions {
        system: args.system,
        optimizer: args.optimizer,
        subgroup_elements: args.subgroup,
        gradient_dtype: args.gradient_dtype,
        weights_dtype: args.weights_dtype,
        moment_dtype: args.moment_dtype,
        pieces: args.pieces.unwrap_or(defaults.pieces),
        ..defaults
    };
    let defaults = IoOptions::default();
    let block_bytes = args.block_size.map(|bytes| u32::try_from(bytes).unwrap_or(u32::MAX));
    let io = IoOptions {
        queue_depth: args.queue_depth.unwrap_or(defaults.queue_depth),
        block_bytes: block_bytes.unwrap_or(defaults.block_bytes),
        ..defaults
    };
    EngineConfig {
        options,
        drives,
        io,
        durability: args.durability,
        device: DeviceChoice::Software,
        threads: threads(args.threads),
        lock_memory: false,
        units: vec![UnitShape {
            name: "flat".into(),
            weight_elements: args.params,
            output_bytes: 0,
            working_bytes: 0,
            score_bytes: 0,
            forward_flops: 0,
            backward_weights: false,
            reads: Vec::new(),
            forward: true,
            gradients: vec![(0, args.params)],
        }],
    }
}

/// Brings the gradients of the next step to the drives, then times its update alone.
fn one_step(engine: &mut OffloadEngine, model: &Synthetic) -> Result<(StepLine, Timeline)> {
    engine.run_gradients(MicroStep::Offload, model, 1.0)?;
    let step = engine.step() + 1;
    let before = engine.io_stats();
    let begin = Instant::now();
    let timeline = engine.update(&record(step))?;
    let seconds = begin.elapsed().as_secs_f64();
    let IoStats { bytes_read, bytes_written, .. } = engine.io_stats();
    let line = StepLine {
        step,
        seconds,
        bytes_read: bytes_read - before.bytes_read,
        bytes_written: bytes_written - before.bytes_written,
    };
    Ok((line, timeline))
}

/// Measures and prints.
pub fn run(args: &StepArgs) -> anyhow::Result<()> {
    ensure!(
        matches!(args.system, System::Base | System::BasePipe | System::Su | System::SuO),
        "--system {} is not measured here; use base, base-pipe, su or su+o",
        args.system.name()
    );
    ensure!(args.steps > 0 && args.params > 0, "--steps and --params must be at least 1");
    let out = Output { json: args.json };
    let scratch = ScratchDirectory::in_each(&args.drive)?;
    let paths: Vec<PathBuf> = scratch.iter().map(|one| one.path().to_path_buf()).collect();
    let model = Synthetic::new(args.gradient_dtype);
    let config = config(args, paths.clone());
    let flat = FlatModel::single(args.params)?;
    let fabric = args.fabric.as_deref().map(Fabric::open).transpose()?;
    let mut engine = OffloadEngine::create(&config, flat, false, &record(0), &initial)?;
    let predicted = fabric.map(|fabric| predict(&fabric, args, &engine)).transpose()?;
    // The first step meets cold memory, and tells how many bytes the limit is to be measured for.
    let (first, mut timeline) = one_step(&mut engine, &model)?;
    let mut limit = RawLimit::new(&paths, first.bytes_read, first.bytes_written)?;
    let pattern = limit.find_pattern()?;
    let mut limits = Vec::new();
    let mut lines = Vec::new();
    // The limit is measured before, between and after the steps: drives change their speed over minutes.
    for _ in 0..args.steps {
        limits.push(limit.run_pattern(pattern)?);
        let (line, of_step) = one_step(&mut engine, &model)?;
        timeline = of_step;
        out.print(&format!("step {}", line.step), &line)?;
        lines.push(line);
    }
    limits.push(limit.run_pattern(pattern)?);
    if let Some(path) = &args.trace {
        let mut file = TraceFile::create(path)?;
        file.add(engine.update_graph(), &timeline, 0.0)?;
        if let Some(predicted) = &predicted {
            file.add(engine.update_graph(), predicted, timeline.seconds() + TRACE_GAP)?;
        }
        file.finish()?;
    }
    let predicted = predicted.map(|timeline| timeline.seconds());
    out.print("summary", &summary(args, &engine, pattern, &lines, limits, predicted))
}

/// The update's graph on the machine described.
fn predict(fabric: &Fabric, args: &StepArgs, engine: &OffloadEngine) -> Result<Timeline> {
    let costs = FabricCosts::new(fabric, &Selection::drives(args.drive.len() as u32))?;
    let simulation = VirtualExecutor::new(costs)?.simulate(engine.update_graph())?;
    Ok(simulation.timeline)
}

fn summary(
    args: &StepArgs,
    engine: &OffloadEngine,
    pattern: Pattern,
    lines: &[StepLine],
    limits: Vec<f64>,
    predicted_seconds: Option<f64>,
) -> Summary {
    let seconds = median(&lines.iter().map(|line| line.seconds).collect::<Vec<_>>());
    let limit_seconds = median(&limits);
    let (bytes_read, bytes_written) =
        lines.last().map_or((0, 0), |line| (line.bytes_read, line.bytes_written));
    let gigabytes = (bytes_read + bytes_written) as f64 / 1e9;
    Summary {
        system: args.system,
        params: args.params,
        drives: args.drive.len(),
        steps: args.steps,
        seconds,
        limit_seconds,
        ratio: seconds / limit_seconds,
        predicted_seconds,
        bytes_read,
        bytes_written,
        gb_per_second: gigabytes / seconds,
        limit_gb_per_second: gigabytes / limit_seconds,
        limit_request_bytes: pattern.request_bytes,
        limit_depth: pattern.depth,
        limit_seconds_each: limits,
        engine: engine.describe(),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        step: StepArgs,
    }

    #[test]
    fn every_system_runs_and_leaves_nothing_behind() {
        let root = tempfile::tempdir().unwrap();
        let drive = root.path().display().to_string();
        for system in ["base", "base-pipe", "su", "su+o"] {
            let words = ["step", "--params=70001", "--subgroup=20000", "--steps=1", "--drive"];
            let line = words.into_iter().chain([drive.as_str(), "--system", system]);
            let args = Line::try_parse_from(line).unwrap_or_else(|error| panic!("{error}")).step;
            run(&args).unwrap();
            assert_eq!(std::fs::read_dir(root.path()).unwrap().count(), 0, "{system}");
        }
    }
}
