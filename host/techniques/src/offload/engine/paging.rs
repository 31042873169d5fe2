//! Weights and outputs of units that lie on drives and come to host memory only while they are needed.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use nearfield_runtime::io::{DriveFile, OpenMode};
use nearfield_runtime::memory::{Arena, HostVector, Region};
use nearfield_runtime::{Error, Result};
use parking_lot::Mutex;

use super::update_work::round_into;
use super::{DriveUnit, OffloadEngine};
use crate::offload::plan::gradient::{Paging, Segment};

/// Where a drive's outputs of units are, while the run lasts.
const FILE_NAME: &str = "activations.nf";

/// Working weights, wherever they are.
pub trait WeightSource {
    /// Copies the elements from `first_element` of the flat vector on, in the working number format, until `out` is full.
    ///
    /// # Errors
    /// A range that is not there, and what a drive reports.
    fn copy_out(&self, first_element: u64, out: &mut [u8]) -> Result<()>;
}

/// Host buffers of what is paged, and the drives' files for outputs.
#[derive(Debug)]
pub(super) struct Pager {
    pub plan: Paging,
    /// By buffer and drive.
    unit_buffers: Vec<Vec<Mutex<Region>>>,
    output_buffers: Vec<Mutex<Region>>,
    files: Vec<DriveFile>,
}

impl Pager {
    /// Takes the memory; the arena is to be registered with the drives' engines.
    pub fn new(plan: Paging, lock: bool) -> Result<(Self, Arc<Arena>)> {
        let bytes = plan.weights_bytes() + plan.outputs_bytes();
        let arena = Arena::new("weights and outputs on their way", bytes, lock)?;
        let region = |bytes: u64| arena.allocate(bytes).map(Mutex::new);
        let unit_buffers = (0..plan.unit_buffers)
            .map(|_| plan.unit_bytes.iter().map(|&bytes| region(bytes)).collect())
            .collect::<Result<Vec<_>>>()?;
        let output_buffers = (0..plan.activation_buffers)
            .map(|_| region(plan.activation_bytes))
            .collect::<Result<Vec<_>>>()?;
        Ok((Self { plan, unit_buffers, output_buffers, files: Vec::new() }, arena))
    }

    /// Makes the drives' files for outputs. They have no names, so that nothing is left of them whatever ends the run.
    pub fn open_files(&mut self, drives: &[DriveUnit]) -> Result<()> {
        if self.plan.written == 0 {
            return Ok(());
        }
        let bytes = self.plan.activation_file_bytes(drives.len() as u32);
        for unit in drives {
            let path = unit.store.path().join(FILE_NAME);
            let file = unit.store.engine().open(&path, OpenMode::Create)?;
            file.reserve(bytes)?;
            std::fs::remove_file(&path)
                .map_err(|source| Error::io("remove", &path, 0, 0, source))?;
            self.files.push(file);
        }
        Ok(())
    }

    fn output_buffer(&self, buffer: u32) -> Result<&Mutex<Region>> {
        let missing = || Error::Invalid(format!("there is no host buffer {buffer} for outputs"));
        self.output_buffers.get(buffer as usize).ok_or_else(missing)
    }
}

impl OffloadEngine {
    fn pager(&self) -> Result<&Pager> {
        self.pager.as_ref().ok_or_else(|| Error::Invalid("nothing is paged in this run".into()))
    }

    /// Reads what a drive has of a unit's master weights.
    pub(super) fn read_unit(&self, unit: usize, drive: u32, buffer: u32) -> Result<()> {
        let pager = self.pager()?;
        let mut memory = pager.unit_buffers[buffer as usize][drive as usize].lock();
        let owner = self.drive(drive);
        for segment in pager.plan.segments[unit].iter().filter(|segment| segment.drive == drive) {
            let arrays = owner.store.stored_state(segment.part)?;
            let bytes = 4 * segment.elements as usize;
            let at = segment.at as usize;
            let offset = arrays[0].offset + 4 * segment.offset;
            owner.device.storage_to_host(arrays[0].file, offset, &mut memory[at..at + bytes])?;
        }
        Ok(())
    }

    /// The weights of a unit in a host buffer.
    pub(super) fn unit_weights(&self, unit: usize, buffer: u32) -> Result<UnitBuffer<'_>> {
        let pager = self.pager()?;
        Ok(UnitBuffer {
            engine: self,
            segments: &pager.plan.segments[unit],
            memory: &pager.unit_buffers[buffer as usize],
        })
    }

    /// All working weights: the copy in host memory, or what the drives have.
    pub fn weight_source(&self) -> Box<dyn WeightSource + '_> {
        let paged = self.pager.as_ref().is_some_and(|pager| !pager.plan.segments.is_empty());
        if paged || self.stale_weights.load(Ordering::Acquire) {
            return Box::new(DriveWeights(self));
        }
        Box::new(HostWeights { vector: &self.weights, width: self.options.weights_dtype.bytes() })
    }

    /// Lets `work` use the host buffer for a unit's output.
    pub(super) fn with_output<T>(
        &self,
        unit: usize,
        buffer: u32,
        work: impl FnOnce(&mut [u8]) -> Result<T>,
    ) -> Result<T> {
        let mut memory = self.pager()?.output_buffer(buffer)?.lock();
        work(&mut memory[..self.output_bytes[unit] as usize])
    }

    pub(super) fn write_output(&self, unit: usize, buffer: u32) -> Result<()> {
        let pager = self.pager()?;
        let (drive, offset) = pager.plan.activation_place(unit, self.layout().drives);
        let memory = pager.output_buffer(buffer)?.lock();
        let file = &pager.files[drive as usize];
        let bytes = pager.plan.activation_bytes as usize;
        self.drive(drive).device.host_to_storage(&memory[..bytes], file, offset)
    }

    pub(super) fn read_output(&self, unit: usize, buffer: u32) -> Result<()> {
        let pager = self.pager()?;
        let (drive, offset) = pager.plan.activation_place(unit, self.layout().drives);
        let mut memory = pager.output_buffer(buffer)?.lock();
        let file = &pager.files[drive as usize];
        let bytes = pager.plan.activation_bytes as usize;
        self.drive(drive).device.storage_to_host(file, offset, &mut memory[..bytes])
    }
}

/// The working weights in host memory.
pub(super) struct HostWeights<'a> {
    pub vector: &'a HostVector,
    /// Bytes of an element.
    pub width: u64,
}

impl WeightSource for HostWeights<'_> {
    fn copy_out(&self, first_element: u64, out: &mut [u8]) -> Result<()> {
        self.vector.copy_out(first_element * self.width, out)
    }
}

/// A unit's master weights in a host buffer, rounded when they are copied.
pub(super) struct UnitBuffer<'a> {
    engine: &'a OffloadEngine,
    segments: &'a [Segment],
    /// By drive.
    memory: &'a [Mutex<Region>],
}

impl WeightSource for UnitBuffer<'_> {
    fn copy_out(&self, first_element: u64, out: &mut [u8]) -> Result<()> {
        let dtype = self.engine.options.weights_dtype;
        let width = dtype.bytes();
        let end = first_element + out.len() as u64 / width;
        let mut next = first_element;
        for segment in self.segments {
            let run = self.engine.layout().parts[segment.part];
            let start = run.start + segment.offset;
            let last = (start + segment.elements).min(run.end()).min(end);
            if next < start || next >= last {
                continue;
            }
            let memory = self.memory[segment.drive as usize].lock();
            let from = segment.at as usize / 4 + (next - start) as usize;
            let count = (last - next) as usize;
            let to = ((next - first_element) * width) as usize;
            let target = &mut out[to..to + count * width as usize];
            round_into(dtype, &memory.as_f32()[from..from + count], target);
            next = last;
        }
        if next < end {
            return Err(Error::Invalid(format!(
                "elements {next} to {end} of the weights were not read; this is a defect of the task graph"
            )));
        }
        Ok(())
    }
}

/// The master weights on the drives, for reading outside of a step. The bytes are not counted as those of a step.
struct DriveWeights<'a>(&'a OffloadEngine);

impl WeightSource for DriveWeights<'_> {
    fn copy_out(&self, first_element: u64, out: &mut [u8]) -> Result<()> {
        let engine = self.0;
        let dtype = engine.options.weights_dtype;
        let width = dtype.bytes();
        let elements = out.len() as u64 / width;
        for part in engine.layout().overlapping(first_element, elements) {
            let run = engine.layout().parts[part];
            let owner = engine.drive(run.drive);
            let arrays = owner.store.stored_state(part)?;
            let mut memory = owner.weight_reads[0].lock();
            let (from, to) =
                (first_element.max(run.start), (first_element + elements).min(run.end()));
            let start = from - run.start;
            let target = &mut out[((from - first_element) * width) as usize..];
            owner.store.read_elements(
                &arrays[0],
                start,
                to - from,
                &mut memory,
                &mut |at, values| {
                    let at = ((at - start) * width) as usize;
                    round_into(dtype, values, &mut target[at..at + values.len() * width as usize]);
                    Ok(())
                },
            )?;
        }
        Ok(())
    }
}
