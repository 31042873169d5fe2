//! Rates of memory and of the kernels.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::Context;
use nearfield_runtime::Result;
use nearfield_runtime::codec::{TopK, check_pairs, kept, scatter};
use nearfield_runtime::exec::{Executor, ThreadedExecutor};
use nearfield_runtime::graph::{GraphBuilder, Op, Place, Task};
use nearfield_runtime::kernels::{
    Gradient, GradientRef, Isa, Moments, PairsRef, Scalars, Segment, WeightsOut, f32_to_f16, update,
};
use nearfield_runtime::memory::{Arena, Region};
use nearfield_runtime::types::{HyperParameters, Optimizer};
use nearfield_sim::fabric::{Host, SizePoint};
use rayon::ThreadPool;

use super::positive;
use crate::values::median;

/// Elements that are measured.
const ELEMENTS: [usize; 4] = [1 << 14, 1 << 17, 1 << 20, 1 << 23];
/// Elements of the arrays: each call works on the next run of them, so that small ones find nothing in a cache either,
/// as in a step, whose data comes from a drive.
const ALL: usize = 1 << 23;
/// Pause before each call, in which threads fall asleep as they do while a step waits for a drive.
const PAUSE: Duration = Duration::from_micros(500);
/// Tasks of the graph that shows what a task costs.
const TASKS: u32 = 400;
/// Seconds that each measurement may take, warm-up aside.
const SECONDS: f64 = 0.08;
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
}

impl Arrays {
    fn new() -> Result<Self> {
        let array = || {
            let bytes = 4 * ALL as u64;
            Arena::new("calibration arrays", bytes, false)?.allocate(bytes)
        };
        let mut arrays =
            Self { g: array()?, p: array()?, m: array()?, v: array()?, copy: array()? };
        for (index, g) in arrays.g.as_f32_mut().iter_mut().enumerate() {
            *g = ((index as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as f32 * 1e-7 - 0.8;
        }
        arrays.p.as_f32_mut().fill(0.5);
        Ok(arrays)
    }

    /// Updates the elements from `first` on, with kept pairs instead of the gradient where there are any.
    fn update(
        &mut self,
        pool: &ThreadPool,
        first: usize,
        elements: usize,
        pairs: Option<PairsRef>,
    ) -> Result<()> {
        let kind = Optimizer::Adamw;
        let scalars = Scalars::new(kind, &HyperParameters::default(), 10, 1.0);
        let segments = [Segment { elements, scalars }];
        let run = first..first + elements;
        let moments = Moments::Fp32 {
            m: Some(&mut self.m.as_f32_mut()[run.clone()]),
            v: Some(&mut self.v.as_f32_mut()[run.clone()]),
        };
        let g: Gradient = match pairs {
            Some(pairs) => pairs.into(),
            None => GradientRef::Fp32(&self.g.as_f32()[run.clone()]).into(),
        };
        let p = &mut self.p.as_f32_mut()[run.clone()];
        let out = WeightsOut::Fp16(&mut self.copy.as_u16_mut()[run]);
        update(Some(pool), Isa::detect(), kind, &segments, g, p, moments, out, 0)?;
        Ok(())
    }
}

/// Median seconds of `work` on runs of `elements`, whose first elements it is given.
fn seconds(elements: usize, mut work: impl FnMut(usize) -> Result<()>) -> Result<f64> {
    work(0)?;
    let begin = Instant::now();
    let (mut times, mut first) = (Vec::new(), 0);
    while times.len() < 3 || begin.elapsed().as_secs_f64() < SECONDS && times.len() < MOST_ROUNDS {
        first = (first + elements) % ALL;
        std::thread::sleep(PAUSE);
        let begin = Instant::now();
        work(first)?;
        times.push(begin.elapsed().as_secs_f64());
    }
    Ok(median(&times))
}

/// Seconds from the end of a task to the start of the next on another resource.
fn task_seconds() -> Result<f64> {
    let mut builder = GraphBuilder::new();
    let resources = ["a", "b"].map(|name| builder.resource(name, Place::HOST, 1));
    let mut last = Vec::new();
    for task in 0..TASKS {
        let op = Op::Kernel { name: "nothing", elements: 0, bytes: 0 };
        let resource = resources[task as usize % 2];
        last = vec![builder.task(resource, op, "nothing", &last)];
    }
    let graph = builder.build()?;
    let executor = ThreadedExecutor::default();
    let run = || Ok(executor.run(&graph, &|_: &Task| Ok(()))?.seconds());
    run()?;
    let times: Vec<f64> = (0..5).map(|_| run()).collect::<Result<_>>()?;
    Ok(median(&times) / f64::from(TASKS))
}

pub(super) fn measure(threads: usize) -> anyhow::Result<Host> {
    let pool = rayon::ThreadPoolBuilder::new()
        .num_threads(threads)
        .build()
        .context("the threads could not be started; use fewer --threads")?;
    let mut kernels: BTreeMap<String, Vec<SizePoint>> = BTreeMap::new();
    let mut copy = 0.0;
    let mut arrays = Arrays::new()?;
    let mut topk = TopK::new(ALL, threads)?;
    for elements in ELEMENTS {
        let mut add = |name: &str, bytes_an_element: f64, seconds: f64| {
            let bytes = elements as f64 * bytes_an_element;
            let point =
                SizePoint { bytes: positive(bytes)?, bytes_per_second: positive(bytes / seconds)? };
            kernels.entry(name.to_owned()).or_default().push(point);
            anyhow::Ok(())
        };
        let pairs = kept(KEEP, elements as u64) as usize;
        let (mut indices, mut values) = (vec![0; pairs], vec![0.0; pairs]);
        let select = |first: usize| {
            let g = &arrays.g.as_f32()[first..first + elements];
            topk.select(g, pairs, &mut indices, &mut values)
        };
        add("topk", 4.0, seconds(elements, select)?)?;
        let (wide, narrow) = (arrays.p.as_f32(), arrays.copy.as_u16_mut());
        let cast = |first: usize| {
            let run = first..first + elements;
            f32_to_f16(&wide[run.clone()], &mut narrow[run]);
            Ok(())
        };
        add("cast", 4.0 + 2.0, seconds(elements, cast)?)?;
        // Bytes an element as the task graph counts them: states read and written, gradient, fp16 copy.
        let plain = |first| arrays.update(&pool, first, elements, None);
        add("update", 24.0 + 4.0 + 2.0, seconds(elements, plain)?)?;
        let few = PairsRef::new(&indices, &values, 0, elements)?;
        let sparse = |first| arrays.update(&pool, first, elements, Some(few));
        let pair_bytes = 8.0 * pairs as f64 / elements as f64;
        add("update_topk", 24.0 + 2.0 + pair_bytes, seconds(elements, sparse)?)?;
        let check = |_| check_pairs(&indices, elements as u64);
        add("check_pairs", 4.0 * pairs as f64 / elements as f64, seconds(elements, check)?)?;
        let expand = |first: usize| {
            let run = first..first + elements;
            scatter(&indices, &values, 0, &mut arrays.g.as_f32_mut()[run])
        };
        // As the task graph counts them: a zero an element, three words a pair.
        let expanded = seconds(elements, expand)?;
        add("decompress", 4.0 + 12.0 * pairs as f64 / elements as f64, expanded)?;
        let (from, to) = (arrays.p.as_f32(), arrays.m.as_f32_mut());
        let once = seconds(elements, |first| {
            let run = first..first + elements;
            to[run.clone()].copy_from_slice(&from[run]);
            Ok(())
        })?;
        copy = 4.0 * elements as f64 / once;
    }
    Ok(Host {
        memory_bytes: None,
        gather_bytes_per_second: None,
        price_usd: None,
        copy_bytes_per_second: positive(copy)?,
        task_seconds: Some(positive(task_seconds()?)?),
        kernels,
    })
}
