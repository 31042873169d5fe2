//! Task graphs in virtual time.
//!
//! The graph that the runtime's threaded executor runs for real is run here by a [`VirtualExecutor`], whose clock is
//! that of a described machine: a [`CostModel`] says for each task how long it computes and over which [`Link`]s how
//! many bytes it moves, and a [`fabric::Fabric`] is such a machine read from a file. Concurrent transfers share links
//! max-min fairly. Both executors return the same
//! [`nearfield_runtime::timeline::Timeline`]. Other simulators run the same graphs as [`chakra`] traces.

pub mod chakra;
mod cost;
mod executor;
pub mod fabric;
mod network;
pub mod validation;

pub use cost::{Cost, CostModel, MAX_ROUTE};
pub use executor::{Simulation, VirtualExecutor};
pub use network::{Link, LinkId, LinkUse, Use};
