//! Task graphs in virtual time.
//!
//! The graph that the runtime's threaded executor runs for real is run here by a [`VirtualExecutor`], whose clock is
//! that of a described machine: a [`CostModel`] says for each task how long it computes and over which [`Link`]s how
//! many bytes it moves. Concurrent transfers share links max-min fairly. Both executors return the same
//! [`nearfield_runtime::timeline::Timeline`].

mod cost;
mod executor;
mod network;

pub use cost::{Cost, CostModel, MAX_ROUTE};
pub use executor::{Simulation, VirtualExecutor};
pub use network::{Link, LinkId, LinkUse, Use};
