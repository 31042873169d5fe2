//! What a file's metadata says of the whole graph.

use std::collections::HashSet;

use nearfield_runtime::Result;
use nearfield_runtime::graph::{Graph, MemoryClaim, Resource, TaskId};

use super::attributes::{Attributes, attribute, numbers32, numbers64, signed64, texts};
use super::framing::COPY_AGAIN;
use super::names;
use super::proto::{GlobalMetadata, SCHEMA_VERSION, Value};
use super::values;

/// Version of the attributes.
const FORMAT: u64 = 1;

/// What the files of all ranks of a graph have in common.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Common {
    pub tasks: u64,
    pub ranks: Vec<u32>,
    pub resources: Vec<Resource>,
    pub phases: Vec<String>,
}

/// The metadata of the file of a rank.
pub(super) struct Header {
    pub common: Common,
    pub rank: u32,
    pub nodes: u64,
    pub claims: Vec<MemoryClaim>,
}

/// The metadata of the file of `rank`, one of the graph's `ranks`, ascending.
pub(super) fn metadata(graph: &Graph, ranks: &[u32], rank: u32, nodes: usize) -> GlobalMetadata {
    let resources = graph.resources();
    let mut attr = vec![
        attribute(names::FORMAT, Value::Uint64(FORMAT)),
        attribute(names::RANK, Value::Uint32(rank)),
        attribute(names::NODES, Value::Uint64(nodes as u64)),
        attribute(names::TASKS, Value::Uint64(graph.tasks().len() as u64)),
        attribute(names::RANKS, numbers32(ranks.iter().copied())),
        attribute(names::RESOURCES, texts(resources.iter().map(|resource| &resource.name))),
        attribute(names::PLACES, texts(resources.iter().map(|resource| resource.place))),
        attribute(names::LANES, numbers32(resources.iter().map(|resource| resource.lanes))),
        attribute(names::PHASES, texts(graph.phases())),
    ];
    let claims = graph.claims();
    if ranks.first() == Some(&rank) && !claims.is_empty() {
        let index = |task: Option<TaskId>| task.map_or(-1, |task| i64::from(task.0));
        attr.extend([
            attribute(names::CLAIM_PLACES, texts(claims.iter().map(|claim| claim.place))),
            attribute(names::CLAIM_BYTES, numbers64(claims.iter().map(|claim| claim.bytes))),
            attribute(names::CLAIM_FROM, signed64(claims.iter().map(|claim| index(claim.from)))),
            attribute(names::CLAIM_TO, signed64(claims.iter().map(|claim| index(claim.to)))),
        ]);
    }
    GlobalMetadata { version: SCHEMA_VERSION.into(), attr }
}

impl Header {
    /// Reads the metadata of a file that Nearfield has written; `None` for one of another program.
    ///
    /// # Errors
    /// [`nearfield_runtime::Error::Format`] that names the file and the attribute.
    pub fn read(of: &Attributes) -> Result<Option<Self>> {
        if !of.has(names::FORMAT) {
            return Ok(None);
        }
        let format = of.number(names::FORMAT)?;
        if format != FORMAT {
            let what = format!("has nearfield.format {format}, and this build reads {FORMAT}");
            return Err(of.error(what, "read it with the version of Nearfield that wrote it"));
        }
        let common = Common {
            tasks: of.number(names::TASKS)?,
            ranks: of.numbers32(names::RANKS)?.to_vec(),
            resources: resources(of)?,
            phases: of.texts(names::PHASES)?.to_vec(),
        };
        distinct(of, names::PHASES, common.phases.iter().map(String::as_str))?;
        let claims = if of.has(names::CLAIM_PLACES) { claims(of)? } else { Vec::new() };
        let (rank, nodes) = (of.number32(names::RANK)?, of.number(names::NODES)?);
        Ok(Some(Self { common, rank, nodes, claims }))
    }
}

fn resources(of: &Attributes) -> Result<Vec<Resource>> {
    let resource_names = of.texts(names::RESOURCES)?;
    distinct(of, names::RESOURCES, resource_names.iter().map(String::as_str))?;
    let (places, lanes) = (of.texts(names::PLACES)?, of.numbers32(names::LANES)?);
    same_length(of, names::RESOURCES, &[resource_names.len(), places.len(), lanes.len()])?;
    let each = resource_names.iter().zip(places).zip(lanes);
    each.map(|((name, text), &lanes)| {
        let place = place(of, text)?;
        Ok(Resource { name: name.clone(), place, lanes })
    })
    .collect()
}

fn claims(of: &Attributes) -> Result<Vec<MemoryClaim>> {
    let (places, bytes) = (of.texts(names::CLAIM_PLACES)?, of.numbers64(names::CLAIM_BYTES)?);
    let (from, to) = (of.signed64(names::CLAIM_FROM)?, of.signed64(names::CLAIM_TO)?);
    same_length(of, names::CLAIM_PLACES, &[places.len(), bytes.len(), from.len(), to.len()])?;
    let tasks = of.number(names::TASKS)?;
    let task = |index: i64| match u32::try_from(index) {
        Ok(index) if u64::from(index) < tasks => Ok(Some(TaskId(index))),
        _ if index == -1 => Ok(None),
        _ => Err(of.error(format!("claims memory for task {index} of {tasks}"), COPY_AGAIN)),
    };
    let each = places.iter().zip(bytes).zip(from).zip(to);
    each.map(|(((text, &bytes), &from), &to)| {
        let place = place(of, text)?;
        Ok(MemoryClaim { place, bytes, from: task(from)?, to: task(to)? })
    })
    .collect()
}

fn place(of: &Attributes, text: &str) -> Result<nearfield_runtime::graph::Place> {
    values::place(text).ok_or_else(|| of.error(format!("has no place {text}"), COPY_AGAIN))
}

fn same_length(of: &Attributes, name: &str, lengths: &[usize]) -> Result<()> {
    if lengths.iter().any(|&length| length != lengths[0]) {
        let what = format!("has lists beside {name} that differ in length: {lengths:?}");
        return Err(of.error(what, COPY_AGAIN));
    }
    Ok(())
}

fn distinct<'a>(of: &Attributes, name: &str, values: impl Iterator<Item = &'a str>) -> Result<()> {
    let mut seen = HashSet::new();
    for value in values {
        if !seen.insert(value) {
            return Err(of.error(format!("has {value} twice in {name}"), COPY_AGAIN));
        }
    }
    Ok(())
}
