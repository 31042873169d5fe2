//! State in and out of the drives outside of updates: initial weights, working weights, digest.

use std::sync::Arc;

use nearfield_runtime::kernels;
use nearfield_runtime::memory::{Arena, Region};
use nearfield_runtime::store::{self, DriveStore, StateDigest};
use nearfield_runtime::{Error, Result};

use super::OffloadEngine;
use super::budget::weight_read_bytes;
use super::setup::InitialState;
use crate::offload::options::WeightsPlace;

impl OffloadEngine {
    /// Initial weights of `--system memory`.
    pub(super) fn initialise_memory(&self, initial: &dyn InitialState) -> Result<()> {
        let Some(state) = &self.memory else { return Ok(()) };
        for (part, run) in self.layout().parts.iter().enumerate() {
            let mut state = state.part(part);
            let real = run.elements as usize;
            for (place, &variable) in self.options.optimizer.variables().iter().enumerate() {
                if initial.is_zero(variable) {
                    continue;
                }
                match place.checked_sub(1) {
                    None => initial.read(variable, run.start, &mut state.param[..real])?,
                    Some(moment) => {
                        let mut values = vec![0.0; real];
                        initial.read(variable, run.start, &mut values)?;
                        state.set_moment(moment, &values);
                    }
                }
            }
            self.publish_f32(run.start, &state.param[..real])?;
        }
        Ok(())
    }

    /// Fills the working weights from the master weights, checking these.
    pub(super) fn load_weights(&self) -> Result<()> {
        if self.options.weights == WeightsPlace::Drive {
            return Ok(());
        }
        self.master_weights(&|first, master| self.publish_f32(first, master))
    }

    /// Hands over master weights, from all drives at once: `sink` takes the first element in the flat vector, and the values, which
    /// were checked against their sums. Every element comes once, in no fixed order.
    ///
    /// # Errors
    /// What the drives report, data that does not match its checksum, and the first error of `sink`.
    pub fn master_weights(&self, sink: &(dyn Fn(u64, &[f32]) -> Result<()> + Sync)) -> Result<()> {
        if let Some(state) = &self.memory {
            for (part, run) in self.layout().parts.iter().enumerate() {
                let state = state.part(part);
                sink(run.start, &state.param[..run.elements as usize])?;
            }
            return Ok(());
        }
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..self.drives.len() as u32)
                .map(|drive| scope.spawn(move || self.master_weights_of(drive, sink)))
                .collect();
            threads.into_iter().try_for_each(joined)
        })
    }

    fn master_weights_of(
        &self,
        drive: u32,
        sink: &(dyn Fn(u64, &[f32]) -> Result<()> + Sync),
    ) -> Result<()> {
        let unit = self.drive(drive);
        let mut scratch = unit.weight_reads[0].lock();
        for &part in unit.store.parts() {
            let run = self.layout().parts[part];
            // Master weights are the first variable of every optimizer.
            let arrays = unit.store.stored_state(part)?;
            unit.store.read_values(
                &arrays[0],
                run.elements,
                &mut scratch,
                &mut |first, master| sink(run.start + first, master),
            )?;
        }
        Ok(())
    }

    /// Digest of step, master weights and moments: the same for every number of drives and placement.
    ///
    /// # Errors
    /// What the drives report, or data that does not match its checksum.
    pub fn digest(&self) -> Result<String> {
        let Some(state) = &self.memory else {
            return store::digest(self.drives.iter().map(|unit| &unit.store));
        };
        let optimizer = self.options.optimizer;
        let mut digest = StateDigest::new(self.step, self.layout().elements, optimizer);
        for (part, run) in self.layout().parts.iter().enumerate() {
            let state = state.part(part);
            let real = run.elements as usize;
            for (place, &variable) in optimizer.variables().iter().enumerate() {
                match place.checked_sub(1) {
                    None => digest.add(variable, &state.param[..real]),
                    Some(moment) => digest.add(variable, &state.moment(moment, real)),
                }
            }
        }
        digest.finish()
    }
}

/// Writes the initial state of every part, after `step` optimizer steps, and makes its first slot valid.
pub(super) fn initialise(
    engine: &OffloadEngine,
    stores: &[DriveStore],
    initial: &dyn InitialState,
    step: u64,
    arenas: &[Arc<Arena>],
) -> Result<()> {
    std::thread::scope(|scope| {
        let threads: Vec<_> = stores
            .iter()
            .zip(arenas)
            .map(|(store, arena)| {
                scope.spawn(move || initialise_drive(engine, store, initial, step, arena))
            })
            .collect();
        threads.into_iter().try_for_each(joined)
    })
}

fn initialise_drive(
    engine: &OffloadEngine,
    store: &DriveStore,
    initial: &dyn InitialState,
    step: u64,
    arena: &Arc<Arena>,
) -> Result<()> {
    // Whole pages in every number format: parts are padded to them, and so are pieces.
    let (layout, options) = (engine.layout(), &engine.options);
    let mut scratch = arena.allocate(weight_read_bytes(layout, options, store.drive()))?;
    let block = scratch.len() as u64 / 4;
    let variables = engine.options.optimizer.variables();
    for &part in store.parts() {
        let run = engine.layout().parts[part];
        let padded = engine.layout().padded(part);
        let slot = store.initial_slot(part)?;
        let mut sums = vec![0_u64; variables.len()];
        for (&variable, sum) in variables.iter().zip(&mut sums) {
            // Creation has written zeros, whose sum is 0.
            if initial.is_zero(variable) {
                continue;
            }
            let start = store.data_offset(slot, variable)?;
            let mut first = 0;
            while first < padded {
                let elements = block.min(padded - first);
                let values = &mut scratch.as_f32_mut()[..elements as usize];
                let real = run.elements.saturating_sub(first).min(elements) as usize;
                initial.read(variable, run.start + first, &mut values[..real])?;
                values[real..].fill(0.0);
                let width = engine.options.variable_bytes(variable);
                narrow(width, &mut scratch, elements as usize);
                let bytes = &scratch[..(elements * width) as usize];
                *sum = sum.wrapping_add(kernels::checksum(engine.isa, bytes, first * width / 4));
                store.engine().write(store.slots_file(), start + first * width, bytes)?;
                first += elements;
            }
        }
        store.seal(part, slot, step, &sums)?;
    }
    Ok(())
}

/// Rounds the first elements of `memory` to the nearest bfloat16, in place, where elements of `width` bytes are stored.
fn narrow(width: u64, memory: &mut Region, elements: usize) {
    /// Elements rounded at a time.
    const TILE: usize = 4096;
    if width == 4 {
        return;
    }
    let mut bits = [0; TILE];
    for first in (0..elements).step_by(TILE) {
        let last = (first + TILE).min(elements);
        let bits = &mut bits[..last - first];
        kernels::f32_to_bf16(&memory.as_f32()[first..last], bits);
        // What is overwritten was rounded before: bits are half as long as what they come from.
        memory.as_u16_mut()[first..last].copy_from_slice(bits);
    }
}

fn joined(thread: std::thread::ScopedJoinHandle<'_, Result<()>>) -> Result<()> {
    thread.join().unwrap_or_else(|_| {
        Err(Error::Cancelled("a thread that moves state ended without a result".into()))
    })
}
