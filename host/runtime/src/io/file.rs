//! A file of a drive directory.

use std::fs::{File, OpenOptions};
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// Whether transfers bypass the page cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Direct {
    /// Fail where the file system cannot.
    Required,
    /// Fall back to the page cache, with a warning, where the file system cannot.
    Preferred,
    /// Use the page cache.
    Off,
}

/// How to open a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OpenMode {
    /// For reading.
    Read,
    /// For reading and writing; the file exists.
    ReadWrite,
    /// For reading and writing; an existing file is emptied.
    Create,
}

/// Alignment assumed where the system does not tell.
const DEFAULT_ALIGNMENT: u64 = 4096;

/// An open file; clones share it.
#[derive(Debug, Clone)]
pub struct DriveFile(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    file: File,
    path: PathBuf,
    alignment: u64,
    direct: bool,
}

impl DriveFile {
    pub(super) fn open(path: &Path, mode: OpenMode, direct: Direct) -> Result<Self> {
        let mut options = OpenOptions::new();
        options.read(true).write(mode != OpenMode::Read);
        if mode == OpenMode::Create {
            options.create(true).truncate(true).mode(0o644);
        }
        let error = |source| Error::io("open", path, 0, 0, source);
        let (file, direct) = if direct == Direct::Off {
            (options.open(path).map_err(error)?, false)
        } else {
            match options.clone().custom_flags(libc::O_DIRECT).open(path) {
                Ok(file) => (file, true),
                Err(source)
                    if source.raw_os_error() == Some(libc::EINVAL)
                        && direct == Direct::Preferred =>
                {
                    tracing::warn!(
                        path = %path.display(),
                        "this file system has no direct I/O; transfers go through the page cache and will be slower"
                    );
                    (options.open(path).map_err(error)?, false)
                }
                Err(source) => return Err(error(source)),
            }
        };
        let alignment = if direct { direct_alignment(&file) } else { 1 };
        Ok(Self(Arc::new(Inner { file, path: path.to_path_buf(), alignment, direct })))
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.0.path
    }

    /// Its length in bytes.
    ///
    /// # Errors
    /// [`Error::Io`] when the system does not tell.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> Result<u64> {
        let metadata = self.0.file.metadata();
        Ok(metadata.map_err(|source| Error::io("stat", self.path(), 0, 0, source))?.len())
    }

    /// Multiple that offsets, lengths and buffer addresses must be of, in bytes; 1 without direct I/O.
    pub fn alignment(&self) -> u64 {
        self.0.alignment
    }

    /// Whether transfers bypass the page cache.
    pub fn direct(&self) -> bool {
        self.0.direct
    }

    /// Reserves space for the first `bytes` bytes, so that writing them cannot fail for want of it.
    ///
    /// # Errors
    /// [`Error::NoSpace`] with what is needed and what is free.
    pub fn reserve(&self, bytes: u64) -> Result<()> {
        if bytes == 0 {
            return Ok(());
        }
        // SAFETY: plain system call on an open descriptor.
        let status =
            unsafe { libc::fallocate(self.raw(), 0, 0, bytes.min(i64::MAX as u64) as i64) };
        if status == 0 {
            return Ok(());
        }
        let source = std::io::Error::last_os_error();
        match source.raw_os_error() {
            Some(libc::ENOSPC | libc::EDQUOT) => {
                let available = free_bytes(self.path())?;
                Err(Error::NoSpace { path: self.path().to_path_buf(), needed: bytes, available })
            }
            // Not every file system can reserve; writing the length is the best that is left.
            Some(libc::EOPNOTSUPP) => self
                .0
                .file
                .set_len(bytes)
                .map_err(|source| Error::io("reserve", self.path(), 0, bytes, source)),
            _ => Err(Error::io("reserve", self.path(), 0, bytes, source)),
        }
    }

    pub(super) fn raw(&self) -> i32 {
        self.0.file.as_raw_fd()
    }

    pub(super) fn same_as(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// One system call; may transfer less than asked for.
    pub(super) fn read_once(&self, offset: u64, buffer: &mut [u8]) -> std::io::Result<usize> {
        self.0.file.read_at(buffer, offset)
    }

    /// One system call; may transfer less than asked for.
    pub(super) fn write_once(&self, offset: u64, buffer: &[u8]) -> std::io::Result<usize> {
        self.0.file.write_at(buffer, offset)
    }

    pub(super) fn flush(&self) -> std::io::Result<()> {
        self.0.file.sync_data()
    }

    /// Checks one direct transfer's alignment.
    pub(super) fn check(
        &self,
        operation: &'static str,
        offset: u64,
        address: usize,
        length: usize,
    ) -> Result<()> {
        let quantities =
            [("offset", offset), ("length", length as u64), ("buffer address", address as u64)];
        for (what, value) in quantities {
            if value % self.0.alignment != 0 {
                return Err(Error::Misaligned {
                    operation,
                    path: self.path().to_path_buf(),
                    what,
                    value,
                    alignment: self.0.alignment,
                });
            }
        }
        Ok(())
    }
}

/// Free bytes of the file system that holds `path`.
///
/// # Errors
/// [`Error::Io`] when the system does not tell.
pub(crate) fn free_bytes(path: &Path) -> Result<u64> {
    use std::os::unix::ffi::OsStrExt;
    let error = |source| Error::io("stat", path, 0, 0, source);
    let name = std::ffi::CString::new(path.as_os_str().as_bytes())
        .map_err(|_| error(std::io::Error::from_raw_os_error(libc::EINVAL)))?;
    let mut stats = MaybeUninit::<libc::statvfs>::uninit();
    // SAFETY: the name is terminated and the result is written before it is read.
    if unsafe { libc::statvfs(name.as_ptr(), stats.as_mut_ptr()) } != 0 {
        return Err(error(std::io::Error::last_os_error()));
    }
    // SAFETY: the call succeeded, so the structure is filled.
    let stats = unsafe { stats.assume_init() };
    Ok(stats.f_bavail * stats.f_frsize)
}

/// What STATX_DIOALIGN says; 4096 where the kernel or file system does not tell.
fn direct_alignment(file: &File) -> u64 {
    const STATX_DIOALIGN: u32 = 0x2000;
    let mut stat = MaybeUninit::<libc::statx>::zeroed();
    // SAFETY: an empty name with AT_EMPTY_PATH asks about the descriptor itself.
    let status = unsafe {
        libc::statx(
            file.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH,
            STATX_DIOALIGN,
            stat.as_mut_ptr(),
        )
    };
    if status != 0 {
        return DEFAULT_ALIGNMENT;
    }
    // SAFETY: zeroed memory is a valid structure, and the call succeeded.
    let stat = unsafe { stat.assume_init() };
    if stat.stx_mask & STATX_DIOALIGN == 0 || stat.stx_dio_offset_align == 0 {
        return DEFAULT_ALIGNMENT;
    }
    u64::from(stat.stx_dio_offset_align.max(stat.stx_dio_mem_align))
}
