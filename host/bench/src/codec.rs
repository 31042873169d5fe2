//! Exact top-k selection.

use std::time::Instant;

use anyhow::ensure;
use nearfield_runtime::codec::{TopK, read_pass};
use nearfield_runtime::memory::Arena;
use serde::Serialize;

use crate::output::Output;
use crate::values::{median, thread_count, threads};

/// Flags of `nearfield bench codec`.
#[derive(Debug, Clone, clap::Args)]
pub struct CodecArgs {
    /// Elements of the gradient
    #[arg(long, default_value_t = 100_000_000)]
    elements: usize,
    /// Share of the elements that is kept
    #[arg(long, default_value_t = 0.01)]
    keep: f64,
    /// Threads, up to 1024; 0 for one a processor
    #[arg(long, default_value_t = 0, value_parser = thread_count)]
    threads: usize,
    /// Times that both are measured
    #[arg(long, default_value_t = 15)]
    rounds: u32,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report {
    elements: usize,
    kept: usize,
    threads: usize,
    seconds: f64,
    elements_per_second: f64,
    gb_per_second: f64,
    limit_seconds: f64,
    limit_gb_per_second: f64,
    ratio: f64,
}

/// Numbers distributed like a gradient's: the sum of several uniform ones.
fn fill(gradient: &mut [f32]) {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    for value in gradient {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let sum: u64 = (0..4).map(|part| (state >> (part * 16)) & 0xffff).sum();
        *value = (sum as f32 - 131_070.0) * 1e-6;
    }
}

/// Measures and prints.
pub fn run(args: &CodecArgs) -> anyhow::Result<()> {
    ensure!(args.elements > 0 && args.rounds > 0, "--elements and --rounds must be at least 1");
    ensure!(args.keep > 0.0 && args.keep <= 1.0, "--keep must be above 0 and at most 1");
    let threads = threads(args.threads);
    let bytes = args.elements as u64 * 4;
    let mut region = Arena::new("benchmark gradient", bytes, false)?.allocate(bytes)?;
    let gradient = &mut region.as_f32_mut()[..args.elements];
    fill(gradient);
    let kept = ((args.elements as f64 * args.keep) as usize).clamp(1, args.elements);
    let (mut indices, mut values) = (vec![0; kept], vec![0.0; kept]);
    let mut topk = TopK::new(args.elements, threads)?;
    let (mut limits, mut selections) = (Vec::new(), Vec::new());
    // One round more than asked for, to warm up.
    for round in 0..=args.rounds {
        let begin = Instant::now();
        std::hint::black_box(read_pass(gradient, threads)?);
        let pass_seconds = begin.elapsed().as_secs_f64();
        let begin = Instant::now();
        topk.select(gradient, kept, &mut indices, &mut values)?;
        let seconds = begin.elapsed().as_secs_f64();
        if round > 0 {
            limits.push(pass_seconds);
            selections.push(seconds);
        }
    }
    let (limit_seconds, seconds) = (median(&limits), median(&selections));
    let gigabytes = bytes as f64 / 1e9;
    let report = Report {
        elements: args.elements,
        kept,
        threads,
        seconds,
        elements_per_second: args.elements as f64 / seconds,
        gb_per_second: gigabytes / seconds,
        limit_seconds,
        limit_gb_per_second: gigabytes / limit_seconds,
        ratio: limit_seconds / seconds,
    };
    Output { json: args.json }.print("exact top-k", &report)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_measurement_runs() {
        let args = CodecArgs { elements: 3001, keep: 0.01, threads: 1, rounds: 1, json: true };
        run(&args).unwrap();
        assert!(run(&CodecArgs { keep: 0.0, ..args }).is_err());
    }
}
