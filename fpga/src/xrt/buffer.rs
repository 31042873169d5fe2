//! Memory of a card.

use std::ptr::NonNull;
use std::sync::Arc;

use parking_lot::Mutex;

use super::card::{Card, Inner};
use super::error::XrtError;
use super::sys::{FROM_DEVICE, Functions, Handle, NO_FLAGS, P2P, TO_DEVICE, zero};

/// How the host reaches a buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Placement {
    /// Memory of the card, with a copy in host memory that XRT brings up to date when it is told to.
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
    /// Held while the host's copy is used.
    copy: Mutex<()>,
}

// SAFETY: the memory is this value's alone; handles may be used from any thread.
unsafe impl Send for Buffer {}
// SAFETY: shared use only reads, or uses the host's copy behind its lock.
unsafe impl Sync for Buffer {}

impl Drop for Buffer {
    fn drop(&mut self) {
        let handle = self.handle;
        self.inner.discard("xrtBOFree", move |functions| {
            // SAFETY: the buffer is this value's alone.
            unsafe { (functions.buffer_free)(handle) };
        });
    }
}

impl Card {
    /// Allocates memory of the card in a group of banks, and maps it.
    ///
    /// # Errors
    /// [`XrtError::Memory`] or [`XrtError::Window`] when not enough is left.
    pub fn allocate(
        &self,
        bytes: usize,
        bank: u32,
        placement: Placement,
    ) -> Result<Buffer, XrtError> {
        let inner = Arc::clone(&self.inner);
        let device = inner.device;
        let flags = match placement {
            Placement::Card => NO_FLAGS,
            Placement::Bus => P2P,
        };
        let allocate = move |functions: &Functions| {
            // SAFETY: the device is open.
            unsafe { (functions.buffer_allocate)(device, bytes, flags, bank) }.valid()
        };
        let card = || inner.name.clone();
        let handle = inner.attempt("xrtBOAlloc", inner.limit, allocate)?;
        let handle = handle.map_err(|reason| match placement {
            Placement::Card => XrtError::Memory { card: card(), bytes, bank, reason },
            Placement::Bus => XrtError::Window { card: card(), bytes, bank, reason },
        })?;
        let mapped = inner.call("xrtBOMap", move |functions| {
            // SAFETY: the buffer is there.
            Handle(unsafe { (functions.buffer_map)(handle) }).valid()
        });
        let memory = mapped.and_then(|memory| {
            NonNull::new(memory.0.cast()).ok_or_else(|| inner.invalid("memory at 0".into()))
        });
        match memory {
            Ok(memory) => {
                let copy = Mutex::new(());
                Ok(Buffer { inner, handle, memory, bytes, placement, copy })
            }
            Err(error) => {
                inner.discard("xrtBOFree", move |functions| {
                    // SAFETY: nothing uses the buffer.
                    unsafe { (functions.buffer_free)(handle) };
                });
                Err(error)
            }
        }
    }
}

impl Buffer {
    /// Its bytes.
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// The card's memory itself, where it lies in the window on the bus.
    ///
    /// # Errors
    /// [`XrtError::Invalid`] for a buffer that drives do not reach.
    pub fn window(&self) -> Result<&[u8], XrtError> {
        self.in_window()?;
        // SAFETY: mapped for as long as the value lives, and not written while it is shared: kernels that write it take it
        // exclusively.
        Ok(unsafe { std::slice::from_raw_parts(self.memory.as_ptr(), self.bytes) })
    }

    /// The same, to be written.
    ///
    /// # Errors
    /// As [`Buffer::window`].
    pub fn window_mut(&mut self) -> Result<&mut [u8], XrtError> {
        self.in_window()?;
        // SAFETY: as above, and borrowed exclusively.
        Ok(unsafe { std::slice::from_raw_parts_mut(self.memory.as_ptr(), self.bytes) })
    }

    fn in_window(&self) -> Result<(), XrtError> {
        match self.placement {
            Placement::Bus => Ok(()),
            Placement::Card => Err(self.inner.invalid("a buffer that drives do not reach".into())),
        }
    }

    /// Writes to the card's memory from `offset` on.
    ///
    /// # Errors
    /// A range outside the buffer, or what XRT reports.
    pub fn write(&mut self, offset: usize, from: &[u8]) -> Result<(), XrtError> {
        self.within(offset, from.len())?;
        // SAFETY: the range lies in the buffer, which is borrowed exclusively.
        unsafe {
            let to = self.memory.as_ptr().add(offset);
            std::ptr::copy_nonoverlapping(from.as_ptr(), to, from.len());
        }
        self.sync(TO_DEVICE, from.len(), offset)
    }

    /// Fills it with zeros.
    ///
    /// # Errors
    /// What XRT reports.
    pub fn clear(&mut self) -> Result<(), XrtError> {
        // SAFETY: as many bytes are mapped, and borrowed exclusively.
        unsafe { std::ptr::write_bytes(self.memory.as_ptr(), 0, self.bytes) };
        self.sync(TO_DEVICE, self.bytes, 0)
    }

    /// Reads the card's memory from `offset` on.
    ///
    /// # Errors
    /// As [`Buffer::write`].
    pub fn read(&self, offset: usize, to: &mut [u8]) -> Result<(), XrtError> {
        self.within(offset, to.len())?;
        let copy = self.copy.lock();
        self.sync(FROM_DEVICE, to.len(), offset)?;
        // SAFETY: the range lies in the buffer; the host's copy is behind its lock, and the window is only read.
        unsafe {
            let from = self.memory.as_ptr().add(offset);
            std::ptr::copy_nonoverlapping(from, to.as_mut_ptr(), to.len());
        }
        drop(copy);
        Ok(())
    }

    fn within(&self, offset: usize, bytes: usize) -> Result<(), XrtError> {
        if offset.checked_add(bytes).is_some_and(|end| end <= self.bytes) {
            return Ok(());
        }
        let what = format!("{bytes} bytes at {offset} of a buffer of {}", self.bytes);
        Err(self.inner.invalid(what))
    }

    /// Brings the card's memory or the host's copy up to date. Nothing where the host reaches the card's memory itself.
    fn sync(&self, direction: i32, bytes: usize, offset: usize) -> Result<(), XrtError> {
        if self.placement == Placement::Bus || bytes == 0 {
            return Ok(());
        }
        let handle = self.handle;
        self.inner.call("xrtBOSync", move |functions| {
            // SAFETY: the range lies in the buffer, which this value keeps: where the call does not come back in time, the card is
            // given up and the buffer never freed.
            zero(unsafe { (functions.buffer_sync)(handle, direction, bytes, offset) })
        })
    }
}
