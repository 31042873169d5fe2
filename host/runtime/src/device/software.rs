//! The host playing the near-storage device: a directory, an arena and SIMD kernels.

use std::sync::Arc;

use super::{
    BufferBank, BufferId, BufferRange, CheckPairsCall, DeviceDescription, Kernels, LocalMemoryUse,
    NearStorageDevice, PairsCheck, Reach, TrafficCounters, UpdateCall,
};
use crate::error::Result;
use crate::graph::{Direction, Place, Traffic};
use crate::io::{DriveFile, IoEngine};
use crate::kernels::UpdateSums;
use crate::memory::Arena;

/// What a [`SoftwareDevice`] is made of.
#[derive(Debug, Clone)]
pub struct SoftwareOptions {
    /// Index of the drive in the run.
    pub drive: u32,
    /// Local memory; best registered with the drive's engine.
    pub arena: Arc<Arena>,
    /// What computes.
    pub kernels: Arc<dyn Kernels>,
}

/// The default device: local memory is host memory, kernels run on the CPU, storage is an [`IoEngine`].
#[derive(Debug)]
pub struct SoftwareDevice {
    drive: u32,
    engine: Arc<IoEngine>,
    bank: BufferBank,
    kernels: Arc<dyn Kernels>,
    counters: TrafficCounters,
}

impl SoftwareDevice {
    /// A device whose storage is `engine`.
    pub fn new(engine: Arc<IoEngine>, options: SoftwareOptions) -> Self {
        let SoftwareOptions { drive, arena, kernels } = options;
        let bank = BufferBank::new(&format!("device of drive {drive}"), arena);
        Self { drive, engine, bank, kernels, counters: TrafficCounters::default() }
    }
}

impl NearStorageDevice for SoftwareDevice {
    fn describe(&self) -> DeviceDescription {
        DeviceDescription {
            kind: "software",
            local_memory_bytes: self.bank.arena().bytes(),
            storage_backend: self.engine.backend(),
        }
    }

    fn allocate(&self, bytes: u64, _: Reach) -> Result<BufferId> {
        self.bank.allocate(bytes)
    }

    fn release(&self, buffer: BufferId) -> Result<()> {
        self.bank.release(buffer)
    }

    fn storage_to_local(&self, file: &DriveFile, offset: u64, to: BufferRange) -> Result<()> {
        let mut buffer = self.bank.write(to.buffer)?;
        let bounds = self.bank.bounds(to, buffer.len())?;
        self.engine.read(file, offset, &mut buffer[bounds])?;
        self.counters.add_storage(Direction::Read, self.drive, Place::Local(self.drive), to.bytes);
        Ok(())
    }

    fn local_to_storage(&self, from: BufferRange, file: &DriveFile, offset: u64) -> Result<()> {
        let buffer = self.bank.read(from.buffer)?;
        let bounds = self.bank.bounds(from, buffer.len())?;
        self.engine.write(file, offset, &buffer[bounds])?;
        self.counters.add_storage(
            Direction::Write,
            self.drive,
            Place::Local(self.drive),
            from.bytes,
        );
        Ok(())
    }

    fn check_pairs(&self, call: &CheckPairsCall) -> Result<PairsCheck> {
        self.bank.check_pairs(call, &*self.kernels)
    }

    fn update(&self, call: &UpdateCall) -> Result<UpdateSums> {
        self.bank.update(call, &*self.kernels)
    }

    fn local_to_host(&self, from: BufferRange, to: &mut [u8]) -> Result<()> {
        let buffer = self.bank.read(from.buffer)?;
        let bounds = self.bank.bounds(from, buffer.len())?;
        from.matches(to)?;
        to.copy_from_slice(&buffer[bounds]);
        self.counters.add_copy(Place::Local(self.drive), Place::HOST, from.bytes);
        Ok(())
    }

    fn host_to_local(&self, from: &[u8], to: BufferRange) -> Result<()> {
        let mut buffer = self.bank.write(to.buffer)?;
        let bounds = self.bank.bounds(to, buffer.len())?;
        to.matches(from)?;
        buffer[bounds].copy_from_slice(from);
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
        self.bank.usage()
    }
}
