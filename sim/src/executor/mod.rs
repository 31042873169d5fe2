//! The executor of virtual time.

mod rendezvous;
mod run;

use nearfield_runtime::exec::{self, Executor, Outcome, Work};
use nearfield_runtime::graph::{Graph, Task};
use nearfield_runtime::timeline::Timeline;
use nearfield_runtime::{Error, Result};

use crate::cost::CostModel;
use crate::network::{Link, LinkUse};

/// Runs graphs on a clock of its own.
///
/// Each resource takes its tasks in order of readiness (ties: graph order), as the threaded executor does, and has as
/// many in hand as the cost model says, one by default. Transfers share links. The same graph and machine give the same timeline, to the bit.
#[derive(Debug, Clone)]
pub struct VirtualExecutor<C> {
    costs: C,
}

/// What a run in virtual time has given.
#[derive(Debug, Clone)]
pub struct Simulation {
    /// Start and end of each task.
    pub timeline: Timeline,
    /// Use of each link, in the order of the cost model.
    pub links: Vec<LinkUse>,
}

impl<C: CostModel> VirtualExecutor<C> {
    /// An executor on the machine that `costs` describes.
    ///
    /// # Errors
    /// [`Error::Invalid`] when a link's capacity is not a positive number.
    pub fn new(costs: C) -> Result<Self> {
        for link in costs.links() {
            if !(link.capacity.is_finite() && link.capacity > 0.0) {
                let Link { name, capacity } = link;
                return Err(Error::Invalid(format!(
                    "link {name}: a capacity of {capacity} is not a positive number"
                )));
            }
        }
        Ok(Self { costs })
    }

    /// The machine.
    pub const fn costs(&self) -> &C {
        &self.costs
    }

    /// Runs `graph` without doing its work.
    ///
    /// # Errors
    /// What the cost model reports, with the task's label.
    pub fn simulate(&self, graph: &Graph) -> Result<Simulation> {
        run::run(&self.costs, graph, &mut |_| Ok(Outcome::Performed))
    }
}

impl<C: CostModel> Executor for VirtualExecutor<C> {
    /// Does the work of each task, one after the other, in the order in which they start in virtual time.
    fn run(&self, graph: &Graph, work: &dyn Work) -> Result<Timeline> {
        let mut perform = |task: &Task| exec::perform(work, task);
        Ok(run::run(&self.costs, graph, &mut perform)?.timeline)
    }
}
