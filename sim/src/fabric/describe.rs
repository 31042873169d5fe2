//! What a description says, part by part.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::numbers::{Positive, SharePoint, SizePoint, WorkPoint};

/// The server's memory and processor. In links it is the place `host`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Host {
    /// Its memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<Positive>,
    /// Bytes copied a second within its memory, all copies together.
    pub copy_bytes_per_second: Positive,
    /// Bytes a second at which one thread moves gradients that have come from a compute device to the buffers from which
    /// they are written; without it they arrive there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gather_bytes_per_second: Option<Positive>,
    /// Seconds from the end of a task to the start of one that waits for it; without it 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub task_seconds: Option<Positive>,
    /// Price of the server without compute devices and drives.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub price_usd: Option<Positive>,
    /// Rates of the kernels by name, counted in the bytes that a kernel touches; at least one point each.
    pub kernels: BTreeMap<String, Vec<SizePoint>>,
}

/// A compute device. In links it is the place `gpu`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Gpu {
    /// Most of them in the machine; without it any number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub count_max: Option<u32>,
    /// Its memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<Positive>,
    /// Whether it computes in the host's memory, as the processor itself does: then it needs no link.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub in_host_memory: bool,
    /// Price of one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub price_usd: Option<Positive>,
    /// Rates of forward passes over their operations.
    pub forward: Vec<WorkPoint>,
    /// Rates of backward passes, recomputation included.
    pub backward: Vec<WorkPoint>,
    /// Bytes of attention scores a second, where they are computed one by one; without it they cost nothing beyond their
    /// operations, as where attention is one kernel.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub score_bytes_per_second: Option<Positive>,
    /// Rates of kernels that it runs, such as `topk`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub kernels: BTreeMap<String, Vec<SizePoint>>,
}

/// One drive, and the device beside it. In links it is the place `drive`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Drive {
    /// Most drives that the machine takes; without it any number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub count_max: Option<u32>,
    /// Disks behind the drives, where drives are directories that share disks; without it each drive is a disk.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disks: Option<u32>,
    /// Capacity of one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub capacity_bytes: Option<Positive>,
    /// Price of one without the device beside it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub price_usd: Option<Positive>,
    /// Rates of reads over their size, with others in flight.
    pub read: Vec<SizePoint>,
    /// Rates of writes over their size, with others in flight.
    pub write: Vec<SizePoint>,
    /// Rates of reads with nothing else in flight; without them a lone read has no latency beyond `read`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub read_alone: Vec<SizePoint>,
    /// Rates of writes with nothing else in flight.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub write_alone: Vec<SizePoint>,
    /// Bytes that reads and writes of a size move in a second of the host's processor, all its cores together; without it
    /// they take none of its time.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub host_time: Vec<SizePoint>,
    /// What a disk does in a second of reading and writing together, in seconds of doing one of them: 1 when both
    /// share one back end, 2 when neither disturbs the other.
    pub mixed_seconds_per_second: Positive,
    /// Seconds until a header is durable, flush included, while other transfers are in flight; the disk is busy with it.
    pub seal_seconds: Positive,
    /// The device beside it; without one the host's processor and memory play it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub near: Option<Near>,
}

/// Memory and kernels beside a drive. In links it is the place `local`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Near {
    /// Its memory that buffers may use.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<Positive>,
    /// What a drive with the device costs more than one without.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub price_usd: Option<Positive>,
    /// Drive to its memory, where the path is slower than drive and links.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peer_read_bytes_per_second: Option<Positive>,
    /// Its memory to the drive.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peer_write_bytes_per_second: Option<Positive>,
    /// What that path does in a second of both directions together, in seconds of one of them, 1 to 2; without it the
    /// directions do not disturb each other (2).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peer_mixed_seconds_per_second: Option<Positive>,
    /// Seconds to allocate and map the buffers of a tasklet (0 without the key).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allocate_seconds: Option<Positive>,
    /// Seconds to launch a kernel (0 without the key).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub launch_seconds: Option<Positive>,
    /// Structure of the kernels, from which their time is counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pipeline: Option<Pipeline>,
    /// Measured rates of kernels by name; they go before `pipeline`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub kernels: BTreeMap<String, Vec<SizePoint>>,
}

/// Which kernels a card has.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum KernelDesign {
    /// Those of the paper (Smart-Infinity, section 6): reading, updating and writing take turns.
    Sequential,
    /// Those of Nearfield: all of it at once, each array over a port of its own.
    #[default]
    Dataflow,
}

/// Elements that the dataflow takes in one go.
const CHUNK_ELEMENTS: f64 = 65_536.0;
/// Cycles in which its pipeline fills each time: an assumption, until a synthesis says more.
const FILL_CYCLES: f64 = 120.0;

/// Kernels that move a word a cycle.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pipeline {
    /// Clock.
    pub clock_hertz: Positive,
    /// Bytes of a word on the update kernel's port.
    pub word_bytes: Positive,
    /// Rate of the memory behind it.
    pub memory_bytes_per_second: Positive,
}

impl Pipeline {
    /// Seconds of kernel `name` on `elements` elements, of which it touches `bytes` bytes; `None` for other kernels.
    pub fn seconds(
        &self,
        design: KernelDesign,
        name: &str,
        elements: u64,
        bytes: u64,
    ) -> Option<f64> {
        let (elements, bytes) = (elements as f64, bytes as f64);
        let lanes = self.word_bytes.get() / 4.0;
        let cycles = match (name, design) {
            ("update" | "update_topk", KernelDesign::Dataflow) => {
                let chunks = (elements / CHUNK_ELEMENTS).ceil();
                // A word of each array a cycle. Kept pairs are sorted into words of the gradient, a cycle for each word
                // of pairs and a cycle for each word of the gradient that has any: at worst twice as many.
                let turns = if name == "update_topk" { 2.0 } else { 1.0 };
                turns * elements / lanes + chunks * FILL_CYCLES
            }
            // A word of indices a cycle, of which `elements` are the pairs.
            ("check_pairs", _) => elements / lanes + FILL_CYCLES,
            // Reading, updating and writing take turns, a word a cycle each.
            ("update" | "update_topk", KernelDesign::Sequential) => bytes / self.word_bytes.get(),
            // The scatter's port is one element wide: a cycle for each zero, a cycle for each of the kept pairs.
            ("decompress", _) => elements + (bytes - 4.0 * elements).max(0.0) / 12.0,
            _ => return None,
        };
        Some((cycles / self.clock_hertz.get()).max(bytes / self.memory_bytes_per_second.get()))
    }
}

/// A place with nothing but links.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Switch {
    /// Whether each drive has one of its own.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub each_drive: bool,
}

/// A link between two places. Where one of them exists once a drive, or once a compute device, so does the link.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkDescription {
    /// `host`, `gpu`, `drive`, `local`, or a switch.
    #[serde(deserialize_with = "two")]
    pub between: [String; 2],
    /// From the first place to the second; without it the link itself is no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub forward_bytes_per_second: Option<Positive>,
    /// From the second place to the first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backward_bytes_per_second: Option<Positive>,
    /// Both directions together; without it they do not disturb each other (full duplex).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub joint_bytes_per_second: Option<Positive>,
    /// Seconds before the first byte arrives.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub latency_seconds: Option<Positive>,
    /// Share of the rates that transfers of a size reach; without it all do fully.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub efficiency: Vec<SharePoint>,
}

/// Two names; the type of a pair would let a third one pass.
fn two<'de, D: serde::Deserializer<'de>>(from: D) -> Result<[String; 2], D::Error> {
    let names = Vec::<String>::deserialize(from)?;
    let count = names.len();
    names.try_into().map_err(|_| serde::de::Error::invalid_length(count, &"two places"))
}

/// A way to put the machine together.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Topology {
    /// Links that it has.
    pub links: Vec<String>,
}
