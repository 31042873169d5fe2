//! `nearfield doctor`: what this machine has, and what stands in the way.

mod cards;
mod compute;
mod drives;
mod finding;
mod link;
mod system;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use comfy_table::Cell;

use crate::values::table;
use finding::{Finding, Status};

/// Flags of `nearfield doctor`.
#[derive(Debug, Clone, clap::Args)]
pub struct DoctorArgs {
    /// A drive to look at: a directory on it. Give the flag once for each drive
    #[arg(long, value_name = "DIR")]
    drive: Vec<PathBuf>,
    /// Leave the drives' speed unmeasured; nothing is written to them then but an empty file
    #[arg(long)]
    no_measure: bool,
    /// Print JSON, one object a line
    #[arg(long)]
    json: bool,
}

/// Looks and prints; a failure where something does not work.
pub fn run(args: &DoctorArgs) -> Result<ExitCode> {
    let mut findings = system::findings();
    findings.extend(compute::findings());
    findings.extend(drives::findings(&args.drive, !args.no_measure));
    findings.extend(cards::findings(&args.drive));
    if args.json {
        for finding in &findings {
            println!("{}", serde_json::to_string(finding)?);
        }
    } else {
        println!("{}", rows(&findings));
        let remedies =
            findings.iter().filter_map(|finding| Some((finding, finding.remedy.as_ref()?)));
        for (finding, remedy) in remedies {
            println!("{} ({}): {remedy}", finding.what, finding.status.sign());
        }
        if args.drive.is_empty() {
            println!("\nNo drive was looked at; give --drive DIR for each.");
        }
    }
    let failed = findings.iter().any(|finding| finding.status == Status::Failure);
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn rows(findings: &[Finding]) -> String {
    let mut table = table(&["", "what", "found"]);
    for finding in findings {
        table.add_row([
            Cell::new(finding.status.sign()),
            Cell::new(&finding.what),
            Cell::new(&finding.found),
        ]);
    }
    table.to_string()
}
