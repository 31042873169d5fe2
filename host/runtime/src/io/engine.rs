//! The engine of one drive.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use serde::{Deserialize, Serialize};

use super::faults::Faults;
use super::file::{Direct, DriveFile, OpenMode};
use super::job::{Job, Kind};
use super::threads::ThreadPool;
use super::uring::{self, Ring};
use crate::error::{Error, Result};
use crate::memory::Arena;

/// The kernel cuts requests above this size.
const REQUEST_BYTES_MAX: u32 = 0x7fff_f000;

/// How requests reach the system.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Backend {
    /// `io_uring`, or threads where it is denied.
    Auto,
    /// `io_uring` or an error.
    Uring,
    /// Threads.
    Threads,
}

/// How an engine works.
#[derive(Debug, Clone)]
pub struct IoOptions {
    /// Requests in flight.
    pub queue_depth: u32,
    /// Bytes of one request; transfers are cut into blocks of this size.
    pub block_bytes: u32,
    /// Whether to bypass the page cache.
    pub direct: Direct,
    /// How requests reach the system.
    pub backend: Backend,
    /// Faults to inject.
    pub faults: Option<Arc<Faults>>,
}

impl Default for IoOptions {
    fn default() -> Self {
        Self {
            queue_depth: 32,
            block_bytes: 4 << 20,
            direct: Direct::Preferred,
            backend: Backend::Auto,
            faults: None,
        }
    }
}

/// What an engine has done so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct IoStats {
    /// Bytes read by completed transfers.
    pub bytes_read: u64,
    /// Bytes written by completed transfers.
    pub bytes_written: u64,
    /// Completed transfers.
    pub transfers: u64,
    /// Completed flushes.
    pub flushes: u64,
}

/// Carries out transfers of one drive for many callers at once; each caller blocks until its own is done.
#[derive(Debug)]
pub struct IoEngine {
    driver: Driver,
    direct: Direct,
    block_bytes: usize,
    bytes_read: AtomicU64,
    bytes_written: AtomicU64,
    transfers: AtomicU64,
    flushes: AtomicU64,
    warned_buffered: AtomicBool,
}

#[derive(Debug)]
enum Driver {
    Uring(Ring),
    Threads(ThreadPool),
}

impl IoEngine {
    /// Starts an engine; `name` becomes part of its threads' names.
    ///
    /// # Errors
    /// [`Error::Invalid`] when `io_uring` is required and not to be had, or options are out of range.
    pub fn start(name: &str, options: &IoOptions) -> Result<Arc<Self>> {
        let block_bytes = options.block_bytes.min(REQUEST_BYTES_MAX) / 4096 * 4096;
        if block_bytes == 0 || options.queue_depth == 0 {
            return Err(Error::Invalid(format!(
                "queue depth {} and block size {} must be at least 1 and 4096",
                options.queue_depth, options.block_bytes
            )));
        }
        let threads = || ThreadPool::start(name, options.queue_depth, options.faults.clone());
        let ring = || Ring::start(name, options.queue_depth, options.faults.clone());
        let driver = match options.backend {
            Backend::Threads => Driver::Threads(threads()?),
            Backend::Uring => Driver::Uring(ring().map_err(|error| {
                Error::Invalid(format!(
                    "io_uring cannot be used ({error}): {}; use --io-backend auto",
                    uring::cause(&error)
                ))
            })?),
            Backend::Auto => match ring() {
                Ok(ring) => Driver::Uring(ring),
                Err(error) => {
                    tracing::warn!(%error, "io_uring cannot be used: {}; using threads instead", uring::cause(&error));
                    Driver::Threads(threads()?)
                }
            },
        };
        Ok(Arc::new(Self {
            driver,
            direct: options.direct,
            block_bytes: block_bytes as usize,
            bytes_read: AtomicU64::new(0),
            bytes_written: AtomicU64::new(0),
            transfers: AtomicU64::new(0),
            flushes: AtomicU64::new(0),
            warned_buffered: AtomicBool::new(false),
        }))
    }

    /// Registers arenas with the kernel, once, before the first transfer. Returns whether that worked; without
    /// it transfers work as well, a little slower. The memory stays mapped as long as the engine lives.
    ///
    /// # Errors
    /// None at present; kept for devices whose memory must be registered.
    pub fn register(&self, arenas: &[&Arena]) -> Result<bool> {
        let Driver::Uring(ring) = &self.driver else { return Ok(false) };
        let memory: Vec<_> = arenas
            .iter()
            .filter(|arena| arena.bytes() > 0)
            .map(|arena| Arc::clone(arena.mapping()))
            .collect();
        if memory.is_empty() {
            return Ok(false);
        }
        match ring.register(memory) {
            Ok(()) => Ok(true),
            Err(error) => {
                let why = match error.raw_os_error() {
                    Some(libc::EBUSY) => "this engine has registered buffers before",
                    Some(libc::ENOMEM) => "the limit of locked memory is too low: raise ulimit -l",
                    _ => "the kernel refused it",
                };
                tracing::warn!(%error, "buffers could not be registered ({why}); transfers will be a little slower");
                Ok(false)
            }
        }
    }

    /// Opens a file of this drive.
    ///
    /// # Errors
    /// [`Error::Io`] with the path.
    pub fn open(&self, path: &Path, mode: OpenMode) -> Result<DriveFile> {
        let file = DriveFile::open(path, mode, self.direct)?;
        if self.direct == Direct::Preferred
            && !file.direct()
            && !self.warned_buffered.swap(true, Relaxed)
        {
            tracing::warn!(
                path = %path.display(),
                "this file system has no direct I/O; transfers go through the page cache"
            );
        }
        Ok(file)
    }

    /// Fills `buffer` from byte `offset`.
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::Truncated`] at the end of the file, [`Error::Misaligned`].
    pub fn read(&self, file: &DriveFile, offset: u64, buffer: &mut [u8]) -> Result<()> {
        self.transfer(Kind::Read, file, offset, buffer.as_mut_ptr() as usize, buffer.len())?;
        self.bytes_read.fetch_add(buffer.len() as u64, Relaxed);
        Ok(())
    }

    /// Writes `buffer` at byte `offset`.
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::Misaligned`].
    pub fn write(&self, file: &DriveFile, offset: u64, buffer: &[u8]) -> Result<()> {
        self.transfer(Kind::Write, file, offset, buffer.as_ptr() as usize, buffer.len())?;
        self.bytes_written.fetch_add(buffer.len() as u64, Relaxed);
        Ok(())
    }

    /// Makes completed writes durable (`fdatasync`).
    ///
    /// # Errors
    /// [`Error::Io`]; what had been written before is then not to be relied on.
    pub fn flush(&self, file: &DriveFile) -> Result<()> {
        self.run(Job::new(Kind::Flush, file, 0, 0, 0, 1))?;
        self.flushes.fetch_add(1, Relaxed);
        Ok(())
    }

    /// What it has done so far.
    pub fn stats(&self) -> IoStats {
        IoStats {
            bytes_read: self.bytes_read.load(Relaxed),
            bytes_written: self.bytes_written.load(Relaxed),
            transfers: self.transfers.load(Relaxed),
            flushes: self.flushes.load(Relaxed),
        }
    }

    /// `io_uring` or `threads`.
    pub fn backend(&self) -> &'static str {
        match self.driver {
            Driver::Uring(_) => "io_uring",
            Driver::Threads(_) => "threads",
        }
    }

    fn transfer(
        &self,
        kind: Kind,
        file: &DriveFile,
        offset: u64,
        address: usize,
        length: usize,
    ) -> Result<()> {
        if length == 0 {
            return Ok(());
        }
        file.check(kind.name(), offset, address, length)?;
        self.run(Job::new(kind, file, offset, address, length, self.block_bytes))?;
        self.transfers.fetch_add(1, Relaxed);
        Ok(())
    }

    fn run(&self, job: Arc<Job>) -> Result<()> {
        match &self.driver {
            Driver::Uring(ring) => ring.submit(Arc::clone(&job)),
            Driver::Threads(pool) => pool.submit(Arc::clone(&job)),
        }
        job.wait()
    }
}

#[cfg(test)]
#[path = "engine_tests.rs"]
mod tests;
