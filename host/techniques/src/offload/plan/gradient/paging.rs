//! What lies on drives and comes to host memory only while it is needed: master weights by unit, and inputs of units.

use nearfield_runtime::graph::Traffic;
use nearfield_runtime::layout::{Layout, align_up};

use super::UnitShape;
use crate::offload::options::{ActivationPlace, OffloadOptions, WeightsPlace};

/// Direct I/O reads and writes whole pages of this many bytes.
const PAGE_BYTES: u64 = 4096;
/// fp32 elements of a page.
const PAGE_ELEMENTS: u64 = PAGE_BYTES / 4;
/// Host buffers for weights: one is read while the other is copied to the compute device.
pub(super) const UNIT_BUFFERS: u32 = 2;

/// A run of master weights that one unit reads from one part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    /// Part, by its index in the layout.
    pub part: usize,
    /// Its drive.
    pub drive: u32,
    /// First element from the start of the part, a whole page.
    pub offset: u64,
    /// Elements, whole pages.
    pub elements: u64,
    /// First byte in the drive's share of the host buffer.
    pub at: u64,
}

/// Sizes and places of what is paged.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Paging {
    /// What each unit reads, in flat order; empty where host memory has the working weights.
    pub segments: Vec<Vec<Segment>>,
    /// Bytes of each drive's share of a host buffer for weights.
    pub unit_bytes: Vec<u64>,
    /// Host buffers for weights.
    pub unit_buffers: u32,
    /// Bytes of each host buffer for outputs of units.
    pub activation_bytes: u64,
    /// Host buffers for outputs of units.
    pub activation_buffers: u32,
    /// Units whose outputs go to drives; the later ones stay in their buffers.
    pub written: usize,
}

impl Paging {
    /// What `options` put on drives.
    pub fn new(layout: &Layout, options: &OffloadOptions, units: &[UnitShape]) -> Self {
        let mut paging = Self::default();
        let drives = layout.drives.max(1);
        if options.weights == WeightsPlace::Drive {
            paging.segments = units.iter().map(|unit| segments(layout, unit)).collect();
            let share = |drive: u32, segments: &Vec<Segment>| -> u64 {
                of_drive(segments, drive).map(|segment| 4 * segment.elements).sum()
            };
            paging.unit_bytes = (0..drives)
                .map(|drive| {
                    let most = paging.segments.iter().map(|unit| share(drive, unit)).max();
                    most.unwrap_or(0).max(PAGE_BYTES)
                })
                .collect();
            paging.unit_buffers = UNIT_BUFFERS;
        }
        if options.activations == ActivationPlace::Drive {
            let outputs = units.iter().filter(|unit| unit.forward);
            let bytes = outputs.clone().map(|unit| unit.output_bytes).max().unwrap_or(0);
            // All drives write at a time, while one more buffer fills.
            let buffers = (drives as usize + 1).min(outputs.clone().count());
            paging.activation_bytes = align_up(bytes, PAGE_BYTES);
            paging.activation_buffers = buffers as u32;
            paging.written = outputs.count() - buffers;
        }
        paging
    }

    /// Bytes that one drive has of a unit's weights.
    pub fn unit_bytes_on(&self, unit: usize, drive: u32) -> u64 {
        let segments = self.segments.get(unit).map(Vec::as_slice).unwrap_or_default();
        of_drive(segments, drive).map(|segment| 4 * segment.elements).sum()
    }

    /// The drive of a unit's output, and its first byte in that drive's file.
    pub fn activation_place(&self, unit: usize, drives: u32) -> (u32, u64) {
        let drives = drives.max(1) as usize;
        ((unit % drives) as u32, (unit / drives) as u64 * self.activation_bytes)
    }

    /// Bytes of each drive's file for outputs.
    pub fn activation_file_bytes(&self, drives: u32) -> u64 {
        (self.written as u64).div_ceil(u64::from(drives.max(1))) * self.activation_bytes
    }

    /// Host memory for weights on their way.
    pub fn weights_bytes(&self) -> u64 {
        u64::from(self.unit_buffers) * self.unit_bytes.iter().sum::<u64>()
    }

    /// Host memory for outputs of units.
    pub fn outputs_bytes(&self) -> u64 {
        u64::from(self.activation_buffers) * self.activation_bytes
    }
}

fn of_drive(segments: &[Segment], drive: u32) -> impl Iterator<Item = &Segment> {
    segments.iter().filter(move |segment| segment.drive == drive)
}

/// What a unit reads, as whole pages of parts.
fn segments(layout: &Layout, unit: &UnitShape) -> Vec<Segment> {
    let mut at = vec![0; layout.drives as usize];
    let mut segments = Vec::new();
    for &(start, elements) in &unit.reads {
        for part in layout.overlapping(start, elements) {
            let run = &layout.parts[part];
            let first = start.max(run.start) - run.start;
            let last = (start + elements).min(run.end()) - run.start;
            let offset = first / PAGE_ELEMENTS * PAGE_ELEMENTS;
            // Parts are padded to whole pages.
            let elements = align_up(last, PAGE_ELEMENTS) - offset;
            let at = &mut at[run.drive as usize];
            segments.push(Segment { part, drive: run.drive, offset, elements, at: *at });
            *at += 4 * elements;
        }
    }
    segments
}

/// Data bytes that one micro-step moves between drives and host for weights and outputs of units.
pub fn paged_traffic(layout: &Layout, options: &OffloadOptions, units: &[UnitShape]) -> Traffic {
    let paging = Paging::new(layout, options, units);
    let mut traffic = Traffic::default();
    for (unit, shape) in units.iter().enumerate() {
        let passes = u64::from(shape.forward) + u64::from(shape.backward_weights);
        for drive in 0..layout.drives {
            traffic.media_read += passes * paging.unit_bytes_on(unit, drive);
        }
    }
    let outputs = paging.written as u64 * paging.activation_bytes;
    traffic.media_read += outputs;
    traffic.shared_up = traffic.media_read;
    traffic.media_write = outputs;
    traffic.shared_down = outputs;
    traffic
}
