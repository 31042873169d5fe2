//! Directories for one measurement.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use anyhow::Context;

/// A directory of our own below a drive directory, removed with its content when this is dropped, so that a
/// measurement never touches the state of a run.
#[derive(Debug)]
pub struct ScratchDirectory(PathBuf);

impl ScratchDirectory {
    /// Creates one; the drive directory is created when it is missing.
    pub fn create(drive: &Path) -> anyhow::Result<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Relaxed);
        let path = drive.join(format!(".nearfield-bench-{}-{number}", std::process::id()));
        std::fs::create_dir_all(drive)
            .with_context(|| format!("cannot create {}", drive.display()))?;
        std::fs::create_dir(&path).with_context(|| format!("cannot create {}", path.display()))?;
        Ok(Self(path))
    }

    /// One in each drive directory.
    pub fn in_each(drives: &[PathBuf]) -> anyhow::Result<Vec<Self>> {
        drives.iter().map(|drive| Self::create(drive)).collect()
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for ScratchDirectory {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.0) {
            eprintln!("warning: {} could not be removed: {error}", self.0.display());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_removed_with_its_content() {
        let root = tempfile::tempdir().unwrap();
        let drive = root.path().join("drive");
        let scratch = ScratchDirectory::in_each(&[drive.clone(), drive.clone()]).unwrap();
        std::fs::write(scratch[1].path().join("file"), b"data").unwrap();
        assert_ne!(scratch[0].path(), scratch[1].path());
        drop(scratch);
        assert_eq!(std::fs::read_dir(drive).unwrap().count(), 0);
    }
}
