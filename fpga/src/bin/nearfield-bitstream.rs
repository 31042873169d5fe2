//! Builds a bitstream of the kernels with Vitis.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use clap::Parser;
use nearfield_fpga::bitstream::{Places, Request, Target, build};

/// Builds a bitstream of Nearfield's kernels with Vitis; run again, it goes on where it was cut short
#[derive(Debug, Parser)]
#[command(version)]
struct Arguments {
    /// Platform: a name, or the path of an .xpfm file
    #[arg(long, default_value = "xilinx_u2_gen3x4_xdma_gc_2_202110_1")]
    platform: String,
    /// Build for the simulation of the hardware (hw_emu) instead of a card
    #[arg(long)]
    emulation: bool,
    /// Clock of the kernels, in MHz
    #[arg(long, default_value_t = 300, value_parser = clap::value_parser!(u32).range(50..=650))]
    clock_mhz: u32,
    /// Folder for everything that is made
    #[arg(long, default_value = "target/bitstream")]
    output: PathBuf,
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<(), Box<dyn std::error::Error>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let sources = root.join("hls/kernels").canonicalize()?;
    let target = if arguments.emulation { Target::HardwareEmulation } else { Target::Hardware };
    std::fs::create_dir_all(&arguments.output)?;
    let request = Request {
        target,
        clock_mhz: arguments.clock_mhz,
        sources,
        output: arguments.output.canonicalize()?,
        revision: revision(&root),
        digest: nearfield_fpga::xclbin::kernels_digest(),
    };
    let places = Places::of_environment();
    let outcome = build(&request, &arguments.platform, &places, &mut |step| eprintln!("{step}"))?;
    println!("{}", outcome.result.display());
    Ok(())
}

/// The revision of the sources, as git has it.
fn revision(root: &Path) -> String {
    let git = |arguments: &[&str]| {
        let output = Command::new("git").arg("-C").arg(root).args(arguments).output().ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let Some(revision) = git(&["rev-parse", "--short=12", "HEAD"]) else { return "unknown".into() };
    let changed = git(&["status", "--porcelain", "--", "hls"]).is_none_or(|list| !list.is_empty());
    if changed { format!("{revision}-changed") } else { revision }
}
