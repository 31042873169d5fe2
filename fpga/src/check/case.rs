//! A random update, and what the CPU makes of it.

use nearfield_hls::Random;
use nearfield_runtime::device::{
    CpuKernels, Kernels, Launch, LocalGradient, PairsCheck, pair_bounds_bytes,
};
use nearfield_runtime::kernels::{Dither, Isa, Scalars, Segment, UpdateSums};
use nearfield_runtime::memory::{Arena, Region};
use nearfield_runtime::types::{DType, HyperParameters, Optimizer};
use nearfield_runtime::{Error, Result};

/// Number format of the weights' copy.
pub const WEIGHTS: DType = DType::Fp16;

/// Random bits for moments in bf16.
pub fn dither() -> Dither {
    Dither::new(7, 4096)
}

/// What is checked: an update of one kind.
pub struct Case {
    pub optimizer: Optimizer,
    pub moments: DType,
    pub elements: usize,
    /// Share of the gradient that is kept; nothing for a dense one.
    pub keep: Option<f64>,
    pub seed: u64,
}

/// The arrays of a case, as the CPU's kernels take them.
pub struct Arrays {
    /// In the order of [`NAMES`].
    pub regions: Vec<Region>,
    pub pairs: u64,
}

fn region(bytes: u64) -> Result<Region> {
    let bytes = bytes.next_multiple_of(4096).max(4096);
    Arena::new("check of cards", bytes, false)?.allocate(bytes)
}

/// The arrays of a case.
pub const NAMES: [&str; 8] =
    ["gradient", "param", "exp_avg", "exp_avg_sq", "weights", "indices", "values", "bounds"];

impl Case {
    /// Random content.
    pub fn arrays(&self) -> Result<Arrays> {
        let elements = self.elements as u64;
        let mut random = Random::new(self.seed);
        let width = self.moments.bytes();
        let bytes = [4, 4, width, width, 2].map(|width| width * elements);
        let mut regions: Vec<Region> = bytes.into_iter().map(region).collect::<Result<_>>()?;
        for index in 0..self.elements {
            regions[0].as_f32_mut()[index] = random.value(1.0);
            regions[1].as_f32_mut()[index] = random.value(8.0);
            for (place, scale) in [(2, 0.1), (3, 0.01)] {
                let value = random.value(scale);
                let value = if place == 3 { value.abs() } else { value };
                match self.moments {
                    DType::Bf16 => {
                        regions[place].as_u16_mut()[index] = (value.to_bits() >> 16) as u16;
                    }
                    _ => regions[place].as_f32_mut()[index] = value,
                }
            }
        }
        let keep = self.keep.unwrap_or(0.0) * f64::from(u32::MAX);
        let kept: Vec<u32> =
            (0..elements as u32).filter(|_| f64::from(random.word()) <= keep).collect();
        let (mut indices, mut values) = (region(4 * elements)?, region(4 * elements)?);
        indices.as_u32_mut()[..kept.len()].copy_from_slice(&kept);
        for value in &mut values.as_f32_mut()[..kept.len()] {
            *value = random.value(1.0);
        }
        regions.extend([indices, values, region(pair_bounds_bytes(elements))?]);
        Ok(Arrays { regions, pairs: kept.len() as u64 })
    }

    /// Groups with learning rates of their own.
    pub fn segments(&self) -> [Segment; 2] {
        let scalars = |lr: f64| {
            let hyper = HyperParameters { lr, weight_decay: 0.01, ..HyperParameters::default() };
            Scalars::new(self.optimizer, &hyper, 3, 0.5)
        };
        // Groups end anywhere, and some padding is left.
        let first = self.elements / 3;
        let second = self.elements - first - (self.elements / 50).min(7);
        [(first, 1e-2), (second, 1e-3)]
            .map(|(elements, lr)| Segment { elements, scalars: scalars(lr) })
    }

    /// On the CPU.
    pub fn on_host(&self, arrays: &mut Arrays) -> Result<(UpdateSums, Option<PairsCheck>)> {
        let kernels = CpuKernels { isa: Isa::detect(), pool: None };
        let [gradient, param, exp_avg, exp_avg_sq, weights, indices, values, bounds] =
            &mut arrays.regions[..]
        else {
            return Err(Error::Invalid("arrays are missing".into()));
        };
        let mut check = None;
        let gradient = match self.keep {
            None => LocalGradient::Dense(gradient, DType::Fp32),
            Some(_) => {
                let (pairs, elements) = (arrays.pairs, self.elements as u64);
                check = Some(kernels.check_pairs(indices, pairs, elements, bounds)?);
                LocalGradient::Pairs { indices, values, bounds, pairs }
            }
        };
        let sums = kernels.update(Launch {
            optimizer: self.optimizer,
            segments: &self.segments(),
            first_element: 0,
            elements: self.elements,
            gradient,
            param,
            exp_avg: (self.optimizer != Optimizer::Adagrad).then_some(exp_avg),
            exp_avg_sq: (self.optimizer != Optimizer::SgdMomentum).then_some(exp_avg_sq),
            moments: self.moments,
            dither: dither(),
            weights: Some((weights, WEIGHTS)),
        })?;
        Ok((sums, check))
    }
}
