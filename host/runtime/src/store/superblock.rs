//! `superblock.nf` and `layout.nf`: what a drive directory is, and of which run.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::block::{self, BLOCK_BYTES, Block, Fields, Magic, Take};
use crate::error::{Error, Result};
use crate::layout::{Layout, Part, align_up};
use crate::types::{DType, Optimizer, Variable};

/// Name of the superblock in a drive directory.
pub(crate) const SUPERBLOCK_FILE: &str = "superblock.nf";
/// Name of the layout in a drive directory.
pub(crate) const LAYOUT_FILE: &str = "layout.nf";

const SUPERBLOCK_MAGIC: Magic = *b"NFSUPER\0";
const LAYOUT_MAGIC: Magic = *b"NFLAYOUT";
const PART_BYTES: usize = 24;

/// 128 random bits that every file of a run carries; drives of different runs are never mixed.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct RunId(pub [u8; 16]);

impl RunId {
    /// A new identity from the system's random source.
    pub fn random() -> Result<Self> {
        use std::io::Read;
        let path = Path::new("/dev/urandom");
        let mut id = [0; 16];
        std::fs::File::open(path)
            .and_then(|mut file| file.read_exact(&mut id))
            .map_err(|source| Error::io("read", path, 0, 16, source))?;
        Ok(Self(id))
    }
}

impl std::fmt::Display for RunId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl std::fmt::Debug for RunId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{self}")
    }
}

impl Serialize for RunId {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// How gradients lie on a drive.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum GradientFormat {
    /// Every element.
    Dense {
        /// Number format of the elements.
        dtype: DType,
    },
    /// Index and value of the elements of greatest magnitude (Smart-Infinity, section 4).
    TopK {
        /// Share of the elements kept, above 0 and at most 1.
        keep: f64,
        /// Number format of the values.
        values: DType,
    },
}

impl std::fmt::Display for GradientFormat {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Dense { dtype } => write!(f, "{}", dtype.name()),
            Self::TopK { keep, values } => write!(f, "the largest {keep} in {}", values.name()),
        }
    }
}

/// What a run stores on its drives; the same for all of them.
#[derive(Debug, Clone, PartialEq)]
pub struct StateSpec {
    /// The update rule, which says the variables kept.
    pub optimizer: Optimizer,
    /// Number format of the moments: fp32 or bf16.
    pub moments: DType,
    /// Gradient format.
    pub gradients: GradientFormat,
    /// Whether error-feedback residuals are kept.
    pub residual: bool,
    /// Whether every part has a slot to spare, so that its update can be written ahead, before it is certain.
    pub ahead: bool,
    /// Which part lies where.
    pub layout: Layout,
}

impl StateSpec {
    /// Number format in which a variable of the state lies on the drives.
    pub fn dtype(&self, variable: Variable) -> DType {
        match variable {
            Variable::ExpAvg | Variable::ExpAvgSq => self.moments,
            _ => DType::Fp32,
        }
    }
}

/// The superblock of a drive: one sealed block, 4096 bytes.
///
/// It is written last when a run is created, through a temporary file and a rename, so it is there whole
/// or not at all. A directory that has other state files but no superblock is a creation that was cut
/// short. It never changes afterwards: all that moves is in the slots, the gradients and the journal.
///
/// Body: run id 16, drive u32, drives u32, optimizer u8, gradient kind u8 (0 dense, 1 top-k), gradient
/// dtype u8, master dtype u8, keep f64, residual u8, elements u64, align_elements u64, alignment u64
/// (bytes), capacity u64 (elements), slots u32, parts u32, BLAKE3 of `layout.nf` 32; then, unless moments are fp32 and
/// parts have no slots of their own to spare: moments dtype u8, slots to spare u8 (0 up to three a drive, 1 one a part).
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Superblock {
    /// The run that the drive belongs to.
    pub run: RunId,
    /// Index of this drive.
    pub drive: u32,
    /// Number of drives of the run.
    pub drives: u32,
    /// The update rule.
    pub optimizer: Optimizer,
    /// Number format of master weights.
    pub master: DType,
    /// Number format of moments.
    pub moments: DType,
    /// Whether every part has a slot to spare.
    pub ahead: bool,
    /// Gradient format.
    pub gradients: GradientFormat,
    /// Whether `residual.nf` exists.
    pub residual: bool,
    /// Elements of the flat parameter vector.
    pub elements: u64,
    /// Parts are padded to a multiple of this many elements.
    pub align_elements: u64,
    /// Offsets in the files are multiples of this many bytes.
    pub alignment: u64,
    /// Elements that one variable of a slot of this drive holds (`L_max`).
    pub capacity: u64,
    /// Slots in `slots.nf` of this drive.
    pub slots: u32,
    /// Parts in the layout (of all drives).
    pub parts: u32,
    /// BLAKE3 of `layout.nf`.
    #[serde(skip)]
    pub layout_digest: [u8; 32],
}

const OPTIMIZERS: [Optimizer; 4] =
    [Optimizer::Adam, Optimizer::Adamw, Optimizer::Adagrad, Optimizer::SgdMomentum];
const DTYPES: [DType; 3] = [DType::Fp32, DType::Fp16, DType::Bf16];

fn code<T: PartialEq>(table: &[T], value: T) -> u8 {
    // The tables above list every value of their types, which `codes_cover_every_value` checks.
    table.iter().position(|entry| *entry == value).unwrap_or(usize::MAX) as u8
}

pub(crate) fn dtype_code(dtype: DType) -> u8 {
    code(&DTYPES, dtype)
}

pub(crate) fn dtype_from(code: u8) -> Option<DType> {
    DTYPES.get(code as usize).copied()
}

impl Superblock {
    /// The block as it lies on the drive.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let (kind, dtype, keep) = match self.gradients {
            GradientFormat::Dense { dtype } => (0, dtype, 0.0),
            GradientFormat::TopK { keep, values } => (1, values, keep),
        };
        let mut body = Fields::default();
        body.bytes(&self.run.0).u32(self.drive).u32(self.drives);
        body.u8(code(&OPTIMIZERS, self.optimizer)).u8(kind);
        body.u8(dtype_code(dtype))
            .u8(dtype_code(self.master))
            .f64(keep)
            .u8(u8::from(self.residual));
        body.u64(self.elements).u64(self.align_elements).u64(self.alignment).u64(self.capacity);
        body.u32(self.slots).u32(self.parts).bytes(&self.layout_digest);
        if self.moments != DType::Fp32 || self.ahead {
            body.u8(dtype_code(self.moments)).u8(u8::from(self.ahead));
        }
        let mut out = vec![0; BLOCK_BYTES];
        block::encode(&SUPERBLOCK_MAGIC, 0, &body.0, &mut out);
        out
    }

    fn from_body(body: &[u8]) -> Option<Self> {
        let mut take = Take(body);
        let (run, drive, drives) = (RunId(take.id()?), take.u32()?, take.u32()?);
        let optimizer = *OPTIMIZERS.get(take.u8()? as usize)?;
        let (kind, dtype, master) = (take.u8()?, dtype_from(take.u8()?)?, dtype_from(take.u8()?)?);
        let keep = take.f64()?;
        let gradients = match kind {
            0 => GradientFormat::Dense { dtype },
            1 => GradientFormat::TopK { keep, values: dtype },
            _ => return None,
        };
        let mut superblock = Self {
            run,
            drive,
            drives,
            optimizer,
            master,
            moments: DType::Fp32,
            ahead: false,
            gradients,
            residual: take.u8()? != 0,
            elements: take.u64()?,
            align_elements: take.u64()?,
            alignment: take.u64()?,
            capacity: take.u64()?,
            slots: take.u32()?,
            parts: take.u32()?,
            layout_digest: take.bytes(32)?.try_into().ok()?,
        };
        if !take.0.is_empty() {
            superblock.moments = dtype_from(take.u8()?)?;
            superblock.ahead = take.u8()? != 0;
        }
        take.end()?;
        Some(superblock)
    }

    /// Reads a superblock; `place` is the drive's place on the command line, for messages.
    pub(crate) fn decode(path: &Path, place: u32, bytes: &[u8]) -> Result<Self> {
        let foreign = |what: &str| Error::Format {
            path: path.to_path_buf(),
            what: what.to_string(),
            remedy: "give --drive the directory of a Nearfield run, or an empty one to start anew"
                .into(),
        };
        if bytes.len() < BLOCK_BYTES {
            return Err(Error::Truncated {
                path: path.to_path_buf(),
                expected: BLOCK_BYTES as u64,
                actual: bytes.len() as u64,
            });
        }
        let decoded = block::decode(&SUPERBLOCK_MAGIC, bytes);
        if let Block::Valid { body, .. } = &decoded {
            return Self::from_body(body)
                .ok_or_else(|| foreign("the superblock has fields that this build does not know"));
        }
        if bytes[..8] != SUPERBLOCK_MAGIC {
            return Err(foreign(
                "this is not a superblock of Nearfield (its first bytes are others, or were damaged)",
            ));
        }
        // Only a block that is whole in itself may claim another version; else its version is just damaged.
        let version = block::version(bytes);
        if version != block::FORMAT_VERSION && block::whole(bytes) {
            return Err(Error::Format {
                path: path.to_path_buf(),
                what: format!(
                    "the state has format version {version}, this build reads version {}",
                    block::FORMAT_VERSION
                ),
                remedy: "use the release of Nearfield that wrote it".into(),
            });
        }
        let (expected, found) = match decoded {
            Block::Damaged { expected, found } => (expected, found),
            _ => (block::sum(&[]), block::sum(&[bytes])),
        };
        Err(Error::Damaged {
            drive: place,
            path: path.to_path_buf(),
            what: "the superblock".into(),
            expected,
            found,
        })
    }
}

/// `layout.nf`: the parts of **all** drives, so that any one drive can say what the others must hold.
///
/// A sealed block (body: run id 16, elements u64, align_elements u64, drives u32, parts u32), then 24 bytes
/// a part in flat order (drive u32, subgroup u32, start u64, elements u64), zero-padded to 4096 bytes. The
/// superblock holds BLAKE3 of the whole file, which protects it; it is written before the superblock.
pub(crate) fn encode_layout(run: RunId, layout: &Layout) -> Vec<u8> {
    let mut body = Fields::default();
    body.bytes(&run.0).u64(layout.elements).u64(layout.align_elements);
    body.u32(layout.drives).u32(layout.parts.len() as u32);
    let parts_bytes =
        align_up((layout.parts.len() * PART_BYTES) as u64, BLOCK_BYTES as u64) as usize;
    let mut out = vec![0; BLOCK_BYTES];
    block::encode(&LAYOUT_MAGIC, 0, &body.0, &mut out);
    let mut parts = Fields(out);
    for part in &layout.parts {
        parts.u32(part.drive).u32(part.subgroup).u64(part.start).u64(part.elements);
    }
    parts.0.resize(BLOCK_BYTES + parts_bytes, 0);
    parts.0
}

/// Reads `layout.nf` and checks it against the superblock.
pub(crate) fn decode_layout(path: &Path, superblock: &Superblock, bytes: &[u8]) -> Result<Layout> {
    let expected = BLOCK_BYTES as u64
        + align_up(u64::from(superblock.parts) * PART_BYTES as u64, BLOCK_BYTES as u64);
    if (bytes.len() as u64) < expected {
        return Err(Error::Truncated {
            path: path.to_path_buf(),
            expected,
            actual: bytes.len() as u64,
        });
    }
    let digest = *blake3::hash(bytes).as_bytes();
    let damaged = || Error::Damaged {
        drive: superblock.drive,
        path: path.to_path_buf(),
        what: "the layout".into(),
        expected: first_word(&superblock.layout_digest),
        found: first_word(&digest),
    };
    if digest != superblock.layout_digest {
        return Err(damaged());
    }
    let Block::Valid { body, .. } = block::decode(&LAYOUT_MAGIC, bytes) else {
        return Err(damaged());
    };
    let layout = layout_from(&body, &bytes[BLOCK_BYTES..]).ok_or_else(damaged)?;
    let same = layout.elements == superblock.elements
        && layout.align_elements == superblock.align_elements
        && layout.drives == superblock.drives
        && layout.parts.len() == superblock.parts as usize;
    if same { Ok(layout) } else { Err(damaged()) }
}

fn layout_from(body: &[u8], parts: &[u8]) -> Option<Layout> {
    let mut take = Take(body);
    take.id()?;
    let (elements, align_elements, drives, count) =
        (take.u64()?, take.u64()?, take.u32()?, take.u32()?);
    let mut take = Take(parts);
    let parts = (0..count)
        .map(|_| {
            Some(Part {
                drive: take.u32()?,
                subgroup: take.u32()?,
                start: take.u64()?,
                elements: take.u64()?,
            })
        })
        .collect::<Option<Vec<_>>>()?;
    Layout::new(elements, align_elements, drives, parts).ok()
}

fn first_word(digest: &[u8; 32]) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&digest[..8]);
    u64::from_le_bytes(word)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout() -> Layout {
        let part = |drive, start, elements| Part { drive, subgroup: drive, start, elements };
        Layout::new(10, 4, 2, vec![part(0, 0, 6), part(1, 6, 4)]).unwrap()
    }

    fn superblock(gradients: GradientFormat) -> Superblock {
        let file = encode_layout(RunId([3; 16]), &layout());
        Superblock {
            run: RunId([3; 16]),
            drive: 1,
            drives: 2,
            optimizer: Optimizer::SgdMomentum,
            master: DType::Fp32,
            moments: DType::Bf16,
            ahead: true,
            gradients,
            residual: true,
            elements: 10,
            align_elements: 4,
            alignment: 4096,
            capacity: 4,
            slots: 2,
            parts: 2,
            layout_digest: *blake3::hash(&file).as_bytes(),
        }
    }

    #[test]
    fn superblock_and_layout_come_back_as_written() {
        for gradients in [
            GradientFormat::Dense { dtype: DType::Bf16 },
            GradientFormat::TopK { keep: 0.01, values: DType::Fp16 },
        ] {
            let written = superblock(gradients);
            let read = Superblock::decode(Path::new("s"), 0, &written.encode()).unwrap();
            assert_eq!(read, written);
        }
        let written = superblock(GradientFormat::Dense { dtype: DType::Fp32 });
        let file = encode_layout(written.run, &layout());
        assert_eq!(decode_layout(Path::new("l"), &written, &file).unwrap(), layout());
    }

    #[test]
    fn moments_and_slots_to_spare_are_left_out_where_they_are_as_usual() {
        let body = |superblock: &Superblock| {
            let Block::Valid { body, .. } = block::decode(&SUPERBLOCK_MAGIC, &superblock.encode())
            else {
                panic!("the block was just encoded")
            };
            body
        };
        let special = superblock(GradientFormat::Dense { dtype: DType::Fp32 });
        let usual = Superblock { moments: DType::Fp32, ahead: false, ..special.clone() };
        assert_eq!(Superblock::from_body(&body(&usual)), Some(usual.clone()));
        let (usual, special) = (body(&usual), body(&special));
        assert_eq!(special.len(), usual.len() + 2);
        assert_eq!(Superblock::from_body(&special[..usual.len() + 1]), None);
        assert_eq!(Superblock::from_body(&usual[..usual.len() - 1]), None);
    }

    #[test]
    fn every_flipped_bit_of_superblock_and_layout_is_refused() {
        let superblock = superblock(GradientFormat::Dense { dtype: DType::Fp32 });
        let block = superblock.encode();
        for bit in 0..block.len() * 8 {
            let mut flipped = block.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            let error = Superblock::decode(Path::new("s"), 0, &flipped).unwrap_err();
            let named = match error {
                Error::Damaged { what, .. } => what == "the superblock",
                // A flip in the magic cannot be told from a file of another program.
                Error::Format { .. } => bit < 64,
                _ => false,
            };
            assert!(named, "bit {bit}");
        }
        let file = encode_layout(superblock.run, &layout());
        for bit in 0..file.len() * 8 {
            let mut flipped = file.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            let error = decode_layout(Path::new("l"), &superblock, &flipped).unwrap_err();
            assert!(matches!(error, Error::Damaged { .. }), "bit {bit}: {error}");
        }
    }

    #[test]
    fn foreign_short_and_newer_files_are_named() {
        let whole = superblock(GradientFormat::Dense { dtype: DType::Fp32 }).encode();
        let foreign = Superblock::decode(Path::new("s"), 0, &[b'x'; BLOCK_BYTES]).unwrap_err();
        assert!(matches!(foreign, Error::Format { .. }), "{foreign}");
        let short = Superblock::decode(Path::new("s"), 0, &whole[..100]).unwrap_err();
        assert!(matches!(short, Error::Truncated { actual: 100, .. }), "{short}");
        let newer =
            Superblock::decode(Path::new("s"), 0, &block::with_version(&whole, 2)).unwrap_err();
        assert!(newer.to_string().contains("format version 2"), "{newer}");
    }

    #[test]
    fn codes_cover_every_value() {
        for optimizer in OPTIMIZERS {
            assert_eq!(OPTIMIZERS[code(&OPTIMIZERS, optimizer) as usize], optimizer);
        }
        for dtype in [DType::Fp32, DType::Fp16, DType::Bf16] {
            assert_eq!(dtype_from(dtype_code(dtype)), Some(dtype));
        }
        assert_eq!(dtype_from(3), None);
    }
}
