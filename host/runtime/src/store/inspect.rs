//! Looks at drives at rest: report, verification, digest.

use std::path::PathBuf;
use std::sync::Arc;

use serde::Serialize;

use super::digest::StateDigest;
use super::drive::{DriveStore, Durability};
use super::journal::RecordKind;
use super::open::{Loaded, load};
use super::superblock::GradientFormat;
use crate::error::{Error, Result};
use crate::io::{DriveFile, IoEngine, IoOptions};
use crate::kernels::{Isa, checksum};
use crate::memory::{Arena, Region};
use crate::types::{Optimizer, Variable};

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

fn at_rest(dirs: &[PathBuf]) -> Result<Loaded> {
    let engines = (0..dirs.len())
        .map(|drive| IoEngine::start(&format!("drive{drive}"), &IoOptions::default()))
        .collect::<Result<Vec<Arc<IoEngine>>>>()?;
    load(dirs, engines, None, Durability::Power, false)
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
    let pending = loaded.recovered().redo.clone();
    let mut scratch = scratch()?;
    let mut findings = Vec::new();
    let mut total = 0;
    for store in &loaded.stores {
        for &part in store.parts() {
            let bytes = store.spec().layout.padded(part) * 4;
            let state = store.expected(part)?;
            let variables = store.superblock().optimizer.variables();
            for (&variable, expected) in variables.iter().zip(state.checksums) {
                let offset = store.data_offset(state.slot, variable)?;
                let found = sum_of(store, store.slots_file(), offset, bytes, &mut scratch)?;
                compare(store, part, variable, expected, found, &mut findings);
                total += bytes;
                progress(total);
            }
            if let Some(file) = store.residual_file() {
                let info = store.residual_before(part, loaded.recovered().step + 1)?;
                let found = sum_of(store, file, info.offset, bytes, &mut scratch)?;
                compare(store, part, Variable::Residual, info.checksum, found, &mut findings);
                total += bytes;
                progress(total);
            }
            let needed = pending.as_ref().is_some_and(|redo| redo.parts.contains(&part));
            if needed {
                let info = store.gradient_info(part)?;
                let variables = match store.superblock().gradients {
                    GradientFormat::Dense { .. } => vec![Variable::Gradient],
                    GradientFormat::TopK { .. } => {
                        vec![Variable::GradientIndex, Variable::GradientValue]
                    }
                };
                for (variable, expected) in variables.into_iter().zip(info.checksums) {
                    let bytes = store.gradient_bytes(part, variable)?;
                    let offset = store.gradient_offset(part, variable)?;
                    let found = sum_of(store, store.gradients_file(), offset, bytes, &mut scratch)?;
                    compare(store, part, variable, expected, found, &mut findings);
                    total += bytes;
                    progress(total);
                }
            }
        }
    }
    Ok(findings)
}

fn compare(
    store: &DriveStore,
    part: usize,
    variable: Variable,
    expected: u64,
    found: u64,
    findings: &mut Vec<Finding>,
) {
    if expected != found {
        findings.push(Finding {
            drive: store.drive(),
            path: store.path().to_path_buf(),
            subgroup: store.spec().layout.parts[part].subgroup,
            variable: variable.name().to_owned(),
            what: format!("checksum {expected:016x} recorded, {found:016x} found"),
        });
    }
}

fn scratch() -> Result<Region> {
    Arena::new("reading state", BLOCK_BYTES, false)?.allocate(BLOCK_BYTES)
}

fn sum_of(
    store: &DriveStore,
    file: &DriveFile,
    offset: u64,
    bytes: u64,
    scratch: &mut Region,
) -> Result<u64> {
    let isa = Isa::detect();
    let (mut done, mut sum) = (0, 0_u64);
    while done < bytes {
        let length = BLOCK_BYTES.min(bytes - done);
        let piece = &mut scratch[..length as usize];
        store.engine().read(file, offset + done, piece)?;
        sum = sum.wrapping_add(checksum(isa, piece, done / 4));
        done += length;
    }
    Ok(sum)
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
    let isa = Isa::detect();
    for (part, run) in layout.parts.iter().enumerate() {
        let store = stores[run.drive as usize];
        let state = store.expected(part)?;
        for (&variable, expected) in optimizer.variables().iter().zip(state.checksums) {
            let offset = store.data_offset(state.slot, variable)?;
            let (padded, real) = (layout.padded(part) * 4, run.elements * 4);
            let (mut done, mut sum) = (0, 0_u64);
            while done < padded {
                let length = BLOCK_BYTES.min(padded - done);
                let piece = &mut scratch[..length as usize];
                store.engine().read(store.slots_file(), offset + done, piece)?;
                sum = sum.wrapping_add(checksum(isa, piece, done / 4));
                digest
                    .add_bytes(variable, &piece[..real.saturating_sub(done).min(length) as usize]);
                done += length;
            }
            if sum != expected {
                return Err(Error::Corrupt {
                    drive: store.drive(),
                    path: store.path().to_path_buf(),
                    subgroup: run.subgroup,
                    variable: variable.name().to_owned(),
                    expected,
                    found: sum,
                });
            }
        }
    }
    digest.finish()
}

/// [`digest`] of drives at rest.
///
/// # Errors
/// As [`digest`]; an update that was cut short must be completed first.
pub fn digest_of(dirs: &[PathBuf]) -> Result<String> {
    let loaded = at_rest(dirs)?;
    if loaded.recovered().redo.is_some() {
        return Err(Error::Drives {
            what: format!("the update of step {} was cut short", loaded.recovered().step),
            remedy: "complete it with nearfield train --resume, then ask again".into(),
        });
    }
    digest(&loaded.stores)
}
