//! `nearfield simulate`: a training step on a machine that one does not have.

pub mod case;
mod chart;
pub mod outcome;
pub mod preset;
mod show;
mod sweep;

use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use nearfield_bench::values::named;
use nearfield_runtime::types::{DType, Optimizer};
use nearfield_sim::fabric::Fabric;
use nearfield_techniques::offload::{ActivationPlace, System, WeightsPlace};

use case::Case;
use outcome::Outcome;
use preset::Strategy;

/// Shown below the list of flags.
pub const AFTER_HELP: &str = "\
Examples:
  nearfield simulate --fabric smartssd-falcon --gpu a5000 --model gpt2-4.0b --drives 6 --system su+o+c
  nearfield simulate --fabric smartssd-falcon --gpu a5000 --model gpt2-4.0b --sweep drives=1..10 --sweep system=all
  nearfield simulate --fabric server-2026 --gpu h200 --model gpt2-33.0b --preset nearfield --sweep drives=1..8 --chart out.svg
  nearfield simulate --fabric fabric.toml --model path/to/config.json --drives 2   # of nearfield calibrate

Keys of --sweep: drives, system, model, gpu, gpus, topology, optimizer, topk-keep, batch, seq, overlap-update. Values: a
list (1,2,4), a range of whole numbers (1..10, both ends), or, for system, all.

Presets: paper is what the Smart-Infinity paper measured (whole variables are handed over, fp32 weights are read back from
the drive, the GPU waits while gradients leave it, and sorts them); nearfield is what nearfield train does by default
(--pieces 4, fp16-local, gradients leave while the GPU computes, the processor selects).";

/// Flags of `nearfield simulate`.
#[derive(Debug, Clone, clap::Args)]
#[command(allow_negative_numbers = true)]
pub struct SimulateArgs {
    /// The machine: a name (smartssd-falcon, server-2026, desktop) or a file, as `nearfield calibrate` writes it
    #[arg(long, value_name = "NAME|FILE")]
    fabric: String,
    /// The model: a name (gpt2-4.0b …; a wrong one lists all), a Hugging Face config.json, or flat:N for the update of N
    /// parameters alone
    #[arg(long, value_name = "NAME|FILE", default_value = "gpt2-4.0b")]
    model: String,
    /// Compute device, where the fabric has several
    #[arg(long, value_name = "NAME")]
    gpu: Option<String>,
    /// Number of compute devices, which share every layer (tensor parallelism)
    #[arg(long, value_name = "N", default_value_t = 1)]
    gpus: u32,
    /// How the machine is put together, where the fabric has several ways
    #[arg(long, value_name = "NAME", default_value = "default")]
    topology: String,
    /// Number of drives
    #[arg(long, value_name = "N", default_value_t = 1)]
    drives: u32,
    /// base, base-pipe, su, su+o or su+o+c
    #[arg(long, value_parser = named::<System>, value_name = "SYSTEM", default_value = "su+o")]
    system: System,
    /// Update rule: adamw, adam, adagrad, sgd-momentum
    #[arg(long, value_parser = named::<Optimizer>, value_name = "NAME", default_value = "adamw")]
    optimizer: Optimizer,
    /// With su+o+c: fraction of gradient elements that is kept
    #[arg(long, value_name = "FRACTION", default_value_t = 0.01)]
    topk_keep: f64,
    /// Sequences of a step
    #[arg(long, value_name = "N", default_value_t = 4)]
    batch: u64,
    /// Tokens of a sequence
    #[arg(long, value_name = "N", default_value_t = 1024)]
    seq: u64,
    /// Number format of working weights: fp32, bf16 or fp16
    #[arg(long, value_parser = named::<DType>, value_name = "DTYPE", default_value = "fp16")]
    dtype: DType,
    /// Number format of gradients on the drive
    #[arg(long, value_parser = named::<DType>, value_name = "DTYPE", default_value = "fp32")]
    gradient_dtype: DType,
    /// Number format of the moments on the drive: fp32 or bf16
    #[arg(long, value_parser = named::<DType>, value_name = "DTYPE", default_value = "fp32")]
    moment_dtype: DType,
    /// Most elements of a subgroup
    #[arg(long, value_name = "ELEMENTS", default_value_t = 40_000_000)]
    subgroup_size: u64,
    /// Where working weights are read from: host (a copy in host memory) or drive (the master weights, unit by unit)
    #[arg(long, value_parser = named::<WeightsPlace>, value_name = "PLACE", default_value = "host")]
    weights: WeightsPlace,
    /// Where the inputs of blocks wait for the backward pass: device, host or drive
    #[arg(long, value_parser = named::<ActivationPlace>, value_name = "PLACE", default_value = "host")]
    activations: ActivationPlace,
    #[command(flatten)]
    strategy: Strategy,
    /// Runs all values of a key; with several, all combinations
    #[arg(long, value_name = "KEY=VALUES")]
    sweep: Vec<String>,
    /// Write the trace of the last combination for Perfetto or chrome://tracing
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Write the graphs of the last combination as Chakra execution traces: STEM.gradients.RANK.et and STEM.update.RANK.et
    #[arg(long, value_name = "STEM")]
    chakra: Option<PathBuf>,
    /// Draw the phases as stacked bars, and the speed-up over the first system, to an SVG or PNG file
    #[arg(long, value_name = "FILE")]
    chart: Option<PathBuf>,
    /// Say for each combination what faster parts would do; without a sweep that is always said
    #[arg(long)]
    what_if: bool,
    /// Write the table as CSV as well
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
    /// Print JSON, one object a line for each combination
    #[arg(long)]
    json: bool,
}

/// Simulates and prints.
pub fn run(args: &SimulateArgs) -> Result<()> {
    let fabric = Fabric::open(&args.fabric)?;
    let cases = sweep::cases(args)?;
    let what_if = args.what_if || cases.len() == 1 && !args.json;
    if let Some(path) = &args.chart {
        chart::check(path)?;
    }
    if let (Some(_), Some(last)) = (&args.chakra, cases.last().filter(|last| last.gpus > 1)) {
        let gpus = last.gpus;
        bail!(
            "--chakra with --gpus {gpus}: such traces have no edges between devices; use --gpus 1"
        );
    }
    let mut last_error = None;
    let mut results = Vec::new();
    for (index, case) in cases.iter().enumerate() {
        let (outcome, step, run) =
            match Outcome::of(case, &fabric, what_if).with_context(|| case.title()) {
                Ok(found) => found,
                // In a sweep the others are still worth having.
                Err(error) if cases.len() > 1 => {
                    if let Some(earlier) = last_error.replace(error) {
                        eprintln!("left out: {}", crate::message(&earlier));
                    }
                    continue;
                }
                Err(error) => return Err(error),
            };
        if index + 1 == cases.len() {
            if let Some(path) = &args.trace {
                step.trace(&run, path)?;
            }
            if let Some(stem) = &args.chakra {
                for file in step.chakra(&run, stem)? {
                    eprintln!("Wrote {}", file.display());
                }
            }
        }
        if args.json {
            println!("{}", serde_json::to_string(&outcome)?);
        }
        results.push(outcome);
    }
    match last_error {
        Some(error) if results.is_empty() => return Err(error),
        Some(error) => eprintln!("left out: {}", crate::message(&error)),
        None => {}
    }
    if !args.json {
        println!("{}", show::rows(&results));
        if let [only] = &results[..] {
            println!("\n{}", show::details(only));
        }
    }
    if let Some(path) = &args.csv {
        std::fs::write(path, show::csv(&results))
            .with_context(|| format!("cannot write {} (--csv)", path.display()))?;
    }
    if let Some(path) = &args.chart {
        chart::draw(path, &results)?;
    }
    Ok(())
}

impl From<&SimulateArgs> for Case {
    fn from(args: &SimulateArgs) -> Self {
        let mut case = Self {
            model: args.model.clone(),
            gpu: args.gpu.clone(),
            gpus: args.gpus,
            topology: args.topology.clone(),
            drives: args.drives,
            system: args.system,
            optimizer: args.optimizer,
            topk_keep: args.topk_keep,
            batch: args.batch,
            seq: args.seq,
            dtype: args.dtype,
            gradient_dtype: args.gradient_dtype,
            moment_dtype: args.moment_dtype,
            subgroup_size: args.subgroup_size,
            weights: args.weights,
            activations: args.activations,
            ..Self::default()
        };
        args.strategy.apply(&mut case);
        case
    }
}
