//! Measurements kept as data.

use std::path::Path;

use anyhow::{Context, Result, bail};
use nearfield_runtime::types::{DType, Optimizer};
use nearfield_sim::fabric::Fabric;
use nearfield_sim::validation;
use nearfield_techniques::offload::System;
use serde::Deserialize;

use crate::simulate::case::Case;
use crate::simulate::preset::Strategy;

/// A file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Data {
    /// Where the numbers come from.
    pub source: String,
    /// Keys that entries have where they do not say otherwise.
    #[serde(default)]
    defaults: toml::Table,
    entries: Vec<toml::Spanned<toml::Table>>,
}

/// One measurement.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    /// Machine: the name of one that comes with the program, or a file (from the directory of this one).
    fabric: String,
    gpu: Option<String>,
    #[serde(default = "one")]
    gpus: u32,
    #[serde(default = "default_topology")]
    topology: String,
    /// As of `nearfield simulate --model`; also a configuration itself, as JSON, or `flat:N` for an update of N parameters.
    model: String,
    drives: u32,
    system: System,
    #[serde(default = "adamw")]
    optimizer: Optimizer,
    #[serde(default = "kept")]
    topk_keep: f64,
    #[serde(default = "one_sequence")]
    batch: u64,
    #[serde(default = "one_sequence")]
    seq: u64,
    #[serde(default = "fp16")]
    dtype: DType,
    #[serde(default = "fp32")]
    gradient_dtype: DType,
    #[serde(default = "subgroup")]
    subgroup_size: u64,
    #[serde(default)]
    strategy: Strategy,
    /// Name in tables, where the model is a configuration.
    title: Option<String>,
    /// Seconds of one iteration.
    pub measured: Measured,
}

/// Seconds of one iteration, as far as they were measured.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Measured {
    pub forward: Option<f64>,
    pub backward: Option<f64>,
    pub update: Option<f64>,
    total: Option<f64>,
}

const fn one() -> u32 {
    1
}
const fn one_sequence() -> u64 {
    1
}
const fn kept() -> f64 {
    0.01
}
const fn subgroup() -> u64 {
    40_000_000
}
const fn fp16() -> DType {
    DType::Fp16
}
const fn fp32() -> DType {
    DType::Fp32
}
const fn adamw() -> Optimizer {
    Optimizer::Adamw
}
fn default_topology() -> String {
    "default".to_owned()
}

impl Data {
    /// Reads a file; `name` is for errors.
    pub fn parse(name: &str, text: &str) -> Result<Self> {
        let data: Self = toml::from_str(text).with_context(|| format!("measurements {name}"))?;
        if data.entries.is_empty() {
            bail!("measurements {name} have no entries");
        }
        Ok(data)
    }

    /// Its measurements; `text` is that of the file called `name`, for lines in errors.
    pub fn entries(&self, name: &str, text: &str) -> Result<Vec<Entry>> {
        let merged = |(index, own): (usize, &toml::Spanned<toml::Table>)| {
            let before = text.get(..own.span().start).unwrap_or_default();
            let line = before.matches('\n').count() + 1;
            let place = || format!("measurements {name}, line {line}, entry {}", index + 1);
            let mut table = self.defaults.clone();
            table.extend(own.get_ref().clone());
            let entry: Entry = table.try_into().with_context(place)?;
            entry.check().with_context(place)?;
            Ok(entry)
        };
        self.entries.iter().enumerate().map(merged).collect()
    }
}

impl Entry {
    fn check(&self) -> Result<()> {
        let Measured { forward, backward, update, total } = self.measured;
        let all = [forward, backward, update, total];
        if all.iter().flatten().any(|seconds| !(seconds.is_finite() && *seconds > 0.0)) {
            bail!("measured seconds must be above 0");
        }
        if all.iter().flatten().next().is_none() {
            bail!("nothing was measured");
        }
        Ok(())
    }

    /// What is to be simulated.
    pub fn case(&self) -> Case {
        let mut case = Case {
            model: self.model.clone(),
            gpu: self.gpu.clone(),
            gpus: self.gpus,
            topology: self.topology.clone(),
            drives: self.drives,
            system: self.system,
            optimizer: self.optimizer,
            topk_keep: self.topk_keep,
            batch: self.batch,
            seq: self.seq,
            dtype: self.dtype,
            gradient_dtype: self.gradient_dtype,
            subgroup_size: self.subgroup_size,
            ..Case::default()
        };
        self.strategy.apply(&mut case);
        case
    }

    /// The machine; `data` is the file of the measurement.
    pub fn machine(&self, data: &Path) -> Result<Fabric> {
        let beside = data.with_file_name(&self.fabric);
        if beside.is_file() {
            return Ok(Fabric::load(&beside)?);
        }
        Ok(validation::machine(&self.fabric)?)
    }

    /// For tables.
    pub fn title(&self) -> &str {
        self.title.as_deref().unwrap_or(&self.model)
    }

    /// The configuration in short, for tables.
    pub fn configuration(&self) -> String {
        let gpu = self.gpu.as_deref().map(|gpu| format!(", {gpu}")).unwrap_or_default();
        let drives = if self.drives == 1 { "drive" } else { "drives" };
        let mut text =
            format!("{}{gpu}, {} {drives}, {}", self.title(), self.drives, self.system.name());
        // What differs from the usual.
        if self.gpus > 1 {
            text += &format!(", {} GPUs", self.gpus);
        }
        if self.topology != default_topology() {
            text += &format!(", {}", self.topology);
        }
        if self.optimizer != adamw() {
            text += &format!(", {}", self.optimizer.name());
        }
        if self.topk_keep != kept() {
            text += &format!(", {} kept", self.topk_keep);
        }
        text
    }
}

impl Measured {
    /// Seconds of the whole iteration, where they are known.
    pub fn total(&self) -> Option<f64> {
        self.total.or_else(|| Some(self.forward? + self.backward? + self.update?))
    }
}
