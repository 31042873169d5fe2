//! Rates of memory and of the kernels.

use std::collections::BTreeMap;
use std::time::Instant;

use anyhow::Context;
use nearfield_runtime::Result;
use nearfield_runtime::codec::{TopK, kept, scatter};
use nearfield_runtime::kernels::{
    GradientRef, Isa, Moments, Scalars, Segment, WeightsOut, f32_to_f16, update,
};
use nearfield_runtime::memory::{Arena, Region};
use nearfield_runtime::types::{HyperParameters, Optimizer};
use nearfield_sim::fabric::{Host, SizePoint};
use rayon::ThreadPool;

use super::positive;
use crate::values::median;

/// Elements that are measured: from what fits a cache to what fits none.
const ELEMENTS: [usize; 4] = [1 << 14, 1 << 17, 1 << 20, 1 << 23];
/// Seconds that each measurement may take, warm-up aside.
const SECONDS: f64 = 0.25;
const MOST_ROUNDS: usize = 200;
/// Share that compressed gradients keep.
const KEEP: f64 = 0.01;

/// Arrays of one update, and what goes with them.
struct Arrays {
    g: Region,
    p: Region,
    m: Region,
    v: Region,
    copy: Region,
    indices: Vec<u32>,
    values: Vec<f32>,
}

impl Arrays {
    fn new(elements: usize) -> Result<Self> {
        let array = || {
            let bytes = 4 * elements as u64;
            Arena::new("calibration arrays", bytes, false)?.allocate(bytes)
        };
        let pairs = kept(KEEP, elements as u64) as usize;
        let mut arrays = Self {
            g: array()?,
            p: array()?,
            m: array()?,
            v: array()?,
            copy: array()?,
            indices: vec![0; pairs],
            values: vec![0.0; pairs],
        };
        for (index, g) in arrays.g.as_f32_mut().iter_mut().enumerate() {
            *g = ((index as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as f32 * 1e-7 - 0.8;
        }
        arrays.p.as_f32_mut().fill(0.5);
        Ok(arrays)
    }

    fn update(&mut self, pool: &ThreadPool) -> Result<()> {
        let kind = Optimizer::Adamw;
        let scalars = Scalars::new(kind, &HyperParameters::default(), 10, 1.0);
        let segments = [Segment { elements: self.g.as_f32().len(), scalars }];
        let moments = Moments { m: Some(self.m.as_f32_mut()), v: Some(self.v.as_f32_mut()) };
        let (g, p) = (GradientRef::Fp32(self.g.as_f32()), self.p.as_f32_mut());
        let out = WeightsOut::Fp16(&mut self.copy.as_u16_mut()[..p.len()]);
        update(Some(pool), Isa::detect(), kind, &segments, g, p, moments, out, 0)?;
        Ok(())
    }
}

/// Median seconds of `work`.
fn seconds(mut work: impl FnMut() -> Result<()>) -> Result<f64> {
    work()?;
    let begin = Instant::now();
    let mut times = Vec::new();
    while times.len() < 3 || begin.elapsed().as_secs_f64() < SECONDS && times.len() < MOST_ROUNDS {
        let begin = Instant::now();
        work()?;
        times.push(begin.elapsed().as_secs_f64());
    }
    Ok(median(&times))
}

pub(super) fn measure(threads: usize) -> anyhow::Result<Host> {
    let pool = rayon::ThreadPoolBuilder::new()
        .num_threads(threads)
        .build()
        .context("the threads could not be started; use fewer --threads")?;
    let mut kernels: BTreeMap<String, Vec<SizePoint>> = BTreeMap::new();
    let mut copy = 0.0;
    for elements in ELEMENTS {
        let mut arrays = Arrays::new(elements)?;
        let mut add = |name: &str, bytes_an_element: usize, seconds: f64| {
            let bytes = (elements * bytes_an_element) as f64;
            let point =
                SizePoint { bytes: positive(bytes)?, bytes_per_second: positive(bytes / seconds)? };
            kernels.entry(name.to_owned()).or_default().push(point);
            anyhow::Ok(())
        };
        let mut topk = TopK::new(elements, threads)?;
        let (g, pairs) = (arrays.g.as_f32(), arrays.indices.len());
        let (indices, values) = (&mut arrays.indices, &mut arrays.values);
        add("topk", 4, seconds(|| topk.select(g, pairs, indices, values))?)?;
        let narrow = &mut arrays.copy.as_u16_mut()[..elements];
        let wide = arrays.p.as_f32();
        add(
            "cast",
            8,
            seconds(|| {
                f32_to_f16(wide, narrow);
                Ok(())
            })?,
        )?;
        // Bytes an element as the task graph counts them: states read and written, gradient, fp16 copy.
        add("update", 24 + 4 + 2, seconds(|| arrays.update(&pool))?)?;
        let expand_and_update = || {
            scatter(&arrays.indices, &arrays.values, 0, arrays.g.as_f32_mut())?;
            arrays.update(&pool)
        };
        add("update_topk", 24 + 8 + 2, seconds(expand_and_update)?)?;
        let (from, to) = (&arrays.p, &mut arrays.m);
        let once = seconds(|| {
            to.copy_from_slice(from);
            Ok(())
        })?;
        copy = 4.0 * elements as f64 / once;
    }
    Ok(Host { copy_bytes_per_second: positive(copy)?, kernels })
}
