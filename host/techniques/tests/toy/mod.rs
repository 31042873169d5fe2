//! A model without tensors: gradients are a function of step and element, so runs can be compared bit by bit.
#![allow(dead_code, clippy::unwrap_used)]

use std::path::{Path, PathBuf};

use nearfield_runtime::Result;
use nearfield_runtime::io::IoOptions;
use nearfield_runtime::store::{Durability, StepRecord};
use nearfield_runtime::types::{DType, HyperParameters};
use nearfield_techniques::offload::plan::Action;
use nearfield_techniques::offload::plan::gradient::{MicroStep, UnitShape};
use nearfield_techniques::offload::{
    DeviceChoice, EngineConfig, FlatModel, ModelWork, OffloadEngine, OffloadOptions, TensorRun,
};

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
            forward_flops: 1,
            forward: unit < 2,
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

pub fn initial(first: u64, out: &mut [f32]) {
    for (index, value) in out.iter_mut().enumerate() {
        *value = (mix(first + index as u64, 1) >> 40) as f32 * 2.0_f32.powi(-25) - 0.25;
    }
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
    pub units: &'a [UnitShape],
}

impl ModelWork for Toy<'_> {
    fn compute(&self, _: Action) -> Result<()> {
        Ok(())
    }

    fn offload(
        &self,
        unit: usize,
        start: u64,
        elements: u64,
        sink: &mut dyn FnMut(u64, &[u8]) -> Result<()>,
    ) -> Result<()> {
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
        let dtype = engine.options().gradient_dtype;
        let toy = Toy { step, scale, dtype, units };
        engine.run_gradients(MicroStep::Offload, &toy, scale)?;
        engine.update(&record(step, scale))?;
    }
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
