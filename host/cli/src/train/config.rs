//! From flags and configuration file to the options of a run.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, anyhow, bail};
use clap::Args;
use nearfield_hls::NativeKernels;
use nearfield_runtime::device::SpeedLimits;
use nearfield_runtime::io::{Faults, IoOptions};
use nearfield_runtime::types::{DType, HyperParameters};
use nearfield_techniques::offload::{DeviceChoice, OffloadOptions, System};
use nearfield_train::checkpoint::SaveOptions;
use nearfield_train::data::CorpusOptions;
use nearfield_train::model::Shape;
use nearfield_train::scaler::{DynamicScale, LossScale};
use nearfield_train::schedule::{Schedule, Shape as ScheduleShape};
use nearfield_train::trainer::{ModelSource, TrainOptions};
use serde_json::Value;

use super::args::{Compute, DeviceKernels, DeviceKind, TrainArgs};
use super::cards::Cards;
use super::drives;

impl TrainArgs {
    /// The directory for results.
    pub fn out(&self) -> PathBuf {
        self.out.clone().unwrap_or_else(|| PathBuf::from("runs/nearfield"))
    }

    /// How the trained model is saved, where that is asked for.
    pub fn save_options(&self) -> Option<(&Path, SaveOptions)> {
        let options = SaveOptions {
            dtype: self.save_dtype.or(self.dtype).unwrap_or(DType::Fp32),
            shard_bytes: self.shard_size.map_or(5_000_000_000, |bytes| bytes.0),
            // A run that goes on may have saved before; what it began with is never replaced by it.
            replace: self.overwrite || self.resume,
        };
        Some((self.save.as_deref()?, options))
    }

    /// Flags over the keys of the file given with `--config`.
    pub fn with_file(self) -> Result<Self> {
        let Some(path) = self.config.clone() else { return Ok(self) };
        let file = read_file(&path)?;
        let mut merged = serde_json::to_value(&file)?;
        if let (Value::Object(merged), Value::Object(flags)) =
            (&mut merged, serde_json::to_value(&self)?)
        {
            for (key, value) in flags {
                let given =
                    !value.is_null() && value.as_array().is_none_or(|list| !list.is_empty());
                if given {
                    merged.insert(key, value);
                }
            }
        }
        let mut merged: Self = serde_json::from_value(merged)?;
        merged.resume = self.resume;
        merged.overwrite = self.overwrite;
        merged.dry_run = self.dry_run;
        merged.inject = self.inject;
        Ok(merged)
    }
}

fn read_file(path: &Path) -> Result<TrainArgs> {
    let text = std::fs::read_to_string(path)
        .with_context(|| format!("cannot read the configuration {}", path.display()))?;
    let table: toml::Table =
        text.parse().with_context(|| format!("{} is not valid TOML", path.display()))?;
    let known = known_keys();
    for key in table.keys() {
        if NO_KEYS.contains(&key.as_str()) {
            bail!("{}: {key} is a flag only; give --{key}", path.display());
        }
        if !known.iter().any(|name| name == key) {
            let nearest = known
                .iter()
                .min_by_key(|name| strsim::damerau_levenshtein(name, key))
                .map(|name| format!("; did you mean {name:?}?"))
                .unwrap_or_default();
            bail!("{}: unknown key {key:?}{nearest}", path.display());
        }
    }
    toml::from_str(&text).with_context(|| format!("in {}", path.display()))
}

/// Flags that a file may not set.
const NO_KEYS: [&str; 5] = ["config", "resume", "overwrite", "dry-run", "inject"];

/// The names of all flags that a file may set.
fn known_keys() -> Vec<String> {
    let command = TrainArgs::augment_args(clap::Command::new("train"));
    command
        .get_arguments()
        .filter_map(|argument| argument.get_long().map(str::to_owned))
        .filter(|name| !NO_KEYS.contains(&name.as_str()))
        .collect()
}

/// The options of the run that the arguments describe.
pub fn resolve(args: &TrainArgs) -> Result<TrainOptions> {
    let system = args.system.unwrap_or(System::SuO);
    let dtype = args.dtype.unwrap_or(DType::Fp32);
    let iterations = args.steps.unwrap_or(200);
    let lr = args.lr.unwrap_or(if args.model.is_some() { 5e-5 } else { 1e-3 });
    let defaults = OffloadOptions::default();
    check_contradictions(args, system)?;
    let (drives, drive_weights) = drives::shares(args)?;
    let offload = OffloadOptions {
        drive_weights,
        system,
        optimizer: args.optimizer.unwrap_or(defaults.optimizer),
        placement: args.placement.unwrap_or(defaults.placement),
        subgroup_elements: args.subgroup_size.unwrap_or(defaults.subgroup_elements),
        gradient_dtype: args.gradient_dtype.unwrap_or(DType::Fp32),
        weights_dtype: dtype,
        moment_dtype: args.moment_dtype.unwrap_or(defaults.moment_dtype),
        upstream: args.upstream.unwrap_or(defaults.upstream),
        weights: args.weights.unwrap_or(defaults.weights),
        activations: args.activations.unwrap_or(defaults.activations),
        topk_keep: args.topk_keep.unwrap_or(defaults.topk_keep),
        error_feedback: args.error_feedback.unwrap_or(false),
        overlap_update: args.overlap_update.unwrap_or(false),
        pieces: args.pieces.unwrap_or(defaults.pieces),
        ..defaults
    };
    let mut corpus = CorpusOptions::new(match &args.data {
        Some(path) => path.clone(),
        None => default_data()?,
    });
    corpus.evaluation_fraction = args.eval_fraction.unwrap_or(corpus.evaluation_fraction);
    corpus.format = args.data_format.unwrap_or(corpus.format);
    corpus.order = args.order;
    corpus.packing = args.packing.unwrap_or(corpus.packing);
    corpus.token_width = args.token_width;
    corpus.cache = args.out().join("tokens");
    let io = io_options(args)?;
    let limit = |bytes: Option<nearfield_bench::values::Bytes>| bytes.map(|bytes| bytes.0);
    let device = match args.device.unwrap_or(DeviceKind::Software) {
        DeviceKind::Software | DeviceKind::Virtual => DeviceChoice::Software,
        DeviceKind::Xrt => DeviceChoice::Attached(Arc::new(Cards::open(args, &drives)?)),
        DeviceKind::Emulated => DeviceChoice::Emulated {
            kernels: match args.device_kernels {
                Some(DeviceKernels::Hls) => Some(Arc::new(NativeKernels)),
                Some(DeviceKernels::Cpu) | None => None,
            },
            limits: SpeedLimits {
                media_read: limit(args.limit_read),
                media_write: limit(args.limit_write),
                internal: limit(args.limit_internal),
            },
            shared: limit(args.limit_shared),
        },
    };
    let (model, seq) = match &args.model {
        Some(directory) => {
            let model = ModelSource::Pretrained(directory.clone());
            let positions = model.read()?.0.positions;
            (model, args.seq.unwrap_or(positions.min(1024)))
        }
        None => {
            let seq = args.seq.unwrap_or(128);
            let shape = Shape {
                layers: args.layers.unwrap_or(4),
                hidden: args.hidden.unwrap_or(256),
                heads: args.heads.unwrap_or(4),
                vocab: args.vocab.unwrap_or(256),
                seq,
                tied: !args.untied.unwrap_or(false),
            };
            (ModelSource::Scratch(shape), seq)
        }
    };
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    Ok(TrainOptions {
        corpus,
        model,
        optimizer_state: args.optimizer_state.clone(),
        tokenizer: args.tokenizer.clone(),
        seq,
        batch: args.batch.unwrap_or(8),
        accumulate: args.accumulate.unwrap_or(1),
        iterations,
        schedule: Schedule {
            shape: args.schedule.unwrap_or(ScheduleShape::Cosine),
            peak: lr,
            minimum: args.min_lr.unwrap_or(lr / 10.0),
            warmup_steps: args.warmup.unwrap_or(iterations / 20),
            total_steps: iterations,
        },
        hyper: HyperParameters {
            lr,
            beta1: args.beta1.unwrap_or(0.9),
            beta2: args.beta2.unwrap_or(0.999),
            eps: args.eps.unwrap_or(1e-8),
            weight_decay: args.weight_decay.unwrap_or(0.01),
        },
        loss_scale: loss_scale(args, dtype),
        clip: args.clip.unwrap_or(1.0),
        seed: args.seed.unwrap_or(0),
        compute: args.compute.unwrap_or(Compute::Auto).device().into(),
        threads: args.threads.filter(|&threads| threads > 0).unwrap_or(cores),
        evaluation_batches: args.eval_batches.unwrap_or(8),
        offload,
        drives,
        io,
        durability: args.durability.unwrap_or_default(),
        device,
        resume: args.resume,
        overwrite: args.overwrite,
    })
}

/// Most tokens that a trained model writes at the end.
const SAMPLE_MAX: u64 = 100_000;

/// Options that only make sense together.
fn check_contradictions(args: &TrainArgs, system: System) -> Result<()> {
    if args.resume && args.overwrite {
        bail!(
            "--resume continues the run on the drives and --overwrite replaces it: give one of them"
        );
    }
    if let Some(tokens) = args.sample.filter(|&tokens| tokens > SAMPLE_MAX) {
        bail!(
            "--sample {tokens}: at most {SAMPLE_MAX} tokens are written, and each takes a whole forward pass"
        );
    }
    let sizes = [
        ("--layers", args.layers.is_some()),
        ("--hidden", args.hidden.is_some()),
        ("--heads", args.heads.is_some()),
        ("--vocab", args.vocab.is_some()),
        ("--untied", args.untied.is_some()),
    ];
    if let (Some(_), Some((name, _))) = (&args.model, sizes.iter().find(|(_, given)| *given)) {
        bail!("{name} is for a model of your own; that of --model has its sizes already");
    }
    if args.resume && args.optimizer_state.is_some() {
        bail!(
            "--resume continues the run on the drives, --optimizer-state starts a new one: give one of them"
        );
    }
    if let (Some(save), Some(model)) = (&args.save, &args.model)
        && save.canonicalize().ok().is_some_and(|save| model.canonicalize().ok() == Some(save))
    {
        bail!("--save is the directory of --model; save to another one");
    }
    if args.save.is_none() && (args.save_dtype.is_some() || args.shard_size.is_some()) {
        bail!("--save-dtype and --shard-size need --save DIR");
    }
    if args.model.is_some() && args.data.is_none() {
        bail!("--model needs something to train on: give a file or a directory with --data");
    }
    if system != System::SuOC && args.topk_keep.is_some() {
        bail!("--topk-keep needs --system su+o+c, but the system is {}", system.name());
    }
    let limits = [args.limit_read, args.limit_write, args.limit_internal, args.limit_shared];
    let of_cards = [
        ("--bitstream", args.bitstream.is_some()),
        ("--card", !args.card.is_empty()),
        ("--card-timeout", args.card_timeout.is_some()),
    ];
    if let (true, Some((flag, _))) =
        (args.device != Some(DeviceKind::Xrt), of_cards.iter().find(|(_, given)| *given))
    {
        bail!("{flag} needs --device xrt");
    }
    if args.device != Some(DeviceKind::Emulated) && args.device_kernels.is_some() {
        bail!("--device-kernels needs --device emulated");
    }
    if args.device != Some(DeviceKind::Emulated) && limits.iter().any(Option::is_some) {
        bail!(
            "--limit-read, --limit-write, --limit-internal and --limit-shared need --device emulated"
        );
    }
    if args.loss_scale.is_some_and(|scale| scale != 0.0)
        && (args.initial_loss_scale.is_some()
            || args.loss_scale_window.is_some()
            || args.loss_scale_hysteresis.is_some())
    {
        bail!(
            "--loss-scale fixes the scale; its --initial-loss-scale, -window and -hysteresis need --loss-scale 0"
        );
    }
    if args.loss_scale.is_none()
        && args.dtype != Some(DType::Fp16)
        && (args.initial_loss_scale.is_some()
            || args.loss_scale_window.is_some()
            || args.loss_scale_hysteresis.is_some())
    {
        bail!(
            "--initial-loss-scale, --loss-scale-window and --loss-scale-hysteresis are for a dynamic loss scale: give --dtype \
             fp16, or --loss-scale 0"
        );
    }
    if let Some(tbw) = args.drive_tbw.filter(|tbw| !(tbw.is_finite() && *tbw > 0.0)) {
        bail!(
            "--drive-tbw {tbw} is no rating; give the terabytes that the drive's maker promises, for example 600"
        );
    }
    Ok(())
}

fn loss_scale(args: &TrainArgs, dtype: DType) -> LossScale {
    let default = if dtype == DType::Fp16 { 0.0 } else { 1.0 };
    match args.loss_scale.unwrap_or(default) {
        0.0 => {
            let defaults = DynamicScale::default();
            LossScale::Dynamic(DynamicScale {
                initial: args.initial_loss_scale.unwrap_or(defaults.initial),
                hysteresis: args.loss_scale_hysteresis.unwrap_or(defaults.hysteresis),
                window: args.loss_scale_window.unwrap_or(defaults.window),
                floor: defaults.floor,
            })
        }
        scale => LossScale::Static(scale),
    }
}

fn io_options(args: &TrainArgs) -> Result<IoOptions> {
    let defaults = IoOptions::default();
    let faults = match &args.inject {
        None => None,
        Some(text) => {
            let rules = text.split(',').map(str::parse).collect::<Result<Vec<_>, _>>()?;
            Some(Arc::new(Faults::new(rules)))
        }
    };
    let block = args.block_size.map_or(u64::from(defaults.block_bytes), |bytes| bytes.0);
    Ok(IoOptions {
        queue_depth: args.queue_depth.unwrap_or(defaults.queue_depth),
        block_bytes: u32::try_from(block)
            .map_err(|_| anyhow!("--block-size {block} must be below 2 GiB"))?,
        direct: args.direct.unwrap_or(defaults.direct),
        backend: args.io_backend.unwrap_or(defaults.backend),
        faults,
    })
}

/// The text that every machine has after `make build`: Python sources of its `.venv`.
fn default_data() -> Result<PathBuf> {
    let mut places = vec![PathBuf::from(".")];
    if let Ok(command) = std::env::current_exe() {
        places.extend(command.ancestors().skip(1).take(4).map(Path::to_path_buf));
    }
    for place in places {
        let lib = place.join(".venv/lib");
        let Ok(entries) = std::fs::read_dir(&lib) else { continue };
        for entry in entries.flatten() {
            let torch = entry.path().join("site-packages/torch/nn");
            if torch.is_dir() {
                return Ok(torch);
            }
        }
    }
    bail!("no text to train on: give a UTF-8 file or a directory with --data")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(text: &str) -> (tempfile::TempDir, TrainArgs) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("train.toml");
        std::fs::write(&path, text).unwrap();
        (directory, TrainArgs { config: Some(path), ..TrainArgs::default() })
    }

    #[test]
    fn flags_win_over_the_file() {
        let (_directory, mut args) =
            write("layers = 7\nsteps = 9\nsystem = \"base\"\ndrive = [\"a\"]\n");
        args.steps = Some(3);
        let merged = args.with_file().unwrap();
        assert_eq!(
            (merged.layers, merged.steps, merged.system),
            (Some(7), Some(3), Some(System::Base))
        );
        assert_eq!(merged.drive, [PathBuf::from("a")]);
    }

    #[test]
    fn an_unknown_key_is_named_with_the_nearest_valid_one() {
        let (_directory, args) = write("subgroup-sise = 7\n");
        let error = format!("{:#}", args.with_file().unwrap_err());
        assert!(error.contains("subgroup-sise") && error.contains("\"subgroup-size\""), "{error}");
    }

    #[test]
    fn a_wrong_value_in_the_file_names_its_place() {
        let (_directory, args) = write("steps = 4\nsystem = \"suo\"\n");
        let error = format!("{:#}", args.with_file().unwrap_err());
        assert!(
            error.contains("suo") && error.contains("base-pipe") && error.contains("line 2"),
            "{error}"
        );
    }

    #[test]
    fn the_examples_are_configurations() {
        let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples");
        let mut count = 0;
        for entry in std::fs::read_dir(examples).unwrap() {
            let path = entry.unwrap().path();
            let args = TrainArgs { config: Some(path.clone()), ..TrainArgs::default() };
            let args = args.with_file().unwrap_or_else(|error| panic!("{error:#}"));
            assert!(args.system.is_some() && args.steps.is_some(), "{}", path.display());
            count += 1;
        }
        assert_eq!(count, 5);
    }

    #[test]
    fn contradictions_are_refused() {
        let base = TrainArgs { data: Some(PathBuf::from("x")), ..TrainArgs::default() };
        let both = TrainArgs { resume: true, overwrite: true, ..base.clone() };
        assert!(resolve(&both).unwrap_err().to_string().contains("--overwrite"));
        let keep = TrainArgs { topk_keep: Some(0.1), ..base };
        assert!(resolve(&keep).unwrap_err().to_string().contains("su+o+c"));
    }
}
