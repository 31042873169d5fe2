//! What a run would take, before anything is made.

use std::os::unix::fs::MetadataExt;

use nearfield_runtime::io::{BlockDevice, free_bytes};
use nearfield_runtime::store::{check, holds_state, state_bytes, stored_layout};
use nearfield_runtime::types::DType;
use nearfield_techniques::offload::{ActivationPlace, Blueprint, DeviceChoice, WeightsPlace};

use super::options::TrainOptions;
use super::recorded::{Identity, recorded};
use super::rehearsal::{Rehearsal, rehearse};
use super::start::Start;
use super::{flat_model, unit_shapes, vocabulary};
use crate::data::{Corpus, Format, Vocabulary};
use crate::error::{Error, Result};
use crate::memory;
use crate::model::{Architecture, Model, parse_device};

/// What direct I/O needs of most drives.
const ALIGNMENT: u64 = 4096;

/// One drive.
#[derive(Debug, Clone)]
pub struct DriveNeed {
    /// Bytes of the run's files.
    pub needed: u64,
    /// Bytes that are free there.
    pub free: u64,
    /// Bytes of an older run that would be replaced, or of the same one that goes on.
    pub replaced: u64,
    /// Whether another run is there, and must not be replaced.
    pub occupied: bool,
    /// Number of the file system: directories on one share its room.
    file_system: u64,
    /// Kernel names of the disks under it.
    pub disks: Vec<String>,
}

/// What a run would take.
#[derive(Debug)]
pub struct DryRun {
    /// The model.
    pub architecture: Architecture,
    /// Its parameters.
    pub parameters: u64,
    /// The data; `None` where a tokenizer must cut it first.
    pub corpus: Option<Corpus>,
    /// Layout, graphs and the runtime's memory.
    pub blueprint: Blueprint,
    /// What computing takes.
    pub rehearsal: Rehearsal,
    /// Host memory by purpose.
    pub host_memory: Vec<(&'static str, u64)>,
    /// Host memory that could be taken when this was asked.
    pub available: Option<u64>,
    /// By drive.
    pub drives: Vec<DriveNeed>,
    /// Iterations that the run has done already which is to be continued.
    pub continued: Option<u64>,
}

impl DryRun {
    /// Looks at model, data and drives, rehearses a micro-step, and adds up. Nothing is written.
    ///
    /// # Errors
    /// What would end the run itself at its start.
    pub fn new(options: &TrainOptions) -> Result<Self> {
        options.validate()?;
        let (architecture, config) = options.model.read()?;
        options.check_memory(&architecture)?;
        let device = parse_device(&options.compute)?;
        tch::set_num_threads(options.threads as i32);
        let dtype = options.offload.weights_dtype;
        let model = Model::new(architecture.clone(), options.seq, dtype, device)?;
        Start::of(options, model.tensors())?;
        let vocabulary = vocabulary(options, config.as_ref())?;
        let format = options.corpus.resolved_format()?;
        let cut = match vocabulary {
            Vocabulary::Bytes => format == Format::Jsonl,
            _ => !matches!(format, Format::Bin | Format::Npy),
        };
        let vocab = architecture.vocab;
        let corpus = if cut {
            None
        } else {
            let (seq, progress) = (options.seq, &mut |_, _| {});
            Some(Corpus::load(&options.corpus, &vocabulary, seq, vocab, progress)?)
        };
        let units = unit_shapes(options, &model);
        let drives = options.drives.len() as u32;
        // Shares of drives may have been measured when the run began: what counts is what is there.
        let blueprint = if options.resume && !options.offload.drive_weights.is_empty() {
            Blueprint::with_layout(stored_layout(&options.drives)?, &options.offload, &units)?
        } else {
            Blueprint::new(&options.offload, &flat_model(&model)?, drives, &units)?
        };
        let continued = if options.resume {
            let recovered = check(&options.drives, blueprint.spec())?;
            let owner = recorded(&recovered.blob)?.owner;
            // Text is cut into tokens when the run starts; only then it has a digest.
            let digest = corpus.as_ref().map(Corpus::digest).or(owner.data()).unwrap_or_default();
            Identity::new(options, architecture.clone(), digest.to_owned()).check(&owner)?;
            Some(recovered.iteration)
        } else {
            None
        };
        let needs = options.drives.iter().enumerate().map(|(drive, path)| {
            let file_system = std::fs::metadata(path).map_err(|error| {
                Error::Invalid(format!(
                    "drive {}: {error}; make the directory, or mount the drive there",
                    path.display()
                ))
            })?;
            let file_system = file_system.dev();
            let needed = blueprint.drive_bytes(drive as u32, ALIGNMENT)?;
            // What an older run has becomes free when it is replaced; the same run needs nothing more.
            let old = state_bytes(path);
            let disks = BlockDevice::of(path).ok().flatten().map_or_else(Vec::new, |d| d.disks);
            let occupied = holds_state(path) && !options.resume && !options.overwrite;
            let free = free_bytes(path)?;
            Ok(DriveNeed { needed, free, replaced: old, occupied, file_system, disks })
        });
        let needs = needs.collect::<Result<Vec<_>>>()?;
        let available = memory::available_bytes();
        let resident = memory::resident_bytes();
        let rehearsal = rehearse(options, &architecture)?;
        let host_memory = host_memory(options, &blueprint, &rehearsal, resident);
        Ok(Self {
            parameters: model.tensors().elements(),
            architecture,
            corpus,
            blueprint,
            rehearsal,
            host_memory,
            // What this process has taken is taken again by the run.
            available: available.map(|bytes| bytes + resident),
            drives: needs,
            continued,
        })
    }

    /// Host memory at its peak.
    pub fn host_bytes(&self) -> u64 {
        self.host_memory.iter().map(|(_, bytes)| bytes).sum()
    }

    /// What stands in the way of the run, each with what would help.
    pub fn obstacles(&self, options: &TrainOptions) -> Vec<String> {
        let gigabytes = |bytes: u64| format!("{:.1} GB", bytes as f64 / 1e9);
        let mut obstacles = Vec::new();
        if let Some(done) = self.continued.filter(|&done| done >= options.iterations) {
            obstacles.push(format!(
                "the run has done {done} iterations already: give more --steps to continue it"
            ));
        }
        for (number, (need, path)) in self.drives.iter().zip(&options.drives).enumerate() {
            if need.occupied {
                obstacles.push(format!(
                    "drive {number} ({}) holds the state of another run: --resume continues it, --overwrite replaces it",
                    path.display()
                ));
            }
            // Directories on one file system take its room together.
            let same = |other: &&DriveNeed| other.file_system == need.file_system;
            let needed: u64 = self.drives.iter().filter(same).map(|other| other.needed).sum();
            let replaced: u64 = self.drives.iter().filter(same).map(|other| other.replaced).sum();
            if needed > need.free + replaced {
                obstacles.push(format!(
                    "drive {number} ({}) needs {} with all that lies on its file system, and {} are free: use more \
                     drives or larger ones{}",
                    path.display(),
                    gigabytes(needed),
                    gigabytes(need.free + replaced),
                    smaller(options)
                ));
            }
        }
        let needed = self.host_bytes();
        if let Some(available) = self.available.filter(|&available| needed > available) {
            let savings = self.savings(options);
            let enough: Vec<&str> = savings
                .iter()
                .filter(|(_, bytes)| needed - bytes <= available)
                .map(|(option, _)| option.as_str())
                .collect();
            let remedy = if enough.is_empty() {
                let all: Vec<&str> = savings.iter().map(|(option, _)| option.as_str()).collect();
                format!("no single option saves enough; try several of {}", all.join(", "))
            } else {
                format!("any of these saves enough: {}", enough.join(", "))
            };
            obstacles.push(format!(
                "the run needs {} of host memory and {} can be had: {remedy}",
                gigabytes(needed),
                gigabytes(available)
            ));
        }
        obstacles
    }

    /// Options that need less host memory, with the bytes they save.
    fn savings(&self, options: &TrainOptions) -> Vec<(String, u64)> {
        let of = |name: &str| {
            let entry = self.host_memory.iter().find(|(purpose, _)| *purpose == name);
            entry.map_or(0, |(_, bytes)| *bytes)
        };
        let mut savings = Vec::new();
        let on_drives = options.offload.system.on_drives();
        if on_drives && options.offload.weights == WeightsPlace::Host {
            // One unit's weights on their way remain.
            savings.push(("--weights drive".to_owned(), of(WEIGHTS) * 9 / 10));
        }
        if on_drives && options.offload.activations == ActivationPlace::Host {
            savings.push(("--activations drive".to_owned(), of(OUTPUTS) * 9 / 10));
        }
        if options.accumulate > 1 {
            savings.push(("--accumulate 1".to_owned(), of(ACCUMULATORS)));
        }
        if options.batch > 1 {
            let half = options.batch / 2;
            let bytes = (of(OUTPUTS) + of(COMPUTING)) / 3;
            savings.push((format!("--batch {half}"), bytes));
        }
        if !on_drives {
            savings.push(("--system su+o with --drive".to_owned(), of(STATE)));
        }
        savings
    }
}

/// Options that need less room on drives.
fn smaller(options: &TrainOptions) -> String {
    let offload = &options.offload;
    let choices = [
        (offload.overlap_update, ", leave out --overlap-update"),
        (offload.moment_dtype == DType::Fp32, ", --moment-dtype bf16"),
        (offload.gradient_dtype == DType::Fp32 && !offload.compressed(), ", --gradient-dtype bf16"),
    ];
    choices.iter().filter(|(possible, _)| *possible).map(|(_, text)| *text).collect()
}

/// Purposes of host memory.
const PROGRAM: &str = "program and data";
const COMPUTING: &str = "computing";
const BUFFERS: &str = "buffers of the runtime";
const WEIGHTS: &str = "working weights";
const OUTPUTS: &str = "inputs of blocks";
const ACCUMULATORS: &str = "accumulators";
const RESIDUALS: &str = "residuals";
const STATE: &str = "state";

fn host_memory(
    options: &TrainOptions,
    blueprint: &Blueprint,
    rehearsal: &Rehearsal,
    resident: u64,
) -> Vec<(&'static str, u64)> {
    let budget = &blueprint.budget;
    // The memory beside the drives is the host's where its processor plays their part.
    let local_in_host =
        matches!(options.device, DeviceChoice::Software | DeviceChoice::Emulated { .. });
    let local: u64 = budget.device_local_bytes.iter().sum();
    let buffers = budget.buffers_bytes() - if local_in_host { 0 } else { local };
    let outputs = match options.offload.activations {
        ActivationPlace::Drive => 0,
        // On the processor the device's memory is the host's.
        ActivationPlace::Device if options.compute != "cpu" => 0,
        ActivationPlace::Device | ActivationPlace::Host => blueprint.outputs_bytes,
    };
    let accumulators = if options.accumulate > 1 { 4 * blueprint.layout.elements } else { 0 };
    let all = [
        (PROGRAM, resident),
        (COMPUTING, rehearsal.host_bytes),
        (BUFFERS, buffers),
        (WEIGHTS, budget.weights_bytes),
        (OUTPUTS, outputs),
        (ACCUMULATORS, accumulators),
        (RESIDUALS, budget.residual_bytes),
        (STATE, budget.state_bytes),
    ];
    all.into_iter().filter(|(_, bytes)| *bytes > 0).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::CorpusOptions;
    use crate::model::Shape;
    use crate::scaler::LossScale;
    use crate::schedule::{Schedule, Shape as ScheduleShape};
    use crate::trainer::ModelSource;
    use nearfield_runtime::io::IoOptions;
    use nearfield_runtime::store::Durability;
    use nearfield_runtime::types::HyperParameters;
    use nearfield_techniques::offload::OffloadOptions;

    fn options(root: &std::path::Path) -> TrainOptions {
        let text = root.join("text.txt");
        std::fs::write(&text, "some text\n".repeat(100)).unwrap();
        let drive = root.join("drive");
        std::fs::create_dir_all(&drive).unwrap();
        let shape = Shape { layers: 5, hidden: 32, heads: 2, vocab: 256, seq: 16, tied: true };
        TrainOptions {
            corpus: CorpusOptions { evaluation_fraction: 0.0, ..CorpusOptions::new(text) },
            model: ModelSource::Scratch(shape),
            optimizer_state: None,
            tokenizer: None,
            seq: 16,
            batch: 2,
            accumulate: 2,
            iterations: 3,
            schedule: Schedule {
                shape: ScheduleShape::Constant,
                peak: 1e-3,
                minimum: 1e-3,
                warmup_steps: 0,
                total_steps: 3,
            },
            hyper: HyperParameters::default(),
            loss_scale: LossScale::Static(1.0),
            clip: 1.0,
            seed: 0,
            compute: "cpu".into(),
            threads: 1,
            evaluation_batches: 0,
            offload: OffloadOptions { subgroup_elements: 9000, ..OffloadOptions::default() },
            drives: vec![drive],
            io: IoOptions::default(),
            durability: Durability::Process,
            device: DeviceChoice::Software,
            resume: false,
            overwrite: false,
        }
    }

    #[test]
    fn what_does_not_fit_is_said_with_what_would() {
        let root = tempfile::tempdir().unwrap();
        let options = options(root.path());
        let mut dry = DryRun::new(&options).unwrap();
        assert_eq!(dry.obstacles(&options), [""; 0]);
        assert!(std::fs::read_dir(&options.drives[0]).unwrap().next().is_none());
        let needed = dry.host_bytes();
        let weights = dry.blueprint.budget.weights_bytes;
        dry.available = Some(needed - weights / 2);
        let obstacles = dry.obstacles(&options);
        assert!(
            obstacles.len() == 1 && obstacles[0].contains("any of these saves enough: --weights"),
            "{obstacles:?}"
        );
        dry.available = Some(1);
        dry.drives[0].free = 1000;
        let obstacles = dry.obstacles(&options);
        assert!(obstacles[0].contains("use more drives"), "{obstacles:?}");
        assert!(obstacles[1].contains("no single option"), "{obstacles:?}");
    }

    #[test]
    fn the_bytes_of_a_step_count_every_micro_step() {
        let root = tempfile::tempdir().unwrap();
        let mut options = options(root.path());
        options.offload.weights = WeightsPlace::Drive;
        let dry = DryRun::new(&options).unwrap();
        let once = dry.blueprint.traffic(1).media_read;
        let twice = dry.blueprint.traffic(2).media_read;
        let elements = dry.blueprint.layout.elements;
        assert!(twice - once >= 2 * 4 * (elements - elements / 4), "{once} {twice}");
    }
}
