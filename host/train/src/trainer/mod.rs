//! Training with optimizer state on drives: data, model and engine put together.

mod options;
mod work;

use std::sync::Arc;
use std::time::Instant;

use nearfield_runtime::exec::Executor;
use nearfield_runtime::graph::{Graph, Traffic};
use nearfield_runtime::memory::HostVector;
use nearfield_runtime::store::StepRecord;
use nearfield_runtime::timeline::Timeline;
use nearfield_runtime::types::HyperParameters;
use nearfield_techniques::offload::plan::gradient::{MicroStep, UnitShape};
use nearfield_techniques::offload::{EngineConfig, FlatModel, OffloadEngine, TensorRun};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

pub use options::TrainOptions;

use crate::data::{BatchPlan, Corpus};
use crate::error::{Error, Result};
use crate::generate::{GenerateOptions, generate};
use crate::model::{Model, Unit, UnitPlan, parse_device};
use crate::scaler::{Scaler, ScalerState, combined_unscale};
use options::Identity;
use work::{Accumulators, MicroBatch, Weights};

/// State of the trainer after an iteration, as recorded with it on the drives.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Recorded {
    identity: Identity,
    scaler: ScalerState,
    skipped: u64,
    /// Loss of the iteration.
    loss: f64,
}

/// What one iteration did.
#[derive(Debug, Clone)]
pub struct IterationReport {
    /// Iterations done, this one included.
    pub iteration: u64,
    /// Optimizer steps done.
    pub step: u64,
    /// Mean loss over the micro-batches.
    pub loss: f64,
    /// Learning rate of the step.
    pub learning_rate: f64,
    /// Norm of the whole gradient, without the loss scale.
    pub gradient_norm: f64,
    /// Loss scale in this iteration.
    pub loss_scale: f64,
    /// Whether the gradient overflowed and nothing was updated.
    pub skipped: bool,
    /// Seconds of forward passes.
    pub forward_seconds: f64,
    /// Seconds of backward passes, gradient offload included.
    pub backward_seconds: f64,
    /// Seconds of the update.
    pub update_seconds: f64,
    /// Seconds of the whole iteration.
    pub seconds: f64,
    /// Tokens trained on.
    pub tokens: u64,
    /// When each task ran: kind of graph, start in seconds from the iteration's start, timeline.
    pub timelines: Vec<(GraphKind, f64, Timeline)>,
}

/// Which graph a timeline belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GraphKind {
    /// Forward and backward of one micro-batch.
    Gradient(MicroStep),
    /// The update.
    Update,
}

/// A training run.
pub struct Trainer {
    options: TrainOptions,
    corpus: Corpus,
    model: Model,
    engine: OffloadEngine,
    scaler: Scaler,
    identity: Identity,
    accumulators: Option<Accumulators>,
    iteration: u64,
    skipped: u64,
    last_loss: Option<f64>,
    predicted: Traffic,
    /// Whether seconds are those of the graphs' timelines, and not of the clock on the wall.
    virtual_time: bool,
}

impl Trainer {
    /// Reads the text, then creates the state on the drives or, with `resume`, continues it.
    ///
    /// # Errors
    /// Text that cannot be used, contradictory options, drives that cannot be used, each with what to do.
    pub fn new(options: TrainOptions) -> Result<Self> {
        options.validate()?;
        options.check_memory()?;
        let device = parse_device(&options.compute)?;
        tch::set_num_threads(options.threads as i32);
        let corpus = Corpus::load(&options.corpus, options.shape.seq)?;
        if corpus.vocab_needed() > options.shape.vocab {
            return Err(Error::Invalid(format!(
                "the text needs a vocabulary of {}, but --vocab is {}; use --vocab 256 for text",
                corpus.vocab_needed(),
                options.shape.vocab
            )));
        }
        let model = Model::new(options.shape, options.offload.weights_dtype, device)?;
        let identity = Identity::new(&options, corpus.digest());
        let flat = flat_model(&model)?;
        let config = EngineConfig {
            options: options.offload.clone(),
            drives: options.drives.clone(),
            io: options.io.clone(),
            durability: options.durability,
            device: options.device,
            threads: options.threads,
            lock_memory: false,
            units: unit_shapes(&options, &model),
        };
        let mut scaler = Scaler::new(options.loss_scale)?;
        let (engine, iteration, skipped, last_loss) = if options.resume {
            let (engine, recovered) = OffloadEngine::resume(&config, flat)?;
            let recorded: Recorded = serde_json::from_slice(&recovered.blob).map_err(|error| {
                Error::Invalid(format!(
                    "the trainer's state on the drives cannot be read ({error}); they hold a run of another program"
                ))
            })?;
            identity.check(&recorded.identity)?;
            scaler = Scaler::restore(options.loss_scale, recorded.scaler)?;
            let loss = (recovered.iteration > 0).then_some(recorded.loss);
            (engine, recovered.iteration, recorded.skipped, loss)
        } else {
            let recorded = Recorded {
                identity: identity.clone(),
                scaler: scaler.state(),
                skipped: 0,
                loss: 0.0,
            };
            let record = record(0, 0, 0.0, Vec::new(), &recorded)?;
            let list = model.tensors();
            let seed = options.seed;
            let engine =
                OffloadEngine::create(&config, flat, options.overwrite, &record, &|first, out| {
                    list.initialise(seed, first, out);
                })?;
            (engine, 0, 0, None)
        };
        let elements = model.tensors().elements() as usize;
        let accumulators = (options.accumulate > 1).then(|| Mutex::new(vec![0.0; elements]));
        Ok(Self {
            options,
            corpus,
            model,
            engine,
            scaler,
            identity,
            accumulators,
            iteration,
            skipped,
            last_loss,
            predicted: Traffic::default(),
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

    /// Seconds of an iteration so far.
    fn elapsed(&self, begin: Instant, report: &IterationReport) -> f64 {
        if self.virtual_time {
            report.timelines.iter().map(|(_, _, timeline)| timeline.seconds()).sum()
        } else {
            begin.elapsed().as_secs_f64()
        }
    }

    /// The graph that a timeline of an [`IterationReport`] belongs to.
    pub fn graph(&self, kind: GraphKind) -> &Graph {
        match kind {
            GraphKind::Gradient(step) => &self.engine.gradient_plan(step).graph,
            GraphKind::Update => self.engine.update_graph(),
        }
    }

    /// One iteration: forward, backward, gradients to the drives, update.
    ///
    /// # Errors
    /// What the model or a drive reports; the state on the drives is that of this iteration's start or end.
    pub fn step(&mut self) -> Result<IterationReport> {
        let begin = Instant::now();
        let scale = self.scaler.scale();
        let accumulate = self.options.accumulate;
        let mut report = IterationReport {
            iteration: self.iteration + 1,
            step: self.engine.step(),
            loss: 0.0,
            learning_rate: self.options.schedule.rate(self.engine.step()),
            gradient_norm: 0.0,
            loss_scale: scale,
            skipped: false,
            forward_seconds: 0.0,
            backward_seconds: 0.0,
            update_seconds: 0.0,
            seconds: 0.0,
            tokens: 0,
            timelines: Vec::new(),
        };
        let mut scan = Default::default();
        for micro_step in 0..accumulate {
            let kind = if micro_step + 1 == accumulate {
                MicroStep::Offload
            } else {
                MicroStep::Accumulate
            };
            let batch = self.batches().training(self.corpus.train(), self.iteration, micro_step);
            let micro = MicroBatch::new(
                &self.model,
                self.engine.weights(),
                self.model.batch(&batch)?,
                scale / f64::from(accumulate),
                self.engine.options().gradient_dtype,
                self.accumulators.as_ref(),
            );
            let start = self.elapsed(begin, &report);
            let timeline = self.engine.run_gradients(kind, &micro, scale)?;
            let graph = &self.engine.gradient_plan(kind).graph;
            for (phase, seconds) in timeline.phase_seconds(graph) {
                match phase.as_str() {
                    "forward" => report.forward_seconds += seconds,
                    _ => report.backward_seconds += seconds,
                }
            }
            report.timelines.push((GraphKind::Gradient(kind), start, timeline));
            report.loss += micro.loss() / f64::from(accumulate);
            report.tokens += u64::from(self.options.batch) * u64::from(self.options.shape.seq);
            scan = micro.scan();
        }
        let norm = scan.sum_squares.sqrt();
        let overflow = scan.overflow || !norm.is_finite();
        report.gradient_norm = norm / scale;
        report.skipped = overflow;
        let start = self.elapsed(begin, &report);
        self.finish_iteration(&mut report, norm, start)?;
        report.step = self.engine.step();
        report.seconds = self.elapsed(begin, &report);
        Ok(report)
    }

    /// The update, or the record of a skipped iteration.
    fn finish_iteration(
        &mut self,
        report: &mut IterationReport,
        norm: f64,
        start: f64,
    ) -> Result<()> {
        let unscale = combined_unscale(report.loss_scale, norm, self.options.clip);
        let not_a_loss = !report.loss.is_finite();
        self.scaler.update(report.skipped)?;
        if not_a_loss && !report.skipped {
            return Err(Error::Diverged {
                iteration: self.iteration,
                what: "the loss is not a finite number".into(),
                remedy: "the state is kept as it was; lower --lr, lengthen --warmup, or check the data",
            });
        }
        let skipped = self.skipped + u64::from(report.skipped);
        let recorded = Recorded {
            identity: self.identity.clone(),
            scaler: self.scaler.state(),
            skipped,
            // JSON has no infinity; a skipped iteration may have no loss.
            loss: if not_a_loss { f64::MAX } else { report.loss },
        };
        let iteration = self.iteration + 1;
        if report.skipped {
            let record = record(iteration, self.engine.step(), 0.0, Vec::new(), &recorded)?;
            self.engine.skip(&record)?;
            self.predicted += self.engine.predicted_skip_traffic();
        } else {
            let decay = HyperParameters { lr: report.learning_rate, ..self.options.hyper };
            let groups = vec![decay, HyperParameters { weight_decay: 0.0, ..decay }];
            let record = record(iteration, self.engine.step() + 1, unscale, groups, &recorded)?;
            let timeline = self.engine.update(&record)?;
            report.update_seconds = timeline.seconds();
            report.timelines.push((GraphKind::Update, start, timeline));
            self.predicted += self.engine.predicted_step_traffic();
        }
        self.iteration = iteration;
        self.skipped = skipped;
        self.last_loss = Some(report.loss);
        Ok(())
    }

    /// Mean loss over batches of the evaluation text; `None` when it is too short for one.
    ///
    /// # Errors
    /// What the model reports.
    pub fn evaluate(&self) -> Result<Option<f64>> {
        let text = self.corpus.evaluation();
        let plan = self.batches();
        let (mut sum, mut count, mut first) = (0.0, 0_u64, 0);
        let sequences = plan.evaluation_sequences(text);
        while first < sequences && count < self.options.evaluation_batches {
            let batch = plan.evaluation(text, first);
            if batch.sequences == 0 {
                break;
            }
            first += u64::from(batch.sequences);
            let (inputs, targets) = self.model.batch(&batch)?;
            let (head, hidden) = self.model.forward_to_head(&self.weights(), inputs)?;
            sum += self.model.loss(&head, &hidden, &targets)?;
            count += 1;
        }
        Ok((count > 0).then(|| sum / count as f64))
    }

    fn batches(&self) -> BatchPlan {
        let TrainOptions { seed, batch, shape, .. } = &self.options;
        BatchPlan { seed: *seed, sequences: *batch, seq: shape.seq }
    }

    /// Continues `prompt` with the current weights.
    ///
    /// # Errors
    /// What the model reports.
    pub fn generate(&self, prompt: &[u8], options: &GenerateOptions) -> Result<Vec<u8>> {
        generate(&self.model, &self.weights(), prompt, options)
    }

    fn weights(&self) -> Weights<'_> {
        let vector: &Arc<HostVector> = self.engine.weights();
        Weights { vector, width: self.model.dtype().bytes() }
    }

    /// Bytes of accumulators in host memory.
    pub fn accumulator_bytes(&self) -> u64 {
        self.accumulators.as_ref().map_or(0, |_| 4 * self.parameters())
    }
}

fn record(
    iteration: u64,
    step: u64,
    unscale: f32,
    groups: Vec<HyperParameters>,
    recorded: &Recorded,
) -> Result<StepRecord> {
    let blob = serde_json::to_vec(recorded).map_err(|error| {
        Error::Invalid(format!("the trainer's state cannot be written: {error}"))
    })?;
    Ok(StepRecord { iteration, step, unscale, groups, blob })
}

/// Tensors as the optimizer sees them: group 0 decays, group 1 does not.
fn flat_model(model: &Model) -> Result<FlatModel> {
    let tensors = model.tensors().tensors().iter().map(|tensor| TensorRun {
        name: tensor.name.clone(),
        elements: tensor.elements(),
        group: u32::from(!tensor.decay),
    });
    let mut tensors: Vec<TensorRun> = tensors.collect();
    // Listed in registration order; the flat vector has all decaying tensors first.
    tensors.sort_by_key(|tensor| tensor.group);
    Ok(FlatModel::new(tensors)?)
}

fn unit_shapes(options: &TrainOptions, model: &Model) -> Vec<UnitShape> {
    let shape = options.shape;
    let tokens = u64::from(options.batch) * u64::from(shape.seq);
    let unit = |plan: &UnitPlan| {
        let elements = plan.elements();
        let width = model.dtype().bytes();
        let output_bytes = tokens * u64::from(shape.hidden) * width;
        UnitShape {
            name: plan.unit.to_string(),
            weight_elements: elements,
            output_bytes,
            score_bytes: match plan.unit {
                Unit::Block(_) => 4 * tokens * u64::from(shape.seq) * u64::from(shape.heads),
                _ => 0,
            },
            working_bytes: match plan.unit {
                Unit::Head => tokens * u64::from(shape.vocab) * (width + 4),
                _ => 17 * output_bytes,
            },
            forward_flops: shape.forward_flops(plan.unit, elements, options.batch),
            forward: plan.unit != Unit::Head,
            gradients: plan
                .completes
                .iter()
                .map(|range| (range.start, range.end - range.start))
                .collect(),
        }
    };
    model.plans().iter().map(unit).collect()
}
