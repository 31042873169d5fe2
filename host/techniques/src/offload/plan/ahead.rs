//! A step whose update begins while gradients are still on their way.
//!
//! A part is updated as soon as its gradient is on its drive, as if no gradient overflowed and the norm needed no
//! clipping; both are known only when the last gradient is there. New state goes to slots that are free from the start,
//! so the old state stays whole and nothing says yet that the new one counts. When the guess was right, [`adopt`] says so,
//! for all parts at once. When it was wrong, nothing is undone: the ordinary update runs, from the old state, over
//! whatever was written ahead.

use nearfield_runtime::Result;
use nearfield_runtime::graph::TaskId;
use nearfield_runtime::layout::Layout;

use super::gradient::{self, MicroStep, UnitShape};
use super::update::Planner;
use super::update_near::{Gates, LastUse, claim_local, overlapped_tasklet};
use super::{Plan, PlanBuilder};
use crate::offload::options::OffloadOptions;

/// The last micro-step of a step, with the update of each part behind its gradient.
///
/// On each drive the parts take turns in the order in which their gradients come. The state of the next one is read as
/// soon as the gradient of the one before is there. New weights replace the old ones in host memory once every unit that
/// reads them has done so for the last time.
///
/// # Errors
/// [`nearfield_runtime::Error::Graph`] if the graph is not valid, which is a defect.
pub fn gradients(layout: &Layout, options: &OffloadOptions, units: &[UnitShape]) -> Result<Plan> {
    let (begun, _) = gradient::begin(layout, options, units, MicroStep::Offload);
    let gradient::Begun { plan, written, weight_uses } = begun;
    let parts: Vec<usize> = written.iter().map(|&(part, _)| part).collect();
    let mut weights = readers(layout, units, &weight_uses);
    let mut planner = Planner::new(plan, layout, options, &parts);
    planner.plan.graph.phase("update");
    for drive in 0..layout.drives {
        claim_local(&mut planner, drive);
        let mut last = LastUse::default();
        let mut before = None;
        for &(part, gradient) in &written {
            if layout.parts[part].drive == drive {
                let state = before.replace(gradient).unwrap_or(gradient);
                let gates = Gates { gradient, state, weights: std::mem::take(&mut weights[part]) };
                overlapped_tasklet(&mut planner, part, &gates, &mut last);
            }
        }
    }
    planner.plan.build()
}

/// For each part the tasks that read its weights.
fn readers(
    layout: &Layout,
    units: &[UnitShape],
    weight_uses: &[(usize, TaskId)],
) -> Vec<Vec<TaskId>> {
    let mut readers = vec![Vec::new(); layout.parts.len()];
    for &(unit, task) in weight_uses {
        for &(start, elements) in &units[unit].reads {
            for part in layout.overlapping(start, elements) {
                readers[part].push(task);
            }
        }
    }
    readers
}

/// Makes all that was written ahead the state: intents on every drive, headers, commits.
///
/// # Errors
/// As [`gradients`].
pub fn adopt(layout: &Layout, options: &OffloadOptions) -> Result<Plan> {
    let parts: Vec<usize> = (0..layout.parts.len()).collect();
    let mut planner = Planner::new(PlanBuilder::default(), layout, options, &parts);
    planner.plan.graph.phase("update");
    let begin = planner.begin();
    planner.adopt(begin);
    planner.end(begin);
    planner.plan.build()
}
