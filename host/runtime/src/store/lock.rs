//! The lock file of a drive directory: one run at a time.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read, Seek, Write};
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::error::{Error, Result};

/// Name of the lock file.
pub(crate) const LOCK_FILE: &str = "lock";

/// A held lock; given back when dropped, or by the kernel when the process ends in any way.
///
/// The file stays: only the `flock` on it counts, so a file left by a killed run locks nothing. Its text says who
/// holds it (process and start), for the message to the second run.
#[derive(Debug)]
pub(crate) struct DriveLock {
    _file: Option<File>,
}

impl DriveLock {
    /// Takes the directory for a run that writes.
    pub fn exclusive(directory: &Path) -> Result<Self> {
        let path = directory.join(LOCK_FILE);
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)
            .map_err(|source| Error::io("open", &path, 0, 0, source))?;
        taken(directory, &path, &mut file, File::try_lock)?;
        let holder = format!("process {}, started {}\n", std::process::id(), utc(process_start()));
        let written = file
            .set_len(0)
            .and_then(|()| file.rewind())
            .and_then(|()| file.write_all(holder.as_bytes()));
        written.map_err(|source| Error::io("write", &path, 0, holder.len() as u64, source))?;
        Ok(Self { _file: Some(file) })
    }

    /// Takes the directory for a reader, beside other readers; works on a read-only file system.
    pub fn shared(directory: &Path) -> Result<Self> {
        let path = directory.join(LOCK_FILE);
        match File::open(&path) {
            Ok(mut file) => {
                taken(directory, &path, &mut file, File::try_lock_shared)?;
                Ok(Self { _file: Some(file) })
            }
            // Without a lock file no run of this program ever wrote here.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Self { _file: None }),
            Err(source) => Err(Error::io("open", &path, 0, 0, source)),
        }
    }
}

fn taken(
    directory: &Path,
    path: &Path,
    file: &mut File,
    take: impl Fn(&File) -> Result<(), TryLockError>,
) -> Result<()> {
    match take(file) {
        Ok(()) => Ok(()),
        Err(TryLockError::WouldBlock) => {
            let mut holder = String::new();
            // The text is for the message only; the lock itself has already said no.
            let _ = file.take(200).read_to_string(&mut holder);
            let holder = match holder.trim() {
                "" => "its holder has not left its name".to_string(),
                named => named.to_string(),
            };
            Err(Error::Locked { path: directory.to_path_buf(), holder })
        }
        Err(TryLockError::Error(source)) => Err(Error::io("lock", path, 0, 0, source)),
    }
}

/// Moment at which this process first took a lock: near enough to its start to recognise it.
fn process_start() -> SystemTime {
    static START: std::sync::OnceLock<SystemTime> = std::sync::OnceLock::new();
    *START.get_or_init(SystemTime::now)
}

/// `2025-12-01T09:30:00Z`.
fn utc(time: SystemTime) -> String {
    let seconds = time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    // Civil date from days since 1970-01-01, in eras of 400 years that begin on 1 March.
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    let (hour, minute, second) = (rest / 3600, rest % 3600 / 60, rest % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn second_holder_is_refused_and_told_who_holds_it() {
        let directory = tempfile::tempdir().unwrap();
        let held = DriveLock::exclusive(directory.path()).unwrap();
        let refused = DriveLock::exclusive(directory.path()).unwrap_err().to_string();
        assert!(refused.contains(&format!("process {}", std::process::id())), "{refused}");
        assert!(matches!(DriveLock::shared(directory.path()), Err(Error::Locked { .. })));
        drop(held);
        let reader = DriveLock::shared(directory.path()).unwrap();
        let other = DriveLock::shared(directory.path()).unwrap();
        assert!(matches!(DriveLock::exclusive(directory.path()), Err(Error::Locked { .. })));
        drop((reader, other));
        DriveLock::exclusive(directory.path()).unwrap();
    }

    #[test]
    fn dates_are_right() {
        let at = |seconds| utc(UNIX_EPOCH + Duration::from_secs(seconds));
        assert_eq!(at(0), "1970-01-01T00:00:00Z");
        assert_eq!(at(951_782_400), "2000-02-29T00:00:00Z");
        assert_eq!(at(1_764_547_199), "2025-11-30T23:59:59Z");
    }
}
