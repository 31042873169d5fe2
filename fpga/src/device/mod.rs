//! A SmartSSD as a near-storage device: the card's memory and kernels, and the drive behind the same switch.

mod arguments;
mod buffers;
mod kernels;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use nearfield_runtime::device::{
    BufferId, BufferRange, CheckPairsCall, DeviceDescription, LocalMemoryUse, NearStorageDevice,
    PairsCheck, Reach, TrafficCounters, UpdateCall,
};
use nearfield_runtime::graph::{Direction, Place, Traffic};
use nearfield_runtime::io::{DriveFile, IoEngine};
use nearfield_runtime::kernels::UpdateSums;
use nearfield_runtime::{Error, Result};

use crate::xclbin::{Xclbin, kernels_digest};
use crate::xrt::{Card, CardName, Xrt};
pub use arguments::bind;
use buffers::Buffers;
use kernels::CardKernels;

/// Time that a call to a card may take where nothing else is said. The largest subgroup that fits takes seconds.
pub const CALL_LIMIT: Duration = Duration::from_secs(60);

/// Memory of a SmartSSD: 4 GiB of DDR4 less what the platform takes.
const MEMORY_BYTES: u64 = 3_800_000_000;

/// Cards of this machine, and what they are loaded with.
#[derive(Debug)]
pub struct SmartSsds {
    xrt: Xrt,
    bitstream: PathBuf,
    limit: Duration,
}

impl SmartSsds {
    /// Loads XRT, and reads the bitstream's description. No call to a card may take longer than `limit`.
    ///
    /// # Errors
    /// XRT is not there; the bitstream is damaged or has other kernels than this program.
    pub fn new(bitstream: &Path, limit: Duration) -> Result<Self> {
        Self::with(Xrt::load().map_err(work)?, bitstream, limit)
    }

    /// The same with a library that is loaded already.
    ///
    /// # Errors
    /// As [`SmartSsds::new`].
    pub fn with(xrt: Xrt, bitstream: &Path, limit: Duration) -> Result<Self> {
        let container = Xclbin::read(bitstream).map_err(work)?;
        container.check(&kernels_digest()).map_err(work)?;
        Ok(Self { xrt, bitstream: bitstream.to_owned(), limit })
    }

    /// The device of a drive.
    ///
    /// # Errors
    /// The card is not there, in use, or does not take the bitstream.
    pub fn attach(&self, drive: u32, card: &CardName, engine: &Arc<IoEngine>) -> Result<SmartSsd> {
        let card = Card::open(self.xrt, card, &self.bitstream, self.limit).map_err(work)?;
        let kernels = CardKernels::open(&card)?;
        let buffers = Buffers::new(card, kernels.banks());
        let engine = Arc::clone(engine);
        Ok(SmartSsd { drive, kernels, buffers, engine, counters: TrafficCounters::default() })
    }
}

fn work(error: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::Work(Box::new(error))
}

/// A card and its drive.
#[derive(Debug)]
pub struct SmartSsd {
    drive: u32,
    // Fields are dropped in this order: what uses memory goes before the memory, and that before the card.
    kernels: CardKernels,
    buffers: Buffers,
    engine: Arc<IoEngine>,
    counters: TrafficCounters,
}

impl NearStorageDevice for SmartSsd {
    fn describe(&self) -> DeviceDescription {
        DeviceDescription {
            kind: "xrt",
            local_memory_bytes: MEMORY_BYTES,
            storage_backend: self.engine.backend(),
        }
    }

    fn allocate(&self, bytes: u64, reach: Reach) -> Result<BufferId> {
        self.buffers.allocate(bytes, reach)
    }

    fn release(&self, buffer: BufferId) -> Result<()> {
        self.buffers.table.release(buffer)
    }

    fn storage_to_local(&self, file: &DriveFile, offset: u64, to: BufferRange) -> Result<()> {
        let mut buffer = self.buffers.table.write(to.buffer)?;
        let bounds = self.buffers.table.bounds(to, buffer.len())?;
        // The card's memory in its window on the bus: the drive writes there itself.
        self.engine.read(file, offset, &mut buffer.window_mut().map_err(work)?[bounds])?;
        self.counters.add_storage(Direction::Read, self.drive, Place::Local(self.drive), to.bytes);
        Ok(())
    }

    fn local_to_storage(&self, from: BufferRange, file: &DriveFile, offset: u64) -> Result<()> {
        let buffer = self.buffers.table.read(from.buffer)?;
        let bounds = self.buffers.table.bounds(from, buffer.len())?;
        self.engine.write(file, offset, &buffer.window().map_err(work)?[bounds])?;
        self.counters.add_storage(
            Direction::Write,
            self.drive,
            Place::Local(self.drive),
            from.bytes,
        );
        Ok(())
    }

    fn check_pairs(&self, call: &CheckPairsCall) -> Result<PairsCheck> {
        self.kernels.check_pairs(call, &self.buffers.table)
    }

    fn update(&self, call: &UpdateCall) -> Result<UpdateSums> {
        self.kernels.update(call, &self.buffers.table)
    }

    fn local_to_host(&self, from: BufferRange, to: &mut [u8]) -> Result<()> {
        from.matches(to)?;
        let buffer = self.buffers.table.read(from.buffer)?;
        let bounds = self.buffers.table.bounds(from, buffer.len())?;
        buffer.read(bounds.start, to).map_err(work)?;
        self.counters.add_copy(Place::Local(self.drive), Place::HOST, from.bytes);
        Ok(())
    }

    fn host_to_local(&self, from: &[u8], to: BufferRange) -> Result<()> {
        let mut buffer = self.buffers.table.write(to.buffer)?;
        let bounds = self.buffers.table.bounds(to, buffer.len())?;
        to.matches(from)?;
        buffer.write(bounds.start, from).map_err(work)?;
        self.counters.add_copy(Place::HOST, Place::Local(self.drive), to.bytes);
        Ok(())
    }

    fn storage_to_host(&self, file: &DriveFile, offset: u64, to: &mut [u8]) -> Result<()> {
        self.engine.read(file, offset, to)?;
        self.counters.add_storage(Direction::Read, self.drive, Place::HOST, to.len() as u64);
        Ok(())
    }

    fn host_to_storage(&self, from: &[u8], file: &DriveFile, offset: u64) -> Result<()> {
        self.engine.write(file, offset, from)?;
        self.counters.add_storage(Direction::Write, self.drive, Place::HOST, from.len() as u64);
        Ok(())
    }

    fn traffic(&self) -> Traffic {
        self.counters.total()
    }

    fn local_memory(&self) -> LocalMemoryUse {
        self.buffers.table.usage()
    }
}
