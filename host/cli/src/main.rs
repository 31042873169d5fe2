//! `nearfield`: train models whose optimizer state lives on drives.

mod calibrate;
mod doctor;
mod picture;
mod report;
mod simulate;
mod state;
mod train;
mod validate;
mod values;

use std::io::{IsTerminal, Write};
use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Train models whose optimizer state lives on drives, with the update running next to them.
#[derive(Debug, Parser)]
#[command(version, propagate_version = true, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Train a GPT on text
    #[command(after_help = train::AFTER_HELP)]
    Train(Box<train::TrainArgs>),
    /// Measure this machine beside its limits
    #[command(subcommand)]
    Bench(nearfield_bench::BenchArgs),
    /// Look at this machine and its drives, and say what stands in the way
    Doctor(doctor::DoctorArgs),
    /// Measure this machine and write a description of it, from which `train --fabric` predicts times
    Calibrate(calibrate::CalibrateArgs),
    /// Predict the step of a model on a machine that is described, with any number of drives
    #[command(after_help = simulate::AFTER_HELP)]
    Simulate(Box<simulate::SimulateArgs>),
    /// Make one page of a run's report: loss, phases, resources over time, traffic, memory
    Report(report::ReportArgs),
    /// Compare what is simulated with measurements
    Validate(validate::ValidateArgs),
    /// Look at the state on drives, and take it elsewhere
    #[command(subcommand)]
    State(state::StateCommand),
}

fn main() -> ExitCode {
    // A reader that closes the pipe (`nearfield … | head`) ends this program, as it does others.
    // SAFETY: sets a disposition before any thread exists.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
    end_where_output_cannot_be_written();
    share_memory_among_threads();
    let cli = Cli::parse();
    tracing_subscriber::fmt()
        .with_env_filter(
            tracing_subscriber::EnvFilter::try_from_env("NEARFIELD_LOG")
                // The converter of charts warns of shapes without height, such as a phase that takes no time.
                .unwrap_or_else(|_| {
                    tracing_subscriber::EnvFilter::new("warn,usvg=error,resvg=error")
                }),
        )
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .with_target(false)
        .without_time()
        .init();
    let outcome = match cli.command {
        Command::Train(args) => train::run(*args),
        Command::Bench(args) => nearfield_bench::run(args).map(|()| ExitCode::SUCCESS),
        Command::Doctor(args) => doctor::run(&args),
        Command::Calibrate(args) => calibrate::run(&args).map(|()| ExitCode::SUCCESS),
        Command::Simulate(args) => simulate::run(&args).map(|()| ExitCode::SUCCESS),
        Command::Report(args) => report::run(&args).map(|()| ExitCode::SUCCESS),
        Command::Validate(args) => validate::run(&args).map(|()| ExitCode::SUCCESS),
        Command::State(command) => state::run(&command).map(|()| ExitCode::SUCCESS),
    };
    let failed = outcome.is_err();
    let code = outcome.unwrap_or_else(|error| {
        eprintln!("error: {}", message(&error));
        ExitCode::FAILURE
    });
    if nearfield_fpga::xrt::any_lost() {
        let _ = std::io::stdout().flush();
        // SAFETY: ends the process. What XRT does at an end would wait for a card that was given up.
        unsafe { libc::_exit(i32::from(failed)) };
    }
    code
}

/// Lets all threads take memory from one place, and keeps what they give back. By default each thread's tensors go to a place of
/// their own, which no other thread uses again: a third more memory at the peak of a training run, and no faster.
fn share_memory_among_threads() {
    /// Largest block that is kept. The allocator would allow 32 MiB, but few blocks are that large, and they leave holes that
    /// nothing else fills: as measured, a seventh more memory at the peak, and a tenth of difference from run to run.
    const KEPT: libc::c_int = 20 << 20;
    // SAFETY: plain settings of the allocator, made before any thread exists. Where one is refused, the default stays.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 1);
        libc::mallopt(libc::M_MMAP_THRESHOLD, KEPT);
        libc::mallopt(libc::M_TRIM_THRESHOLD, libc::c_int::MAX);
    }
}

/// Output to a full disk is an error like others, and not a defect of this program.
fn end_where_output_cannot_be_written() {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        let payload = info.payload();
        let text = payload.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| payload.downcast_ref::<&str>().copied()).unwrap_or_default();
        if let Some(reason) = text.strip_prefix("failed printing to stdout: ") {
            // Standard error may be there still.
            let _ = writeln!(std::io::stderr(), "error: cannot write the output: {reason}");
            std::process::exit(1);
        }
        usual(info);
    }));
}

/// The error and its causes, without those that an error has already said.
fn message(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain() {
        let cause = cause.to_string();
        if !text.contains(&cause) {
            if !text.is_empty() {
                text.push_str(": ");
            }
            text.push_str(&cause);
        }
    }
    text
}
