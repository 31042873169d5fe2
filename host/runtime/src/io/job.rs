//! A caller's transfer, cut into blocks.

use std::sync::Arc;

use parking_lot::{Condvar, Mutex};

use super::faults::{FaultAction, FaultOperation, Faults};
use super::file::DriveFile;
use crate::error::{Error, Result};

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
    flush_mark: usize,
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
            flush_mark: 0,
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
            Kind::Write => faults.will_write(&job.file, self.file_offset(), self.length),
            Kind::Flush => {
                self.flush_mark = faults.flush_mark();
                Ok(())
            }
            Kind::Read => Ok(()),
        }
    }

    /// Takes the system's answer to one request. Returns the block when the rest must be asked for.
    pub fn answered(
        mut self,
        answer: std::io::Result<usize>,
        faults: Option<&Faults>,
    ) -> Option<Self> {
        let bytes = match answer {
            Ok(bytes) => bytes,
            Err(error)
                if matches!(
                    error.kind(),
                    std::io::ErrorKind::Interrupted | std::io::ErrorKind::WouldBlock
                ) =>
            {
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
                faults.flushed(&self.job.file, self.flush_mark);
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
        if self.done < self.length {
            return Some(self);
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
