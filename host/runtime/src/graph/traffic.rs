//! Bytes per link and direction.

use serde::{Deserialize, Serialize};

use super::{Direction, Op, Place};

/// Data bytes over each link, by direction (Smart-Infinity, sections 3 and 4). Headers and journal
/// records are not in it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Traffic {
    /// Host to storage side, over the link that all drives share.
    pub shared_down: u64,
    /// Storage side to host, over the link that all drives share.
    pub shared_up: u64,
    /// Drive to the memory beside it.
    pub internal_read: u64,
    /// Memory beside the drive to the drive.
    pub internal_write: u64,
    /// Read from the media.
    pub media_read: u64,
    /// Written to the media.
    pub media_write: u64,
}

impl Traffic {
    /// What one operation moves.
    pub fn of(op: &Op) -> Self {
        let mut traffic = Self::default();
        match *op {
            Op::Storage { direction: Direction::Read, other, bytes, .. } => {
                traffic.media_read = bytes;
                match other {
                    Place::Local(_) => traffic.internal_read = bytes,
                    _ => traffic.shared_up = bytes,
                }
            }
            Op::Storage { direction: Direction::Write, other, bytes, .. } => {
                traffic.media_write = bytes;
                match other {
                    Place::Local(_) => traffic.internal_write = bytes,
                    _ => traffic.shared_down = bytes,
                }
            }
            Op::Transfer { from: Place::Local(_), to: Place::Host(_) | Place::Gpu(_), bytes } => {
                traffic.shared_up = bytes;
            }
            Op::Transfer { from: Place::Host(_) | Place::Gpu(_), to: Place::Local(_), bytes } => {
                traffic.shared_down = bytes;
            }
            _ => {}
        }
        traffic
    }

    /// Names and values, in report order.
    pub const fn fields(&self) -> [(&'static str, u64); 6] {
        [
            ("shared_down", self.shared_down),
            ("shared_up", self.shared_up),
            ("internal_read", self.internal_read),
            ("internal_write", self.internal_write),
            ("media_read", self.media_read),
            ("media_write", self.media_write),
        ]
    }

    /// Every count multiplied, for a number of equal steps.
    pub const fn times(self, factor: u64) -> Self {
        Self {
            shared_down: self.shared_down * factor,
            shared_up: self.shared_up * factor,
            internal_read: self.internal_read * factor,
            internal_write: self.internal_write * factor,
            media_read: self.media_read * factor,
            media_write: self.media_write * factor,
        }
    }
}

impl std::ops::Add for Traffic {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            shared_down: self.shared_down + other.shared_down,
            shared_up: self.shared_up + other.shared_up,
            internal_read: self.internal_read + other.internal_read,
            internal_write: self.internal_write + other.internal_write,
            media_read: self.media_read + other.media_read,
            media_write: self.media_write + other.media_write,
        }
    }
}

impl std::ops::Sub for Traffic {
    type Output = Self;

    /// What was moved since `earlier`, of counts that only grow.
    fn sub(self, earlier: Self) -> Self {
        Self {
            shared_down: self.shared_down - earlier.shared_down,
            shared_up: self.shared_up - earlier.shared_up,
            internal_read: self.internal_read - earlier.internal_read,
            internal_write: self.internal_write - earlier.internal_write,
            media_read: self.media_read - earlier.media_read,
            media_write: self.media_write - earlier.media_write,
        }
    }
}

impl std::ops::AddAssign for Traffic {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl std::iter::Sum for Traffic {
    fn sum<I: Iterator<Item = Self>>(iter: I) -> Self {
        iter.fold(Self::default(), |sum, traffic| sum + traffic)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_storage_read_counts_on_the_medium_and_on_one_link() {
        let near =
            Op::Storage { direction: Direction::Read, drive: 0, other: Place::Local(0), bytes: 8 };
        let far =
            Op::Storage { direction: Direction::Read, drive: 0, other: Place::HOST, bytes: 8 };
        assert_eq!(
            Traffic::of(&near),
            Traffic { media_read: 8, internal_read: 8, ..Traffic::default() }
        );
        assert_eq!(
            Traffic::of(&far),
            Traffic { media_read: 8, shared_up: 8, ..Traffic::default() }
        );
    }

    #[test]
    fn weights_from_local_memory_cross_the_shared_link_without_the_medium() {
        let op = Op::Transfer { from: Place::Local(1), to: Place::HOST, bytes: 6 };
        assert_eq!(Traffic::of(&op), Traffic { shared_up: 6, ..Traffic::default() });
        let copy = Op::Transfer { from: Place::HOST, to: Place::Gpu(0), bytes: 6 };
        assert_eq!(Traffic::of(&copy), Traffic::default());
    }
}
