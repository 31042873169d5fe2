//! Where everything lies in the files of one drive; pure arithmetic over layout and formats.

use super::block::BLOCK_BYTES;
use super::superblock::{GradientFormat, StateSpec};
use crate::codec;
use crate::error::{Error, Result};
use crate::layout::align_up;
use crate::types::{DType, Variable};

/// Name of the file of slots.
pub(crate) const SLOTS_FILE: &str = "slots.nf";
/// Name of the file of gradients.
pub(crate) const GRADIENTS_FILE: &str = "gradients.nf";
/// Name of the file of residuals.
pub(crate) const RESIDUAL_FILE: &str = "residual.nf";
/// Name of the journal.
pub(crate) const JOURNAL_FILE: &str = "journal.nf";

/// Slots that a drive has beyond its parts, where it has at least as many parts.
///
/// Three let the write-back of a part begin while the two before it are still being made durable.
const SPARE_SLOTS: u64 = 3;

/// Slots that a drive with `parts` parts has beyond the ones in use.
pub const fn spare_slots(parts: u64) -> u64 {
    if parts < SPARE_SLOTS { parts } else { SPARE_SLOTS }
}

/// The same where an update may be prepared before it is certain: every part has one to spare.
const fn spare_slots_of(parts: u64, ahead: bool) -> u64 {
    if ahead { parts } else { spare_slots(parts) }
}

/// Records in the journal's ring.
pub(crate) const JOURNAL_RECORDS: u64 = 64;

/// Variables that any optimizer stores at most.
pub(crate) const VARIABLES_MAX: usize = 3;

/// Place of one part's gradients in `gradients.nf`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct GradientPlace {
    /// Offset of the header, bytes.
    pub header: u64,
    /// Offset of the dense elements or the indices, bytes.
    pub first: u64,
    /// Offset of the values (top-k), bytes; equals `first` when dense.
    pub values: u64,
    /// Elements (dense) or pairs (top-k).
    pub count: u64,
}

/// Sizes and offsets in the files of one drive.
#[derive(Debug, Clone)]
pub(crate) struct Geometry {
    /// Indices in the layout of the parts on this drive, in flat order.
    pub parts: Vec<usize>,
    /// Padded elements of each of `parts`.
    pub padded: Vec<u64>,
    /// The stored variables.
    pub variables: &'static [Variable],
    /// Number format of each of them.
    formats: Vec<DType>,
    /// Gradient format.
    pub gradients: GradientFormat,
    /// Elements of one variable of a slot (`L_max`).
    pub capacity: u64,
    /// Number of slots.
    pub slots: u32,
    /// Unit of every offset and of every metadata write, bytes; a multiple of 4096.
    pub alignment: u64,
    /// Whether there is a residual file.
    pub residual: bool,
    gradient_places: Vec<GradientPlace>,
    gradient_bytes: u64,
    residual_offsets: Vec<u64>,
    residual_bytes: u64,
}

impl Geometry {
    /// Lays out the files of `drive`; `alignment_min` is what the drive needs for direct I/O, in bytes.
    pub fn new(spec: &StateSpec, drive: u32, alignment_min: u64) -> Result<Self> {
        let alignment = align_up(BLOCK_BYTES as u64, alignment_min.max(1));
        let parts = spec.layout.on_drive(drive);
        let padded: Vec<u64> = parts.iter().map(|&part| spec.layout.padded(part)).collect();
        let count = u32::try_from(parts.len()).map_err(|_| {
            Error::Invalid(format!(
                "drive {drive} has too many parts; use a larger --subgroup-size"
            ))
        })?;
        if padded.iter().map(|&elements| u128::from(elements)).sum::<u128>() > 1 << 52 {
            return Err(Error::Invalid(format!(
                "drive {drive} would hold more than 2^52 elements"
            )));
        }
        let unit = |bytes: u64| align_up(bytes, alignment);

        let mut next = 0;
        let gradient_places = padded
            .iter()
            .map(|&elements| {
                let (header, first) = (next, next + alignment);
                match spec.gradients {
                    GradientFormat::Dense { dtype } => {
                        next = first + unit(elements * dtype.bytes());
                        GradientPlace { header, first, values: first, count: elements }
                    }
                    GradientFormat::TopK { keep, values } => {
                        let count = codec::kept(keep, elements);
                        let at = first + unit(count * 4);
                        next = at + unit(count * values.bytes());
                        GradientPlace { header, first, values: at, count }
                    }
                }
            })
            .collect();
        let gradient_bytes = next;

        let mut next = 0;
        let residual_offsets = padded
            .iter()
            .map(|&elements| {
                let at = next;
                next += 2 * (alignment + unit(elements * 4));
                at
            })
            .collect();
        Ok(Self {
            capacity: spec.layout.longest(Some(drive)),
            slots: count + spare_slots_of(u64::from(count), spec.ahead) as u32,
            variables: spec.optimizer.variables(),
            formats: spec.optimizer.variables().iter().map(|&v| spec.dtype(v)).collect(),
            gradients: spec.gradients,
            residual: spec.residual,
            residual_bytes: if spec.residual { next } else { 0 },
            parts,
            padded,
            alignment,
            gradient_places,
            gradient_bytes,
            residual_offsets,
        })
    }

    /// Place of layout part `part` among the parts of this drive.
    pub fn place(&self, part: usize) -> Result<usize> {
        self.parts
            .binary_search(&part)
            .map_err(|_| Error::Invalid(format!("part {part} of the layout is not on this drive")))
    }

    /// Bytes that the first `count` variables take in a slot.
    fn variables_bytes(&self, count: usize) -> u64 {
        let bytes = |dtype: &DType| align_up(self.capacity * dtype.bytes(), self.alignment);
        self.formats[..count].iter().map(bytes).sum()
    }

    /// Bytes from one slot to the next.
    pub fn slot_bytes(&self) -> u64 {
        self.alignment + self.variables_bytes(self.formats.len())
    }

    /// Offset of the header of a slot.
    pub fn slot_header(&self, slot: u32) -> u64 {
        u64::from(slot) * self.slot_bytes()
    }

    /// Offset of a variable in a slot.
    pub fn slot_data(&self, slot: u32, variable: Variable) -> Result<u64> {
        let index = self.variables.iter().position(|&stored| stored == variable);
        match index {
            Some(index) if slot < self.slots => {
                Ok(self.slot_header(slot) + self.alignment + self.variables_bytes(index))
            }
            _ => Err(Error::Invalid(format!(
                "there is no {} in slot {slot} of {}",
                variable.name(),
                self.slots
            ))),
        }
    }

    /// Place of the gradients of the `place`-th part.
    pub fn gradient(&self, place: usize) -> GradientPlace {
        self.gradient_places[place]
    }

    /// Offset, bytes and number format of a gradient variable of the `place`-th part.
    pub fn gradient_data(
        &self,
        place: usize,
        variable: Variable,
    ) -> Result<(u64, u64, Option<DType>)> {
        let at = self.gradient(place);
        match (self.gradients, variable) {
            (GradientFormat::Dense { dtype }, Variable::Gradient) => {
                Ok((at.first, at.count * dtype.bytes(), Some(dtype)))
            }
            (GradientFormat::TopK { .. }, Variable::GradientIndex) => {
                Ok((at.first, at.count * 4, None))
            }
            (GradientFormat::TopK { values, .. }, Variable::GradientValue) => {
                Ok((at.values, at.count * values.bytes(), Some(values)))
            }
            _ => Err(Error::Invalid(format!("gradients of this run have no {}", variable.name()))),
        }
    }

    /// Offset of the header of residual region `region` (0 or 1) of the `place`-th part.
    pub fn residual_header(&self, place: usize, region: u32) -> u64 {
        let bytes = self.alignment + align_up(self.padded[place] * 4, self.alignment);
        self.residual_offsets[place] + u64::from(region) * bytes
    }

    /// Offset of the data of a residual region.
    pub fn residual_data(&self, place: usize, region: u32) -> u64 {
        self.residual_header(place, region) + self.alignment
    }

    /// Offset of the journal record of `sequence`.
    pub fn journal_record(&self, sequence: u64) -> u64 {
        sequence % JOURNAL_RECORDS * self.alignment
    }

    /// Name and bytes of every file that moves.
    pub fn files(&self) -> Vec<(&'static str, u64)> {
        let mut files = vec![
            (SLOTS_FILE, u64::from(self.slots) * self.slot_bytes()),
            (GRADIENTS_FILE, self.gradient_bytes),
            (JOURNAL_FILE, JOURNAL_RECORDS * self.alignment),
        ];
        if self.residual {
            files.push((RESIDUAL_FILE, self.residual_bytes));
        }
        files
    }
}

/// Bytes that a run takes on `drive` whose direct I/O needs `alignment` bytes; for plans and dry runs.
///
/// # Errors
/// [`Error::Invalid`] when the layout is too large for one drive.
pub fn bytes_on_drive(spec: &StateSpec, drive: u32, alignment: u64) -> Result<u64> {
    let geometry = Geometry::new(spec, drive, alignment)?;
    let layout = BLOCK_BYTES as u64
        * (2 + (spec.layout.parts.len() as u64 * 24).div_ceil(BLOCK_BYTES as u64));
    Ok(layout + geometry.files().iter().map(|(_, bytes)| bytes).sum::<u64>())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::{Layout, Part};
    use crate::types::Optimizer;
    use proptest::prelude::*;

    fn spec(
        lengths: &[u64],
        drives: u32,
        gradients: GradientFormat,
        optimizer: Optimizer,
    ) -> StateSpec {
        let mut start = 0;
        let parts = lengths.iter().enumerate().map(|(index, &elements)| {
            let part =
                Part { drive: index as u32 % drives, subgroup: index as u32, start, elements };
            start += elements;
            part
        });
        let parts: Vec<Part> = parts.collect();
        let layout = Layout::new(start, 1024, drives, parts).unwrap();
        let (moments, residual, ahead) = (DType::Fp32, true, false);
        StateSpec { optimizer, moments, gradients, residual, ahead, layout }
    }

    proptest! {
        #[test]
        fn extents_are_aligned_disjoint_and_inside_their_files(
            lengths in proptest::collection::vec(1_u64..20_000, 1..12),
            drives in 1_u32..4,
            keep in 0.001_f64..1.0,
            top_k: bool,
            alignment in proptest::sample::select(vec![512_u64, 4096, 16384]),
            optimizer in proptest::sample::select(vec![Optimizer::Adamw, Optimizer::SgdMomentum]),
            moments in proptest::sample::select(vec![DType::Fp32, DType::Bf16]),
            ahead: bool,
        ) {
            let gradients = if top_k {
                GradientFormat::TopK { keep, values: DType::Fp16 }
            } else {
                GradientFormat::Dense { dtype: DType::Fp32 }
            };
            let spec = StateSpec { moments, ahead, ..spec(&lengths, drives, gradients, optimizer) };
            for drive in 0..drives {
                let g = Geometry::new(&spec, drive, alignment).unwrap();
                let parts = g.parts.len() as u32;
                prop_assert_eq!(g.slots, if ahead { 2 * parts } else { parts + parts.min(3) });
                let mut slots = Vec::new();
                for slot in 0..g.slots {
                    slots.push((g.slot_header(slot), g.alignment));
                    for &variable in g.variables {
                        let width = spec.dtype(variable).bytes();
                        slots.push((g.slot_data(slot, variable).unwrap(), g.capacity * width));
                    }
                }
                let (mut gradients, mut residual) = (Vec::new(), Vec::new());
                for place in 0..g.parts.len() {
                    gradients.push((g.gradient(place).header, g.alignment));
                    for variable in [Variable::Gradient, Variable::GradientIndex, Variable::GradientValue] {
                        if let Ok((at, bytes, _)) = g.gradient_data(place, variable) {
                            gradients.push((at, bytes));
                        }
                    }
                    for region in 0..2 {
                        residual.push((g.residual_header(place, region), g.alignment));
                        residual.push((g.residual_data(place, region), g.padded[place] * 4));
                    }
                }
                let files = g.files();
                for (name, extents) in [(SLOTS_FILE, slots), (GRADIENTS_FILE, gradients), (RESIDUAL_FILE, residual)] {
                    let bytes = files.iter().find(|(file, _)| *file == name).unwrap().1;
                    let mut end = 0;
                    for (at, length) in extents {
                        prop_assert!(at >= end && at % g.alignment == 0, "{name}: {at} after {end}");
                        end = at + length;
                    }
                    prop_assert!(end <= bytes);
                }
            }
        }
    }

    #[test]
    fn a_drive_without_parts_holds_a_journal_only() {
        let spec = spec(&[100], 3, GradientFormat::Dense { dtype: DType::Fp32 }, Optimizer::Adam);
        let g = Geometry::new(&spec, 2, 4096).unwrap();
        assert_eq!((g.slots, g.capacity), (0, 0));
        assert_eq!(g.files()[..2].iter().map(|(_, bytes)| bytes).sum::<u64>(), 0);
        assert!(g.slot_data(0, Variable::Param).is_err());
    }

    #[test]
    fn kept_pairs_follow_the_rule() {
        assert_eq!(codec::kept(0.01, 4096), 1024);
        assert_eq!(codec::kept(0.01, 1 << 20), 10_485_u64.next_multiple_of(1024));
        assert_eq!(codec::kept(1.0, 3072), 3072);
        assert_eq!(codec::kept(0.01, 512), 512);
    }
}
