//! One line an iteration, kept over restarts.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use nearfield_train::trainer::IterationReport;
use serde::{Deserialize, Serialize};

/// One iteration in `metrics.jsonl` and on the output.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Line {
    /// Iterations done.
    pub iteration: u64,
    /// Optimizer steps done.
    pub step: u64,
    /// Mean loss.
    pub loss: f64,
    /// Learning rate.
    #[serde(default)]
    pub lr: f64,
    /// Norm of the gradient.
    #[serde(default)]
    pub gradient_norm: f64,
    /// Loss scale.
    #[serde(default)]
    pub loss_scale: f64,
    /// Whether nothing was updated.
    #[serde(default)]
    pub skipped: bool,
    /// Seconds of forward passes.
    #[serde(default)]
    pub forward_seconds: f64,
    /// Seconds of backward passes with gradient offload.
    #[serde(default)]
    pub backward_seconds: f64,
    /// Seconds of the update.
    #[serde(default)]
    pub update_seconds: f64,
    /// Seconds of the update within the backward pass.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub hidden_update_seconds: f64,
    /// Whether an update was written ahead, and then whether it counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ahead: Option<bool>,
    /// Seconds of the iteration.
    #[serde(default)]
    pub seconds: f64,
    /// Tokens a second.
    #[serde(default)]
    pub tokens_per_second: f64,
    /// Loss on the evaluation text, where it was measured after this iteration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub eval_loss: Option<f64>,
}

impl Line {
    /// An iteration of which only the loss is known.
    pub fn of(iteration: u64, loss: f64) -> Self {
        Self {
            iteration,
            step: 0,
            loss,
            lr: 0.0,
            gradient_norm: 0.0,
            loss_scale: 0.0,
            skipped: false,
            forward_seconds: 0.0,
            backward_seconds: 0.0,
            update_seconds: 0.0,
            hidden_update_seconds: 0.0,
            ahead: None,
            seconds: 0.0,
            tokens_per_second: 0.0,
            eval_loss: None,
        }
    }
}

fn is_zero(seconds: &f64) -> bool {
    *seconds == 0.0
}

/// The number, or the largest one for infinity and NaN, which JSON does not have.
pub fn finite(value: f64) -> f64 {
    if value.is_finite() { value } else { f64::MAX }
}

impl From<&IterationReport> for Line {
    fn from(report: &IterationReport) -> Self {
        Self {
            iteration: report.iteration,
            step: report.step,
            loss: finite(report.loss),
            lr: report.learning_rate,
            gradient_norm: finite(report.gradient_norm),
            loss_scale: report.loss_scale,
            skipped: report.skipped,
            forward_seconds: report.forward_seconds,
            backward_seconds: report.backward_seconds,
            update_seconds: report.update_seconds,
            hidden_update_seconds: report.hidden_update_seconds,
            ahead: report.ahead,
            seconds: report.seconds,
            tokens_per_second: report.tokens as f64 / report.seconds.max(1e-9),
            eval_loss: None,
        }
    }
}

/// The file, and all its lines.
#[derive(Debug)]
pub struct Metrics {
    path: PathBuf,
    file: File,
    lines: Vec<Line>,
}

impl Metrics {
    /// Begins a new file, or continues one after `iteration` iterations: later lines are dropped, and if the
    /// last line is missing because the run was killed before it was written, `last_loss` stands in.
    pub fn open(path: &Path, iteration: u64, last_loss: Option<f64>) -> Result<Self> {
        let mut lines: Vec<Line> = Vec::new();
        if iteration > 0
            && let Ok(file) = File::open(path)
        {
            for text in BufReader::new(file).lines() {
                // A line that was cut short by a kill does not count.
                let Ok(line) = serde_json::from_str::<Line>(&text?) else { continue };
                if line.iteration <= iteration
                    && lines.last().is_none_or(|last| last.iteration < line.iteration)
                {
                    lines.push(line);
                }
            }
        }
        if let Some(loss) = last_loss
            && lines.last().is_none_or(|line| line.iteration < iteration)
        {
            let line = serde_json::json!({ "iteration": iteration, "step": 0, "loss": loss });
            lines.push(serde_json::from_value(line)?);
        }
        let context = || format!("cannot write {}", path.display());
        let mut file = File::create(path).with_context(context)?;
        for line in &lines {
            writeln!(file, "{}", serde_json::to_string(line)?).with_context(context)?;
        }
        Ok(Self { path: path.to_path_buf(), file, lines })
    }

    /// Adds an iteration.
    pub fn push(&mut self, line: Line) -> Result<()> {
        writeln!(self.file, "{}", serde_json::to_string(&line)?)
            .with_context(|| format!("cannot write {}", self.path.display()))?;
        self.lines.push(line);
        Ok(())
    }

    /// All iterations of the run, those before a restart included.
    pub fn lines(&self) -> &[Line] {
        &self.lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_restart_drops_later_lines_and_fills_in_a_missing_one() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("metrics.jsonl");
        let line = |iteration| {
            serde_json::from_value::<Line>(serde_json::json!({
                "iteration": iteration, "step": iteration, "loss": iteration as f64,
            }))
            .unwrap()
        };
        let mut metrics = Metrics::open(&path, 0, None).unwrap();
        for iteration in 1..=4 {
            metrics.push(line(iteration)).unwrap();
        }
        let iterations =
            |metrics: &Metrics| metrics.lines().iter().map(|l| l.iteration).collect::<Vec<_>>();
        assert_eq!(iterations(&Metrics::open(&path, 3, Some(3.0)).unwrap()), [1, 2, 3]);
        let filled = Metrics::open(&path, 4, Some(0.5)).unwrap();
        assert_eq!(iterations(&filled), [1, 2, 3, 4]);
        assert_eq!(filled.lines()[3].loss, 0.5);
    }
}
