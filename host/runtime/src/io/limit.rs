//! The raw speed of drives.
