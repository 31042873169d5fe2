//! The baselines: state streamed through host memory (Smart-Infinity, section 2; ZeRO-Infinity).

use nearfield_runtime::graph::{Place, TaskId};
use nearfield_runtime::types::Variable;

use super::PieceRange;
use super::update::Planner;
use crate::offload::options::{System, WeightsPlace};

/// Buffer sets of the pipelined baseline: one being read, one updated, one written.
const PIPELINE_SETS: u32 = 3;

/// Buffer sets in host memory that `system` uses.
pub(crate) const fn host_sets(system: System) -> u32 {
    match system {
        System::Base => 1,
        System::BasePipe => PIPELINE_SETS,
        _ => 0,
    }
}

/// One subgroup after the other: read states, read gradient, update, write, each waiting for the last.
pub(super) fn serial(planner: &mut Planner, begin: TaskId) {
    claim_sets(planner);
    let mut last = begin;
    for parts in subgroups(planner) {
        let states = load_states(planner, &parts, 0, &[last]);
        let states = planner.mark("states are read", &states);
        let gradients: Vec<TaskId> = parts
            .iter()
            .map(|&range| planner.load(range, Variable::Gradient, 0, &[states]))
            .collect();
        let written = update_and_store(planner, &parts, 0, &gradients, true);
        last = planner.mark("subgroup is written", &written);
    }
}

/// The same on three buffer sets, so that reading, updating and writing overlap.
pub(super) fn pipelined(planner: &mut Planner, begin: TaskId) {
    claim_sets(planner);
    let mut free = [begin; PIPELINE_SETS as usize];
    for (index, parts) in subgroups(planner).into_iter().enumerate() {
        let set = index as u32 % PIPELINE_SETS;
        let after = [free[set as usize]];
        let mut loads = load_states(planner, &parts, set, &after);
        for &range in &parts {
            loads.push(planner.load(range, Variable::Gradient, set, &after));
        }
        let written = update_and_store(planner, &parts, set, &loads, false);
        free[set as usize] = planner.mark("subgroup is written", &written);
    }
}

fn claim_sets(planner: &mut Planner) {
    let width = planner.options.buffer_bytes_per_element();
    let longest: u64 =
        (0..planner.layout.drives).map(|drive| planner.layout.longest(Some(drive))).sum();
    planner.claim(Place::HOST, u64::from(host_sets(planner.options.system)) * width * longest);
}

/// The parts of each subgroup that are to be updated, as whole ranges.
fn subgroups(planner: &Planner) -> Vec<Vec<PieceRange>> {
    let mut parts: Vec<usize> = planner.by_drive.concat();
    parts.sort_unstable();
    let mut subgroups: Vec<(u32, Vec<PieceRange>)> = Vec::new();
    for part in parts {
        let subgroup = planner.layout.parts[part].subgroup;
        let elements = planner.layout.padded(part);
        let range = PieceRange { part, piece: 0, offset: 0, elements };
        match subgroups.last_mut() {
            Some((last, ranges)) if *last == subgroup => ranges.push(range),
            _ => subgroups.push((subgroup, vec![range])),
        }
    }
    subgroups.into_iter().map(|(_, ranges)| ranges).collect()
}

fn load_states(
    planner: &mut Planner,
    parts: &[PieceRange],
    set: u32,
    after: &[TaskId],
) -> Vec<TaskId> {
    let variables = planner.options.optimizer.variables();
    let mut loads = Vec::new();
    for &range in parts {
        for &variable in variables {
            loads.push(planner.load(range, variable, set, after));
        }
    }
    loads
}

/// Updates every part once all is read, then writes and seals; returns the tasks after which the set is free. In
/// order, the weights are published before anything is written; otherwise at the same time.
fn update_and_store(
    planner: &mut Planner,
    parts: &[PieceRange],
    set: u32,
    loads: &[TaskId],
    in_order: bool,
) -> Vec<TaskId> {
    let variables = planner.options.optimizer.variables();
    let read = planner.mark("subgroup is read", loads);
    let updates: Vec<TaskId> =
        parts.iter().map(|&range| planner.update(range, set, planner.cpu, &[read])).collect();
    let mut written: Vec<TaskId> = match planner.options.weights {
        WeightsPlace::Host => parts
            .iter()
            .zip(&updates)
            .map(|(&range, &updated)| planner.publish(range, set, updated))
            .collect(),
        WeightsPlace::Drive => Vec::new(),
    };
    let before = if in_order && !written.is_empty() { &written } else { &updates };
    let updated = planner.mark("subgroup is updated", before);
    for &range in parts {
        let stores: Vec<TaskId> = variables
            .iter()
            .map(|&variable| planner.store(range, variable, set, &[updated]))
            .collect();
        planner.seal(range.part, &stores);
        written.extend(stores);
    }
    written
}
