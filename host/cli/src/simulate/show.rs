//! Tables and CSV.

use std::fmt::Write;

use comfy_table::Cell;

use super::outcome::Outcome;
use crate::values::{human_bytes, right, table};

/// Name of a column, and its text.
type Column = (&'static str, fn(&Outcome) -> String);

/// Columns that a table has only where their values differ.
const EXTRA: [Column; 5] = [
    ("topology", |outcome| outcome.topology.clone()),
    ("optimizer", |outcome| outcome.optimizer.name().to_owned()),
    ("kept", |outcome| outcome.topk_keep.to_string()),
    ("batch", |outcome| outcome.batch.to_string()),
    ("seq", |outcome| outcome.seq.to_string()),
];

/// One row a combination.
pub fn rows(outcomes: &[Outcome]) -> String {
    // What a sweep changes beside the usual.
    let extra: Vec<(&str, Vec<String>)> = EXTRA
        .iter()
        .map(|(name, of)| (*name, outcomes.iter().map(of).collect::<Vec<_>>()))
        .filter(|(_, values)| values.iter().any(|value| *value != values[0]))
        .collect();
    let mut header = vec!["model", "GPU", "drives", "system"];
    header.extend(extra.iter().map(|(name, _)| *name));
    header.extend(["forward", "backward", "update", "total, s", "speed-up", "bottleneck"]);
    let mut table = table(&header);
    let first = outcomes.first().map_or(0.0, |outcome| outcome.total_seconds);
    for (index, outcome) in outcomes.iter().enumerate() {
        let seconds = |value: f64| right(format!("{value:.2}"));
        let gpu = match outcome.gpus {
            1 => outcome.gpu.clone(),
            count => format!("{count} x {}", outcome.gpu),
        };
        let mut row = vec![
            Cell::new(&outcome.model),
            Cell::new(gpu),
            right(outcome.drives.to_string()),
            Cell::new(outcome.system_name()),
        ];
        row.extend(extra.iter().map(|(_, values)| Cell::new(&values[index])));
        row.extend([
            seconds(outcome.forward_seconds),
            seconds(outcome.backward_seconds),
            seconds(outcome.update_seconds),
            seconds(outcome.total_seconds),
            right(format!("{:.2}", first / outcome.total_seconds)),
            Cell::new(&outcome.bottleneck),
        ]);
        table.add_row(row);
    }
    table.to_string()
}

/// Bytes, memory and use of one combination, and what faster parts would do.
pub fn details(outcome: &Outcome) -> String {
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = writeln!(text, "Bytes of a step");
    for (name, bytes) in outcome.bytes.fields() {
        let _ = writeln!(text, "  {:<22}{:>10}", name.replace('_', " "), human_bytes(bytes));
    }
    let _ = writeln!(text, "Over all links of a kind");
    for link in &outcome.links {
        let _ = writeln!(text, "  {:<22}{:>10}", link.name, human_bytes(link.bytes));
    }
    let memory = &outcome.memory;
    let _ = writeln!(text, "Most memory at a time");
    for (name, bytes) in [
        ("host", memory.host_bytes),
        ("GPU", memory.gpu_bytes),
        ("beside a drive", memory.local_bytes),
        ("on a drive", memory.drive_bytes),
    ] {
        let _ = writeln!(text, "  {name:<22}{:>10}", human_bytes(bytes));
    }
    if let Some(price) = outcome.price_usd {
        let tokens = (outcome.batch * outcome.seq) as f64 / outcome.total_seconds;
        let _ = writeln!(
            text,
            "Price {price:.0} USD, {tokens:.0} tokens a second, {:.2} tokens a second for 1000 USD",
            tokens / price * 1000.0
        );
    }
    let _ = writeln!(
        text,
        "\n{:<24}{:>10}{:>9}{:>22}{:>16}",
        "Busiest", "seconds", "share", "step if twice as fast", "if unlimited"
    );
    for relief in outcome.what_if.iter().take(8) {
        let busy = outcome.utilisation.iter().find(|busy| busy.name == relief.name);
        let Some(busy) = busy else { continue };
        let _ = writeln!(
            text,
            "  {:<22}{:>10.2}{:>7.0} %{:>20.2} s{:>14.2} s",
            busy.name,
            busy.seconds,
            busy.share * 100.0,
            relief.twice_seconds,
            relief.unlimited_seconds
        );
    }
    if let [first, second, ..] = &outcome.what_if[..] {
        let _ = writeln!(
            text,
            "\nThe bottleneck is {}; {:.2} times as fast, it would be busy as long as {}.",
            first.name, first.times_faster, second.name
        );
    }
    text
}

/// The numbers of the table, with a header.
pub fn csv(outcomes: &[Outcome]) -> String {
    let mut text = String::from(
        "fabric,gpu,gpus,topology,model,parameters,drives,system,topk_keep,optimizer,batch,seq,forward_seconds,\
         backward_seconds,update_seconds,total_seconds,price_usd,bottleneck,overlap_update\n",
    );
    for outcome in outcomes {
        // Names from files may hold a comma.
        let quoted = |name: &str| format!("\"{}\"", name.replace('"', "\"\""));
        let _ = writeln!(
            text,
            "{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{}",
            quoted(&outcome.fabric),
            quoted(&outcome.gpu),
            outcome.gpus,
            quoted(&outcome.topology),
            quoted(&outcome.model),
            outcome.parameters,
            outcome.drives,
            outcome.system.name(),
            outcome.topk_keep,
            outcome.optimizer.name(),
            outcome.batch,
            outcome.seq,
            outcome.forward_seconds,
            outcome.backward_seconds,
            outcome.update_seconds,
            outcome.total_seconds,
            outcome.price_usd.map(|price| price.to_string()).unwrap_or_default(),
            quoted(&outcome.bottleneck),
            outcome.overlap_update
        );
    }
    text
}
