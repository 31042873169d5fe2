//! `nearfield simulate`: a training step on a machine that one does not have.

mod case;
mod show;
mod sweep;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use nearfield_bench::values::named;
use nearfield_runtime::types::{DType, Optimizer};
use nearfield_sim::fabric::Fabric;
use nearfield_techniques::offload::{Placement, System, Upstream};

use case::Case;

/// Shown below the list of flags.
pub const AFTER_HELP: &str = "\
Examples:
  nearfield simulate --fabric smartssd-falcon --gpu a5000 --model gpt2-4.0b --drives 6 --system su+o+c
  nearfield simulate --fabric smartssd-falcon --gpu a5000 --model gpt2-4.0b --sweep drives=1..10 --sweep system=all
  nearfield simulate --fabric fabric.toml --model path/to/config.json --drives 2   # of nearfield calibrate

Keys of --sweep: drives, system, model, gpu, topology, optimizer, topk-keep, batch, seq. Values: a list (1,2,4), a
range of whole numbers (1..10, both ends), or, for system, all.";

/// Flags of `nearfield simulate`.
#[derive(Debug, Clone, clap::Args)]
pub struct SimulateArgs {
    /// The machine: a name (smartssd-falcon) or a file, as `nearfield calibrate` writes it
    #[arg(long, value_name = "NAME|FILE")]
    fabric: String,
    /// The model: a name (gpt2-4.0b …; a wrong one lists all) or a Hugging Face config.json
    #[arg(long, value_name = "NAME|FILE", default_value = "gpt2-4.0b")]
    model: String,
    /// Compute device, where the fabric has several
    #[arg(long, value_name = "NAME")]
    gpu: Option<String>,
    /// Number of compute devices; only 1 in this version
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
    /// How weights come back: fp32-storage (as the paper measured) or fp16-local
    #[arg(long, value_parser = named::<Upstream>, value_name = "NAME", default_value = "fp32-storage")]
    upstream: Upstream,
    /// How state is placed: flat-equal or subgroup-rr
    #[arg(long, value_parser = named::<Placement>, value_name = "NAME", default_value = "flat-equal")]
    placement: Placement,
    /// Most elements of a subgroup
    #[arg(long, value_name = "ELEMENTS", default_value_t = 40_000_000)]
    subgroup_size: u64,
    /// Pieces in which the overlapped handler hands a subgroup over; 1 is the paper's whole variables
    #[arg(long, value_name = "N", default_value_t = 1)]
    pieces: u32,
    /// Runs all values of a key; with several, all combinations
    #[arg(long, value_name = "KEY=VALUES")]
    sweep: Vec<String>,
    /// Write the trace of the last combination for Perfetto or chrome://tracing
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Write the table as CSV as well
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
    /// Print JSON, one object a line for each combination
    #[arg(long)]
    json: bool,
}

/// The description called `name`, or the one in that file.
pub fn fabric(name: &str) -> Result<Fabric> {
    if let Some(fabric) = Fabric::shipped(name) {
        return Ok(fabric?);
    }
    if !Path::new(name).exists() {
        bail!(
            "fabric {name:?} is neither shipped ({}) nor a file; nearfield calibrate writes one",
            Fabric::SHIPPED.join(", ")
        );
    }
    Ok(Fabric::load(Path::new(name))?)
}

/// Simulates and prints.
pub fn run(args: &SimulateArgs) -> Result<()> {
    if args.gpus != 1 {
        bail!("--gpus {}: only one compute device is simulated in this version", args.gpus);
    }
    let machine = fabric(&args.fabric)?;
    let cases = sweep::cases(args)?;
    let mut results = Vec::new();
    for (index, case) in cases.iter().enumerate() {
        let trace = args.trace.as_deref().filter(|_| index + 1 == cases.len());
        let outcome = case.simulate(&machine, trace).with_context(|| case.title())?;
        if args.json {
            println!("{}", serde_json::to_string(&outcome)?);
        }
        results.push(outcome);
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
    Ok(())
}

impl From<&SimulateArgs> for Case {
    fn from(args: &SimulateArgs) -> Self {
        Self {
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
            upstream: args.upstream,
            placement: args.placement,
            subgroup_size: args.subgroup_size,
            pieces: args.pieces,
        }
    }
}
