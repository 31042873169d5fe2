//! The page: HTML with pictures and styles in it, no scripts, nothing from elsewhere.

use std::fmt::Write;

use anyhow::Result;
use serde_json::Value;

use crate::train::{Endurance, Line, run_picture};
use crate::values::human_bytes;

const STYLE: &str = include_str!("style.css");

/// The page of a report called `title`.
pub fn page(report: &Value, title: &str) -> Result<String> {
    let mut html = String::new();
    let text = |key: &str| match &report[key] {
        Value::String(text) => text.clone(),
        Value::Null => "-".to_owned(),
        other => other.to_string(),
    };
    writeln!(html, "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">")?;
    writeln!(html, "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">")?;
    writeln!(html, "<title>{}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>", escape(title))?;
    writeln!(
        html,
        "<h1>{} parameters, {}</h1>",
        grouped(&report["parameters"]),
        escape(&text("system"))
    )?;
    writeln!(
        html,
        "<p>{} iterations, {} optimizer steps, {} skipped. {}. Clock: {}.{}</p>",
        escape(&text("steps")),
        escape(&text("optimizer_steps")),
        escape(&text("skipped_steps")),
        escape(&text("device")),
        escape(&text("clock")),
        if report["interrupted"] == true { " Stopped before its end." } else { "" }
    )?;
    summary(&mut html, report)?;
    let lines = lines(report);
    if !lines.is_empty() {
        writeln!(html, "<h2>Loss and seconds</h2>")?;
        let svg = run_picture(&lines, "")?;
        writeln!(html, "<figure>{}</figure>", svg.trim())?;
    }
    phases(&mut html, report)?;
    utilisation(&mut html, report)?;
    traffic(&mut html, report)?;
    memory(&mut html, report)?;
    wear(&mut html, report)?;
    writeln!(
        html,
        "<p class=\"digest\">State digest {}</p>\n</body>\n</html>",
        escape(&text("state_digest"))
    )?;
    Ok(html)
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// A whole number with spaces between thousands.
fn grouped(value: &Value) -> String {
    let digits = value.as_u64().unwrap_or(0).to_string();
    let mut out = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            out.push('\u{202f}');
        }
        out.push(digit);
    }
    out
}

/// The iterations, as far as the report has them.
fn lines(report: &Value) -> Vec<Line> {
    let numbers = |key: &str| -> Vec<f64> {
        let list = report["iterations"][key].as_array();
        list.into_iter().flatten().filter_map(Value::as_f64).collect()
    };
    let losses = report["loss"].as_array().into_iter().flatten().filter_map(Value::as_f64);
    let (iteration, forward) = (numbers("iteration"), numbers("forward_seconds"));
    let (backward, update) = (numbers("backward_seconds"), numbers("update_seconds"));
    let evaluations = report["eval_loss"].as_array();
    losses
        .enumerate()
        .map(|(index, loss)| {
            let number = iteration.get(index).map_or(index as u64 + 1, |&number| number as u64);
            let at = |list: &[f64]| list.get(index).copied().unwrap_or(0.0);
            let evaluation =
                evaluations.into_iter().flatten().find(|one| one["iteration"] == number);
            Line {
                forward_seconds: at(&forward),
                backward_seconds: at(&backward),
                update_seconds: at(&update),
                eval_loss: evaluation.and_then(|one| one["loss"].as_f64()),
                ..Line::of(number, loss)
            }
        })
        .collect()
}

fn summary(html: &mut String, report: &Value) -> Result<()> {
    let losses = report["loss"].as_array();
    let of = |value: Option<&Value>| {
        let loss = value.and_then(Value::as_f64).filter(|&loss| loss < f64::MAX);
        loss.map_or_else(|| "-".to_owned(), |loss| format!("{loss:.4}"))
    };
    let (first, last) =
        (of(losses.and_then(|all| all.first())), of(losses.and_then(|all| all.last())));
    let evaluation = report["eval_loss"].as_array().and_then(|all| all.last());
    let seconds = report["seconds"].as_f64().unwrap_or(0.0);
    let cards = [
        ("loss", format!("{first} → {last}")),
        ("evaluation loss", of(evaluation.map(|one| &one["loss"]))),
        ("seconds of this process", format!("{seconds:.1}")),
        ("drives", escape(&report["drives"].to_string())),
    ];
    writeln!(html, "<div class=\"cards\">")?;
    for (name, value) in cards {
        writeln!(html, "<div><b>{value}</b>{name}</div>")?;
    }
    writeln!(html, "</div>")?;
    Ok(())
}

/// A bar as wide as `share` of the cell.
fn bar(share: f64, class: &str) -> String {
    let width = (100.0 * share.clamp(0.0, 1.0)).round();
    format!("<span class=\"bar {class}\" style=\"width:{width}%\"></span>")
}

fn phases(html: &mut String, report: &Value) -> Result<()> {
    let seconds = |value: &Value| value.as_f64();
    let all = report["phase_seconds"].as_object();
    let most =
        all.into_iter().flatten().filter_map(|(_, value)| seconds(value)).fold(0.0, f64::max);
    writeln!(
        html,
        "<h2>Phases</h2>\n<table><tr><th>phase</th><th>predicted, s</th><th>measured, s</th><th></th></tr>"
    )?;
    for (name, measured) in all.into_iter().flatten() {
        let predicted = seconds(&report["predicted_phase_seconds"][name]);
        let measured = seconds(measured).unwrap_or(0.0);
        writeln!(
            html,
            "<tr><td>{}</td><td class=\"n\">{}</td><td class=\"n\">{measured:.3}</td><td class=\"wide\">{}</td></tr>",
            escape(name),
            predicted.map_or_else(|| "-".to_owned(), |value| format!("{value:.3}")),
            bar(measured / most.max(1e-12), escape(name).as_str())
        )?;
    }
    writeln!(html, "</table>")?;
    Ok(())
}

/// Each resource over the time of the last step: the darker, the busier.
fn utilisation(html: &mut String, report: &Value) -> Result<()> {
    let Some(resources) =
        report["utilisation"]["resources"].as_array().filter(|all| !all.is_empty())
    else {
        return Ok(());
    };
    let seconds = report["utilisation"]["seconds"].as_f64().unwrap_or(0.0);
    writeln!(html, "<h2>Resources over the last step ({seconds:.3} s)</h2>")?;
    writeln!(
        html,
        "<table class=\"use\"><tr><th>resource</th><th>busy</th><th>GB/s</th><th class=\"wide\">time →</th></tr>"
    )?;
    for resource in resources {
        let bins = resource["busy"].as_array();
        let bins: Vec<f64> = bins.into_iter().flatten().filter_map(Value::as_f64).collect();
        let width = 100.0 / bins.len().max(1) as f64;
        let mut strip = String::from("<svg viewBox=\"0 0 100 8\" preserveAspectRatio=\"none\">");
        for (index, share) in bins.iter().enumerate().filter(|(_, share)| **share > 0.0) {
            write!(
                strip,
                "<rect x=\"{:.2}\" y=\"0\" width=\"{width:.2}\" height=\"8\" fill-opacity=\"{share:.2}\"><title>{:.0} ms: {:.0} %</title></rect>",
                index as f64 * width,
                index as f64 / bins.len() as f64 * seconds * 1e3,
                100.0 * share
            )?;
        }
        strip.push_str("</svg>");
        let rate = resource["gb_per_second"].as_f64().filter(|&rate| rate > 0.0);
        writeln!(
            html,
            "<tr><td>{}</td><td class=\"n\">{:.0} %</td><td class=\"n\">{}</td><td class=\"wide\">{strip}</td></tr>",
            escape(resource["name"].as_str().unwrap_or_default()),
            100.0 * resource["utilisation"].as_f64().unwrap_or(0.0),
            rate.map_or_else(|| "-".to_owned(), |rate| format!("{rate:.2}"))
        )?;
    }
    writeln!(html, "</table>")?;
    Ok(())
}

fn traffic(html: &mut String, report: &Value) -> Result<()> {
    let links = report["traffic"].as_object();
    let bytes = |value: &Value| value.as_u64().unwrap_or(0);
    let most = links.into_iter().flatten().map(|(_, link)| bytes(&link["measured"])).max();
    writeln!(
        html,
        "<h2>Traffic</h2>\n<table><tr><th>link</th><th>predicted</th><th>measured</th><th></th></tr>"
    )?;
    for (name, link) in links.into_iter().flatten() {
        let (predicted, measured) = (bytes(&link["predicted"]), bytes(&link["measured"]));
        writeln!(
            html,
            "<tr{}><td>{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"wide\">{}</td></tr>",
            if predicted == measured { "" } else { " class=\"differs\"" },
            escape(&name.replace('_', " ")),
            human_bytes(predicted),
            human_bytes(measured),
            bar(measured as f64 / most.unwrap_or(1).max(1) as f64, "traffic")
        )?;
    }
    writeln!(html, "</table>")?;
    Ok(())
}

fn memory(html: &mut String, report: &Value) -> Result<()> {
    writeln!(
        html,
        "<h2>Memory at its peak</h2>\n<table><tr><th>purpose</th><th>predicted</th><th>measured</th></tr>"
    )?;
    let shown = |value: &Value| value.as_u64().map_or_else(|| "-".to_owned(), human_bytes);
    for (name, bytes) in report["memory_peak"].as_object().into_iter().flatten() {
        writeln!(
            html,
            "<tr><td>{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td></tr>",
            escape(&name.replace('_', " ")),
            shown(&report["memory_predicted"][name]),
            shown(bytes)
        )?;
    }
    writeln!(html, "</table>")?;
    Ok(())
}

fn wear(html: &mut String, report: &Value) -> Result<()> {
    if let Some(wear) = Endurance::from_report(report) {
        writeln!(html, "<h2>Wear</h2>\n<p>{}.</p>", wear.text())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_page_needs_nothing_else_and_escapes_what_it_shows() {
        let report = json!({
            "system": "su<o", "parameters": 1_234_567, "steps": 2, "optimizer_steps": 2, "skipped_steps": 0,
            "drives": 1, "device": "1 x software", "clock": "wall", "loss": [5.0, 4.5], "eval_loss": [{"iteration": 2, "loss": 4.6}],
            "iterations": {"iteration": [1, 2], "forward_seconds": [0.1, 0.1], "backward_seconds": [0.2, 0.2],
                "update_seconds": [0.1, 0.1]},
            "traffic": {"shared_down": {"predicted": 10, "measured": 11}}, "phase_seconds": {"forward": 0.2},
            "utilisation": {"seconds": 0.4, "resources": [{"name": "drive0.read", "utilisation": 0.5, "gb_per_second": 1.5,
                "busy": [0.0, 1.0]}]},
            "memory_peak": {"process": 1000}, "state_digest": "ab",
            "endurance": {"bytes_per_step_and_drive": 16.0, "steps_to_rating": 10.0, "days_to_rating": 1.5},
        });
        let page = page(&report, "r.json").unwrap();
        for part in [
            "su&lt;o",
            "1\u{202f}234\u{202f}567",
            "class=\"differs\"",
            "drive0.read",
            "1.5 days",
            "5.0000 → 4.5000",
        ] {
            assert!(page.contains(part), "{part}");
        }
        assert!(page.contains("<svg") && !page.contains("<script") && !page.contains("src="));
        assert!(!page.replace("http://www.w3.org/2000/svg", "").contains("http"));
    }

    #[test]
    fn a_report_without_iterations_still_makes_a_page() {
        let report = json!({"loss": [], "traffic": {}});
        assert!(page(&report, "x").unwrap().contains("</html>"));
    }
}
