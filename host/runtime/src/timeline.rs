//! What an executor measured.
