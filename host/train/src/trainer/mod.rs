//! Training with optimizer state on drives: data, model and engine put together.

mod dry_run;
mod iteration;
mod options;
mod recorded;
mod rehearsal;
mod start;
mod work;

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use nearfield_runtime::exec::Executor;
use nearfield_runtime::graph::Traffic;
use nearfield_techniques::offload::plan::gradient::UnitShape;
use nearfield_techniques::offload::{
    EngineConfig, FlatModel, OffloadEngine, TensorRun, WeightSource,
};
use parking_lot::Mutex;

pub use dry_run::{DriveNeed, DryRun};
pub use iteration::{GraphKind, IterationReport};
pub use options::{ModelSource, TrainOptions};
pub(crate) use recorded::{imported, recorded_model};
pub use rehearsal::Rehearsal;
pub(crate) use start::Start;

use crate::checkpoint::{Config, SaveOptions, Writer, to_config};
use crate::data::{BatchPlan, Corpus, Format, Vocabulary};
use crate::error::Result;
use crate::generate::{GenerateOptions, generate};
use crate::model::{Architecture, Model, TensorInfo, TensorList, Unit, UnitPlan, parse_device};
use crate::scaler::Scaler;
use recorded::{Identity, Owner, Recorded, record, recorded};
use work::Accumulators;

/// A training run.
pub struct Trainer {
    options: TrainOptions,
    corpus: Corpus,
    vocabulary: Vocabulary,
    model: Model,
    /// What the model's own config.json says, where it has one.
    config: Option<Config>,
    /// Tensors of the model's files that it does not have.
    unused: Vec<String>,
    engine: OffloadEngine,
    scaler: Scaler,
    identity: Identity,
    accumulators: Option<Accumulators>,
    iteration: u64,
    skipped: u64,
    last_loss: Option<f64>,
    predicted: Traffic,
    /// Whether the gradients of the last iteration neither overflowed nor were clipped: so will those of the next.
    calm: bool,
    /// Whether seconds are those of the graphs' timelines, and not of the clock on the wall.
    virtual_time: bool,
}

impl Trainer {
    /// Reads the data, then creates the state on the drives or, with `resume`, continues it.
    ///
    /// # Errors
    /// Data or a model that cannot be used, contradictory options, drives that cannot be used, each with what to do.
    pub fn new(options: TrainOptions) -> Result<Self> {
        Self::with_progress(options, &mut |_, _| {})
    }

    /// The same; `progress` gets bytes done and bytes in all while text is cut into tokens.
    ///
    /// # Errors
    /// Those of [`Trainer::new`].
    pub fn with_progress(
        options: TrainOptions,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Self> {
        options.validate()?;
        let (architecture, config) = options.model.read()?;
        options.check_memory(&architecture)?;
        let device = parse_device(&options.compute)?;
        tch::set_num_threads(options.threads as i32);
        let vocab = architecture.vocab;
        let model = Model::new(architecture, options.seq, options.offload.weights_dtype, device)?;
        let start = if options.resume { None } else { Some(Start::of(&options, model.tensors())?) };
        let vocabulary = vocabulary(&options, config.as_ref())?;
        let corpus = Corpus::load(&options.corpus, &vocabulary, options.seq, vocab, progress)?;
        if let Some(start) = &start {
            // Before an old run is replaced.
            start.verify(options.threads)?;
        }
        let digest = corpus.digest().to_owned();
        let identity = Identity::new(&options, model.architecture().clone(), digest);
        let flat = flat_model(&model)?;
        let engine_config = EngineConfig {
            options: options.offload.clone(),
            drives: options.drives.clone(),
            io: options.io.clone(),
            durability: options.durability,
            device: options.device.clone(),
            threads: options.threads,
            lock_memory: false,
            units: unit_shapes(&options, &model),
        };
        let mut scaler = Scaler::new(options.loss_scale)?;
        let (engine, iteration, skipped, last_loss) = match &start {
            None => {
                let (engine, recovered) = OffloadEngine::resume(&engine_config, flat)?;
                let recorded = recorded(&recovered.blob)?;
                identity.check(&recorded.owner)?;
                if let Some(state) = recorded.scaler {
                    scaler = Scaler::restore(options.loss_scale, state)?;
                }
                let loss = recorded.loss;
                (engine, recovered.iteration, recorded.skipped, loss)
            }
            Some(start) => {
                let recorded = Recorded {
                    owner: Owner::Run(identity.clone()),
                    scaler: Some(scaler.state()),
                    skipped: 0,
                    loss: None,
                };
                // A run that goes on elsewhere has done an iteration for each step.
                let step = start.step();
                let record = record(step, step, 0.0, Vec::new(), &recorded)?;
                let overwrite = options.overwrite;
                let engine =
                    OffloadEngine::create(&engine_config, flat, overwrite, &record, start)?;
                (engine, step, 0, None)
            }
        };
        let unused = start.map_or_else(Vec::new, |start| start.unused());
        let elements = model.tensors().elements() as usize;
        let accumulators = (options.accumulate > 1).then(|| Mutex::new(vec![0.0; elements]));
        Ok(Self {
            options,
            corpus,
            vocabulary,
            unused,
            model,
            config,
            engine,
            scaler,
            identity,
            accumulators,
            iteration,
            skipped,
            last_loss,
            predicted: Traffic::default(),
            calm: true,
            virtual_time: false,
        })
    }

    /// The options.
    pub fn options(&self) -> &TrainOptions {
        &self.options
    }

    /// The engine with the state.
    pub fn engine(&self) -> &OffloadEngine {
        &self.engine
    }

    /// The text.
    pub fn corpus(&self) -> &Corpus {
        &self.corpus
    }

    /// What tokens stand for.
    pub fn vocabulary(&self) -> &Vocabulary {
        &self.vocabulary
    }

    /// The model.
    pub fn architecture(&self) -> &Architecture {
        self.model.architecture()
    }

    /// Tensors in the files of the pretrained model that are not the model's.
    pub fn unused_tensors(&self) -> &[String] {
        &self.unused
    }

    /// Parameters of the model.
    pub fn parameters(&self) -> u64 {
        self.model.tensors().elements()
    }

    /// Iterations done.
    pub fn iteration(&self) -> u64 {
        self.iteration
    }

    /// Iterations skipped because of overflow.
    pub fn skipped(&self) -> u64 {
        self.skipped
    }

    /// Loss of the last iteration, also after a restart.
    pub fn last_loss(&self) -> Option<f64> {
        self.last_loss
    }

    /// Data bytes that the iterations of this process should have moved, from their graphs.
    pub fn predicted_traffic(&self) -> Traffic {
        self.predicted
    }

    /// Runs later iterations with `executor`, whose timelines give the seconds of the reports. The training itself
    /// stays the same, to the bit.
    pub fn run_in_virtual_time(&mut self, executor: Arc<dyn Executor + Send + Sync>) {
        self.engine.set_executor(executor);
        self.virtual_time = true;
    }

    /// Mean loss over batches of the evaluation text; `None` when it is too short for one.
    ///
    /// # Errors
    /// What the model reports.
    pub fn evaluate(&self) -> Result<Option<f64>> {
        let plan = self.batches();
        let (mut sum, mut counted, mut count, mut first) = (0.0, 0, 0_u64, 0);
        let sequences = self.corpus.evaluation_sequences();
        while first < sequences && count < self.options.evaluation_batches {
            let batch = self.corpus.evaluation(&plan, first)?;
            if batch.sequences == 0 {
                break;
            }
            first += u64::from(batch.sequences);
            let tokens = self.model.batch(&batch)?;
            let documents = tokens.documents.as_ref();
            let (head, hidden) =
                self.model.forward_to_head(&*self.weights(), tokens.inputs, documents)?;
            let loss = self.model.loss(&head, &hidden, &tokens.targets)?;
            sum += loss * tokens.counted as f64;
            counted += tokens.counted;
            count += 1;
        }
        Ok((counted > 0).then(|| sum / counted as f64))
    }

    fn batches(&self) -> BatchPlan {
        let TrainOptions { seed, batch, accumulate, seq, .. } = self.options;
        BatchPlan { seed, sequences: batch, accumulate, seq }
    }

    /// Continues `prompt`, or the beginning of the data, with the current weights, until `stop` says so. Returns both.
    ///
    /// # Errors
    /// What the model or the tokenizer reports.
    pub fn generate(
        &self,
        prompt: Option<&str>,
        options: &GenerateOptions,
        stop: &dyn Fn() -> bool,
    ) -> Result<(String, String)> {
        /// Tokens of the data that are continued.
        const TOKENS: usize = 16;
        let tokens = match prompt {
            Some(prompt) => {
                let mut tokens = self.vocabulary.begin().to_vec();
                tokens.extend(self.vocabulary.encode(prompt)?);
                tokens
            }
            None => {
                let plan = BatchPlan { sequences: 1, ..self.batches() };
                let batch = match self.corpus.evaluation_sequences() {
                    0 => self.corpus.training(&plan, 0, 0)?,
                    _ => self.corpus.evaluation(&plan, 0)?,
                };
                batch.inputs.iter().take(TOKENS).map(|&token| token as u32).collect()
            }
        };
        let allowed = self.vocabulary.size();
        let added = generate(&self.model, &*self.weights(), &tokens, allowed, options, stop)?;
        let prompt = match prompt {
            Some(prompt) => prompt.to_owned(),
            None => self.vocabulary.decode(&tokens)?,
        };
        // Decoded together: the first character may need what comes before it.
        let whole = self.vocabulary.decode(&[tokens, added.clone()].concat())?;
        let text = whole.strip_prefix(&prompt).map(str::to_owned);
        Ok((prompt, text.map_or_else(|| self.vocabulary.decode(&added), Ok)?))
    }

    /// Saves the model as transformers loads it: the master weights, rounded to the options' format.
    ///
    /// # Errors
    /// A directory that cannot be written, and what the drives report.
    pub fn save(&self, target: &Path, options: &SaveOptions) -> Result<()> {
        let (keys, companions) = match (&self.config, &self.options.model) {
            (Some(config), ModelSource::Pretrained(directory)) => {
                (config.keys.clone(), Some(directory.as_path()))
            }
            _ => (to_config(self.model.architecture(), options.dtype), None),
        };
        let writer = Writer::create(target, self.model.tensors(), keys, companions, options)?;
        self.engine.master_weights(&|first, values| Ok(writer.put(first, values)?))?;
        writer.finish()
    }

    fn weights(&self) -> Box<dyn WeightSource + '_> {
        self.engine.weight_source()
    }

    /// Bytes of accumulators in host memory.
    pub fn accumulator_bytes(&self) -> u64 {
        self.accumulators.as_ref().map_or(0, |_| 4 * self.parameters())
    }
}

/// Tensors as the optimizer sees them: group 0 decays, group 1 does not.
pub(crate) fn flat_tensors(list: &TensorList) -> Vec<TensorRun> {
    let run = |tensor: &TensorInfo| TensorRun {
        name: tensor.name.clone(),
        elements: tensor.elements(),
        group: u32::from(!tensor.decay),
    };
    list.in_flat_order().map(run).collect()
}

fn flat_model(model: &Model) -> Result<FlatModel> {
    Ok(FlatModel::new(flat_tensors(model.tensors()))?)
}

/// What tokens stand for: what the model's tokenizer says, or bytes for a model of one's own.
fn vocabulary(options: &TrainOptions, config: Option<&Config>) -> Result<Vocabulary> {
    let directory = match (&options.model, &options.tokenizer) {
        (ModelSource::Pretrained(directory), _) => directory.as_path(),
        (ModelSource::Scratch(_), Some(file)) => file.parent().unwrap_or(Path::new(".")),
        (ModelSource::Scratch(_), None) => return Ok(Vocabulary::Bytes),
    };
    let end = config.and_then(|config| config.end_of_text);
    let loaded = Vocabulary::load(directory, options.tokenizer.as_deref(), end);
    let tokens = matches!(options.corpus.resolved_format()?, Format::Bin | Format::Npy);
    match loaded {
        // Tokens can be trained on without knowing their text.
        Err(_) if tokens && options.tokenizer.is_none() => Ok(Vocabulary::Numbers),
        loaded => loaded,
    }
}

fn unit_shapes(options: &TrainOptions, model: &Model) -> Vec<UnitShape> {
    let architecture = model.architecture();
    let seq = u64::from(options.seq);
    let tokens = u64::from(options.batch) * seq;
    let runs = |ranges: &[Range<u64>]| {
        ranges.iter().map(|range| (range.start, range.end - range.start)).collect()
    };
    let unit = |plan: &UnitPlan| {
        let elements = plan.elements();
        let width = model.dtype().bytes();
        let output_bytes = tokens * u64::from(architecture.hidden) * width;
        UnitShape {
            name: plan.unit.to_string(),
            weight_elements: elements,
            output_bytes,
            score_bytes: match plan.unit {
                Unit::Block(_) => 4 * tokens * seq * u64::from(architecture.heads),
                _ => 0,
            },
            working_bytes: match plan.unit {
                Unit::Head => tokens * u64::from(architecture.vocab) * (width + 4),
                _ => 17 * output_bytes,
            },
            forward_flops: architecture.forward_flops(
                plan.unit,
                elements,
                options.batch,
                options.seq,
            ),
            forward: plan.unit != Unit::Head,
            backward_weights: plan.unit != Unit::Embed,
            reads: runs(&plan.reads),
            gradients: runs(&plan.completes),
        }
    };
    model.plans().iter().map(unit).collect()
}
