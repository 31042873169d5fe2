//! What a run leaves: the report file and the tables at its end.

use std::path::Path;

use anyhow::{Context, Result};
use comfy_table::Cell;
use nearfield_runtime::graph::Traffic;
use nearfield_runtime::memory::arena_bytes;
use nearfield_runtime::timeline::{BusyOverTime, ResourceUse};
use nearfield_train::memory;
use nearfield_train::trainer::Trainer;
use serde_json::{Map, Value, json};

use super::drives::DriveFinding;
use super::endurance::Endurance;
use super::metrics::Line;
use super::predict::Predicted;
use crate::values::{human_bytes, right, table};

/// What is only known at the end.
pub struct Ending<'a> {
    /// All iterations of the run.
    pub lines: &'a [Line],
    /// Index of the first iteration of this process.
    pub resumed_at: u64,
    /// Data bytes measured since the first iteration of this process.
    pub measured: Traffic,
    /// Bytes of headers and journal records since then.
    pub metadata_bytes: u64,
    /// Whether the run was stopped before its last step.
    pub interrupted: bool,
    /// Data bytes written since then to the drive that is written to most.
    pub most_written: u64,
    /// Use of resources in the last iteration, and over its time.
    pub usage: &'a [ResourceUse],
    /// What drives did that they should not.
    pub drives: &'a [DriveFinding],
    /// The same in pieces.
    pub busy: &'a BusyOverTime,
    /// Rated terabytes of each drive.
    pub drive_tbw: Option<f64>,
    /// Times that a description of the machine predicts for one iteration.
    pub predicted: Option<Predicted>,
    /// The fabric whose clock was used; `None` for the clock on the wall.
    pub virtual_machine: Option<&'a str>,
}

/// The report as JSON.
pub fn build(trainer: &Trainer, ending: &Ending) -> Result<Value> {
    let options = trainer.options();
    let predicted = trainer.predicted_traffic();
    let traffic: Map<String, Value> = predicted
        .fields()
        .iter()
        .zip(ending.measured.fields())
        .map(|((name, predicted), (_, measured))| {
            ((*name).to_owned(), json!({ "predicted": predicted, "measured": measured }))
        })
        .collect();
    let budget = trainer.engine().budget();
    let (local_peak, _) = trainer.engine().local_memory();
    let own = ending.lines.iter().filter(|line| line.iteration > ending.resumed_at);
    let sum = |field: fn(&Line) -> f64| own.clone().map(field).sum::<f64>();
    let steps = own.clone().count().max(1) as f64;
    let iterations = own.clone().count() as f64;
    let updates = own.clone().filter(|line| !line.skipped).count() as f64;
    let predicted_seconds = ending.predicted.map(|each| {
        json!({
            "forward": each.forward * iterations,
            "backward": each.backward * iterations,
            "update": each.update * updates,
        })
    });
    let resources: Vec<Value> = ending
        .usage
        .iter()
        .map(|used| {
            let busy = ending.busy.resources().iter().find(|(name, _)| *name == used.name);
            // Two digits are what a picture shows.
            let rounded = |share: &f64| (share * 100.0).round() / 100.0;
            json!({
                "name": used.name,
                "utilisation": used.utilisation,
                "gb_per_second": used.gb_per_second,
                "bytes": used.bytes,
                "busy": busy.map(|(_, busy)| busy.iter().map(rounded).collect::<Vec<_>>()),
            })
        })
        .collect();
    let seconds = sum(|line| line.seconds) / steps;
    let wear = Endurance::new(
        ending.most_written as f64 / steps,
        ending.drive_tbw,
        (seconds > 0.0).then_some(seconds),
    );
    Ok(json!({
        "system": options.offload.system.name(),
        "steps": trainer.iteration(),
        "optimizer_steps": trainer.engine().step(),
        "interrupted": ending.interrupted,
        "resumed_at": ending.resumed_at,
        "parameters": trainer.parameters(),
        "drives": options.drives.len(),
        "device": trainer.engine().describe(),
        "clock": ending.virtual_machine.map_or("wall", |_| "virtual"),
        "fabric": ending.virtual_machine,
        "loss": ending.lines.iter().map(|line| line.loss).collect::<Vec<_>>(),
        "eval_loss": ending.lines.iter().filter_map(|line| Some(json!({ "iteration": line.iteration, "loss": line.eval_loss? }))).collect::<Vec<_>>(),
        "state_digest": trainer.engine().digest()?,
        "traffic": traffic,
        "metadata_bytes": ending.metadata_bytes,
        "media_write_bytes_per_step": (ending.measured.media_write + ending.metadata_bytes) as f64 / steps,
        "iterations": {
            "iteration": ending.lines.iter().map(|line| line.iteration).collect::<Vec<_>>(),
            "forward_seconds": ending.lines.iter().map(|line| line.forward_seconds).collect::<Vec<_>>(),
            "backward_seconds": ending.lines.iter().map(|line| line.backward_seconds).collect::<Vec<_>>(),
            "update_seconds": ending.lines.iter().map(|line| line.update_seconds).collect::<Vec<_>>(),
            "tokens_per_second": ending.lines.iter().map(|line| line.tokens_per_second).collect::<Vec<_>>(),
        },
        "utilisation": {
            "seconds": own.clone().next_back().map(|line| line.seconds),
            "resources": resources,
        },
        "drive_findings": ending.drives,
        "drive_parameters": (0..options.drives.len() as u32).map(|drive| {
            let layout = trainer.engine().layout();
            layout.on_drive(drive).iter().map(|&part| layout.parts[part].elements).sum::<u64>()
        }).collect::<Vec<_>>(),
        "endurance": wear.json(ending.drive_tbw),
        "memory_peak": {
            "device_local": local_peak,
            "buffers": arena_bytes(),
            "weights": trainer.engine().weights().bytes(),
            "residuals": budget.residual_bytes,
            "state": budget.state_bytes,
            "accumulators": trainer.accumulator_bytes(),
            "process": memory::peak_bytes(),
        },
        "memory_predicted": {
            "device_local": budget.device_local_bytes.iter().max(),
            "buffers": budget.buffers_bytes(),
            "weights": budget.weights_bytes,
        },
        "phase_seconds": {
            "forward": sum(|line| line.forward_seconds),
            "backward": sum(|line| line.backward_seconds),
            "update": sum(|line| line.update_seconds),
        },
        "predicted_phase_seconds": predicted_seconds,
        "updates_ahead": options.offload.overlap_update.then(|| {
            let of = |counted| own.clone().filter(|line| line.ahead == Some(counted)).count();
            json!({
                "counted": of(true),
                "in_vain": of(false),
                "hidden_seconds": sum(|line| line.hidden_update_seconds),
            })
        }),
        "seconds": sum(|line| line.seconds),
        "skipped_steps": trainer.skipped(),
    }))
}

/// Writes the report.
pub fn write(path: &Path, report: &Value) -> Result<()> {
    std::fs::write(path, format!("{}\n", serde_json::to_string_pretty(report)?))
        .with_context(|| format!("cannot write the report {}", path.display()))
}

/// Tables for people.
pub fn tables(report: &Value, usage: &[ResourceUse]) -> String {
    let mut traffic = table(&["link", "predicted", "measured"]);
    for (name, bytes) in report["traffic"].as_object().into_iter().flatten() {
        let cell = |key: &str| right(human_bytes(bytes[key].as_u64().unwrap_or(0)));
        traffic.add_row(vec![
            Cell::new(name.replace('_', " ")),
            cell("predicted"),
            cell("measured"),
        ]);
    }
    let metadata = report["metadata_bytes"].as_u64().unwrap_or(0);
    traffic.add_row(vec![
        Cell::new("headers, journal"),
        right("-".into()),
        right(human_bytes(metadata)),
    ]);
    let mut memory = table(&["memory", "predicted", "measured"]);
    for (name, bytes) in report["memory_peak"].as_object().into_iter().flatten() {
        let cell = |bytes: &Value| right(bytes.as_u64().map_or_else(|| "-".into(), human_bytes));
        memory.add_row(vec![
            Cell::new(name.replace('_', " ")),
            cell(&report["memory_predicted"][name]),
            cell(bytes),
        ]);
    }
    let clock = if report["clock"] == "virtual" { "virtual" } else { "measured" };
    let mut phases = table(&["phase, seconds", "predicted", clock]);
    for (name, seconds) in report["phase_seconds"].as_object().into_iter().flatten() {
        let cell = |seconds: &Value| {
            right(seconds.as_f64().map_or_else(|| "-".into(), |seconds| format!("{seconds:.3}")))
        };
        phases.add_row(vec![
            Cell::new(name),
            cell(&report["predicted_phase_seconds"][name]),
            cell(seconds),
        ]);
    }
    let mut resources = table(&["resource (last step)", "busy", "of the time", "GB/s"]);
    for used in usage {
        resources.add_row(vec![
            Cell::new(&used.name),
            right(format!("{:.1} ms", used.busy_seconds * 1e3)),
            right(format!("{:.0} %", used.utilisation * 100.0)),
            right(if used.bytes > 0 { format!("{:.2}", used.gb_per_second) } else { "-".into() }),
        ]);
    }
    format!("{traffic}\n\n{memory}\n\n{phases}\n\n{resources}")
}
