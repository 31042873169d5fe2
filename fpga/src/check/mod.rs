//! Compares every bit that a device computes with the CPU's.

mod case;

use std::path::Path;
use std::sync::Arc;

use nearfield_runtime::device::{
    BufferId, BufferRange, CheckPairsCall, GradientBuffers, NearStorageDevice, PairBuffers, Reach,
    UpdateCall,
};
use nearfield_runtime::io::{DriveFile, IoEngine, OpenMode};
use nearfield_runtime::types::{DType, Optimizer};
use nearfield_runtime::{Error, Result};

use case::{Arrays, Case, NAMES, WEIGHTS, dither};

/// How much is checked.
#[derive(Debug, Clone, Copy)]
pub struct Extent<'a> {
    /// Elements that are updated.
    pub elements: u32,
    /// Share of the gradient that is kept, for the kernels of pairs.
    pub keep: f64,
    /// What distinguishes the random numbers of one device from another's.
    pub seed: u64,
    /// Folder for a file by which memory is filled and read, over an engine, where drives reach it.
    pub folder: Option<(&'a Path, &'a Arc<IoEngine>)>,
}

/// Checks all rules with dense gradients and with kept pairs; gives a line on each.
///
/// # Errors
/// What the device reports, and the first difference.
pub fn check(device: &dyn NearStorageDevice, name: &str, extent: Extent) -> Result<Vec<String>> {
    let rules = [Optimizer::Adamw, Optimizer::Adam, Optimizer::Adagrad, Optimizer::SgdMomentum];
    let mut lines = Vec::new();
    for (number, optimizer) in rules.into_iter().enumerate() {
        for keep in [None, Some(extent.keep)] {
            let moments = if number % 2 == 0 { DType::Fp32 } else { DType::Bf16 };
            let elements = extent.elements as usize;
            let case =
                Case { optimizer, moments, elements, keep, seed: extent.seed + number as u64 };
            let what = if keep.is_some() { "kept pairs" } else { "dense gradient" };
            let title = format!("{name}: {optimizer:?}, {what}");
            one(device, &case, extent)
                .map_err(|error| Error::Invalid(format!("{title}: {error}")))?;
            lines.push(format!("{title}: every bit of {elements} elements is the CPU's"));
        }
    }
    Ok(lines)
}

/// The arrays of a case on a device.
struct Loaded<'a> {
    device: &'a dyn NearStorageDevice,
    buffers: Vec<(BufferId, u64)>,
}

impl Drop for Loaded<'_> {
    fn drop(&mut self) {
        for (buffer, _) in &self.buffers {
            // Whatever a device has against it comes after the end of the check.
            let _ = self.device.release(*buffer);
        }
    }
}

impl<'a> Loaded<'a> {
    fn new(device: &'a dyn NearStorageDevice, arrays: &Arrays, extent: Extent) -> Result<Self> {
        let mut loaded = Self { device, buffers: Vec::new() };
        for (name, region) in NAMES.iter().zip(&arrays.regions) {
            let bytes = region.len() as u64;
            let kernels_only = ["weights", "bounds"].contains(name);
            let reach = if kernels_only { Reach::Kernels } else { Reach::Drive };
            let buffer = device.allocate(bytes, reach)?;
            loaded.buffers.push((buffer, bytes));
            let range = BufferRange { buffer, offset: 0, bytes };
            match extent.folder {
                Some((folder, engine)) if !kernels_only => {
                    through_file(device, range, region, folder, engine)?;
                }
                _ => device.host_to_local(region, range)?,
            }
        }
        Ok(loaded)
    }

    fn buffer(&self, name: &str) -> BufferId {
        let place = NAMES.iter().position(|known| *known == name).unwrap_or_default();
        self.buffers[place].0
    }

    /// Compares an array with the CPU's.
    fn compare(&self, name: &str, expected: &[u8], width: usize, elements: usize) -> Result<()> {
        let mut found = vec![0; elements * width];
        let range = BufferRange { buffer: self.buffer(name), offset: 0, bytes: found.len() as u64 };
        self.device.local_to_host(range, &mut found)?;
        match found.iter().zip(expected).position(|(found, expected)| found != expected) {
            None => Ok(()),
            Some(at) => Err(Error::Invalid(format!("{name} differs at element {}", at / width))),
        }
    }
}

fn one(device: &dyn NearStorageDevice, case: &Case, extent: Extent) -> Result<()> {
    let given = case.arrays()?;
    let mut expected = case.arrays()?;
    let (expected_sums, expected_check) = case.on_host(&mut expected)?;
    let loaded = Loaded::new(device, &given, extent)?;
    let pairs = PairBuffers {
        indices: loaded.buffer("indices"),
        values: loaded.buffer("values"),
        bounds: loaded.buffer("bounds"),
    };
    let elements = case.elements as u64;
    let gradient = match expected_check {
        None => GradientBuffers::Dense(loaded.buffer("gradient"), DType::Fp32),
        Some(expected) => {
            let call = CheckPairsCall { buffers: pairs, pairs: given.pairs, elements };
            if device.check_pairs(&call)? != expected {
                return Err(Error::Invalid("check_pairs gives another result than the CPU".into()));
            }
            GradientBuffers::Pairs { buffers: pairs, pairs: given.pairs }
        }
    };
    let (first, second) =
        (case.optimizer != Optimizer::Adagrad, case.optimizer != Optimizer::SgdMomentum);
    let sums = device.update(&UpdateCall {
        optimizer: case.optimizer,
        segments: &case.segments(),
        first_element: 0,
        elements,
        gradient,
        param: loaded.buffer("param"),
        exp_avg: first.then(|| loaded.buffer("exp_avg")),
        exp_avg_sq: second.then(|| loaded.buffer("exp_avg_sq")),
        moments: case.moments,
        dither: dither(),
        weights: Some((loaded.buffer("weights"), WEIGHTS)),
    })?;
    let width = case.moments.bytes() as usize;
    let arrays = [
        ("param", 4),
        ("exp_avg", width),
        ("exp_avg_sq", width),
        ("weights", WEIGHTS.bytes() as usize),
    ];
    for (place, (name, width)) in arrays.into_iter().enumerate() {
        loaded.compare(name, &expected.regions[place + 1], width, case.elements)?;
    }
    if sums != expected_sums {
        return Err(Error::Invalid("other sums than the CPU's".into()));
    }
    Ok(())
}

/// Fills memory from a file, and writes it back, which must change nothing.
fn through_file(
    device: &dyn NearStorageDevice,
    range: BufferRange,
    content: &[u8],
    folder: &Path,
    engine: &Arc<IoEngine>,
) -> Result<()> {
    let path = folder.join("nearfield-card-check.tmp");
    let file: DriveFile = engine.open(&path, OpenMode::Create)?;
    let moved = engine
        .write(&file, 0, content)
        .and_then(|()| device.storage_to_local(&file, 0, range))
        .and_then(|()| device.local_to_storage(range, &file, 0));
    let back = std::fs::read(&path);
    let removed = std::fs::remove_file(&path);
    moved?;
    let back = back.and_then(|back| removed.map(|()| back));
    let back = back.map_err(|source| Error::io("read", &path, 0, range.bytes, source))?;
    if back != content {
        return Err(Error::Invalid(
            "what was written from the card's memory is not what was read into it".into(),
        ));
    }
    Ok(())
}
