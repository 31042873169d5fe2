//! Updates of whole runs: tiles, segments, threads, checksums.

use rayon::ThreadPool;

use super::pass::{Arrays, Sums, pass};
use super::run::{GradientRef, Moments, Run, WeightsOut, as_bytes};
use super::scalars::{Scalars, Segment};
use super::{Isa, bf16_to_f32, checksum, f16_to_f32, f32_to_bf16, f32_to_f16};
use crate::error::{Error, Result};
use crate::types::Optimizer;

/// Elements that are worked on at a time: four fp32 arrays of this length stay in the first-level cache.
const TILE: usize = 2048;

/// Checksums of what an update has read and written, as position-weighted sums (see [`checksum`]).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct UpdateSums {
    /// The gradient as stored.
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

/// Updates all elements with one set of scalars, on the calling thread.
///
/// # Errors
/// [`Error::Invalid`] when an array is missing or of another length.
pub fn update(
    isa: Isa,
    kind: Optimizer,
    scalars: &Scalars,
    g: GradientRef,
    p: &mut [f32],
    moments: Moments,
    out: WeightsOut,
) -> Result<()> {
    let mut rest = Run::new(kind, g, p, moments, out)?;
    let mut wide = [0.0; TILE];
    while rest.len() > 0 {
        let length = rest.len().min(TILE);
        let (tile, next) = rest.split_at(length);
        tile_update(isa, kind, scalars, tile, &mut wide);
        rest = next;
    }
    Ok(())
}

/// Updates runs of elements with scalars of their own, and sums what is read and written on the way.
///
/// `first_element` is the place of the arrays in their subgroup; it must be even for 16-bit gradients.
/// Elements beyond the last segment are padding: they are summed and copied to `out`, not updated.
///
/// # Errors
/// [`Error::Invalid`] when an array is missing or of another length, or segments exceed them.
#[allow(clippy::too_many_arguments)]
pub fn update_checked(
    isa: Isa,
    kind: Optimizer,
    segments: &[Segment],
    g: GradientRef,
    p: &mut [f32],
    moments: Moments,
    out: WeightsOut,
    first_element: u64,
) -> Result<UpdateSums> {
    let run = Run::new(kind, g, p, moments, out)?;
    check_segments(segments, run.len(), g, first_element)?;
    Ok(checked(isa, kind, segments, run, 0, first_element))
}

/// [`update_checked`] in equal shares on the threads of `pool`; the same bits whatever their number.
///
/// # Errors
/// As [`update_checked`].
#[allow(clippy::too_many_arguments)]
pub fn update_parallel(
    pool: Option<&ThreadPool>,
    isa: Isa,
    kind: Optimizer,
    segments: &[Segment],
    g: GradientRef,
    p: &mut [f32],
    moments: Moments,
    out: WeightsOut,
    first_element: u64,
) -> Result<UpdateSums> {
    let run = Run::new(kind, g, p, moments, out)?;
    check_segments(segments, run.len(), g, first_element)?;
    let threads = pool.map_or(1, ThreadPool::current_num_threads);
    let share = run.len().div_ceil(threads).next_multiple_of(TILE);
    let Some(pool) = pool.filter(|_| share < run.len()) else {
        return Ok(checked(isa, kind, segments, run, 0, first_element));
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
                    *sums = checked(isa, kind, segments, run, *start, first_element);
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

fn check_segments(
    segments: &[Segment],
    elements: usize,
    g: GradientRef,
    first_element: u64,
) -> Result<()> {
    let covered: usize = segments.iter().map(|segment| segment.elements).sum();
    if covered > elements {
        return Err(Error::Invalid(format!(
            "segments of {covered} elements exceed arrays of {elements}"
        )));
    }
    if g.width() == 2 && first_element % 2 == 1 {
        return Err(Error::Invalid(format!(
            "a 16-bit gradient cannot start at element {first_element}"
        )));
    }
    Ok(())
}

/// Works through `run`, which starts `start` elements into the segments.
fn checked(
    isa: Isa,
    kind: Optimizer,
    segments: &[Segment],
    run: Run,
    start: usize,
    first_element: u64,
) -> UpdateSums {
    let mut sums = UpdateSums::default();
    let mut ahead = Ahead::new(segments, start);
    let mut word = first_element + start as u64;
    let mut wide = [0.0; TILE];
    let mut rest = run;
    while rest.len() > 0 {
        let length = rest.len().min(TILE);
        let (tile, next) = rest.split_at(length);
        sums.add(&checked_tile(isa, kind, &mut ahead, tile, word, &mut wide));
        word += length as u64;
        rest = next;
    }
    sums
}

/// What lies ahead of a place in the segments.
struct Ahead<'a> {
    segments: &'a [Segment],
    /// Elements of the first of them that lie behind already.
    behind: usize,
}

impl<'a> Ahead<'a> {
    fn new(segments: &'a [Segment], place: usize) -> Self {
        let mut ahead = Self { segments, behind: 0 };
        let mut left = place;
        while left > 0 {
            let Some((_, elements)) = ahead.take(left) else { break };
            left -= elements;
        }
        ahead
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

fn checked_tile(
    isa: Isa,
    kind: Optimizer,
    ahead: &mut Ahead,
    tile: Run,
    word: u64,
    wide: &mut [f32; TILE],
) -> UpdateSums {
    let Run { g, p, m, v, out } = tile;
    let length = p.len();
    let mut sums = UpdateSums::default();
    let (g, mode) = match g {
        GradientRef::Fp32(g) => (g, Sums::All),
        GradientRef::Fp16(_) | GradientRef::Bf16(_) => {
            // Two elements share a word, so the sum is not the pass's business.
            sums.gradient_in = checksum(isa, g.bytes(), word / 2);
            (widen(g, wide), Sums::State)
        }
    };
    let mut at = 0;
    while at < length {
        let next = ahead.take(length - at);
        let end = next.map_or(length, |(_, elements)| at + elements);
        let part = at.min(m.len())..end.min(m.len());
        let m = &mut m[part];
        let part = at.min(v.len())..end.min(v.len());
        let v = &mut v[part];
        let (g, p) = (&g[at..end], &mut p[at..end]);
        let first = word + at as u64;
        match next {
            Some((scalars, _)) => {
                sums.add(&pass(isa, kind, mode, scalars, Arrays { g, p, m, v }, first));
            }
            None => sums.add(&padding_sums(isa, mode, g, p, m, v, first)),
        }
        at = end;
    }
    emit(p, out);
    sums
}

/// The sums of elements that no segment covers: what comes out is what went in.
fn padding_sums(
    isa: Isa,
    mode: Sums,
    g: &[f32],
    p: &[f32],
    m: &[f32],
    v: &[f32],
    first: u64,
) -> UpdateSums {
    let sum = |data: &[f32]| checksum(isa, as_bytes(data), first);
    let gradient_in = if mode == Sums::All { sum(g) } else { 0 };
    let (p, m, v) = (sum(p), sum(m), sum(v));
    UpdateSums { gradient_in, param_in: p, m_in: m, v_in: v, param_out: p, m_out: m, v_out: v }
}

/// Updates at most [`TILE`] elements, without sums.
fn tile_update(isa: Isa, kind: Optimizer, s: &Scalars, tile: Run, wide: &mut [f32; TILE]) {
    let Run { g, p, m, v, out } = tile;
    let g = widen(g, wide);
    pass(isa, kind, Sums::None, s, Arrays { g, p: &mut *p, m, v }, 0);
    emit(p, out);
}

/// The gradient in fp32; 16-bit ones are widened into `wide`.
fn widen<'a>(g: GradientRef<'a>, wide: &'a mut [f32; TILE]) -> &'a [f32] {
    let wide = &mut wide[..g.len()];
    match g {
        GradientRef::Fp32(g) => return g,
        GradientRef::Fp16(bits) => f16_to_f32(bits, wide),
        GradientRef::Bf16(bits) => bf16_to_f32(bits, wide),
    }
    wide
}

fn emit(p: &[f32], out: WeightsOut) {
    match out {
        WeightsOut::None => {}
        WeightsOut::Fp32(out) => out.copy_from_slice(p),
        WeightsOut::Fp16(out) => f32_to_f16(p, out),
        WeightsOut::Bf16(out) => f32_to_bf16(p, out),
    }
}

#[cfg(test)]
#[path = "update_tests.rs"]
mod tests;
