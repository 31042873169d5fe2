//! The units in which a model streams through the compute device.

use std::ops::Range;

use super::tensors::{Role, TensorList};

/// A part of the model that is on the compute device as one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Unit {
    /// Token and position embedding.
    Embed,
    /// Transformer block, from 0.
    Block(u32),
    /// Final norm and the multiplication with the (tied) embedding, and the loss.
    Head,
}

impl std::fmt::Display for Unit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Embed => f.write_str("embedding"),
            Self::Block(layer) => write!(f, "block {layer}"),
            Self::Head => f.write_str("head"),
        }
    }
}

/// What a unit needs of the flat vector, and what its backward pass completes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnitPlan {
    /// The unit.
    pub unit: Unit,
    /// The tensors it uses, as indices of [`TensorList::tensors`], in flat order.
    pub tensors: Vec<usize>,
    /// What each of them is for.
    pub roles: Vec<Role>,
    /// The flat ranges of these tensors, ascending, adjacent ones merged. The embedding's backward pass needs no weights.
    pub reads: Vec<Range<u64>>,
    /// The flat ranges whose gradient is complete when the unit's backward pass ends, ascending, adjacent ones merged. Over all units they
    /// cover the flat vector once. A tied embedding is complete at [`Unit::Embed`], where the head's share is added.
    pub completes: Vec<Range<u64>>,
}

impl UnitPlan {
    /// The plans of all units in forward order: embedding, blocks, head.
    pub fn all(list: &TensorList) -> Vec<Self> {
        let blocks = (0..list.architecture().layers).map(Unit::Block);
        std::iter::once(Unit::Embed)
            .chain(blocks)
            .chain(std::iter::once(Unit::Head))
            .map(|unit| Self::new(list, unit))
            .collect()
    }

    fn new(list: &TensorList, unit: Unit) -> Self {
        let tied = list.architecture().tied;
        // A tied head uses the embedding's table.
        let shared = (unit == Unit::Head && tied).then_some(0);
        let mut tensors: Vec<usize> = (0..list.tensors().len())
            .filter(|&index| list.tensors()[index].unit == unit || Some(index) == shared)
            .collect();
        tensors.sort_by_key(|&index| list.tensors()[index].flat_start);
        let ranges = |keep: &dyn Fn(usize) -> bool| {
            let mut merged: Vec<Range<u64>> = Vec::new();
            for &index in tensors.iter().filter(|&&index| keep(index)) {
                let range = list.tensors()[index].range();
                match merged.last_mut() {
                    Some(last) if last.end == range.start => last.end = range.end,
                    _ => merged.push(range),
                }
            }
            merged
        };
        let reads = ranges(&|_| true);
        let completes = ranges(&|index| Some(index) != shared);
        let roles = tensors.iter().map(|&index| list.tensors()[index].role).collect();
        Self { unit, tensors, roles, reads, completes }
    }

    /// Elements that it reads.
    pub fn elements(&self) -> u64 {
        self.reads.iter().map(|range| range.end - range.start).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Shape;

    fn list(tied: bool) -> TensorList {
        TensorList::new(Shape { layers: 3, hidden: 6, heads: 2, vocab: 11, seq: 5, tied }).unwrap()
    }

    #[test]
    fn completed_ranges_cover_the_flat_vector_once() {
        for tied in [true, false] {
            let list = list(tied);
            let plans = UnitPlan::all(&list);
            assert_eq!(plans.len(), 5);
            let mut ranges: Vec<_> = plans.iter().flat_map(|p| p.completes.clone()).collect();
            ranges.sort_by_key(|range| range.start);
            let mut next = 0;
            for range in ranges {
                assert_eq!(range.start, next);
                next = range.end;
            }
            assert_eq!(next, list.elements());
        }
    }

    #[test]
    fn a_block_is_one_range_in_each_group() {
        let list = list(true);
        let plans = UnitPlan::all(&list);
        for plan in &plans[1..4] {
            assert_eq!(plan.reads.len(), 2);
            assert_eq!(plan.reads, plan.completes);
            assert!(plan.reads[0].end <= list.decay().end);
            assert!(plan.reads[1].start >= list.no_decay().start);
            assert_eq!(plan.elements(), 12 * 36 + 13 * 6);
        }
    }

    #[test]
    fn tied_table_is_read_twice_and_completed_by_the_embedding() {
        let list = list(true);
        let plans = UnitPlan::all(&list);
        let table = list.tensors()[0].range();
        assert_eq!(plans[4].reads[0], table);
        assert!(!plans[4].completes.contains(&table));
        let both_tables = 0..(11 + 5) * 6;
        assert_eq!(plans[0].completes, std::slice::from_ref(&both_tables));
    }

    #[test]
    fn tensors_of_a_unit_come_in_flat_order() {
        for tied in [true, false] {
            let list = list(tied);
            for plan in UnitPlan::all(&list) {
                let starts: Vec<u64> =
                    plan.tensors.iter().map(|&index| list.tensors()[index].flat_start).collect();
                assert!(starts.is_sorted(), "{plan:?}");
            }
        }
    }
}
