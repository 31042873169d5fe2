//! Exact selection of the elements of greatest magnitude.

use super::candidates::Candidates;
use super::crew::Crew;
use super::dense::{Dense, Source};
use super::element::Element;
use super::lanes::{BLOCK, Lanes};
use super::place::{self, Share};
use super::sample::Sample;
use super::threshold::threshold;
use crate::error::{Error, Result};

/// One in so many elements may be a candidate; more are searched for in the gradient itself.
const CANDIDATE_SHARE: usize = 8;

/// Gradients of at most this many elements are selected from by the calling thread.
const SMALL: usize = 1 << 16;

/// Exact top-k selection with reusable memory (Smart-Infinity, section 4).
///
/// Kept are the elements of greatest magnitude; of equal ones those of lower index. A NaN counts as greater than
/// infinity (and by its payload among NaNs), -0.0 as equal to +0.0. The result does not depend on the threads or the
/// instruction set.
///
/// ```
/// use nearfield_runtime::codec::TopK;
///
/// let (mut indices, mut values) = ([0; 2], [0.0; 2]);
/// TopK::new(5, 1)?.select(&[1.0, -3.0, 0.5, 1.0, 2.0_f32], 2, &mut indices, &mut values)?;
/// assert_eq!((indices, values), ([1, 4], [-3.0, 2.0]));
/// # Ok::<(), nearfield_runtime::Error>(())
/// ```
#[derive(Debug)]
pub struct TopK {
    max_elements: usize,
    crew: Crew,
    lanes: Lanes,
    sample: Sample,
    candidates: Candidates,
    shares: Vec<Share>,
}

impl TopK {
    /// A selector for gradients of at most `max_elements` (at most `u32::MAX`) on `threads` threads, 0 for one on
    /// each processor.
    ///
    /// All memory is taken here: up to one byte an element, of which the system commits what the candidates need
    /// (about `8 · 1.5 · k` bytes), and 20 bytes for each 4096 elements.
    ///
    /// # Errors
    /// [`Error::Invalid`] when there are too many elements or the system refuses the threads; [`Error::Memory`]
    /// when it refuses the memory.
    pub fn new(max_elements: usize, threads: usize) -> Result<Self> {
        Self::with_lanes(max_elements, threads, Lanes::detect())
    }

    pub(super) fn with_lanes(max_elements: usize, threads: usize, lanes: Lanes) -> Result<Self> {
        if max_elements > u32::MAX as usize {
            return Err(Error::Invalid(format!(
                "top-k: {max_elements} elements do not fit 32-bit indices; use a smaller --subgroup-size"
            )));
        }
        let capacity = max_elements / CANDIDATE_SHARE;
        probe(capacity)?;
        Ok(Self {
            max_elements,
            crew: Crew::new(threads)?,
            lanes,
            sample: Sample::new(),
            candidates: Candidates::new(max_elements, capacity),
            shares: vec![Share::default(); max_elements.div_ceil(BLOCK)],
        })
    }

    /// Selects the `k` greatest of `gradient`; `indices` (ascending) and `values` have `k` places each.
    ///
    /// `T` is `f32`, or `u16` for the bits of fp16 or bf16 numbers: values keep the gradient's format. Nothing is
    /// allocated that grows with the gradient or `k`.
    ///
    /// # Errors
    /// [`Error::Invalid`] when `gradient` is longer than the selector was made for, `k` is greater than its
    /// length, or `indices` or `values` has not `k` places.
    pub fn select<T: Element>(
        &mut self,
        gradient: &[T],
        k: usize,
        indices: &mut [u32],
        values: &mut [T],
    ) -> Result<()> {
        let elements = gradient.len();
        if elements > self.max_elements || k > elements {
            return Err(Error::Invalid(format!(
                "top-k: {k} of {elements} elements asked for, with room for {} elements",
                self.max_elements
            )));
        }
        if indices.len() != k || values.len() != k {
            return Err(Error::Invalid(format!(
                "top-k: {k} pairs need {k} indices and values, not {} and {}",
                indices.len(),
                values.len()
            )));
        }
        if k == elements {
            for (index, place) in indices.iter_mut().enumerate() {
                *place = index as u32;
            }
            values.copy_from_slice(gradient);
        } else if k > 0 {
            self.choose(gradient, k, indices, values);
        }
        Ok(())
    }

    /// Selects `k` elements, at least one and not all.
    fn choose<T: Element>(
        &mut self,
        gradient: &[T],
        k: usize,
        indices: &mut [u32],
        values: &mut [T],
    ) {
        let crew = if gradient.len() <= SMALL { Crew::alone() } else { self.crew.clone() };
        crew.run(|| {
            let dense = Dense { gradient, lanes: self.lanes };
            let shares = &mut self.shares[..dense.blocks()];
            if let Some(bracket) =
                self.sample.bracket(&crew, gradient, k, self.candidates.capacity())
            {
                match self.candidates.gather(&crew, dense, bracket) {
                    Some(mut found) if found.list.count >= k => {
                        let list = found.list;
                        let threshold = found
                            .place::<T>(&crew, k, shares)
                            .unwrap_or_else(|| search::<T, _>(&crew, &list, k, shares));
                        return place::write(&crew, &list, threshold, 0, shares, indices, values);
                    }
                    Some(_) => {}
                    // So many reach the lower bound that most are likely equal to it: it may be the k-th
                    // magnitude itself, as in a gradient that is mostly zero.
                    None => {
                        let guess = bracket.lower;
                        if place::place(&crew, &dense, guess, k, shares) {
                            return place::write(&crew, &dense, guess, 0, shares, indices, values);
                        }
                    }
                }
            }
            let threshold = search(&crew, &dense, k, shares);
            place::write(&crew, &dense, threshold, 0, shares, indices, values);
        });
    }
}

/// Finds the k-th magnitude of `source`, which has at least `k` elements, and places the pairs in `shares`.
fn search<T: Element, S: Source<T>>(
    crew: &Crew,
    source: &S,
    k: usize,
    shares: &mut [Share],
) -> u32 {
    let threshold = threshold(crew, source, k);
    let exact = place::place(crew, source, threshold, k, shares);
    assert!(exact, "the radix search ends at the k-th magnitude");
    threshold
}

/// Asks the system whether it would give the memory of the candidates, because a vector of zeros cannot refuse.
fn probe(capacity: usize) -> Result<()> {
    Vec::<u64>::new().try_reserve_exact(capacity).map_err(|_| Error::Memory {
        what: "top-k candidates",
        bytes: capacity as u64 * 8,
        source: std::io::Error::from(std::io::ErrorKind::OutOfMemory),
    })
}
