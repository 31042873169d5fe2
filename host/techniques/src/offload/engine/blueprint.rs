//! Everything about a run that is known before anything is made.

use nearfield_runtime::graph::Traffic;
use nearfield_runtime::layout::Layout;
use nearfield_runtime::store::{self, GradientFormat, StateSpec};
use nearfield_runtime::types::DType;
use nearfield_runtime::{Error, Result};

use super::budget::MemoryBudget;
use crate::offload::options::OffloadOptions;
use crate::offload::placement::{self, FlatModel};
use crate::offload::plan::gradient::{self, MicroStep, Paging, Staging, UnitShape};
use crate::offload::plan::{Plan, ahead, update};

/// Where everything goes, what a step does, and what it takes.
#[derive(Debug, Clone)]
pub struct Blueprint {
    /// Which part of the flat vector lies where.
    pub layout: Layout,
    /// The update.
    pub update: Plan,
    /// A micro-step, by [`MicroStep`].
    pub gradients: [Plan; 2],
    /// With [`OffloadOptions::overlap_update`]: the last micro-step with updates ahead, and what makes them count.
    pub ahead: Option<[Plan; 2]>,
    /// Buffers for gradients on their way.
    pub staging: Staging,
    /// What lies on drives and comes to host memory only while it is needed.
    pub paging: Paging,
    /// Memory of the runtime, by purpose.
    pub budget: MemoryBudget,
    /// Bytes of all units' outputs for one micro-batch.
    pub outputs_bytes: u64,
    spec: StateSpec,
}

impl Blueprint {
    /// The blueprint of a run of `model` on `drives` drives, with `units` in forward order.
    ///
    /// # Errors
    /// Options that contradict each other, and more than can be laid out.
    pub fn new(
        options: &OffloadOptions,
        model: &FlatModel,
        drives: u32,
        units: &[UnitShape],
    ) -> Result<Self> {
        Self::with_layout(placement::layout(model, options, drives)?, options, units)
    }

    /// The same for a layout that is there already.
    ///
    /// # Errors
    /// Options that contradict each other.
    pub fn with_layout(
        layout: Layout,
        options: &OffloadOptions,
        units: &[UnitShape],
    ) -> Result<Self> {
        options.validate()?;
        let parts: Vec<usize> = (0..layout.parts.len()).collect();
        let update = update::plan(&layout, options, &parts)?;
        let (accumulate, _) = gradient::plan(&layout, options, units, MicroStep::Accumulate)?;
        let (offload, staging) = gradient::plan(&layout, options, units, MicroStep::Offload)?;
        let paging = Paging::new(&layout, options, units);
        let ahead = if options.overlap_update {
            let gradients = ahead::gradients(&layout, options, units)?;
            Some([gradients, ahead::adopt(&layout, options)?])
        } else {
            None
        };
        let gradients = if options.compressed() {
            GradientFormat::TopK { keep: options.topk_keep, values: DType::Fp32 }
        } else {
            GradientFormat::Dense { dtype: options.gradient_dtype }
        };
        Ok(Self {
            spec: StateSpec {
                optimizer: options.optimizer,
                moments: options.moment_dtype,
                gradients,
                residual: options.error_feedback,
                ahead: options.overlap_update,
                layout: layout.clone(),
            },
            budget: MemoryBudget::new(&layout, options, staging, &paging),
            outputs_bytes: units.iter().map(|unit| unit.output_bytes).sum(),
            layout,
            update,
            gradients: [accumulate, offload],
            ahead,
            staging,
            paging,
        })
    }

    /// One micro-step.
    pub fn gradient(&self, step: MicroStep) -> &Plan {
        &self.gradients[usize::from(step == MicroStep::Offload)]
    }

    /// The graphs of a step that goes as expected, but for micro-steps before the last: gradients, then update.
    pub fn step_plans(&self) -> [&Plan; 2] {
        match &self.ahead {
            Some([gradients, adopt]) => [gradients, adopt],
            None => [self.gradient(MicroStep::Offload), &self.update],
        }
    }

    /// What the drives are told of the state.
    pub fn spec(&self) -> &StateSpec {
        &self.spec
    }

    /// Data bytes of one step with `accumulate` micro-steps.
    pub fn traffic(&self, accumulate: u32) -> Traffic {
        let each = self.gradient(MicroStep::Accumulate).graph.traffic();
        let accumulated = each.times(u64::from(accumulate.saturating_sub(1)));
        accumulated + self.step_plans().into_iter().map(|plan| plan.graph.traffic()).sum()
    }

    /// Bytes that the run takes on `drive`, whose direct I/O needs `alignment`.
    ///
    /// # Errors
    /// [`Error::Invalid`] when the layout is too large for one drive.
    pub fn drive_bytes(&self, drive: u32, alignment: u64) -> Result<u64> {
        let outputs = if self.paging.written > 0 {
            self.paging.activation_file_bytes(self.layout.drives)
        } else {
            0
        };
        store::bytes_on_drive(&self.spec, drive, alignment)?
            .checked_add(outputs)
            .ok_or_else(|| Error::Invalid("the state is larger than any drive".into()))
    }
}
