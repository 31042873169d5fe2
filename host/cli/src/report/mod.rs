//! `nearfield report`: a run as one page.

mod page;

use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use clap::Args;
use serde_json::Value;

use crate::train::same;

/// Which report, and where the page goes.
#[derive(Debug, Args)]
pub struct ReportArgs {
    /// The report that nearfield train has written
    #[arg(value_name = "FILE")]
    report: PathBuf,
    /// Where the page is written [default: beside the report, ending in .html]
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

/// Writes the page: one file that needs nothing else.
pub fn run(args: &ReportArgs) -> Result<()> {
    let path = &args.report;
    let text = std::fs::read_to_string(path)
        .with_context(|| format!("cannot read the report {}", path.display()))?;
    let report: Value = serde_json::from_str(&text)
        .with_context(|| format!("{} is no report of nearfield train", path.display()))?;
    if !report["loss"].is_array() || !report["traffic"].is_object() {
        bail!("{} is no report of nearfield train: it has no loss or no traffic", path.display());
    }
    let out = args.out.clone().unwrap_or_else(|| path.with_extension("html"));
    if same(&out, path) {
        bail!("--out {} is the report itself; give another file", out.display());
    }
    let title = path.file_name().unwrap_or_default().to_string_lossy();
    let page = page::page(&report, &title)?;
    std::fs::write(&out, page).with_context(|| format!("cannot write {}", out.display()))?;
    println!("{}", out.display());
    Ok(())
}
