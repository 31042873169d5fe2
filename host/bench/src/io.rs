//! The storage engine.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use anyhow::ensure;
use nearfield_runtime::Result;
use nearfield_runtime::io::limit::RawLimit;
use nearfield_runtime::io::{DriveFile, IoEngine, IoOptions, OpenMode};
use nearfield_runtime::memory::{Arena, Region};
use serde::Serialize;

use crate::output::Output;
use crate::scratch::ScratchDirectory;
use crate::values::{bytes, fill, median};

/// Bytes of one call to the engine, of the order of a subgroup's variable.
const CALL_BYTES: u64 = 64 << 20;
/// Everything is a multiple of this.
const UNIT_BYTES: u64 = 4096;

/// Flags of `nearfield bench io`.
#[derive(Debug, Clone, clap::Args)]
pub struct IoArgs {
    /// Drive directory; once for each drive, which are used at the same time
    #[arg(long, required = true)]
    drive: Vec<PathBuf>,
    /// Bytes read, and bytes written, on all drives together
    #[arg(long, default_value = "1GiB", value_parser = bytes)]
    bytes: u64,
    /// Times that each is measured
    #[arg(long, default_value_t = 3)]
    rounds: u32,
    /// Requests in flight on each drive
    #[arg(long)]
    queue_depth: Option<u32>,
    /// Bytes of one request
    #[arg(long, value_parser = bytes)]
    block_size: Option<u64>,
    /// Print JSON, one object a line
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report {
    kind: &'static str,
    bytes_read: u64,
    bytes_written: u64,
    seconds: f64,
    gb_per_second: f64,
    limit_seconds: f64,
    limit_gb_per_second: f64,
    ratio: f64,
    limit_request_bytes: u64,
    limit_depth: u32,
    backend: &'static str,
}

/// One drive with its engine, files and memory.
struct Drive {
    engine: Arc<IoEngine>,
    source: DriveFile,
    target: DriveFile,
    /// For reads and for writes.
    buffers: [Region; 2],
    bytes: u64,
}

impl Drive {
    fn new(directory: &std::path::Path, options: &IoOptions, bytes: u64) -> Result<Self> {
        let engine = IoEngine::start("bench", options)?;
        let arena = Arena::new("benchmark transfers", 2 * CALL_BYTES, false)?;
        engine.register(&[&arena])?;
        let create = |name: &str| {
            let file = engine.open(&directory.join(name), OpenMode::Create)?;
            file.reserve(bytes)?;
            Ok(file)
        };
        let (source, target) = (create("source")?, create("target")?);
        let mut buffers = [arena.allocate(CALL_BYTES)?, arena.allocate(CALL_BYTES)?];
        fill(&mut buffers[1]);
        let drive = Self { engine, source, target, buffers, bytes };
        for file in [&drive.source, &drive.target] {
            drive.write(file, &drive.buffers[1])?;
            drive.engine.flush(file)?;
        }
        Ok(drive)
    }

    fn write(&self, file: &DriveFile, buffer: &[u8]) -> Result<()> {
        pieces(self.bytes)
            .try_for_each(|(offset, length)| self.engine.write(file, offset, &buffer[..length]))
    }

    /// Reads, writes, or does both at once; two calls are in flight on each side, as in a pipelined step.
    fn transfer(&mut self, read: bool, write: bool) -> Result<()> {
        let Self { engine, source, target, buffers: [input, output], bytes } = self;
        let (engine, bytes, output) = (&*engine, *bytes, &**output);
        let middle = input.len() / 2;
        let (first, second) = input.split_at_mut(middle);
        std::thread::scope(|scope| {
            let mut threads = Vec::new();
            for (half, buffer) in [first, second].into_iter().enumerate() {
                let (source, target) = (&*source, &*target);
                if read {
                    threads.push(scope.spawn(move || {
                        halves(bytes, half).try_for_each(|(offset, length)| {
                            engine.read(source, offset, &mut buffer[..length])
                        })
                    }));
                }
                if write {
                    threads.push(scope.spawn(move || {
                        halves(bytes, half).try_for_each(|(offset, length)| {
                            engine.write(target, offset, &output[..length])
                        })
                    }));
                }
            }
            threads.into_iter().try_for_each(|thread| match thread.join() {
                Ok(result) => result,
                Err(panic) => std::panic::resume_unwind(panic),
            })
        })
    }
}

/// `(offset, length)` of calls over `bytes` bytes.
fn pieces(bytes: u64) -> impl Iterator<Item = (u64, usize)> {
    calls(bytes, CALL_BYTES)
}

/// Every second call of half the size, beginning with number `half`.
fn halves(bytes: u64, half: usize) -> impl Iterator<Item = (u64, usize)> {
    calls(bytes, CALL_BYTES / 2).skip(half).step_by(2)
}

fn calls(bytes: u64, call_bytes: u64) -> impl Iterator<Item = (u64, usize)> {
    (0..bytes.div_ceil(call_bytes)).map(move |call| {
        let offset = call * call_bytes;
        (offset, call_bytes.min(bytes - offset) as usize)
    })
}

/// Measures and prints.
pub fn run(args: &IoArgs) -> anyhow::Result<()> {
    ensure!(args.rounds > 0, "--rounds must be at least 1");
    let out = Output { json: args.json };
    let scratch = ScratchDirectory::in_each(&args.drive)?;
    let paths: Vec<PathBuf> = scratch.iter().map(|one| one.path().to_path_buf()).collect();
    let count = paths.len() as u64;
    let share = args.bytes.div_ceil(count).next_multiple_of(UNIT_BYTES);
    let defaults = IoOptions::default();
    let block_bytes = args.block_size.map(|bytes| u32::try_from(bytes).unwrap_or(u32::MAX));
    let options = IoOptions {
        queue_depth: args.queue_depth.unwrap_or(defaults.queue_depth),
        block_bytes: block_bytes.unwrap_or(defaults.block_bytes),
        ..defaults
    };
    let mut drives =
        paths.iter().map(|path| Drive::new(path, &options, share)).collect::<Result<Vec<_>>>()?;
    for (kind, read, write) in
        [("read", true, false), ("write", false, true), ("mixed", true, true)]
    {
        let bytes = |side: bool| if side { share * count } else { 0 };
        let mut limit = RawLimit::new(&paths, bytes(read), bytes(write))?;
        let pattern = limit.find_pattern()?;
        let mut limits = vec![limit.run_pattern(pattern)?];
        let mut times = Vec::new();
        for _ in 0..args.rounds {
            let begin = Instant::now();
            std::thread::scope(|scope| {
                let threads: Vec<_> = drives
                    .iter_mut()
                    .map(|drive| scope.spawn(move || drive.transfer(read, write)))
                    .collect();
                threads.into_iter().try_for_each(|thread| match thread.join() {
                    Ok(result) => result,
                    Err(panic) => std::panic::resume_unwind(panic),
                })
            })?;
            times.push(begin.elapsed().as_secs_f64());
            limits.push(limit.run_pattern(pattern)?);
        }
        let (seconds, limit_seconds) = (median(&times), median(&limits));
        let gigabytes = (bytes(read) + bytes(write)) as f64 / 1e9;
        let report = Report {
            kind,
            bytes_read: bytes(read),
            bytes_written: bytes(write),
            seconds,
            gb_per_second: gigabytes / seconds,
            limit_seconds,
            limit_gb_per_second: gigabytes / limit_seconds,
            ratio: limit_seconds / seconds,
            limit_request_bytes: pattern.request_bytes,
            limit_depth: pattern.depth,
            backend: drives[0].engine.backend(),
        };
        out.print(kind, &report)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_cover_every_byte_once() {
        for bytes in [1, CALL_BYTES / 2, CALL_BYTES, 5 * CALL_BYTES / 2 + 7] {
            let mut both: Vec<_> = halves(bytes, 0).chain(halves(bytes, 1)).collect();
            both.sort_unstable();
            for calls in [both, pieces(bytes).collect()] {
                let end = calls.iter().fold(0, |end, &(offset, length)| {
                    assert_eq!(offset, end);
                    end + length as u64
                });
                assert_eq!(end, bytes);
            }
        }
    }

    #[test]
    fn a_small_measurement_runs_on_two_drives_and_leaves_nothing_behind() {
        let root = tempfile::tempdir().unwrap();
        let args = IoArgs {
            drive: vec![root.path().join("a"), root.path().join("b")],
            bytes: 3 << 20,
            rounds: 1,
            queue_depth: Some(4),
            block_size: None,
            json: false,
        };
        run(&args).unwrap();
        for drive in &args.drive {
            assert_eq!(std::fs::read_dir(drive).unwrap().count(), 0);
        }
    }
}
