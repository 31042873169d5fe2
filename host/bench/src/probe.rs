//! A quick look at one drive.

use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result};
use nearfield_runtime::io::{Direct, IoEngine, IoOptions, OpenMode};
use nearfield_runtime::memory::Arena;

use crate::scratch::ScratchDirectory;
use crate::values::{fill, median};

/// Bytes that are written and read.
const BYTES: u64 = 512 << 20;
/// Bytes of one transfer, which the engine cuts into requests.
const TRANSFER: u64 = 64 << 20;
const SMALL: u64 = 4096;
const SMALL_READS: u64 = 64;
const SEALS: usize = 9;

/// How files on a drive can be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Access {
    /// Alignment of direct I/O; `None` where there is none.
    pub alignment_bytes: Option<u64>,
}

/// What a drive reaches.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Speed {
    /// Large reads.
    pub read_bytes_per_second: f64,
    /// Large writes.
    pub write_bytes_per_second: f64,
    /// A read of 4 KiB, alone.
    pub small_read_seconds: f64,
    /// A write of 4 KiB and the flush after it.
    pub seal_seconds: f64,
}

/// Makes an empty file on a drive and removes it.
///
/// # Errors
/// What the drive reports.
pub fn access(drive: &Path) -> Result<Access> {
    let scratch = ScratchDirectory::in_each(std::slice::from_ref(&drive.to_path_buf()))?;
    let directory = scratch.first().context("no scratch directory")?;
    let engine = IoEngine::start("probe", &IoOptions::default())?;
    let file = engine.open(&directory.path().join("file"), OpenMode::Create)?;
    Ok(Access { alignment_bytes: file.direct().then(|| file.alignment()) })
}

/// Measures a drive for a second or two.
///
/// # Errors
/// What the drive reports, no space among it.
pub fn speed(drive: &Path) -> Result<Speed> {
    let scratch = ScratchDirectory::in_each(std::slice::from_ref(&drive.to_path_buf()))?;
    let directory = scratch.first().context("no scratch directory")?;
    let options = IoOptions { direct: Direct::Preferred, ..IoOptions::default() };
    let engine = IoEngine::start("probe", &options)?;
    let file = engine.open(&directory.path().join("file"), OpenMode::Create)?;
    file.reserve(BYTES)?;
    let arena = Arena::new("probe", TRANSFER, false)?;
    engine.register(&[&arena])?;
    let mut buffer = arena.allocate(TRANSFER)?;
    fill(&mut buffer);
    let offsets = || (0..BYTES).step_by(TRANSFER as usize);
    // The first pass allocates the file's blocks.
    offsets().try_for_each(|offset| engine.write(&file, offset, &buffer))?;
    engine.flush(&file)?;
    let begin = Instant::now();
    offsets().try_for_each(|offset| engine.write(&file, offset, &buffer))?;
    engine.flush(&file)?;
    let write = begin.elapsed().as_secs_f64();
    let begin = Instant::now();
    offsets().try_for_each(|offset| engine.read(&file, offset, &mut buffer))?;
    let read = begin.elapsed().as_secs_f64();
    let timed = |work: &mut dyn FnMut() -> nearfield_runtime::Result<()>| {
        let begin = Instant::now();
        work()?;
        anyhow::Ok(begin.elapsed().as_secs_f64())
    };
    let mut small = Vec::new();
    for index in 0..SMALL_READS {
        // Far apart, so that nothing is read ahead.
        let offset = index * (BYTES / SMALL_READS);
        small.push(timed(&mut || engine.read(&file, offset, &mut buffer[..SMALL as usize]))?);
    }
    let mut seals = Vec::new();
    for _ in 0..SEALS {
        seals.push(timed(&mut || {
            engine.write(&file, 0, &buffer[..SMALL as usize])?;
            engine.flush(&file)
        })?);
    }
    Ok(Speed {
        read_bytes_per_second: BYTES as f64 / read,
        write_bytes_per_second: BYTES as f64 / write,
        small_read_seconds: median(&small),
        seal_seconds: median(&seals),
    })
}
