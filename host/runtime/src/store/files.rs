//! Metadata blocks in the files of a drive: aligned buffers, exact counts.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use super::block::BLOCK_BYTES;
use super::geometry::{
    GRADIENTS_FILE, Geometry, JOURNAL_FILE, JOURNAL_RECORDS, RESIDUAL_FILE, SLOTS_FILE,
};
use crate::error::{Error, Result};
use crate::io::{DriveFile, IoEngine, OpenMode};
use crate::memory::{Arena, Region};

/// Bytes of zeros written at a time when a file is made.
const ZERO_BYTES: u64 = 4 << 20;

/// Metadata moved by a store: headers and journal records, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MetadataBytes {
    /// Bytes read.
    pub read: u64,
    /// Bytes written.
    pub written: u64,
}

/// The open files of one drive directory.
pub(crate) struct Files {
    pub engine: Arc<IoEngine>,
    pub slots: DriveFile,
    pub gradients: DriveFile,
    pub journal: DriveFile,
    pub residual: Option<DriveFile>,
    /// One block, aligned for direct I/O; its lock also keeps metadata writes of a drive in order.
    block: Mutex<Region>,
    read: AtomicU64,
    written: AtomicU64,
}

impl Files {
    /// Opens all files in `mode`.
    pub fn open(
        engine: Arc<IoEngine>,
        directory: &Path,
        geometry: &Geometry,
        mode: impl Fn() -> OpenMode,
    ) -> Result<Self> {
        let file = |name| engine.open(&directory.join(name), mode());
        let slots = file(SLOTS_FILE)?;
        let gradients = file(GRADIENTS_FILE)?;
        let journal = file(JOURNAL_FILE)?;
        let residual = if geometry.residual { Some(file(RESIDUAL_FILE)?) } else { None };
        let arena = Arena::new("journal and headers", geometry.alignment, false)?;
        let block = Mutex::new(arena.allocate(geometry.alignment)?);
        Ok(Self {
            engine,
            slots,
            gradients,
            journal,
            residual,
            block,
            read: AtomicU64::new(0),
            written: AtomicU64::new(0),
        })
    }

    /// Checks that no file is shorter than what belongs to it.
    pub fn check_lengths(&self, geometry: &Geometry) -> Result<()> {
        for (name, expected) in geometry.files() {
            let file = self.named(name)?;
            let actual = file.len()?;
            if actual < expected {
                return Err(Error::Truncated { path: file.path().to_path_buf(), expected, actual });
            }
        }
        Ok(())
    }

    pub fn named(&self, name: &str) -> Result<&DriveFile> {
        match (name, &self.residual) {
            (SLOTS_FILE, _) => Ok(&self.slots),
            (GRADIENTS_FILE, _) => Ok(&self.gradients),
            (JOURNAL_FILE, _) => Ok(&self.journal),
            (_, Some(residual)) => Ok(residual),
            _ => Err(Error::Invalid(
                "this run keeps no residuals; start it with --error-feedback".into(),
            )),
        }
    }

    /// Reads the block at `offset` and gives it to `decode`.
    pub fn read_block<T>(
        &self,
        file: &DriveFile,
        offset: u64,
        decode: impl FnOnce(&[u8]) -> T,
    ) -> Result<T> {
        let mut block = self.block.lock();
        self.engine.read(file, offset, &mut block)?;
        self.read.fetch_add(block.len() as u64, Ordering::Relaxed);
        Ok(decode(&block[..BLOCK_BYTES]))
    }

    /// Lets `encode` fill a block and writes it at `offset`; `before` runs first, in the same order of metadata writes.
    pub fn write_block(
        &self,
        file: &DriveFile,
        offset: u64,
        before: impl FnOnce() -> Result<()>,
        encode: impl FnOnce(&mut [u8]),
    ) -> Result<()> {
        let mut block = self.block.lock();
        before()?;
        block.fill(0);
        encode(&mut block);
        self.engine.write(file, offset, &block)?;
        self.written.fetch_add(block.len() as u64, Ordering::Relaxed);
        Ok(())
    }

    /// Reads the journal's blocks in the order of their places.
    pub fn read_journal(&self, geometry: &Geometry) -> Result<Vec<[u8; BLOCK_BYTES]>> {
        (0..JOURNAL_RECORDS)
            .map(|place| {
                self.read_block(&self.journal, geometry.journal_record(place), |bytes| {
                    let mut copy = [0; BLOCK_BYTES];
                    copy.copy_from_slice(bytes);
                    copy
                })
            })
            .collect()
    }

    /// Makes everything written so far durable.
    pub fn flush_all(&self) -> Result<()> {
        for file in [&self.slots, &self.gradients, &self.journal].into_iter().chain(&self.residual)
        {
            self.engine.flush(file)?;
        }
        Ok(())
    }

    /// Writes zeros over every byte, so that later writes need no new extents and no metadata of the file system.
    pub fn zero_fill(&self, geometry: &Geometry) -> Result<()> {
        let bytes = ZERO_BYTES.next_multiple_of(geometry.alignment);
        let zeros = Arena::new("zero-filling", bytes, false)?.allocate(bytes)?;
        for (name, length) in geometry.files() {
            let file = self.named(name)?;
            let mut offset = 0;
            while offset < length {
                let piece = bytes.min(length - offset);
                self.engine.write(file, offset, &zeros[..piece as usize])?;
                offset += piece;
            }
        }
        Ok(())
    }

    pub fn metadata(&self) -> MetadataBytes {
        MetadataBytes {
            read: self.read.load(Ordering::Relaxed),
            written: self.written.load(Ordering::Relaxed),
        }
    }
}
