//! The loaded library.

use std::path::Path;

use libloading::Library;

use super::error::XrtError;
use super::sys::Functions;

/// Names under which XRT is looked for, in the loader's places.
const NAMES: [&str; 2] = ["libxrt_coreutil.so.2", "libxrt_coreutil.so"];

/// XRT's library.
#[derive(Debug, Clone, Copy)]
pub struct Xrt {
    pub(super) functions: &'static Functions,
}

impl Xrt {
    /// Loads the library that the system has.
    ///
    /// # Errors
    /// [`XrtError::NoLibrary`], or a function that is missing.
    pub fn load() -> Result<Self, XrtError> {
        let mut reasons = Vec::new();
        for name in NAMES {
            match Self::open(name.as_ref()) {
                Err(XrtError::NoLibrary { reason }) => reasons.push(reason),
                other => return other,
            }
        }
        Err(XrtError::NoLibrary { reason: reasons.join("; ") })
    }

    /// Loads a library from a path, for as long as the program runs.
    ///
    /// # Errors
    /// As [`Xrt::load`].
    pub fn open(path: &Path) -> Result<Self, XrtError> {
        // SAFETY: what the library does when it is loaded is trusted, as every library's that a program links.
        let library = unsafe { Library::new(path) }
            .map_err(|error| XrtError::NoLibrary { reason: error.to_string() })?;
        let functions = Functions::of(library, &path.display().to_string())?;
        Ok(Self { functions: Box::leak(Box::new(functions)) })
    }
}
