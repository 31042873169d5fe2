//! Optimizer state on drives, updated beside them (*Smart-Infinity*, HPCA 2024).

pub mod engine;
pub mod options;
pub mod placement;
pub mod plan;

pub use engine::{
    Blueprint, DeviceChoice, DeviceSource, EngineConfig, InitialState, MemoryBudget, ModelWork,
    OffloadEngine, WeightSource,
};
pub use options::{
    ActivationPlace, Encoder, Expansion, OffloadOptions, Placement, System, Upstream, WeightsPlace,
};
pub use placement::{FlatModel, TensorRun};
