//! What this machine reaches, for the description that the simulator reads. Only small measurements of single
//! operations: nothing of what is to be predicted from them.

mod host;
mod merge;
mod storage;

use std::path::{Path, PathBuf};

use anyhow::Context;
use nearfield_sim::fabric::{Drive, Host, Positive};

pub use merge::work;

/// Measures drives, memory and kernels, as often as it is asked to. Shared machines change their speed within seconds,
/// so it should be asked several times, with other measurements in between.
pub struct Calibration {
    storage: storage::Storage,
    threads: usize,
    drives: Vec<Drive>,
    hosts: Vec<Host>,
}

impl Calibration {
    /// Makes scratch files on the first of `drives`, given as directories; kernels will run on `threads` threads.
    ///
    /// # Errors
    /// No drive, no space, and what a drive reports.
    pub fn new(drives: &[PathBuf], threads: usize) -> anyhow::Result<Self> {
        let storage = storage::Storage::new(drives)?;
        Ok(Self { storage, threads, drives: Vec::new(), hosts: Vec::new() })
    }

    /// A directory for files of other measurements, removed in the end.
    pub fn directory(&self) -> &Path {
        self.storage.directory()
    }

    /// Measures everything once more.
    ///
    /// # Errors
    /// What a drive reports; memory or threads that the system refuses.
    pub fn measure(&mut self) -> anyhow::Result<()> {
        self.drives.push(self.storage.measure()?);
        self.hosts.push(host::measure(self.threads)?);
        Ok(())
    }

    /// The medians.
    ///
    /// # Errors
    /// Nothing was measured.
    pub fn finish(self) -> anyhow::Result<(Drive, Host)> {
        let drive = merge::drives(&self.drives)?.context("no drive was measured")?;
        let host = merge::hosts(&self.hosts)?.context("no kernel was measured")?;
        Ok((drive, host))
    }
}

/// A measured number.
///
/// # Errors
/// One that is not above 0.
pub fn positive(value: f64) -> anyhow::Result<Positive> {
    Positive::try_from(value)
        .map_err(|error| anyhow::anyhow!("a measurement has no usable result: {error}"))
}
