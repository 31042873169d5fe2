//! Directories for one measurement.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use anyhow::Context;
use parking_lot::Mutex;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

const PREFIX: &str = ".nearfield-bench-";

/// Directories that exist now, for removal when the process is told to end.
static EXISTING: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// Removes all scratch directories and ends the process when it is interrupted or terminated.
fn watch() -> anyhow::Result<()> {
    static WATCHING: Mutex<bool> = Mutex::new(false);
    let mut watching = WATCHING.lock();
    if *watching {
        return Ok(());
    }
    let mut signals = Signals::new([SIGINT, SIGTERM]).context("cannot watch for signals")?;
    std::thread::Builder::new()
        .name("scratch".into())
        .spawn(move || {
            if let Some(signal) = signals.forever().next() {
                // Held to the end: a measurement that fails because its directory is gone waits for it in `drop`, and so
                // cannot end the process with another exit code.
                let existing = EXISTING.lock();
                for path in existing.iter() {
                    // Files may still be made in it; the second attempt gets them.
                    if std::fs::remove_dir_all(path).is_err() {
                        let _ = std::fs::remove_dir_all(path);
                    }
                }
                std::process::exit(128 + signal);
            }
        })
        .context("cannot start a thread")?;
    *watching = true;
    Ok(())
}

/// Removes what measurements that were killed have left on `drive`.
fn remove_orphans(drive: &Path) {
    for entry in std::fs::read_dir(drive).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let owner = name.to_str().and_then(|name| name.strip_prefix(PREFIX)?.split('-').next());
        if owner.is_some_and(|owner| {
            owner.parse::<u32>().is_ok() && !Path::new("/proc").join(owner).exists()
        }) {
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}

/// A directory of our own below a drive directory, removed with its content when this is dropped, so that a
/// measurement never touches the state of a run.
#[derive(Debug)]
pub struct ScratchDirectory(PathBuf);

impl ScratchDirectory {
    /// Creates one; the drive directory is created when it is missing.
    pub fn create(drive: &Path) -> anyhow::Result<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Relaxed);
        let path = drive.join(format!("{PREFIX}{}-{number}", std::process::id()));
        std::fs::create_dir_all(drive)
            .with_context(|| format!("cannot create {}", drive.display()))?;
        remove_orphans(drive);
        watch()?;
        std::fs::create_dir(&path).with_context(|| format!("cannot create {}", path.display()))?;
        EXISTING.lock().push(path.clone());
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
        EXISTING.lock().retain(|path| *path != self.0);
        if let Err(error) = std::fs::remove_dir_all(&self.0) {
            eprintln!("warning: {} could not be removed: {error}", self.0.display());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_killed_measurement_left_is_removed_by_the_next() {
        let root = tempfile::tempdir().unwrap();
        // No process has this number: it is above the kernel's limit.
        for name in [".nearfield-bench-4194305-0", ".nearfield-bench-x", "other"] {
            std::fs::create_dir(root.path().join(name)).unwrap();
        }
        drop(ScratchDirectory::create(root.path()).unwrap());
        let mut left: Vec<_> = std::fs::read_dir(root.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        left.sort();
        assert_eq!(left, [".nearfield-bench-x", "other"]);
    }

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
