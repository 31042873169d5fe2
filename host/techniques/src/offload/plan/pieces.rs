//! How a tasklet's buffers are cut.

use nearfield_runtime::layout::{Layout, align_up};

use super::PieceRange;
use crate::offload::options::OffloadOptions;

/// Cutting a part below this many elements costs more in requests than the overlap gains.
const SMALLEST_PIECE_ELEMENTS: u64 = 65_536;

/// The cut of the buffers of one drive: all pieces of one length, the last one shorter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pieces {
    longest: u64,
    piece_elements: u64,
}

impl Pieces {
    /// The cut for the parts of `drive`.
    pub fn new(layout: &Layout, options: &OffloadOptions, drive: u32) -> Self {
        let longest = layout.longest(Some(drive));
        let pieces = u64::from(options.effective_pieces());
        let piece_elements = align_up(longest.div_ceil(pieces), layout.align_elements)
            .max(SMALLEST_PIECE_ELEMENTS)
            .min(longest.max(layout.align_elements));
        Self { longest, piece_elements }
    }

    /// Elements that each buffer piece must hold, in order; together the longest part.
    pub fn capacities(&self) -> Vec<u64> {
        cut(self.longest, self.piece_elements).map(|(_, elements)| elements).collect()
    }

    /// The ranges of `part`.
    pub fn ranges(&self, layout: &Layout, part: usize) -> Vec<PieceRange> {
        cut(layout.padded(part), self.piece_elements)
            .enumerate()
            .map(|(piece, (offset, elements))| PieceRange {
                part,
                piece: piece as u32,
                offset,
                elements,
            })
            .collect()
    }
}

fn cut(total: u64, length: u64) -> impl Iterator<Item = (u64, u64)> {
    (0..total.div_ceil(length.max(1)))
        .map(move |index| (index * length, length.min(total - index * length)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::offload::{FlatModel, System, placement::layout};

    #[test]
    fn pieces_cover_a_part_and_fit_their_buffers() {
        for (elements, pieces) in [(1_000_000, 4), (300_000, 3), (1000, 4), (65_537, 2)] {
            let options = OffloadOptions { pieces, system: System::SuO, ..Default::default() };
            let layout = layout(&FlatModel::single(elements).unwrap(), &options, 1).unwrap();
            let cut = Pieces::new(&layout, &options, 0);
            let capacities = cut.capacities();
            let ranges = cut.ranges(&layout, 0);
            assert!(capacities.len() <= pieces as usize);
            assert_eq!(capacities.iter().sum::<u64>(), layout.longest(None));
            assert_eq!(ranges.iter().map(|range| range.elements).sum::<u64>(), layout.padded(0));
            for range in ranges {
                assert!(range.elements <= capacities[range.piece as usize]);
                assert_eq!(range.offset % layout.align_elements, 0);
            }
        }
    }
}
