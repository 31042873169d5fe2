//! What this machine reaches, for the description that the simulator reads. Only small measurements of single
//! operations: nothing of what is to be predicted from them.

mod host;
mod storage;

use std::path::PathBuf;

use nearfield_sim::fabric::{Drive, Host, Positive};

/// Measures the storage of `drives`, given as directories.
///
/// # Errors
/// No drive, no space, and what a drive reports.
pub fn drive(drives: &[PathBuf]) -> anyhow::Result<Drive> {
    storage::measure(drives)
}

/// Measures memory and update kernels on `threads` threads.
///
/// # Errors
/// Memory or threads that the system refuses.
pub fn host(threads: usize) -> anyhow::Result<Host> {
    host::measure(threads)
}

fn positive(value: f64) -> anyhow::Result<Positive> {
    Positive::try_from(value)
        .map_err(|error| anyhow::anyhow!("a measurement has no usable result: {error}"))
}
