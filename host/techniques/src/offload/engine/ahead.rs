//! Updates that are written ahead, while gradients are still on their way (see [`crate::offload::plan::ahead`]).

use std::sync::atomic::{AtomicBool, Ordering};

use nearfield_runtime::exec::Work;
use nearfield_runtime::graph::Task;
use nearfield_runtime::kernels::UpdateSums;
use nearfield_runtime::store::{SlotMove, StepRecord};
use nearfield_runtime::timeline::Timeline;
use nearfield_runtime::{Error, Result};

use super::gradient_work::{GradientWork, ModelWork};
use super::update_work::{Begin, UpdateWork};
use super::{Blueprint, OffloadEngine};
use crate::offload::plan::Plan;

/// An update that was written ahead and does not count yet.
#[derive(Debug)]
pub(super) struct WrittenAhead {
    /// What was expected; iteration and blob do not matter.
    expected: StepRecord,
    /// By part.
    moves: Vec<SlotMove>,
    sums: Vec<UpdateSums>,
}

impl WrittenAhead {
    fn is(&self, record: &StepRecord) -> bool {
        let StepRecord { step, unscale, groups, .. } = &self.expected;
        *step == record.step
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
    overturned: AtomicBool,
}

impl Work for AheadWork<'_> {
    fn perform(&self, task: &Task) -> Result<()> {
        if self.plan.actions[task.id.index()].is_of_update() {
            self.update.perform(task)
        } else {
            self.gradients.perform(task)
        }
    }

    /// Once it is certain that the update will be another, the drives have better things to do. It stays certain, so no task
    /// that is done follows one that is left out.
    fn leaves_out(&self, task: &Task) -> bool {
        if !self.plan.actions[task.id.index()].is_of_update() {
            return false;
        }
        if self.model.overturned() {
            self.overturned.store(true, Ordering::Release);
        }
        self.overturned.load(Ordering::Acquire)
    }
}

impl Blueprint {
    fn ahead(&self) -> Result<&[Plan; 2]> {
        let missing = || Error::Invalid("this run has no --overlap-update".into());
        self.ahead.as_ref().ok_or_else(missing)
    }
}

impl OffloadEngine {
    /// Runs the last micro-step of `model`, whose gradients carry `loss_scale`, and writes the update of each part ahead as
    /// soon as its gradient is there, with the step, hyper-parameters and scalar of `expected`.
    ///
    /// Then [`OffloadEngine::adopt`] makes it count where [`OffloadEngine::is_ahead`] says that it is the right one;
    /// [`OffloadEngine::update`] and [`OffloadEngine::skip`] go on as if it had not been. Until one of them has returned,
    /// working weights in host memory may be those of the update.
    ///
    /// # Errors
    /// A run without `overlap_update`, and what the model or the drives report. The state on the drives is untouched.
    pub fn run_ahead(
        &mut self,
        model: &dyn ModelWork,
        loss_scale: f64,
        expected: &StepRecord,
    ) -> Result<Timeline> {
        self.check_follows(expected)?;
        self.refresh_weights()?;
        self.ahead = None;
        let [plan, _] = self.blueprint.ahead()?;
        let mut moves = Vec::with_capacity(self.layout().parts.len());
        for unit in &self.drives {
            moves.extend(unit.store.write_ahead(expected.step)?);
        }
        let work = AheadWork {
            gradients: GradientWork::new(self, plan, model, loss_scale),
            update: UpdateWork::with_moves(self, plan, expected, &moves, Begin::Intent),
            plan,
            model,
            overturned: AtomicBool::new(false),
        };
        let timeline = self.executor.run(&plan.graph, &work)?;
        let sums = work.update.sums();
        let complete = timeline.performed(&plan.graph).count() == plan.graph.tasks().len();
        self.ahead = complete.then(|| WrittenAhead { expected: expected.clone(), sums, moves });
        Ok(timeline)
    }

    /// Whether what was written ahead is the update that `record` asks for.
    pub fn is_ahead(&self, record: &StepRecord) -> bool {
        self.ahead.as_ref().is_some_and(|ahead| ahead.is(record))
    }

    /// Makes the update that was written ahead the one of `record`: intents on every drive, headers, commits.
    ///
    /// # Errors
    /// As [`OffloadEngine::update`], and when nothing or something else was written ahead. Data that was read wrongly is found
    /// before anything is recorded: then the state is still that of the step before.
    pub fn adopt(&mut self, record: &StepRecord) -> Result<Timeline> {
        self.check_follows(record)?;
        let Some(ahead) = self.ahead.take().filter(|ahead| ahead.is(record)) else {
            return Err(Error::Invalid(format!(
                "the update of step {} was not written ahead",
                record.step
            )));
        };
        let [_, plan] = self.blueprint.ahead()?;
        let mut work = UpdateWork::with_moves(self, plan, record, &ahead.moves, Begin::Ahead);
        work.set_sums(&ahead.sums);
        (0..self.layout().parts.len()).try_for_each(|part| work.verified(part).map(drop))?;
        let timeline = self.executor.run(&plan.graph, &work)?;
        self.step = record.step;
        self.weights_are_new();
        Ok(timeline)
    }
}
