//! The one error type of this crate: each value says what failed and what to do about it.

use std::path::{Path, PathBuf};

/// Result of every fallible operation of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What can go wrong while training.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The storage runtime failed.
    #[error(transparent)]
    Runtime(#[from] nearfield_runtime::error::Error),
    /// libtorch refused or failed an operation.
    #[error("{what}: {message}; {remedy}")]
    Torch {
        /// What was computed.
        what: String,
        /// The first line of libtorch's message.
        message: String,
        /// What the user can do.
        remedy: &'static str,
    },
    /// The text to train on cannot be used.
    #[error("{}: {what}; {remedy}", path.display())]
    Data {
        /// The file or directory.
        path: PathBuf,
        /// What is wrong.
        what: String,
        /// What the user can do.
        remedy: &'static str,
    },
    /// A model's files cannot be used, or not be written.
    #[error("{}: {what}; {remedy}", path.display())]
    Checkpoint {
        /// The file or directory.
        path: PathBuf,
        /// What is wrong.
        what: String,
        /// What the user can do.
        remedy: &'static str,
    },
    /// Gradients overflow whatever the loss scale.
    #[error("iteration {iteration}: {what}; {remedy}")]
    Diverged {
        /// The iteration, from 0, skipped ones included.
        iteration: u64,
        /// What was seen.
        what: String,
        /// What the user can do.
        remedy: &'static str,
    },
    /// An argument is out of its range.
    #[error("{0}")]
    Invalid(String),
}

impl Error {
    /// An [`Error::Torch`] for a failure while computing `what`.
    pub(crate) fn torch(what: impl Into<String>, error: &tch::TchError) -> Self {
        let text = match error {
            tch::TchError::Torch(text) => text.clone(),
            other => other.to_string(),
        };
        // libtorch appends a C++ backtrace that says nothing to a user.
        let message = text.lines().next().unwrap_or_default().trim().to_owned();
        let remedy = if message.contains("out of memory") || message.contains("alloc") {
            "memory of the compute device ran out: use a smaller --batch or --seq and more --accumulate"
        } else if message.contains("CUDA") {
            "check the GPU (nvidia-smi) or use --compute cpu"
        } else {
            "this is a defect of the program if the options are valid"
        };
        Self::Torch { what: what.into(), message, remedy }
    }

    /// An [`Error::Checkpoint`].
    pub(crate) fn checkpoint(path: &Path, what: String, remedy: &'static str) -> Self {
        Self::Checkpoint { path: path.to_path_buf(), what, remedy }
    }

    /// An [`Error::Data`] for a failed system call on `path`.
    pub(crate) fn data_io(operation: &str, path: &Path, error: &std::io::Error) -> Self {
        let remedy = match error.kind() {
            std::io::ErrorKind::NotFound => "check the path given with --data",
            std::io::ErrorKind::PermissionDenied => "make the file readable for this user",
            _ => "check the file system that holds the data",
        };
        Self::Data {
            path: path.to_path_buf(),
            what: format!("cannot {operation}: {error}"),
            remedy,
        }
    }
}

impl From<Error> for nearfield_runtime::error::Error {
    /// Keeps a runtime error as it is and carries any other through a task as [`Work`](nearfield_runtime::error::Error::Work).
    fn from(error: Error) -> Self {
        match error {
            Error::Runtime(error) => error,
            other => Self::Work(Box::new(other)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn torch_error_keeps_the_first_line_and_names_a_remedy() {
        let error = Error::torch(
            "forward of block 3",
            &tch::TchError::Torch("CUDA out of memory. Tried 2 GiB\nException raised from".into()),
        );
        let text = error.to_string();
        assert!(text.starts_with("forward of block 3: CUDA out of memory. Tried 2 GiB; "));
        assert!(text.contains("--batch") && !text.contains("Exception"));
    }

    #[test]
    fn runtime_error_passes_through_a_task_unchanged() {
        let inner = nearfield_runtime::error::Error::Invalid("x".into());
        let outer: nearfield_runtime::error::Error = Error::Runtime(inner).into();
        assert!(matches!(
            outer,
            nearfield_runtime::error::Error::Invalid(text) if text == "x"
        ));
    }
}
