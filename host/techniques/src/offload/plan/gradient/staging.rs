//! Buffers in host memory for gradients on their way to the drives.

use std::collections::HashMap;

use nearfield_runtime::layout::Layout;

use super::UnitShape;
use crate::offload::options::{OffloadOptions, System};

/// How much the staging of gradients in host memory holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Staging {
    /// Buffers.
    pub buffers: u32,
    /// Elements of each.
    pub elements: u64,
    /// Parts that are incomplete at a time.
    pub open: u32,
}

/// Staging buffers that the order of gradients needs: one for each part that is incomplete at a time, and one for each
/// drive, so that all drives write while others fill.
pub(super) fn staging(layout: &Layout, options: &OffloadOptions, units: &[UnitShape]) -> Staging {
    let elements = layout.longest(None);
    if options.system == System::Memory {
        return Staging { buffers: 0, elements, open: 0 };
    }
    let mut missing: HashMap<usize, u64> = HashMap::new();
    let mut open = 0_u32;
    let mut most = 0;
    for (_, part, overlap) in arrivals(layout, units) {
        let left = missing.entry(part).or_insert_with(|| {
            open += 1;
            layout.parts[part].elements
        });
        most = most.max(open);
        *left -= overlap;
        if *left == 0 {
            open -= 1;
        }
    }
    let writing = layout.drives.min(layout.parts.len() as u32).max(1);
    Staging { buffers: most + writing, elements, open: most }
}

/// `(unit, part, elements)` in the order in which gradients leave the compute device: units backward,
/// and within a unit the later parts first, as they are the ones that are complete first.
pub(super) fn arrivals(layout: &Layout, units: &[UnitShape]) -> Vec<(usize, usize, u64)> {
    let mut arrivals = Vec::new();
    for (unit, shape) in units.iter().enumerate().rev() {
        let mut of_unit: Vec<(usize, u64)> = Vec::new();
        for &(start, elements) in &shape.gradients {
            for part in layout.overlapping(start, elements) {
                let run = &layout.parts[part];
                let overlap = (start + elements).min(run.end()) - start.max(run.start);
                match of_unit.iter_mut().find(|(other, _)| *other == part) {
                    Some((_, total)) => *total += overlap,
                    None => of_unit.push((part, overlap)),
                }
            }
        }
        of_unit.sort_unstable_by_key(|&(part, _)| std::cmp::Reverse(part));
        arrivals.extend(of_unit.into_iter().map(|(part, overlap)| (unit, part, overlap)));
    }
    arrivals
}
