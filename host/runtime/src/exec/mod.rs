//! Executors: they run a [`Graph`] and return its [`Timeline`].

mod threaded;
mod workers;

pub use threaded::ThreadedExecutor;

use crate::error::Result;
use crate::graph::{Graph, Task};
use crate::timeline::Timeline;

/// The work behind the tasks of a graph, given by whoever runs it.
///
/// Several tasks are performed at once, from threads of the executor; the edges of the graph say which
/// never are. [`crate::graph::Op::Mark`] tasks are not performed.
pub trait Work: Sync {
    /// Does what `task` says and returns when it is done.
    ///
    /// # Errors
    /// Whatever went wrong; the executor adds the task's label, starts nothing more and waits for what runs.
    fn perform(&self, task: &Task) -> Result<()>;
}

impl<F: Fn(&Task) -> Result<()> + Sync> Work for F {
    fn perform(&self, task: &Task) -> Result<()> {
        self(task)
    }
}

/// Runs graphs.
pub trait Executor {
    /// Runs every task of `graph` once, in an order that its edges allow.
    ///
    /// # Errors
    /// The first error of `work`, as [`crate::Error::Task`] with the task's label; a panic in `work` is
    /// [`crate::Error::Panic`]. Tasks that had started are complete, no other was started.
    fn run(&self, graph: &Graph, work: &dyn Work) -> Result<Timeline>;
}
