//! State out of the drives, and to other drives.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use nearfield_bench::values::{Bytes, named};
use nearfield_runtime::store::{self, StateReader};
use nearfield_runtime::types::DType;
use nearfield_train::checkpoint::{SaveOptions, Writer};
use nearfield_train::saved::SavedRun;

use super::layout::LayoutArgs;
use crate::values::human_bytes;

/// `state export`.
#[derive(Debug, Args)]
pub struct ExportArgs {
    /// A drive directory of the run; give all of them, in any order
    #[arg(long, required = true, value_name = "DIR")]
    drive: Vec<PathBuf>,
    /// Write the model to this directory, as Hugging Face keeps models
    #[arg(long, value_name = "DIR")]
    model: Option<PathBuf>,
    /// Write the optimizer's state to this file: as torch.optim.AdamW's state_dict, or as safetensors where the name ends so
    #[arg(long, value_name = "FILE")]
    optimizer: Option<PathBuf>,
    /// Number format of the model's weights: fp32, bf16 or fp16
    #[arg(long, value_parser = named::<DType>, value_name = "DTYPE", default_value = "fp32")]
    dtype: DType,
    /// Number format of the moments: fp32 or bf16
    #[arg(long, value_parser = named::<DType>, value_name = "DTYPE", default_value = "fp32")]
    moments: DType,
    /// The model's directory that the run began with, for its config.json and tokenizer
    #[arg(long, value_name = "DIR")]
    from_model: Option<PathBuf>,
    /// Most bytes of one file of the model
    #[arg(long, value_name = "BYTES", default_value = "5GB")]
    shard_size: Bytes,
    /// Replace what is there
    #[arg(long)]
    overwrite: bool,
}

/// Writes what the run has learned for others.
pub fn export(args: &ExportArgs) -> Result<()> {
    ensure!(
        args.model.is_some() || args.optimizer.is_some(),
        "give --model DIR, --optimizer FILE, or both"
    );
    ensure!(
        args.moments != DType::Fp16,
        "--moments fp16 would lose small numbers; use fp32 or bf16"
    );
    if let Some(target) = &args.model {
        Writer::check(target, args.overwrite)?;
    }
    if let Some(path) = args.optimizer.as_deref().filter(|path| path.exists()) {
        ensure!(args.overwrite, "{} is there already; add --overwrite", path.display());
    }
    let run = SavedRun::open(&args.drive)?;
    // Compared with its checksums before any of it leaves.
    let digest = run.reader().digest()?;
    if let Some(target) = &args.model {
        let options = SaveOptions {
            dtype: args.dtype,
            shard_bytes: args.shard_size.0,
            replace: args.overwrite,
        };
        run.save_model(target, args.from_model.as_deref(), &options)?;
        println!("model         {}", target.display());
    }
    if let Some(path) = &args.optimizer {
        // A file that is cut off never has the wanted name.
        let ending = path.extension().unwrap_or_default().to_string_lossy();
        let partial = path.with_extension(format!("partial.{ending}"));
        run.export_moments(&partial, args.moments)?;
        std::fs::rename(&partial, path).with_context(|| {
            format!("cannot rename {} to {}", partial.display(), path.display())
        })?;
        println!("optimizer     {} after step {}", path.display(), run.reader().step());
    }
    println!("state digest  {digest}");
    Ok(())
}

/// `state repartition`.
#[derive(Debug, Args)]
pub struct RepartitionArgs {
    /// A drive directory of the run; give all of them, in any order
    #[arg(long, required = true, value_name = "DIR")]
    drive: Vec<PathBuf>,
    /// A drive directory for the copy; give the flag once for each
    #[arg(long, required = true, value_name = "DIR")]
    to: Vec<PathBuf>,
    #[command(flatten)]
    layout: LayoutArgs,
}

/// Makes the same state on other drives.
pub fn repartition(args: &RepartitionArgs) -> Result<()> {
    let run = SavedRun::open(&args.drive)?;
    let digest = run.copy_to(&args.to, &args.layout.layout())?;
    println!("state digest  {digest}");
    println!(
        "The run is on {} drives now as well; go on there with nearfield train --resume, with --system, --placement and \
         --subgroup-size as given here.",
        args.to.len()
    );
    Ok(())
}

/// `state snapshot`.
#[derive(Debug, Args)]
pub struct SnapshotArgs {
    /// A drive directory of the run; give all of them, in any order
    #[arg(long, required = true, value_name = "DIR")]
    drive: Vec<PathBuf>,
    /// Directory for the snapshot; it must not exist
    #[arg(long, value_name = "DIR")]
    to: PathBuf,
}

/// Copies the state of all drives into one directory, which is there whole or not at all.
pub fn snapshot(args: &SnapshotArgs) -> Result<()> {
    ensure!(!args.to.exists(), "{} is there already; give another --to", args.to.display());
    // Keeps a run from beginning meanwhile.
    let reader = StateReader::open(&args.drive)?;
    let digest = reader.digest()?;
    let name = args.to.file_name().context("--to needs a name")?.to_string_lossy().into_owned();
    let partial = args.to.with_file_name(format!(".{name}.nearfield-snapshot"));
    if partial.exists() {
        std::fs::remove_dir_all(&partial).with_context(|| {
            format!("cannot remove {}, left by a snapshot that was cut off", partial.display())
        })?;
    }
    let mut copies = Vec::new();
    for number in 0..args.drive.len() {
        let copy = partial.join(format!("drive{number}"));
        std::fs::create_dir_all(&copy)
            .with_context(|| format!("cannot make the directory {}", copy.display()))?;
        copies.push(copy);
    }
    let copied = store::copy_state(&args.drive, &copies)?;
    let found = StateReader::open(&copies)?.digest()?;
    if found != digest {
        bail!(
            "the copy has the digest {found}, the state {digest}; check the disk of {}",
            partial.display()
        );
    }
    std::fs::rename(&partial, &args.to)
        .with_context(|| format!("cannot rename {} to {}", partial.display(), args.to.display()))?;
    println!("snapshot      {} after step {}", args.to.display(), reader.step());
    println!(
        "              {} in all, {} shared with the drives",
        human_bytes(copied.bytes),
        human_bytes(copied.shared_bytes)
    );
    println!("state digest  {digest}");
    Ok(())
}

/// `state restore`.
#[derive(Debug, Args)]
pub struct RestoreArgs {
    /// The snapshot
    #[arg(long, value_name = "DIR")]
    from: PathBuf,
    /// A drive directory for the state; give the flag once for each. With as many as the snapshot has, files are copied; with
    /// another number, or any of the flags for the layout, the state is laid out anew
    #[arg(long, required = true, value_name = "DIR")]
    drive: Vec<PathBuf>,
    #[command(flatten)]
    layout: LayoutArgs,
}

/// Brings a snapshot back to drives.
pub fn restore(args: &RestoreArgs) -> Result<()> {
    let sources = drives_of(&args.from)?;
    if sources.len() != args.drive.len() || args.layout.given() {
        let run = SavedRun::open(&sources)?;
        let digest = run.copy_to(&args.drive, &args.layout.layout())?;
        println!("state digest  {digest}");
        return Ok(());
    }
    for drive in &args.drive {
        ensure!(
            drive.is_dir(),
            "{} is no directory; make it, or mount the drive there",
            drive.display()
        );
        ensure!(
            args.layout.overwrite || !store::holds_state(drive),
            "{} holds the state of a run; add --overwrite to replace it",
            drive.display()
        );
    }
    // Before anything is replaced.
    let reader = StateReader::open(&sources)?;
    let digest = reader.digest()?;
    store::copy_state(&sources, &args.drive)?;
    let found = StateReader::open(&args.drive)?.digest()?;
    ensure!(
        found == digest,
        "the drives have the digest {found}, the snapshot {digest}; restore again"
    );
    println!("restored      step {}; go on with nearfield train --resume", reader.step());
    println!("state digest  {digest}");
    Ok(())
}

/// The drives of a snapshot, in order.
fn drives_of(snapshot: &Path) -> Result<Vec<PathBuf>> {
    let drives: Vec<PathBuf> = (0..)
        .map(|number| snapshot.join(format!("drive{number}")))
        .take_while(|path| path.is_dir())
        .collect();
    if drives.is_empty() {
        bail!("{} is no snapshot: there is no drive0 in it", snapshot.display());
    }
    Ok(drives)
}
