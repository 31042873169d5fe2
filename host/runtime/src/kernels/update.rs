//! Updates of whole runs: segments, threads, checksums.

use rayon::ThreadPool;

use super::dither::Dither;
use super::moment::Moment;
use super::pass::pass;
use super::run::{Gradient, GradientRef, Moments, Run, WeightsOut};
use super::scalars::{Scalars, Segment};
use super::{Isa, f32_to_bf16, f32_to_f16};
use crate::error::{Error, Result};
use crate::types::Optimizer;

/// Elements of which a thread's share is a multiple: a page of each fp32 array.
const GRAIN: usize = 1024;

/// Elements of a compressed gradient that are expanded at a time: few enough to stay in the nearest cache.
const EXPANDED: usize = 2048;

/// Checksums of what an update has read and written, as position-weighted sums (see [`super::checksum`]).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct UpdateSums {
    /// The gradient as stored; of kept pairs their values, by their places among all values of the subgroup.
    pub gradient_in: u64,
    /// Master weights before.
    pub param_in: u64,
    /// First moments before.
    pub m_in: u64,
    /// Second moments before.
    pub v_in: u64,
    /// Master weights after.
    pub param_out: u64,
    /// First moments after.
    pub m_out: u64,
    /// Second moments after.
    pub v_out: u64,
}

impl UpdateSums {
    /// Adds the sums of another piece of the same arrays.
    pub fn add(&mut self, other: &Self) {
        let pairs = [
            (&mut self.gradient_in, other.gradient_in),
            (&mut self.param_in, other.param_in),
            (&mut self.m_in, other.m_in),
            (&mut self.v_in, other.v_in),
            (&mut self.param_out, other.param_out),
            (&mut self.m_out, other.m_out),
            (&mut self.v_out, other.v_out),
        ];
        for (sum, more) in pairs {
            *sum = sum.wrapping_add(more);
        }
    }
}

/// Updates runs of elements with scalars of their own, in equal shares on the threads of `pool` (without one on the
/// calling thread), and sums what is read and written on the way: the same bits whatever the number of threads.
///
/// `first_element` is the place of the arrays in their subgroup. Elements beyond the last segment are padding: they
/// are summed and copied to `out`, not updated.
///
/// # Errors
/// [`Error::Invalid`] when an array is missing, unwanted or of another length, or segments exceed them.
#[allow(clippy::too_many_arguments)]
pub fn update<'a>(
    pool: Option<&ThreadPool>,
    isa: Isa,
    kind: Optimizer,
    segments: &[Segment],
    g: impl Into<Gradient<'a>>,
    p: &'a mut [f32],
    moments: Moments<'a>,
    out: WeightsOut<'a>,
    first_element: u64,
) -> Result<UpdateSums> {
    let g = g.into();
    match moments {
        Moments::Fp32 { m, v } => {
            let run = Run::new(kind, g, p, [m, v], out)?;
            // Nothing is rounded, so no random bits are drawn.
            let dither = Dither::new(0, 0);
            update_run(pool, isa, kind, segments, run, &dither, first_element)
        }
        Moments::Bf16 { m, v, dither } => {
            let run = Run::new(kind, g, p, [m, v], out)?;
            update_run(pool, isa, kind, segments, run, &dither, first_element)
        }
    }
}

fn update_run<M: Moment>(
    pool: Option<&ThreadPool>,
    isa: Isa,
    kind: Optimizer,
    segments: &[Segment],
    run: Run<M, Gradient>,
    dither: &Dither,
    first_element: u64,
) -> Result<UpdateSums> {
    check_segments(segments, run.len())?;
    let threads = pool.map_or(1, ThreadPool::current_num_threads);
    let share = run.len().div_ceil(threads).next_multiple_of(GRAIN);
    let Some(pool) = pool.filter(|_| share < run.len()) else {
        return Ok(share_update(isa, kind, segments, run, 0, dither, first_element));
    };
    let mut shares = Vec::with_capacity(threads);
    let (mut rest, mut start) = (run, 0);
    while rest.len() > 0 {
        let length = rest.len().min(share);
        let (this, next) = rest.split_at(length);
        shares.push((start, Some(this), UpdateSums::default()));
        start += length;
        rest = next;
    }
    pool.scope(|scope| {
        for (start, run, sums) in &mut shares {
            scope.spawn(move |_| {
                if let Some(run) = run.take() {
                    *sums = share_update(isa, kind, segments, run, *start, dither, first_element);
                }
            });
        }
    });
    let mut total = UpdateSums::default();
    for (_, _, sums) in &shares {
        total.add(sums);
    }
    Ok(total)
}

fn check_segments(segments: &[Segment], elements: usize) -> Result<()> {
    let covered =
        segments.iter().try_fold(0_usize, |sum, segment| sum.checked_add(segment.elements));
    if covered.is_some_and(|covered| covered <= elements) {
        return Ok(());
    }
    Err(Error::Invalid(format!(
        "the segments of an update exceed its arrays of {elements} elements"
    )))
}

/// Works through `run`, which starts `start` elements into the segments.
fn share_update<M: Moment>(
    isa: Isa,
    kind: Optimizer,
    segments: &[Segment],
    run: Run<M, Gradient>,
    start: usize,
    dither: &Dither,
    first_element: u64,
) -> UpdateSums {
    let mut sums = UpdateSums::default();
    let mut cursor = Cursor::new(segments, start);
    let mut element = first_element + start as u64;
    let mut rest = run;
    while rest.len() > 0 {
        let Some((scalars, elements)) = cursor.take(rest.len()) else { break };
        let (this, next) = rest.split_at(elements);
        sums.add(&with_gradient(isa, kind, scalars, this, dither, element));
        element += elements as u64;
        rest = next;
    }
    sums.add(&padding(isa, rest, element));
    sums
}

/// One pass, or several with a compressed gradient: a block of it is expanded, then used while it is near.
fn with_gradient<M: Moment>(
    isa: Isa,
    kind: Optimizer,
    scalars: &Scalars,
    run: Run<M, Gradient>,
    dither: &Dither,
    first_element: u64,
) -> UpdateSums {
    let pairs = match run.g {
        Gradient::Dense(dense) => {
            return pass(isa, kind, scalars, run.with(dense), dither, first_element);
        }
        Gradient::Pairs(pairs) => pairs,
    };
    let mut sums = UpdateSums::default();
    let mut expanded = [0.0; EXPANDED];
    let (mut rest, mut element) = (run, first_element);
    while rest.len() > 0 {
        let elements = rest.len().min(EXPANDED);
        let (this, next) = rest.split_at(elements);
        let dense = &mut expanded[..elements];
        if let Gradient::Pairs(pairs) = this.g {
            pairs.expand(dense);
        }
        let this = this.with(GradientRef::Fp32(dense));
        sums.add(&pass(isa, kind, scalars, this, dither, element));
        element += elements as u64;
        rest = next;
    }
    // What was summed on the way is the expanded gradient, which is stored nowhere.
    UpdateSums { gradient_in: pairs.checksum(isa), ..sums }
}

/// A place in the segments, and what follows it.
struct Cursor<'a> {
    segments: &'a [Segment],
    /// Elements of the first of them that lie behind already.
    behind: usize,
}

impl<'a> Cursor<'a> {
    fn new(segments: &'a [Segment], place: usize) -> Self {
        let mut cursor = Self { segments, behind: 0 };
        let mut left = place;
        while left > 0 {
            let Some((_, elements)) = cursor.take(left) else { break };
            left -= elements;
        }
        cursor
    }

    /// The scalars that come next and for how many elements, at most `most`; `None` where padding begins.
    fn take(&mut self, most: usize) -> Option<(&'a Scalars, usize)> {
        while let Some((first, others)) = self.segments.split_first() {
            if first.elements > self.behind {
                let elements = (first.elements - self.behind).min(most);
                self.behind += elements;
                return Some((&first.scalars, elements));
            }
            self.segments = others;
            self.behind = 0;
        }
        None
    }
}

/// Elements that no segment covers: what comes out is what went in.
fn padding<M: Moment>(isa: Isa, run: Run<M, Gradient>, first_element: u64) -> UpdateSums {
    let Run { g, p, m, v, out } = run;
    let sum = |data: &[M]| M::checksum(isa, data, first_element);
    let (param, m, v) = (f32::checksum(isa, p, first_element), sum(m), sum(v));
    match out {
        WeightsOut::None => {}
        WeightsOut::Fp32(out) => out.copy_from_slice(p),
        WeightsOut::Fp16(out) => f32_to_f16(p, out),
        WeightsOut::Bf16(out) => f32_to_bf16(p, out),
    }
    UpdateSums {
        gradient_in: gradient_sum(isa, g, first_element),
        param_in: param,
        m_in: m,
        v_in: v,
        param_out: param,
        m_out: m,
        v_out: v,
    }
}

fn gradient_sum(isa: Isa, g: Gradient, first_element: u64) -> u64 {
    match g {
        Gradient::Dense(GradientRef::Fp32(g)) => f32::checksum(isa, g, first_element),
        Gradient::Dense(GradientRef::Fp16(bits) | GradientRef::Bf16(bits)) => {
            u16::checksum(isa, bits, first_element)
        }
        Gradient::Pairs(pairs) => pairs.checksum(isa),
    }
}

#[cfg(test)]
#[path = "update_tests.rs"]
mod tests;
