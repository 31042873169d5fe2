//! Gradient codecs.

use crate::layout::align_up;

/// Elements that top-k keeps of a padded part: `align_up(floor(keep * padded), 1024)`, at least 1024, at
/// most all.
pub fn kept(keep: f64, padded_elements: u64) -> u64 {
    align_up((keep * padded_elements as f64).floor() as u64, 1024).max(1024).min(padded_elements)
}
