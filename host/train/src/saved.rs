//! A run at rest on its drives: its model, its optimizer state, and its way to other drives.

use std::path::{Path, PathBuf};

use nearfield_runtime::io::IoOptions;
use nearfield_runtime::store::{Durability, GradientFormat, StateReader, StepRecord};
use nearfield_runtime::types::{DType, HyperParameters, Optimizer, Variable};
use nearfield_techniques::offload::{
    DeviceChoice, EngineConfig, FlatModel, InitialState, OffloadEngine, OffloadOptions, Placement,
    System, WeightsPlace,
};

use crate::checkpoint::{Config, SaveOptions, Writer, to_config};
use crate::error::{Error, Result};
use crate::exchange::{self, Moments};
use crate::model::{Architecture, TensorList};
use crate::trainer::{flat_tensors, recorded_model};

/// Elements read at a time.
const PIECE: u64 = 1 << 20;

/// A run that no process is using.
#[derive(Debug)]
pub struct SavedRun {
    reader: StateReader,
    list: TensorList,
}

/// How a state is laid out on other drives.
#[derive(Debug, Clone)]
pub struct NewLayout {
    /// The system that will continue it.
    pub system: System,
    /// Placement.
    pub placement: Placement,
    /// Most elements of a subgroup.
    pub subgroup_elements: u64,
    /// Whether each part gets a slot more, for updates that are written ahead.
    pub overlap_update: bool,
    /// Replace another run on the drives.
    pub overwrite: bool,
}

impl NewLayout {
    /// Makes a state of `contents`, which are the options of a run that tell what its state is made of; returns its digest.
    pub(crate) fn lay_out(
        &self,
        drives: &[PathBuf],
        contents: OffloadOptions,
        list: &TensorList,
        record: &StepRecord,
        initial: &dyn InitialState,
    ) -> Result<String> {
        let options = OffloadOptions {
            system: self.system,
            placement: self.placement,
            subgroup_elements: self.subgroup_elements,
            overlap_update: self.overlap_update,
            weights: WeightsPlace::Drive,
            ..contents
        };
        if !options.system.on_drives() {
            return Err(Error::Invalid(format!(
                "--system {} keeps no state on drives; name the system that will go on with it, for example su+o",
                options.system.name()
            )));
        }
        options.validate()?;
        let config = EngineConfig {
            options,
            drives: drives.to_vec(),
            io: IoOptions::default(),
            durability: Durability::Power,
            device: DeviceChoice::Software,
            threads: 1,
            lock_memory: false,
            units: Vec::new(),
        };
        let model = FlatModel::new(flat_tensors(list))?;
        let engine = OffloadEngine::create(&config, model, self.overwrite, record, initial)?;
        Ok(engine.digest()?)
    }
}

impl SavedRun {
    /// Opens the drives of a run of `nearfield train`, in any order.
    ///
    /// # Errors
    /// Drives that are missing, foreign or damaged, and a run whose last update was cut short.
    pub fn open(drives: &[PathBuf]) -> Result<Self> {
        let reader = StateReader::open(drives)?;
        let list = TensorList::new(recorded_model(reader.blob())?)?;
        if list.elements() != reader.layout().elements {
            return Err(Error::Invalid(format!(
                "the run says that its model has {} parameters, but the drives have {}",
                list.elements(),
                reader.layout().elements
            )));
        }
        Ok(Self { reader, list })
    }

    /// The model.
    pub fn architecture(&self) -> &Architecture {
        self.list.architecture()
    }

    /// The state.
    pub fn reader(&self) -> &StateReader {
        &self.reader
    }

    /// Saves the model as transformers loads it, from the master weights. `companions`: a directory whose `config.json` and tokenizer
    /// belong to it.
    ///
    /// # Errors
    /// A directory that cannot be written, and what the drives report.
    pub fn save_model(
        &self,
        target: &Path,
        companions: Option<&Path>,
        options: &SaveOptions,
    ) -> Result<()> {
        let keys = match companions {
            Some(directory) => {
                let config = Config::read(directory)?;
                if &config.architecture != self.architecture() {
                    return Err(Error::Invalid(format!(
                        "{} has another model than the run; give the directory that the run began with",
                        directory.display()
                    )));
                }
                config.keys
            }
            None => to_config(self.architecture(), options.dtype),
        };
        let writer = Writer::create(target, &self.list, keys, companions, options)?;
        let mut values = Vec::new();
        let mut first = 0;
        while first < self.list.elements() {
            values.resize((self.list.elements() - first).min(PIECE) as usize, 0.0);
            self.reader.read(Variable::Param, first, &mut values)?;
            writer.put(first, &values)?;
            first += values.len() as u64;
        }
        writer.finish()
    }

    /// Writes the moments as torch reads them, or as safetensors where `path` ends so.
    ///
    /// # Errors
    /// An optimizer that has not both moments, a file that cannot be written, and what the drives report.
    pub fn export_moments(&self, path: &Path, dtype: DType) -> Result<()> {
        let optimizer = self.reader.optimizer();
        if !matches!(optimizer, Optimizer::Adamw | Optimizer::Adam) {
            return Err(Error::Invalid(format!(
                "the run's optimizer is {}; only the moments of adamw and adam have a form that torch reads",
                optimizer.name()
            )));
        }
        let groups = self.reader.groups();
        let group = |index: usize| groups.get(index).copied().unwrap_or_default();
        let moments = Moments {
            list: &self.list,
            step: self.reader.step(),
            groups: [group(0), HyperParameters { weight_decay: 0.0, ..group(0) }],
            decoupled: optimizer == Optimizer::Adamw,
            dtype,
            read: &|variable, first, out| Ok(self.reader.read(variable, first, out)?),
        };
        exchange::export(path, &moments)
    }

    /// Makes the same state on other drives, any number of them; returns its digest, which has been compared with the old one.
    ///
    /// # Errors
    /// Drives that are too small, in use or hold another run, and damage of the old ones.
    pub fn copy_to(&self, drives: &[PathBuf], layout: &NewLayout) -> Result<String> {
        let before = self.reader.digest()?;
        let (gradient_dtype, topk_keep, error_feedback) = match self.reader.gradients() {
            (GradientFormat::Dense { dtype }, residual) => (dtype, 0.01, residual),
            (GradientFormat::TopK { keep, .. }, residual) => (DType::Fp32, keep, residual),
        };
        if error_feedback {
            return Err(Error::Invalid(
                "a run with --error-feedback keeps residuals, which are not moved to other drives; \
                 go on without it, or with the same drives"
                    .into(),
            ));
        }
        let contents = OffloadOptions {
            optimizer: self.reader.optimizer(),
            gradient_dtype,
            moment_dtype: self.reader.moments(),
            topk_keep,
            ..OffloadOptions::default()
        };
        let record = StepRecord {
            iteration: self.reader.iteration(),
            step: self.reader.step(),
            unscale: 1.0,
            groups: self.reader.groups(),
            blob: self.reader.blob().to_vec(),
        };
        let after = layout.lay_out(drives, contents, &self.list, &record, self)?;
        if after != before {
            return Err(Error::Invalid(format!(
                "the copy has the digest {after}, the original {before}; check the memory of this machine"
            )));
        }
        Ok(after)
    }
}

impl InitialState for SavedRun {
    fn read(
        &self,
        variable: Variable,
        first: u64,
        out: &mut [f32],
    ) -> nearfield_runtime::Result<()> {
        self.reader.read(variable, first, out)
    }

    fn is_zero(&self, _: Variable) -> bool {
        false
    }
}
