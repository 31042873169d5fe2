//! Copies of the files of a drive: for snapshots, and back.

use std::collections::HashMap;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::create::{STATE_FILES, distinct};
use super::lock::DriveLock;
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

/// Copies the state of drives from directories to others, one to one, durably. What is there already is replaced. Files share blocks
/// where the file system can do that. The targets are locked; that no run changes the sources is up to the caller.
///
/// The superblock comes last, so a copy that was cut off is not taken for a state. Hard links are never made: state files are
/// written in place.
///
/// # Errors
/// Directories that are given twice or in use, [`Error::NoSpace`] before anything is replaced, and what the system reports.
pub fn copy_state(from: &[PathBuf], to: &[PathBuf]) -> Result<Copied> {
    let all: Vec<PathBuf> = from.iter().chain(to).cloned().collect();
    distinct(&all)?;
    let locks = to.iter().map(|to| DriveLock::exclusive(to)).collect::<Result<Vec<_>>>()?;
    check_room(from, to)?;
    let mut copied = Copied::default();
    for (from, to) in from.iter().zip(to) {
        let one = copy_drive(from, to)?;
        copied.bytes += one.bytes;
        copied.shared_bytes += one.shared_bytes;
    }
    drop(locks);
    Ok(copied)
}

/// Room is needed on each file system for all drives on it together; what is replaced counts as free. Files that could share their
/// blocks need none, which is only known once it is tried: they are not asked for.
fn check_room(from: &[PathBuf], to: &[PathBuf]) -> Result<()> {
    let device = |path: &Path| {
        let metadata = std::fs::metadata(path);
        metadata
            .map(|metadata| metadata.dev())
            .map_err(|source| Error::io("open", path, 0, 0, source))
    };
    let mut by_device: HashMap<u64, (PathBuf, u64, u64)> = HashMap::new();
    for (from, to) in from.iter().zip(to) {
        let target = device(to)?;
        let entry = by_device.entry(target).or_insert_with(|| (to.clone(), MARGIN, 0));
        if device(from)? != target {
            entry.1 += state_bytes(from);
        }
        entry.2 += state_bytes(to);
    }
    for (path, needed, replaced) in by_device.into_values() {
        let available = free_bytes(&path)? + replaced;
        if needed > available {
            return Err(Error::NoSpace { path, needed, available });
        }
    }
    Ok(())
}

fn copy_drive(from: &Path, to: &Path) -> Result<Copied> {
    let mut names: Vec<&str> = STATE_FILES
        .into_iter()
        .filter(|name| from.join(name).is_file() && ![SUPERBLOCK_FILE, LAYOUT_FILE].contains(name))
        .collect();
    names.extend([LAYOUT_FILE, SUPERBLOCK_FILE]);
    let flush = || {
        let flush = File::open(to).and_then(|directory| directory.sync_all());
        flush.map_err(|source| Error::io("flush", to, 0, 0, source))
    };
    for name in STATE_FILES {
        let path = to.join(name);
        match std::fs::remove_file(&path) {
            Err(source) if source.kind() != std::io::ErrorKind::NotFound => {
                return Err(Error::io("remove", &path, 0, 0, source));
            }
            _ => {}
        }
    }
    // An old superblock must not come back beside new data.
    flush()?;
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
            plain(&mut original, &mut copy).map_err(|cause| error("copy", cause))?;
        }
        copy.sync_all().map_err(|cause| error("flush", cause))?;
        copied.bytes += bytes;
    }
    flush()?;
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
