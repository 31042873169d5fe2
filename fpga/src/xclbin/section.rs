//! The small sections, entry by entry.

use super::layout::{BANK_BYTES, CONNECTION_BYTES, UNIT_BYTES};

/// A bank of a card's memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bank {
    /// Its name.
    pub name: String,
    /// Whether the bitstream uses it.
    pub used: bool,
    /// Its first address.
    pub base: u64,
    /// Its size in bytes.
    pub bytes: u64,
}

/// A wire from a kernel's argument to a bank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Connection {
    /// Number of the argument.
    pub argument: usize,
    /// Number of the unit.
    pub unit: usize,
    /// Number of the bank.
    pub bank: usize,
}

/// A place in the address space of registers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unit {
    /// Kind; 1 for kernels.
    pub kind: u32,
    /// Its first address.
    pub base: u64,
    /// Kernel and instance, with a colon between.
    pub name: String,
}

/// Takes numbers off the front of bytes.
pub(super) struct Cursor<'a>(pub &'a [u8]);

impl<'a> Cursor<'a> {
    pub fn take(&mut self, bytes: usize) -> Option<&'a [u8]> {
        let (front, rest) = self.0.split_at_checked(bytes)?;
        self.0 = rest;
        Some(front)
    }

    pub fn u32(&mut self) -> Option<u32> {
        self.take(4)?.try_into().ok().map(u32::from_le_bytes)
    }

    pub fn u64(&mut self) -> Option<u64> {
        self.take(8)?.try_into().ok().map(u64::from_le_bytes)
    }

    /// Text of a fixed length that a zero ends earlier.
    pub fn text(&mut self, bytes: usize) -> Option<String> {
        let text = self.take(bytes)?;
        let end = text.iter().position(|&byte| byte == 0).unwrap_or(bytes);
        String::from_utf8(text[..end].to_vec()).ok()
    }
}

/// The entries behind a count, if they fill the section.
fn entries<'a>(
    bytes: &'a [u8],
    padding: usize,
    entry: usize,
) -> Option<impl Iterator<Item = Cursor<'a>>> {
    let mut cursor = Cursor(bytes);
    let count = cursor.u32()? as usize;
    cursor.take(padding)?;
    let needed = count.checked_mul(entry)?;
    // A container may pad its sections.
    Some(cursor.take(needed)?.chunks_exact(entry).map(Cursor))
}

pub(super) fn read_banks(bytes: &[u8]) -> Option<Vec<Bank>> {
    entries(bytes, 4, BANK_BYTES)?
        .map(|mut entry| {
            let flags = entry.take(8)?;
            let kibibytes = entry.u64()?;
            let base = entry.u64()?;
            let name = entry.text(16)?;
            let bytes = kibibytes.checked_mul(1024)?;
            Some(Bank { name, used: flags[1] != 0, base, bytes })
        })
        .collect()
}

pub(super) fn write_banks(banks: &[Bank]) -> Vec<u8> {
    let mut out = Vec::new();
    out.extend((banks.len() as u32).to_le_bytes());
    out.extend([0; 4]);
    for bank in banks {
        // DDR4.
        out.extend([1, u8::from(bank.used), 0, 0, 0, 0, 0, 0]);
        out.extend((bank.bytes / 1024).to_le_bytes());
        out.extend(bank.base.to_le_bytes());
        put_text(&mut out, &bank.name, 16);
    }
    out
}

pub(super) fn read_connections(bytes: &[u8]) -> Option<Vec<Connection>> {
    entries(bytes, 0, CONNECTION_BYTES)?
        .map(|mut entry| {
            let argument = entry.u32()? as usize;
            let unit = entry.u32()? as usize;
            Some(Connection { argument, unit, bank: entry.u32()? as usize })
        })
        .collect()
}

pub(super) fn write_connections(connections: &[Connection]) -> Vec<u8> {
    let mut out = (connections.len() as u32).to_le_bytes().to_vec();
    for Connection { argument, unit, bank } in connections {
        for number in [argument, unit, bank] {
            out.extend((*number as u32).to_le_bytes());
        }
    }
    out
}

pub(super) fn read_units(bytes: &[u8]) -> Option<Vec<Unit>> {
    entries(bytes, 4, UNIT_BYTES)?
        .map(|mut entry| {
            let kind = entry.u32()?;
            entry.u32()?;
            let base = entry.u64()?;
            Some(Unit { kind, base, name: entry.text(64)? })
        })
        .collect()
}

pub(super) fn write_units(units: &[Unit]) -> Vec<u8> {
    let mut out = (units.len() as u32).to_le_bytes().to_vec();
    out.extend([0; 4]);
    for unit in units {
        out.extend(unit.kind.to_le_bytes());
        out.extend([0; 4]);
        out.extend(unit.base.to_le_bytes());
        put_text(&mut out, &unit.name, 64);
    }
    out
}

/// Adds text in a field of a fixed length; cuts what does not fit.
pub(super) fn put_text(out: &mut Vec<u8>, text: &str, bytes: usize) {
    let text = &text.as_bytes()[..text.len().min(bytes)];
    out.extend(text);
    out.resize(out.len() + bytes - text.len(), 0);
}
