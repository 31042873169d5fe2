//! Looks at drives at rest: report, verification, digest.

use std::path::PathBuf;
use std::sync::Arc;

use serde::Serialize;

use super::digest::StateDigest;
use super::drive::{DriveStore, Durability};
use super::journal::RecordKind;
use super::open::{Loaded, load};
use super::read::StoredArray;
use super::reader::StateReader;
use super::recovery::Recovered;
use super::superblock::{GradientFormat, StateSpec};
use crate::error::{Error, Result};
use crate::io::{IoEngine, IoOptions};
use crate::layout::Layout;
use crate::memory::{Arena, Region};
use crate::types::{DType, Optimizer};

/// Bytes read at a time.
const BLOCK_BYTES: u64 = 4 << 20;

/// What the drives of a run hold.
#[derive(Debug, Clone, Serialize)]
pub struct StateReport {
    /// Identity of the run.
    pub run: String,
    /// Optimizer step of the state.
    pub step: u64,
    /// Training iterations done, skipped ones included.
    pub iteration: u64,
    /// Whether an update was cut short and will be completed at the next start.
    pub interrupted: bool,
    /// Update rule.
    pub optimizer: Optimizer,
    /// Number format of the moments.
    pub moments: DType,
    /// How gradients are stored.
    pub gradients: GradientFormat,
    /// Elements of the flat parameter vector.
    pub elements: u64,
    /// Each drive.
    pub drives: Vec<DriveReport>,
}

/// What one drive holds.
#[derive(Debug, Clone, Serialize)]
pub struct DriveReport {
    /// Index in the run.
    pub drive: u32,
    /// Its directory.
    pub path: PathBuf,
    /// Parts of the flat vector on it.
    pub parts: usize,
    /// Slots, and how many of them are spare.
    pub slots: u32,
    /// Spare slots.
    pub slots_free: u32,
    /// Bytes of its files.
    pub bytes: u64,
    /// Newest journal records: kind, iteration, step.
    pub journal: Vec<(RecordKind, u64, u64)>,
}

/// One thing that verification found wrong.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Index of the drive.
    pub drive: u32,
    /// Its directory.
    pub path: PathBuf,
    /// Subgroup.
    pub subgroup: u32,
    /// Variable.
    pub variable: String,
    /// What is wrong.
    pub what: String,
}

/// Which part of the flat vector lies where on the drives of a run, given in any order.
///
/// # Errors
/// Drives that are missing, foreign or damaged.
pub fn stored_layout(dirs: &[PathBuf]) -> Result<Layout> {
    let loaded = at_rest(dirs)?;
    Ok(loaded.stores[0].spec().layout.clone())
}

/// Where the run in `dirs` stands, if `expected` can go on with it: what [`super::open`] would say, without a change.
///
/// # Errors
/// As [`super::open`].
pub fn check(dirs: &[PathBuf], expected: &StateSpec) -> Result<Recovered> {
    Ok(load_at_rest(dirs, Some(expected))?.recovered().clone())
}

pub(super) fn at_rest(dirs: &[PathBuf]) -> Result<Loaded> {
    load_at_rest(dirs, None)
}

fn load_at_rest(dirs: &[PathBuf], expected: Option<&StateSpec>) -> Result<Loaded> {
    let engines = (0..dirs.len())
        .map(|drive| IoEngine::start(&format!("drive{drive}"), &IoOptions::default()))
        .collect::<Result<Vec<Arc<IoEngine>>>>()?;
    load(dirs, engines, expected, Durability::Power, false)
}

/// Describes the drives in `dirs`.
///
/// # Errors
/// As [`super::open`].
pub fn inspect(dirs: &[PathBuf]) -> Result<StateReport> {
    let loaded = at_rest(dirs)?;
    let recovered = loaded.recovered().clone();
    let mut drives = Vec::new();
    for (store, records) in loaded.stores.iter().zip(&loaded.records) {
        let superblock = store.superblock();
        let mut bytes = 0;
        for file in [Some(store.slots_file()), Some(store.gradients_file()), store.residual_file()]
            .into_iter()
            .flatten()
        {
            bytes += file.len()?;
        }
        drives.push(DriveReport {
            drive: store.drive(),
            path: store.path().to_path_buf(),
            parts: store.parts().len(),
            slots: superblock.slots,
            slots_free: superblock.slots - store.parts().len() as u32,
            bytes,
            journal: records
                .iter()
                .rev()
                .take(4)
                .map(|record| (record.kind, record.content.iteration, record.content.step))
                .collect(),
        });
    }
    let Some(first) = loaded.stores.first() else {
        return Err(Error::Invalid("give at least one --drive".into()));
    };
    Ok(StateReport {
        run: first.superblock().run.to_string(),
        step: recovered.step,
        iteration: recovered.iteration,
        interrupted: recovered.redo.is_some(),
        optimizer: first.superblock().optimizer,
        moments: first.superblock().moments,
        gradients: first.superblock().gradients,
        elements: first.superblock().elements,
        drives,
    })
}

/// Reads all current state, residuals and the gradients of an interrupted step, and recomputes every checksum.
/// `progress` is told the bytes read so far.
///
/// # Errors
/// As [`super::open`], and reads that fail; wrong data is a [`Finding`].
pub fn verify(dirs: &[PathBuf], progress: &mut dyn FnMut(u64)) -> Result<Vec<Finding>> {
    let loaded = at_rest(dirs)?;
    let recovered = loaded.recovered();
    let mut scratch = scratch()?;
    let mut findings = Vec::new();
    let mut total = 0;
    for store in &loaded.stores {
        for &part in store.parts() {
            let mut arrays = store.stored_state(part)?;
            arrays.extend(store.stored_residual(part, recovered.step + 1)?);
            if recovered.redo.as_ref().is_some_and(|redo| redo.parts.contains(&part)) {
                arrays.extend(store.stored_gradient(part)?);
            }
            for array in arrays {
                let found = store.read_sum(&array, &mut scratch, &mut |_, _| Ok(()))?;
                findings.extend(finding(store, &array, found));
                total += array.bytes;
                progress(total);
            }
        }
    }
    Ok(findings)
}

fn finding(store: &DriveStore, array: &StoredArray, found: u64) -> Option<Finding> {
    (found != array.checksum).then(|| Finding {
        drive: store.drive(),
        path: store.path().to_path_buf(),
        subgroup: store.spec().layout.parts[array.part].subgroup,
        variable: array.variable.name().to_owned(),
        what: format!("checksum {:016x} recorded, {found:016x} found", array.checksum),
    })
}

pub(super) fn scratch() -> Result<Region> {
    Arena::new("reading state", BLOCK_BYTES, false)?.allocate(BLOCK_BYTES)
}

/// Digest of the state on open drives (see [`StateDigest`]); verifies all that it reads.
///
/// # Errors
/// Data that does not match its checksum, and what the drives report.
pub fn digest<'a>(stores: impl IntoIterator<Item = &'a DriveStore>) -> Result<String> {
    let stores: Vec<&DriveStore> = stores.into_iter().collect();
    let Some(first) = stores.first() else {
        return Err(Error::Invalid("a digest needs at least one drive".into()));
    };
    let layout = &first.spec().layout;
    let optimizer = first.superblock().optimizer;
    let mut digest = StateDigest::new(first.step(), layout.elements, optimizer);
    let mut scratch = scratch()?;
    for (part, run) in layout.parts.iter().enumerate() {
        let store = stores[run.drive as usize];
        for array in store.stored_state(part)? {
            store.read_values(&array, run.elements, &mut scratch, &mut |_, values| {
                digest.add(array.variable, values);
                Ok(())
            })?;
        }
    }
    digest.finish()
}

/// [`digest`] of drives at rest.
///
/// # Errors
/// As [`digest`]; an update that was cut short must be completed first.
pub fn digest_of(dirs: &[PathBuf]) -> Result<String> {
    StateReader::open(dirs)?.digest()
}
