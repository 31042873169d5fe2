//! The loaded library.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use libloading::Library;
use parking_lot::Mutex;

use super::error::XrtError;
use super::sys::Functions;

/// Names under which XRT is looked for, in the loader's places.
const NAMES: [&str; 2] = ["libxrt_coreutil.so.2", "libxrt_coreutil.so"];

/// XRT's library.
#[derive(Debug, Clone)]
pub struct Xrt {
    pub(super) shared: Arc<Shared>,
}

#[derive(Debug)]
pub(super) struct Shared {
    pub functions: Functions,
    /// Cards that are open. Held while one is opened, loaded or closed: XRT's own software emulation breaks when two threads do so
    /// at a time.
    pub open: Mutex<BTreeSet<u32>>,
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

    /// Loads a library from a path.
    ///
    /// # Errors
    /// As [`Xrt::load`].
    pub fn open(path: &Path) -> Result<Self, XrtError> {
        // SAFETY: what the library does when it is loaded is trusted, as every library's that a program links.
        let library = unsafe { Library::new(path) }
            .map_err(|error| XrtError::NoLibrary { reason: error.to_string() })?;
        let functions = Functions::of(library, &path.display().to_string())?;
        Ok(Self { shared: Arc::new(Shared { functions, open: Mutex::default() }) })
    }
}
