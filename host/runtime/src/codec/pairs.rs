//! Pairs of index and value, sorted by index: checking them, finding a range, expanding it.

use std::ops::Range;

use super::element::Element;
use crate::error::{Error, Result};

/// The first of `indices` that does not come after the one before it, or is not below `elements`.
pub fn first_wrong_pair(indices: &[u32], elements: u64) -> Option<usize> {
    // Counted without leaving early, so that the loop is vectorised: the pairs are almost always right.
    let order = indices.windows(2).filter(|pair| pair[0] >= pair[1]).count();
    let outside = indices.iter().filter(|&&index| u64::from(index) >= elements).count();
    if order + outside == 0 {
        return None;
    }
    let wrong = |place: usize| {
        let before = place.checked_sub(1).and_then(|before| indices.get(before));
        u64::from(indices[place]) >= elements || before.is_some_and(|&b| b >= indices[place])
    };
    (0..indices.len()).find(|&place| wrong(place))
}

/// Checks that `indices` ascend strictly and stay below `elements`.
///
/// # Errors
/// [`Error::Invalid`] with the first place that is out of order, a repetition, or out of range.
pub fn check_pairs(indices: &[u32], elements: u64) -> Result<()> {
    let Some(place) = first_wrong_pair(indices, elements) else { return Ok(()) };
    let index = indices[place];
    let what = match place.checked_sub(1).map(|before| indices[before]) {
        Some(before) if before == index => {
            "occurs twice; the pairs must ascend by index".to_owned()
        }
        Some(before) if before > index => {
            "comes after a greater one; the pairs must ascend by index".to_owned()
        }
        _ => format!("lies outside the subgroup of {elements} elements"),
    };
    Err(Error::Invalid(format!("sparse gradient: index {index} at pair {place} {what}")))
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
    check_pairs(indices, u64::MAX)?;
    out.fill(T::default());
    let range = pairs_in(indices, first, out.len() as u64);
    for (&index, &value) in indices[range.clone()].iter().zip(&values[range]) {
        out[(u64::from(index) - first) as usize] = value;
    }
    Ok(())
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
