//! The state of a run at rest, read anywhere: for exports, and for runs on other drives.

use std::path::PathBuf;

use parking_lot::Mutex;

use super::inspect::{at_rest, digest, scratch};
use super::open::Loaded;
use super::superblock::GradientFormat;
use crate::error::{Error, Result};
use crate::layout::Layout;
use crate::memory::Region;
use crate::types::{DType, HyperParameters, Optimizer, Variable};

/// Master weights and moments on drives that no run is using.
pub struct StateReader {
    loaded: Loaded,
    scratch: Mutex<Region>,
}

impl StateReader {
    /// Opens the drives of a run, in any order, for reading.
    ///
    /// # Errors
    /// Drives that are missing, foreign or damaged, and a run whose last update was cut short.
    pub fn open(dirs: &[PathBuf]) -> Result<Self> {
        let loaded = at_rest(dirs)?;
        if loaded.recovered().redo.is_some() {
            return Err(Error::Drives {
                what: format!("the update of step {} was cut short", loaded.recovered().step),
                remedy: "complete it with nearfield train --resume, then ask again".into(),
            });
        }
        Ok(Self { loaded, scratch: Mutex::new(scratch()?) })
    }

    /// Optimizer steps done.
    pub fn step(&self) -> u64 {
        self.loaded.recovered().step
    }

    /// Training iterations done.
    pub fn iteration(&self) -> u64 {
        self.loaded.recovered().iteration
    }

    /// State of the trainer.
    pub fn blob(&self) -> &[u8] {
        &self.loaded.recovered().blob
    }

    /// Update rule.
    pub fn optimizer(&self) -> Optimizer {
        self.loaded.stores[0].superblock().optimizer
    }

    /// Number format of the moments.
    pub fn moments(&self) -> DType {
        self.loaded.stores[0].superblock().moments
    }

    /// How gradients are stored, and whether residuals of compression are.
    pub fn gradients(&self) -> (GradientFormat, bool) {
        let superblock = self.loaded.stores[0].superblock();
        (superblock.gradients, superblock.residual)
    }

    /// Hyper-parameters of the last update, by parameter group; empty before the first.
    pub fn groups(&self) -> Vec<HyperParameters> {
        let records = self.loaded.records.first().into_iter().flatten();
        let last = records.rev().find(|record| !record.content.groups.is_empty());
        last.map_or_else(Vec::new, |record| record.content.groups.clone())
    }

    /// Which part of the flat vector lies where.
    pub fn layout(&self) -> &Layout {
        &self.loaded.stores[0].spec().layout
    }

    /// Reads everything once and compares it with its checksums; the digest of the state.
    ///
    /// # Errors
    /// Data that does not match its checksum, and what the drives report.
    pub fn digest(&self) -> Result<String> {
        digest(&self.loaded.stores)
    }

    /// Reads elements `[first, first + out.len())` of a variable of the flat vector. Checksums, which cover whole parts, are
    /// compared by [`StateReader::digest`].
    ///
    /// # Errors
    /// A range or variable that is not there, and what the drives report.
    pub fn read(&self, variable: Variable, first: u64, out: &mut [f32]) -> Result<()> {
        let layout = self.layout();
        let end = first + out.len() as u64;
        if end > layout.elements {
            return Err(Error::Invalid(format!(
                "elements {first} to {end} are not among the {} of the state",
                layout.elements
            )));
        }
        let mut memory = self.scratch.lock();
        for part in layout.overlapping(first, out.len() as u64) {
            let run = layout.parts[part];
            let store = &self.loaded.stores[run.drive as usize];
            let arrays = store.stored_state(part)?;
            let array =
                arrays.iter().find(|array| array.variable == variable).ok_or_else(|| {
                    Error::Invalid(format!(
                        "the state of {} has no {}",
                        self.optimizer().name(),
                        variable.name()
                    ))
                })?;
            let (from, to) = (first.max(run.start), end.min(run.end()));
            let target = &mut out[(from - first) as usize..(to - first) as usize];
            let start = from - run.start;
            store.read_elements(array, start, to - from, &mut memory, &mut |at, values| {
                let at = (at - start) as usize;
                target[at..at + values.len()].copy_from_slice(values);
                Ok(())
            })?;
        }
        Ok(())
    }
}

impl std::fmt::Debug for StateReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "StateReader(step {} on {} drives)", self.step(), self.loaded.stores.len())
    }
}
