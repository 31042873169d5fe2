//! What the FPGA's kernels cost: an account of cycles and memory traffic, from a run of the same sources on the CPU.

use anyhow::{Context, ensure};
use clap::ValueEnum;
use nearfield_hls::NativeKernels;
use nearfield_hls::account::{self, Counts};
use nearfield_hls::native::take_counts;
use nearfield_runtime::codec::{TopK, kept};
use nearfield_runtime::device::{Kernels, Launch, LocalGradient, pair_bounds_bytes};
use nearfield_runtime::kernels::{Dither, Scalars, Segment};
use nearfield_runtime::memory::{Arena, Region};
use nearfield_runtime::types::{DType, HyperParameters, Optimizer};
use serde::Serialize;

use crate::output::Output;

/// Flags of `nearfield bench hls`.
#[derive(Debug, Clone, clap::Args)]
pub struct HlsArgs {
    /// Elements that are updated
    #[arg(long, default_value_t = 4_000_000)]
    elements: u64,
    /// Shares of the gradient that are kept, for update_topk
    #[arg(long, value_delimiter = ',', default_values_t = [0.000001, 0.01, 0.1, 0.5, 1.0])]
    keep: Vec<f64>,
    /// Number format of the moments
    #[arg(long, value_enum, default_value_t = MomentFormat::Fp32)]
    moment_dtype: MomentFormat,
    /// Clock of the kernels, in MHz
    #[arg(long, default_value_t = account::CLOCK_HERTZ / 1e6)]
    clock_mhz: f64,
    /// Rate of the memory beside the FPGA, in GB/s
    #[arg(long, default_value_t = account::MEMORY_BYTES_PER_SECOND / 1e9)]
    memory_gb_per_second: f64,
    /// Rate at which the drive reads into that memory, in GB/s
    #[arg(long, default_value_t = 2.2)]
    drive_read_gb_per_second: f64,
    /// Rate at which the drive writes out of it, in GB/s
    #[arg(long, default_value_t = 1.52)]
    drive_write_gb_per_second: f64,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Formats of moments.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum MomentFormat {
    Fp32,
    Bf16,
}

#[derive(Serialize)]
struct Report {
    kernel: &'static str,
    elements: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    kept: Option<u64>,
    cycles_per_element: f64,
    memory_bytes_per_element: f64,
    longest_loop: &'static str,
    limit: &'static str,
    seconds: f64,
    /// Counted over gradient, master weights and both moments, 16 bytes an element.
    #[serde(skip_serializing_if = "Option::is_none")]
    state_gb_per_second: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    paper_seconds: Option<f64>,
    /// How many times as fast as the paper's kernel.
    #[serde(skip_serializing_if = "Option::is_none")]
    times_the_paper: Option<f64>,
    /// At which the kernel takes as long as the drive, if the memory were no limit.
    clock_mhz_for_the_drive: f64,
    /// How long the kernel takes, beside the drive's own time.
    share_of_the_drive: f64,
}

/// What an update works on.
struct Arrays {
    gradient: Region,
    param: Region,
    exp_avg: Region,
    exp_avg_sq: Region,
    weights: Region,
    indices: Region,
    values: Region,
    bounds: Region,
}

fn region(bytes: u64) -> anyhow::Result<Region> {
    let bytes = bytes.next_multiple_of(4096);
    Ok(Arena::new("account of kernels", bytes, false)?.allocate(bytes)?)
}

impl Arrays {
    fn new(elements: u64) -> anyhow::Result<Self> {
        let mut arrays = Self {
            gradient: region(4 * elements)?,
            param: region(4 * elements)?,
            exp_avg: region(4 * elements)?,
            exp_avg_sq: region(4 * elements)?,
            weights: region(2 * elements)?,
            indices: region(4 * elements)?,
            values: region(4 * elements)?,
            bounds: region(pair_bounds_bytes(elements))?,
        };
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        for value in arrays.gradient.as_f32_mut() {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            *value = (state >> 40) as f32 * 1e-7 - 0.8;
        }
        arrays.param.as_f32_mut().fill(0.5);
        Ok(arrays)
    }

    /// Runs an update and returns how often its loops have run, those of a check of pairs apart.
    fn run(
        &mut self,
        elements: u64,
        pairs: Option<u64>,
        moments: DType,
    ) -> anyhow::Result<(Option<Counts>, Counts)> {
        let kind = Optimizer::Adamw;
        let scalars = Scalars::new(kind, &HyperParameters::default(), 10, 1.0);
        let segments = [Segment { elements: elements as usize, scalars }];
        take_counts();
        let mut check = None;
        let gradient = match pairs {
            None => LocalGradient::Dense(&self.gradient, DType::Fp32),
            Some(pairs) => {
                let all = &self.gradient.as_f32()[..elements as usize];
                let mut topk = TopK::new(all.len(), 2)?;
                let count = pairs as usize;
                let indices = &mut self.indices.as_u32_mut()[..count];
                topk.select(all, count, indices, &mut self.values.as_f32_mut()[..count])?;
                let bounds = &mut self.bounds;
                let found = NativeKernels.check_pairs(&self.indices, pairs, elements, bounds)?;
                ensure!(found.first_wrong.is_none(), "the selected pairs do not ascend");
                check = Some(take_counts());
                LocalGradient::Pairs {
                    indices: &self.indices,
                    values: &self.values,
                    bounds: &self.bounds,
                    pairs,
                }
            }
        };
        NativeKernels.update(Launch {
            optimizer: kind,
            segments: &segments,
            first_element: 0,
            elements: elements as usize,
            gradient,
            param: &mut self.param,
            exp_avg: Some(&mut self.exp_avg),
            exp_avg_sq: Some(&mut self.exp_avg_sq),
            moments,
            dither: Dither::new(1, 0),
            weights: Some((&mut self.weights, DType::Fp16)),
        })?;
        Ok((check, take_counts()))
    }
}

/// Counts and prints.
pub fn run(args: &HlsArgs) -> anyhow::Result<()> {
    ensure!(args.elements > 0 && args.elements <= 1 << 30, "--elements must be 1 to 2^30");
    for &keep in &args.keep {
        ensure!(keep > 0.0 && keep <= 1.0, "--keep must be above 0 and at most 1");
    }
    let rates = [
        args.clock_mhz,
        args.memory_gb_per_second,
        args.drive_read_gb_per_second,
        args.drive_write_gb_per_second,
    ];
    ensure!(rates.iter().all(|rate| rate.is_finite() && *rate > 0.0), "rates must be above 0");
    let moments = match args.moment_dtype {
        MomentFormat::Fp32 => DType::Fp32,
        MomentFormat::Bf16 => DType::Bf16,
    };
    let mut arrays = Arrays::new(args.elements).context("the arrays cannot be had")?;
    let output = Output { json: args.json };
    let (_, counts) = arrays.run(args.elements, None, moments)?;
    output.print("update", &report(args, "update", None, moments, &counts))?;
    for &keep in &args.keep {
        let pairs = kept(keep, args.elements);
        let (check, counts) = arrays.run(args.elements, Some(pairs), moments)?;
        let title = format!("update_topk, {keep} kept");
        output.print(&title, &report(args, "update_topk", Some(pairs), moments, &counts))?;
        if let Some(check) = check {
            let title = format!("check_pairs, {keep} kept");
            output.print(&title, &report(args, "check_pairs", Some(pairs), moments, &check))?;
        }
    }
    Ok(())
}

fn report(
    args: &HlsArgs,
    kernel: &'static str,
    pairs: Option<u64>,
    moments: DType,
    counts: &Counts,
) -> Report {
    let (clock, memory) = (args.clock_mhz * 1e6, args.memory_gb_per_second * 1e9);
    let elements = args.elements as f64;
    let seconds = counts.seconds(clock, memory);
    // The check has no counterpart.
    let paper_seconds = (kernel != "check_pairs")
        .then(|| account::paper_seconds(args.elements, pairs, clock, memory));
    // The drive reads gradient and state, and writes state; one flash serves both.
    let gradient = pairs.map_or(4.0, |pairs| 8.0 * pairs as f64 / elements);
    let state = 4.0 + 2.0 * moments.bytes() as f64;
    let drive_seconds = elements
        * ((gradient + state) / args.drive_read_gb_per_second
            + state / args.drive_write_gb_per_second)
        / 1e9;
    Report {
        kernel,
        elements: args.elements,
        kept: pairs,
        cycles_per_element: counts.cycles() as f64 / elements,
        memory_bytes_per_element: counts.memory_bytes() as f64 / elements,
        longest_loop: counts.longest_loop(),
        limit: counts.limit(clock, memory).name(),
        seconds,
        state_gb_per_second: paper_seconds.map(|_| 16.0 * elements / seconds / 1e9),
        paper_seconds,
        times_the_paper: paper_seconds.map(|paper| paper / seconds),
        clock_mhz_for_the_drive: counts.cycles() as f64 / drive_seconds / 1e6,
        share_of_the_drive: seconds / drive_seconds,
    }
}
