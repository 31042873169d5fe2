//! The state store: what a drive directory holds.
