//! Task graphs.
