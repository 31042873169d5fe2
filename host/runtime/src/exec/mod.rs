//! Executors: they run a [`Graph`] and return its [`Timeline`].

mod threaded;
mod workers;

pub use threaded::ThreadedExecutor;

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::error::{Error, Result};
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

    /// Whether there is no need for `task` any more. Asked when its turn has come; a task that is left out takes no time, and its
    /// span says so.
    fn leaves_out(&self, _: &Task) -> bool {
        false
    }
}

/// What became of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// It was done.
    Performed,
    /// It was not needed.
    LeftOut,
}

impl<F: Fn(&Task) -> Result<()> + Sync> Work for F {
    fn perform(&self, task: &Task) -> Result<()> {
        self(task)
    }
}

/// Performs one task, for executors.
///
/// # Errors
/// What `work` reports, and a panic in it, with the task's label.
pub fn perform(work: &dyn Work, task: &Task) -> Result<Outcome> {
    let perform = || {
        if work.leaves_out(task) {
            return Ok(Outcome::LeftOut);
        }
        work.perform(task).map(|()| Outcome::Performed)
    };
    match catch_unwind(AssertUnwindSafe(perform)) {
        Ok(Ok(outcome)) => Ok(outcome),
        Ok(Err(source)) => Err(Error::Task { label: task.label.clone(), source: Box::new(source) }),
        Err(panic) => {
            let message = panic
                .downcast_ref::<&str>()
                .map(|text| (*text).to_owned())
                .or_else(|| panic.downcast_ref::<String>().cloned())
                .unwrap_or_else(|| "no message".to_owned());
            Err(Error::Panic { label: task.label.clone(), message })
        }
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
