//! Copies of the files of a drive: for snapshots, and back.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use super::create::{STATE_FILES, distinct};
use super::lock::DriveLock;
use super::room::{Wanted, check_room, file_system, flush_directory, remove_state, state_bytes};
use super::superblock::{LAYOUT_FILE, SUPERBLOCK_FILE};
use crate::error::{Error, Result};

/// Bytes copied at a time.
const BLOCK_BYTES: usize = 8 << 20;
/// Room that is left for the file system's own needs.
const MARGIN: u64 = 1 << 20;

/// Name of a file that is made for a moment.
const PROBE: &str = ".nearfield-probe";

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
    let wanted = from.iter().zip(to).map(|(from, to)| wanted(from, to));
    check_room(wanted.collect::<Result<Vec<_>>>()?)?;
    let mut copied = Copied::default();
    for (from, to) in from.iter().zip(to) {
        let one = copy_drive(from, to)?;
        copied.bytes += one.bytes;
        copied.shared_bytes += one.shared_bytes;
    }
    drop(locks);
    Ok(copied)
}

/// What a copy needs: nothing but a margin where files share their blocks.
fn wanted<'a>(from: &Path, to: &'a Path) -> Result<Wanted<'a>> {
    let shared = file_system(from)? == file_system(to)? && can_share(from, to);
    let bytes = if shared { 0 } else { state_bytes(from) };
    Ok(Wanted { directory: to, bytes: bytes + MARGIN })
}

/// Whether files in `to` can share blocks with those in `from`, which is only known once it is tried.
fn can_share(from: &Path, to: &Path) -> bool {
    let probe = to.join(PROBE);
    let tried = File::open(from.join(SUPERBLOCK_FILE))
        .and_then(|original| Ok((original, File::create(&probe)?)))
        .is_ok_and(|(original, copy)| share(&original, &copy));
    // Nothing depends on it; where it cannot be removed it could not be made.
    let _ = std::fs::remove_file(&probe);
    tried
}

/// Lets `copy` share the blocks of `original`, where the file system can do that.
fn share(original: &File, copy: &File) -> bool {
    // SAFETY: both descriptors are open for the whole call.
    unsafe { libc::ioctl(copy.as_raw_fd(), libc::FICLONE, original.as_raw_fd()) == 0 }
}

fn copy_drive(from: &Path, to: &Path) -> Result<Copied> {
    let mut names: Vec<&str> = STATE_FILES
        .into_iter()
        .filter(|name| from.join(name).is_file() && ![SUPERBLOCK_FILE, LAYOUT_FILE].contains(name))
        .collect();
    names.extend([LAYOUT_FILE, SUPERBLOCK_FILE]);
    remove_state(to)?;
    // An old superblock must not come back beside new data.
    flush_directory(to)?;
    let mut copied = Copied::default();
    for name in names {
        let (source, target) = (from.join(name), to.join(name));
        let error = |operation, source| Error::io(operation, &target, 0, 0, source);
        let mut original =
            File::open(&source).map_err(|cause| Error::io("open", &source, 0, 0, cause))?;
        let bytes = original.metadata().map_err(|cause| error("stat", cause))?.len();
        let mut copy = File::create(&target).map_err(|cause| error("create", cause))?;
        if share(&original, &copy) {
            copied.shared_bytes += bytes;
        } else {
            plain(&mut original, &mut copy).map_err(|cause| error("copy", cause))?;
        }
        copy.sync_all().map_err(|cause| error("flush", cause))?;
        copied.bytes += bytes;
    }
    flush_directory(to)?;
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

/// Whether a directory holds the state of a run.
pub fn holds_state(directory: &Path) -> bool {
    directory.join(SUPERBLOCK_FILE).exists()
}
