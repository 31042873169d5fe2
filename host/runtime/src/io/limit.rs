//! The raw speed of drives: the fastest pattern of direct requests that is found for a number of bytes read and
//! written, on a plain ring of its own. What the engine and whole steps reach is compared to it.

use std::path::{Path, PathBuf};
use std::time::Instant;

use io_uring::{IoUring, opcode, squeue, types};
use serde::Serialize;

use super::file::{Direct, DriveFile, OpenMode};
use super::uring::cause;
use crate::error::{Error, Result};
use crate::layout::align_up;
use crate::memory::{Arena, Region};

/// Request sizes and depths that are tried.
const CANDIDATES: [Pattern; 9] = [
    Pattern::of(1, 16),
    Pattern::of(1, 64),
    Pattern::of(2, 8),
    Pattern::of(2, 32),
    Pattern::of(4, 4),
    Pattern::of(4, 8),
    Pattern::of(4, 32),
    Pattern::of(8, 4),
    Pattern::of(8, 16),
];
/// The largest product of size and depth among the candidates.
const BUFFER_BYTES: u64 = 128 << 20;
/// Bytes of one probe, reads and writes of all drives together.
const PROBE_BYTES: u64 = 256 << 20;
/// Rounds of probes; every round tries each candidate once, so that a drive that slows down slows all of them.
const ROUNDS: u32 = 2;
/// Everything is a multiple of this, which every drive accepts.
const UNIT_BYTES: u64 = 4096;

/// How requests are made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Pattern {
    /// Bytes of one request.
    pub request_bytes: u64,
    /// Requests in flight on each drive.
    pub depth: u32,
}

impl Pattern {
    const fn of(mebibytes: u64, depth: u32) -> Self {
        Self { request_bytes: mebibytes << 20, depth }
    }
}

/// A scratch file, removed when this is dropped.
#[derive(Debug)]
struct Scratch {
    file: DriveFile,
    path: PathBuf,
}

impl Scratch {
    fn create(directory: &Path, name: &str, bytes: u64) -> Result<Self> {
        let path = directory.join(format!(".nearfield-limit-{}-{name}", std::process::id()));
        let file = DriveFile::open(&path, OpenMode::Create, Direct::Preferred)?;
        let scratch = Self { file, path };
        scratch.file.reserve(bytes)?;
        Ok(scratch)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_file(&self.path) {
            tracing::warn!(path = %self.path.display(), %error, "a scratch file could not be removed");
        }
    }
}

/// One drive: a file to read from, one to write to, and memory for its requests.
#[derive(Debug)]
struct Drive {
    source: Scratch,
    target: Scratch,
    buffer: Region,
}

/// Measures how fast drives take a number of bytes read and written at the same time.
pub struct RawLimit {
    ring: IoUring,
    /// Whether the buffers are registered with the ring, by drive.
    registered: bool,
    drives: Vec<Drive>,
    /// Bytes that each drive reads and writes.
    bytes: [u64; 2],
    /// How far probes have come in the files, so that no probe repeats the bytes of the one before.
    position: [u64; 2],
}

impl std::fmt::Debug for RawLimit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "RawLimit({} drives, {:?} bytes each)", self.drives.len(), self.bytes)
    }
}

impl RawLimit {
    /// Prepares scratch files in `directories`, one directory a drive, for `bytes_read` and `bytes_written` bytes
    /// on all of them together. The files are written in full first, so that reads reach the drive and writes
    /// allocate nothing; they are removed when this is dropped.
    ///
    /// # Errors
    /// [`Error::NoSpace`], [`Error::Io`], and [`Error::Invalid`] where `io_uring` cannot be used.
    pub fn new(directories: &[PathBuf], bytes_read: u64, bytes_written: u64) -> Result<Self> {
        let count = directories.len() as u64;
        if count == 0 || bytes_read + bytes_written == 0 {
            return Err(Error::Invalid(
                "a limit needs a drive directory, and bytes to read or to write".into(),
            ));
        }
        let bytes =
            [bytes_read, bytes_written].map(|all| align_up(all.div_ceil(count), UNIT_BYTES));
        let deepest = CANDIDATES.iter().map(|pattern| pattern.depth).max().unwrap_or(1);
        let entries = (deepest as usize * directories.len()).next_power_of_two();
        let refused = |error: std::io::Error| {
            Error::Invalid(format!(
                "the raw limit needs io_uring, which cannot be used ({error}): {}",
                cause(&error)
            ))
        };
        let ring =
            IoUring::new(u32::try_from(entries).unwrap_or(4096).min(4096)).map_err(refused)?;
        let arena = Arena::new("raw limit", BUFFER_BYTES * count, false)?;
        let mut drives = Vec::with_capacity(directories.len());
        for (index, directory) in directories.iter().enumerate() {
            let source = Scratch::create(directory, &format!("{index}-read"), bytes[0])?;
            let target = Scratch::create(directory, &format!("{index}-write"), bytes[1])?;
            let mut buffer = arena.allocate(BUFFER_BYTES)?;
            scramble(&mut buffer, index as u64);
            drives.push(Drive { source, target, buffer });
        }
        let buffers: Vec<libc::iovec> = drives
            .iter()
            .map(|drive| libc::iovec {
                iov_base: drive.buffer.as_ptr().cast_mut().cast(),
                iov_len: drive.buffer.len(),
            })
            .collect();
        // SAFETY: the regions live as long as the ring, and the kernel holds their pages itself.
        let registered = unsafe { ring.submitter().register_buffers(&buffers) }.is_ok();
        let mut limit = Self { ring, registered, drives, bytes, position: [0; 2] };
        limit.write_scratch()?;
        Ok(limit)
    }

    /// Bytes that one run reads and writes on all drives together: those asked for, rounded up to whole pages.
    pub fn bytes(&self) -> (u64, u64) {
        let count = self.drives.len() as u64;
        (self.bytes[0] * count, self.bytes[1] * count)
    }

    /// The fastest of the patterns tried, by the best of short probes with the same mix of reads and writes.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn find_pattern(&mut self) -> Result<Pattern> {
        let (read, written) = self.bytes();
        let share = (PROBE_BYTES as f64 / (read + written) as f64).min(1.0);
        let probe =
            self.bytes.map(|bytes| align_up((bytes as f64 * share) as u64, UNIT_BYTES).min(bytes));
        let mut best = [f64::INFINITY; CANDIDATES.len()];
        for _ in 0..ROUNDS {
            for (best, pattern) in best.iter_mut().zip(CANDIDATES) {
                for ((position, probe), bytes) in
                    self.position.iter_mut().zip(probe).zip(self.bytes)
                {
                    if *position + probe > bytes {
                        *position = 0;
                    }
                }
                let position = self.position;
                *best = best.min(self.transfer(pattern, position, probe, [false, true])?);
                for (position, probe) in self.position.iter_mut().zip(probe) {
                    *position += probe;
                }
            }
        }
        let fastest = best.iter().zip(CANDIDATES).min_by(|a, b| a.0.total_cmp(b.0));
        Ok(fastest.map_or(CANDIDATES[0], |(_, pattern)| pattern))
    }

    /// Reads and writes all the bytes in `pattern`, and returns the seconds it took.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn run_pattern(&mut self, pattern: Pattern) -> Result<f64> {
        self.transfer(pattern, [0; 2], self.bytes, [false, true])
    }

    /// Writes both files of each drive in full and makes them durable.
    fn write_scratch(&mut self) -> Result<()> {
        self.transfer(Pattern::of(4, 16), [0; 2], self.bytes, [true, true])?;
        for drive in &self.drives {
            for scratch in [&drive.source, &drive.target] {
                let error = |source| Error::io("flush", &scratch.path, 0, 0, source);
                scratch.file.flush().map_err(error)?;
            }
        }
        Ok(())
    }

    /// Moves `bytes` of both files of each drive from `start` on; `writes` tells which side is written.
    fn transfer(
        &mut self,
        pattern: Pattern,
        start: [u64; 2],
        bytes: [u64; 2],
        writes: [bool; 2],
    ) -> Result<f64> {
        let depth = u64::from(pattern.depth).min(BUFFER_BYTES / pattern.request_bytes).max(1);
        let count = self.drives.len() as u64;
        let mut progress = vec![[0_u64; 2]; self.drives.len()];
        let mut flying: Vec<Option<Request>> = vec![None; (depth * count) as usize];
        let mut ready: Vec<usize> = (0..flying.len()).rev().collect();
        let mut in_flight = 0_usize;
        let mut failure = None;
        let begin = Instant::now();
        loop {
            for place in std::mem::take(&mut ready) {
                let index = place / depth as usize;
                let next = flying[place].take().or_else(|| {
                    let done = &mut progress[index];
                    let side = behind(done, &bytes)?;
                    let length = pattern.request_bytes.min(bytes[side] - done[side]);
                    let offset = start[side] + done[side];
                    done[side] += length;
                    let slot = (place as u64 % depth) * pattern.request_bytes;
                    Some(Request { side, write: writes[side], offset, length, slot })
                });
                let Some(request) = next.filter(|_| failure.is_none()) else { continue };
                let entry = self.entry(index, &request).user_data(place as u64);
                // SAFETY: the request's part of the buffer belongs to its place in flight alone, and the
                // buffer and the file live until all requests have come back.
                while unsafe { self.ring.submission().push(&entry) }.is_err() {
                    self.ring.submit().map_err(ring_failed)?;
                }
                flying[place] = Some(request);
                in_flight += 1;
            }
            if in_flight == 0 {
                break;
            }
            match self.ring.submit_and_wait(1) {
                Err(error) if error.kind() != std::io::ErrorKind::Interrupted => {
                    return Err(ring_failed(error));
                }
                _ => {}
            }
            for completion in self.ring.completion() {
                let place = completion.user_data() as usize;
                in_flight -= 1;
                ready.push(place);
                let Some(request) = flying[place].take() else { continue };
                match answered(&request, completion.result()) {
                    Ok(rest) => flying[place] = rest,
                    Err(source) => {
                        let drive = &self.drives[place / depth as usize];
                        let scratch = [&drive.source, &drive.target][request.side];
                        let operation = if request.write { "write" } else { "read" };
                        let Request { offset, length, .. } = request;
                        failure.get_or_insert_with(|| {
                            Error::io(operation, &scratch.path, offset, length, source)
                        });
                    }
                }
            }
        }
        failure.map_or_else(|| Ok(begin.elapsed().as_secs_f64()), Err)
    }

    fn entry(&self, index: usize, request: &Request) -> squeue::Entry {
        let drive = &self.drives[index];
        let file = types::Fd([&drive.source, &drive.target][request.side].file.raw());
        let address = drive.buffer.as_ptr().wrapping_add(request.slot as usize).cast_mut();
        let (length, offset) = (request.length as u32, request.offset);
        match (request.write, self.registered) {
            (false, true) => {
                opcode::ReadFixed::new(file, address, length, index as u16).offset(offset).build()
            }
            (false, false) => opcode::Read::new(file, address, length).offset(offset).build(),
            (true, true) => {
                opcode::WriteFixed::new(file, address, length, index as u16).offset(offset).build()
            }
            (true, false) => opcode::Write::new(file, address, length).offset(offset).build(),
        }
    }
}

/// A request: which of a drive's two files, where in it, and where in the buffer.
#[derive(Debug, Clone, Copy)]
struct Request {
    side: usize,
    write: bool,
    offset: u64,
    length: u64,
    slot: u64,
}

/// The side that has done the smaller share of its bytes; `None` when both are done.
fn behind(done: &[u64; 2], bytes: &[u64; 2]) -> Option<usize> {
    let left = |side: usize| done[side] < bytes[side];
    match (left(0), left(1)) {
        (false, false) => None,
        (true, false) => Some(0),
        (false, true) => Some(1),
        (true, true) => {
            let share = |side: usize| u128::from(done[side]) * u128::from(bytes[1 - side]);
            Some(usize::from(share(1) < share(0)))
        }
    }
}

/// What is left of a request, given its completion.
fn answered(request: &Request, result: i32) -> std::io::Result<Option<Request>> {
    let done = match u64::try_from(result) {
        Err(_) => return Err(std::io::Error::from_raw_os_error(-result)),
        Ok(0) => return Err(std::io::ErrorKind::UnexpectedEof.into()),
        Ok(done) => done,
    };
    Ok((done < request.length).then(|| Request {
        offset: request.offset + done,
        length: request.length - done,
        slot: request.slot + done,
        ..*request
    }))
}

fn ring_failed(error: std::io::Error) -> Error {
    Error::Invalid(format!("io_uring failed while the limit was measured: {error}"))
}

/// Fills memory with bytes that no drive can compress.
fn scramble(buffer: &mut [u8], seed: u64) {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    for word in buffer.chunks_exact_mut(8) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        word.copy_from_slice(&state.to_le_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries(directory: &Path) -> usize {
        std::fs::read_dir(directory).unwrap().count()
    }

    #[test]
    fn scratch_files_are_written_in_full_and_removed() {
        let root = tempfile::tempdir().unwrap();
        let directories = [root.path().join("a"), root.path().join("b")];
        for directory in &directories {
            std::fs::create_dir(directory).unwrap();
        }
        let mut limit = match RawLimit::new(&directories, (9 << 20) + 5, 3 << 20) {
            Ok(limit) => limit,
            // Without io_uring there is no limit to measure, and the error says so.
            Err(Error::Invalid(message)) => return assert!(message.contains("io_uring")),
            Err(error) => panic!("{error}"),
        };
        let expected = align_up(((9 << 20) + 5_u64).div_ceil(2), UNIT_BYTES) * 2;
        assert_eq!(limit.bytes(), (expected, 3 << 20));
        let content = std::fs::read(&limit.drives[1].source.path).unwrap();
        assert_eq!(content.len() as u64, expected / 2);
        assert!(content.chunks(4096).all(|page| page.iter().any(|&byte| byte != 0)));
        let pattern = limit.find_pattern().unwrap();
        assert!(CANDIDATES.contains(&pattern));
        assert!(limit.run_pattern(pattern).unwrap() > 0.0);
        drop(limit);
        assert_eq!(directories.map(|directory| entries(&directory)), [0, 0]);
    }

    #[test]
    fn a_missing_directory_leaves_nothing_behind() {
        let root = tempfile::tempdir().unwrap();
        let directories = [root.path().to_path_buf(), root.path().join("missing")];
        assert!(RawLimit::new(&directories, 1 << 20, 1 << 20).is_err());
        assert_eq!(entries(root.path()), 0);
    }

    #[test]
    fn sides_advance_in_proportion_and_end_complete() {
        let bytes = [12, 4];
        let mut done = [0, 0];
        let mut order = Vec::new();
        while let Some(side) = behind(&done, &bytes) {
            done[side] += 1;
            order.push(side);
            let ahead = (done[0] as f64 / 12.0 - done[1] as f64 / 4.0).abs();
            assert!(ahead <= 0.25, "{done:?}");
        }
        assert_eq!((done, order.len()), (bytes, 16));
    }

    #[test]
    fn short_transfers_are_continued_and_failures_named() {
        let request = Request { side: 0, write: false, offset: 10, length: 8, slot: 2 };
        assert!(answered(&request, 8).unwrap().is_none());
        let rest = answered(&request, 3).unwrap().unwrap();
        assert_eq!((rest.offset, rest.length, rest.slot), (13, 5, 5));
        assert!(answered(&request, 0).is_err());
        assert_eq!(answered(&request, -libc::EIO).unwrap_err().raw_os_error(), Some(libc::EIO));
    }
}
