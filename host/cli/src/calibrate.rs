//! `nearfield calibrate`: measures this machine and writes a description of it.

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::{Context, Result};
use nearfield_bench::calibrate::{self, Calibration, positive};
use nearfield_bench::values::{median, named, thread_count};
use nearfield_runtime::types::DType;
use nearfield_sim::fabric::{Fabric, Gpu, LinkDescription, Positive, WorkPoint};
use nearfield_train::measure::{self, BlockTime, Blocks};

use crate::train::Compute;

/// Flags of `nearfield calibrate`.
#[derive(Debug, clap::Args)]
pub struct CalibrateArgs {
    /// A drive: a directory on it. Give the flag once for each drive that is to be described
    #[arg(long, value_name = "DIR", required = true)]
    drive: Vec<PathBuf>,
    /// The description to write
    #[arg(long, value_name = "FILE", default_value = "fabric.toml")]
    out: PathBuf,
    /// Name of the machine in reports
    #[arg(long, default_value = "this machine")]
    name: String,
    /// Where models compute: auto, cpu or cuda
    #[arg(long, value_parser = named::<Compute>, value_name = "NAME", default_value = "auto")]
    compute: Compute,
    /// Number format of models: fp32, bf16 or fp16
    #[arg(long, value_parser = named::<DType>, value_name = "DTYPE", default_value = "fp32")]
    dtype: DType,
    /// Threads; 0 for one a processor
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = thread_count)]
    threads: usize,
}

/// Weights of less than this are in a cache already.
const LEAST_WEIGHTS: u64 = 500_000;

/// Times that everything is measured; medians are taken.
const ROUNDS: usize = 3;

/// Measures and writes.
pub fn run(args: &CalibrateArgs) -> Result<()> {
    let threads = nearfield_bench::values::threads(args.threads);
    eprintln!(
        "Measuring drives, memory, kernels and blocks of models; some other load would spoil it"
    );
    let mut calibration = Calibration::new(&args.drive, threads)?;
    let (mut forward, mut backward) = (Vec::new(), Vec::new());
    let (mut loads, mut scores) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        calibration.measure()?;
        let Blocks { blocks, score_bytes_per_second } =
            measure::blocks(args.compute.device(), args.dtype, threads, calibration.directory())?;
        scores.extend(score_bytes_per_second);
        let wide = blocks.iter().filter(|block| block.weight_bytes > LEAST_WEIGHTS);
        loads.extend(wide.map(|block| block.weight_bytes as f64 / block.load_seconds));
        forward.push(rates(&blocks, |block| (block.forward_flops, 1.0, block.forward_seconds))?);
        // The backward pass computes the block again: three times the operations.
        backward.push(rates(&blocks, |block| (block.forward_flops, 3.0, block.backward_seconds))?);
    }
    let (drive, mut host) = calibration.finish()?;
    let copies = measure::copies(args.compute.device())?;
    if copies.is_none() {
        // The copies of a step make tensors of what they copy: slower than moving bytes.
        host.copy_bytes_per_second = positive(median(&loads))?;
    }
    let gpu = Gpu {
        count_max: None,
        memory_bytes: None,
        in_host_memory: copies.is_none(),
        price_usd: None,
        score_bytes_per_second: (!scores.is_empty())
            .then(|| positive(median(&scores)))
            .transpose()?,
        kernels: BTreeMap::new(),
        forward: calibrate::work(&forward)?,
        backward: calibrate::work(&backward)?,
    };
    let mut links = BTreeMap::from([("nvme".to_owned(), link("drive", None, None))]);
    if let Some((down, up)) = copies {
        links.insert("gpu".to_owned(), link("gpu", Some(positive(up)?), Some(positive(down)?)));
    }
    let gpus = BTreeMap::from([(args.compute.device().to_owned(), gpu)]);
    let fabric = Fabric::new(&args.name, host, gpus, drive, links)?;
    std::fs::write(&args.out, fabric.to_toml()?)
        .with_context(|| format!("cannot write {} (--out)", args.out.display()))?;
    eprintln!("Wrote {}", args.out.display());
    Ok(())
}

/// Rates of blocks, from operations of a pass, passes, and seconds of each.
fn rates(blocks: &[BlockTime], of: fn(&BlockTime) -> (u64, f64, f64)) -> Result<Vec<WorkPoint>> {
    let point = |block: &BlockTime| {
        let (flops, passes, seconds) = of(block);
        let flops = flops as f64 * passes;
        Ok(WorkPoint { flops: positive(flops)?, flops_per_second: positive(flops / seconds)? })
    };
    blocks.iter().map(point).collect()
}

/// A link between a place and the host: to the host, and back.
fn link(place: &str, to_host: Option<Positive>, back: Option<Positive>) -> LinkDescription {
    LinkDescription {
        between: [place.to_owned(), "host".to_owned()],
        forward_bytes_per_second: to_host,
        backward_bytes_per_second: back,
        joint_bytes_per_second: None,
        latency_seconds: None,
        efficiency: Vec::new(),
    }
}
