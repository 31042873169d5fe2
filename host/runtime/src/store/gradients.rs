//! Headers of `gradients.nf` and `residual.nf`.

use super::block::{self, Block, Fields, Magic, Take};
use super::superblock::{GradientFormat, RunId, dtype_code};

const GRADIENT_MAGIC: Magic = *b"NFGRAD\0\0";
const RESIDUAL_MAGIC: Magic = *b"NFRESID\0";

/// The header of one part's gradients, or of one residual region: a sealed block in front of the data.
///
/// `gradients.nf` has a region for each part of the drive, in flat order: `[header][elements]`, or
/// `[header][K indices u32][K values]` with top-k, each array rounded up to the drive's alignment. A region is
/// overwritten in place in every iteration, which is safe because nothing needs it before the journal says
/// so: data and headers of step t are flushed before the intent of t, and from then on they are only read until t
/// is complete. A header of generation t without that intent means nothing.
///
/// `residual.nf` (error feedback only) has two regions for each part: the residual of step t goes to the one
/// that does not hold the newest residual of a step before t. An iteration that is begun again, after a
/// crash or an overflow, so still finds the residual of t-1.
///
/// Body: run id 16, part u32, generation u64, format u8 (0 dense, 1 top-k), dtype u8, count u64 (elements or
/// pairs), sums u64 × 2 (elements, 0; or indices, values). The stamp of the block is the generation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct GradientHeader {
    pub run: RunId,
    pub part: u32,
    pub generation: u64,
    /// Format and dtype as stored, see [`format_code`].
    pub format: [u8; 2],
    pub count: u64,
    pub checksums: [u64; 2],
}

/// What is known of the gradients that are stored for a part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GradientInfo {
    /// The optimizer step that they are for.
    pub generation: u64,
    /// Padded elements (dense) or pairs (top-k).
    pub count: u64,
    /// Sum of the elements and 0, or of the indices and of the values.
    pub checksums: [u64; 2],
}

/// What a residual region holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ResidualInfo {
    /// The optimizer step whose gradients left it; 0 is the initial one, all zeros.
    pub generation: u64,
    /// Offset of its data in the file, bytes.
    pub offset: u64,
    /// Sum of its elements.
    pub checksum: u64,
}

/// Format and dtype as stored in a header.
pub(crate) fn format_code(format: GradientFormat) -> [u8; 2] {
    match format {
        GradientFormat::Dense { dtype } => [0, dtype_code(dtype)],
        GradientFormat::TopK { values, .. } => [1, dtype_code(values)],
    }
}

/// What a header block turned out to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum GradientFound {
    Empty,
    Header(GradientHeader),
    Torn,
    Damaged { expected: u64, found: u64 },
}

impl GradientHeader {
    pub fn encode(&self, residual: bool, out: &mut [u8]) {
        let mut body = Fields::default();
        body.bytes(&self.run.0).u32(self.part).u64(self.generation).bytes(&self.format);
        body.u64(self.count).u64(self.checksums[0]).u64(self.checksums[1]);
        block::encode(magic(residual), self.generation, &body.0, out);
    }

    fn from_body(body: &[u8]) -> Option<Self> {
        let mut take = Take(body);
        let header = Self {
            run: RunId(take.id()?),
            part: take.u32()?,
            generation: take.u64()?,
            format: [take.u8()?, take.u8()?],
            count: take.u64()?,
            checksums: [take.u64()?, take.u64()?],
        };
        take.end()?;
        Some(header)
    }

    /// The part that concerns a reader.
    pub fn info(&self) -> GradientInfo {
        GradientInfo { generation: self.generation, count: self.count, checksums: self.checksums }
    }
}

fn magic(residual: bool) -> &'static Magic {
    if residual { &RESIDUAL_MAGIC } else { &GRADIENT_MAGIC }
}

impl GradientFound {
    pub fn decode(residual: bool, bytes: &[u8]) -> Self {
        match block::decode(magic(residual), bytes) {
            Block::Empty => Self::Empty,
            Block::Torn => Self::Torn,
            Block::Damaged { expected, found } => Self::Damaged { expected, found },
            Block::Valid { stamp, body } => match GradientHeader::from_body(&body) {
                Some(header) => Self::Header(header),
                None => Self::Damaged { expected: stamp, found: body.len() as u64 },
            },
        }
    }
}

/// Region (0 or 1) that the residual of step `generation` goes to, given the generations of both.
///
/// It is the one that does not hold the newest residual of an earlier step.
pub(crate) fn residual_target(generations: [Option<u64>; 2], generation: u64) -> u32 {
    match residual_source(generations, generation) {
        Some(0) => 1,
        _ => 0,
    }
}

/// Region that holds the newest residual of a step before `generation`.
pub(crate) fn residual_source(generations: [Option<u64>; 2], generation: u64) -> Option<u32> {
    let earlier = |region: usize| generations[region].filter(|&own| own < generation);
    match (earlier(0), earlier(1)) {
        (None, None) => None,
        (first, second) if first >= second => Some(0),
        _ => Some(1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_comes_back_and_every_flipped_bit_is_noticed() {
        let header = GradientHeader {
            run: RunId([5; 16]),
            part: 9,
            generation: 77,
            format: [1, 2],
            count: 1024,
            checksums: [1, u64::MAX],
        };
        for residual in [false, true] {
            let mut bytes = vec![0; 4096];
            header.encode(residual, &mut bytes);
            assert_eq!(GradientFound::decode(residual, &bytes), GradientFound::Header(header));
            assert!(matches!(
                GradientFound::decode(!residual, &bytes),
                GradientFound::Damaged { .. }
            ));
            for bit in 0..bytes.len() * 8 {
                bytes[bit / 8] ^= 1 << (bit % 8);
                assert!(matches!(
                    GradientFound::decode(residual, &bytes),
                    GradientFound::Damaged { .. }
                ));
                bytes[bit / 8] ^= 1 << (bit % 8);
            }
        }
    }

    #[test]
    fn a_repeated_step_never_overwrites_the_residual_it_starts_from() {
        // Steps 1, 2, 2 again (overflow), 2 again (crash), 3.
        let mut regions = [Some(0), None];
        for step in [1, 2, 2, 2, 3] {
            let source = residual_source(regions, step).unwrap();
            assert_eq!(regions[source as usize], Some(step - 1));
            let target = residual_target(regions, step);
            assert_ne!(source, target);
            regions[target as usize] = Some(step);
        }
    }
}
