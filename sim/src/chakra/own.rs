//! Graphs from files that Nearfield has written.

use std::collections::HashSet;

use nearfield_runtime::graph::{Graph, GraphBuilder, MemoryClaim, Op, ResourceId, TaskId};
use nearfield_runtime::{Error, Result};

use super::framing::COPY_AGAIN;
use super::header::{Common, Header};
use super::trace::{Entry, Trace};
use super::{names, operations, read};

/// A task as its node has it.
struct Content {
    task: u32,
    resource: u32,
    phase: u32,
    op: Op,
}

/// A task and the file that it is from.
struct Found<'a> {
    trace: &'a Trace,
    rank: u32,
    entry: Entry<Content>,
}

/// The graph of all files, in any order.
///
/// # Errors
/// [`Error::Format`] that names the file and, where there is one, the node; [`Error::Graph`] for a graph that is not
/// valid.
pub(super) fn graph(files: &mut [(Trace, Header)]) -> Result<Graph> {
    files.sort_by_key(|(_, header)| header.rank);
    let (first, Header { common, claims, .. }) = &files[0];
    for (trace, header) in files.iter() {
        if header.common != *common {
            let what = format!("is not of the same graph as {}", first.path.display());
            return Err(trace.error(what, "give the files of one graph"));
        }
    }
    read::no_rank_twice(files.iter().map(|(trace, header)| (header.rank, trace)))?;
    let given: HashSet<u32> = files.iter().map(|(_, header)| header.rank).collect();
    if let Some(missing) = common.ranks.iter().find(|&rank| !given.contains(rank)) {
        let what = format!("is of a graph that has a rank {missing}, whose file is not given");
        return Err(first.error(what, "give the files of all ranks"));
    }
    let (mut tasks, mut edges) = (Vec::new(), Vec::new());
    for (trace, header) in files.iter() {
        let entries = entries(trace, header)?;
        let id = |entry: &Entry<Content>| TaskId(entry.content.task);
        for entry in &entries {
            edges.extend(entry.after.iter().map(|&before| (id(&entries[before]), id(entry))));
        }
        let rank = header.rank;
        tasks.extend(entries.into_iter().map(|entry| Found { trace, rank, entry }));
    }
    tasks.sort_by_key(|found| found.entry.content.task);
    for (index, Found { trace, entry, .. }) in tasks.iter().enumerate() {
        if entry.content.task as usize != index {
            let task = entry.content.task;
            let what = format!("node {} ({}) is task {task}, not {index}", entry.id, entry.name);
            return Err(trace.error(what, COPY_AGAIN));
        }
    }
    if tasks.len() as u64 != common.tasks {
        let what = format!("is of a graph of {} tasks, not {}", common.tasks, tasks.len());
        return Err(first.error(what, COPY_AGAIN));
    }
    let paths = files.iter().map(|(trace, _)| trace.path.as_path());
    build(common, tasks, &edges, claims).map_err(|error| read::invalid(paths, error))
}

/// The nodes of one file.
fn entries(trace: &Trace, header: &Header) -> Result<Vec<Entry<Content>>> {
    let common = &header.common;
    let entries = trace.entries(|node, of| {
        let content = Content {
            task: of.number32(names::TASK)?,
            resource: of.number32(names::RESOURCE)?,
            phase: of.number32(names::PHASE)?,
            op: operations::operation(node, of, header.rank)?,
        };
        let missing = |name: &str, index: u32| {
            Err(of.error(format!("has {name} {index}, which its metadata lack"), COPY_AGAIN))
        };
        if content.resource as usize >= common.resources.len() {
            return missing(names::RESOURCE, content.resource);
        }
        if content.phase as usize >= common.phases.len() {
            return missing(names::PHASE, content.phase);
        }
        Ok(content)
    })?;
    if entries.len() as u64 != header.nodes {
        let what = format!("has {} nodes of {}", entries.len(), header.nodes);
        return Err(trace.error(what, COPY_AGAIN));
    }
    Ok(entries)
}

/// Builds the graph from its tasks in order.
fn build(
    common: &Common,
    tasks: Vec<Found>,
    edges: &[(TaskId, TaskId)],
    claims: &[MemoryClaim],
) -> Result<Graph, Error> {
    let mut builder = GraphBuilder::new();
    for resource in &common.resources {
        builder.resource(&resource.name, resource.place, resource.lanes);
    }
    for phase in &common.phases {
        builder.phase(phase);
    }
    for Found { rank, entry, .. } in tasks {
        builder.rank(rank);
        builder.phase(&common.phases[entry.content.phase as usize]);
        let resource = ResourceId(entry.content.resource);
        builder.task(resource, entry.content.op, entry.name, &[]);
    }
    for &(before, after) in edges {
        builder.edge(before, after);
    }
    for &claim in claims {
        builder.claim(claim);
    }
    builder.build()
}
