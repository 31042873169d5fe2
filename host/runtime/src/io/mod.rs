//! Storage I/O.
