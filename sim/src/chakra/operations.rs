//! Operations as nodes, and back.

use std::collections::{BTreeMap, BTreeSet};

use nearfield_runtime::graph::{Direction, Graph, Op, Place, Task};
use nearfield_runtime::{Error, Result};

use super::attributes::{Attributes, attribute};
use super::communicators::Communicators;
use super::proto::{AttributeProto, Node, NodeType, Value};
use super::{names, values};

/// What the nodes of a graph's operations need to know of the whole graph.
pub(super) struct Context<'a> {
    graph: &'a Graph,
    communicators: Communicators,
    /// Chakra's tag of each message. A tag of a graph has 64 bits, one of Chakra 31: tags stay as they are where all
    /// fit, and are numbered otherwise.
    tags: BTreeMap<u64, u64>,
}

impl<'a> Context<'a> {
    pub fn new(graph: &'a Graph) -> Self {
        let tag = |task: &Task| match task.op {
            Op::Send { tag, .. } | Op::Receive { tag, .. } => Some(tag),
            _ => None,
        };
        let tags: BTreeSet<u64> = graph.tasks().iter().filter_map(tag).collect();
        let fit = tags.last().is_none_or(|&most| most <= i32::MAX as u64);
        let tags = (0..).zip(tags).map(|(index, tag)| (tag, if fit { tag } else { index }));
        Self { graph, communicators: Communicators::new(graph), tags: tags.collect() }
    }
}

/// The kind of node for an operation.
pub(super) fn kind(op: &Op) -> NodeType {
    match *op {
        // A metadata node would fit a mark as well. But older versions of ASTRA-sim stop at one, and newer ones start
        // what waits for it only when something else ends. A computation of nothing takes a nanosecond at most there,
        // and with a timeline a seal takes its time.
        Op::Compute { .. } | Op::Kernel { .. } | Op::Seal { .. } | Op::Mark => NodeType::Comp,
        // Chakra knows one memory beside the device that computes. A copy towards that device loads, any other stores;
        // this fits storage, too.
        Op::Transfer { from, to, .. } if values::distance(from) < values::distance(to) => {
            NodeType::MemStore
        }
        Op::Transfer { .. } => NodeType::MemLoad,
        Op::Storage { direction: Direction::Read, .. } => NodeType::MemLoad,
        Op::Storage { direction: Direction::Write, .. } => NodeType::MemStore,
        Op::Collective { .. } => NodeType::CommColl,
        Op::Send { .. } => NodeType::CommSend,
        Op::Receive { .. } => NodeType::CommRecv,
    }
}

/// The attributes of a task's operation.
///
/// # Errors
/// [`Error::Graph`] that names the task, for a number that Chakra's field cannot hold.
pub(super) fn attributes(task: &Task, context: &Context) -> Result<Vec<AttributeProto>> {
    let place = context.graph.resources()[task.resource.0 as usize].place;
    let mut list = List { task, attributes: Vec::new() };
    let op = match task.op {
        Op::Compute { flops, bytes } => {
            list.computation(place, flops, bytes)?;
            "compute"
        }
        Op::Kernel { name, elements, bytes } => {
            list.computation(place, elements, bytes)?;
            list.add(names::KERNEL, Value::String(name.into()));
            "kernel"
        }
        Op::Seal { drive, metadata_bytes } => {
            list.computation(Place::HOST, 0, metadata_bytes)?;
            list.add(names::DRIVE, Value::Uint32(drive));
            "seal"
        }
        Op::Mark => {
            list.computation(Place::HOST, 0, 0)?;
            "mark"
        }
        Op::Transfer { from, to, bytes } => {
            list.memory(bytes);
            list.add(names::FROM, Value::String(from.to_string()));
            list.add(names::TO, Value::String(to.to_string()));
            "transfer"
        }
        Op::Storage { drive, other, bytes, .. } => {
            list.memory(bytes);
            list.add(names::DRIVE, Value::Uint32(drive));
            list.add(names::OTHER, Value::String(other.to_string()));
            "storage"
        }
        Op::Collective { kind, group, bytes } => {
            list.communication(bytes)?;
            list.add(names::COMM_TYPE, Value::Int64(values::comm_type(kind) as i64));
            let communicator = context.communicators.number(group);
            if communicator > 0 {
                list.add(names::PG_NAME, Value::String(communicator.to_string()));
            }
            list.add(names::GROUP, Value::Uint32(group));
            "collective"
        }
        Op::Send { to_rank, tag, bytes } => {
            list.communication(bytes)?;
            list.message(task.rank, to_rank, tag, context)?;
            "send"
        }
        Op::Receive { from_rank, tag, bytes } => {
            list.communication(bytes)?;
            list.message(from_rank, task.rank, tag, context)?;
            "receive"
        }
    };
    list.add(names::OP, Value::String(op.into()));
    Ok(list.attributes)
}

/// Attributes in the types that Chakra's own tools give them: its first reader takes no other.
struct List<'a> {
    task: &'a Task,
    attributes: Vec<AttributeProto>,
}

impl List<'_> {
    fn add(&mut self, name: &str, value: Value) {
        self.attributes.push(attribute(name, value));
    }

    fn narrow<T: TryFrom<u64>>(&self, name: &str, value: u64) -> Result<T> {
        T::try_from(value).map_err(|_| {
            Error::Graph(format!(
                "task {} ({}): {value} is more than {name} of a Chakra trace can hold",
                self.task.id.0, self.task.label
            ))
        })
    }

    fn int64(&mut self, name: &str, value: u64) -> Result<()> {
        let value = self.narrow(name, value)?;
        self.add(name, Value::Int64(value));
        Ok(())
    }

    fn int32(&mut self, name: &str, value: u64) -> Result<()> {
        let value = self.narrow(name, value)?;
        self.add(name, Value::Int32(value));
        Ok(())
    }

    /// What is not on a GPU is the processor's: ASTRA-sim repeats its measured time, as its roofline is the GPU's.
    fn computation(&mut self, place: Place, operations: u64, bytes: u64) -> Result<()> {
        self.add(names::IS_CPU_OP, Value::Bool(!matches!(place, Place::Gpu(_))));
        self.int64(names::NUM_OPS, operations)?;
        self.add(names::TENSOR_SIZE, Value::Uint64(bytes));
        Ok(())
    }

    fn memory(&mut self, bytes: u64) {
        self.add(names::IS_CPU_OP, Value::Bool(false));
        self.add(names::TENSOR_SIZE, Value::Uint64(bytes));
    }

    fn communication(&mut self, bytes: u64) -> Result<()> {
        // ASTRA-sim refuses communication of the processor.
        self.add(names::IS_CPU_OP, Value::Bool(false));
        self.int64(names::COMM_SIZE, bytes)
    }

    fn message(&mut self, from: u32, to: u32, tag: u64, context: &Context) -> Result<()> {
        self.int32(names::COMM_SRC, from.into())?;
        self.int32(names::COMM_DST, to.into())?;
        self.int32(names::COMM_TAG, context.tags.get(&tag).copied().unwrap_or(tag))?;
        self.add(names::TAG, Value::Uint64(tag));
        Ok(())
    }
}

/// The operation of a node that Nearfield has written.
///
/// # Errors
/// [`Error::Format`] that names file, node and attribute.
pub(super) fn operation(node: &Node, of: &Attributes, rank: u32) -> Result<Op> {
    let op = match of.text(names::OP)? {
        "compute" => {
            Op::Compute { flops: of.number(names::NUM_OPS)?, bytes: of.number(names::TENSOR_SIZE)? }
        }
        "kernel" => {
            let name = of.text(names::KERNEL)?;
            let known = values::kernel(name).ok_or_else(|| {
                let known = values::KERNELS.join(", ");
                let what = format!("runs the kernel {name}, which is not among {known}");
                of.error(what, "read it with the version of Nearfield that wrote it")
            })?;
            let elements = of.number(names::NUM_OPS)?;
            Op::Kernel { name: known, elements, bytes: of.number(names::TENSOR_SIZE)? }
        }
        "seal" => Op::Seal {
            drive: of.number32(names::DRIVE)?,
            metadata_bytes: of.number(names::TENSOR_SIZE)?,
        },
        "mark" => Op::Mark,
        "transfer" => Op::Transfer {
            from: of.place(names::FROM)?,
            to: of.place(names::TO)?,
            bytes: of.payload(names::TENSOR_SIZE)?,
        },
        "storage" => Op::Storage {
            direction: match node.r#type() {
                NodeType::MemStore => Direction::Write,
                _ => Direction::Read,
            },
            drive: of.number32(names::DRIVE)?,
            other: of.place(names::OTHER)?,
            bytes: of.payload(names::TENSOR_SIZE)?,
        },
        "collective" => collective(of, of.number32(names::GROUP)?)?,
        "send" => send(of, rank, of.number(names::TAG)?)?,
        "receive" => receive(of, rank, of.number(names::TAG)?)?,
        other => {
            let what = format!("has the operation {other}, which graphs do not have");
            return Err(of.error(what, "read it with the version of Nearfield that wrote it"));
        }
    };
    let expected = kind(&op);
    if node.r#type != expected as i32 {
        let what = format!(
            "is of kind {}, but its operation makes it {} ({})",
            node.r#type,
            expected as i32,
            expected.name()
        );
        return Err(of.error(what, "write the trace again"));
    }
    Ok(op)
}

/// A part in a collective operation.
pub(super) fn collective(of: &Attributes, group: u32) -> Result<Op> {
    let number = of.number(names::COMM_TYPE)?;
    let kind = values::collective(number).ok_or_else(|| {
        let what = format!("is a collective operation of kind {number}");
        of.error(what, "graphs have ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, BROADCAST and ALL_TO_ALL: use one of these")
    })?;
    Ok(Op::Collective { kind, group, bytes: of.payload(names::COMM_SIZE)? })
}

/// A message from `rank`.
pub(super) fn send(of: &Attributes, rank: u32, tag: u64) -> Result<Op> {
    own_end(of, names::COMM_SRC, rank)?;
    let to_rank = of.number32(names::COMM_DST)?;
    Ok(Op::Send { to_rank, tag, bytes: of.payload(names::COMM_SIZE)? })
}

/// A message to `rank`.
pub(super) fn receive(of: &Attributes, rank: u32, tag: u64) -> Result<Op> {
    own_end(of, names::COMM_DST, rank)?;
    let from_rank = of.number32(names::COMM_SRC)?;
    Ok(Op::Receive { from_rank, tag, bytes: of.payload(names::COMM_SIZE)? })
}

/// The end of a message that is at the node's own rank, where the node says it.
fn own_end(of: &Attributes, name: &str, rank: u32) -> Result<()> {
    let end = of.number_or(name, rank.into())?;
    if end != u64::from(rank) {
        let what = format!("is in the file of rank {rank}, but {name} is {end}");
        return Err(of.error(what, "name the file after the rank whose nodes it has"));
    }
    Ok(())
}
