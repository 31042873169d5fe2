//! The sealed 4 KiB block: how every piece of metadata lies on a drive.
//!
//! Superblock, slot headers, gradient headers and journal records are blocks of [`BLOCK_BYTES`]. A
//! drive may lose power in the middle of writing one, and a drive may also return wrong bits years
//! later. The first is normal and has a rule; the second must never be taken for the first. So each
//! 512-byte sector (the largest unit that every drive writes whole or not at all) carries its own seal:
//!
//! ```text
//! sector s of 8:  [496 bytes of payload s][stamp u64][sum u64]
//! payload:        [magic 8][version u32][body length u32][payload sum u64][body …][zeros]
//! ```
//!
//! - `sum` covers sector number, payload and stamp. A sector whose sum is wrong was damaged: no crash leaves it.
//! - `stamp` differs between two writes to one place (generation, sequence). Sectors that are each whole but
//!   of different stamps, or zero beside written ones, are a torn write.
//! - `payload sum` covers the stamp and all payload, which tells two torn writes of one stamp apart.
//!
//! Sums are the first 8 bytes of BLAKE3. All integers are little-endian.

/// Bytes of a block.
pub(crate) const BLOCK_BYTES: usize = 4096;

/// The format version that this build writes and reads.
pub(crate) const FORMAT_VERSION: u32 = 1;

const SECTOR_BYTES: usize = 512;
const SECTORS: usize = BLOCK_BYTES / SECTOR_BYTES;
const SECTOR_PAYLOAD: usize = SECTOR_BYTES - 16;
const PAYLOAD_BYTES: usize = SECTORS * SECTOR_PAYLOAD;
const PREFIX_BYTES: usize = 24;

/// Bytes that the body of a block can have.
pub(crate) const BODY_BYTES: usize = PAYLOAD_BYTES - PREFIX_BYTES;

/// First bytes of a block, which say what it is.
pub(crate) type Magic = [u8; 8];

/// What a block turned out to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Block {
    /// Never written since the file was made.
    Empty,
    /// Whole: the stamp and the body that were written.
    Valid {
        /// The stamp given when it was written.
        stamp: u64,
        /// The body given when it was written.
        body: Vec<u8>,
    },
    /// Power was lost while it was being written.
    Torn,
    /// Bits changed after it had been written, or a block of another kind lies there.
    Damaged {
        /// Checksum recorded.
        expected: u64,
        /// Checksum of what was read.
        found: u64,
    },
}

/// First 8 bytes of BLAKE3 over `parts` one after another.
pub(crate) fn sum(parts: &[&[u8]]) -> u64 {
    let mut hasher = blake3::Hasher::new();
    for part in parts {
        hasher.update(part);
    }
    let mut first = [0; 8];
    first.copy_from_slice(&hasher.finalize().as_bytes()[..8]);
    u64::from_le_bytes(first)
}

fn word(bytes: &[u8], offset: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[offset..offset + 8]);
    u64::from_le_bytes(word)
}

fn sector_sum(index: usize, sector: &[u8]) -> u64 {
    sum(&[&[index as u8], &sector[..SECTOR_BYTES - 8]])
}

fn payload_sum(stamp: u64, payload: &[u8]) -> u64 {
    sum(&[&stamp.to_le_bytes(), &payload[..16], &payload[PREFIX_BYTES..]])
}

/// Seals `body` (at most [`BODY_BYTES`]) into `out` (at least [`BLOCK_BYTES`]; what follows is zeroed).
pub(crate) fn encode(magic: &Magic, stamp: u64, body: &[u8], out: &mut [u8]) {
    assert!(body.len() <= BODY_BYTES, "callers bound the body");
    let mut payload = [0; PAYLOAD_BYTES];
    payload[..8].copy_from_slice(magic);
    payload[8..12].copy_from_slice(&FORMAT_VERSION.to_le_bytes());
    payload[12..16].copy_from_slice(&(body.len() as u32).to_le_bytes());
    payload[PREFIX_BYTES..PREFIX_BYTES + body.len()].copy_from_slice(body);
    let whole = payload_sum(stamp, &payload);
    payload[16..24].copy_from_slice(&whole.to_le_bytes());

    out.fill(0);
    for (index, chunk) in payload.chunks_exact(SECTOR_PAYLOAD).enumerate() {
        let sector = &mut out[index * SECTOR_BYTES..(index + 1) * SECTOR_BYTES];
        sector[..SECTOR_PAYLOAD].copy_from_slice(chunk);
        sector[SECTOR_PAYLOAD..SECTOR_PAYLOAD + 8].copy_from_slice(&stamp.to_le_bytes());
        let seal = sector_sum(index, sector);
        sector[SECTOR_PAYLOAD + 8..].copy_from_slice(&seal.to_le_bytes());
    }
}

/// Says what the first [`BLOCK_BYTES`] of `bytes` are; `magic` is the kind that belongs there.
pub(crate) fn decode(magic: &Magic, bytes: &[u8]) -> Block {
    let bytes = &bytes[..BLOCK_BYTES];
    let mut payload = [0; PAYLOAD_BYTES];
    let mut stamp = None;
    let (mut written, mut torn) = (0, false);
    for (index, sector) in bytes.chunks_exact(SECTOR_BYTES).enumerate() {
        if sector.iter().all(|&byte| byte == 0) {
            continue;
        }
        let (expected, found) = (word(sector, SECTOR_BYTES - 8), sector_sum(index, sector));
        if expected != found {
            return Block::Damaged { expected, found };
        }
        let own = word(sector, SECTOR_PAYLOAD);
        torn |= *stamp.get_or_insert(own) != own;
        written += 1;
        payload[index * SECTOR_PAYLOAD..(index + 1) * SECTOR_PAYLOAD]
            .copy_from_slice(&sector[..SECTOR_PAYLOAD]);
    }
    let Some(stamp) = stamp else {
        return Block::Empty;
    };
    if torn || written != SECTORS {
        return Block::Torn;
    }
    let (expected, found) = (word(&payload, 16), payload_sum(stamp, &payload));
    if expected != found {
        return Block::Torn;
    }
    let length = (word(&payload, 8) >> 32) as usize;
    if &payload[..8] != magic || version(bytes) != FORMAT_VERSION || length > BODY_BYTES {
        return Block::Damaged { expected: u64::from_le_bytes(*magic), found: word(&payload, 0) };
    }
    Block::Valid { stamp, body: payload[PREFIX_BYTES..PREFIX_BYTES + length].to_vec() }
}

/// The format version that a block claims, readable whatever the rest of the block looks like.
pub(crate) fn version(bytes: &[u8]) -> u32 {
    (word(bytes, 8) & 0xffff_ffff) as u32
}

/// Whether every sector of a block matches its seal, whatever its version and kind.
pub(crate) fn whole(bytes: &[u8]) -> bool {
    bytes[..BLOCK_BYTES]
        .chunks_exact(SECTOR_BYTES)
        .enumerate()
        .all(|(index, sector)| word(sector, SECTOR_BYTES - 8) == sector_sum(index, sector))
}

/// The same block as a build of another format version would write it.
#[cfg(test)]
pub(crate) fn with_version(bytes: &[u8], version: u32) -> Vec<u8> {
    let mut out = bytes[..BLOCK_BYTES].to_vec();
    out[8..12].copy_from_slice(&version.to_le_bytes());
    let seal = sector_sum(0, &out[..SECTOR_BYTES]);
    out[SECTOR_BYTES - 8..SECTOR_BYTES].copy_from_slice(&seal.to_le_bytes());
    out
}

/// Appends fixed-width little-endian fields.
#[derive(Default)]
pub(crate) struct Fields(pub(crate) Vec<u8>);

impl Fields {
    pub(crate) fn u8(&mut self, value: u8) -> &mut Self {
        self.0.push(value);
        self
    }
    pub(crate) fn u32(&mut self, value: u32) -> &mut Self {
        self.bytes(&value.to_le_bytes())
    }
    pub(crate) fn u64(&mut self, value: u64) -> &mut Self {
        self.bytes(&value.to_le_bytes())
    }
    pub(crate) fn f64(&mut self, value: f64) -> &mut Self {
        self.u64(value.to_bits())
    }
    pub(crate) fn bytes(&mut self, value: &[u8]) -> &mut Self {
        self.0.extend_from_slice(value);
        self
    }
}

/// Takes fields from the front; `None` when the body is too short for them.
pub(crate) struct Take<'a>(pub(crate) &'a [u8]);

impl<'a> Take<'a> {
    pub(crate) fn bytes(&mut self, count: usize) -> Option<&'a [u8]> {
        let (head, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(head)
    }
    pub(crate) fn u8(&mut self) -> Option<u8> {
        Some(self.bytes(1)?[0])
    }
    pub(crate) fn u32(&mut self) -> Option<u32> {
        Some(u32::from_le_bytes(self.bytes(4)?.try_into().ok()?))
    }
    pub(crate) fn u64(&mut self) -> Option<u64> {
        Some(u64::from_le_bytes(self.bytes(8)?.try_into().ok()?))
    }
    pub(crate) fn f64(&mut self) -> Option<f64> {
        self.u64().map(f64::from_bits)
    }
    pub(crate) fn id(&mut self) -> Option<[u8; 16]> {
        self.bytes(16)?.try_into().ok()
    }
    /// `Some(())` when nothing is left.
    pub(crate) fn end(&self) -> Option<()> {
        self.0.is_empty().then_some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MAGIC: Magic = *b"NFTEST\0\0";

    fn block(stamp: u64, body: &[u8]) -> Vec<u8> {
        let mut out = vec![0xaa; BLOCK_BYTES];
        encode(&MAGIC, stamp, body, &mut out);
        out
    }

    #[test]
    fn every_flipped_bit_is_damage_and_never_a_torn_write() {
        let whole = block(7, b"a body that matters");
        for bit in 0..BLOCK_BYTES * 8 {
            let mut flipped = whole.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(matches!(decode(&MAGIC, &flipped), Block::Damaged { .. }), "bit {bit}");
        }
    }

    #[test]
    fn every_mix_of_old_and_new_sectors_is_torn() {
        for old in [vec![0; BLOCK_BYTES], block(6, b"before"), block(7, b"other body, same stamp")]
        {
            let new = block(7, &[9; BODY_BYTES]);
            for mask in 1..255_u32 {
                let mut mixed = old.clone();
                for sector in (0..SECTORS).filter(|sector| mask >> sector & 1 == 1) {
                    let range = sector * SECTOR_BYTES..(sector + 1) * SECTOR_BYTES;
                    mixed[range.clone()].copy_from_slice(&new[range]);
                }
                assert_eq!(decode(&MAGIC, &mixed), Block::Torn, "mask {mask:08b}");
            }
        }
    }

    #[test]
    fn blocks_of_another_kind_and_empty_ones_are_told_apart() {
        assert_eq!(decode(&MAGIC, &[0; BLOCK_BYTES]), Block::Empty);
        assert!(matches!(decode(b"NFOTHER\0", &block(1, b"x")), Block::Damaged { .. }));
        assert_eq!(version(&block(1, b"x")), FORMAT_VERSION);
    }

    proptest! {
        #[test]
        fn what_was_sealed_comes_back(stamp: u64, body in proptest::collection::vec(any::<u8>(), 0..=BODY_BYTES)) {
            prop_assert_eq!(decode(&MAGIC, &block(stamp, &body)), Block::Valid { stamp, body });
        }
    }
}
