//! The card's buffers, by number.

use std::ops::Range;
use std::sync::Arc;

use nearfield_runtime::device::{BufferId, BufferRange, LocalMemoryUse, Reach};
use nearfield_runtime::{Error, Result};
use parking_lot::{ArcRwLockReadGuard, ArcRwLockWriteGuard, Mutex, RawRwLock, RwLock};

use super::work;
use crate::xrt::{Buffer, Card, Placement};

pub type ReadGuard = ArcRwLockReadGuard<RawRwLock, Buffer>;
pub type WriteGuard = ArcRwLockWriteGuard<RawRwLock, Buffer>;

/// Groups of banks: of what drives reach, and of the rest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Banks {
    pub drive: u32,
    pub kernels: u32,
}

/// Buffers of a card. The edges of a task graph keep uses of a buffer apart; locks that are never waited for check that.
#[derive(Debug)]
pub struct Buffers {
    name: String,
    table: Mutex<Table>,
    card: Card,
    banks: Banks,
}

#[derive(Debug, Default)]
struct Table {
    buffers: Vec<Option<Arc<RwLock<Buffer>>>>,
    held_bytes: u64,
    usage: LocalMemoryUse,
}

impl Buffers {
    pub fn new(drive: u32, card: Card, banks: Banks) -> Self {
        Self { name: format!("card of drive {drive}"), table: Mutex::default(), card, banks }
    }

    pub fn allocate(&self, bytes: u64, reach: Reach) -> Result<BufferId> {
        let (bank, placement) = match reach {
            Reach::Drive => (self.banks.drive, Placement::Bus),
            Reach::Kernels => (self.banks.kernels, Placement::Card),
        };
        let whole = bytes.max(1).next_multiple_of(4096) as usize;
        let mut buffer = self.card.allocate(whole, bank, placement).map_err(work)?;
        // A page of the window is only there for a drive once it was touched.
        buffer.as_mut_slice().fill(0);
        let buffer = Some(Arc::new(RwLock::new(buffer)));
        let mut table = self.table.lock();
        table.held_bytes += bytes;
        table.usage.allocations += 1;
        table.usage.peak_bytes = table.usage.peak_bytes.max(table.held_bytes);
        let index = match table.buffers.iter().position(Option::is_none) {
            Some(index) => {
                table.buffers[index] = buffer;
                index
            }
            None => {
                table.buffers.push(buffer);
                table.buffers.len() - 1
            }
        };
        Ok(BufferId(index as u32))
    }

    pub fn release(&self, buffer: BufferId) -> Result<()> {
        let mut table = self.table.lock();
        let slot = table.buffers.get_mut(buffer.0 as usize);
        let Some(taken) = slot.and_then(Option::take) else { return Err(self.unknown(buffer)) };
        match Arc::try_unwrap(taken) {
            Ok(freed) => {
                table.held_bytes -= freed.into_inner().len() as u64;
                Ok(())
            }
            Err(shared) => {
                table.buffers[buffer.0 as usize] = Some(shared);
                Err(self.in_use(buffer))
            }
        }
    }

    pub fn usage(&self) -> LocalMemoryUse {
        self.table.lock().usage
    }

    pub fn read(&self, buffer: BufferId) -> Result<ReadGuard> {
        self.find(buffer)?.try_read_arc().ok_or_else(|| self.in_use(buffer))
    }

    pub fn write(&self, buffer: BufferId) -> Result<WriteGuard> {
        self.find(buffer)?.try_write_arc().ok_or_else(|| self.in_use(buffer))
    }

    pub fn bounds(&self, range: BufferRange, length: usize) -> Result<Range<usize>> {
        match range.offset.checked_add(range.bytes) {
            Some(end) if end <= length as u64 => Ok(range.offset as usize..end as usize),
            _ => Err(Error::Invalid(format!(
                "{}: {} bytes at {} of buffer {} exceed its {length} bytes",
                self.name, range.bytes, range.offset, range.buffer.0
            ))),
        }
    }

    fn find(&self, buffer: BufferId) -> Result<Arc<RwLock<Buffer>>> {
        let table = self.table.lock();
        table.buffers.get(buffer.0 as usize).cloned().flatten().ok_or_else(|| self.unknown(buffer))
    }

    fn unknown(&self, buffer: BufferId) -> Error {
        Error::Invalid(format!("{}: buffer {} does not exist", self.name, buffer.0))
    }

    fn in_use(&self, buffer: BufferId) -> Error {
        Error::BufferInUse { what: format!("{}: buffer {}", self.name, buffer.0) }
    }
}
