//! Takes a container apart. Whatever the bytes are, the answer is a value.

use std::path::{Path, PathBuf};

use super::XclbinError;
use super::layout::{
    BITSTREAM, CONNECTIVITY, EMBEDDED_METADATA, HEADER_BYTES, IP_LAYOUT, LENGTH_AT, MAGIC,
    MEM_TOPOLOGY, MODE_AT, PLATFORM_AT, SECTION_HEADER_BYTES, SECTIONS_AT, UUID_AT,
};
use super::metadata;
pub use super::metadata::{Argument, Instance, Kernel};
pub use super::section::{Bank, Connection, Unit};
use super::section::{Cursor, read_banks, read_connections, read_units};

/// Sections that a container may have at most.
const SECTION_LIMIT: u32 = 4096;

/// What a container holds, without the bitstream itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Xclbin {
    /// Where it was read from.
    pub file: PathBuf,
    /// Its identifier.
    pub uuid: [u8; 16],
    /// Its mode: hardware, or a kind of emulation.
    pub mode: u16,
    /// Name of the platform it was built for.
    pub platform: String,
    /// The kernels' description.
    pub kernels: Vec<Kernel>,
    /// The card's memory.
    pub banks: Vec<Bank>,
    /// Wires from arguments to banks.
    pub connections: Vec<Connection>,
    /// The kernels' places in the address space.
    pub units: Vec<Unit>,
}

impl Xclbin {
    /// Reads a container.
    ///
    /// # Errors
    /// [`XclbinError::Io`] when the file cannot be read, [`XclbinError::Damaged`] when it is no whole container.
    pub fn read(file: &Path) -> Result<Self, XclbinError> {
        let bytes = std::fs::read(file)
            .map_err(|source| XclbinError::Io { file: file.to_owned(), source })?;
        Self::parse(file, &bytes)
    }

    /// Takes the bytes of a file apart.
    ///
    /// # Errors
    /// [`XclbinError::Damaged`] when it is no whole container.
    pub fn parse(file: &Path, bytes: &[u8]) -> Result<Self, XclbinError> {
        parse(file, bytes).map_err(|what| XclbinError::Damaged { file: file.to_owned(), what })
    }

    /// The kernel of a name.
    pub fn kernel(&self, name: &str) -> Option<&Kernel> {
        self.kernels.iter().find(|kernel| kernel.name == name)
    }
}

fn text(bytes: &[u8], what: &str) -> Result<String, String> {
    Cursor(bytes).text(bytes.len()).ok_or_else(|| format!("{what} is not text"))
}

fn parse(file: &Path, bytes: &[u8]) -> Result<Xclbin, String> {
    let header = bytes.get(..HEADER_BYTES).ok_or_else(|| {
        format!("it has {} bytes, a header alone has {HEADER_BYTES}", bytes.len())
    })?;
    if !header.starts_with(&MAGIC) {
        return Err("it does not begin with the mark of an xclbin".into());
    }
    let length = Cursor(&header[LENGTH_AT..]).u64().unwrap_or(0);
    if length != bytes.len() as u64 {
        return Err(format!("it has {} bytes, {length} by its header", bytes.len()));
    }
    let sections = Sections::parse(bytes)?;
    sections.find(BITSTREAM, "bitstream")?;
    let description = sections.find(EMBEDDED_METADATA, "kernels' description")?;
    let description = std::str::from_utf8(description)
        .map_err(|error| format!("its kernels' description is not text: {error}"))?;
    let kernels = metadata::parse(description)
        .map_err(|what| format!("its kernels' description cannot be read: {what}"))?;
    let small = |kind, what| sections.find(kind, what);
    let broken = |what: &str| format!("its section with {what} is broken");
    let banks = read_banks(small(MEM_TOPOLOGY, "banks of memory")?)
        .ok_or_else(|| broken("banks of memory"))?;
    let connections =
        read_connections(small(CONNECTIVITY, "wires")?).ok_or_else(|| broken("wires"))?;
    let units = read_units(small(IP_LAYOUT, "kernels' places")?)
        .ok_or_else(|| broken("kernels' places"))?;
    if let Some(wire) =
        connections.iter().find(|wire| wire.unit >= units.len() || wire.bank >= banks.len())
    {
        return Err(format!(
            "a wire joins unit {} and bank {}, which do not both exist",
            wire.unit, wire.bank
        ));
    }
    let mut uuid = [0; 16];
    uuid.copy_from_slice(&header[UUID_AT]);
    let mode = u16::from_le_bytes([header[MODE_AT], header[MODE_AT + 1]]);
    let platform = text(&header[PLATFORM_AT], "its platform's name")?;
    Ok(Xclbin { file: file.to_owned(), uuid, mode, platform, kernels, banks, connections, units })
}

/// The sections of a container, each within the file.
struct Sections<'a>(Vec<(u32, &'a [u8])>);

impl<'a> Sections<'a> {
    fn parse(bytes: &'a [u8]) -> Result<Self, String> {
        let count = Cursor(&bytes[SECTIONS_AT..]).u32().unwrap_or(0);
        if count > SECTION_LIMIT {
            return Err(format!("it claims {count} sections"));
        }
        let headers = bytes
            .get(HEADER_BYTES..HEADER_BYTES + count as usize * SECTION_HEADER_BYTES)
            .ok_or_else(|| format!("it ends within the headers of its {count} sections"))?;
        let section = |header: &[u8]| {
            let mut cursor = Cursor(header);
            let kind = cursor.u32();
            // The section's name, and what fills up to the next number.
            cursor.take(20);
            let (kind, offset, size) = kind
                .zip(cursor.u64())
                .zip(cursor.u64())
                .map(|((kind, offset), size)| (kind, offset, size))
                .ok_or("a section has no header")?;
            let end = offset.checked_add(size).filter(|end| *end <= bytes.len() as u64);
            match end {
                Some(end) => Ok((kind, &bytes[offset as usize..end as usize])),
                None => Err(format!(
                    "section {kind}, {size} bytes from {offset}, lies outside its {} bytes",
                    bytes.len()
                )),
            }
        };
        headers
            .chunks_exact(SECTION_HEADER_BYTES)
            .map(section)
            .collect::<Result<_, String>>()
            .map(Self)
    }

    fn find(&self, wanted: u32, what: &str) -> Result<&'a [u8], String> {
        self.0
            .iter()
            .find(|(kind, _)| *kind == wanted)
            .map(|(_, bytes)| *bytes)
            .ok_or_else(|| format!("it has no section with {what}"))
    }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
