//! Writes a container with this program's kernels, for cards that are emulated.

use nearfield_hls::interface::KERNELS;

use super::XclbinError;
use super::digest::{instance_name, is_digest};
use super::layout::{
    BITSTREAM, CONNECTIVITY, EMBEDDED_METADATA, HEADER_BYTES, IP_LAYOUT, LENGTH_AT, MAGIC,
    MEM_TOPOLOGY, MODE_AT, PLATFORM_AT, RESERVED_AT, SECTION_HEADER_BYTES, SECTIONS_AT,
    SIGNATURE_LENGTH_AT, UUID_AT, VERSION_AT,
};
use super::metadata::{describe, unit_base};
use super::section::{
    Bank, Connection, Unit, put_text, write_banks, write_connections, write_units,
};

/// Mode of a container for XRT's software emulation.
pub const SOFTWARE_EMULATION: u16 = 5;

/// Bank of the memory that drives do not touch.
pub const HOST_BANK: usize = 0;
/// Bank of the memory that drives read and write directly.
pub const DRIVE_BANK: usize = 1;

/// What a container is to hold.
#[derive(Debug, Clone)]
pub struct Contents<'a> {
    /// Name of the platform.
    pub platform: &'a str,
    /// Digest of the kernels' sources.
    pub digest: &'a str,
    /// Mode, such as [`SOFTWARE_EMULATION`].
    pub mode: u16,
    /// Bytes of [`HOST_BANK`] and of [`DRIVE_BANK`], which follows it in the address space.
    pub banks: [u64; 2],
    /// The bitstream.
    pub bitstream: &'a [u8],
}

impl Contents<'_> {
    /// The container's bytes. The same contents give the same bytes, other contents another identifier.
    ///
    /// # Errors
    /// [`XclbinError::Unwritable`] for a digest or banks that a container cannot hold.
    pub fn to_bytes(&self) -> Result<Vec<u8>, XclbinError> {
        if !is_digest(self.digest) {
            return Err(XclbinError::Unwritable(format!(
                "the kernels' digest has to be 8 digits of base 16, it is {:?}",
                self.digest
            )));
        }
        if self.banks.iter().any(|bytes| *bytes == 0 || !bytes.is_multiple_of(1024)) {
            return Err(XclbinError::Unwritable(format!(
                "banks have whole kibibytes, these are of {:?} bytes",
                self.banks
            )));
        }
        let sections: [(u32, &str, Vec<u8>); 5] = [
            (BITSTREAM, "bitstream", self.bitstream.to_vec()),
            (EMBEDDED_METADATA, "metadata", describe(self.digest).into_bytes()),
            (MEM_TOPOLOGY, "mem_topology", write_banks(&self.memory()?)),
            (CONNECTIVITY, "connectivity", write_connections(&connections())),
            (IP_LAYOUT, "ip_layout", write_units(&units(self.digest))),
        ];
        let mut headers = Vec::new();
        let mut bodies = Vec::new();
        let first = (HEADER_BYTES + sections.len() * SECTION_HEADER_BYTES).next_multiple_of(8);
        for (kind, name, body) in &sections {
            headers.extend(kind.to_le_bytes());
            put_text(&mut headers, name, 16);
            headers.extend([0; 4]);
            headers.extend(((first + bodies.len()) as u64).to_le_bytes());
            headers.extend((body.len() as u64).to_le_bytes());
            bodies.extend(body);
            bodies.resize(bodies.len().next_multiple_of(8), 0);
        }
        headers.resize(first - HEADER_BYTES, 0);
        let mut out = self.header(sections.len(), first + bodies.len());
        out.extend(headers);
        out.extend(bodies);
        let digest = blake3::hash(&out);
        out[UUID_AT].copy_from_slice(&digest.as_bytes()[..16]);
        Ok(out)
    }

    fn header(&self, sections: usize, length: usize) -> Vec<u8> {
        let mut header = vec![0; HEADER_BYTES];
        let mut put = |at: usize, bytes: &[u8]| header[at..at + bytes.len()].copy_from_slice(bytes);
        put(0, &MAGIC);
        put(SIGNATURE_LENGTH_AT, &(-1_i32).to_le_bytes());
        put(RESERVED_AT.start, &[0xff; RESERVED_AT.end - RESERVED_AT.start]);
        put(LENGTH_AT, &(length as u64).to_le_bytes());
        put(VERSION_AT, &[2, 13]);
        put(MODE_AT, &self.mode.to_le_bytes());
        let mut platform = Vec::new();
        // The last byte stays zero.
        put_text(&mut platform, self.platform, PLATFORM_AT.len() - 1);
        put(PLATFORM_AT.start, &platform);
        put(SECTIONS_AT, &(sections as u32).to_le_bytes());
        header
    }

    fn memory(&self) -> Result<[Bank; 2], XclbinError> {
        let [host, drive] = self.banks;
        if host.checked_add(drive).is_none() {
            return Err(XclbinError::Unwritable("the banks exceed the address space".into()));
        }
        Ok([
            Bank { name: "bank0".into(), used: true, base: 0, bytes: host },
            Bank { name: "bank1".into(), used: true, base: host, bytes: drive },
        ])
    }
}

fn connections() -> Vec<Connection> {
    let mut connections = Vec::new();
    for (unit, kernel) in KERNELS.iter().enumerate() {
        for (argument, of) in kernel.arguments.iter().enumerate() {
            if of.kind.is_memory() {
                let bank = if of.on_drive { DRIVE_BANK } else { HOST_BANK };
                connections.push(Connection { argument, unit, bank });
            }
        }
    }
    connections
}

fn units(digest: &str) -> Vec<Unit> {
    let unit = |(number, name): (usize, &str)| {
        let instance = instance_name(name, digest);
        Unit { kind: 1, base: unit_base(number), name: format!("{name}:{instance}") }
    };
    KERNELS.iter().map(|kernel| kernel.name).enumerate().map(unit).collect()
}
