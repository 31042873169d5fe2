//! Rates of one drive, through the engine that steps use.

use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Instant;

use anyhow::Context;
use nearfield_runtime::Result;
use nearfield_runtime::io::{BlockDevice, DriveFile, IoEngine, IoOptions, OpenMode};
use nearfield_runtime::memory::{Arena, Region};
use nearfield_sim::fabric::{Drive, Positive, SizePoint};

use super::positive;
use crate::scratch::ScratchDirectory;
use crate::values::{fill, median};

/// Sizes of calls that are measured.
const SIZES: [u64; 6] = [64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20];
/// Bytes of the scratch files.
const FILE_BYTES: u64 = 512 << 20;
/// Most bytes, and most calls, of one measurement.
const MOST_BYTES: u64 = 256 << 20;
const MOST_CALLS: u64 = 512;
/// Times that a header is made durable.
const SEALS: usize = 15;
/// Bytes of each transfer beside that.
const SEALED_BESIDE: u64 = 1 << 20;

struct Probe {
    engine: Arc<IoEngine>,
    source: DriveFile,
    target: DriveFile,
    /// Two for reads and two for writes: two calls are in flight on each side, as in a step.
    input: [Region; 2],
    output: [Region; 2],
    /// How far writes and reads have come in the files.
    position: u64,
}

impl Probe {
    fn new(directory: &Path) -> Result<Self> {
        let engine = IoEngine::start("calibrate", &IoOptions::default())?;
        let size = SIZES[SIZES.len() - 1];
        let arena = Arena::new("calibration", 4 * size, false)?;
        engine.register(&[&arena])?;
        let create = |name: &str| {
            let file = engine.open(&directory.join(name), OpenMode::Create)?;
            file.reserve(FILE_BYTES)?;
            Ok(file)
        };
        let (source, target) = (create("source")?, create("target")?);
        let input = [arena.allocate(size)?, arena.allocate(size)?];
        let mut output = [arena.allocate(size)?, arena.allocate(size)?];
        for region in &mut output {
            fill(region);
        }
        let probe = Self { engine, source, target, input, output, position: 0 };
        for file in [&probe.source, &probe.target] {
            for offset in (0..FILE_BYTES).step_by(size as usize) {
                probe.engine.write(file, offset, &probe.output[0])?;
            }
            probe.engine.flush(file)?;
        }
        Ok(probe)
    }

    /// Seconds of `calls` reads and as many writes of `size` bytes, of those that are wanted.
    fn run(&mut self, size: u64, calls: u64, read: bool, write: bool) -> Result<f64> {
        self.run_in(2, size, calls, read, write)
    }

    /// The same with `lanes` calls in flight on each side.
    fn run_in(
        &mut self,
        lanes: u64,
        size: u64,
        calls: u64,
        read: bool,
        write: bool,
    ) -> Result<f64> {
        let begin_at = self.position;
        self.position = (begin_at + size * calls) % FILE_BYTES;
        let offset = move |call: u64| (begin_at + call * size) % FILE_BYTES / size * size;
        let Self { engine, source, target, input, output, .. } = self;
        let (engine, source, target) = (&*engine, &*source, &*target);
        let begin = Instant::now();
        std::thread::scope(|scope| {
            let mut threads = Vec::new();
            for (lane, (input, output)) in (0..lanes).zip(input.iter_mut().zip(&*output)) {
                let calls = move || (lane..calls).step_by(lanes as usize);
                if read {
                    let input = &mut input[..size as usize];
                    threads.push(scope.spawn(move || {
                        calls().try_for_each(|call| engine.read(source, offset(call), input))
                    }));
                }
                if write {
                    let output = &output[..size as usize];
                    threads.push(scope.spawn(move || {
                        calls().try_for_each(|call| engine.write(target, offset(call), output))
                    }));
                }
            }
            threads.into_iter().try_for_each(|thread| match thread.join() {
                Ok(result) => result,
                Err(panic) => std::panic::resume_unwind(panic),
            })
        })?;
        Ok(begin.elapsed().as_secs_f64())
    }

    fn curve(&mut self, lanes: u64, read: bool) -> anyhow::Result<Vec<SizePoint>> {
        let points = SIZES.iter().map(|&size| {
            let calls = (MOST_BYTES / size).min(MOST_CALLS);
            let seconds = self.run_in(lanes, size, calls, read, !read)?;
            Ok(SizePoint {
                bytes: positive(size as f64)?,
                bytes_per_second: positive((size * calls) as f64 / seconds)?,
            })
        });
        points.collect()
    }

    /// Bytes that reads and writes of each size move in a second of the processor, all its cores together.
    fn host_time(&mut self) -> anyhow::Result<Vec<SizePoint>> {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let points = SIZES.iter().map(|&size| {
            let calls = (MOST_BYTES / size).min(MOST_CALLS);
            let begin = processor_seconds();
            self.run(size, calls, true, true)?;
            let seconds = (processor_seconds() - begin).max(1e-6) / cores as f64;
            Ok(SizePoint {
                bytes: positive(size as f64)?,
                bytes_per_second: positive((2 * size * calls) as f64 / seconds)?,
            })
        });
        points.collect()
    }

    /// Seconds of reading alone and writing alone that one second of both together is worth.
    fn mixed(&mut self) -> anyhow::Result<Positive> {
        let size = 16 << 20;
        let calls = MOST_BYTES / size;
        let read = self.run(size, calls, true, false)?;
        let both = self.run(size, calls, true, true)?;
        let write = self.run(size, calls, false, true)?;
        positive(((read + write) / both).clamp(1.0, 2.0))
    }

    /// Seconds until a header is durable while the next reads are already in flight, as in a step.
    fn seal(&mut self) -> anyhow::Result<Positive> {
        let Self { engine, source, target, input, output, .. } = self;
        let (engine, source, target, output) = (&*engine, &*source, &*target, &output[0]);
        let done = AtomicBool::new(false);
        let times = std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                let mut offset = 0;
                while !done.load(Relaxed) {
                    engine.read(source, offset, &mut input[0][..SEALED_BESIDE as usize])?;
                    offset = (offset + SEALED_BESIDE) % FILE_BYTES;
                }
                Ok(())
            });
            let seal = || {
                engine.write(target, 0, &output[..SEALED_BESIDE as usize])?;
                let begin = Instant::now();
                engine.write(target, 0, &output[..4096])?;
                engine.flush(target)?;
                Ok(begin.elapsed().as_secs_f64())
            };
            let times: Result<Vec<f64>> = (0..SEALS).map(|_| seal()).collect();
            done.store(true, Relaxed);
            match reader.join() {
                Ok(read) => read.and(times),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        })?;
        positive(median(&times))
    }
}

/// Processor time of this process so far, the kernel's share included.
fn processor_seconds() -> f64 {
    // SAFETY: the structure is plain data, and the call writes it.
    let usage = unsafe {
        let mut usage = std::mem::zeroed::<libc::rusage>();
        libc::getrusage(libc::RUSAGE_SELF, &mut usage);
        usage
    };
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 * 1e-6;
    seconds(usage.ru_utime) + seconds(usage.ru_stime)
}

/// Scratch files on the first drive, and what is known of all.
pub(super) struct Storage {
    probe: Probe,
    /// Disks behind the drives, where they share some.
    disks: Option<u32>,
    /// Removes the files in the end.
    scratch: Vec<ScratchDirectory>,
}

impl Storage {
    pub fn new(drives: &[PathBuf]) -> anyhow::Result<Self> {
        let scratch = ScratchDirectory::in_each(drives)?;
        let mut disks = BTreeSet::new();
        for one in &scratch {
            let look = || format!("cannot look at {}", one.path().display());
            // Partitions of one disk are one disk; what is on none is told apart by its file system.
            let name = match BlockDevice::of(one.path()).with_context(look)? {
                Some(device) => device.disks.join("+"),
                None => std::fs::metadata(one.path()).with_context(look)?.dev().to_string(),
            };
            disks.insert(name);
        }
        let first = scratch.first().context("calibration needs at least one --drive")?;
        Ok(Self {
            probe: Probe::new(first.path())?,
            disks: (disks.len() < drives.len()).then_some(disks.len() as u32),
            scratch,
        })
    }

    pub fn directory(&self) -> &Path {
        // There is a first: it holds the probe's files.
        self.scratch.first().map_or(Path::new("."), ScratchDirectory::path)
    }

    /// Measures once.
    pub fn measure(&mut self) -> anyhow::Result<Drive> {
        let probe = &mut self.probe;
        Ok(Drive {
            count_max: None,
            disks: self.disks,
            capacity_bytes: None,
            price_usd: None,
            read: probe.curve(2, true)?,
            write: probe.curve(2, false)?,
            read_alone: probe.curve(1, true)?,
            write_alone: probe.curve(1, false)?,
            host_time: probe.host_time()?,
            mixed_seconds_per_second: probe.mixed()?,
            seal_seconds: probe.seal()?,
            near: None,
        })
    }
}
