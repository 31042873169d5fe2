//! A caller's transfer, cut into blocks.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::{Condvar, Mutex};

use super::faults::{FaultAction, FaultOperation, Faults};
use super::file::DriveFile;
use crate::error::{Error, Result};

/// How often in a row the system may ask for a request to be made again (`EAGAIN`) before that is an error.
const RETRIES_MAX: u32 = 100;

/// What is done with a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Read,
    Write,
    Flush,
}

impl Kind {
    pub fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Flush => "flush",
        }
    }

    fn fault_operation(self) -> FaultOperation {
        match self {
            Self::Read => FaultOperation::Read,
            Self::Write => FaultOperation::Write,
            Self::Flush => FaultOperation::Flush,
        }
    }
}

/// One blocking call of a caller, who waits in [`Job::wait`] until nothing of it is in flight any more.
#[derive(Debug)]
pub(super) struct Job {
    pub kind: Kind,
    pub file: DriveFile,
    offset: u64,
    /// Address of the caller's buffer. It is valid until `wait` returns, which is what borrowed it.
    address: usize,
    length: usize,
    block_bytes: usize,
    state: Mutex<State>,
    finished: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// Bytes handed out in blocks. A flush counts as one byte.
    next: usize,
    in_flight: usize,
    error: Option<Error>,
}

/// A run of a job that is transferred by one request, and again for the rest of it when that falls short.
#[derive(Debug)]
pub(super) struct Block {
    pub job: Arc<Job>,
    start: usize,
    pub length: usize,
    pub done: usize,
    flip: bool,
    short: bool,
    /// `EAGAIN` answers in a row.
    retries: u32,
    /// What the fault plan knows this write, or the writes before this flush, by.
    tracked: Vec<u64>,
}

/// Puts a job in line: in order of arrival, but a flush goes first. It covers what has been written before, so there
/// is nothing in the line for it to wait for.
pub(super) fn enqueue(line: &mut VecDeque<Arc<Job>>, job: Arc<Job>) {
    if job.kind == Kind::Flush {
        line.push_front(job);
    } else {
        line.push_back(job);
    }
}

impl Job {
    pub fn new(
        kind: Kind,
        file: &DriveFile,
        offset: u64,
        address: usize,
        length: usize,
        block_bytes: usize,
    ) -> Arc<Self> {
        let length = if kind == Kind::Flush { 1 } else { length };
        // Every block must begin where direct I/O can.
        let alignment = file.alignment() as usize;
        let block_bytes = (block_bytes / alignment).max(1) * alignment;
        Arc::new(Self {
            kind,
            file: file.clone(),
            offset,
            address,
            length,
            block_bytes,
            state: Mutex::default(),
            finished: Condvar::new(),
        })
    }

    /// The next block, if one is left and nothing has failed.
    pub fn next_block(self: &Arc<Self>) -> Option<Block> {
        let mut state = self.state.lock();
        if state.error.is_some() || state.next == self.length {
            return None;
        }
        let start = state.next;
        let length = self.block_bytes.min(self.length - start);
        state.next += length;
        state.in_flight += 1;
        Some(Block {
            job: Arc::clone(self),
            start,
            length,
            done: 0,
            flip: false,
            short: false,
            retries: 0,
            tracked: Vec::new(),
        })
    }

    /// Whether no block will follow.
    pub fn exhausted(&self) -> bool {
        let state = self.state.lock();
        state.error.is_some() || state.next == self.length
    }

    /// Ends the job without carrying out what is left.
    pub fn cancel(&self, why: &str) {
        let mut state = self.state.lock();
        state.error.get_or_insert_with(|| Error::Cancelled(why.to_owned()));
        self.finished.notify_all();
    }

    /// Waits until all blocks are done or, after an error, until none is in flight.
    pub fn wait(&self) -> Result<()> {
        let mut state = self.state.lock();
        while state.in_flight > 0 || (state.error.is_none() && state.next < self.length) {
            self.finished.wait(&mut state);
        }
        match state.error.take() {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }

    fn settle(&self, outcome: Result<()>) {
        let mut state = self.state.lock();
        state.in_flight -= 1;
        if let Err(error) = outcome {
            state.error.get_or_insert(error);
        }
        if state.in_flight == 0 {
            self.finished.notify_all();
        }
    }
}

impl Block {
    /// Offset in the file of what is still to be transferred.
    pub fn file_offset(&self) -> u64 {
        self.job.offset + (self.start + self.done) as u64
    }

    /// Address of what is still to be transferred.
    pub fn address(&self) -> usize {
        self.job.address + self.start + self.done
    }

    /// Bytes to ask for now.
    pub fn ask(&self) -> usize {
        let left = self.length - self.done;
        let half = left / 2 / 4096 * 4096;
        if self.short && self.done == 0 && half > 0 { half } else { left }
    }

    /// Applies injected faults before the block's first request.
    pub fn prepare(&mut self, faults: &Faults) -> Result<()> {
        let job = &self.job;
        match faults.before(job.kind.fault_operation(), &job.file)? {
            Some(FaultAction::Fail(errno)) => {
                return Err(self.error(std::io::Error::from_raw_os_error(errno)));
            }
            Some(FaultAction::Short) => self.short = true,
            Some(FaultAction::FlipBit) => self.flip = true,
            _ => {}
        }
        match job.kind {
            Kind::Write => {
                self.tracked = faults.will_write(&job.file, self.file_offset(), self.length)?;
            }
            Kind::Flush => self.tracked = faults.written(&job.file),
            Kind::Read => {}
        }
        Ok(())
    }

    /// Takes the system's answer to one request. Returns the block when the rest must be asked for.
    pub fn answered(
        mut self,
        answer: std::io::Result<usize>,
        faults: Option<&Faults>,
    ) -> Option<Self> {
        let bytes = match answer {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => return Some(self),
            Err(error)
                if error.kind() == std::io::ErrorKind::WouldBlock && self.retries < RETRIES_MAX =>
            {
                self.retries += 1;
                return Some(self);
            }
            Err(error) => {
                let error = self.error(error);
                self.job.settle(Err(error));
                return None;
            }
        };
        if self.job.kind == Kind::Flush {
            if let Some(faults) = faults {
                faults.flushed(&self.tracked);
            }
            self.job.settle(Ok(()));
            return None;
        }
        if bytes == 0 {
            let error = self.nothing_transferred();
            self.job.settle(Err(error));
            return None;
        }
        self.done += bytes;
        self.retries = 0;
        if self.done < self.length {
            return Some(self);
        }
        if let Some(faults) = faults {
            faults.landed(&self.tracked);
        }
        if self.flip && self.job.kind == Kind::Read {
            // SAFETY: the byte lies in the caller's buffer, which is borrowed until the job has ended.
            unsafe { *((self.job.address + self.start + self.length / 2) as *mut u8) ^= 0x10 };
        }
        self.job.settle(Ok(()));
        None
    }

    /// Ends the block with an error that arose before any request.
    pub fn fail(self, error: Error) {
        self.job.settle(Err(error));
    }

    fn nothing_transferred(&self) -> Error {
        let file = &self.job.file;
        match (self.job.kind, file.len()) {
            (Kind::Read, Ok(actual)) => Error::Truncated {
                path: file.path().to_path_buf(),
                expected: self.job.offset + self.job.length as u64,
                actual,
            },
            _ => self.error(std::io::Error::from_raw_os_error(libc::EIO)),
        }
    }

    fn error(&self, source: std::io::Error) -> Error {
        let length =
            if self.job.kind == Kind::Flush { 0 } else { (self.length - self.done) as u64 };
        Error::io(self.job.kind.name(), self.job.file.path(), self.file_offset(), length, source)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::io::{Direct, OpenMode};

    fn file(directory: &tempfile::TempDir) -> DriveFile {
        DriveFile::open(&directory.path().join("f"), OpenMode::Create, Direct::Off).unwrap()
    }

    #[test]
    fn a_request_that_is_put_off_for_ever_is_an_error_at_last() {
        let directory = tempfile::tempdir().unwrap();
        let mut bytes = [0_u8; 16];
        let address = bytes.as_mut_ptr() as usize;
        let job = Job::new(Kind::Read, &file(&directory), 0, address, 16, 4096);
        let mut open = job.next_block();
        let mut answers = 0;
        while let Some(block) = open {
            answers += 1;
            assert!(answers <= RETRIES_MAX + 1);
            let again = std::io::Error::from_raw_os_error(libc::EAGAIN);
            open = block.answered(Err(again), None);
        }
        let error = job.wait().unwrap_err();
        assert!(
            matches!(&error, Error::Io { source, .. } if source.raw_os_error() == Some(libc::EAGAIN)),
            "{error}"
        );
    }

    #[test]
    fn a_flush_goes_before_transfers_that_wait() {
        let directory = tempfile::tempdir().unwrap();
        let file = file(&directory);
        let mut line = VecDeque::new();
        for kind in [Kind::Write, Kind::Read, Kind::Flush] {
            enqueue(&mut line, Job::new(kind, &file, 0, 0, 4096, 4096));
        }
        let kinds: Vec<_> = line.iter().map(|job| job.kind).collect();
        assert_eq!(kinds, [Kind::Flush, Kind::Write, Kind::Read]);
    }
}
