//! Which part of the flat parameter vector lies on which drive.

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// Rounds `value` up to a multiple of `unit`.
pub const fn align_up(value: u64, unit: u64) -> u64 {
    value.div_ceil(unit) * unit
}

/// A run of the flat parameter vector that one drive owns and that is read, updated and written as one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    /// Owning drive, from 0.
    pub drive: u32,
    /// The subgroup it belongs to. With striped placement a subgroup has one part on each drive, else exactly one.
    pub subgroup: u32,
    /// First element in the flat vector.
    pub start: u64,
    /// Elements, without padding; never 0.
    pub elements: u64,
}

impl Part {
    /// One past the last element.
    pub const fn end(&self) -> u64 {
        self.start + self.elements
    }
}

/// A partition of the flat parameter vector into parts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Layout {
    /// Elements of the flat vector.
    pub elements: u64,
    /// Stored parts are zero-padded to a multiple of this many elements.
    pub align_elements: u64,
    /// Number of drives.
    pub drives: u32,
    /// The parts in flat order.
    pub parts: Vec<Part>,
}

impl Layout {
    /// Checks that `parts` cover `[0, elements)` once, in order, on drives that exist.
    pub fn new(elements: u64, align_elements: u64, drives: u32, parts: Vec<Part>) -> Result<Self> {
        let mut next = 0;
        for part in &parts {
            if part.start != next || part.elements == 0 || part.drive >= drives {
                return Err(Error::Invalid(format!(
                    "layout: {part:?} does not continue at element {next} on one of {drives} drives"
                )));
            }
            next = part.end();
        }
        if next != elements || align_elements == 0 {
            return Err(Error::Invalid(format!(
                "layout: the parts cover {next} of {elements} elements (alignment {align_elements})"
            )));
        }
        Ok(Self { elements, align_elements, drives, parts })
    }

    /// Elements of part `index` with padding.
    pub fn padded(&self, index: usize) -> u64 {
        align_up(self.parts[index].elements, self.align_elements)
    }

    /// Elements of all parts with padding: the `N` of the traffic formulas.
    pub fn padded_total(&self) -> u64 {
        (0..self.parts.len()).map(|index| self.padded(index)).sum()
    }

    /// Padded elements of the longest part (the longest on `drive`, when given); 0 without parts.
    pub fn longest(&self, drive: Option<u32>) -> u64 {
        (0..self.parts.len())
            .filter(|&index| drive.is_none_or(|drive| self.parts[index].drive == drive))
            .map(|index| self.padded(index))
            .max()
            .unwrap_or(0)
    }

    /// Indices of the parts on `drive`, in flat order.
    pub fn on_drive(&self, drive: u32) -> Vec<usize> {
        (0..self.parts.len()).filter(|&index| self.parts[index].drive == drive).collect()
    }

    /// Indices of the parts that overlap `[start, start + elements)`.
    pub fn overlapping(&self, start: u64, elements: u64) -> std::ops::Range<usize> {
        let end = start + elements;
        let first = self.parts.partition_point(|part| part.end() <= start);
        let last = self.parts.partition_point(|part| part.start < end);
        first..last.max(first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(drive: u32, start: u64, elements: u64) -> Part {
        Part { drive, subgroup: 0, start, elements }
    }

    #[test]
    fn parts_must_cover_the_vector_once() {
        assert!(Layout::new(10, 4, 2, vec![part(0, 0, 6), part(1, 6, 4)]).is_ok());
        assert!(Layout::new(10, 4, 2, vec![part(0, 0, 6), part(1, 7, 3)]).is_err());
        assert!(Layout::new(10, 4, 2, vec![part(0, 0, 6)]).is_err());
        assert!(Layout::new(6, 4, 1, vec![part(1, 0, 6)]).is_err());
        assert!(Layout::new(0, 4, 1, vec![]).is_ok());
    }

    #[test]
    fn padding_and_overlap_follow_the_parts() {
        let layout = Layout::new(10, 4, 2, vec![part(0, 0, 6), part(1, 6, 4)]).unwrap();
        assert_eq!(layout.padded(0), 8);
        assert_eq!(layout.padded_total(), 12);
        assert_eq!(layout.longest(Some(1)), 4);
        assert_eq!(layout.overlapping(0, 6), 0..1);
        assert_eq!(layout.overlapping(5, 2), 0..2);
        assert_eq!(layout.overlapping(6, 0), 1..1);
    }
}
