//! Charts of a sweep: the phases as stacked bars, one panel a system, and speed-ups as lines below.

use std::collections::HashMap;
use std::path::Path;

use anyhow::{Context, Result, anyhow, bail};
use plotters::prelude::*;

use super::outcome::Outcome;
use crate::picture::{BACKWARD, FORWARD, UPDATE, key, legend};

const PHASES: [RGBColor; 3] = [FORWARD, BACKWARD, UPDATE];
const LINES: [RGBColor; 6] = [
    FORWARD,
    BACKWARD,
    UPDATE,
    RGBColor(0xe4, 0x57, 0x56),
    RGBColor(0x72, 0xb7, 0xb2),
    RGBColor(0xb2, 0x79, 0xa2),
];
/// Panels beside each other.
const PANELS: usize = 5;
const WIDTH: u32 = 1200;
/// Pixels of a letter of a label.
const LETTER: usize = 7;
const BARS_HEIGHT: u32 = 320;
const LINES_HEIGHT: u32 = 340;

/// Outcomes that differ only in what lies along the x axis.
struct Series<'a> {
    name: String,
    /// With their places on the x axis.
    outcomes: Vec<(usize, &'a Outcome)>,
}

/// What is compared: series, and the labels of their points.
struct Chart<'a> {
    title: String,
    x_name: String,
    x_labels: Vec<String>,
    series: Vec<Series<'a>>,
}

/// Checks what kind of picture `path` is to be.
pub fn check(path: &Path) -> Result<&str> {
    let kind = path.extension().and_then(|end| end.to_str()).unwrap_or_default();
    if !matches!(kind, "svg" | "png") {
        bail!("--chart {} must end in .svg or .png", path.display());
    }
    Ok(kind)
}

/// Writes `path`, as PNG where it ends so, else as SVG.
pub fn draw(path: &Path, outcomes: &[Outcome]) -> Result<()> {
    let kind = check(path)?;
    let chart = arrange(outcomes)?;
    let rows = chart.series.len().div_ceil(PANELS) as u32;
    let size = (WIDTH, rows * BARS_HEIGHT + LINES_HEIGHT);
    let mut svg = String::new();
    draw_svg(&mut svg, size, &chart).map_err(|error| anyhow!("cannot draw a chart: {error}"))?;
    let bytes = if kind == "png" { png(&svg, size)? } else { svg.into_bytes() };
    std::fs::write(path, bytes)
        .with_context(|| format!("cannot write {} (--chart)", path.display()))
}

/// The values that tell outcomes apart.
fn keys(outcome: &Outcome) -> [(&'static str, String); 10] {
    [
        ("model", outcome.model.clone()),
        ("GPU", outcome.gpu.clone()),
        ("GPUs", outcome.gpus.to_string()),
        ("topology", outcome.topology.clone()),
        ("optimizer", outcome.optimizer.name().to_owned()),
        ("kept share", outcome.topk_keep.to_string()),
        ("batch", outcome.batch.to_string()),
        ("tokens", outcome.seq.to_string()),
        ("drives", outcome.drives.to_string()),
        ("system", outcome.system_name()),
    ]
}

/// Systems become series where they differ; all else that differs lies along the x axis.
fn arrange(outcomes: &[Outcome]) -> Result<Chart<'_>> {
    let first = outcomes.first().context("there is nothing to draw")?;
    let (mut same, mut varying) = (Vec::new(), Vec::new());
    for (index, (name, value)) in keys(first).into_iter().enumerate() {
        if outcomes.iter().all(|outcome| keys(outcome)[index].1 == value) {
            if matches!(name, "model" | "GPU" | "drives" | "system") {
                same.push(match (name, value.as_str()) {
                    ("drives", "1") => "1 drive".to_owned(),
                    ("drives", count) => format!("{count} drives"),
                    _ => value,
                });
            }
        } else if name != "system" {
            varying.push((index, name));
        }
    }
    let label = |outcome: &Outcome| {
        let keys = keys(outcome);
        varying.iter().map(|(index, _)| keys[*index].1.as_str()).collect::<Vec<_>>().join(" ")
    };
    let mut chart = Chart {
        title: format!("{}: {}", first.fabric, same.join(", ")),
        x_name: varying.iter().map(|(_, name)| *name).collect::<Vec<_>>().join(", "),
        x_labels: Vec::new(),
        series: Vec::new(),
    };
    let mut places = HashMap::new();
    for outcome in outcomes {
        let label = label(outcome);
        let place = *places.entry(label).or_insert_with_key(|label| {
            chart.x_labels.push(label.clone());
            chart.x_labels.len() - 1
        });
        let name = outcome.system_name();
        match chart.series.iter_mut().find(|series| series.name == name) {
            Some(series) => series.outcomes.push((place, outcome)),
            None => {
                let outcomes = vec![(place, outcome)];
                chart.series.push(Series { name, outcomes });
            }
        }
    }
    Ok(chart)
}

type Drawn<'a> = std::result::Result<(), Box<dyn std::error::Error + 'a>>;

fn draw_svg<'a>(svg: &'a mut String, size: (u32, u32), chart: &Chart) -> Drawn<'a> {
    let root = SVGBackend::with_string(svg, size).into_drawing_area();
    root.fill(&WHITE)?;
    let root = root.titled(&chart.title, ("sans-serif", 20))?;
    let rows = chart.series.len().div_ceil(PANELS);
    let (upper, lower) = root.split_vertically(rows as u32 * BARS_HEIGHT - 30);
    let columns = chart.series.len().min(PANELS);
    let most = chart.series.iter().flat_map(|series| &series.outcomes);
    let most = most.map(|(_, outcome)| outcome.total_seconds).fold(0.0, f64::max) * 1.3;
    let panels = upper.split_evenly((rows, columns));
    for (index, (panel, series)) in panels.iter().zip(&chart.series).enumerate() {
        bars(panel, chart, series, most, index == 0)?;
    }
    lines(&lower, chart)?;
    root.present()?;
    Ok(())
}

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;

/// The label of a point, on an x axis of so many pixels; some are left out where they would not fit.
fn at(chart: &Chart, x: f64, pixels: usize) -> String {
    let longest = chart.x_labels.iter().map(String::len).max().unwrap_or(1);
    let fit = (pixels / (longest * LETTER + LETTER)).max(1);
    let every = chart.x_labels.len().div_ceil(fit).max(1);
    let index = x.round() as usize;
    let shown = (x - x.round()).abs() < 0.01 && x > -0.1 && index.is_multiple_of(every);
    chart.x_labels.get(index).filter(|_| shown).cloned().unwrap_or_default()
}

fn bars<'a>(
    panel: &Area<'a>,
    chart: &Chart,
    series: &Series,
    most: f64,
    with_legend: bool,
) -> Drawn<'a> {
    let points = chart.x_labels.len();
    let mut context = ChartBuilder::on(panel)
        .caption(&series.name, ("sans-serif", 16))
        .margin(8)
        .x_label_area_size(34)
        .y_label_area_size(48)
        .build_cartesian_2d(-0.5..points as f64 - 0.5, 0.0..most.max(1e-9))?;
    context
        .configure_mesh()
        .disable_x_mesh()
        .light_line_style(WHITE)
        .x_labels(2 * points + 1)
        .x_label_formatter(&|x| at(chart, *x, WIDTH as usize / chart.series.len().min(PANELS) - 60))
        .x_desc(&chart.x_name)
        .y_desc("seconds of a step")
        .draw()?;
    let Some((_, first)) = series.outcomes.first() else { return Ok(()) };
    for (phase, (colour, (name, _))) in PHASES.into_iter().zip(first.phases()).enumerate() {
        let rectangles = series.outcomes.iter().map(|(place, outcome)| {
            let x = *place as f64;
            let seconds = outcome.phases().map(|(_, seconds)| seconds);
            let below: f64 = seconds[..phase].iter().sum();
            let corners = [(x - 0.36, below), (x + 0.36, below + seconds[phase])];
            Rectangle::new(corners, colour.filled())
        });
        context.draw_series(rectangles)?.label(name).legend(key(colour));
    }
    if with_legend {
        legend!(context, UpperRight);
    }
    Ok(())
}

/// Speed-up over the first series at the same place; with one series, over its first point.
fn lines<'a>(area: &Area<'a>, chart: &Chart) -> Drawn<'a> {
    let several = chart.series.len() > 1;
    let reference = |place: usize| {
        let mut outcomes = chart.series.first()?.outcomes.iter();
        let found = outcomes.find(|(other, _)| !several || *other == place);
        found.map(|(_, outcome)| outcome.total_seconds)
    };
    let points = |series: &Series| -> Vec<(f64, f64)> {
        let point = |(place, outcome): &(usize, &Outcome)| {
            Some((*place as f64, reference(*place)? / outcome.total_seconds))
        };
        series.outcomes.iter().filter_map(point).collect()
    };
    let all = chart.series.iter().flat_map(points);
    let most = all.map(|(_, speed_up)| speed_up).fold(1.0, f64::max) * 1.1;
    let count = chart.x_labels.len();
    let over = match chart.series.first() {
        Some(first) if several => format!("speed-up over {}", first.name),
        _ => "speed-up over the first".to_owned(),
    };
    let mut context = ChartBuilder::on(area)
        .margin(8)
        .margin_right(24)
        .x_label_area_size(40)
        .y_label_area_size(60)
        .build_cartesian_2d(-0.5..count as f64 - 0.5, 0.0..most)?;
    context
        .configure_mesh()
        .light_line_style(WHITE)
        .x_labels(2 * count + 1)
        .x_label_formatter(&|x| at(chart, *x, WIDTH as usize - 90))
        .x_desc(&chart.x_name)
        .y_desc(over)
        .draw()?;
    for (series, colour) in chart.series.iter().zip(LINES.into_iter().cycle()) {
        let points = points(series);
        context
            .draw_series(LineSeries::new(points.clone(), colour.stroke_width(2)).point_size(3))?
            .label(&series.name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 14, y)], colour.stroke_width(2)));
    }
    legend!(context, LowerRight);
    Ok(())
}

/// The same picture as PNG, at twice the resolution.
fn png(svg: &str, (width, height): (u32, u32)) -> Result<Vec<u8>> {
    const SCALE: u32 = 2;
    let mut options = resvg::usvg::Options::default();
    let fonts = options.fontdb_mut();
    // Text looks the same on machines without fonts.
    fonts.load_font_data(epaint_default_fonts::UBUNTU_LIGHT.to_vec());
    fonts.set_sans_serif_family("Ubuntu");
    let tree = resvg::usvg::Tree::from_str(svg, &options).context("cannot convert the chart")?;
    let mut pixels = resvg::tiny_skia::Pixmap::new(width * SCALE, height * SCALE)
        .context("the chart is too large")?;
    let scale = resvg::tiny_skia::Transform::from_scale(SCALE as f32, SCALE as f32);
    resvg::render(&tree, scale, &mut pixels.as_mut());
    pixels.encode_png().context("cannot write the chart as PNG")
}
