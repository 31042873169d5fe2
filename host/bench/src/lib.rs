//! `nearfield bench`: each measurement prints the rate reached, the limit of this machine measured beside it in
//! the same run, and their ratio.
#![deny(missing_docs)]

pub mod calibrate;
mod codec;
mod hls;
mod io;
mod output;
pub mod probe;
mod scratch;
mod step;
mod update;
pub mod values;

pub use codec::CodecArgs;
pub use hls::HlsArgs;
pub use io::IoArgs;
pub use step::StepArgs;
pub use update::UpdateArgs;

/// What to measure.
#[derive(Debug, Clone, clap::Subcommand)]
pub enum BenchArgs {
    /// The storage engine's reads, writes, and both at once, beside the fastest raw requests
    Io(IoArgs),
    /// The optimizer update on the CPU, beside a pass over the same arrays that only compares
    Update(UpdateArgs),
    /// Exact top-k selection, beside one read of the same gradient
    Codec(CodecArgs),
    /// The FPGA's kernels: cycles and memory traffic as their loops run, beside those of the paper's kernels and the drive
    Hls(HlsArgs),
    /// Update phases of whole steps on drives, beside the fastest raw requests for the same bytes
    Step(StepArgs),
}

/// Runs one measurement and prints its result.
///
/// # Errors
/// Arguments out of range, and what drives and memory report.
pub fn run(args: BenchArgs) -> anyhow::Result<()> {
    match args {
        BenchArgs::Io(args) => io::run(&args),
        BenchArgs::Update(args) => update::run(&args),
        BenchArgs::Codec(args) => codec::run(&args),
        BenchArgs::Hls(args) => hls::run(&args),
        BenchArgs::Step(args) => step::run(&args),
    }
}
