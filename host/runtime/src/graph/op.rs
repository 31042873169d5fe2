//! What a task does, and where.

use serde::{Deserialize, Serialize};

/// A place that holds bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Place {
    /// Main memory of a server.
    Host(u32),
    /// Memory of a GPU.
    Gpu(u32),
    /// The storage medium of a drive.
    Drive(u32),
    /// Memory of the near-storage device beside a drive (FPGA DRAM of a SmartSSD).
    Local(u32),
}

impl Place {
    /// Main memory of the first server.
    pub const HOST: Self = Self::Host(0);
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Host(0) => write!(f, "host"),
            Self::Host(index) => write!(f, "host{index}"),
            Self::Gpu(index) => write!(f, "gpu{index}"),
            Self::Drive(index) => write!(f, "drive{index}"),
            Self::Local(index) => write!(f, "local{index}"),
        }
    }
}

/// Direction of a storage operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Direction {
    /// From the medium.
    Read,
    /// To the medium.
    Write,
}

/// Kind of a collective operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Collective {
    /// Every rank ends with the sum.
    AllReduce,
    /// Every rank ends with all parts.
    AllGather,
    /// Every rank ends with its part of the sum.
    ReduceScatter,
    /// One rank's data reaches all.
    Broadcast,
    /// Each rank sends a part to each other rank.
    AllToAll,
}

/// What a task does. Byte counts are payload of one task; a virtual executor derives time from them.
#[derive(Debug, Clone, PartialEq)]
pub enum Op {
    /// Tensor computation.
    Compute {
        /// Floating-point operations.
        flops: u64,
        /// Bytes of memory touched.
        bytes: u64,
    },
    /// A copy between memories.
    Transfer {
        /// Source.
        from: Place,
        /// Destination.
        to: Place,
        /// Payload, more than 0.
        bytes: u64,
    },
    /// A read from or a write to a drive.
    Storage {
        /// Which way.
        direction: Direction,
        /// Which drive.
        drive: u32,
        /// The memory at the other end: [`Place::Local`] stays beside the drive, [`Place::Host`]
        /// crosses the shared link.
        other: Place,
        /// Payload, more than 0.
        bytes: u64,
    },
    /// Makes what was written to a drive durable, then records that fact.
    Seal {
        /// Which drive.
        drive: u32,
        /// Bytes of headers or journal records written.
        metadata_bytes: u64,
    },
    /// A named kernel.
    Kernel {
        /// Name, as devices know it.
        name: &'static str,
        /// Elements processed.
        elements: u64,
        /// Bytes of memory touched.
        bytes: u64,
    },
    /// One rank's part in a collective operation. All parts of a `group` belong together.
    Collective {
        /// Which operation.
        kind: Collective,
        /// Which occurrence: unique in the graph, shared by the ranks that take part.
        group: u32,
        /// Payload of this rank, more than 0.
        bytes: u64,
    },
    /// Sends to another rank; matched by a [`Op::Receive`] with the same tag.
    Send {
        /// The receiving rank.
        to_rank: u32,
        /// Names the message.
        tag: u64,
        /// Payload, more than 0.
        bytes: u64,
    },
    /// Receives from another rank.
    Receive {
        /// The sending rank.
        from_rank: u32,
        /// Names the message.
        tag: u64,
        /// Payload, more than 0.
        bytes: u64,
    },
    /// Does nothing: a point that others wait for.
    Mark,
}

impl Op {
    /// Payload bytes, 0 where the operation moves none.
    pub const fn bytes(&self) -> u64 {
        match self {
            Self::Compute { bytes, .. }
            | Self::Transfer { bytes, .. }
            | Self::Storage { bytes, .. }
            | Self::Kernel { bytes, .. }
            | Self::Collective { bytes, .. }
            | Self::Send { bytes, .. }
            | Self::Receive { bytes, .. } => *bytes,
            Self::Seal { metadata_bytes, .. } => *metadata_bytes,
            Self::Mark => 0,
        }
    }
}
