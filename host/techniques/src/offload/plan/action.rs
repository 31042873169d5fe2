//! What a task of the technique does, in the technique's own words.

use nearfield_runtime::types::Variable;

/// A run of one part's padded elements: what one buffer piece holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PieceRange {
    /// Part, by its index in the layout.
    pub part: usize,
    /// Piece of the buffer set.
    pub piece: u32,
    /// First element, from the start of the part.
    pub offset: u64,
    /// Padded elements.
    pub elements: u64,
}

/// The meaning of one task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Orders others and does nothing itself.
    Mark,
    /// Makes the gradients and the intent record of this step durable on a drive.
    Intent {
        /// Which drive.
        drive: u32,
    },
    /// Makes the last headers of this step durable on a drive.
    Finish {
        /// Which drive.
        drive: u32,
    },
    /// Makes the slots that were written ahead the state of a drive's parts.
    Adopt {
        /// Which drive.
        drive: u32,
    },
    /// Writes the commit record of this step to a drive.
    Commit {
        /// Which drive.
        drive: u32,
    },
    /// Allocates a tasklet's device buffers (naive handler only).
    Allocate {
        /// The tasklet's part.
        part: usize,
    },
    /// Frees them.
    Release {
        /// The tasklet's part.
        part: usize,
    },
    /// Reads a variable's piece from the drive into buffer set `set`.
    Load {
        /// Which elements.
        range: PieceRange,
        /// Which variable.
        variable: Variable,
        /// Buffer set.
        set: u32,
    },
    /// Reads the kept pairs of a compressed gradient.
    LoadPairs {
        /// Which part.
        part: usize,
    },
    /// Checks the kept pairs before they are used.
    CheckPairs {
        /// Which part.
        part: usize,
    },
    /// Expands the kept pairs that fall into a piece.
    Decompress {
        /// Which elements.
        range: PieceRange,
    },
    /// Runs the update kernel on a piece.
    Update {
        /// Which elements.
        range: PieceRange,
        /// Buffer set.
        set: u32,
    },
    /// Makes the output of an update in host memory the working weights (baselines).
    Publish {
        /// Which elements.
        range: PieceRange,
        /// Buffer set.
        set: u32,
    },
    /// Writes a variable's piece from buffer set `set` to the part's new slot.
    Store {
        /// Which elements.
        range: PieceRange,
        /// Which variable.
        variable: Variable,
        /// Buffer set.
        set: u32,
    },
    /// Makes a part's new slot valid.
    SealPart {
        /// Which part.
        part: usize,
    },
    /// Copies updated weights from the device's local memory to the host.
    FetchWeights {
        /// Which elements.
        range: PieceRange,
    },
    /// Reads updated master weights from the drive to a host buffer.
    ReadWeights {
        /// Which elements.
        range: PieceRange,
        /// Which of the drive's host buffers.
        buffer: u32,
    },
    /// Rounds them to the working weights.
    CastWeights {
        /// Which elements.
        range: PieceRange,
        /// Which of the drive's host buffers.
        buffer: u32,
    },
    /// Reads what one drive has of a unit's master weights to a host buffer.
    ReadUnit {
        /// Which unit.
        unit: usize,
        /// Which drive.
        drive: u32,
        /// Host buffer.
        buffer: u32,
    },
    /// Copies a unit's weights to the compute device.
    LoadUnit {
        /// Which unit.
        unit: usize,
        /// Whether for the backward pass.
        backward: bool,
        /// Host buffer with its master weights; without one they come from the working weights.
        buffer: Option<u32>,
    },
    /// Runs a unit forward.
    Forward {
        /// Which unit.
        unit: usize,
    },
    /// Copies a unit's output, the next one's checkpoint, to the host.
    SaveActivation {
        /// Which unit.
        unit: usize,
        /// Host buffer; without one the model keeps it.
        buffer: Option<u32>,
    },
    /// Writes a unit's output from a host buffer to its drive.
    WriteActivation {
        /// Which unit.
        unit: usize,
        /// Host buffer.
        buffer: u32,
    },
    /// Reads it back.
    ReadActivation {
        /// Which unit.
        unit: usize,
        /// Host buffer.
        buffer: u32,
    },
    /// Copies a unit's output back to the compute device, for the next one's backward pass.
    LoadActivation {
        /// Which unit.
        unit: usize,
        /// Host buffer; without one the model has it.
        buffer: Option<u32>,
    },
    /// Recomputes a unit and runs it backward.
    Backward {
        /// Which unit.
        unit: usize,
    },
    /// Adds a unit's gradients to the accumulators in host memory.
    Accumulate {
        /// Which unit.
        unit: usize,
    },
    /// Copies the overlap of a unit's gradients with a part into the part's staging buffer.
    Offload {
        /// Which unit.
        unit: usize,
        /// Which part.
        part: usize,
        /// Staging buffer.
        staging: u32,
    },
    /// Copies a part's kept pairs to its staging buffer, where the compute device has selected them.
    FetchPairs {
        /// Which part.
        part: usize,
        /// Staging buffer.
        staging: u32,
    },
    /// Compresses a part's complete gradient.
    Encode {
        /// Which part.
        part: usize,
        /// Staging buffer.
        staging: u32,
    },
    /// Writes a part's complete gradient to its drive.
    WriteGradient {
        /// Which part.
        part: usize,
        /// Staging buffer.
        staging: u32,
    },
    /// Writes what compression left out to the part's drive.
    WriteResidual {
        /// Which part.
        part: usize,
        /// Staging buffer.
        staging: u32,
    },
}

impl Action {
    /// Whether it is a step of an update, and not of the way of gradients.
    pub const fn is_of_update(self) -> bool {
        matches!(
            self,
            Self::Intent { .. }
                | Self::Finish { .. }
                | Self::Adopt { .. }
                | Self::Commit { .. }
                | Self::Allocate { .. }
                | Self::Release { .. }
                | Self::Load { .. }
                | Self::LoadPairs { .. }
                | Self::CheckPairs { .. }
                | Self::Decompress { .. }
                | Self::Update { .. }
                | Self::Publish { .. }
                | Self::Store { .. }
                | Self::SealPart { .. }
                | Self::FetchWeights { .. }
                | Self::ReadWeights { .. }
                | Self::CastWeights { .. }
        )
    }

    /// Whether it changes working weights in host memory.
    pub const fn publishes(self) -> bool {
        matches!(self, Self::Publish { .. } | Self::FetchWeights { .. } | Self::CastWeights { .. })
    }
}
