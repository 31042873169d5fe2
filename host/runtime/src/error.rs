//! The one error type of the runtime: each value says what failed, where, and what to do about it.

use std::path::{Path, PathBuf};

/// Result of every fallible operation of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What can go wrong in the runtime.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The operating system refused or failed an operation on a file.
    #[error("{operation} {}{}: {source}; {remedy}", path.display(), place(*offset, *length))]
    Io {
        /// What was tried: `read`, `write`, `flush`, `open`, `lock`, `reserve` …
        operation: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// Byte offset in the file, 0 where none applies.
        offset: u64,
        /// Bytes asked for, 0 where none applies.
        length: u64,
        /// The system's error (its `errno` is in `raw_os_error`).
        source: std::io::Error,
        /// What the user can do.
        remedy: &'static str,
    },
    /// A file ended before the bytes that belong to it.
    #[error("{} ends at byte {actual}, but {expected} bytes belong to it; the file was cut short: restore the drive directory from a copy", path.display())]
    Truncated {
        /// The file.
        path: PathBuf,
        /// Bytes it must have.
        expected: u64,
        /// Bytes it has.
        actual: u64,
    },
    /// A direct transfer is not aligned as the drive needs it.
    #[error("{operation} {}: {what} {value} is not a multiple of {alignment} bytes, which this drive needs for direct I/O", path.display())]
    Misaligned {
        /// `read` or `write`.
        operation: &'static str,
        /// The file.
        path: PathBuf,
        /// Which quantity: `offset`, `length` or `buffer address`.
        what: &'static str,
        /// Its value.
        value: u64,
        /// The alignment needed, in bytes.
        alignment: u64,
    },
    /// The drive has not enough room; found before the first step.
    #[error("{}: {needed} bytes are needed but only {available} are free; free some space, use a larger drive, or spread the state over more drives", path.display())]
    NoSpace {
        /// The drive directory.
        path: PathBuf,
        /// Bytes needed.
        needed: u64,
        /// Bytes free.
        available: u64,
    },
    /// Another process uses the drive directory.
    #[error("{} is in use by another run ({holder}); stop that run or give this one a drive of its own", path.display())]
    Locked {
        /// The drive directory.
        path: PathBuf,
        /// What the lock file says of its holder.
        holder: String,
    },
    /// A file is not Nearfield's, or of a version or kind this build does not read.
    #[error("{}: {what}; {remedy}", path.display())]
    Format {
        /// The file or directory.
        path: PathBuf,
        /// What is wrong.
        what: String,
        /// What the user can do.
        remedy: String,
    },
    /// Stored data does not match its checksum.
    #[error("drive {drive} ({}), subgroup {subgroup}, {variable}: stored data does not match its checksum (expected {expected:016x}, found {found:016x}); the drive returned wrong data: restore this drive directory from a copy and check the drive's health", path.display())]
    Corrupt {
        /// Index of the drive in the run.
        drive: u32,
        /// The file that holds the data.
        path: PathBuf,
        /// Subgroup (index in the run's layout).
        subgroup: u32,
        /// `param`, `exp_avg`, `exp_avg_sq`, `gradient`, `superblock`, `journal` …
        variable: String,
        /// Checksum recorded.
        expected: u64,
        /// Checksum of the data as read.
        found: u64,
    },
    /// A header, the journal, the superblock or the layout of a drive does not match its checksum.
    #[error("drive {drive} ({}): {what} is damaged (checksum {expected:016x} recorded, {found:016x} found); the drive returned wrong data: restore this drive directory from a copy and check the drive's health", path.display())]
    Damaged {
        /// Index of the drive in the run; its place on the command line while the superblock is not readable.
        drive: u32,
        /// The file.
        path: PathBuf,
        /// What is damaged: `the superblock`, `the header of slot 3` …
        what: String,
        /// Checksum recorded.
        expected: u64,
        /// Checksum of what was read.
        found: u64,
    },
    /// The drives given do not form the run that is asked for.
    #[error("{what}; {remedy}")]
    Drives {
        /// What does not fit, with the drive named.
        what: String,
        /// What the user can do.
        remedy: String,
    },
    /// The task graph is not valid.
    #[error("task graph: {0}")]
    Graph(String),
    /// A task failed.
    #[error("{label}: {source}")]
    Task {
        /// The task's label.
        label: String,
        /// Why.
        #[source]
        source: Box<Error>,
    },
    /// A task's work panicked.
    #[error(
        "{label} panicked: {message}; this is a defect of the program, the state on the drives is kept as it was"
    )]
    Panic {
        /// The task's label.
        label: String,
        /// The panic's message.
        message: String,
    },
    /// A near-storage device has not the local memory that is asked for.
    #[error(
        "{device}: {requested} bytes of local memory are needed, {available} are left; use a smaller --subgroup-size"
    )]
    LocalMemory {
        /// The device's name.
        device: String,
        /// Bytes asked for.
        requested: u64,
        /// Bytes left.
        available: u64,
    },
    /// Memory could not be reserved.
    #[error(
        "cannot reserve {bytes} bytes of memory for {what}: {source}; use a smaller --subgroup-size or fewer drives"
    )]
    Memory {
        /// What the memory was for.
        what: &'static str,
        /// Bytes asked for.
        bytes: u64,
        /// The system's error.
        source: std::io::Error,
    },
    /// An argument is out of its range.
    #[error("{0}")]
    Invalid(String),
    /// Two tasks used one buffer at a time that the graph should have kept apart.
    #[error("{what} is used by two tasks at once; this is a defect of the task graph")]
    BufferInUse {
        /// The buffer.
        what: String,
    },
    /// Work stopped because another part had failed or the engine was shut down.
    #[error("cancelled: {0}")]
    Cancelled(String),
    /// Something outside the runtime failed inside a task (for example the model's computation).
    #[error("{0}")]
    Work(Box<dyn std::error::Error + Send + Sync>),
}

impl Error {
    /// An [`Error::Io`] with the remedy that fits its `errno`.
    pub fn io(
        operation: &'static str,
        path: &Path,
        offset: u64,
        length: u64,
        source: std::io::Error,
    ) -> Self {
        let remedy = remedy(&source);
        Self::Io { operation, path: path.to_path_buf(), offset, length, source, remedy }
    }

    /// The innermost error below any [`Error::Task`].
    pub fn root(&self) -> &Self {
        match self {
            Self::Task { source, .. } => source.root(),
            other => other,
        }
    }
}

/// Where in a file; nothing for an operation on the whole.
fn place(offset: u64, length: u64) -> String {
    if length == 0 { String::new() } else { format!(" at offset {offset}, {length} bytes") }
}

/// What to do about an error of the operating system.
fn remedy(error: &std::io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::ENOSPC | libc::EDQUOT) => "the drive is full: free some space and resume",
        Some(libc::EFBIG) => {
            "a file-size limit was reached: raise it (ulimit -f) or use another file system"
        }
        Some(libc::EIO) => {
            "the drive reports a fault: check its health (dmesg, smartctl), replace it if needed, and resume"
        }
        Some(libc::EROFS) => {
            "the file system is read-only: remount it read-write (dmesg says why it became so)"
        }
        Some(libc::EACCES | libc::EPERM) => {
            "the process may not do this: check the owner and mode of the drive directory"
        }
        Some(libc::ENOENT | libc::ENOTDIR) => {
            "it does not exist: check the path and that the drive is mounted, make a missing directory, or copy a lost file back"
        }
        Some(libc::ENODEV | libc::ENXIO) => {
            "the drive is gone: check its connection and that it is mounted"
        }
        Some(libc::EINVAL) => "the file system may not support direct I/O: try --direct off",
        Some(libc::EMFILE | libc::ENFILE) => "too many open files: raise the limit (ulimit -n)",
        Some(libc::ENOMEM) => "memory ran out: use a smaller --subgroup-size or --queue-depth",
        _ => "check the drive and the kernel log (dmesg)",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn io_error_names_file_offset_length_and_remedy() {
        let error = Error::io(
            "write",
            Path::new("/mnt/a/slots.nf"),
            4096,
            8192,
            std::io::Error::from_raw_os_error(libc::ENOSPC),
        );
        let text = error.to_string();
        for part in ["write", "/mnt/a/slots.nf", "4096", "8192", "free some space"] {
            assert!(text.contains(part), "{text:?} lacks {part:?}");
        }
    }
}
