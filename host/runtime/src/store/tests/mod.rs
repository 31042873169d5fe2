//! A small run on two drives, driven as the offload engine drives a large one.

mod crash;
mod decide;
mod drives;
mod flips;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::*;
use crate::error::Result;
use crate::io::{Backend, Direct, DriveFile, Faults, IoEngine, IoOptions};
use crate::kernels::{Isa, checksum};
use crate::layout::{Layout, Part};
use crate::types::{DType, HyperParameters, Optimizer, Variable};

/// Elements of the parts; the first and the last lie on drive 0.
const PARTS: [u64; 3] = [1500, 2048, 700];
/// The iterations of the toy run; `false` is one whose gradients overflow.
const ITERATIONS: [bool; 5] = [true, false, true, true, true];

fn spec() -> StateSpec {
    let mut start = 0;
    let parts = PARTS.iter().enumerate().map(|(index, &elements)| {
        let part = Part { drive: index as u32 % 2, subgroup: index as u32, start, elements };
        start += elements;
        part
    });
    let parts: Vec<Part> = parts.collect();
    StateSpec {
        optimizer: Optimizer::SgdMomentum,
        moments: DType::Fp32,
        ahead: false,
        gradients: GradientFormat::Dense { dtype: DType::Fp32 },
        residual: true,
        layout: Layout::new(start, 1024, 2, parts).unwrap(),
    }
}

fn engines(count: usize, faults: Option<Arc<Faults>>) -> Vec<Arc<IoEngine>> {
    let options = IoOptions {
        queue_depth: 1,
        direct: Direct::Off,
        backend: Backend::Threads,
        faults,
        ..IoOptions::default()
    };
    (0..count).map(|drive| IoEngine::start(&format!("toy{drive}"), &options).unwrap()).collect()
}

/// Directories of a run; they go when it is dropped.
struct Toy {
    root: tempfile::TempDir,
    dirs: Vec<PathBuf>,
}

impl Toy {
    fn empty() -> Self {
        let root = tempfile::tempdir().unwrap();
        let dirs: Vec<PathBuf> =
            (0..2).map(|drive| root.path().join(format!("drive{drive}"))).collect();
        dirs.iter().for_each(|dir| std::fs::create_dir(dir).unwrap());
        Self { root, dirs }
    }

    /// A run that was just created and closed.
    fn created() -> Self {
        let toy = Self::empty();
        toy.create(Durability::Power, false).unwrap();
        toy
    }

    fn create(&self, durability: Durability, overwrite: bool) -> Result<Vec<DriveStore>> {
        let creation = create(&self.dirs, engines(2, None), spec(), durability, overwrite)?;
        for store in creation.stores() {
            for &part in store.parts() {
                let slot = store.initial_slot(part)?;
                let values: Vec<f32> =
                    (0..padded(part)).map(|index| initial(part, index)).collect();
                let param = put(
                    store,
                    store.slots_file(),
                    store.data_offset(slot, Variable::Param)?,
                    &values,
                )?;
                let exp_avg = put(
                    store,
                    store.slots_file(),
                    store.data_offset(slot, Variable::ExpAvg)?,
                    &vec![0.0; values.len()],
                )?;
                store.seal(part, slot, 0, &[param, exp_avg])?;
            }
        }
        creation.finish(record(0, 0))
    }

    fn copy(&self) -> Self {
        let copy = Self::empty();
        for (from, to) in self.dirs.iter().zip(&copy.dirs) {
            copy_files(from, to);
        }
        copy
    }

    fn open(
        &self,
        durability: Durability,
        faults: Option<Arc<Faults>>,
    ) -> Result<(Vec<DriveStore>, Recovered)> {
        open(&self.dirs, engines(2, faults), Some(&spec()), durability)
    }
}

fn copy_files(from: &Path, to: &Path) {
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
}

fn padded(part: usize) -> usize {
    spec().layout.padded(part) as usize
}

fn initial(part: usize, index: usize) -> f32 {
    if index < PARTS[part] as usize { (part * 10_000 + index) as f32 } else { 0.0 }
}

fn gradient(part: usize, step: u64) -> Vec<f32> {
    let element = |index: usize| {
        if index < PARTS[part] as usize { (index as u64 % 7 + step) as f32 } else { 0.0 }
    };
    (0..padded(part)).map(element).collect()
}

fn record(iteration: u64, step: u64) -> StepRecord {
    StepRecord {
        iteration,
        step,
        unscale: 1.0,
        groups: vec![HyperParameters::default()],
        blob: format!("after iteration {iteration}").into_bytes(),
    }
}

fn bytes_of(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

fn put(store: &DriveStore, file: &DriveFile, offset: u64, values: &[f32]) -> Result<u64> {
    let bytes = bytes_of(values);
    store.engine().write(file, offset, &bytes)?;
    Ok(checksum(Isa::Scalar, &bytes, 0))
}

/// Reads and checks as the update does.
fn get(
    store: &DriveStore,
    file: &DriveFile,
    offset: u64,
    elements: usize,
    expected: u64,
) -> Result<Vec<f32>> {
    let mut bytes = vec![0; elements * 4];
    store.engine().read(file, offset, &mut bytes)?;
    assert_eq!(
        checksum(Isa::Scalar, &bytes, 0),
        expected,
        "{store:?} at {offset} of {}",
        file.path().display()
    );
    Ok(bytes.chunks_exact(4).map(|word| f32::from_le_bytes(word.try_into().unwrap())).collect())
}

/// Gradients and residuals of `step`, as the backward pass leaves them.
fn offload(stores: &[DriveStore], step: u64) -> Result<()> {
    for store in stores {
        for &part in store.parts() {
            let offset = store.gradient_offset(part, Variable::Gradient)?;
            let sum = put(store, store.gradients_file(), offset, &gradient(part, step))?;
            store.seal_gradient(part, step, padded(part) as u64, &[sum])?;
            let file = store.residual_file().expect("the toy run keeps residuals");
            let before = store.residual_before(part, step)?;
            let values = get(store, file, before.offset, padded(part), before.checksum)?;
            assert_eq!(
                values,
                vec![(step - 1) as f32; values.len()],
                "the residual is that of the step before"
            );
            let offset = store.residual_target(part, step)?;
            let sum = put(store, file, offset, &vec![step as f32; values.len()])?;
            store.seal_residual(part, step, sum)?;
        }
    }
    Ok(())
}

/// The update of `step` after its intent: `param -= gradient`, `exp_avg += step`.
fn update(stores: &[DriveStore], step: u64) -> Result<()> {
    for store in stores {
        for way in store.begin_update(step)? {
            let elements = padded(way.part);
            let state = store.expected(way.part)?;
            let info = store.gradient_info(way.part)?;
            assert_eq!(info.generation, step);
            let offset = store.gradient_offset(way.part, Variable::Gradient)?;
            let gradient = get(store, store.gradients_file(), offset, elements, info.checksums[0])?;
            let mut sums = Vec::new();
            for (variable, expected) in
                [Variable::Param, Variable::ExpAvg].into_iter().zip(state.checksums)
            {
                let from = store.data_offset(way.from_slot, variable)?;
                let mut values = get(store, store.slots_file(), from, elements, expected)?;
                for (value, gradient) in values.iter_mut().zip(&gradient) {
                    *value += if variable == Variable::Param {
                        -gradient
                    } else {
                        *gradient * step as f32
                    };
                }
                let to = store.data_offset(way.to_slot, variable)?;
                sums.push(put(store, store.slots_file(), to, &values)?);
            }
            store.seal(way.part, way.to_slot, step, &sums)?;
        }
    }
    stores.iter().try_for_each(DriveStore::finish_update)?;
    stores.iter().try_for_each(DriveStore::commit)
}

/// Runs from where `recovered` says to the end of `iterations`.
fn train(stores: &[DriveStore], recovered: &Recovered, iterations: &[bool]) -> Result<()> {
    let mut step = recovered.step;
    if recovered.redo.is_some() {
        update(stores, step)?;
    }
    for (index, &applied) in iterations.iter().enumerate().skip(recovered.iteration as usize) {
        let iteration = index as u64 + 1;
        offload(stores, step + 1)?;
        if applied {
            step += 1;
            let record = record(iteration, step);
            stores.iter().try_for_each(|store| store.intent(&record))?;
            update(stores, step)?;
        } else {
            let record = record(iteration, step);
            stores.iter().try_for_each(|store| store.skip(&record))?;
        }
    }
    Ok(())
}

/// Optimizer steps among the first `iterations`.
fn steps(iterations: u64) -> u64 {
    ITERATIONS.iter().take(iterations as usize).filter(|applied| **applied).count() as u64
}

/// Digest of the state after `step`, worked out without any drive.
fn reference(step: u64) -> String {
    let layout = spec().layout;
    let mut digest = StateDigest::new(step, layout.elements, Optimizer::SgdMomentum);
    for (part, &elements) in PARTS.iter().enumerate() {
        let mut param: Vec<f32> =
            (0..elements as usize).map(|index| initial(part, index)).collect();
        let mut exp_avg = vec![0.0; param.len()];
        for done in 1..=step {
            for (index, gradient) in gradient(part, done)[..param.len()].iter().enumerate() {
                param[index] -= gradient;
                exp_avg[index] += gradient * done as f32;
            }
        }
        digest.add(Variable::Param, &param);
        digest.add(Variable::ExpAvg, &exp_avg);
    }
    digest.finish().unwrap()
}
