//! What an executor measured: when each task ran, and what follows from it.
//!
//! The threaded executor fills it with wall time, a virtual one with virtual time, so predicted and
//! measured are read with the same functions.

mod trace;
mod usage;

pub use trace::TraceFile;
pub use usage::{BusyOverTime, PhaseTime, ResourceUse};

use crate::graph::{Graph, Place, Task, TaskId, Traffic};

/// When one task ran, in seconds from the start of the step.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Span {
    /// Start.
    pub start_seconds: f64,
    /// End.
    pub end_seconds: f64,
    /// Which lane of its resource.
    pub lane: u32,
    /// Whether the task was left out, as there was no need for it any more: then nothing was moved or computed.
    pub left_out: bool,
}

impl Span {
    /// The span of a task on the first lane.
    pub const fn new(start_seconds: f64, end_seconds: f64) -> Self {
        Self { start_seconds, end_seconds, lane: 0, left_out: false }
    }
}

/// Start and end of each task of a graph; `spans[i]` belongs to task `i`.
#[derive(Debug, Clone, Default)]
pub struct Timeline {
    /// One span a task.
    pub spans: Vec<Span>,
}

impl Timeline {
    /// Time from the start of the step to the end of its last task.
    pub fn seconds(&self) -> f64 {
        self.spans.iter().map(|span| span.end_seconds).fold(0.0, f64::max)
    }

    /// One task's span.
    pub fn span(&self, task: TaskId) -> Span {
        self.spans[task.index()]
    }

    /// The tasks that were performed, with their spans.
    pub fn performed<'a>(&'a self, graph: &'a Graph) -> impl Iterator<Item = (&'a Task, Span)> {
        let spans = graph.tasks().iter().map(|task| (task, self.span(task.id)));
        spans.filter(|(_, span)| !span.left_out)
    }

    /// Data bytes that they have moved.
    pub fn traffic(&self, graph: &Graph) -> Traffic {
        self.performed(graph).map(|(task, _)| Traffic::of(&task.op)).sum()
    }

    /// The largest number of bytes held in `place` at a time, from the graph's memory claims.
    pub fn peak_bytes(&self, graph: &Graph, place: Place) -> u64 {
        let mut changes: Vec<(f64, i8, u64)> = Vec::new();
        for claim in graph.claims().iter().filter(|claim| claim.place == place) {
            let from = claim.from.map_or(0.0, |task| self.span(task).start_seconds);
            let to = claim.to.map_or(f64::INFINITY, |task| self.span(task).end_seconds);
            changes.push((from, 1, claim.bytes));
            changes.push((to, 0, claim.bytes));
        }
        // At equal times memory is given back before it is taken.
        changes.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        let (mut held, mut peak) = (0_u64, 0_u64);
        for (_, taken, bytes) in changes {
            held = if taken == 1 { held + bytes } else { held.saturating_sub(bytes) };
            peak = peak.max(held);
        }
        peak
    }
}
