//! A copy of XRT's software emulation without the defect of Debian's package: a buffer for messages is moved when it grows, but its
//! new place is not kept, so every run writes to freed memory.

use std::path::Path;

use super::EmulationError;

/// Where Debian has it.
const INSTALLED: &str = "/usr/lib/x86_64-linux-gnu/libxrt_swemu.so.2.13.0";
/// The only content that is repaired.
const KNOWN: &str = "6e6683d0c4e50fd19056acf7f31df734b204a8ab06f4e128e78370b3c77ea83a";
/// A jump past the instruction that keeps the new place, and one that lands on it.
const BYTE: (usize, u8, u8) = (0x9_2730, 0xe6, 0xdf);

/// The library's content, with the jump corrected.
pub(super) fn repaired() -> Result<Vec<u8>, EmulationError> {
    let path = Path::new(INSTALLED);
    let error = |what: String| EmulationError::Shim { path: path.to_owned(), what };
    let mut content = std::fs::read(path).map_err(|source| error(source.to_string()))?;
    let found = blake3::hash(&content).to_hex();
    let (place, from, to) = BYTE;
    if found.as_str() != KNOWN || content.get(place) != Some(&from) {
        return Err(error(format!("it is not the known library (its digest is {found})")));
    }
    content[place] = to;
    Ok(content)
}
