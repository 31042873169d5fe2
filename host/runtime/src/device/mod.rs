//! Near-storage devices: memory and kernels beside a drive.
//!
//! The verbs follow the split of NVMe Computational Programs and Subsystem Local Memory: allocate local
//! memory, copy between storage and local memory, execute a kernel on local buffers, copy between local
//! memory and the host. A device without such hardware plays the part with host memory
//! ([`SoftwareDevice`]) at full or at limited speed ([`EmulatedDevice`]), with kernels of the CPU or others ([`Kernels`]).

mod bank;
mod counters;
mod emulated;
mod kernels;
mod software;
mod table;

pub use bank::BufferBank;
pub use counters::TrafficCounters;
pub use emulated::{EmulatedDevice, SharedLink, SpeedLimits};
pub use kernels::{CpuKernels, Kernels, Launch, LocalGradient};
pub use software::{SoftwareDevice, SoftwareOptions};
pub use table::{BufferTable, ReadGuard, WriteGuard};

use crate::error::{Error, Result};
use crate::graph::Traffic;
use crate::io::DriveFile;
use crate::kernels::{Dither, Segment, UpdateSums};
use crate::types::{DType, Optimizer};

/// Who reaches a buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// The drive reads into it or writes out of it.
    Drive,
    /// Kernels and the host only.
    Kernels,
}

/// A buffer in a device's local memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct BufferId(pub u32);

/// Bytes `[offset, offset + bytes)` of a buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BufferRange {
    /// Which buffer.
    pub buffer: BufferId,
    /// First byte.
    pub offset: u64,
    /// Length in bytes.
    pub bytes: u64,
}

impl BufferRange {
    /// The first `bytes` bytes of `buffer`.
    pub const fn start_of(buffer: BufferId, bytes: u64) -> Self {
        Self { buffer, offset: 0, bytes }
    }

    /// Checks that a host buffer is as long as the range.
    ///
    /// # Errors
    /// [`crate::Error::Invalid`] when it is not.
    pub fn matches(&self, host: &[u8]) -> Result<()> {
        if self.bytes == host.len() as u64 {
            return Ok(());
        }
        let (local, host) = (self.bytes, host.len());
        Err(Error::Invalid(format!("a copy of {local} bytes with a host buffer of {host} bytes")))
    }
}

/// Buffers of a compressed gradient.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PairBuffers {
    /// `u32` indices from the start of the subgroup, ascending.
    pub indices: BufferId,
    /// fp32 values.
    pub values: BufferId,
    /// Of the device's own, from the check of the pairs to their use; [`pair_bounds_bytes`] long.
    pub bounds: BufferId,
}

/// Elements whose pairs one entry of [`PairBuffers::bounds`] finds.
pub const BOUNDS_CHUNK: u64 = 65_536;

/// Bytes of [`PairBuffers::bounds`] for a subgroup of `elements`: 4 for each chunk of 65 536 and 4 more, in whole words of
/// 64.
pub const fn pair_bounds_bytes(elements: u64) -> u64 {
    (4 * (elements.div_ceil(BOUNDS_CHUNK) + 1)).next_multiple_of(64)
}

/// One launch of the kernel that checks kept pairs before they are used.
#[derive(Debug, Clone, Copy)]
pub struct CheckPairsCall {
    /// Where they are.
    pub buffers: PairBuffers,
    /// Number of pairs of the subgroup.
    pub pairs: u64,
    /// Elements of the subgroup, padding included.
    pub elements: u64,
}

/// What a look at the indices of kept pairs has found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PairsCheck {
    /// Checksum of the indices.
    pub checksum: u64,
    /// The first pair whose index does not ascend, or lies outside the subgroup. Such pairs must not be used.
    pub first_wrong: Option<u64>,
}

/// Where an update finds its gradient.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GradientBuffers {
    /// All elements of the run, from the buffer's start, in a number format.
    Dense(BufferId, DType),
    /// Kept pairs of the whole subgroup; elements without one have a gradient of zero (Smart-Infinity, section 4.5). They
    /// have been checked.
    Pairs {
        /// Where they are.
        buffers: PairBuffers,
        /// How many.
        pairs: u64,
    },
}

/// One launch of the update kernel on a run of a subgroup's elements, each buffer of state holding that run from its
/// start (Smart-Infinity, section 5).
#[derive(Debug, Clone, Copy)]
pub struct UpdateCall<'a> {
    /// Update rule.
    pub optimizer: Optimizer,
    /// Consecutive runs with their own hyper-parameters; what follows the last is padding.
    pub segments: &'a [Segment],
    /// Position of the run in its subgroup, in elements.
    pub first_element: u64,
    /// Elements of the run, padding included.
    pub elements: u64,
    /// The gradient.
    pub gradient: GradientBuffers,
    /// Master weights, fp32.
    pub param: BufferId,
    /// First moments, if the rule keeps them.
    pub exp_avg: Option<BufferId>,
    /// Second moments, if the rule keeps them.
    pub exp_avg_sq: Option<BufferId>,
    /// Number format of the moments: fp32 or bf16.
    pub moments: DType,
    /// The random bits with which moments in bf16 are rounded.
    pub dither: Dither,
    /// Where the weights' copy in another format goes.
    pub weights: Option<(BufferId, DType)>,
}

/// What a device is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceDescription {
    /// `software`, `emulated` …
    pub kind: &'static str,
    /// Bytes of local memory.
    pub local_memory_bytes: u64,
    /// How its storage is reached, for reports: `io_uring`, `threads`.
    pub storage_backend: &'static str,
}

/// Bytes and allocations of local memory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LocalMemoryUse {
    /// Largest number of bytes allocated at a time.
    pub peak_bytes: u64,
    /// Allocations so far.
    pub allocations: u64,
}

/// A drive with memory and kernels beside it. All verbs block until done and may be called from several
/// threads; a buffer that two calls would use at once, one of them writing, is an error.
pub trait NearStorageDevice: Send + Sync {
    /// What the device is.
    fn describe(&self) -> DeviceDescription;

    /// Allocates local memory.
    ///
    /// # Errors
    /// [`crate::Error::LocalMemory`] when not enough is left.
    fn allocate(&self, bytes: u64, reach: Reach) -> Result<BufferId>;

    /// Frees a buffer.
    ///
    /// # Errors
    /// [`crate::Error::Invalid`] for a buffer that does not exist, [`crate::Error::BufferInUse`] while it is used.
    fn release(&self, buffer: BufferId) -> Result<()>;

    /// Reads from the drive into local memory.
    ///
    /// # Errors
    /// What the drive reports; a buffer in use or a range outside it.
    fn storage_to_local(&self, file: &DriveFile, offset: u64, to: BufferRange) -> Result<()>;

    /// Writes local memory to the drive.
    ///
    /// # Errors
    /// As [`NearStorageDevice::storage_to_local`].
    fn local_to_storage(&self, from: BufferRange, file: &DriveFile, offset: u64) -> Result<()>;

    /// Checks the indices of kept pairs before they are used. Values are summed by [`NearStorageDevice::update`].
    ///
    /// # Errors
    /// Buffers in use or too short.
    fn check_pairs(&self, call: &CheckPairsCall) -> Result<PairsCheck>;

    /// Runs the update kernel; returns checksums of all it read and wrote.
    ///
    /// # Errors
    /// Buffers in use or too short.
    fn update(&self, call: &UpdateCall) -> Result<UpdateSums>;

    /// Copies local memory to the host.
    ///
    /// # Errors
    /// A buffer in use or a range outside it.
    fn local_to_host(&self, from: BufferRange, to: &mut [u8]) -> Result<()>;

    /// Copies host memory to local memory.
    ///
    /// # Errors
    /// A buffer in use or a range outside it.
    fn host_to_local(&self, from: &[u8], to: BufferRange) -> Result<()>;

    /// Reads from the drive into host memory, over the shared link.
    ///
    /// # Errors
    /// What the drive reports.
    fn storage_to_host(&self, file: &DriveFile, offset: u64, to: &mut [u8]) -> Result<()>;

    /// Writes host memory to the drive, over the shared link.
    ///
    /// # Errors
    /// What the drive reports.
    fn host_to_storage(&self, from: &[u8], file: &DriveFile, offset: u64) -> Result<()>;

    /// Data bytes that these verbs have moved so far.
    fn traffic(&self) -> Traffic;

    /// Use of local memory so far.
    fn local_memory(&self) -> LocalMemoryUse;
}
