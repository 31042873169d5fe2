//! What every update graph must fulfil, whatever the system.

use std::collections::HashMap;

use nearfield_runtime::graph::{Op, Place, TaskId};
use nearfield_runtime::layout::Layout;
use nearfield_runtime::store::spare_slots;
use nearfield_runtime::types::{DType, Optimizer, Variable};
use proptest::prelude::*;

use super::{Action, Plan, formulas, update};
use crate::offload::options::{OffloadOptions, Placement, System, Upstream};
use crate::offload::placement::{FlatModel, layout};

fn build(options: &OffloadOptions, elements: u64, drives: u32) -> (Layout, Plan) {
    let layout = layout(&FlatModel::single(elements).unwrap(), options, drives).unwrap();
    let parts: Vec<usize> = (0..layout.parts.len()).collect();
    let plan = update::plan(&layout, options, &parts).unwrap();
    (layout, plan)
}

/// For each task the set of tasks that surely ended before it, as a bitmap.
pub(super) fn ancestors(plan: &Plan) -> Vec<Vec<bool>> {
    let tasks = plan.graph.tasks();
    let mut sets: Vec<Vec<bool>> = vec![vec![false; tasks.len()]; tasks.len()];
    for task in tasks {
        for &before in plan.graph.predecessors(task.id) {
            let set = sets[before.index()].clone();
            let own = &mut sets[task.id.index()];
            for (own, inherited) in own.iter_mut().zip(set) {
                *own |= inherited;
            }
            own[before.index()] = true;
        }
    }
    sets
}

/// Buffer pieces that an action reads or writes: `(place, set, name, piece)` and whether it writes.
fn uses(
    layout: &Layout,
    options: &OffloadOptions,
    action: Action,
) -> Vec<((u32, u32, u32, u32), bool)> {
    let variables = options.optimizer.variables();
    let buffer =
        |part: usize, set: u32, name: u32, piece: u32| (layout.parts[part].drive, set, name, piece);
    let (gradient, copy, pairs, up, staging, residual) = (10, 11, 12, 13, 14, 15);
    match action {
        Action::Load { range, variable, set } => {
            let name = if variable == Variable::Gradient { gradient } else { variable as u32 };
            vec![(buffer(range.part, set, name, range.piece), true)]
        }
        Action::LoadPairs { part } => vec![(buffer(part, 0, pairs, 0), true)],
        Action::CheckPairs { part } => vec![(buffer(part, 0, pairs, 0), true)],
        Action::Decompress { range } => vec![
            (buffer(range.part, 0, pairs, 0), false),
            (buffer(range.part, 0, gradient, range.piece), true),
        ],
        Action::Publish { range, set } => {
            let name = if options.emits_weights() { copy } else { Variable::Param as u32 };
            vec![(buffer(range.part, set, name, range.piece), false)]
        }
        Action::Update { range, set } => {
            let piece = |name| buffer(range.part, set, name, range.piece);
            let mut all: Vec<_> = variables.iter().map(|&v| (piece(v as u32), true)).collect();
            if options.holds_dense_gradient() {
                all.push((piece(gradient), false));
            } else {
                all.push((buffer(range.part, 0, pairs, 0), false));
            }
            if options.emits_weights() {
                all.push((piece(copy), true));
            }
            all
        }
        Action::Store { range, variable, set } => {
            vec![(buffer(range.part, set, variable as u32, range.piece), false)]
        }
        Action::FetchWeights { range } => {
            let name = if options.emits_weights() { copy } else { Variable::Param as u32 };
            vec![(buffer(range.part, 0, name, range.piece), false)]
        }
        Action::ReadWeights { range, buffer: which } => {
            vec![(buffer(range.part, 0, up, which), true)]
        }
        Action::CastWeights { range, buffer: which } => {
            vec![(buffer(range.part, 0, up, which), false)]
        }
        // Copies to one staging buffer keep their order.
        Action::Offload { staging: which, .. } => vec![((0, 0, staging, which), true)],
        Action::Encode { staging: which, .. } | Action::WriteGradient { staging: which, .. } => {
            vec![((0, 0, staging, which), false)]
        }
        Action::WriteResidual { part, .. } => vec![(buffer(part, 0, residual, 0), true)],
        _ => Vec::new(),
    }
}

/// Two uses of one buffer piece, at least one of them writing, are ordered by edges.
pub(super) fn buffers_are_kept_apart(
    plan: &Plan,
    layout: &Layout,
    options: &OffloadOptions,
    sets: &[Vec<bool>],
) -> Result<(), TestCaseError> {
    let ordered = |a: TaskId, b: TaskId| sets[b.index()][a.index()] || sets[a.index()][b.index()];
    let mut users: HashMap<_, Vec<(TaskId, bool)>> = HashMap::new();
    for (task, &action) in plan.graph.tasks().iter().zip(&plan.actions) {
        for (buffer, writes) in uses(layout, options, action) {
            for &(other, other_writes) in users.entry(buffer).or_default().iter() {
                prop_assert!(
                    !(writes || other_writes) || ordered(other, task.id),
                    "{:?} and {:?} share {buffer:?}",
                    plan.graph.task(other).label,
                    task.label
                );
            }
            users.entry(buffer).or_default().push((task.id, writes));
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn graphs_keep_buffers_apart_order_slots_and_move_the_bytes_of_the_formula(
        system in prop::sample::select(vec![System::Base, System::BasePipe, System::Su, System::SuO, System::SuOC]),
        optimizer in prop::sample::select(vec![Optimizer::Adamw, Optimizer::Adagrad, Optimizer::SgdMomentum]),
        elements in 1_u64..600_000,
        subgroup in prop::sample::select(vec![20_000_u64, 70_000, 200_000, 300_000]),
        drives in 1_u32..5,
        pieces in 1_u32..5,
        storage in any::<bool>(),
        weights in prop::sample::select(vec![DType::Fp32, DType::Bf16]),
        moments in prop::sample::select(vec![DType::Fp32, DType::Bf16]),
        placement in prop::sample::select(vec![Placement::FlatEqual, Placement::EqualRr, Placement::SubgroupRr]),
    ) {
        let options = OffloadOptions {
            system, optimizer, pieces, subgroup_elements: subgroup, weights_dtype: weights, moment_dtype: moments,
            upstream: if storage { Upstream::Fp32Storage } else { Upstream::Fp16Local },
            placement,
            ..OffloadOptions::default()
        };
        let (layout, plan) = build(&options, elements, drives);
        let sets = ancestors(&plan);
        buffers_are_kept_apart(&plan, &layout, &options, &sets)?;

        // Part i of a drive is written only after the seal that frees its slot; every part is sealed after
        // all its writes and before the drive's finish; intents come before, commits after everything.
        let find = |wanted: &dyn Fn(Action) -> bool| -> Vec<TaskId> {
            plan.actions.iter().enumerate().filter(|&(_, &action)| wanted(action))
                .map(|(index, _)| TaskId(index as u32)).collect()
        };
        let before = |a: TaskId, b: TaskId| sets[b.index()][a.index()];
        for drive in 0..drives {
            let parts = layout.on_drive(drive);
            let spare = spare_slots(parts.len() as u64) as usize;
            let seal = |part: usize| find(&|a| a == Action::SealPart { part })[0];
            let finish = find(&|a| a == Action::Finish { drive })[0];
            for (index, &part) in parts.iter().enumerate() {
                let stores = find(&|a| matches!(a, Action::Store { range, .. } if range.part == part));
                for &store in &stores {
                    prop_assert!(before(store, seal(part)));
                    if index >= spare {
                        prop_assert!(before(seal(parts[index - spare]), store));
                        prop_assert!(before(seal(parts[index - spare + 1]), store));
                    }
                    for intent in find(&|a| matches!(a, Action::Intent { .. })) {
                        prop_assert!(before(intent, store));
                    }
                }
                prop_assert!(before(seal(part), finish));
            }
            for commit in find(&|a| matches!(a, Action::Commit { .. })) {
                prop_assert!(before(finish, commit));
            }
        }

        // Bytes: the graph's tasks together move what the closed form says (the gradient goes down earlier).
        let mut formula = formulas::step_traffic(&layout, &options);
        let gradient = if options.compressed() { 8 * formulas::kept_total(&layout, &options) } else { 4 * layout.padded_total() };
        formula.shared_down -= gradient;
        formula.media_write -= gradient;
        prop_assert_eq!(plan.graph.traffic(), formula);
    }
}

#[test]
fn device_memory_is_one_buffer_set_whatever_the_number_of_subgroups() {
    let options = OffloadOptions {
        system: System::SuO,
        subgroup_elements: 100_352,
        weights_dtype: DType::Fp16,
        ..OffloadOptions::default()
    };
    let held = |elements| {
        let (_, plan) = build(&options, elements, 1);
        plan.graph
            .claims()
            .iter()
            .filter(|claim| claim.place == Place::Local(0))
            .map(|claim| claim.bytes)
            .sum::<u64>()
    };
    assert_eq!(held(200_000), 18 * 100_352);
    assert_eq!(held(2_000_000), held(200_000));
}

#[test]
fn only_the_parts_asked_for_are_updated() {
    let options = OffloadOptions { subgroup_elements: 4096, ..OffloadOptions::default() };
    let layout = layout(&FlatModel::single(50_000).unwrap(), &options, 2).unwrap();
    let plan = update::plan(&layout, &options, &[1, 4]).unwrap();
    let kernels =
        plan.graph.tasks().iter().filter(|task| matches!(task.op, Op::Kernel { .. })).count();
    assert_eq!(kernels, 2);
}
