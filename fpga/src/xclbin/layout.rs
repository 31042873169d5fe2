//! Places and sizes in a container. All numbers are little endian.

/// The first bytes of a container.
pub const MAGIC: [u8; 8] = *b"xclbin2\0";
/// Bytes of the header, without the headers of sections.
pub const HEADER_BYTES: usize = 456;
/// Bytes of the header of a section.
pub const SECTION_HEADER_BYTES: usize = 40;

/// Place of the signature's length; -1 where there is none.
pub const SIGNATURE_LENGTH_AT: usize = 8;
/// Place of bytes that are all ones.
pub const RESERVED_AT: std::ops::Range<usize> = 12..40;
/// Place of the file's length.
pub const LENGTH_AT: usize = 304;
/// Place of the major and minor version.
pub const VERSION_AT: usize = 330;
/// Place of the mode.
pub const MODE_AT: usize = 332;
/// Place of the platform's name.
pub const PLATFORM_AT: std::ops::Range<usize> = 352..416;
/// Place of the identifier.
pub const UUID_AT: std::ops::Range<usize> = 416..432;
/// Place of the number of sections.
pub const SECTIONS_AT: usize = 448;

/// Kind of the section with the bitstream.
pub const BITSTREAM: u32 = 0;
/// Kind of the section with the kernels' description.
pub const EMBEDDED_METADATA: u32 = 2;
/// Kind of the section with the banks of memory.
pub const MEM_TOPOLOGY: u32 = 6;
/// Kind of the section that says which argument is wired to which bank.
pub const CONNECTIVITY: u32 = 7;
/// Kind of the section with the kernels' places in the address space.
pub const IP_LAYOUT: u32 = 8;

/// Bytes of an entry of the section with banks.
pub const BANK_BYTES: usize = 40;
/// Bytes of an entry of the section with wires.
pub const CONNECTION_BYTES: usize = 12;
/// Bytes of an entry of the section with kernels' places.
pub const UNIT_BYTES: usize = 80;

/// Place of the first argument in a kernel's registers.
pub const FIRST_ARGUMENT: u64 = 0x10;

/// Distance from an argument to the next one, for the bytes of its value: a word more than the value.
pub const fn argument_step(bytes: usize) -> u64 {
    bytes as u64 + 4
}
