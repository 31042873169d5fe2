//! SmartUpdate: the update beside the drive, with the naive and with the optimised transfer handler
//! (Smart-Infinity, sections 4.1 and 4.2).

use std::collections::HashMap;

use nearfield_runtime::graph::{MemoryClaim, Op, Place, TaskId};
use nearfield_runtime::types::Variable;

use super::update::Planner;
use super::{Action, PieceRange, Pieces, formulas};
use crate::offload::options::Upstream;

/// The naive handler: each drive takes its tasklets one after the other, with buffers of their own.
pub(super) fn serial(planner: &mut Planner, begin: TaskId) {
    for drive in 0..planner.layout.drives {
        let mut last = begin;
        for part in planner.by_drive[drive as usize].clone() {
            last = serial_tasklet(planner, part, last);
        }
    }
}

fn serial_tasklet(planner: &mut Planner, part: usize, begin: TaskId) -> TaskId {
    let drive = planner.drive_of(part);
    let elements = planner.layout.padded(part);
    let range = PieceRange { part, piece: 0, offset: 0, elements };
    let kernel = planner.drives[drive as usize].kernel;
    let variables = planner.options.optimizer.variables();
    let allocate = Op::Kernel { name: "allocate", elements: 0, bytes: 0 };
    let label = format!("allocate buffers for part {part}");
    let allocated = planner.plan.task(kernel, allocate, Action::Allocate { part }, label, &[begin]);
    let mut last = planner.load(range, Variable::Gradient, 0, &[allocated]);
    for &variable in variables {
        last = planner.load(range, variable, 0, &[last]);
    }
    let updated = planner.update(range, 0, kernel, &[last]);
    let mut stores = Vec::new();
    let mut last = updated;
    for &variable in variables {
        last = planner.store(range, variable, 0, &[last]);
        stores.push(last);
    }
    let mut before_release = vec![last];
    match planner.options.weights_come_back() {
        Some(Upstream::Fp16Local) => before_release.push(planner.fetch_weights(range, &[updated])),
        Some(Upstream::Fp32Storage) => {
            planner.read_weights(range, stores[0], &[]);
        }
        None => {}
    }
    planner.seal(part, &stores);
    let release = Op::Kernel { name: "release", elements: 0, bytes: 0 };
    let label = format!("free buffers of part {part}");
    let released =
        planner.plan.task(kernel, release, Action::Release { part }, label, &before_release);
    planner.plan.graph.claim(MemoryClaim {
        place: Place::Local(drive),
        bytes: planner.options.buffer_bytes_per_element() * elements,
        from: Some(allocated),
        to: Some(released),
    });
    released
}

/// What a tasklet waits for before its buffers are filled.
#[derive(Debug, Clone)]
pub(super) struct Gates {
    /// Before its gradient is read.
    pub gradient: TaskId,
    /// Before its state is read.
    pub state: TaskId,
    /// Before its new weights replace the old ones in host memory.
    pub weights: Vec<TaskId>,
}

/// The last tasks that used each buffer piece of one drive.
#[derive(Default)]
pub(super) struct LastUse {
    updates: HashMap<u32, TaskId>,
    fetches: HashMap<u32, TaskId>,
    stores: HashMap<(Variable, u32), TaskId>,
    /// Of the pairs' buffers.
    pairs: Vec<TaskId>,
}

/// The optimised handler: one buffer set for each drive, handed over variable by variable and piece by
/// piece, weights written first, moments lazily. With one piece it is the paper's token scheme.
pub(super) fn overlapped(planner: &mut Planner, begin: TaskId) {
    for drive in 0..planner.layout.drives {
        claim_local(planner, drive);
        let mut last = LastUse::default();
        for part in planner.by_drive[drive as usize].clone() {
            let gates = Gates { gradient: begin, state: begin, weights: Vec::new() };
            let stores = overlapped_tasklet(planner, part, &gates, &mut last);
            planner.seal(part, &stores);
        }
    }
}

/// Claims the buffer set of a drive for the whole graph.
pub(super) fn claim_local(planner: &mut Planner, drive: u32) {
    let bytes = formulas::local_memory_bytes(planner.layout, planner.options, drive);
    planner.claim(Place::Local(drive), bytes);
}

/// Reads, updates and writes one part; returns the tasks after which its new slot is complete.
pub(super) fn overlapped_tasklet(
    planner: &mut Planner,
    part: usize,
    gates: &Gates,
    last: &mut LastUse,
) -> Vec<TaskId> {
    let drive = planner.drive_of(part);
    let ranges = Pieces::new(planner.layout, planner.options, drive).ranges(planner.layout, part);
    let kernel = planner.drives[drive as usize].kernel;
    let variables = planner.options.optimizer.variables();
    let emits = planner.options.emits_weights();
    let upstream = planner.options.weights_come_back();
    let local = upstream == Some(Upstream::Fp16Local);
    let pairs = planner.options.compressed().then(|| {
        // The pairs serve all pieces, so their buffers are free once the last one has used them.
        let mut after = std::mem::take(&mut last.pairs);
        after.push(gates.gradient);
        let loaded = planner.load_pairs(part, &after);
        planner.check_pairs(part, &[loaded])
    });
    let mut loads = Vec::new();
    for &range in &ranges {
        let piece = range.piece;
        // The gradient's buffer is free once the last tasklet's piece is updated.
        let mut after = vec![gates.gradient];
        after.extend(last.updates.get(&piece));
        let gradient = match pairs {
            Some(pairs) if !planner.options.holds_dense_gradient() => pairs,
            Some(pairs) => {
                after.push(pairs);
                let expanded = planner.decompress(range, &after);
                last.pairs.push(expanded);
                expanded
            }
            None => planner.load(range, Variable::Gradient, 0, &after),
        };
        let mut loaded = vec![gradient];
        for &variable in variables {
            let mut after = vec![gates.state];
            after.extend(last.stores.get(&(variable, piece)));
            if variable == Variable::Param && local && !emits {
                // Weights are fetched from the master weight's own buffer.
                after.extend(last.fetches.get(&piece));
            }
            loaded.push(planner.load(range, variable, 0, &after));
        }
        loads.push(loaded);
    }
    let mut stores = Vec::new();
    for (range, mut loaded) in ranges.into_iter().zip(loads) {
        let piece = range.piece;
        if emits {
            loaded.extend(last.fetches.get(&piece));
        }
        let updated = planner.update(range, 0, kernel, &loaded);
        last.updates.insert(piece, updated);
        if pairs.is_some() && !planner.options.holds_dense_gradient() {
            last.pairs.push(updated);
        }
        for &variable in variables {
            let stored = planner.store(range, variable, 0, &[updated]);
            last.stores.insert((variable, piece), stored);
            stores.push(stored);
            if variable == Variable::Param && upstream == Some(Upstream::Fp32Storage) {
                planner.read_weights(range, stored, &gates.weights);
            }
        }
        if local {
            let after = [&[updated], &gates.weights[..]].concat();
            last.fetches.insert(piece, planner.fetch_weights(range, &after));
        }
    }
    stores
}
