//! How many pairs of a subgroup are kept.

use crate::layout::align_up;

/// Kept counts are rounded up to a multiple of this many pairs.
const UNIT: u64 = 1024;

/// Pairs kept of a subgroup of `padded_elements` when the fraction `keep` of it is to stay:
/// `align_up(floor(keep · padded_elements), 1024)`, at least 1024, at most all (Smart-Infinity, section 4).
///
/// The product is formed in f64. A fraction that is not positive keeps the least count, one of 1 or more keeps all.
pub fn kept(keep: f64, padded_elements: u64) -> u64 {
    let wanted = (keep * padded_elements as f64).floor() as u64;
    align_up(wanted.min(padded_elements), UNIT).max(UNIT).min(padded_elements)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn count_is_a_multiple_of_1024_between_1024_and_all() {
        assert_eq!(kept(0.01, 1_000_448), 10_240);
        assert_eq!(kept(1e-6, 4096), 1024);
        assert_eq!(kept(1.0, 4096), 4096);
        assert_eq!(kept(0.49, 1024), 1024);
        assert_eq!(kept(0.5, 1 << 33), 1 << 32);
    }

    #[test]
    fn subgroups_shorter_than_the_unit_are_kept_whole() {
        assert_eq!(kept(0.01, 0), 0);
        assert_eq!(kept(0.01, 1000), 1000);
        assert_eq!(kept(0.9999, 1500), 1500);
    }

    #[test]
    fn fractions_out_of_range_stay_in_bounds() {
        assert_eq!(kept(-1.0, 4096), 1024);
        assert_eq!(kept(f64::NAN, 4096), 1024);
        assert_eq!(kept(7.0, 4096), 4096);
    }
}
