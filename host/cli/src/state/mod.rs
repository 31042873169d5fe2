//! `nearfield state`: looks at drives at rest, and moves what they hold.

mod import;
mod layout;
mod transfer;

use std::path::PathBuf;

use anyhow::{Result, bail};
use clap::{Args, Subcommand};
use nearfield_runtime::store;

use crate::values::human_bytes;

/// What to do with the state.
#[derive(Debug, Subcommand)]
pub enum StateCommand {
    /// Say what the drives hold
    Inspect(Drives),
    /// Read all that a continued run needs and recompute every checksum
    Verify(Drives),
    /// Print the digest of step, master weights and moments
    Digest(Drives),
    /// Write the model and the optimizer's state for others: Hugging Face, torch.optim.AdamW, safetensors
    Export(transfer::ExportArgs),
    /// Make the state of a run from a model and the state of torch.optim.AdamW; nearfield train --resume goes on with it
    Import(import::ImportArgs),
    /// Copy the state of all drives into one directory: atomic, verified, sharing blocks where the file system can
    Snapshot(transfer::SnapshotArgs),
    /// Bring a snapshot back to drives, the same number or another
    Restore(transfer::RestoreArgs),
    /// Make the same state on other drives, any number of them
    Repartition(transfer::RepartitionArgs),
}

/// Which drives.
#[derive(Debug, Args)]
pub struct Drives {
    /// A drive directory of the run; give all of them, in any order
    #[arg(long, required = true, value_name = "DIR")]
    drive: Vec<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Runs one of the commands.
pub fn run(command: &StateCommand) -> Result<()> {
    match command {
        StateCommand::Inspect(drives) => inspect(drives),
        StateCommand::Verify(drives) => verify(drives),
        StateCommand::Export(args) => transfer::export(args),
        StateCommand::Import(args) => import::import(args),
        StateCommand::Snapshot(args) => transfer::snapshot(args),
        StateCommand::Restore(args) => transfer::restore(args),
        StateCommand::Repartition(args) => transfer::repartition(args),
        StateCommand::Digest(drives) => {
            let digest = store::digest_of(&drives.drive)?;
            if drives.json {
                println!("{}", serde_json::json!({ "state_digest": digest }));
            } else {
                println!("{digest}");
            }
            Ok(())
        }
    }
}

fn inspect(drives: &Drives) -> Result<()> {
    let report = store::inspect(&drives.drive)?;
    if drives.json {
        println!("{}", serde_json::to_string_pretty(&report)?);
        return Ok(());
    }
    println!("run        {}", report.run);
    println!("step       {} (iteration {})", report.step, report.iteration);
    if report.interrupted {
        println!("           the update of this step was cut short; the next start completes it");
    }
    println!("optimizer  {}, moments in {}", report.optimizer.name(), report.moments.name());
    println!("parameters {}", report.elements);
    for drive in &report.drives {
        println!(
            "drive {}    {}: {} parts in {} slots ({} spare), {}",
            drive.drive,
            drive.path.display(),
            drive.parts,
            drive.slots,
            drive.slots_free,
            human_bytes(drive.bytes)
        );
        for (kind, iteration, step) in &drive.journal {
            println!("             journal: {kind:?} iteration {iteration} step {step}");
        }
    }
    Ok(())
}

fn verify(drives: &Drives) -> Result<()> {
    let mut bytes = 0;
    let findings = store::verify(&drives.drive, &mut |done| bytes = done)?;
    if drives.json {
        println!("{}", serde_json::json!({ "bytes": bytes, "findings": findings }));
    } else {
        for finding in &findings {
            println!(
                "drive {} ({}), subgroup {}, {}: {}",
                finding.drive,
                finding.path.display(),
                finding.subgroup,
                finding.variable,
                finding.what
            );
        }
        println!("{} read, {} findings", human_bytes(bytes), findings.len());
    }
    if findings.is_empty() { Ok(()) } else { bail!("the state does not match its checksums") }
}
