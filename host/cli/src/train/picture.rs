//! The picture of a run: loss above, seconds of the phases below.

use std::path::Path;

use anyhow::{Context, Result, anyhow};
use plotters::prelude::*;

use super::metrics::Line;
use crate::picture::{BACKWARD, FORWARD, UPDATE, key, legend};

/// Writes `path` as SVG.
pub fn draw(path: &Path, lines: &[Line], title: &str) -> Result<()> {
    let svg = svg(lines, title)?;
    std::fs::write(path, svg).with_context(|| format!("cannot write {}", path.display()))
}

/// The picture as SVG; empty without iterations.
pub fn svg(lines: &[Line], title: &str) -> Result<String> {
    let mut svg = String::new();
    let drawn = draw_all(&mut svg, lines, title).map_err(|error| error.to_string());
    drawn.map_err(|error| anyhow!("cannot draw the run: {error}"))?;
    Ok(svg)
}

fn draw_all<'a>(
    svg: &'a mut String,
    lines: &[Line],
    title: &str,
) -> Result<(), Box<dyn std::error::Error + 'a>> {
    let Some(last) = lines.last() else { return Ok(()) };
    let last = last.iteration.max(2) as f64;
    let root = SVGBackend::with_string(svg, (900, 640)).into_drawing_area();
    root.fill(&WHITE)?;
    let root = root.titled(title, ("sans-serif", 20))?;
    let (upper, lower) = root.split_vertically(330);

    let losses: Vec<(f64, f64)> = lines
        .iter()
        .filter(|line| line.loss < f64::MAX)
        .map(|line| (line.iteration as f64, line.loss))
        .collect();
    let most = losses.iter().map(|point| point.1).fold(0.0, f64::max) * 1.05;
    let mut chart = ChartBuilder::on(&upper)
        .margin(10)
        .margin_right(24)
        .x_label_area_size(30)
        .y_label_area_size(60)
        .build_cartesian_2d(1.0..last, 0.0..most.max(0.1))?;
    chart
        .configure_mesh()
        .y_desc("loss")
        .x_desc("iteration")
        .x_label_formatter(&|at| format!("{at:.0}"))
        .light_line_style(WHITE)
        .draw()?;
    chart
        .draw_series(LineSeries::new(losses, FORWARD.stroke_width(2)))?
        .label("training")
        .legend(key(FORWARD));
    let evaluations: Vec<(f64, f64)> =
        lines.iter().filter_map(|line| Some((line.iteration as f64, line.eval_loss?))).collect();
    if !evaluations.is_empty() {
        chart
            .draw_series(evaluations.iter().map(|&point| Circle::new(point, 4, BACKWARD.filled())))?
            .label("evaluation")
            .legend(key(BACKWARD));
    }
    legend!(chart, UpperRight);

    // Stacked areas, the tallest first so that the others lie over it.
    let stack = |count: usize| {
        lines.iter().map(move |line| {
            let phases = [line.forward_seconds, line.backward_seconds, line.update_seconds];
            (line.iteration as f64, phases[..count].iter().sum::<f64>())
        })
    };
    let most = stack(3).map(|point| point.1).fold(0.0, f64::max) * 1.05;
    let mut chart = ChartBuilder::on(&lower)
        .margin(10)
        .margin_right(24)
        .x_label_area_size(30)
        .y_label_area_size(60)
        .build_cartesian_2d(1.0..last, 0.0..most.max(1e-6))?;
    chart
        .configure_mesh()
        .y_desc("seconds")
        .x_desc("iteration")
        .x_label_formatter(&|at| format!("{at:.0}"))
        .light_line_style(WHITE)
        .draw()?;
    for (count, name, colour) in
        [(3, "update", UPDATE), (2, "backward", BACKWARD), (1, "forward", FORWARD)]
    {
        chart
            .draw_series(AreaSeries::new(stack(count), 0.0, colour.filled()))?
            .label(name)
            .legend(key(colour));
    }
    legend!(chart, UpperRight);
    root.present()?;
    Ok(())
}
