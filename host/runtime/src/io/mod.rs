//! Storage I/O: one engine a drive, `io_uring` where the system allows it, threads elsewhere.
//!
//! ```no_run
//! use nearfield_runtime::io::{IoEngine, IoOptions, OpenMode};
//!
//! let engine = IoEngine::start("drive0", &IoOptions::default())?;
//! let file = engine.open("/mnt/nvme0/data".as_ref(), OpenMode::Create)?;
//! file.reserve(1 << 20)?;
//! # Ok::<(), nearfield_runtime::Error>(())
//! ```

mod block;
mod engine;
mod faults;
mod file;
mod job;
mod threads;
mod throttle;
mod uring;

pub mod limit;

pub use block::BlockDevice;
pub use engine::{Backend, IoEngine, IoOptions, IoStats};
pub use faults::{FaultAction, FaultOperation, FaultRule, Faults};
pub use file::{Direct, DriveFile, OpenMode, free_bytes};
pub use throttle::Throttle;
