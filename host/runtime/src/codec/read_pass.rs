//! The least that any codec has to do: load the gradient once.

use super::crew::Crew;
use super::element::Element;
use super::lanes::{self, Lanes};
use crate::error::Result;

/// Elements that one thread takes at a time.
const RUN: usize = 1 << 16;

/// Loads every element of `gradient` once, on `threads` threads (0: one for each processor), as fast as the
/// memory gives them, and returns the sum of their bits modulo 2^32: the limit that a codec's time is compared to.
///
/// # Errors
/// [`Error::Invalid`](crate::Error::Invalid) when the system refuses the threads.
pub fn read_pass<T: Element>(gradient: &[T], threads: usize) -> Result<u32> {
    let crew = Crew::new(threads)?;
    let lanes = Lanes::detect();
    Ok(crew.run(|| {
        crew.reduce(
            0..gradient.len(),
            RUN,
            &|run| lanes::sum(lanes, &gradient[run]),
            &u32::wrapping_add,
        )
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_element_is_read_once() {
        for elements in [0, 1, 17, RUN, RUN + 1, 5 * RUN + 3] {
            let gradient: Vec<f32> = (0..elements as u32).map(f32::from_bits).collect();
            let expected = (0..elements as u32).fold(0, u32::wrapping_add);
            for threads in [1, 2, 3] {
                assert_eq!(read_pass(&gradient, threads).unwrap(), expected);
            }
        }
    }
}
