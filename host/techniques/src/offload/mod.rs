//! Optimizer state on drives, updated beside them (*Smart-Infinity*, HPCA 2024).

pub mod options;
pub mod placement;
pub mod plan;

pub use options::{OffloadOptions, Placement, System, Upstream};
pub use placement::{FlatModel, TensorRun};
