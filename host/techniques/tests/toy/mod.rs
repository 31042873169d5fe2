//! A model without tensors: gradients are a function of step and element, so runs can be compared bit by bit.
#![allow(dead_code, clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use nearfield_runtime::Result;
use nearfield_runtime::io::IoOptions;
use nearfield_runtime::store::{Durability, StepRecord};
use nearfield_runtime::types::{DType, HyperParameters};
use nearfield_techniques::offload::plan::Action;
use nearfield_techniques::offload::plan::gradient::{MicroStep, UnitShape};
use nearfield_techniques::offload::{
    DeviceChoice, EngineConfig, FlatModel, ModelWork, OffloadEngine, OffloadOptions, System,
    TensorRun, WeightSource,
};

/// Several small parts a drive, in two pieces each where the handler hands over pieces.
pub fn options(system: System) -> OffloadOptions {
    OffloadOptions { system, subgroup_elements: 2048, pieces: 2, ..OffloadOptions::default() }
}

/// The same with compressed gradients and residuals.
pub fn compressed() -> OffloadOptions {
    OffloadOptions { topk_keep: 0.3, error_feedback: true, ..options(System::SuOC) }
}

/// Two parameter groups over three units, whose gradients arrive last unit first.
pub fn model(scale: u64) -> (FlatModel, Vec<UnitShape>) {
    let sizes = [5 * scale + 3, 9 * scale, 9 * scale + 1, 70, 131, 131];
    let tensors = sizes.iter().enumerate().map(|(index, &elements)| TensorRun {
        name: format!("t{index}"),
        elements,
        group: u32::from(index >= 3),
    });
    let starts: Vec<u64> = sizes
        .iter()
        .scan(0, |next, size| {
            let start = *next;
            *next += size;
            Some(start)
        })
        .collect();
    let units = (0..3)
        .map(|unit| UnitShape {
            name: format!("unit{unit}"),
            weight_elements: 10,
            output_bytes: 8,
            working_bytes: 8,
            score_bytes: 0,
            forward_flops: 1,
            forward: unit < 2,
            backward_weights: unit > 0,
            reads: vec![(starts[unit], sizes[unit]), (starts[unit + 3], sizes[unit + 3])],
            gradients: vec![(starts[unit], sizes[unit]), (starts[unit + 3], sizes[unit + 3])],
        })
        .collect();
    (FlatModel::new(tensors.collect()).unwrap(), units)
}

pub fn directories(root: &Path, count: u32) -> Vec<PathBuf> {
    (0..count)
        .map(|index| {
            let dir = root.join(format!("drive{index}"));
            std::fs::create_dir_all(&dir).unwrap();
            dir
        })
        .collect()
}

pub fn config(
    options: OffloadOptions,
    drives: Vec<PathBuf>,
    units: Vec<UnitShape>,
) -> EngineConfig {
    EngineConfig {
        options,
        drives,
        io: IoOptions { queue_depth: 8, ..IoOptions::default() },
        durability: Durability::Power,
        device: DeviceChoice::Software,
        threads: 2,
        lock_memory: false,
        units,
    }
}

fn mix(a: u64, b: u64) -> u64 {
    let mut x = a.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ b.wrapping_mul(0xd6e8_feb8_6659_fd93);
    x ^= x >> 32;
    x = x.wrapping_mul(0xd6e8_feb8_6659_fd93);
    x ^ (x >> 29)
}

pub fn initial(first: u64, out: &mut [f32]) -> Result<()> {
    for (index, value) in out.iter_mut().enumerate() {
        *value = (mix(first + index as u64, 1) >> 40) as f32 * 2.0_f32.powi(-25) - 0.25;
    }
    Ok(())
}

pub fn gradient(step: u64, element: u64, scale: f64) -> f32 {
    let value = (mix(element, step + 17) >> 40) as f32 * 2.0_f32.powi(-22) - 2.0;
    // Rounded to bf16 so that every gradient format holds it exactly.
    f32::from_bits(value.to_bits() & 0xffff_0000) * scale as f32
}

pub struct Toy<'a> {
    pub step: u64,
    pub scale: f64,
    pub dtype: DType,
    pub weights_dtype: DType,
    pub units: &'a [UnitShape],
    /// Parts of the gradient that are handed over before the expected update is overturned.
    pub overturned_after: usize,
    handed_over: AtomicUsize,
    /// Weights that units were given, by their first element.
    pub loaded: Mutex<BTreeMap<u64, Vec<u8>>>,
}

impl<'a> Toy<'a> {
    pub fn new(step: u64, scale: f64, options: &OffloadOptions, units: &'a [UnitShape]) -> Self {
        let (dtype, weights_dtype) = (options.gradient_dtype, options.weights_dtype);
        let (overturned_after, handed_over) = (usize::MAX, AtomicUsize::new(0));
        let loaded = Mutex::default();
        Self { step, scale, dtype, weights_dtype, units, overturned_after, handed_over, loaded }
    }
}

impl ModelWork for Toy<'_> {
    fn compute(&self, _: Action) -> Result<()> {
        Ok(())
    }

    fn load(&self, unit: usize, _: bool, weights: &dyn WeightSource) -> Result<()> {
        let mut loaded = self.loaded.lock().unwrap();
        for &(first, elements) in &self.units[unit].reads {
            let mut bytes = vec![0; (elements * self.weights_dtype.bytes()) as usize];
            weights.copy_out(first, &mut bytes)?;
            loaded.insert(first, bytes);
        }
        Ok(())
    }

    fn save_output(&self, unit: usize, to: &mut [u8]) -> Result<()> {
        to.fill(unit as u8 + 1);
        Ok(())
    }

    fn load_output(&self, unit: usize, from: &[u8]) -> Result<()> {
        assert!(from.iter().all(|&byte| byte == unit as u8 + 1), "output of unit {unit}: {from:?}");
        Ok(())
    }

    fn offload(
        &self,
        unit: usize,
        start: u64,
        elements: u64,
        sink: &mut dyn FnMut(u64, &[u8]) -> Result<()>,
    ) -> Result<()> {
        self.handed_over.fetch_add(1, Ordering::SeqCst);
        for &(first, length) in &self.units[unit].gradients {
            let (from, to) = (first.max(start), (first + length).min(start + elements));
            let bytes: Vec<u8> = (from..to.max(from))
                .flat_map(|element| {
                    let g = gradient(self.step, element, self.scale);
                    match self.dtype {
                        DType::Fp32 => g.to_le_bytes().to_vec(),
                        DType::Fp16 => half::f16::from_f32(g).to_bits().to_le_bytes().to_vec(),
                        DType::Bf16 => half::bf16::from_f32(g).to_bits().to_le_bytes().to_vec(),
                    }
                })
                .collect();
            if !bytes.is_empty() {
                sink(from, &bytes)?;
            }
        }
        Ok(())
    }

    fn overturned(&self) -> bool {
        self.handed_over.load(Ordering::SeqCst) > self.overturned_after
    }
}

pub fn record(step: u64, scale: f64) -> StepRecord {
    let hyper = |weight_decay| HyperParameters {
        lr: 1e-2 / step.max(1) as f64,
        weight_decay,
        ..HyperParameters::default()
    };
    StepRecord {
        iteration: step,
        step,
        unscale: (1.0 / scale) as f32,
        groups: vec![hyper(0.1), hyper(0.0)],
        blob: format!("after step {step}").into_bytes(),
    }
}

/// Runs steps up to `last`.
pub fn steps(engine: &mut OffloadEngine, units: &[UnitShape], last: u64, scale: f64) -> Result<()> {
    while engine.step() < last {
        let step = engine.step() + 1;
        let toy = Toy::new(step, scale, &engine.options().clone(), units);
        let record = record(step, scale);
        gradients(engine, &toy, scale, &record)?;
        update(engine, &record)?;
    }
    Ok(())
}

/// Gradients of a step; where the run overlaps, with the update of `expected` ahead.
pub fn gradients(
    engine: &mut OffloadEngine,
    toy: &Toy,
    scale: f64,
    expected: &StepRecord,
) -> Result<()> {
    if engine.options().overlap_update {
        engine.run_ahead(toy, scale, expected)?;
    } else {
        engine.run_gradients(MicroStep::Offload, toy, scale)?;
    }
    Ok(())
}

/// The update of a step, which may be there already.
pub fn update(engine: &mut OffloadEngine, record: &StepRecord) -> Result<()> {
    if engine.is_ahead(record) {
        engine.adopt(record)?
    } else {
        engine.update(record)?
    };
    Ok(())
}

/// A run from its start; returns the digest and the working weights.
pub fn run(options: OffloadOptions, drives: u32, size: u64, last: u64) -> (String, Vec<u8>) {
    let root = tempfile::tempdir().unwrap();
    let (model, units) = model(size);
    let drives = if options.system.on_drives() { directories(root.path(), drives) } else { vec![] };
    let config = config(options, drives, units.clone());
    let mut engine =
        OffloadEngine::create(&config, model, false, &record(0, 1.0), &initial).unwrap();
    steps(&mut engine, &units, last, 1.0).unwrap();
    let mut weights = vec![0; engine.weights().bytes() as usize];
    engine.weights().copy_out(0, &mut weights).unwrap();
    (engine.digest().unwrap(), weights)
}

/// A temporary directory, in memory where the system has one, so that thousands of flushes are quick.
pub fn fast_directory() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

/// Copies drive directories (regular files only) to `root`.
pub fn copy_drives(from: &[PathBuf], root: &Path) -> Vec<PathBuf> {
    let copies = directories(root, from.len() as u32);
    for (from, to) in from.iter().zip(&copies) {
        for entry in std::fs::read_dir(from).unwrap() {
            let entry = entry.unwrap();
            std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
        }
    }
    copies
}

/// A run whose iterations are numbered apart from its steps: some are skipped as if they had overflowed.
///
/// Gradients depend on the iteration, so a residual that a skipped iteration leaves behind is noticed.
pub struct Script {
    pub options: OffloadOptions,
    pub durability: Durability,
    pub scale: u64,
    pub drives: u32,
    /// Iterations that change nothing.
    pub skips: Vec<u64>,
    /// Digest and working weights after each iteration of a run that nothing interrupts.
    pub expected: Vec<(String, Vec<u8>)>,
}

impl Script {
    pub fn new(options: OffloadOptions, scale: u64, skips: &[u64], last: u64) -> Self {
        let mut script = Self {
            options,
            durability: Durability::Power,
            scale,
            drives: 2,
            skips: skips.to_vec(),
            expected: Vec::new(),
        };
        let root = fast_directory();
        let dirs = directories(root.path(), script.drives);
        let mut engine = script.create(&dirs, IoOptions::default()).unwrap();
        let mut done = 0;
        script.expected.push(state(&engine));
        while done < last {
            let next = done + 1;
            script.go(&mut engine, &mut done, next).unwrap();
            script.expected.push(state(&engine));
        }
        script
    }

    pub fn config(&self, dirs: &[PathBuf], io: IoOptions) -> EngineConfig {
        let (_, units) = model(self.scale);
        let mut config = config(self.options.clone(), dirs.to_vec(), units);
        config.io = io;
        config.durability = self.durability;
        config
    }

    pub fn step_of(&self, iteration: u64) -> u64 {
        iteration - self.skips.iter().filter(|&&skip| skip <= iteration).count() as u64
    }

    pub fn record(&self, iteration: u64) -> StepRecord {
        let step = self.step_of(iteration);
        StepRecord {
            iteration,
            blob: format!("after iteration {iteration}, step {step}").into_bytes(),
            ..record(step, 1.0)
        }
    }

    pub fn create(&self, dirs: &[PathBuf], io: IoOptions) -> Result<OffloadEngine> {
        let config = self.config(dirs, io);
        OffloadEngine::create(&config, model(self.scale).0, false, &self.record(0), &initial)
    }

    /// Opens the drives; what they say of themselves must fit together and be the uninterrupted run's state.
    pub fn resume(&self, dirs: &[PathBuf], io: IoOptions) -> Result<(OffloadEngine, u64)> {
        let (engine, recovered) =
            OffloadEngine::resume(&self.config(dirs, io), model(self.scale).0)?;
        let iteration = recovered.iteration;
        assert_eq!(recovered.blob, self.record(iteration).blob, "{recovered:?}");
        assert_eq!(recovered.step, self.step_of(iteration), "{recovered:?}");
        assert_eq!(engine.step(), recovered.step);
        Ok((engine, iteration))
    }

    /// Runs iterations until `done` is `last`; after an error `done` counts those whose call had returned.
    pub fn go(&self, engine: &mut OffloadEngine, done: &mut u64, last: u64) -> Result<()> {
        let (_, units) = model(self.scale);
        while *done < last {
            let iteration = *done + 1;
            let toy = Toy::new(iteration, 1.0, &self.options, &units);
            // What would follow if nothing overflowed.
            let expected = record(engine.step() + 1, 1.0);
            gradients(engine, &toy, 1.0, &expected)?;
            if self.skips.contains(&iteration) {
                engine.skip(&self.record(iteration))?;
            } else {
                update(engine, &self.record(iteration))?;
            }
            *done = iteration;
        }
        Ok(())
    }

    /// Resumes without faults, compares state and weights with the uninterrupted run, then runs to its end.
    pub fn resume_and_finish(&self, dirs: &[PathBuf], earliest: u64, latest: u64, what: &str) {
        let (mut engine, mut done) = self
            .resume(dirs, IoOptions::default())
            .unwrap_or_else(|error| panic!("{what}: cannot be resumed: {error}"));
        assert!(
            (earliest..=latest).contains(&done),
            "{what}: iteration {done} is outside {earliest}..={latest}"
        );
        self.check(&engine, done, what);
        let last = self.expected.len() as u64 - 1;
        self.go(&mut engine, &mut done, last)
            .unwrap_or_else(|error| panic!("{what}: cannot go on: {error}"));
        self.check(&engine, last, what);
    }

    pub fn check(&self, engine: &OffloadEngine, iteration: u64, what: &str) {
        let expected = &self.expected[iteration as usize];
        let found = state(engine);
        assert_eq!(found.0, expected.0, "{what}: digest after iteration {iteration}");
        assert!(found.1 == expected.1, "{what}: weights after iteration {iteration}");
    }
}

/// Digest and working weights.
pub fn state(engine: &OffloadEngine) -> (String, Vec<u8>) {
    let mut weights = vec![0; engine.weights().bytes() as usize];
    engine.weights().copy_out(0, &mut weights).unwrap();
    (engine.digest().unwrap(), weights)
}
