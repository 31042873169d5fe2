//! The card's buffers, by number.

use nearfield_runtime::Result;
use nearfield_runtime::device::{BufferId, BufferTable, Reach};

use super::work;
use crate::xrt::{Buffer, Card, Placement};

/// Groups of banks: of what drives reach, and of the rest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Banks {
    pub drive: u32,
    pub kernels: u32,
}

/// Buffers of a card.
#[derive(Debug)]
pub struct Buffers {
    pub table: BufferTable<Buffer>,
    card: Card,
    banks: Banks,
}

impl Buffers {
    pub fn new(card: Card, banks: Banks) -> Self {
        Self { table: BufferTable::new(&format!("card {}", card.name())), card, banks }
    }

    pub fn allocate(&self, bytes: u64, reach: Reach) -> Result<BufferId> {
        let (bank, placement) = match reach {
            Reach::Drive => (self.banks.drive, Placement::Bus),
            Reach::Kernels => (self.banks.kernels, Placement::Card),
        };
        let whole = bytes.max(1).next_multiple_of(4096) as usize;
        let mut buffer = self.card.allocate(whole, bank, placement).map_err(work)?;
        // A page of the window is only there for a drive once it was touched.
        buffer.clear().map_err(work)?;
        Ok(self.table.insert(buffer, bytes))
    }
}
