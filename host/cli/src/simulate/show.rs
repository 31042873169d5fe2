//! Tables and CSV.

use std::fmt::Write;

use comfy_table::Cell;

use super::case::Outcome;
use crate::values::{human_bytes, right, table};

/// One row a combination.
pub fn rows(outcomes: &[Outcome]) -> String {
    let mut table = table(&[
        "model",
        "GPU",
        "drives",
        "system",
        "forward",
        "backward",
        "update",
        "total, s",
        "speed-up",
        "bottleneck",
    ]);
    let first = outcomes.first().map_or(0.0, |outcome| outcome.total_seconds);
    for outcome in outcomes {
        let seconds = |value: f64| right(format!("{value:.2}"));
        table.add_row([
            Cell::new(&outcome.model),
            Cell::new(&outcome.gpu),
            right(outcome.drives.to_string()),
            Cell::new(outcome.system.name()),
            seconds(outcome.forward_seconds),
            seconds(outcome.backward_seconds),
            seconds(outcome.update_seconds),
            seconds(outcome.total_seconds),
            right(format!("{:.2}", first / outcome.total_seconds)),
            Cell::new(&outcome.bottleneck),
        ]);
    }
    table.to_string()
}

/// Bytes and utilisation of one combination, and how far the bottleneck is from the next.
pub fn details(outcome: &Outcome) -> String {
    let mut text = String::new();
    // Writing to a string cannot fail.
    for (name, bytes) in outcome.bytes.fields() {
        let _ = writeln!(text, "{:<16}{:>10}", name.replace('_', " "), human_bytes(bytes));
    }
    text.push('\n');
    for busy in outcome.utilisation.iter().take(6) {
        let share = busy.share * 100.0;
        let _ =
            writeln!(text, "{:<24}{:>8.2} s  {share:>3.0} % of the step", busy.name, busy.seconds);
    }
    if let [first, second, ..] = &outcome.utilisation[..] {
        let factor = first.seconds / second.seconds;
        let _ = writeln!(
            text,
            "\nThe bottleneck is {}; {factor:.2} times as fast, it would be busy as long as {}.",
            first.name, second.name
        );
    }
    text
}

/// The numbers of the table, with a header.
pub fn csv(outcomes: &[Outcome]) -> String {
    let mut text = String::from(
        "fabric,gpu,gpus,topology,model,parameters,drives,system,topk_keep,optimizer,batch,seq,forward_seconds,\
         backward_seconds,update_seconds,total_seconds,bottleneck\n",
    );
    for outcome in outcomes {
        // Names from files may hold a comma.
        let quoted = |name: &str| format!("\"{}\"", name.replace('"', "\"\""));
        let _ = writeln!(
            text,
            "{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{}",
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
            quoted(&outcome.bottleneck)
        );
    }
    text
}
