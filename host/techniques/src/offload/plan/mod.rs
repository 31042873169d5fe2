//! Task graphs of the offload technique, one for each half of a step.
//!
//! [`gradient`] covers forward, backward and the gradients' way to the drives; [`update`] covers the
//! optimizer. Between them the host decides from the overflow flag and the global norm whether and with
//! which scalar the update runs (Smart-Infinity, section 4). [`ahead`] does not wait for that.

mod action;
pub mod ahead;
#[cfg(test)]
mod ahead_tests;
pub mod formulas;
pub mod gradient;
mod pieces;
pub mod update;
pub(crate) mod update_host;
mod update_near;
#[cfg(test)]
mod update_tests;

pub use action::{Action, PieceRange};
pub use pieces::Pieces;

use nearfield_runtime::Result;
use nearfield_runtime::graph::{Graph, GraphBuilder, Op, ResourceId, TaskId};

/// A graph and what each of its tasks means to the technique; `actions[i]` belongs to task `i`.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The graph.
    pub graph: Graph,
    /// One action a task.
    pub actions: Vec<Action>,
}

/// Builds a graph and the meaning of its tasks side by side.
#[derive(Debug, Default)]
struct PlanBuilder {
    graph: GraphBuilder,
    actions: Vec<Action>,
}

impl PlanBuilder {
    /// Adds a task together with its action.
    fn task(
        &mut self,
        resource: ResourceId,
        op: Op,
        action: Action,
        label: String,
        after: &[TaskId],
    ) -> TaskId {
        self.actions.push(action);
        self.graph.task(resource, op, label, after)
    }

    fn build(self) -> Result<Plan> {
        Ok(Plan { graph: self.graph.build()?, actions: self.actions })
    }
}
