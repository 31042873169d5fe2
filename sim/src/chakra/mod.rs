//! Graphs as MLCommons Chakra execution traces: written so that other simulators can run them, and read back.
//!
//! [`write()`] makes one file a rank, `STEM.RANK.et`, as ASTRA-sim and Chakra's own tools look for them. Each begins
//! with a `GlobalMetadata`; then comes one `Node` a task, in graph order. Every message stands behind its length as a
//! varint.
//!
//! | operation | kind of node | attributes that simulators read |
//! |---|---|---|
//! | `Compute` | `COMP_NODE` | `num_ops` operations, `tensor_size` bytes |
//! | `Kernel` | `COMP_NODE` | `num_ops` elements, `tensor_size` bytes |
//! | `Storage` | `MEM_LOAD_NODE` for a read, `MEM_STORE_NODE` for a write | `tensor_size` |
//! | `Transfer` | `MEM_LOAD_NODE` towards the GPU, `MEM_STORE_NODE` away from it | `tensor_size` |
//! | `Seal`, `Mark` | `COMP_NODE` on the processor, without operations | |
//! | `Collective` | `COMM_COLL_NODE` | `comm_type`, `comm_size`; `pg_name` where not all ranks take part |
//! | `Send`, `Receive` | `COMM_SEND_NODE`, `COMM_RECV_NODE` | `comm_src`, `comm_dst`, `comm_tag`, `comm_size` |
//!
//! All have `is_cpu_op`: without it, one generation of readers takes a node for the processor's and the next one takes
//! it for the GPU's. What comes first is in `data_deps`: ASTRA-sim follows them in all versions, and `ctrl_deps` only
//! in newer ones. Times are whole microseconds. Without a timeline they are 0, and a simulator needs a model of its own
//! for computation, such as ASTRA-sim's roofline.
//!
//! What has no field in Chakra is in attributes whose names begin with `nearfield.`. With them, [`read()`] gives back
//! an equal graph. It also reads files of other programs:
//!
//! | node | operation | resource, each with one lane |
//! |---|---|---|
//! | `COMP_NODE` | `Compute` with `num_ops` and `tensor_size`, 0 where absent | `rankR.compute`; `rankR.cpu` where `is_cpu_op` |
//! | `MEM_LOAD_NODE`, `MEM_STORE_NODE` | `Storage` of `tensor_size` between drive R and host R | `rankR.memory` |
//! | `COMM_COLL_NODE` | `Collective` | `rankR.collective` |
//! | `COMM_SEND_NODE`, `COMM_RECV_NODE` | `Send`, `Receive` with `comm_tag`, 0 where absent | `rankR.send`, `rankR.receive` |
//! | `METADATA_NODE` | `Mark` | `rankR.cpu` |
//!
//! - The rank R is the number before `.et` in the file's name, or else the file's place in the list.
//! - Both `data_deps` and `ctrl_deps` become edges. Durations are left out: a graph has none.
//! - The n-th collective operation of each rank with the same `pg_name` belong together.
//! - Other kinds of nodes and of collective operations are errors.
//!
//! A file of Nearfield says how many nodes it has, so that one that was cut short is always noticed. A foreign file
//! that ends between two nodes cannot be told from a complete one, unless a node is missing that another one waits for.

mod attributes;
mod communicators;
mod foreign;
mod framing;
mod header;
mod names;
mod operations;
mod own;
mod proto;
mod read;
#[cfg(test)]
mod tests;
mod trace;
mod values;
mod write;

pub use communicators::comm_groups;
pub use read::read;
pub use write::write;
