//! Reading what lies on a drive, with its checksum.

use super::drive::DriveStore;
use super::superblock::GradientFormat;
use crate::error::{Error, Result};
use crate::io::DriveFile;
use crate::kernels::{Isa, bf16_to_f32, checksum, f16_to_f32};
use crate::types::{DType, Variable};

/// Direct I/O reads whole pages of this many bytes.
const PAGE_BYTES: u64 = 4096;
/// Elements widened at a time.
const TILE: usize = 4096;

/// One array of a part as it lies on a drive.
#[derive(Debug, Clone, Copy)]
pub struct StoredArray<'a> {
    /// Index of the part in the layout.
    pub part: usize,
    /// Which array.
    pub variable: Variable,
    /// Number format of its elements; kept indices are numbers of 4 bytes.
    pub dtype: DType,
    /// The file that holds it.
    pub file: &'a DriveFile,
    /// Offset in the file, bytes.
    pub offset: u64,
    /// Length, padding included; a multiple of 4 bytes.
    pub bytes: u64,
    /// The sum that its content must have.
    pub checksum: u64,
}

impl DriveStore {
    /// The current master weights and moments of a part, in the optimizer's order.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a part of another drive.
    pub fn stored_state(&self, part: usize) -> Result<Vec<StoredArray<'_>>> {
        let state = self.expected(part)?;
        let elements = self.spec().layout.padded(part);
        let variables = self.superblock().optimizer.variables();
        variables
            .iter()
            .zip(state.checksums)
            .map(|(&variable, checksum)| {
                let offset = self.data_offset(state.slot, variable)?;
                let dtype = self.spec().dtype(variable);
                let (file, bytes) = (self.slots_file(), elements * dtype.bytes());
                Ok(StoredArray { part, variable, dtype, file, offset, bytes, checksum })
            })
            .collect()
    }

    /// The gradient that is stored for a part: its elements, or the indices and the values of kept pairs.
    ///
    /// # Errors
    /// [`Error::Invalid`] when none is stored.
    pub fn stored_gradient(&self, part: usize) -> Result<Vec<StoredArray<'_>>> {
        let info = self.gradient_info(part)?;
        let variables: &[(Variable, DType)] = match self.superblock().gradients {
            GradientFormat::Dense { dtype } => &[(Variable::Gradient, dtype)],
            GradientFormat::TopK { values, .. } => {
                &[(Variable::GradientIndex, DType::Fp32), (Variable::GradientValue, values)]
            }
        };
        variables
            .iter()
            .zip(info.checksums)
            .map(|(&(variable, dtype), checksum)| {
                let offset = self.gradient_offset(part, variable)?;
                let bytes = self.gradient_bytes(part, variable)?;
                let file = self.gradients_file();
                Ok(StoredArray { part, variable, dtype, file, offset, bytes, checksum })
            })
            .collect()
    }

    /// The residual that step `step` starts from; `None` in a run without error feedback.
    ///
    /// # Errors
    /// As [`DriveStore::residual_before`].
    pub fn stored_residual(&self, part: usize, step: u64) -> Result<Option<StoredArray<'_>>> {
        let Some(file) = self.residual_file() else { return Ok(None) };
        let info = self.residual_before(part, step)?;
        Ok(Some(StoredArray {
            part,
            variable: Variable::Residual,
            dtype: DType::Fp32,
            file,
            offset: info.offset,
            bytes: self.spec().layout.padded(part) * 4,
            checksum: info.checksum,
        }))
    }

    /// Reads elements `[first, first + elements)` of an array as fp32, in pieces that fit `scratch`, whole pages at a time.
    /// `visit` gets each piece with its first element. Nothing is compared with a checksum, which covers the whole array.
    ///
    /// # Errors
    /// What the drive or `visit` reports.
    pub fn read_elements(
        &self,
        array: &StoredArray,
        first: u64,
        elements: u64,
        scratch: &mut [u8],
        visit: &mut dyn FnMut(u64, &[f32]) -> Result<()>,
    ) -> Result<()> {
        let width = array.dtype.bytes();
        let page = PAGE_BYTES / width;
        let room = scratch.len() as u64 / width;
        let (mut next, end) = (first, first + elements);
        while next < end {
            let from = next / page * page;
            let count = room.min((end - from).next_multiple_of(page));
            let piece = &mut scratch[..(width * count) as usize];
            self.engine().read(array.file, array.offset + width * from, piece)?;
            let last = (from + count).min(end);
            let wanted = ((next - from) * width) as usize..((last - from) * width) as usize;
            widened(array.dtype, &piece[wanted], &mut |at, values| visit(next + at, values))?;
            next = last;
        }
        Ok(())
    }

    /// Reads an array in pieces as long as `scratch` and returns the sum of what was read. `visit` gets each
    /// piece with the number of bytes before it.
    ///
    /// # Errors
    /// What the drive or `visit` reports.
    pub fn read_sum(
        &self,
        array: &StoredArray,
        scratch: &mut [u8],
        visit: &mut dyn FnMut(u64, &[u8]) -> Result<()>,
    ) -> Result<u64> {
        let isa = Isa::detect();
        let (mut done, mut sum) = (0, 0_u64);
        while done < array.bytes {
            let length = (scratch.len() as u64).min(array.bytes - done);
            let piece = &mut scratch[..length as usize];
            self.engine().read(array.file, array.offset + done, piece)?;
            sum = sum.wrapping_add(checksum(isa, piece, done / 4));
            visit(done, piece)?;
            done += length;
        }
        Ok(sum)
    }

    /// [`DriveStore::read_sum`] that refuses wrong data, once all of it was visited.
    ///
    /// # Errors
    /// As there, and [`Error::Corrupt`].
    pub fn read_verified(
        &self,
        array: &StoredArray,
        scratch: &mut [u8],
        visit: &mut dyn FnMut(u64, &[u8]) -> Result<()>,
    ) -> Result<()> {
        let found = self.read_sum(array, scratch, visit)?;
        if found == array.checksum {
            return Ok(());
        }
        Err(self.corrupt(array.part, array.variable, array.checksum, found))
    }

    /// [`DriveStore::read_verified`] for an array of numbers, as fp32 and without padding: `visit` gets the first `elements`
    /// of them in pieces, each with its first element.
    ///
    /// # Errors
    /// As there.
    pub fn read_values(
        &self,
        array: &StoredArray,
        elements: u64,
        scratch: &mut [u8],
        visit: &mut dyn FnMut(u64, &[f32]) -> Result<()>,
    ) -> Result<()> {
        let width = array.dtype.bytes();
        self.read_verified(array, scratch, &mut |done, piece| {
            let first = done / width;
            let real = (elements.saturating_sub(first) * width).min(piece.len() as u64) as usize;
            widened(array.dtype, &piece[..real], &mut |at, values| visit(first + at, values))
        })
    }

    /// The error that an array of `part` is not what was stored.
    pub fn corrupt(&self, part: usize, variable: Variable, expected: u64, found: u64) -> Error {
        Error::Corrupt {
            drive: self.drive(),
            path: self.path().to_path_buf(),
            subgroup: self.spec().layout.parts[part].subgroup,
            variable: variable.name().to_owned(),
            expected,
            found,
        }
    }
}

/// Numbers as fp32, in pieces: `visit` gets each with the number of elements before it.
fn widened(
    dtype: DType,
    bytes: &[u8],
    visit: &mut dyn FnMut(u64, &[f32]) -> Result<()>,
) -> Result<()> {
    if dtype == DType::Fp32 {
        return visit(0, bytemuck::cast_slice(bytes));
    }
    let mut wide = [0.0; TILE];
    let mut done = 0;
    for tile in bytemuck::cast_slice::<u8, u16>(bytes).chunks(TILE) {
        let wide = &mut wide[..tile.len()];
        match dtype {
            DType::Bf16 => bf16_to_f32(tile, wide),
            _ => f16_to_f32(tile, wide),
        }
        visit(done, wide)?;
        done += tile.len() as u64;
    }
    Ok(())
}
