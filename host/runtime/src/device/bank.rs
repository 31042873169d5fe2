//! Buffers in an arena, and the update kernel on them.

use std::sync::Arc;

use parking_lot::{ArcRwLockReadGuard, ArcRwLockWriteGuard, Mutex, RawRwLock, RwLock};
use rayon::ThreadPool;

use super::{BufferId, BufferRange, DecompressCall, LocalMemoryUse, UpdateCall};
use crate::codec;
use crate::error::{Error, Result};
use crate::kernels::{self, GradientRef, Isa, Moments, UpdateSums, WeightsOut};
use crate::memory::{Arena, Region};
use crate::types::DType;

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

    /// Runs the update kernel on buffers of this bank.
    ///
    /// # Errors
    /// Buffers in use or too short.
    pub fn update(
        &self,
        call: &UpdateCall,
        isa: Isa,
        pool: Option<&ThreadPool>,
    ) -> Result<UpdateSums> {
        let elements = call.elements as usize;
        let mut param = self.write(call.param)?;
        let mut exp_avg = call.exp_avg.map(|buffer| self.write(buffer)).transpose()?;
        let mut exp_avg_sq = call.exp_avg_sq.map(|buffer| self.write(buffer)).transpose()?;
        let mut weights = match call.weights {
            Some((buffer, dtype)) => Some((self.write(buffer)?, dtype)),
            None => None,
        };
        let (gradient, dtype) = call.gradient;
        let dense = self.read(gradient)?;
        let short = || {
            Error::Invalid(format!("{}: a buffer is shorter than {elements} elements", self.name))
        };
        let gradient = match dtype {
            DType::Fp32 => GradientRef::Fp32(dense.as_f32().get(..elements).ok_or_else(short)?),
            DType::Fp16 => GradientRef::Fp16(dense.as_u16().get(..elements).ok_or_else(short)?),
            DType::Bf16 => GradientRef::Bf16(dense.as_u16().get(..elements).ok_or_else(short)?),
        };
        fn wide(guard: &mut Option<WriteGuard>, elements: usize) -> Option<Option<&mut [f32]>> {
            match guard {
                Some(guard) => guard.as_f32_mut().get_mut(..elements).map(Some),
                None => Some(None),
            }
        }
        fn bits(guard: &mut Option<WriteGuard>, elements: usize) -> Option<Option<&mut [u16]>> {
            match guard {
                Some(guard) => guard.as_u16_mut().get_mut(..elements).map(Some),
                None => Some(None),
            }
        }
        let moments = match call.moments {
            DType::Bf16 => Moments::Bf16 {
                m: bits(&mut exp_avg, elements).ok_or_else(short)?,
                v: bits(&mut exp_avg_sq, elements).ok_or_else(short)?,
                dither: call.dither,
            },
            _ => Moments::Fp32 {
                m: wide(&mut exp_avg, elements).ok_or_else(short)?,
                v: wide(&mut exp_avg_sq, elements).ok_or_else(short)?,
            },
        };
        let out = match &mut weights {
            None => WeightsOut::None,
            Some((guard, DType::Fp32)) => {
                WeightsOut::Fp32(guard.as_f32_mut().get_mut(..elements).ok_or_else(short)?)
            }
            Some((guard, DType::Fp16)) => {
                WeightsOut::Fp16(guard.as_u16_mut().get_mut(..elements).ok_or_else(short)?)
            }
            Some((guard, DType::Bf16)) => {
                WeightsOut::Bf16(guard.as_u16_mut().get_mut(..elements).ok_or_else(short)?)
            }
        };
        let param = param.as_f32_mut().get_mut(..elements).ok_or_else(short)?;
        kernels::update(
            pool,
            isa,
            call.optimizer,
            call.segments,
            gradient,
            param,
            moments,
            out,
            call.first_element,
        )
    }

    /// Runs the kernel that expands kept pairs on buffers of this bank.
    ///
    /// # Errors
    /// Buffers in use or too short, pairs that are unsorted or out of range.
    pub fn decompress(&self, call: &DecompressCall) -> Result<()> {
        let (indices, values) = (self.read(call.indices)?, self.read(call.values)?);
        let mut dense = self.write(call.dense)?;
        let pairs = call.pairs as usize;
        let (Some(indices), Some(values), Some(dense)) = (
            indices.as_u32().get(..pairs),
            values.as_f32().get(..pairs),
            dense.as_f32_mut().get_mut(..call.elements as usize),
        ) else {
            let name = &self.name;
            return Err(Error::Invalid(format!("{name}: a buffer of the pairs is too short")));
        };
        codec::scatter(indices, values, call.first_element, dense)
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
