//! The threaded executor.
