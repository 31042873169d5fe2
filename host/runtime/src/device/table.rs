//! Buffers by number, whatever they are made of.

use std::ops::Range;
use std::sync::Arc;

use parking_lot::{ArcRwLockReadGuard, ArcRwLockWriteGuard, Mutex, RawRwLock, RwLock};

use super::{BufferId, BufferRange, LocalMemoryUse};
use crate::error::{Error, Result};

/// A buffer that is read.
pub type ReadGuard<B> = ArcRwLockReadGuard<RawRwLock, B>;
/// A buffer that is written.
pub type WriteGuard<B> = ArcRwLockWriteGuard<RawRwLock, B>;

/// Buffers of a device. The edges of a task graph keep uses of a buffer apart; the table checks that with locks it never
/// waits for.
#[derive(Debug)]
pub struct BufferTable<B> {
    name: String,
    entries: Mutex<Entries<B>>,
}

#[derive(Debug)]
struct Entries<B> {
    buffers: Vec<Option<Entry<B>>>,
    held_bytes: u64,
    usage: LocalMemoryUse,
}

#[derive(Debug)]
struct Entry<B> {
    buffer: Arc<RwLock<B>>,
    bytes: u64,
}

impl<B> BufferTable<B> {
    /// An empty table; `name` appears in errors.
    pub fn new(name: &str) -> Self {
        let usage = LocalMemoryUse::default();
        let entries = Mutex::new(Entries { buffers: Vec::new(), held_bytes: 0, usage });
        Self { name: name.to_owned(), entries }
    }

    /// Takes a buffer in, which counts as `bytes`.
    pub fn insert(&self, buffer: B, bytes: u64) -> BufferId {
        let entry = Some(Entry { buffer: Arc::new(RwLock::new(buffer)), bytes });
        let mut entries = self.entries.lock();
        entries.held_bytes += bytes;
        entries.usage.allocations += 1;
        entries.usage.peak_bytes = entries.usage.peak_bytes.max(entries.held_bytes);
        let index = match entries.buffers.iter().position(Option::is_none) {
            Some(index) => {
                entries.buffers[index] = entry;
                index
            }
            None => {
                entries.buffers.push(entry);
                entries.buffers.len() - 1
            }
        };
        BufferId(index as u32)
    }

    /// Frees a buffer.
    ///
    /// # Errors
    /// [`Error::Invalid`] for one that does not exist, [`Error::BufferInUse`] while it is used.
    pub fn release(&self, id: BufferId) -> Result<()> {
        let mut entries = self.entries.lock();
        let slot = entries.buffers.get_mut(id.0 as usize);
        let Some(Entry { buffer, bytes }) = slot.and_then(Option::take) else {
            return Err(self.unknown(id));
        };
        match Arc::try_unwrap(buffer) {
            Ok(_) => {
                entries.held_bytes -= bytes;
                Ok(())
            }
            Err(buffer) => {
                entries.buffers[id.0 as usize] = Some(Entry { buffer, bytes });
                Err(self.in_use(id))
            }
        }
    }

    /// Bytes and allocations so far.
    pub fn usage(&self) -> LocalMemoryUse {
        self.entries.lock().usage
    }

    /// A buffer for reading.
    ///
    /// # Errors
    /// [`Error::BufferInUse`] while another task writes it.
    pub fn read(&self, id: BufferId) -> Result<ReadGuard<B>> {
        self.find(id)?.try_read_arc().ok_or_else(|| self.in_use(id))
    }

    /// A buffer for writing.
    ///
    /// # Errors
    /// [`Error::BufferInUse`] while another task uses it.
    pub fn write(&self, id: BufferId) -> Result<WriteGuard<B>> {
        self.find(id)?.try_write_arc().ok_or_else(|| self.in_use(id))
    }

    /// Bounds of `range` in a buffer of `length` bytes.
    ///
    /// # Errors
    /// [`Error::Invalid`] when it does not fit.
    pub fn bounds(&self, range: BufferRange, length: usize) -> Result<Range<usize>> {
        match range.offset.checked_add(range.bytes) {
            Some(end) if end <= length as u64 => Ok(range.offset as usize..end as usize),
            _ => Err(Error::Invalid(format!(
                "{}: {} bytes at {} of buffer {} exceed its {length} bytes",
                self.name, range.bytes, range.offset, range.buffer.0
            ))),
        }
    }

    fn find(&self, id: BufferId) -> Result<Arc<RwLock<B>>> {
        let entries = self.entries.lock();
        let entry = entries.buffers.get(id.0 as usize).and_then(Option::as_ref);
        entry.map(|entry| Arc::clone(&entry.buffer)).ok_or_else(|| self.unknown(id))
    }

    fn unknown(&self, id: BufferId) -> Error {
        Error::Invalid(format!("{}: buffer {} does not exist", self.name, id.0))
    }

    fn in_use(&self, id: BufferId) -> Error {
        Error::BufferInUse { what: format!("{}: buffer {}", self.name, id.0) }
    }
}
