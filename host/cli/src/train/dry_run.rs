//! `nearfield train --dry-run`.

use std::process::ExitCode;

use anyhow::Result;
use comfy_table::Cell;
use nearfield_runtime::graph::{Direction, Op};
use nearfield_techniques::offload::plan::gradient::MicroStep;
use nearfield_techniques::offload::plan::{Action, Plan};
use nearfield_train::trainer::{DryRun, TrainOptions};
use serde_json::json;

use super::args::{ProgressKind, TrainArgs};
use super::endurance::Endurance;
use super::predict::{self, Predicted};
use crate::values::{human_bytes, right, table};

/// Prints what the run would take; fails where it cannot work.
pub fn run(args: &TrainArgs, options: &TrainOptions) -> Result<ExitCode> {
    let machine = predict::executor(args, options.drives.len())?;
    let dry = DryRun::new(options)?;
    let seconds = |machine| predict::predict(&machine, options.accumulate, &dry.blueprint);
    let predicted = machine.map(seconds).transpose()?;
    let obstacles = dry.obstacles(options);
    let wear = endurance(&dry, args, options, predicted);
    if args.progress == Some(ProgressKind::Json) {
        print_json(&dry, options, args, predicted, wear, &obstacles)?;
    } else {
        print(&dry, options, predicted, wear);
        for obstacle in &obstacles {
            println!("cannot work   {obstacle}");
        }
        if obstacles.is_empty() {
            println!("This run can work. Nothing was made.");
        }
    }
    Ok(if obstacles.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Wear of the drive that is written to most, from the graphs.
fn endurance(
    dry: &DryRun,
    args: &TrainArgs,
    options: &TrainOptions,
    predicted: Option<Predicted>,
) -> Option<Endurance> {
    let accumulate = u64::from(options.accumulate).saturating_sub(1);
    let of = |drive| written(dry, drive, accumulate);
    let most = (0..dry.drives.len() as u32).map(of).max()?;
    let seconds = predicted.map(|each| each.forward + each.backward + each.update);
    Some(Endurance::new(most as f64, args.drive_tbw, seconds))
}

/// Bytes that a step writes to one drive, with `accumulate` micro-steps before the last.
fn written(dry: &DryRun, drive: u32, accumulate: u64) -> u64 {
    let blueprint = &dry.blueprint;
    let each = of_plan(blueprint.gradient(MicroStep::Accumulate), drive);
    let plans = blueprint.step_plans().into_iter();
    accumulate * each + plans.map(|plan| of_plan(plan, drive)).sum::<u64>()
}

fn of_plan(plan: &Plan, drive: u32) -> u64 {
    plan.graph
        .tasks()
        .iter()
        .filter_map(|task| match task.op {
            Op::Storage { direction: Direction::Write, drive: other, bytes, .. } => {
                (other == drive).then_some(bytes)
            }
            _ => None,
        })
        .sum()
}

fn print(
    dry: &DryRun,
    options: &TrainOptions,
    predicted: Option<Predicted>,
    wear: Option<Endurance>,
) {
    let model = &dry.architecture;
    println!(
        "model         {} of {} blocks, width {}: {} parameters",
        model.family.name(),
        model.layers,
        model.hidden,
        dry.parameters
    );
    if let Some(done) = dry.continued {
        println!("continues     after iteration {done} of {}", options.iterations);
    }
    match &dry.corpus {
        Some(corpus) => println!(
            "data          {} tokens in {} files, order {}",
            corpus.tokens(),
            corpus.files(),
            corpus.order().name()
        ),
        None => println!("data          is cut into tokens when the run starts"),
    }
    let layout = &dry.blueprint.layout;
    let updates = dry.blueprint.update.actions.iter();
    println!(
        "system        {}: {} parts, {} kernels a step, subgroups of at most {} elements",
        options.offload.system.name(),
        layout.parts.len(),
        updates.filter(|action| matches!(action, Action::Update { .. })).count(),
        options.offload.subgroup_elements
    );
    let mut drives = table(&["drive", "directory", "parameters", "needs", "free", "disk"]);
    for (number, (need, path)) in dry.drives.iter().zip(&options.drives).enumerate() {
        let parts = layout.on_drive(number as u32);
        let elements: u64 = parts.iter().map(|&part| layout.parts[part].elements).sum();
        drives.add_row(vec![
            right(number.to_string()),
            Cell::new(path.display()),
            right(elements.to_string()),
            right(human_bytes(need.needed)),
            right(human_bytes(need.free + need.replaced)),
            Cell::new(if need.disks.is_empty() { "-".to_owned() } else { need.disks.join(", ") }),
        ]);
    }
    if !dry.drives.is_empty() {
        println!("\n{drives}");
    }
    let mut memory = table(&["host memory", "bytes"]);
    for (purpose, bytes) in &dry.host_memory {
        memory.add_row(vec![Cell::new(purpose), right(human_bytes(*bytes))]);
    }
    memory.add_row(vec![Cell::new("together, at the peak"), right(human_bytes(dry.host_bytes()))]);
    if let Some(available) = dry.available {
        memory.add_row(vec![Cell::new("can be had"), right(human_bytes(available))]);
    }
    println!("\n{memory}");
    let mut links = table(&["link", "bytes a step"]);
    for (name, bytes) in dry.blueprint.traffic(options.accumulate).fields() {
        links.add_row(vec![Cell::new(name.replace('_', " ")), right(human_bytes(bytes))]);
    }
    println!("\n{links}\n");
    let rehearsal = &dry.rehearsal;
    let times = f64::from(options.accumulate);
    println!(
        "computing     forward {:.3} s, backward {:.3} s a step, from a rehearsal of a few blocks",
        rehearsal.forward_seconds * times,
        rehearsal.backward_seconds * times
    );
    match predicted {
        Some(each) => println!(
            "predicted     forward {:.3} s, backward {:.3} s, update {:.3} s a step; {} steps take {:.0} s",
            each.forward,
            each.backward,
            each.update,
            options.iterations,
            (each.forward + each.backward + each.update) * options.iterations as f64
        ),
        None => println!(
            "predicted     give --fabric (from nearfield calibrate) for seconds with transfers"
        ),
    }
    if let Some(wear) = wear {
        println!("wear          {}", wear.text());
    }
}

fn print_json(
    dry: &DryRun,
    options: &TrainOptions,
    args: &TrainArgs,
    predicted: Option<Predicted>,
    wear: Option<Endurance>,
    obstacles: &[String],
) -> Result<()> {
    let traffic = dry.blueprint.traffic(options.accumulate);
    let memory = dry.host_memory.iter().map(|(name, bytes)| ((*name).to_owned(), json!(bytes)));
    let report = json!({
        "parameters": dry.parameters,
        "parts": dry.blueprint.layout.parts.len(),
        "drives": dry.drives.iter().zip(&options.drives).map(|(need, path)| json!({
            "path": path, "needs_bytes": need.needed, "free_bytes": need.free, "replaced_bytes": need.replaced, "disks": need.disks,
        })).collect::<Vec<_>>(),
        "host_memory": memory.collect::<serde_json::Map<_, _>>(),
        "host_memory_bytes": dry.host_bytes(),
        "available_bytes": dry.available,
        "traffic": traffic.fields().iter().map(|(name, bytes)| ((*name).to_owned(), json!(bytes)))
            .collect::<serde_json::Map<_, _>>(),
        "compute_seconds": {
            "forward": dry.rehearsal.forward_seconds * f64::from(options.accumulate),
            "backward": dry.rehearsal.backward_seconds * f64::from(options.accumulate),
        },
        "predicted_seconds": predicted.map(|each| json!({
            "forward": each.forward, "backward": each.backward, "update": each.update,
        })),
        "endurance": wear.map(|wear| wear.json(args.drive_tbw)),
        "obstacles": obstacles,
    });
    println!("{}", serde_json::to_string_pretty(&report)?);
    Ok(())
}
