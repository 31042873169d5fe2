//! Buffers in an arena, and the update kernel on them.

use std::sync::Arc;

use parking_lot::{ArcRwLockReadGuard, ArcRwLockWriteGuard, Mutex, RawRwLock, RwLock};

use super::{
    BufferId, BufferRange, CheckPairsCall, GradientBuffers, Kernels, Launch, LocalGradient,
    LocalMemoryUse, PairsCheck, UpdateCall,
};
use crate::error::{Error, Result};
use crate::kernels::UpdateSums;
use crate::memory::{Arena, Region};

type ReadGuard = ArcRwLockReadGuard<RawRwLock, Region>;
type WriteGuard = ArcRwLockWriteGuard<RawRwLock, Region>;

/// A set of buffers in one arena. The edges of a task graph keep uses of a buffer apart; the bank checks
/// that with locks it never waits for.
#[derive(Debug)]
pub struct BufferBank {
    name: String,
    arena: Arc<Arena>,
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    buffers: Vec<Option<Arc<RwLock<Region>>>>,
    held_bytes: u64,
    usage: LocalMemoryUse,
}

impl BufferBank {
    /// An empty bank; `name` appears in errors.
    pub fn new(name: &str, arena: Arc<Arena>) -> Self {
        Self { name: name.to_owned(), arena, table: Mutex::default() }
    }

    /// The arena its buffers come from.
    pub fn arena(&self) -> &Arc<Arena> {
        &self.arena
    }

    /// Allocates a buffer.
    ///
    /// # Errors
    /// [`Error::LocalMemory`] when the arena has not enough left.
    pub fn allocate(&self, bytes: u64) -> Result<BufferId> {
        let region = self.arena.allocate(bytes)?;
        let buffer = Some(Arc::new(RwLock::new(region)));
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

    /// Frees a buffer.
    ///
    /// # Errors
    /// [`Error::Invalid`] for one that does not exist, [`Error::BufferInUse`] while it is used.
    pub fn release(&self, buffer: BufferId) -> Result<()> {
        let mut table = self.table.lock();
        let slot = table.buffers.get_mut(buffer.0 as usize);
        let Some(taken) = slot.and_then(Option::take) else { return Err(self.unknown(buffer)) };
        match Arc::try_unwrap(taken) {
            Ok(region) => {
                table.held_bytes -= region.into_inner().len() as u64;
                Ok(())
            }
            Err(shared) => {
                table.buffers[buffer.0 as usize] = Some(shared);
                Err(self.in_use(buffer))
            }
        }
    }

    /// Bytes and allocations so far.
    pub fn usage(&self) -> LocalMemoryUse {
        self.table.lock().usage
    }

    /// A buffer for reading.
    ///
    /// # Errors
    /// [`Error::BufferInUse`] while another task writes it.
    pub fn read(&self, buffer: BufferId) -> Result<ReadGuard> {
        self.find(buffer)?.try_read_arc().ok_or_else(|| self.in_use(buffer))
    }

    /// A buffer for writing.
    ///
    /// # Errors
    /// [`Error::BufferInUse`] while another task uses it.
    pub fn write(&self, buffer: BufferId) -> Result<WriteGuard> {
        self.find(buffer)?.try_write_arc().ok_or_else(|| self.in_use(buffer))
    }

    /// Bounds of `range` in a buffer of `length` bytes.
    ///
    /// # Errors
    /// [`Error::Invalid`] when it does not fit.
    pub fn bounds(&self, range: BufferRange, length: usize) -> Result<std::ops::Range<usize>> {
        match range.offset.checked_add(range.bytes) {
            Some(end) if end <= length as u64 => Ok(range.offset as usize..end as usize),
            _ => Err(Error::Invalid(format!(
                "{}: {} bytes at {} of buffer {} exceed its {length} bytes",
                self.name, range.bytes, range.offset, range.buffer.0
            ))),
        }
    }

    /// Runs an update kernel on buffers of this bank.
    ///
    /// # Errors
    /// Buffers in use or too short.
    pub fn update(&self, call: &UpdateCall, kernels: &dyn Kernels) -> Result<UpdateSums> {
        let mut param = self.write(call.param)?;
        let mut exp_avg = call.exp_avg.map(|buffer| self.write(buffer)).transpose()?;
        let mut exp_avg_sq = call.exp_avg_sq.map(|buffer| self.write(buffer)).transpose()?;
        let mut weights = match call.weights {
            Some((buffer, dtype)) => Some((self.write(buffer)?, dtype)),
            None => None,
        };
        let (dense, indices, values, bounds);
        let gradient = match call.gradient {
            GradientBuffers::Dense(buffer, dtype) => {
                dense = self.read(buffer)?;
                LocalGradient::Dense(&dense, dtype)
            }
            GradientBuffers::Pairs { buffers, pairs } => {
                indices = self.read(buffers.indices)?;
                values = self.read(buffers.values)?;
                bounds = self.read(buffers.bounds)?;
                LocalGradient::Pairs { indices: &indices, values: &values, bounds: &bounds, pairs }
            }
        };
        kernels.update(Launch {
            optimizer: call.optimizer,
            segments: call.segments,
            first_element: call.first_element,
            elements: call.elements as usize,
            gradient,
            param: &mut param,
            exp_avg: exp_avg.as_deref_mut(),
            exp_avg_sq: exp_avg_sq.as_deref_mut(),
            moments: call.moments,
            dither: call.dither,
            weights: weights.as_mut().map(|(buffer, dtype)| (&mut **buffer, *dtype)),
        })
    }

    /// Checks kept pairs in buffers of this bank.
    ///
    /// # Errors
    /// Buffers in use or too short.
    pub fn check_pairs(&self, call: &CheckPairsCall, kernels: &dyn Kernels) -> Result<PairsCheck> {
        let indices = self.read(call.buffers.indices)?;
        let mut bounds = self.write(call.buffers.bounds)?;
        kernels.check_pairs(&indices, call.pairs, call.elements, &mut bounds)
    }

    fn find(&self, buffer: BufferId) -> Result<Arc<RwLock<Region>>> {
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
