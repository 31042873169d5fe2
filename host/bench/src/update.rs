//! The optimizer update on the CPU.

use std::time::Instant;

use anyhow::{Context, ensure};
use nearfield_runtime::kernels::bandwidth::{in_place_pass, pass_bytes};
use nearfield_runtime::kernels::{
    Dither, GradientRef, Isa, Moments, Scalars, Segment, WeightsOut, update,
};
use nearfield_runtime::memory::{Arena, Region};
use nearfield_runtime::types::{DType, HyperParameters, Optimizer, Variable};
use rayon::ThreadPool;
use serde::Serialize;

use crate::output::Output;
use crate::values::{median, named, thread_count, threads};

/// Flags of `nearfield bench update`.
#[derive(Debug, Clone, clap::Args)]
pub struct UpdateArgs {
    /// Parameters
    #[arg(long, default_value_t = 50_000_000)]
    params: usize,
    /// Threads, up to 1024; 0 for one a processor
    #[arg(long, default_value_t = 0, value_parser = thread_count)]
    threads: usize,
    /// Update rule
    #[arg(long, default_value = "adamw", value_parser = named::<Optimizer>)]
    optimizer: Optimizer,
    /// Number format of the moments: fp32 or bf16
    #[arg(long, default_value = "fp32", value_parser = named::<DType>)]
    moment_dtype: DType,
    /// Times that everything is measured
    #[arg(long, default_value_t = 25)]
    rounds: u32,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report {
    optimizer: Optimizer,
    moment_dtype: DType,
    params: usize,
    threads: usize,
    isa: &'static str,
    seconds: f64,
    elements_per_second: f64,
    gb_per_second: f64,
    limit_seconds: f64,
    limit_gb_per_second: f64,
    ratio: f64,
}

/// Gradient, weights and both moments, on huge pages.
struct Arrays {
    g: Region,
    p: Region,
    m: Region,
    v: Region,
}

impl Arrays {
    fn new(elements: usize) -> anyhow::Result<Self> {
        let bytes = elements as u64 * 4;
        let array = || -> anyhow::Result<Region> {
            // An arena each: regions of one would start at addresses that differ only by the arrays' length.
            Ok(Arena::new("benchmark arrays", bytes, false)?.allocate(bytes)?)
        };
        let mut arrays = Self { g: array()?, p: array()?, m: array()?, v: array()? };
        for (index, g) in arrays.g.as_f32_mut().iter_mut().enumerate() {
            *g = ((index as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as f32 * 1e-7 - 0.8;
        }
        arrays.p.as_f32_mut().fill(0.5);
        Ok(arrays)
    }
}

/// Which of the moments a rule keeps.
fn keeps(kind: Optimizer, variable: Variable) -> bool {
    kind.variables().contains(&variable)
}

/// The update as steps run it, with the checksums of all that is read and written.
fn run_update(
    pool: &ThreadPool,
    kind: Optimizer,
    scalars: &Scalars,
    arrays: &mut Arrays,
    moments: DType,
) -> nearfield_runtime::Result<()> {
    let Arrays { g, p, m, v } = arrays;
    let segments = [Segment { elements: p.as_f32().len(), scalars: *scalars }];
    let (with_m, with_v) = (keeps(kind, Variable::ExpAvg), keeps(kind, Variable::ExpAvgSq));
    let elements = p.as_f32().len();
    let moments = match moments {
        DType::Bf16 => Moments::Bf16 {
            m: with_m.then(|| &mut m.as_u16_mut()[..elements]),
            v: with_v.then(|| &mut v.as_u16_mut()[..elements]),
            dither: Dither::new(10, 0),
        },
        _ => Moments::Fp32 { m: with_m.then(|| m.as_f32_mut()), v: with_v.then(|| v.as_f32_mut()) },
    };
    let g = GradientRef::Fp32(g.as_f32());
    let p = p.as_f32_mut();
    let isa = Isa::detect();
    update(Some(pool), isa, kind, &segments, g, p, moments, WeightsOut::None, 0)?;
    Ok(())
}

/// Measures and prints.
pub fn run(args: &UpdateArgs) -> anyhow::Result<()> {
    ensure!(args.params > 0 && args.rounds > 0, "--params and --rounds must be at least 1");
    ensure!(args.moment_dtype != DType::Fp16, "--moment-dtype fp16 is not kept; use fp32 or bf16");
    let threads = threads(args.threads);
    let pool = rayon::ThreadPoolBuilder::new()
        .num_threads(threads)
        .build()
        .context("the threads could not be started; use fewer --threads")?;
    let mut arrays = Arrays::new(args.params)?;
    let kind = args.optimizer;
    let hyper = HyperParameters { lr: 1e-4, weight_decay: 0.01, ..HyperParameters::default() };
    let scalars = Scalars::new(kind, &hyper, 10, 1.0);
    let (mut limit, mut update) = (Vec::new(), Vec::new());
    // One round more than asked for: the first warms up memory and processor. Rounds alternate, so that the
    // machine's speed changes for both alike.
    for round in 0..=args.rounds {
        let begin = Instant::now();
        let Arrays { g, p, m, v } = &mut arrays;
        in_place_pass(&pool, g.as_f32(), p.as_f32_mut(), m.as_f32_mut(), v.as_f32_mut());
        let pass_seconds = begin.elapsed().as_secs_f64();
        let begin = Instant::now();
        run_update(&pool, kind, &scalars, &mut arrays, args.moment_dtype)?;
        if round > 0 {
            limit.push(pass_seconds);
            update.push(begin.elapsed().as_secs_f64());
        }
    }
    let (limit, seconds) = (median(&limit), median(&update));
    let elements = args.params as f64;
    // Each stored variable is read and written, the gradient read.
    let moments = (kind.variables().len() - 1) as u64 * args.moment_dtype.bytes();
    let gigabytes = elements * (4 + 2 * (4 + moments)) as f64 / 1e9;
    let limit_gb_per_second = pass_bytes(args.params as u64) as f64 / 1e9 / limit;
    let report = Report {
        optimizer: kind,
        moment_dtype: args.moment_dtype,
        params: args.params,
        threads,
        isa: Isa::detect().name(),
        seconds,
        elements_per_second: elements / seconds,
        gb_per_second: gigabytes / seconds,
        limit_seconds: limit,
        limit_gb_per_second,
        ratio: gigabytes / seconds / limit_gb_per_second,
    };
    Output { json: args.json }.print("optimizer update", &report)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_measured_update_changes_the_weights_under_every_rule() {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(2).build().unwrap();
        let rules = [Optimizer::Adam, Optimizer::Adamw, Optimizer::Adagrad, Optimizer::SgdMomentum];
        for kind in rules {
            let scalars = Scalars::new(kind, &HyperParameters::default(), 1, 1.0);
            let mut arrays = Arrays::new(10_001).unwrap();
            for moments in [DType::Fp32, DType::Bf16] {
                arrays.p.as_f32_mut().fill(0.5);
                run_update(&pool, kind, &scalars, &mut arrays, moments).unwrap();
                let changed = arrays.p.as_f32().iter().filter(|&&p| p != 0.5).count();
                assert!(changed > 9_000, "{kind:?} {moments:?}");
            }
        }
    }

    #[test]
    fn a_small_measurement_runs() {
        let args = UpdateArgs {
            params: 5000,
            threads: 2,
            optimizer: Optimizer::Adamw,
            moment_dtype: DType::Bf16,
            rounds: 1,
            json: false,
        };
        run(&args).unwrap();
        assert!(run(&UpdateArgs { params: 0, ..args }).is_err());
    }
}
