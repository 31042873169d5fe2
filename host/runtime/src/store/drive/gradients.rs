//! Gradients and residuals of a drive.

use super::super::geometry::RESIDUAL_FILE;
use super::super::gradients::{
    GradientHeader, GradientInfo, ResidualInfo, format_code, residual_source, residual_target,
};
use super::{DriveStore, Durability, Phase};
use crate::error::{Error, Result};
use crate::types::Variable;

impl DriveStore {
    /// Offset in `gradients.nf` of a gradient variable of a part.
    ///
    /// Each has room for its bytes rounded up to the drive's alignment.
    pub fn gradient_offset(&self, part: usize, variable: Variable) -> Result<u64> {
        Ok(self.geometry.gradient_data(self.geometry.place(part)?, variable)?.0)
    }

    /// Bytes of a gradient variable of a part.
    pub fn gradient_bytes(&self, part: usize, variable: Variable) -> Result<u64> {
        Ok(self.geometry.gradient_data(self.geometry.place(part)?, variable)?.1)
    }

    /// Says that the gradients of `part` for `step` are written; `count` is padded elements (dense) or pairs (top-k).
    ///
    /// `checksums` are of the elements, or of the indices and of the values.
    pub fn seal_gradient(
        &self,
        part: usize,
        step: u64,
        count: u64,
        checksums: &[u64],
    ) -> Result<()> {
        let place = self.geometry.place(part)?;
        let at = self.geometry.gradient(place);
        let [first, second] = match *checksums {
            [dense] if format_code(self.geometry.gradients)[0] == 0 => [dense, 0],
            [indices, values] if format_code(self.geometry.gradients)[0] == 1 => [indices, values],
            _ => {
                return Err(Error::Invalid(format!(
                    "{} checksums for the gradients of part {part}",
                    checksums.len()
                )));
            }
        };
        if count > at.count {
            return Err(Error::Invalid(format!(
                "part {part}: {count} gradient elements where {} have room",
                at.count
            )));
        }
        self.check_gradient_step(step)?;
        let header = GradientHeader {
            run: self.superblock.run,
            part: part as u32,
            generation: step,
            format: format_code(self.geometry.gradients),
            count,
            checksums: [first, second],
        };
        self.inner.lock().gradients_unflushed = true;
        self.guarded(|| {
            self.files.write_block(
                &self.files.gradients,
                at.header,
                || Ok(()),
                |out| header.encode(false, out),
            )
        })?;
        self.inner.lock().gradients[place] = Some(header.info());
        Ok(())
    }

    /// What is stored as gradients of a part.
    pub fn gradient_info(&self, part: usize) -> Result<GradientInfo> {
        let place = self.geometry.place(part)?;
        self.inner.lock().gradients[place]
            .ok_or_else(|| Error::Invalid(format!("no gradients of part {part} are stored yet")))
    }

    /// Makes gradients and residuals durable; part of [`Self::intent`], here for those who want it earlier.
    pub fn flush_gradients(&self) -> Result<()> {
        if self.durability == Durability::Process
            || !std::mem::take(&mut self.inner.lock().gradients_unflushed)
        {
            return Ok(());
        }
        self.guarded(|| {
            self.files.engine.flush(&self.files.gradients)?;
            match &self.files.residual {
                Some(residual) => self.files.engine.flush(residual),
                None => Ok(()),
            }
        })
    }

    /// The residual that step `step` starts from: what step `step` - 1 left.
    ///
    /// # Errors
    /// [`Error::Damaged`] when the header of that residual is not readable; an older residual never takes its place.
    pub fn residual_before(&self, part: usize, step: u64) -> Result<ResidualInfo> {
        let file = self.files.named(RESIDUAL_FILE)?;
        let place = self.geometry.place(part)?;
        let regions = self.inner.lock().residual[place];
        let newest =
            residual_source(regions.map(|region| region.map(|info| info.generation)), step)
                .and_then(|region| regions[region as usize]);
        match newest {
            Some(info) if info.generation + 1 == step => Ok(info),
            other => Err(Error::Damaged {
                drive: self.superblock.drive,
                path: file.path().to_path_buf(),
                what: format!(
                    "the residual header of subgroup {} (part {part}) for step {}",
                    self.spec.layout.parts[part].subgroup,
                    step.saturating_sub(1)
                ),
                expected: step.saturating_sub(1),
                found: other.map_or(0, |info| info.generation),
            }),
        }
    }

    /// Offset in `residual.nf` where the residual that step `step` leaves is written.
    pub fn residual_target(&self, part: usize, step: u64) -> Result<u64> {
        self.files.named(RESIDUAL_FILE)?;
        let place = self.geometry.place(part)?;
        let regions =
            self.inner.lock().residual[place].map(|region| region.map(|info| info.generation));
        Ok(self.geometry.residual_data(place, residual_target(regions, step)))
    }

    /// Says that the residual that `step` leaves for `part` is written.
    pub fn seal_residual(&self, part: usize, step: u64, checksum: u64) -> Result<()> {
        let place = self.geometry.place(part)?;
        self.check_gradient_step(step)?;
        self.write_residual(place, step, checksum)
    }

    pub(crate) fn write_residual(&self, place: usize, step: u64, checksum: u64) -> Result<()> {
        let file = self.files.named(RESIDUAL_FILE)?;
        let part = self.geometry.parts[place];
        let header = GradientHeader {
            run: self.superblock.run,
            part: part as u32,
            generation: step,
            format: [0, 0],
            count: self.geometry.padded[place],
            checksums: [checksum, 0],
        };
        let region = {
            let mut inner = self.inner.lock();
            inner.gradients_unflushed = true;
            residual_target(
                inner.residual[place].map(|region| region.map(|info| info.generation)),
                step,
            )
        };
        let offset = self.geometry.residual_header(place, region);
        self.guarded(|| {
            self.files.write_block(file, offset, || Ok(()), |out| header.encode(true, out))
        })?;
        let info = ResidualInfo {
            generation: step,
            offset: self.geometry.residual_data(place, region),
            checksum,
        };
        self.inner.lock().residual[place][region as usize] = Some(info);
        Ok(())
    }

    /// Gradients may be written for the next step only, and never while the update still needs the old ones.
    fn check_gradient_step(&self, step: u64) -> Result<()> {
        let inner = self.inner.lock();
        let next = inner.last.as_ref().map(|last| last.content.step + 1);
        if inner.phase != Phase::Idle || next != Some(step) {
            return Err(self.out_of_order("seal_gradient", step, inner.phase));
        }
        Ok(())
    }
}
