//! Updates that are written ahead, while gradients are still on their way (see [`crate::offload::plan::speculation`]).

use std::sync::atomic::{AtomicBool, Ordering};

use nearfield_runtime::exec::Work;
use nearfield_runtime::graph::{Task, Traffic};
use nearfield_runtime::kernels::UpdateSums;
use nearfield_runtime::store::{SlotMove, StepRecord};
use nearfield_runtime::timeline::Timeline;
use nearfield_runtime::{Error, Result};
use parking_lot::Mutex;

use super::gradient_work::{GradientWork, ModelWork};
use super::update_work::{Begin, UpdateWork};
use super::{Blueprint, OffloadEngine};
use crate::offload::plan::{Action, Plan};

/// An update that was written ahead and does not count yet.
#[derive(Debug)]
pub(super) struct Ahead {
    /// What was expected; iteration and blob do not matter.
    expected: StepRecord,
    /// By part.
    moves: Vec<SlotMove>,
    sums: Vec<UpdateSums>,
    /// Whether every part was written.
    complete: bool,
    /// Whether working weights in host memory were replaced.
    published: bool,
}

impl Ahead {
    fn is(&self, record: &StepRecord) -> bool {
        let StepRecord { step, unscale, groups, .. } = &self.expected;
        self.complete
            && *step == record.step
            && unscale.to_bits() == record.unscale.to_bits()
            && *groups == record.groups
    }
}

/// The work of a micro-step with updates ahead.
struct AheadWork<'a> {
    gradients: GradientWork<'a>,
    update: UpdateWork<'a>,
    plan: &'a Plan,
    model: &'a dyn ModelWork,
    /// What tasks would have moved that were left out.
    left_out: Mutex<Traffic>,
    incomplete: AtomicBool,
    published: AtomicBool,
}

impl Work for AheadWork<'_> {
    fn perform(&self, task: &Task) -> Result<()> {
        let of_update = match self.plan.actions[task.id.index()] {
            Action::FetchWeights { .. } | Action::CastWeights { .. } => {
                self.published.store(true, Ordering::Release);
                true
            }
            Action::Load { .. }
            | Action::LoadPairs { .. }
            | Action::Decompress { .. }
            | Action::Update { .. }
            | Action::Store { .. }
            | Action::ReadWeights { .. } => true,
            _ => false,
        };
        if !of_update {
            return self.gradients.perform(task);
        }
        // Once it is certain that the update will be another, the drives have better things to do. It stays certain, so
        // no task that is done follows one that is left out.
        if self.incomplete.load(Ordering::Acquire) || self.model.overturned() {
            self.incomplete.store(true, Ordering::Release);
            *self.left_out.lock() += Traffic::of(&task.op);
            return Ok(());
        }
        self.update.perform(task)
    }
}

impl Blueprint {
    fn speculation(&self) -> Result<&[Plan; 2]> {
        self.speculation
            .as_ref()
            .ok_or_else(|| Error::Invalid("this run has no --overlap-update".into()))
    }
}

impl OffloadEngine {
    /// Runs the last micro-step of `model`, whose gradients carry `loss_scale`, and writes the update of each part ahead as
    /// soon as its gradient is there, with the step, hyper-parameters and scalar of `expected`. Returns the data bytes that
    /// were moved as well.
    ///
    /// Then [`OffloadEngine::adopt`] makes it count where [`OffloadEngine::is_ahead`] says that it is the right one;
    /// [`OffloadEngine::update`] and [`OffloadEngine::skip`] go on as if it had not been.
    ///
    /// # Errors
    /// A run without `overlap_update`, and what the model or the drives report. The optimizer state is untouched.
    pub fn run_ahead(
        &mut self,
        model: &dyn ModelWork,
        loss_scale: f64,
        expected: &StepRecord,
    ) -> Result<(Timeline, Traffic)> {
        self.check_follows(expected)?;
        self.ahead = None;
        let [plan, _] = self.blueprint.speculation()?;
        let mut moves = Vec::with_capacity(self.layout().parts.len());
        for unit in &self.drives {
            moves.extend(unit.store.write_ahead(expected.step)?);
        }
        let work = AheadWork {
            gradients: GradientWork::new(self, plan, model, loss_scale),
            update: UpdateWork::with_moves(self, plan, expected, &moves),
            plan,
            model,
            left_out: Mutex::default(),
            incomplete: AtomicBool::new(false),
            published: AtomicBool::new(false),
        };
        let timeline = self.executor.run(&plan.graph, &work)?;
        let ahead = Ahead {
            expected: expected.clone(),
            sums: work.update.sums(),
            complete: !work.incomplete.into_inner(),
            published: work.published.into_inner(),
            moves,
        };
        let moved = plan.graph.traffic() - work.left_out.into_inner();
        self.ahead = Some(ahead);
        Ok((timeline, moved))
    }

    /// Whether what was written ahead is the update that `record` asks for.
    pub fn is_ahead(&self, record: &StepRecord) -> bool {
        self.ahead.as_ref().is_some_and(|ahead| ahead.is(record))
    }

    /// Makes the update that was written ahead the one of `record`: intents on every drive, headers, commits.
    ///
    /// # Errors
    /// As [`OffloadEngine::update`], and when nothing or something else was written ahead.
    pub fn adopt(&mut self, record: &StepRecord) -> Result<Timeline> {
        self.check_follows(record)?;
        let Some(ahead) = self.ahead.take().filter(|ahead| ahead.is(record)) else {
            return Err(Error::Invalid(format!(
                "the update of step {} was not written ahead",
                record.step
            )));
        };
        let [_, plan] = self.blueprint.speculation()?;
        let mut work = UpdateWork::with_moves(self, plan, record, &ahead.moves);
        work.begin = Begin::Ahead;
        work.set_sums(&ahead.sums);
        let timeline = self.executor.run(&plan.graph, &work)?;
        self.step = record.step;
        Ok(timeline)
    }

    /// Forgets what was written ahead; says whether working weights in host memory come from it.
    pub(super) fn drop_ahead(&mut self) -> bool {
        self.ahead.take().is_some_and(|ahead| ahead.published)
    }
}
