//! What the graph of a step with updates ahead must fulfil.

use nearfield_runtime::graph::TaskId;
use nearfield_runtime::layout::Layout;
use proptest::prelude::*;

use super::gradient::UnitShape;
use super::update_tests::{ancestors, buffers_are_kept_apart};
use super::{Action, ahead, formulas};
use crate::offload::options::{OffloadOptions, Placement, System, Upstream, WeightsPlace};
use crate::offload::placement::{FlatModel, layout};

/// Units over a flat model whose weights lie in two runs each, in a part with decay and one without; the last one reads the
/// first one's table as well, which is complete after the first one only.
fn units(elements: u64, count: u64) -> Vec<UnitShape> {
    let decay = elements * 9 / 10;
    let run = |from: u64, to: u64, unit: u64| {
        let of = |unit: u64| from + (to - from) * unit / count;
        (of(unit), of(unit + 1) - of(unit))
    };
    (0..count)
        .map(|unit| {
            let both = vec![run(0, decay, unit), run(decay, elements, unit)];
            let gradients: Vec<_> = both.into_iter().filter(|&(_, length)| length > 0).collect();
            let mut reads = gradients.clone();
            if unit + 1 == count && count > 1 {
                reads.insert(0, run(0, decay, 0));
            }
            UnitShape {
                name: format!("unit{unit}"),
                weight_elements: 1,
                output_bytes: 1,
                working_bytes: 1,
                score_bytes: 0,
                forward_flops: 1,
                forward: unit + 1 < count,
                backward_weights: unit > 0,
                reads,
                gradients,
            }
        })
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]
    #[test]
    fn updates_follow_their_gradients_keep_buffers_apart_and_move_the_bytes_of_a_step(
        compressed: bool,
        elements in 10_u64..400_000,
        count in 1_u64..6,
        subgroup in prop::sample::select(vec![20_000_u64, 70_000, 200_000]),
        drives in 1_u32..4,
        pieces in 1_u32..4,
        storage: bool,
        placement in prop::sample::select(vec![Placement::FlatEqual, Placement::EqualRr, Placement::SubgroupRr]),
        error_feedback: bool,
        weights in prop::sample::select(vec![WeightsPlace::Host, WeightsPlace::Drive]),
    ) {
        let options = OffloadOptions {
            system: if compressed { System::SuOC } else { System::SuO },
            upstream: if storage { Upstream::Fp32Storage } else { Upstream::Fp16Local },
            overlap_update: true, subgroup_elements: subgroup, pieces, placement, weights,
            error_feedback: compressed && error_feedback,
            ..OffloadOptions::default()
        };
        let layout: Layout = layout(&FlatModel::single(elements).unwrap(), &options, drives).unwrap();
        let units = units(elements, count);
        let plan = ahead::gradients(&layout, &options, &units).unwrap();
        let sets = ancestors(&plan);
        buffers_are_kept_apart(&plan, &layout, &options, &sets)?;

        // Weights in host memory are replaced after the last unit has read them.
        for (task, &action) in plan.actions.iter().enumerate() {
            let (Action::FetchWeights { range } | Action::CastWeights { range, .. }) = action else { continue };
            let first = layout.parts[range.part].start + range.offset;
            for (load, &other) in plan.actions.iter().enumerate() {
                let Action::LoadUnit { unit, buffer: None, .. } = other else { continue };
                let overlaps = units[unit].reads.iter().any(|&(start, length)| {
                    start < first + range.elements && first < start + length
                });
                prop_assert!(!overlaps || sets[task][load], "unit {unit} may see new weights of {range:?}");
            }
        }
        let of = |wanted: &dyn Fn(Action) -> bool| -> Vec<TaskId> {
            plan.actions.iter().enumerate().filter(|&(_, &action)| wanted(action))
                .map(|(index, _)| TaskId(index as u32)).collect()
        };
        for part in 0..layout.parts.len() {
            let written = of(&|action| matches!(action, Action::WriteGradient { part: of, .. } if of == part));
            prop_assert_eq!(written.len(), 1);
            let updates = of(&|action| matches!(action, Action::Update { range, .. } if range.part == part));
            let elements: u64 = updates.iter().map(|id| match plan.actions[id.index()] {
                Action::Update { range, .. } => range.elements,
                _ => 0,
            }).sum();
            prop_assert_eq!(elements, layout.padded(part));
            for update in updates {
                prop_assert!(sets[update.index()][written[0].index()]);
            }
        }
        let paged = super::gradient::paged_traffic(&layout, &options, &units);
        prop_assert_eq!(plan.graph.traffic(), formulas::step_traffic(&layout, &options) + paged);
    }
}

#[test]
fn what_counts_is_decided_on_all_drives_at_once() {
    let options = OffloadOptions {
        overlap_update: true,
        subgroup_elements: 4096,
        ..OffloadOptions::default()
    };
    let layout = layout(&FlatModel::single(50_000).unwrap(), &options, 3).unwrap();
    let plan = ahead::adopt(&layout, &options).unwrap();
    let sets = ancestors(&plan);
    let of = |wanted: fn(Action) -> bool| -> Vec<usize> {
        (0..plan.actions.len()).filter(|&index| wanted(plan.actions[index])).collect()
    };
    let intents = of(|action| matches!(action, Action::Intent { .. }));
    let adopted = of(|action| matches!(action, Action::Adopt { .. }));
    let finished = of(|action| matches!(action, Action::Finish { .. }));
    let commits = of(|action| matches!(action, Action::Commit { .. }));
    for (first, then) in [(&intents, &adopted), (&finished, &commits)] {
        assert_eq!((first.len(), then.len()), (3, 3));
        assert!(then.iter().all(|&then| first.iter().all(|&first| sets[then][first])));
    }
    assert_eq!(plan.graph.traffic(), Default::default());
}
