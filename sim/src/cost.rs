//! What tasks take.

use arrayvec::ArrayVec;
use nearfield_runtime::Result;
use nearfield_runtime::graph::{Graph, Resource, Task};

use crate::network::{Link, Use};

/// Most links on one route.
pub const MAX_ROUTE: usize = 12;

/// What one task takes: a time that nothing else changes, and after it a transfer that shares links with others.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Cost {
    /// Computation, launch, latency; in seconds.
    pub seconds: f64,
    /// Payload that flows after `seconds`; 0 for none.
    pub bytes: u64,
    /// The links that it flows over at once, and how much of each a byte takes.
    pub route: ArrayVec<Use, MAX_ROUTE>,
}

impl Cost {
    /// A fixed time.
    pub fn fixed(seconds: f64) -> Self {
        Self { seconds, ..Self::default() }
    }
}

/// A machine, as far as its speed goes.
pub trait CostModel {
    /// All links; [`Use::link`] counts in this list.
    fn links(&self) -> &[Link];

    /// How many tasks of a resource are in hand at a time, at least 1: with two, the latency of one is hidden behind the
    /// transfer of the other.
    fn lanes(&self, resource: &Resource) -> u32 {
        let _ = resource;
        1
    }

    /// What `task` takes.
    ///
    /// # Errors
    /// [`nearfield_runtime::Error::Invalid`] when the machine has no way to run it, for example no route between two
    /// places.
    fn cost(&self, graph: &Graph, task: &Task) -> Result<Cost>;
}
