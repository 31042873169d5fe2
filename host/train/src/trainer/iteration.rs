//! One iteration: micro-batches, then the update, which may be written ahead.

use std::time::Instant;

use nearfield_runtime::graph::Graph;
use nearfield_runtime::store::StepRecord;
use nearfield_runtime::timeline::Timeline;
use nearfield_runtime::types::HyperParameters;
use nearfield_techniques::offload::plan::gradient::MicroStep;

use super::Trainer;
use super::recorded::{Owner, Recorded, record};
use super::work::MicroBatch;
use crate::error::{Error, Result};
use crate::scaler::combined_unscale;

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
    /// Seconds of the update, where nothing else ran.
    pub update_seconds: f64,
    /// Seconds of the backward pass in which tasks of an update ran that counted.
    pub hidden_update_seconds: f64,
    /// Whether an update was written ahead, and then whether it counted.
    pub ahead: Option<bool>,
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
    /// The same for the last micro-batch of a step, with the update ahead.
    Ahead,
    /// The update.
    Update,
    /// What makes an update that was written ahead count.
    Adopt,
}

impl IterationReport {
    /// Adds the seconds of a graph's phases.
    fn add_phases(&mut self, graph: &Graph, timeline: &Timeline) {
        for (phase, seconds) in timeline.phase_seconds(graph) {
            match phase.as_str() {
                "forward" => self.forward_seconds += seconds,
                "backward" => self.backward_seconds += seconds,
                _ => self.update_seconds += seconds,
            }
        }
        let phases = timeline.phases(graph);
        if let Some(backward) = phases.iter().find(|phase| phase.name == "backward") {
            self.hidden_update_seconds +=
                timeline.busy_seconds(graph, "update", backward.end_seconds);
        }
    }
}

impl Trainer {
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
        let [ahead, adopt] = self.engine.blueprint().step_plans();
        match kind {
            GraphKind::Gradient(step) => &self.engine.gradient_plan(step).graph,
            GraphKind::Ahead => &ahead.graph,
            GraphKind::Update => self.engine.update_graph(),
            GraphKind::Adopt => &adopt.graph,
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
            hidden_update_seconds: 0.0,
            ahead: None,
            seconds: 0.0,
            tokens: 0,
            timelines: Vec::new(),
        };
        let plan = self.batches();
        let micro_batches = (0..accumulate)
            .map(|micro_step| {
                self.model.batch(&self.corpus.training(&plan, self.iteration, micro_step)?)
            })
            .collect::<Result<Vec<_>>>()?;
        // Every target of the step counts the same, whatever micro-batch it is in.
        let counted = micro_batches.iter().map(|tokens| tokens.counted).sum::<u64>().max(1);
        let expected = self.expected(&report);
        let mut scan = Default::default();
        for (micro_step, tokens) in (0..accumulate).zip(micro_batches) {
            let share = tokens.counted as f64 / counted as f64;
            let micro = MicroBatch::new(
                &self.model,
                tokens,
                scale * share,
                self.engine.options().gradient_dtype,
                self.accumulators.as_ref(),
            )
            .expecting(scale, self.options.clip);
            let start = self.elapsed(begin, &report);
            let (kind, timeline) = match &expected {
                _ if micro_step + 1 < accumulate => {
                    let step = MicroStep::Accumulate;
                    (GraphKind::Gradient(step), self.engine.run_gradients(step, &micro, scale)?)
                }
                None => {
                    let step = MicroStep::Offload;
                    (GraphKind::Gradient(step), self.engine.run_gradients(step, &micro, scale)?)
                }
                Some(expected) => {
                    report.ahead = Some(false);
                    (GraphKind::Ahead, self.engine.run_ahead(&micro, scale, expected)?)
                }
            };
            self.predicted += timeline.traffic(self.graph(kind));
            report.add_phases(self.graph(kind), &timeline);
            report.timelines.push((kind, start, timeline));
            report.loss += micro.loss() * share;
            report.tokens += u64::from(self.options.batch) * u64::from(self.options.seq);
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

    /// Hyper-parameters of the parameter groups: the first decays.
    fn groups(&self, report: &IterationReport) -> Vec<HyperParameters> {
        let decay = HyperParameters { lr: report.learning_rate, ..self.options.hyper };
        vec![decay, HyperParameters { weight_decay: 0.0, ..decay }]
    }

    /// The update that is written ahead in this iteration, where one is: gradients will neither overflow nor be clipped.
    fn expected(&self, report: &IterationReport) -> Option<StepRecord> {
        (self.options.offload.overlap_update && self.calm).then(|| StepRecord {
            iteration: report.iteration,
            step: self.engine.step() + 1,
            unscale: not_clipped(report.loss_scale),
            groups: self.groups(report),
            blob: Vec::new(),
        })
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
            owner: Owner::Run(self.identity.clone()),
            scaler: Some(self.scaler.state()),
            skipped,
            // JSON has no infinity; a skipped iteration may have no loss.
            loss: Some(if not_a_loss { f64::MAX } else { report.loss }),
        };
        let iteration = self.iteration + 1;
        if report.skipped {
            let record = record(iteration, self.engine.step(), 0.0, Vec::new(), &recorded)?;
            let begin = Instant::now();
            self.engine.skip(&record)?;
            if !self.virtual_time {
                report.update_seconds += begin.elapsed().as_secs_f64();
            }
        } else {
            let groups = self.groups(report);
            let record = record(iteration, self.engine.step() + 1, unscale, groups, &recorded)?;
            let (kind, timeline) = if self.engine.is_ahead(&record) {
                report.ahead = Some(true);
                (GraphKind::Adopt, self.engine.adopt(&record)?)
            } else {
                (GraphKind::Update, self.engine.update(&record)?)
            };
            self.predicted += timeline.traffic(self.graph(kind));
            report.add_phases(self.graph(kind), &timeline);
            report.timelines.push((kind, start, timeline));
        }
        if report.ahead != Some(true) {
            report.hidden_update_seconds = 0.0;
        }
        self.calm = !report.skipped && unscale == not_clipped(report.loss_scale);
        self.iteration = iteration;
        self.skipped = skipped;
        self.last_loss = Some(report.loss);
        Ok(())
    }
}

/// The scalar of gradients that are not clipped.
fn not_clipped(loss_scale: f64) -> f32 {
    combined_unscale(loss_scale, 0.0, 0.0)
}
