//! Numbers of a description: positive ones, and rates that depend on a size.

use serde::{Deserialize, Serialize};

/// Beyond these, times are no numbers any more.
const LEAST: f64 = 1e-15;
const MOST: f64 = 1e30;

/// A finite number above 0.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd, Serialize, Deserialize)]
#[serde(try_from = "f64", into = "f64")]
pub struct Positive(f64);

impl Positive {
    /// The number.
    pub const fn get(self) -> f64 {
        self.0
    }
}

impl TryFrom<f64> for Positive {
    type Error = String;

    fn try_from(value: f64) -> Result<Self, String> {
        if !(value.is_finite() && value > 0.0) {
            return Err(format!("{value} is not a number above 0"));
        }
        if !(LEAST..=MOST).contains(&value) {
            return Err(format!("{value:e} is not between {LEAST:e} and {MOST:e}"));
        }
        Ok(Self(value))
    }
}

impl From<Positive> for f64 {
    fn from(value: Positive) -> Self {
        value.0
    }
}

/// A rate for transfers, or kernels, of one size. Between two sizes the rate lies on a line over the logarithm of the
/// size; beyond the ends it is that of the end.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SizePoint {
    /// The size.
    pub bytes: Positive,
    /// The rate.
    pub bytes_per_second: Positive,
}

/// A rate for computations of one size; between sizes as [`SizePoint`].
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WorkPoint {
    /// The size.
    pub flops: Positive,
    /// The rate.
    pub flops_per_second: Positive,
}

/// A share of a rate for transfers of one size; between sizes as [`SizePoint`].
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SharePoint {
    /// The size.
    pub bytes: Positive,
    /// The share, at most 1.
    pub share: Positive,
}

/// A point of a curve.
pub(super) trait Point {
    fn size(&self) -> f64;
    fn rate(&self) -> f64;
}

impl Point for SizePoint {
    fn size(&self) -> f64 {
        self.bytes.get()
    }
    fn rate(&self) -> f64 {
        self.bytes_per_second.get()
    }
}

impl Point for WorkPoint {
    fn size(&self) -> f64 {
        self.flops.get()
    }
    fn rate(&self) -> f64 {
        self.flops_per_second.get()
    }
}

impl Point for SharePoint {
    fn size(&self) -> f64 {
        self.bytes.get()
    }
    fn rate(&self) -> f64 {
        self.share.get()
    }
}

/// The rate at `size` on a curve of ascending sizes.
pub(super) fn rate_at<P: Point>(points: &[P], size: f64) -> f64 {
    let above = points.partition_point(|point| point.size() < size);
    match (above.checked_sub(1).and_then(|below| points.get(below)), points.get(above)) {
        (Some(low), Some(high)) => {
            let share = (size / low.size()).ln() / (high.size() / low.size()).ln();
            low.rate() + share * (high.rate() - low.rate())
        }
        (Some(end), None) | (None, Some(end)) => end.rate(),
        (None, None) => f64::NAN,
    }
}

/// The highest rate on a curve.
pub(super) fn best_rate<P: Point>(points: &[P]) -> f64 {
    points.iter().map(Point::rate).fold(0.0, f64::max)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_lie_between_their_points_and_end_with_them() {
        let point = |bytes: f64, rate: f64| SizePoint {
            bytes: Positive::try_from(bytes).unwrap(),
            bytes_per_second: Positive::try_from(rate).unwrap(),
        };
        let points = [point(100.0, 10.0), point(10_000.0, 30.0)];
        assert_eq!(rate_at(&points, 1.0), 10.0);
        assert_eq!(rate_at(&points, 100.0), 10.0);
        assert!((rate_at(&points, 1000.0) - 20.0).abs() < 1e-9);
        assert_eq!(rate_at(&points, 1e9), 30.0);
        assert_eq!(best_rate(&points), 30.0);
    }

    #[test]
    fn only_finite_numbers_above_zero_are_positive() {
        for wrong in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            assert!(Positive::try_from(wrong).is_err());
        }
    }
}
