//! What may be wrong with a container.

use std::path::PathBuf;

/// Why a container cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum XclbinError {
    /// The file cannot be read.
    #[error("xclbin {file}: {source}", file = file.display())]
    Io {
        /// The file.
        file: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// The file is no container, or a damaged one.
    #[error("xclbin {file} is damaged: {what}", file = file.display())]
    Damaged {
        /// The file.
        file: PathBuf,
        /// What is wrong.
        what: String,
    },
    /// Its kernels are not those that this program calls.
    #[error("xclbin {file} does not fit this program: {what}; rebuild the bitstream", file = file.display())]
    Interface {
        /// The file.
        file: PathBuf,
        /// The kernel and its argument, and what differs.
        what: String,
    },
    /// Its kernels were built from other sources.
    #[error(
        "xclbin {file} holds kernel {kernel} of version {found}, but this program needs {expected}; rebuild the bitstream",
        file = file.display()
    )]
    Version {
        /// The file.
        file: PathBuf,
        /// The kernel.
        kernel: String,
        /// The digest in the container.
        found: String,
        /// The digest of this program's kernels.
        expected: String,
    },
    /// A container cannot be written with these contents.
    #[error("an xclbin cannot be written: {0}")]
    Unwritable(String),
}
