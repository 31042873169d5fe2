//! Near-storage devices: memory and kernels beside a drive.
//!
//! The verbs follow the split of NVMe Computational Programs and Subsystem Local Memory: allocate local
//! memory, copy between storage and local memory, execute a kernel on local buffers, copy between local
//! memory and the host. A device without such hardware plays the part with host memory
//! ([`SoftwareDevice`]) at full or at limited speed ([`EmulatedDevice`]).

mod bank;
mod counters;
mod emulated;
mod software;

pub use bank::BufferBank;
pub use counters::TrafficCounters;
pub use emulated::{EmulatedDevice, SharedLink, SpeedLimits};
pub use software::{SoftwareDevice, SoftwareOptions};

use crate::error::Result;
use crate::graph::Traffic;
use crate::io::DriveFile;
use crate::kernels::{Dither, Segment, UpdateSums};
use crate::types::{DType, Optimizer};

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
}

/// One launch of the kernel that expands kept pairs: a run of a subgroup's elements becomes dense, all that was not
/// kept zero (Smart-Infinity, section 4.5).
#[derive(Debug, Clone, Copy)]
pub struct DecompressCall {
    /// `u32` indices from the start of the subgroup, ascending.
    pub indices: BufferId,
    /// fp32 values.
    pub values: BufferId,
    /// Number of pairs of the whole subgroup.
    pub pairs: u64,
    /// Position of the run in its subgroup, in elements.
    pub first_element: u64,
    /// Elements of the run, padding included.
    pub elements: u64,
    /// Where the run goes, as fp32.
    pub dense: BufferId,
}

/// One launch of the update kernel on a run of a subgroup's elements, each buffer holding that run from its
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
    /// The gradient, one element each, and its format.
    pub gradient: (BufferId, DType),
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
    fn allocate(&self, bytes: u64) -> Result<BufferId>;

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

    /// Runs the kernel that expands kept pairs.
    ///
    /// # Errors
    /// Buffers in use or too short, pairs that are unsorted or out of range.
    fn decompress(&self, call: &DecompressCall) -> Result<()>;

    /// Runs the update kernel; returns checksums of all it read and wrote.
    ///
    /// # Errors
    /// Buffers in use or too short.
    fn update(&self, call: &UpdateCall) -> Result<UpdateSums>;

    /// Position-weighted checksum of a buffer's content as 32-bit words.
    ///
    /// # Errors
    /// A buffer in use or a range outside it.
    fn checksum(&self, range: BufferRange) -> Result<u64>;

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
