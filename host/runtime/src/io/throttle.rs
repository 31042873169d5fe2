//! A link of limited speed.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// Says when bytes would have passed a serial link of a given speed.
#[derive(Debug)]
pub struct Throttle {
    bytes_per_second: u64,
    /// When the link is free again.
    free_at: Mutex<Instant>,
}

impl Throttle {
    /// A link of `bytes_per_second`, at least 1.
    pub fn new(bytes_per_second: u64) -> Self {
        Self { bytes_per_second: bytes_per_second.max(1), free_at: Mutex::new(Instant::now()) }
    }

    /// Queues `bytes` on the link; returns how long from now until they have passed.
    pub fn take(&self, bytes: u64) -> Duration {
        let now = Instant::now();
        let mut free_at = self.free_at.lock();
        *free_at = (*free_at).max(now) + self.duration(bytes);
        free_at.duration_since(now)
    }

    /// How long `bytes` take on the free link.
    pub fn duration(&self, bytes: u64) -> Duration {
        Duration::from_secs_f64(bytes as f64 / self.bytes_per_second as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transfers_queue_behind_each_other() {
        let link = Throttle::new(1000);
        assert_eq!(link.duration(500), Duration::from_millis(500));
        let first = link.take(10_000_000);
        let second = link.take(10_000_000);
        assert!(second >= first + Duration::from_secs(9000));
    }
}
