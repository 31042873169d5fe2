//! The techniques of Nearfield. Each module turns a model's shape, options and a topology into task
//! graphs ([`nearfield_runtime::graph`]) and holds the work behind those tasks that needs no tensors.
#![deny(missing_docs)]

pub mod model;
pub mod offload;
