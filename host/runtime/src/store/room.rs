//! Room for the files of drives, and directories that are emptied and made durable.

use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::create::STATE_FILES;
use crate::error::{Error, Result};
use crate::io::free_bytes;

/// What one directory is about to take.
pub(super) struct Wanted<'a> {
    pub directory: &'a Path,
    pub bytes: u64,
}

/// Number of the file system of a directory.
pub(super) fn file_system(directory: &Path) -> Result<u64> {
    let metadata = std::fs::metadata(directory);
    metadata
        .map(|metadata| metadata.dev())
        .map_err(|source| Error::io("open", directory, 0, 0, source))
}

/// Checks that there is room: on each file system for all directories on it together. The state that is there now is replaced, so
/// what it takes counts as free.
///
/// # Errors
/// [`Error::NoSpace`] with what is needed and free.
pub(super) fn check_room<'a>(wanted: impl IntoIterator<Item = Wanted<'a>>) -> Result<()> {
    let mut by_device: HashMap<u64, (PathBuf, u64, u64)> = HashMap::new();
    for Wanted { directory, bytes } in wanted {
        let device = file_system(directory)?;
        let entry = by_device.entry(device).or_insert_with(|| (directory.to_path_buf(), 0, 0));
        entry.1 += bytes;
        entry.2 += sizes(directory, |metadata| metadata.blocks() * 512);
    }
    for (path, needed, replaced) in by_device.into_values() {
        let available = free_bytes(&path)? + replaced;
        if needed > available {
            return Err(Error::NoSpace { path, needed, available });
        }
    }
    Ok(())
}

/// Bytes of the files of the state in `directory`; 0 where there is none.
pub fn state_bytes(directory: &Path) -> u64 {
    sizes(directory, std::fs::Metadata::len)
}

fn sizes(directory: &Path, of: fn(&std::fs::Metadata) -> u64) -> u64 {
    let files = STATE_FILES.iter().filter_map(|name| directory.join(name).metadata().ok());
    files.map(|metadata| of(&metadata)).sum()
}

/// Removes the state in `directory`, the superblock first.
pub(super) fn remove_state(directory: &Path) -> Result<()> {
    for name in STATE_FILES {
        let path = directory.join(name);
        match std::fs::remove_file(&path) {
            Err(source) if source.kind() != std::io::ErrorKind::NotFound => {
                return Err(Error::io("remove", &path, 0, 0, source));
            }
            _ => {}
        }
    }
    Ok(())
}

/// Makes durable which files a directory has.
pub(super) fn flush_directory(directory: &Path) -> Result<()> {
    let flush = File::open(directory).and_then(|directory| directory.sync_all());
    flush.map_err(|source| Error::io("flush", directory, 0, 0, source))
}
