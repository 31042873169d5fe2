//! Gradients on their way from the compute device to the drives.

use nearfield_runtime::codec::{ErrorFeedback, TopK};
use nearfield_runtime::device::BufferId;
use nearfield_runtime::kernels;
use nearfield_runtime::layout::Part;
use nearfield_runtime::memory::Region;
use nearfield_runtime::types::Variable;
use nearfield_runtime::{Error, Result, codec};
use parking_lot::Mutex;

use super::OffloadEngine;

/// Host memory in which a part's gradient is collected until it is complete.
#[derive(Debug)]
pub(super) struct Staging {
    /// One buffer of the longest part each.
    pub buffers: Vec<BufferId>,
}

/// What compression needs beside the staging buffers.
#[derive(Debug)]
pub(super) struct Compression {
    /// Selection with its scratch memory; the graph runs one selection at a time.
    pub topk: Mutex<TopK>,
    /// Kept pairs of each staging buffer, on their way to the drive.
    pub pairs: Vec<Mutex<Pairs>>,
    /// What was left out so far, per part, without the loss scale; empty without error feedback.
    pub residuals: Vec<Mutex<Vec<f32>>>,
}

#[derive(Debug)]
pub(super) struct Pairs {
    pub indices: Region,
    pub values: Region,
    pub count: usize,
}

impl OffloadEngine {
    /// Puts a run of the gradient into the staging buffer of `part`.
    ///
    /// `first_element` is the run's place in the flat vector, `bytes` its elements in the gradient's format;
    /// what lies outside the part is left to the other parts.
    ///
    /// # Errors
    /// [`Error::BufferInUse`] when the graph did not keep uses of the buffer apart.
    pub fn stage_gradient(
        &self,
        part: usize,
        staging: u32,
        first_element: u64,
        bytes: &[u8],
    ) -> Result<()> {
        let width = self.options.gradient_dtype.bytes();
        let run = self.layout().parts[part];
        let end = first_element + bytes.len() as u64 / width;
        let (from, to) = (first_element.max(run.start), end.min(run.end()));
        if from >= to {
            return Ok(());
        }
        let source = &bytes
            [((from - first_element) * width) as usize..((to - first_element) * width) as usize];
        let offset = from - run.start;
        if let Some(state) = &self.memory {
            return state.set_gradient(part, offset, source);
        }
        let mut memory = self.staging_bank()?.write(self.staging_buffer(staging)?)?;
        let start = (offset * width) as usize;
        memory[start..start + source.len()].copy_from_slice(source);
        Ok(())
    }

    /// Compresses the complete gradient of `part`; `loss_scale` is what the gradient is multiplied by.
    ///
    /// # Errors
    /// [`Error::Invalid`] without compression.
    pub fn encode_gradient(&self, part: usize, staging: u32, loss_scale: f64) -> Result<()> {
        let compression = self.compression()?;
        let run = self.layout().parts[part];
        let padded = self.layout().padded(part) as usize;
        let kept = codec::kept(self.options.topk_keep, padded as u64) as usize;
        let mut memory = self.staging_bank()?.write(self.staging_buffer(staging)?)?;
        let gradient = &mut memory.as_f32_mut()[..padded];
        clear_padding(gradient, &run);
        let residual = compression.residuals.get(part);
        if let Some(residual) = residual {
            ErrorFeedback::add(&residual.lock(), loss_scale as f32, gradient)?;
        }
        let mut pairs = compression.pairs[staging as usize].lock();
        let Pairs { indices, values, count } = &mut *pairs;
        let (indices, values) =
            (&mut indices.as_u32_mut()[..kept], &mut values.as_f32_mut()[..kept]);
        compression.topk.lock().select(gradient, kept, indices, values)?;
        *count = kept;
        if let Some(residual) = residual {
            ErrorFeedback::keep(gradient, indices, loss_scale as f32, &mut residual.lock())?;
        }
        Ok(())
    }

    /// Writes the complete gradient of `part` for the coming step to its drive.
    ///
    /// # Errors
    /// What the drive reports.
    pub fn write_gradient(&self, part: usize, staging: u32) -> Result<()> {
        let unit = self.drive(self.layout().parts[part].drive);
        let store = &unit.store;
        let file = store.gradients_file();
        let step = self.step + 1;
        if let Some(compression) = &self.compression {
            let pairs = compression.pairs[staging as usize].lock();
            let bytes = pairs.count * 4;
            let mut sums = [0; 2];
            let both = [
                (Variable::GradientIndex, &pairs.indices[..bytes]),
                (Variable::GradientValue, &pairs.values[..bytes]),
            ];
            for ((variable, bytes), sum) in both.into_iter().zip(&mut sums) {
                *sum = kernels::checksum(self.isa, bytes, 0);
                unit.device.host_to_storage(bytes, file, store.gradient_offset(part, variable)?)?;
            }
            return store.seal_gradient(part, step, pairs.count as u64, &sums);
        }
        let padded = self.layout().padded(part);
        let bytes = (padded * self.options.gradient_dtype.bytes()) as usize;
        let real =
            (self.layout().parts[part].elements * self.options.gradient_dtype.bytes()) as usize;
        let mut memory = self.staging_bank()?.write(self.staging_buffer(staging)?)?;
        memory[real..bytes].fill(0);
        let sum = kernels::checksum(self.isa, &memory[..bytes], 0);
        let offset = store.gradient_offset(part, Variable::Gradient)?;
        unit.device.host_to_storage(&memory[..bytes], file, offset)?;
        store.seal_gradient(part, step, padded, &[sum])
    }

    /// Writes what compression has left out of `part` to its drive, so that a restart finds it.
    ///
    /// # Errors
    /// What the drive reports.
    pub fn write_residual(&self, part: usize) -> Result<()> {
        let compression = self.compression()?;
        let unit = self.drive(self.layout().parts[part].drive);
        let file = unit.store.residual_file().ok_or_else(no_residual)?;
        let residual = compression.residuals.get(part).ok_or_else(no_residual)?.lock();
        let offset = unit.store.residual_target(part, self.step + 1)?;
        let mut scratch = unit.residual_writes.as_ref().ok_or_else(no_residual)?.lock();
        let mut sum = 0_u64;
        let block = scratch.len() / 4;
        for (index, elements) in residual.chunks(block).enumerate() {
            let first = (index * block) as u64;
            let bytes = elements.len() * 4;
            scratch.as_f32_mut()[..elements.len()].copy_from_slice(elements);
            sum = sum.wrapping_add(kernels::checksum(self.isa, &scratch[..bytes], first));
            unit.device.host_to_storage(&scratch[..bytes], file, offset + first * 4)?;
        }
        unit.store.seal_residual(part, self.step + 1, sum)
    }

    /// Reads back the residuals that the next step starts from: at a restart, and after a skipped step.
    pub(super) fn reload_residuals(&self) -> Result<()> {
        let Some(compression) = &self.compression else { return Ok(()) };
        for (part, residual) in compression.residuals.iter().enumerate() {
            let unit = self.drive(self.layout().parts[part].drive);
            let array = unit.store.stored_residual(part, self.step + 1)?.ok_or_else(no_residual)?;
            let mut residual = residual.lock();
            let target: &mut [u8] = bytemuck::cast_slice_mut(&mut residual);
            let mut scratch = unit.weight_reads[0].lock();
            unit.store.read_verified(&array, &mut scratch, &mut |done, piece| {
                target[done as usize..done as usize + piece.len()].copy_from_slice(piece);
                Ok(())
            })?;
        }
        Ok(())
    }

    fn compression(&self) -> Result<&Compression> {
        self.compression
            .as_ref()
            .ok_or_else(|| Error::Invalid("gradients are not compressed in this run".into()))
    }

    fn staging_buffer(&self, staging: u32) -> Result<BufferId> {
        let buffers = self.staging.as_ref().map(|staging| staging.buffers.as_slice());
        buffers
            .and_then(|buffers| buffers.get(staging as usize).copied())
            .ok_or_else(|| Error::Invalid(format!("there is no staging buffer {staging}")))
    }
}

fn clear_padding(gradient: &mut [f32], part: &Part) {
    gradient[part.elements as usize..].fill(0.0);
}

fn no_residual() -> Error {
    Error::Invalid("this run keeps no residuals".into())
}
