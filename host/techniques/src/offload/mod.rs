//! Optimizer state on drives, updated beside them (*Smart-Infinity*, HPCA 2024).

pub mod engine;
pub mod options;
pub mod placement;
pub mod plan;

pub use engine::{DeviceChoice, EngineConfig, MemoryBudget, ModelWork, OffloadEngine};
pub use options::{Encoder, OffloadOptions, Placement, System, Upstream};
pub use placement::{FlatModel, TensorRun};
