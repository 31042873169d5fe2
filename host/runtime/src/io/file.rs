//! A file of a drive directory.

use std::fs::{File, OpenOptions};
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
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
            options.create(true).mode(0o644);
        }
        let error = |source| Error::io("open", path, 0, 0, source);
        let unsupported = || std::io::Error::from_raw_os_error(libc::EINVAL);
        let opened = match direct {
            Direct::Off => Err(unsupported()),
            _ => options.clone().custom_flags(libc::O_DIRECT).open(path).and_then(|file| {
                match direct_alignment(&file) {
                    Some(alignment) => Ok((file, alignment)),
                    None => Err(unsupported()),
                }
            }),
        };
        let (file, alignment) = match opened {
            Ok((file, alignment)) => (file, Some(alignment)),
            Err(source)
                if source.raw_os_error() == Some(libc::EINVAL) && direct != Direct::Required =>
            {
                (options.open(path).map_err(error)?, None)
            }
            Err(source) => return Err(error(source)),
        };
        if mode == OpenMode::Create {
            file.set_len(0).map_err(error)?;
        }
        Ok(Self(Arc::new(Inner {
            file,
            path: path.to_path_buf(),
            alignment: alignment.unwrap_or(1),
            direct: alignment.is_some(),
        })))
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

    /// Reserves space for the first `bytes` bytes, so that writing them cannot fail for want of it, and makes the file
    /// at least that long.
    ///
    /// # Errors
    /// [`Error::NoSpace`] with what is needed on top of what the file has, and what is free.
    pub fn reserve(&self, bytes: u64) -> Result<()> {
        if bytes == 0 {
            return Ok(());
        }
        let error = |source| Error::io("reserve", self.path(), 0, bytes, source);
        let metadata = self.0.file.metadata().map_err(error)?;
        let needed = bytes.saturating_sub(metadata.blocks().saturating_mul(512));
        let no_space =
            |available| Error::NoSpace { path: self.path().to_path_buf(), needed, available };
        // Asked first, so that a drive that is too small is not filled to the brim by the attempt.
        let available = free_bytes(self.path())?;
        if needed > available {
            return Err(no_space(available));
        }
        let length = i64::try_from(bytes)
            .map_err(|_| error(std::io::Error::from_raw_os_error(libc::EFBIG)))?;
        // SAFETY: plain system call on an open descriptor.
        if unsafe { libc::fallocate(self.raw(), 0, 0, length) } == 0 {
            return Ok(());
        }
        let source = std::io::Error::last_os_error();
        match source.raw_os_error() {
            Some(libc::ENOSPC) => {
                // A part may have been set aside before space ran out. If giving it back fails as well, the error
                // that follows is still the one that matters.
                let _ = self.0.file.set_len(metadata.len());
                let available = free_bytes(self.path())?;
                Err(if needed > available { no_space(available) } else { error(source) })
            }
            // Not every file system can reserve; setting the length is the best that is left.
            Some(libc::EOPNOTSUPP) => {
                tracing::warn!(
                    path = %self.path().display(),
                    "this file system cannot reserve space; if it fills up, a step fails in its middle"
                );
                self.0.file.set_len(bytes.max(metadata.len())).map_err(error)
            }
            _ => Err(error(source)),
        }
    }

    pub(super) fn raw(&self) -> i32 {
        self.0.file.as_raw_fd()
    }

    /// Whether both are handles of one file.
    pub(super) fn same_as(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || self.0.path == other.0.path
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

/// Bytes that this user can still write to the file system of `path`.
///
/// # Errors
/// [`Error::Io`] when the system does not tell.
pub fn free_bytes(path: &Path) -> Result<u64> {
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

/// Whether a file lies in memory. Newer kernels accept O_DIRECT there, but there is no drive to which transfers could
/// be direct, and who requires that must not be told otherwise.
fn in_memory(file: &File) -> bool {
    const RAMFS_MAGIC: i64 = 0x8584_58f6;
    let mut stats = MaybeUninit::<libc::statfs>::uninit();
    // SAFETY: the descriptor is open and the result is written before it is read.
    if unsafe { libc::fstatfs(file.as_raw_fd(), stats.as_mut_ptr()) } != 0 {
        return false;
    }
    // SAFETY: the call succeeded, so the structure is filled.
    let kind = unsafe { stats.assume_init() }.f_type;
    [libc::TMPFS_MAGIC, RAMFS_MAGIC].contains(&kind)
}

/// Alignment of direct I/O in bytes, from STATX_DIOALIGN where the kernel tells it, else 4096; `None` where the file
/// has no direct I/O, although it was opened for it.
fn direct_alignment(file: &File) -> Option<u64> {
    if in_memory(file) {
        return None;
    }
    let mut stat = MaybeUninit::<libc::statx>::zeroed();
    // SAFETY: an empty name with AT_EMPTY_PATH asks about the descriptor itself.
    let status = unsafe {
        libc::statx(
            file.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH,
            libc::STATX_DIOALIGN,
            stat.as_mut_ptr(),
        )
    };
    // SAFETY: zeroed memory is a valid structure, whatever the call has filled of it.
    let stat = unsafe { stat.assume_init() };
    if status != 0 || stat.stx_mask & libc::STATX_DIOALIGN == 0 {
        return Some(DEFAULT_ALIGNMENT);
    }
    // The kernel says so with zeros when a file has none.
    let alignment = u64::from(stat.stx_dio_offset_align.max(stat.stx_dio_mem_align));
    (stat.stx_dio_offset_align != 0).then_some(alignment)
}
