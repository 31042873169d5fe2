//! Graphs from files of other programs, by the rules that the module's documentation states.

use std::collections::HashMap;
use std::path::Path;

use nearfield_runtime::Result;
use nearfield_runtime::graph::{Direction, Graph, GraphBuilder, Op, Place, ResourceId, TaskId};

use super::attributes::Attributes;
use super::proto::{Node, NodeType};
use super::trace::Trace;
use super::{names, operations, read};

/// What a rank's node occupies. Messages and collective operations have resources of their own, as a task that waits
/// for another rank must not hold up what that rank waits for.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Engine {
    Compute,
    Cpu,
    Memory,
    Collective,
    Send,
    Receive,
}

impl Engine {
    fn resource(self, builder: &mut GraphBuilder, rank: u32) -> ResourceId {
        let (name, place) = match self {
            Self::Compute => ("compute", Place::Gpu(rank)),
            Self::Cpu => ("cpu", Place::Host(rank)),
            Self::Memory => ("memory", Place::Drive(rank)),
            Self::Collective => ("collective", Place::Host(rank)),
            Self::Send => ("send", Place::Host(rank)),
            Self::Receive => ("receive", Place::Host(rank)),
        };
        builder.resource(&format!("rank{rank}.{name}"), place, 1)
    }
}

/// The numbers of collective operations: the n-th one of a communicator is the same on all of its ranks.
#[derive(Default)]
struct Groups {
    numbers: HashMap<(String, u32), u32>,
}

impl Groups {
    fn number(&mut self, communicator: &str, occurrence: u32) -> u32 {
        let next = self.numbers.len() as u32;
        *self.numbers.entry((communicator.to_owned(), occurrence)).or_insert(next)
    }
}

/// The graph of all files. Tasks are in the order of ranks, then in that of the file.
///
/// # Errors
/// [`nearfield_runtime::Error::Format`] that names file and node; [`nearfield_runtime::Error::Graph`] for a graph that
/// is not valid.
pub(super) fn graph(files: Vec<Trace>) -> Result<Graph> {
    let of_place =
        |(place, trace): (usize, Trace)| (rank_in_name(&trace.path).unwrap_or(place as u32), trace);
    let mut files: Vec<(u32, Trace)> = files.into_iter().enumerate().map(of_place).collect();
    files.sort_by_key(|(rank, _)| *rank);
    read::no_rank_twice(files.iter().map(|(rank, trace)| (*rank, trace)))?;
    let (mut builder, mut groups) = (GraphBuilder::new(), Groups::default());
    for (rank, trace) in &files {
        add(&mut builder, trace, *rank, &mut groups)?;
    }
    let paths = files.iter().map(|(_, trace)| trace.path.as_path());
    builder.build().map_err(|error| read::invalid(paths, error))
}

/// The number before `.et`.
fn rank_in_name(path: &Path) -> Option<u32> {
    let name = path.file_name()?.to_str()?.strip_suffix(".et")?;
    name.rsplit('.').next()?.parse().ok()
}

/// Adds the tasks of a rank.
fn add(builder: &mut GraphBuilder, trace: &Trace, rank: u32, groups: &mut Groups) -> Result<()> {
    let mut occurrences: HashMap<String, u32> = HashMap::new();
    let entries = trace.entries(|node, of| {
        if node.r#type != NodeType::CommColl as i32 {
            return operation(node, of, rank);
        }
        // No name and `0` both stand for all ranks.
        let communicator = if of.has(names::PG_NAME) { of.text(names::PG_NAME)? } else { "" };
        let communicator = if communicator.is_empty() { "0" } else { communicator };
        let occurrence = occurrences.entry(communicator.to_owned()).or_default();
        *occurrence += 1;
        let group = groups.number(communicator, *occurrence);
        Ok((operations::collective(of, group)?, Engine::Collective))
    })?;
    builder.rank(rank);
    let (mut ids, mut edges): (Vec<TaskId>, _) = (Vec::new(), Vec::new());
    let mut resources = HashMap::new();
    for entry in entries {
        let (op, engine) = entry.content;
        let resource = *resources.entry(engine).or_insert_with(|| engine.resource(builder, rank));
        ids.push(builder.task(resource, op, entry.name, &[]));
        edges.push(entry.after);
    }
    for (&id, after) in ids.iter().zip(edges) {
        for before in after {
            builder.edge(ids[before], id);
        }
    }
    Ok(())
}

/// The operation of a node that is no collective one.
fn operation(node: &Node, of: &Attributes, rank: u32) -> Result<(Op, Engine)> {
    let storage = |direction| -> Result<(Op, Engine)> {
        let bytes = of.payload(names::TENSOR_SIZE)?;
        let op = Op::Storage { direction, drive: rank, other: Place::Host(rank), bytes };
        Ok((op, Engine::Memory))
    };
    let tag = || of.number_or(names::COMM_TAG, 0);
    match NodeType::try_from(node.r#type) {
        Ok(NodeType::Comp) => {
            let flops = of.number_or(names::NUM_OPS, 0)?;
            let bytes = of.number_or(names::TENSOR_SIZE, 0)?;
            let engine = if of.flag(names::IS_CPU_OP)? { Engine::Cpu } else { Engine::Compute };
            Ok((Op::Compute { flops, bytes }, engine))
        }
        Ok(NodeType::MemLoad) => storage(Direction::Read),
        Ok(NodeType::MemStore) => storage(Direction::Write),
        Ok(NodeType::CommSend) => Ok((operations::send(of, rank, tag()?)?, Engine::Send)),
        Ok(NodeType::CommRecv) => Ok((operations::receive(of, rank, tag()?)?, Engine::Receive)),
        Ok(NodeType::Metadata) => Ok((Op::Mark, Engine::Cpu)),
        Ok(NodeType::CommColl | NodeType::Invalid) | Err(_) => {
            let what = format!("is of kind {}, which has no meaning in a graph", node.r#type);
            Err(of.error(
                what,
                "leave such nodes out (metadata, memory, computation and communication are read)",
            ))
        }
    }
}
