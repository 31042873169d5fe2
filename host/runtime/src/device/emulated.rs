//! A device of limited speed: the software device behind token buckets.

use std::sync::Arc;

use super::{
    BufferId, BufferRange, CheckPairsCall, DeviceDescription, LocalMemoryUse, NearStorageDevice,
    PairsCheck, Reach, SoftwareDevice, UpdateCall,
};
use crate::error::Result;
use crate::graph::Traffic;
use crate::io::{DriveFile, Throttle};
use crate::kernels::UpdateSums;

/// Bytes a second that one drive's links may carry; `None` does not limit.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct SpeedLimits {
    /// Reads from the medium.
    pub media_read: Option<u64>,
    /// Writes to the medium.
    pub media_write: Option<u64>,
    /// Reads and writes between the drive and local memory, together.
    pub internal: Option<u64>,
}

/// The link between the host and all drives, shared by them.
#[derive(Debug, Clone, Default)]
pub struct SharedLink {
    down: Option<Arc<Throttle>>,
    up: Option<Arc<Throttle>>,
}

impl SharedLink {
    /// A link of that many bytes a second in each direction.
    pub fn new(bytes_per_second: Option<u64>) -> Self {
        let throttle = || bytes_per_second.map(|rate| Arc::new(Throttle::new(rate)));
        Self { down: throttle(), up: throttle() }
    }
}

/// A [`SoftwareDevice`] whose transfers take at least the time that the limits allow. Results and byte
/// counts are those of the software device.
#[derive(Debug)]
pub struct EmulatedDevice {
    inner: SoftwareDevice,
    media_read: Option<Throttle>,
    media_write: Option<Throttle>,
    internal: Option<Throttle>,
    shared: SharedLink,
}

impl EmulatedDevice {
    /// Limits `inner`; devices given the same `shared` link compete for it.
    pub fn new(inner: SoftwareDevice, limits: SpeedLimits, shared: SharedLink) -> Self {
        Self {
            inner,
            media_read: limits.media_read.map(Throttle::new),
            media_write: limits.media_write.map(Throttle::new),
            internal: limits.internal.map(Throttle::new),
            shared,
        }
    }
}

/// Does `work`, then waits until every limit on its way would have let `bytes` through.
fn limited<T>(
    limits: &[Option<&Throttle>],
    bytes: u64,
    work: impl FnOnce() -> Result<T>,
) -> Result<T> {
    let begin = std::time::Instant::now();
    // Taken before the work, so that the link counts as busy while it runs.
    let wait = limits.iter().flatten().map(|throttle| throttle.take(bytes)).max();
    let result = work()?;
    if let Some(left) = wait.and_then(|wait| wait.checked_sub(begin.elapsed())) {
        std::thread::sleep(left);
    }
    Ok(result)
}

impl NearStorageDevice for EmulatedDevice {
    fn describe(&self) -> DeviceDescription {
        DeviceDescription { kind: "emulated", ..self.inner.describe() }
    }

    fn allocate(&self, bytes: u64, reach: Reach) -> Result<BufferId> {
        self.inner.allocate(bytes, reach)
    }

    fn release(&self, buffer: BufferId) -> Result<()> {
        self.inner.release(buffer)
    }

    fn storage_to_local(&self, file: &DriveFile, offset: u64, to: BufferRange) -> Result<()> {
        limited(&[self.media_read.as_ref(), self.internal.as_ref()], to.bytes, || {
            self.inner.storage_to_local(file, offset, to)
        })
    }

    fn local_to_storage(&self, from: BufferRange, file: &DriveFile, offset: u64) -> Result<()> {
        limited(&[self.media_write.as_ref(), self.internal.as_ref()], from.bytes, || {
            self.inner.local_to_storage(from, file, offset)
        })
    }

    fn check_pairs(&self, call: &CheckPairsCall) -> Result<PairsCheck> {
        self.inner.check_pairs(call)
    }

    fn update(&self, call: &UpdateCall) -> Result<UpdateSums> {
        self.inner.update(call)
    }

    fn local_to_host(&self, from: BufferRange, to: &mut [u8]) -> Result<()> {
        limited(&[self.shared.up.as_deref()], from.bytes, || self.inner.local_to_host(from, to))
    }

    fn host_to_local(&self, from: &[u8], to: BufferRange) -> Result<()> {
        limited(&[self.shared.down.as_deref()], to.bytes, || self.inner.host_to_local(from, to))
    }

    fn storage_to_host(&self, file: &DriveFile, offset: u64, to: &mut [u8]) -> Result<()> {
        let limits = [self.media_read.as_ref(), self.shared.up.as_deref()];
        limited(&limits, to.len() as u64, || self.inner.storage_to_host(file, offset, to))
    }

    fn host_to_storage(&self, from: &[u8], file: &DriveFile, offset: u64) -> Result<()> {
        let limits = [self.media_write.as_ref(), self.shared.down.as_deref()];
        limited(&limits, from.len() as u64, || self.inner.host_to_storage(from, file, offset))
    }

    fn traffic(&self) -> Traffic {
        self.inner.traffic()
    }

    fn local_memory(&self) -> LocalMemoryUse {
        self.inner.local_memory()
    }
}
