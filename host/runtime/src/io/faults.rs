//! Faults injected between the engine and the system, for tests: each one is an ordinary outcome of a drive.

use std::collections::VecDeque;
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

use parking_lot::Mutex;

use super::file::DriveFile;
use crate::error::{Error, Result};

/// Which requests a rule counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FaultOperation {
    /// Reads.
    Read,
    /// Writes.
    Write,
    /// Flushes.
    Flush,
    /// All of them.
    Any,
}

/// What happens to the request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FaultAction {
    /// It fails with this `errno`, and so does every later one that the rule matches.
    Fail(i32),
    /// Only half of it is transferred.
    Short,
    /// One bit of what it read is flipped.
    FlipBit,
    /// It is not carried out, nor is any later one, as if the process had been killed before it.
    Crash,
    /// The process kills itself with SIGKILL before it.
    Kill,
}

/// Acts on the `nth` request (from 1) of an operation on files whose name contains `file`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FaultRule {
    /// Which requests are counted.
    pub operation: FaultOperation,
    /// Which of them is hit, from 1.
    pub nth: u64,
    /// Part of the file's path; empty matches all.
    pub file: String,
    /// What happens.
    pub action: FaultAction,
}

impl FromStr for FaultRule {
    type Err = Error;

    /// Reads `operation:nth:action[@file]`, for example `write:5:ENOSPC@drive1/slots.nf`.
    fn from_str(text: &str) -> Result<Self> {
        let invalid = || Error::Invalid(format!("{text:?} is not operation:nth:action[@file]"));
        let (rule, file) = text.split_once('@').unwrap_or((text, ""));
        let fields: Vec<&str> = rule.split(':').collect();
        let [operation, nth, action] = fields[..] else { return Err(invalid()) };
        let operation = match operation {
            "read" => FaultOperation::Read,
            "write" => FaultOperation::Write,
            "flush" => FaultOperation::Flush,
            "any" => FaultOperation::Any,
            _ => return Err(invalid()),
        };
        let action = match action {
            "EIO" => FaultAction::Fail(libc::EIO),
            "ENOSPC" => FaultAction::Fail(libc::ENOSPC),
            "EROFS" => FaultAction::Fail(libc::EROFS),
            "ENODEV" => FaultAction::Fail(libc::ENODEV),
            "short" => FaultAction::Short,
            "flip" => FaultAction::FlipBit,
            "crash" => FaultAction::Crash,
            "kill" => FaultAction::Kill,
            _ => return Err(invalid()),
        };
        let nth = nth.parse().ok().filter(|&nth| nth > 0).ok_or_else(invalid)?;
        Ok(Self { operation, nth, file: file.to_owned(), action })
    }
}

/// Faults of one engine or of several that share it.
#[derive(Debug, Default)]
pub struct Faults {
    rules: Mutex<Vec<(FaultRule, u64)>>,
    requests: Mutex<u64>,
    crashed: AtomicBool,
    track: bool,
    unflushed: Mutex<VecDeque<Unflushed>>,
    next_id: AtomicU64,
}

/// What a write has replaced and no flush has covered yet.
#[derive(Debug)]
struct Unflushed {
    id: u64,
    /// Whether the write has completed; a flush covers only those that had when it began.
    landed: bool,
    file: DriveFile,
    offset: u64,
    before: Vec<u8>,
}

impl Faults {
    /// Faults by rule.
    pub fn new(rules: Vec<FaultRule>) -> Self {
        Self {
            rules: Mutex::new(rules.into_iter().map(|rule| (rule, 0)).collect()),
            ..Self::default()
        }
    }

    /// The same, and every write's pre-image is kept until a flush, so that [`Faults::power_cut`] can undo it.
    pub fn tracking(rules: Vec<FaultRule>) -> Self {
        Self { track: true, ..Self::new(rules) }
    }

    /// Requests seen so far.
    pub fn requests(&self) -> u64 {
        *self.requests.lock()
    }

    /// Whether a crash was injected.
    pub fn crashed(&self) -> bool {
        self.crashed.load(SeqCst)
    }

    /// Decides on one request before it is carried out.
    pub(super) fn before(
        &self,
        operation: FaultOperation,
        file: &DriveFile,
    ) -> Result<Option<FaultAction>> {
        *self.requests.lock() += 1;
        let path = file.path().to_string_lossy();
        let mut hit = None;
        for (rule, seen) in self.rules.lock().iter_mut() {
            let counts = rule.operation == FaultOperation::Any || rule.operation == operation;
            if !counts || !path.contains(&rule.file) {
                continue;
            }
            *seen += 1;
            // A drive that has failed stays failed; the other faults happen once.
            let lasting = matches!(rule.action, FaultAction::Fail(_)) && *seen > rule.nth;
            if *seen == rule.nth || lasting {
                hit = Some(rule.action);
            }
        }
        match hit {
            Some(FaultAction::Kill) => {
                // SAFETY: ends this process.
                unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
            }
            Some(FaultAction::Crash) => self.crashed.store(true, SeqCst),
            _ => {}
        }
        if self.crashed() {
            return Err(Error::Cancelled("injected crash".into()));
        }
        Ok(hit)
    }

    /// Keeps what a write is about to replace.
    ///
    /// Returns what the write is known by, or nothing without tracking.
    pub(super) fn will_write(
        &self,
        file: &DriveFile,
        offset: u64,
        length: usize,
    ) -> Result<Vec<u64>> {
        if !self.track {
            return Ok(Vec::new());
        }
        let mut before = vec![0; length];
        let plain = std::fs::File::open(file.path())
            .map_err(|source| Error::io("open", file.path(), 0, 0, source))?;
        let mut done = 0;
        while done < length {
            let read = std::os::unix::fs::FileExt::read_at(
                &plain,
                &mut before[done..],
                offset + done as u64,
            )
            .map_err(|source| Error::io("read", file.path(), offset, length as u64, source))?;
            if read == 0 {
                break;
            }
            done += read;
        }
        let id = self.next_id.fetch_add(1, SeqCst);
        let write = Unflushed { id, landed: false, file: file.clone(), offset, before };
        self.unflushed.lock().push_back(write);
        Ok(vec![id])
    }

    /// The writes known by `ids` have completed.
    pub(super) fn landed(&self, ids: &[u64]) {
        if ids.is_empty() {
            return;
        }
        for write in self.unflushed.lock().iter_mut().filter(|write| ids.contains(&write.id)) {
            write.landed = true;
        }
    }

    /// The writes that a flush of `file` covers if it begins now: those that have completed, through whatever handle.
    pub(super) fn written(&self, file: &DriveFile) -> Vec<u64> {
        let unflushed = self.unflushed.lock();
        let covered = unflushed.iter().filter(|write| write.landed && write.file.same_as(file));
        covered.map(|write| write.id).collect()
    }

    /// Forgets the pre-images of the writes that a flush has covered.
    pub(super) fn flushed(&self, covered: &[u64]) {
        self.unflushed.lock().retain(|write| !covered.contains(&write.id));
    }

    /// What a power cut leaves: of the writes that no flush has covered, each sector arrives or does not, as the
    /// seed decides. Call it when nothing is in flight.
    ///
    /// # Errors
    /// [`Error::Io`] when a pre-image cannot be put back.
    pub fn power_cut(&self, seed: u64) -> Result<()> {
        const SECTOR: usize = 512;
        let mut random = seed ^ 0x9e37_79b9_7f4a_7c15;
        let mut next = move || {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            random
        };
        let mut writes = self.unflushed.lock();
        while let Some(write) = writes.pop_back() {
            let path = write.file.path();
            let plain = std::fs::OpenOptions::new()
                .write(true)
                .open(path)
                .map_err(|source| Error::io("open", path, 0, 0, source))?;
            let fate = next() % 3;
            for (index, sector) in write.before.chunks(SECTOR).enumerate() {
                let lost = fate == 1 || (fate == 2 && next() % 2 == 0);
                let offset = write.offset + (index * SECTOR) as u64;
                if lost {
                    std::os::unix::fs::FileExt::write_all_at(&plain, sector, offset).map_err(
                        |source| Error::io("write", path, offset, SECTOR as u64, source),
                    )?;
                }
            }
            plain.sync_data().map_err(|source| Error::io("flush", path, 0, 0, source))?;
        }
        Ok(())
    }
}
