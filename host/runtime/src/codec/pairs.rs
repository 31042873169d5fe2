//! Pairs of index and value, sorted by index: checking them, finding a range, expanding it.

use std::ops::Range;

use super::element::Element;
use crate::error::{Error, Result};

/// Checks that `indices` ascend strictly and stay below `elements`.
///
/// # Errors
/// [`Error::Invalid`] with the first place that is out of order, a repetition, or out of range.
pub fn check_pairs(indices: &[u32], elements: u64) -> Result<()> {
    check_order(indices)?;
    match indices.iter().position(|&index| u64::from(index) >= elements) {
        None => Ok(()),
        Some(place) => Err(Error::Invalid(format!(
            "sparse gradient: index {} at pair {place} lies outside the subgroup of {elements} elements",
            indices[place]
        ))),
    }
}

/// The pairs of `indices`, which ascend, that belong to the elements `[first, first + elements)`.
pub fn pairs_in(indices: &[u32], first: u64, elements: u64) -> Range<usize> {
    let end = first.saturating_add(elements);
    let from = indices.partition_point(|&index| u64::from(index) < first);
    from..from + indices[from..].partition_point(|&index| u64::from(index) < end)
}

/// Expands the pairs of the elements `[first, first + out.len())` into `out`: zero where there is no pair.
///
/// `indices` and `values` are all pairs of the subgroup; those of other elements are left to other calls. The cost
/// is a fill of `out`, a look at all indices, and one store for each pair in the range.
///
/// # Errors
/// [`Error::Invalid`] when the lengths differ or `indices` do not ascend strictly; `out` is then as it was.
pub fn scatter<T: Element>(indices: &[u32], values: &[T], first: u64, out: &mut [T]) -> Result<()> {
    if indices.len() != values.len() {
        return Err(Error::Invalid(format!(
            "sparse gradient: {} indices but {} values",
            indices.len(),
            values.len()
        )));
    }
    check_order(indices)?;
    out.fill(T::default());
    let range = pairs_in(indices, first, out.len() as u64);
    for (&index, &value) in indices[range.clone()].iter().zip(&values[range]) {
        out[(u64::from(index) - first) as usize] = value;
    }
    Ok(())
}

fn check_order(indices: &[u32]) -> Result<()> {
    // Counted without leaving early, so that the loop is vectorised: the order is almost always right.
    let wrong = indices.windows(2).filter(|pair| pair[0] >= pair[1]).count();
    if wrong == 0 {
        return Ok(());
    }
    let place = indices.windows(2).position(|pair| pair[0] >= pair[1]).unwrap_or_default();
    let (before, after) = (indices[place], indices[place + 1]);
    let what = if before == after { "occurs twice" } else { "comes after a greater one" };
    Err(Error::Invalid(format!(
        "sparse gradient: index {after} at pair {} {what}; the pairs must ascend by index",
        place + 1
    )))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn pieces_of_any_length_join_to_the_whole(
            present in prop::collection::vec(any::<bool>(), 0..300),
            piece in 1_usize..100,
        ) {
            let whole: Vec<f32> =
                present.iter().enumerate().map(|(i, &p)| if p { i as f32 + 1.0 } else { 0.0 }).collect();
            let indices: Vec<u32> = (0..whole.len() as u32).filter(|&i| present[i as usize]).collect();
            let values: Vec<f32> = indices.iter().map(|&i| whole[i as usize]).collect();
            let mut out = vec![f32::NAN; whole.len()];
            let mut used = 0;
            for (number, piece_out) in out.chunks_mut(piece).enumerate() {
                let first = (number * piece) as u64;
                used += pairs_in(&indices, first, piece_out.len() as u64).len();
                scatter(&indices, &values, first, piece_out).unwrap();
            }
            prop_assert_eq!(out, whole);
            prop_assert_eq!(used, indices.len());
        }
    }

    #[test]
    fn unsorted_and_repeated_indices_are_refused_and_named() {
        let mut out = [7.0; 4];
        for (indices, what) in [
            ([0, 2, 1], "index 1 at pair 2 comes after"),
            ([0, 2, 2], "index 2 at pair 2 occurs twice"),
        ] {
            let error = scatter(&indices, &[1.0, 2.0, 3.0], 0, &mut out).unwrap_err().to_string();
            assert!(error.contains(what), "{error}");
            assert_eq!(out, [7.0; 4], "a refused list writes nothing");
            assert!(check_pairs(&indices, 4).is_err());
        }
        assert!(scatter(&[0, 1], &[1.0], 0, &mut out).is_err());
    }

    #[test]
    fn an_index_outside_the_subgroup_is_refused_and_named() {
        assert!(check_pairs(&[0, 3], 4).is_ok());
        let error = check_pairs(&[0, 4, 5], 4).unwrap_err().to_string();
        assert!(error.contains("index 4 at pair 1"), "{error}");
        assert!(check_pairs(&[], 0).is_ok());
    }

    #[test]
    fn ranges_at_the_end_of_the_index_space_do_not_wrap() {
        assert_eq!(pairs_in(&[0, u32::MAX], u64::from(u32::MAX), u64::MAX), 1..2);
        assert_eq!(pairs_in(&[5], 6, 10), 1..1);
        assert_eq!(pairs_in(&[], 0, 10), 0..0);
    }
}
