//! The runtime of Nearfield: what a step is made of, and how it runs next to the drives.
//!
//! A technique describes one step as a [`graph`]; an executor ([`exec`]) runs it and returns a
//! [`timeline`]. Below that lie the near-storage [`device`]s, the state [`store`] on each drive, the
//! [`io`] engine, optimizer [`kernels`] and gradient [`codec`]s. Nothing here knows of libtorch, CUDA or Python.
#![deny(missing_docs)]

pub mod codec;
pub mod device;
pub mod error;
pub mod exec;
pub mod graph;
pub mod io;
pub mod kernels;
pub mod layout;
pub mod memory;
pub mod store;
pub mod timeline;
pub mod types;

pub use error::{Error, Result};
