//! Models, data and training loops of Nearfield over libtorch: the *work* behind the task graphs.
//!
//! A model is a flat vector of parameters ([`model::TensorList`]) cut into units ([`model::Unit`]: embedding, blocks, head) that
//! stream through the compute device one at a time ([`model::Model`]). Everything random (initial weights, batches, sampling)
//! comes from one counter-based generator, so a run is a pure function of its seed and nothing has to be saved to resume it.

#![deny(missing_docs)]

pub mod checkpoint;
pub mod data;
pub mod error;
pub mod exchange;
pub mod generate;
pub mod import;
pub mod measure;
pub mod memory;
pub mod model;
mod random;
pub mod saved;
pub mod scaler;
pub mod schedule;
pub mod trainer;

pub use error::{Error, Result};
