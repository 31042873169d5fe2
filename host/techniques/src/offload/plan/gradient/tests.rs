//! What every gradient graph must fulfil.

use std::collections::HashMap;

use nearfield_runtime::graph::{Op, Place, TaskId};

use super::*;
use crate::offload::options::{ActivationPlace, Encoder, System};
use crate::offload::placement::{FlatModel, TensorRun, layout};
use crate::offload::plan::{Action, formulas};

/// Decay tensors of 3 blocks first, then their biases: each block's gradient lies in two runs.
fn model() -> (FlatModel, Vec<UnitShape>) {
    let run = |elements, group| TensorRun { name: "t".into(), elements, group };
    let model = FlatModel::new(vec![
        run(5000, 0),
        run(9000, 0),
        run(9000, 0),
        run(300, 1),
        run(500, 1),
        run(500, 1),
    ])
    .unwrap();
    let unit = |name: &str, gradients: Vec<(u64, u64)>| UnitShape {
        name: name.into(),
        weight_elements: 100,
        output_bytes: 64,
        working_bytes: 640,
        score_bytes: 0,
        forward_flops: 10,
        forward: true,
        backward_weights: true,
        reads: gradients.clone(),
        gradients,
    };
    let units = vec![
        unit("embed", vec![(0, 5000), (23_000, 300)]),
        unit("block0", vec![(5000, 9000), (23_300, 500)]),
        unit("block1", vec![(14_000, 9000), (23_800, 500)]),
    ];
    (model, units)
}

#[test]
fn every_gradient_reaches_its_drive_once_and_the_bytes_are_the_formula() {
    let (model, units) = model();
    for system in [System::Base, System::SuO, System::SuOC] {
        for drives in [1, 2, 3] {
            let options =
                OffloadOptions { system, subgroup_elements: 4096, ..OffloadOptions::default() };
            let layout = layout(&model, &options, drives).unwrap();
            let (plan, staging) = plan(&layout, &options, &units, MicroStep::Offload).unwrap();
            let formula = formulas::step_traffic(&layout, &options).shared_down;
            let state = if system == System::Base { 12 * layout.padded_total() } else { 0 };
            assert_eq!(plan.graph.traffic().shared_down, formula - state);
            assert!(staging.buffers <= 3 + drives, "{staging:?}");
            let mut written: Vec<usize> = plan
                .actions
                .iter()
                .filter_map(|action| match action {
                    Action::WriteGradient { part, .. } => Some(*part),
                    _ => None,
                })
                .collect();
            written.sort_unstable();
            assert_eq!(written, (0..layout.parts.len()).collect::<Vec<_>>());
        }
    }
}

#[test]
fn staging_does_not_grow_with_the_number_of_subgroups() {
    let (model, units) = model();
    let buffers = |subgroup_elements| {
        let options = OffloadOptions { subgroup_elements, ..OffloadOptions::default() };
        let layout = layout(&model, &options, 1).unwrap();
        plan(&layout, &options, &units, MicroStep::Offload).unwrap().1.buffers
    };
    assert!(buffers(1024) <= buffers(8192) + 1);
}

#[test]
fn a_staging_buffer_is_refilled_only_after_its_write() {
    let (model, units) = model();
    let options = OffloadOptions { subgroup_elements: 2048, ..OffloadOptions::default() };
    let layout = layout(&model, &options, 2).unwrap();
    let (plan, _) = plan(&layout, &options, &units, MicroStep::Offload).unwrap();
    let mut owner: HashMap<u32, (usize, Option<TaskId>)> = HashMap::new();
    for (task, action) in plan.graph.tasks().iter().zip(&plan.actions) {
        match *action {
            Action::Offload { part, staging, .. } => {
                let last = owner.insert(staging, (part, None));
                if let Some((other, written)) = last
                    && other != part
                {
                    let written = written.expect("the buffer's last part was written");
                    assert!(plan.graph.predecessors(task.id).contains(&written));
                }
            }
            Action::WriteGradient { part, staging } => {
                assert_eq!(owner[&staging].0, part);
                owner.insert(staging, (part, Some(task.id)));
            }
            _ => {}
        }
    }
}

fn with(change: impl FnOnce(&mut OffloadOptions)) -> (Plan, Layout) {
    let (model, units) = model();
    let mut options = OffloadOptions { subgroup_elements: 4096, ..OffloadOptions::default() };
    change(&mut options);
    let layout = layout(&model, &options, 2).unwrap();
    (plan(&layout, &options, &units, MicroStep::Offload).unwrap().0, layout)
}

/// Bytes that compute devices send to the host in the backward phase.
fn copied(plan: &Plan) -> u64 {
    let backward = |task: &&nearfield_runtime::graph::Task| task.phase.0 == 1;
    let sent = plan.graph.tasks().iter().filter(backward).map(|task| match task.op {
        Op::Transfer { from: Place::Gpu(_), bytes, .. } => bytes,
        _ => 0,
    });
    sent.sum()
}

#[test]
fn only_kept_pairs_leave_a_device_that_selects_them() {
    let (dense, layout) = with(|_| {});
    assert_eq!(copied(&dense), 4 * layout.elements);
    let (plan, layout) = with(|options| {
        options.system = System::SuOC;
        options.encoder = Encoder::Device;
    });
    let written = plan.graph.traffic().shared_down;
    assert_eq!(copied(&plan), written);
    let options = OffloadOptions { system: System::SuOC, ..OffloadOptions::default() };
    assert_eq!(written, 8 * formulas::kept_total(&layout, &options));
}

#[test]
fn several_devices_share_every_unit_and_its_gradients() {
    let (one, _) = with(|_| {});
    for gpus in [2, 3] {
        let (plan, _) = with(|options| options.tensor_parallel = gpus);
        assert_eq!(copied(&plan), copied(&one));
        assert_eq!(plan.graph.traffic(), one.graph.traffic());
        let flops = |plan: &Plan| -> u64 {
            let of = |task: &nearfield_runtime::graph::Task| match task.op {
                Op::Compute { flops, .. } => flops,
                _ => 0,
            };
            plan.graph.tasks().iter().map(of).sum()
        };
        assert_eq!(flops(&plan), flops(&one));
        let sums = plan.graph.tasks().iter().filter(|t| matches!(t.op, Op::Collective { .. }));
        // Three units, forward and backward.
        assert_eq!(sums.count(), 6 * gpus as usize);
    }
}

#[test]
fn without_overlap_a_unit_waits_until_the_gradients_of_the_last_have_left() {
    for overlap in [true, false] {
        let (plan, _) = with(|options| options.gradient_overlap = overlap);
        let find = |wanted: Action| {
            let index = plan.actions.iter().position(|&action| action == wanted).unwrap();
            plan.graph.predecessors(TaskId(index as u32)).to_vec()
        };
        let before = find(Action::Backward { unit: 1 });
        let copies = before
            .iter()
            .filter(|task| matches!(plan.actions[task.index()], Action::Offload { unit: 2, .. }));
        assert_eq!(copies.count() > 0, !overlap);
    }
}

/// In any order that the edges allow, no more outputs are loaded, or computed and not yet saved, than the device has room for.
#[test]
fn outputs_do_not_pile_up_on_the_device() {
    let (model, mut units) = model();
    let extra = UnitShape { gradients: Vec::new(), reads: Vec::new(), ..units[1].clone() };
    units.splice(1..1, std::iter::repeat_n(extra, 6));
    for activations in [ActivationPlace::Host, ActivationPlace::Drive] {
        let options =
            OffloadOptions { activations, subgroup_elements: 4096, ..OffloadOptions::default() };
        let layout = layout(&model, &options, 2).unwrap();
        let (plan, _) = plan(&layout, &options, &units, MicroStep::Offload).unwrap();
        let tasks = plan.graph.tasks();
        // Everything that must come before each task.
        let mut before: Vec<std::collections::HashSet<usize>> = Vec::new();
        for task in tasks {
            let mut all = std::collections::HashSet::new();
            for &other in plan.graph.predecessors(task.id) {
                all.insert(other.index());
                all.extend(before[other.index()].iter().copied());
            }
            before.push(all);
        }
        let find =
            |wanted: Action| plan.actions.iter().position(|action| *action == wanted).unwrap();
        let buffer = |unit: usize| match activations {
            ActivationPlace::Drive => Some((unit % 3) as u32),
            _ => None,
        };
        let last = units.len() - 1;
        for unit in 0..last {
            if unit + 3 <= last {
                let load = find(Action::LoadActivation { unit, buffer: buffer(unit) });
                let backward = find(Action::Backward { unit: unit + 3 });
                assert!(before[load].contains(&backward), "{activations:?}: load of {unit}");
            }
            if unit >= 2 {
                let forward = find(Action::Forward { unit });
                let save = Action::SaveActivation { unit: unit - 2, buffer: buffer(unit - 2) };
                assert!(before[forward].contains(&find(save)), "{activations:?}: unit {unit}");
            }
        }
    }
}
