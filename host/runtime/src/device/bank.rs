//! Buffers in an arena, and the update kernel on them.

use std::ops::Range;
use std::sync::Arc;

use super::table::{BufferTable, ReadGuard, WriteGuard};
use super::{
    BufferId, BufferRange, CheckPairsCall, GradientBuffers, Kernels, Launch, LocalGradient,
    LocalMemoryUse, PairsCheck, UpdateCall,
};
use crate::error::Result;
use crate::kernels::UpdateSums;
use crate::memory::{Arena, Region};

/// A set of buffers in one arena.
#[derive(Debug)]
pub struct BufferBank {
    arena: Arc<Arena>,
    table: BufferTable<Region>,
}

impl BufferBank {
    /// An empty bank; `name` appears in errors.
    pub fn new(name: &str, arena: Arc<Arena>) -> Self {
        Self { arena, table: BufferTable::new(name) }
    }

    /// The arena its buffers come from.
    pub fn arena(&self) -> &Arc<Arena> {
        &self.arena
    }

    /// Allocates a buffer.
    ///
    /// # Errors
    /// [`crate::Error::LocalMemory`] when the arena has not enough left.
    pub fn allocate(&self, bytes: u64) -> Result<BufferId> {
        Ok(self.table.insert(self.arena.allocate(bytes)?, bytes))
    }

    /// Frees a buffer.
    ///
    /// # Errors
    /// As [`BufferTable::release`].
    pub fn release(&self, buffer: BufferId) -> Result<()> {
        self.table.release(buffer)
    }

    /// Bytes and allocations so far.
    pub fn usage(&self) -> LocalMemoryUse {
        self.table.usage()
    }

    /// A buffer for reading.
    ///
    /// # Errors
    /// As [`BufferTable::read`].
    pub fn read(&self, buffer: BufferId) -> Result<ReadGuard<Region>> {
        self.table.read(buffer)
    }

    /// A buffer for writing.
    ///
    /// # Errors
    /// As [`BufferTable::write`].
    pub fn write(&self, buffer: BufferId) -> Result<WriteGuard<Region>> {
        self.table.write(buffer)
    }

    /// Bounds of `range` in a buffer of `length` bytes.
    ///
    /// # Errors
    /// As [`BufferTable::bounds`].
    pub fn bounds(&self, range: BufferRange, length: usize) -> Result<Range<usize>> {
        self.table.bounds(range, length)
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
}
