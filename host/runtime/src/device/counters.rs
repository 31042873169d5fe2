//! Counts bytes as they complete.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::graph::{Direction, Op, Place, Traffic};

/// Data bytes over each link, counted when a transfer has completed.
#[derive(Debug, Default)]
pub struct TrafficCounters {
    shared_down: AtomicU64,
    shared_up: AtomicU64,
    internal_read: AtomicU64,
    internal_write: AtomicU64,
    media_read: AtomicU64,
    media_write: AtomicU64,
}

impl TrafficCounters {
    /// Adds what one completed transfer moved.
    pub fn add(&self, moved: Traffic) {
        self.shared_down.fetch_add(moved.shared_down, Relaxed);
        self.shared_up.fetch_add(moved.shared_up, Relaxed);
        self.internal_read.fetch_add(moved.internal_read, Relaxed);
        self.internal_write.fetch_add(moved.internal_write, Relaxed);
        self.media_read.fetch_add(moved.media_read, Relaxed);
        self.media_write.fetch_add(moved.media_write, Relaxed);
    }

    /// Adds a completed transfer between drive `drive` and `other`.
    pub fn add_storage(&self, direction: Direction, drive: u32, other: Place, bytes: u64) {
        self.add(Traffic::of(&Op::Storage { direction, drive, other, bytes }));
    }

    /// Adds a completed copy.
    pub fn add_copy(&self, from: Place, to: Place, bytes: u64) {
        self.add(Traffic::of(&Op::Transfer { from, to, bytes }));
    }

    /// All bytes so far.
    pub fn total(&self) -> Traffic {
        Traffic {
            shared_down: self.shared_down.load(Relaxed),
            shared_up: self.shared_up.load(Relaxed),
            internal_read: self.internal_read.load(Relaxed),
            internal_write: self.internal_write.load(Relaxed),
            media_read: self.media_read.load(Relaxed),
            media_write: self.media_write.load(Relaxed),
        }
    }
}
