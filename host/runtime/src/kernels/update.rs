//! Updates of whole runs: tiles, segments, threads, checksums.

use rayon::ThreadPool;

use super::run::{GradientRef, Moments, Run, WeightsOut, as_bytes};
use super::scalars::{Scalars, Segment};
use super::{Isa, bf16_to_f32, checksum, f16_to_f32, f32_to_bf16, f32_to_f16, rules};
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
    while rest.len() > 0 {
        let length = rest.len().min(TILE);
        let (tile, next) = rest.split_at(length);
        tile_update(isa, kind, scalars, tile);
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
    let (mut rest, mut position) = (run, start);
    while rest.len() > 0 {
        let length = rest.len().min(TILE);
        let (tile, next) = rest.split_at(length);
        sums.add(&checked_tile(isa, kind, segments, tile, position, first_element));
        position += length;
        rest = next;
    }
    sums
}

fn checked_tile(
    isa: Isa,
    kind: Optimizer,
    segments: &[Segment],
    tile: Run,
    position: usize,
    first_element: u64,
) -> UpdateSums {
    let word = first_element + position as u64;
    let sum = |data: &[f32]| checksum(isa, as_bytes(data), word);
    let mut sums = UpdateSums {
        gradient_in: checksum(isa, tile.g.bytes(), word * tile.g.width() as u64 / 4),
        param_in: sum(tile.p),
        m_in: sum(tile.m),
        v_in: sum(tile.v),
        ..UpdateSums::default()
    };
    let Run { g, p, m, v, out } = tile;
    let length = p.len();
    {
        let mut rest = Run { g, p: &mut *p, m: &mut *m, v: &mut *v, out: WeightsOut::None };
        let mut segment_start = 0;
        let mut at = position;
        for segment in segments {
            let end = (segment_start + segment.elements).min(position + length);
            if end > at {
                let (this, next) = rest.split_at(end - at);
                tile_update(isa, kind, &segment.scalars, this);
                rest = next;
                at = end;
            }
            segment_start += segment.elements;
        }
    }
    emit(p, out);
    sums.param_out = sum(p);
    sums.m_out = sum(m);
    sums.v_out = sum(v);
    sums
}

/// Updates at most [`TILE`] elements.
fn tile_update(isa: Isa, kind: Optimizer, s: &Scalars, tile: Run) {
    let Run { g, p, m, v, out } = tile;
    let mut wide = [0.0; TILE];
    let g = match g {
        GradientRef::Fp32(g) => g,
        GradientRef::Fp16(bits) => {
            f16_to_f32(bits, &mut wide);
            &wide[..bits.len()]
        }
        GradientRef::Bf16(bits) => {
            bf16_to_f32(bits, &mut wide);
            &wide[..bits.len()]
        }
    };
    match kind {
        Optimizer::Adamw => rules::adamw(isa, s, g, p, m, v),
        Optimizer::Adam => rules::adam_l2(isa, s, g, p, m, v),
        Optimizer::Adagrad => rules::adagrad(isa, s, g, p, v),
        Optimizer::SgdMomentum => rules::sgd(isa, s, g, p, m),
    }
    emit(p, out);
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
