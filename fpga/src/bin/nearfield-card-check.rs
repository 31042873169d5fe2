//! Runs the kernels on cards and compares every bit with the CPU's.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::Parser;
use nearfield_fpga::check::{Extent, check};
use nearfield_fpga::device::SmartSsds;
use nearfield_fpga::xrt::{CardName, any_lost};
use nearfield_runtime::io::{IoEngine, IoOptions};

type Error = Box<dyn std::error::Error>;

/// Runs the kernels on cards and compares every bit with the CPU's
#[derive(Debug, Parser)]
#[command(version)]
struct Arguments {
    /// The bitstream
    #[arg(long, value_name = "FILE")]
    bitstream: PathBuf,
    /// A card: its place in XRT's list, or its PCI address. Give the flag once for each; without it, card 0
    #[arg(long, value_name = "CARD")]
    card: Vec<CardName>,
    /// Elements that are updated
    #[arg(long, default_value_t = 300_000)]
    elements: u32,
    /// Share of the gradient that is kept, for the kernels of pairs
    #[arg(long, default_value_t = 0.03)]
    keep: f64,
    /// A folder on the card's drive, for a file that is read into the card's memory and written from it. Once for each card, or not
    /// at all
    #[arg(long, value_name = "DIR")]
    folder: Vec<PathBuf>,
    /// Seconds that a call to a card may take
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    card_timeout: u64,
}

fn main() -> ExitCode {
    let code = match run(Arguments::parse()) {
        Ok(()) => 0,
        Err(error) => {
            eprintln!("error: {error}");
            1
        }
    };
    if any_lost() {
        let _ = std::io::stdout().flush();
        // SAFETY: ends the process. XRT's own end would wait for the card.
        unsafe { libc::_exit(code) };
    }
    ExitCode::from(code as u8)
}

fn run(mut arguments: Arguments) -> Result<(), Error> {
    if arguments.card.is_empty() {
        arguments.card.push(CardName::Index(0));
    }
    if !arguments.folder.is_empty() && arguments.folder.len() != arguments.card.len() {
        return Err("--folder is given once for each --card, or not at all".into());
    }
    let limit = Duration::from_secs(arguments.card_timeout);
    let cards = SmartSsds::new(&arguments.bitstream, limit)?;
    let engine = IoEngine::start("card check", &IoOptions::default())?;
    let mut devices = Vec::new();
    for (drive, card) in arguments.card.iter().enumerate() {
        devices.push(cards.attach(drive as u32, card, &engine)?);
    }
    // All cards at once, a thread each: the launches of one must not disturb those of another.
    std::thread::scope(|scope| {
        let (arguments, engine) = (&arguments, &engine);
        let threads: Vec<_> = devices
            .iter()
            .enumerate()
            .map(|(place, device)| {
                let folder = arguments.folder.get(place);
                let extent = Extent {
                    elements: arguments.elements,
                    keep: arguments.keep,
                    seed: place as u64 * 100,
                    folder: folder.map(|folder| (folder.as_path(), engine as &Arc<IoEngine>)),
                };
                scope.spawn(move || {
                    let name = format!("card {}", arguments.card[place]);
                    for line in check(device, &name, extent)? {
                        println!("{line}");
                    }
                    Ok::<(), nearfield_runtime::Error>(())
                })
            })
            .collect();
        let ended: Vec<_> = threads.into_iter().map(|thread| thread.join()).collect();
        for outcome in ended {
            outcome.map_err(|_| "a check has panicked")??;
        }
        Ok(())
    })
}
