//! Near-storage devices.
