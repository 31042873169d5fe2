//! `nearfield validate`: measurements beside what is simulated.

mod data;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use comfy_table::Cell;
use nearfield_bench::values::median;
use nearfield_sim::fabric::FabricCosts;
use nearfield_sim::validation;
use serde::Serialize;

use crate::values::{right, table};
use data::{Data, Entry};

/// Flags of `nearfield validate`.
#[derive(Debug, Clone, clap::Args)]
pub struct ValidateArgs {
    /// Measurements of your own, instead of those that come with the program; docs/src/reference/validation.md has the
    /// format
    #[arg(long, value_name = "FILE")]
    data: Vec<PathBuf>,
    /// Print JSON, one object a line
    #[arg(long)]
    json: bool,
}

/// One phase, or the whole iteration, of one measurement.
#[derive(Debug, Clone, Serialize)]
struct Comparison {
    data: String,
    configuration: String,
    phase: &'static str,
    measured_seconds: f64,
    predicted_seconds: f64,
    /// Predicted over measured, less 1.
    error: f64,
}

/// Errors of many comparisons, without their signs.
#[derive(Debug, Clone, Serialize)]
struct Summary {
    data: String,
    phase: &'static str,
    comparisons: usize,
    median: f64,
    mean: f64,
    worst: f64,
    worst_configuration: String,
}

/// Compares and prints.
pub fn run(args: &ValidateArgs) -> Result<()> {
    let mut files: Vec<(String, String)> = Vec::new();
    for path in &args.data {
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("cannot read {} (--data)", path.display()))?;
        files.push((path.display().to_string(), text));
    }
    if files.is_empty() {
        files.extend(validation::DATA.map(|(name, text)| (name.to_owned(), text.to_owned())));
    }
    let mut all = Vec::new();
    for (name, text) in &files {
        let data = Data::parse(name, text)?;
        let mut comparisons = Vec::new();
        for entry in data.entries(name, text)? {
            let found = compare(name, &entry)
                .with_context(|| format!("measurements {name}: {}", entry.configuration()))?;
            comparisons.extend(found);
        }
        if !args.json {
            println!("{name}: {}\n{}\n", data.source, rows(&comparisons));
        }
        all.push(comparisons);
    }
    let summaries: Vec<Summary> =
        all.iter().flat_map(|comparisons| summaries(comparisons)).collect();
    if args.json {
        for comparison in all.iter().flatten() {
            println!("{}", serde_json::to_string(comparison)?);
        }
        for summary in &summaries {
            println!("{}", serde_json::to_string(summary)?);
        }
    } else {
        println!("{}", summary_rows(&summaries));
    }
    Ok(())
}

fn compare(name: &str, entry: &Entry) -> Result<Vec<Comparison>> {
    let fabric = entry.machine(Path::new(name))?;
    let case = entry.case();
    let costs = FabricCosts::new(&fabric, &case.selection())?;
    let step = case.step()?;
    let run = step.run(&costs)?;
    step.check_memory(&costs, &fabric, &run)?;
    let [forward, backward, update] = run.phases;
    let measured = entry.measured;
    let pairs = [
        ("forward", measured.forward, forward),
        ("backward", measured.backward, backward),
        ("update", measured.update, update),
        ("total", measured.total(), run.seconds()),
    ];
    let comparison = |(phase, measured, predicted_seconds): (&'static str, Option<f64>, f64)| {
        let measured_seconds = measured?;
        Some(Comparison {
            data: name.to_owned(),
            configuration: entry.configuration(),
            phase,
            measured_seconds,
            predicted_seconds,
            error: predicted_seconds / measured_seconds - 1.0,
        })
    };
    Ok(pairs.into_iter().filter_map(comparison).collect())
}

fn percent(error: f64) -> String {
    format!("{:+.1} %", error * 100.0)
}

fn rows(comparisons: &[Comparison]) -> String {
    let mut table = table(&["configuration", "phase", "measured, s", "predicted, s", "error"]);
    let mut last = "";
    for one in comparisons {
        let title = if one.configuration == last { "" } else { &one.configuration };
        last = &one.configuration;
        table.add_row([
            Cell::new(title),
            Cell::new(one.phase),
            right(format!("{:.3}", one.measured_seconds)),
            right(format!("{:.3}", one.predicted_seconds)),
            right(percent(one.error)),
        ]);
    }
    table.to_string()
}

/// One summary a phase, in the order in which phases run.
fn summaries(comparisons: &[Comparison]) -> Vec<Summary> {
    let of_phase = |phase: &'static str| {
        let of: Vec<&Comparison> = comparisons.iter().filter(|one| one.phase == phase).collect();
        let errors: Vec<f64> = of.iter().map(|one| one.error.abs()).collect();
        let worst = of.iter().max_by(|a, b| a.error.abs().total_cmp(&b.error.abs()))?;
        Some(Summary {
            data: worst.data.clone(),
            phase,
            comparisons: of.len(),
            median: median(&errors),
            mean: errors.iter().sum::<f64>() / errors.len() as f64,
            worst: worst.error,
            worst_configuration: worst.configuration.clone(),
        })
    };
    ["forward", "backward", "update", "total"].into_iter().filter_map(of_phase).collect()
}

fn summary_rows(summaries: &[Summary]) -> String {
    let header = ["measurements", "phase", "number", "median", "mean", "worst", "which"];
    let mut table = table(&header);
    for one in summaries {
        table.add_row([
            Cell::new(&one.data),
            Cell::new(one.phase),
            right(one.comparisons.to_string()),
            right(format!("{:.1} %", one.median * 100.0)),
            right(format!("{:.1} %", one.mean * 100.0)),
            right(percent(one.worst)),
            Cell::new(&one.worst_configuration),
        ]);
    }
    table.to_string()
}
