//! The card's memory: a window that hosts map, an address of the card being a place in it.

use std::collections::BTreeMap;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::ptr::NonNull;

/// Bytes of the window, as XRT's software emulation maps it.
pub const WINDOW_BYTES: u64 = 1 << 31;
const PAGE: u64 = 4096;

/// Memory and the buffers in it.
#[derive(Debug)]
pub struct Memory {
    file: OwnedFd,
    start: NonNull<u8>,
    /// Length by first address.
    buffers: BTreeMap<u64, u64>,
}

// SAFETY: the window is shared memory; who uses which bytes is decided by the host, as on a card.
unsafe impl Send for Memory {}

impl Memory {
    /// A window of zeros, of which only what is touched takes memory.
    ///
    /// # Errors
    /// What the system reports.
    pub fn new() -> std::io::Result<Self> {
        // SAFETY: the name ends with a zero.
        let file = unsafe { libc::memfd_create(c"nearfield-card".as_ptr(), libc::MFD_CLOEXEC) };
        if file < 0 {
            return Err(std::io::Error::last_os_error());
        }
        // SAFETY: the descriptor is this function's.
        let file = unsafe { OwnedFd::from_raw_fd(file) };
        // SAFETY: the descriptor is open.
        if unsafe { libc::ftruncate(file.as_raw_fd(), WINDOW_BYTES as i64) } != 0 {
            return Err(std::io::Error::last_os_error());
        }
        // SAFETY: maps the file that was made above, anywhere.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                WINDOW_BYTES as usize,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            )
        };
        match NonNull::new(start.cast()) {
            Some(start) if start.as_ptr() as *mut _ != libc::MAP_FAILED => {
                Ok(Self { file, start, buffers: BTreeMap::new() })
            }
            _ => Err(std::io::Error::last_os_error()),
        }
    }

    /// Notes a buffer at the address that the host has chosen.
    pub fn allocate(&mut self, address: u64, bytes: u64) -> bool {
        let bytes = bytes.max(1).next_multiple_of(PAGE);
        let fits = address.checked_add(bytes).is_some_and(|end| end <= WINDOW_BYTES);
        if fits {
            self.buffers.insert(address, bytes);
        }
        fits
    }

    /// Forgets a buffer and its content.
    pub fn free(&mut self, address: u64) {
        if let Some(bytes) = self.buffers.remove(&address) {
            // SAFETY: the descriptor is open; a refusal leaves the content, which nothing reads.
            unsafe {
                libc::fallocate(
                    self.file.as_raw_fd(),
                    libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE,
                    address as i64,
                    bytes as i64,
                );
            }
        }
    }

    /// A file in `directory` by which the host maps the window. Its name begins with the buffer's address.
    ///
    /// # Errors
    /// What the file system reports.
    pub fn share(&self, directory: &Path, address: u64) -> std::io::Result<PathBuf> {
        let path = directory.join(format!("bo_{address:x}"));
        let target = format!("/proc/{}/fd/{}", std::process::id(), self.file.as_raw_fd());
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
            _ => std::os::unix::fs::symlink(target, &path)?,
        }
        Ok(path)
    }

    /// The place of `bytes` bytes from an address of the card on, which lie in one buffer.
    pub fn place(&self, address: u64, bytes: u64) -> Option<*mut u8> {
        let (first, length) = self.buffers.range(..=address).next_back()?;
        let end = address.checked_add(bytes)?;
        // SAFETY: a buffer lies in the window.
        (end <= first + length).then(|| unsafe { self.start.as_ptr().add(address as usize) })
    }

    /// Bytes from an address to the end of its buffer.
    pub fn left(&self, address: u64) -> u64 {
        let buffer = self.buffers.range(..=address).next_back();
        buffer.map_or(0, |(first, length)| (first + length).saturating_sub(address))
    }

    /// Copies into memory.
    pub fn write(&mut self, address: u64, content: &[u8]) -> bool {
        let Some(to) = self.place(address, content.len() as u64) else { return false };
        // SAFETY: as many bytes lie there; the content lies elsewhere.
        unsafe { std::ptr::copy_nonoverlapping(content.as_ptr(), to, content.len()) };
        true
    }

    /// Copies out of memory.
    pub fn read(&self, address: u64, bytes: u64) -> Option<Vec<u8>> {
        let from = self.place(address, bytes)?;
        let mut content = vec![0; bytes as usize];
        // SAFETY: as above.
        unsafe { std::ptr::copy_nonoverlapping(from, content.as_mut_ptr(), content.len()) };
        Some(content)
    }
}
