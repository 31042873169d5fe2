//! Copies of the files of a drive: for snapshots, and back.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::path::Path;

use super::create::STATE_FILES;
use super::superblock::{LAYOUT_FILE, SUPERBLOCK_FILE};
use crate::error::{Error, Result};
use crate::io::free_bytes;

/// Bytes copied at a time.
const BLOCK_BYTES: usize = 8 << 20;
/// Room that is left for the file system's own needs.
const MARGIN: u64 = 1 << 20;

/// What a copy took.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Copied {
    /// Bytes of the files.
    pub bytes: u64,
    /// Those of them that share their blocks with the original, and take no room until one of both changes.
    pub shared_bytes: u64,
}

/// Copies the state of one drive from one directory to another, durably. What is there already is replaced. No run may be using
/// either. Files share blocks where the file system can do that.
///
/// The superblock comes last, so a copy that was cut off is not taken for a state. Hard links are never made: state files are
/// written in place.
///
/// # Errors
/// [`Error::NoSpace`] before anything is copied, and what the system reports.
pub fn copy_state(from: &Path, to: &Path) -> Result<Copied> {
    let mut names: Vec<&str> = STATE_FILES
        .into_iter()
        .filter(|name| from.join(name).is_file() && ![SUPERBLOCK_FILE, LAYOUT_FILE].contains(name))
        .collect();
    names.extend([LAYOUT_FILE, SUPERBLOCK_FILE]);
    for name in [SUPERBLOCK_FILE, LAYOUT_FILE] {
        let path = to.join(name);
        match std::fs::remove_file(&path) {
            Err(source) if source.kind() != std::io::ErrorKind::NotFound => {
                return Err(Error::io("remove", &path, 0, 0, source));
            }
            _ => {}
        }
    }
    let mut copied = Copied::default();
    for name in names {
        let (source, target) = (from.join(name), to.join(name));
        let error = |operation, source| Error::io(operation, &target, 0, 0, source);
        let mut original =
            File::open(&source).map_err(|cause| Error::io("open", &source, 0, 0, cause))?;
        let bytes = original.metadata().map_err(|cause| error("stat", cause))?.len();
        let mut copy = File::create(&target).map_err(|cause| error("create", cause))?;
        // SAFETY: both descriptors are open for the whole call.
        let shared =
            unsafe { libc::ioctl(copy.as_raw_fd(), libc::FICLONE, original.as_raw_fd()) } == 0;
        if shared {
            copied.shared_bytes += bytes;
        } else {
            let available = free_bytes(to)?;
            if bytes + MARGIN > available {
                return Err(Error::NoSpace { path: target, needed: bytes + MARGIN, available });
            }
            plain(&mut original, &mut copy).map_err(|cause| error("copy", cause))?;
        }
        copy.sync_all().map_err(|cause| error("flush", cause))?;
        copied.bytes += bytes;
    }
    let flush = File::open(to).and_then(|directory| directory.sync_all());
    flush.map_err(|source| Error::io("flush", to, 0, 0, source))?;
    Ok(copied)
}

fn plain(from: &mut File, to: &mut File) -> std::io::Result<()> {
    let mut block = vec![0; BLOCK_BYTES];
    loop {
        let length = from.read(&mut block)?;
        if length == 0 {
            return Ok(());
        }
        to.write_all(&block[..length])?;
    }
}

/// Bytes of the files of the state in `directory`; 0 where there is none.
pub fn state_bytes(directory: &Path) -> u64 {
    let sizes = STATE_FILES.iter().filter_map(|name| directory.join(name).metadata().ok());
    sizes.map(|metadata| metadata.len()).sum()
}

/// Whether a directory holds the state of a run.
pub fn holds_state(directory: &Path) -> bool {
    directory.join(SUPERBLOCK_FILE).exists()
}
