//! A card and its memory.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::Arc;

use super::error::{XrtError, reason};
use super::library::{Shared, Xrt};
use super::sys::{FROM_DEVICE, Handle, NO_FLAGS, P2P, TO_DEVICE, Uuid};

/// An open card with a bitstream. Kernels and buffers keep it open.
#[derive(Debug, Clone)]
pub struct Card {
    pub(super) inner: Arc<Inner>,
}

#[derive(Debug)]
pub(super) struct Inner {
    pub shared: Arc<Shared>,
    pub index: u32,
    pub device: Handle,
    pub uuid: Uuid,
}

// SAFETY: XRT's handles may be used from any thread, and its functions guard what they share.
unsafe impl Send for Inner {}
// SAFETY: as above.
unsafe impl Sync for Inner {}

impl Drop for Inner {
    fn drop(&mut self) {
        let mut open = self.shared.open.lock();
        // SAFETY: the handle is open, and whatever came from it holds this value, so it is gone.
        unsafe { (self.shared.functions.device_close)(self.device) };
        open.remove(&self.index);
    }
}

impl Inner {
    pub fn failed(&self, call: &'static str) -> XrtError {
        XrtError::Call { card: self.index, call, reason: reason() }
    }
}

impl Card {
    /// Opens a card and loads a bitstream.
    ///
    /// # Errors
    /// No such card, one that is open already, or a bitstream that it does not take.
    pub fn open(xrt: &Xrt, index: u32, bitstream: &Path) -> Result<Self, XrtError> {
        let shared = Arc::clone(&xrt.shared);
        let file = CString::new(bitstream.as_os_str().as_bytes()).map_err(|_| {
            XrtError::Invalid { card: index, what: "a path with a zero byte".into() }
        })?;
        let mut open = xrt.shared.open.lock();
        if !open.insert(index) {
            return Err(XrtError::InUse { card: index });
        }
        // SAFETY: any index is allowed.
        let device = unsafe { (shared.functions.device_open)(index) };
        if device.is_null() {
            open.remove(&index);
            return Err(XrtError::NoCard { card: index, reason: reason() });
        }
        let mut uuid = [0; 16];
        // SAFETY: the device is open and the path ends with a zero.
        let loaded = unsafe { (shared.functions.load_xclbin_file)(device, file.as_ptr()) };
        let failure = if loaded != 0 {
            Some(XrtError::Load { card: index, file: bitstream.to_owned(), reason: reason() })
        } else {
            // SAFETY: the identifier has 16 bytes.
            let known = unsafe { (shared.functions.xclbin_uuid)(device, uuid.as_mut_ptr()) };
            let call = "xrtDeviceGetXclbinUUID";
            (known != 0).then(|| XrtError::Call { card: index, call, reason: reason() })
        };
        drop(open);
        // From here on, dropping closes.
        let inner = Arc::new(Inner { shared, index, device, uuid });
        match failure {
            Some(error) => Err(error),
            None => Ok(Self { inner }),
        }
    }

    /// Its index.
    pub fn index(&self) -> u32 {
        self.inner.index
    }

    /// Allocates memory of the card in a group of banks, and maps it.
    ///
    /// # Errors
    /// [`XrtError::Memory`] when not enough is left.
    pub fn allocate(
        &self,
        bytes: usize,
        bank: u32,
        placement: Placement,
    ) -> Result<Buffer, XrtError> {
        let inner = Arc::clone(&self.inner);
        let flags = match placement {
            Placement::Card => NO_FLAGS,
            Placement::Bus => P2P,
        };
        // SAFETY: the device is open.
        let handle =
            unsafe { (inner.shared.functions.buffer_allocate)(inner.device, bytes, flags, bank) };
        if handle.is_null() {
            return Err(XrtError::Memory { card: inner.index, bytes, bank, reason: reason() });
        }
        // SAFETY: the buffer is there.
        let memory = unsafe { (inner.shared.functions.buffer_map)(handle) };
        let Some(memory) = NonNull::new(memory.cast()) else {
            let error = inner.failed("xrtBOMap");
            // SAFETY: nothing uses the buffer.
            unsafe { (inner.shared.functions.buffer_free)(handle) };
            return Err(error);
        };
        Ok(Buffer { inner, handle, memory, bytes, placement })
    }
}

/// How the host reaches a buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Placement {
    /// Memory of the card, with a copy in host memory that is brought up to date by [`Buffer::to_card`] and
    /// [`Buffer::from_card`].
    Card,
    /// Memory of the card in its window on the bus (P2P): drives and the host reach it itself.
    Bus,
}

/// Memory of a card.
#[derive(Debug)]
pub struct Buffer {
    pub(super) inner: Arc<Inner>,
    pub(super) handle: Handle,
    memory: NonNull<u8>,
    bytes: usize,
    placement: Placement,
}

// SAFETY: the memory is this value's alone; handles may be used from any thread.
unsafe impl Send for Buffer {}
// SAFETY: shared use only reads.
unsafe impl Sync for Buffer {}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: the buffer is this value's alone.
        unsafe { (self.inner.shared.functions.buffer_free)(self.handle) };
    }
}

impl Buffer {
    /// How the host reaches it.
    pub fn placement(&self) -> Placement {
        self.placement
    }

    /// Its bytes.
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Its memory as the host sees it.
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: mapped for as long as the value lives, and not written while it is shared: kernels that write it take it
        // exclusively.
        unsafe { std::slice::from_raw_parts(self.memory.as_ptr(), self.bytes) }
    }

    /// The same, to be written.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as above, and borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.memory.as_ptr(), self.bytes) }
    }

    /// Brings what the host has written to the card. Nothing where the host reaches the card's memory itself.
    ///
    /// # Errors
    /// A range outside the buffer, or what XRT reports.
    pub fn to_card(&self, bytes: usize, offset: usize) -> Result<(), XrtError> {
        self.sync(TO_DEVICE, bytes, offset)
    }

    /// Brings what the card has written to the host.
    ///
    /// # Errors
    /// As [`Buffer::to_card`].
    pub fn from_card(&mut self, bytes: usize, offset: usize) -> Result<(), XrtError> {
        self.sync(FROM_DEVICE, bytes, offset)
    }

    fn sync(&self, direction: i32, bytes: usize, offset: usize) -> Result<(), XrtError> {
        if offset.checked_add(bytes).is_none_or(|end| end > self.bytes) {
            let what = format!("{bytes} bytes at {offset} of a buffer of {}", self.bytes);
            return Err(XrtError::Invalid { card: self.inner.index, what });
        }
        if self.placement == Placement::Bus || bytes == 0 {
            return Ok(());
        }
        // SAFETY: the range lies in the buffer.
        let code = unsafe {
            (self.inner.shared.functions.buffer_sync)(self.handle, direction, bytes, offset)
        };
        if code == 0 { Ok(()) } else { Err(self.inner.failed("xrtBOSync")) }
    }
}
