//! A long array in host memory that many tasks use at once.

use parking_lot::RwLock;

use crate::error::{Error, Result};

/// Bytes guarded by one lock. Tasks of one step touch disjoint ranges, so locks are hardly ever contended.
const CHUNK_BYTES: usize = 4 << 20;

/// A byte array in chunks, each behind its own lock: working weights are written by many drives' tasks and
/// read by the compute device's, at any offset.
#[derive(Debug)]
pub struct HostVector {
    bytes: u64,
    chunks: Vec<RwLock<Box<[u8]>>>,
}

impl HostVector {
    /// An array of `bytes` zeros.
    pub fn zeroed(bytes: u64) -> Self {
        let full = (bytes / CHUNK_BYTES as u64) as usize;
        let rest = (bytes % CHUNK_BYTES as u64) as usize;
        let lengths = std::iter::repeat_n(CHUNK_BYTES, full).chain((rest > 0).then_some(rest));
        let chunks =
            lengths.map(|length| RwLock::new(vec![0; length].into_boxed_slice())).collect();
        Self { bytes, chunks }
    }

    /// Its length in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Copies `source` to byte `offset`.
    ///
    /// # Errors
    /// [`Error::Invalid`] when the range does not lie within the array.
    pub fn copy_in(&self, offset: u64, source: &[u8]) -> Result<()> {
        self.check(offset, source.len())?;
        let mut done = 0;
        for (chunk, start, length) in pieces(offset, source.len()) {
            self.chunks[chunk].write()[start..start + length]
                .copy_from_slice(&source[done..done + length]);
            done += length;
        }
        Ok(())
    }

    /// Copies from byte `offset` into `target`.
    ///
    /// # Errors
    /// [`Error::Invalid`] when the range does not lie within the array.
    pub fn copy_out(&self, offset: u64, target: &mut [u8]) -> Result<()> {
        self.check(offset, target.len())?;
        let mut done = 0;
        for (chunk, start, length) in pieces(offset, target.len()) {
            target[done..done + length]
                .copy_from_slice(&self.chunks[chunk].read()[start..start + length]);
            done += length;
        }
        Ok(())
    }

    /// Calls `fill` with each piece of `[offset, offset + length)` in turn: the bytes done so far and the piece.
    ///
    /// # Errors
    /// [`Error::Invalid`] when the range does not lie within the array, and the first error of `fill`.
    pub fn fill(
        &self,
        offset: u64,
        length: usize,
        mut fill: impl FnMut(usize, &mut [u8]) -> Result<()>,
    ) -> Result<()> {
        self.check(offset, length)?;
        let mut done = 0;
        for (chunk, start, length) in pieces(offset, length) {
            fill(done, &mut self.chunks[chunk].write()[start..start + length])?;
            done += length;
        }
        Ok(())
    }

    fn check(&self, offset: u64, length: usize) -> Result<()> {
        match offset.checked_add(length as u64) {
            Some(end) if end <= self.bytes => Ok(()),
            _ => Err(Error::Invalid(format!(
                "{length} bytes at {offset} do not lie within an array of {} bytes",
                self.bytes
            ))),
        }
    }
}

/// `(chunk, start in it, length)` of the range's pieces.
fn pieces(offset: u64, length: usize) -> impl Iterator<Item = (usize, usize, usize)> {
    let mut position = offset;
    let end = offset + length as u64;
    std::iter::from_fn(move || {
        if position == end {
            return None;
        }
        let chunk = (position / CHUNK_BYTES as u64) as usize;
        let start = (position % CHUNK_BYTES as u64) as usize;
        let length = (CHUNK_BYTES - start).min((end - position) as usize);
        position += length as u64;
        Some((chunk, start, length))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_across_chunks_read_back() {
        let vector = HostVector::zeroed(2 * CHUNK_BYTES as u64 + 100);
        let data: Vec<u8> = (0..CHUNK_BYTES + 50).map(|i| (i % 251) as u8).collect();
        vector.copy_in(77, &data).unwrap();
        let mut back = vec![0; data.len()];
        vector.copy_out(77, &mut back).unwrap();
        assert_eq!(back, data);
        let mut zero = [1; 7];
        vector.copy_out(2 * CHUNK_BYTES as u64 + 93, &mut zero).unwrap();
        assert_eq!(zero, [0; 7]);
    }

    #[test]
    fn a_range_past_the_end_is_refused() {
        let vector = HostVector::zeroed(10);
        assert!(vector.copy_in(5, &[0; 6]).is_err());
        assert!(vector.copy_out(u64::MAX, &mut [0; 1]).is_err());
    }
}
