//! Writes the file of each rank.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use nearfield_runtime::graph::{Graph, Task};
use nearfield_runtime::timeline::{Span, Timeline};
use nearfield_runtime::{Error, Result};

use super::attributes::attribute;
use super::header;
use super::operations::{self, Context};
use super::proto::{Node, Value};
use super::{framing, names};

/// Writes a file a rank, `STEM.RANK.et`, and gives their paths in the order of ranks. Nothing is written when a part of
/// the graph has no place in a trace.
///
/// Where collective operations do not have all ranks, ASTRA-sim needs the text of [`super::comm_groups`] as well.
///
/// # Errors
/// [`Error::Graph`] that names the tasks, when one waits for another of a different rank without a message, or has a
/// number that Chakra's fields cannot hold; [`Error::Invalid`] for a graph without tasks or a timeline of another
/// graph; [`Error::Io`] when a file cannot be written.
pub fn write(graph: &Graph, timeline: Option<&Timeline>, stem: &Path) -> Result<Vec<PathBuf>> {
    let files = encode(graph, timeline)?;
    let mut paths = Vec::with_capacity(files.len());
    for (rank, bytes) in files {
        let mut name = stem.as_os_str().to_owned();
        name.push(format!(".{rank}.et"));
        let path = PathBuf::from(name);
        std::fs::write(&path, &bytes)
            .map_err(|source| Error::io("write", &path, 0, bytes.len() as u64, source))?;
        paths.push(path);
    }
    Ok(paths)
}

/// The bytes of each rank's file.
pub(super) fn encode(graph: &Graph, timeline: Option<&Timeline>) -> Result<Vec<(u32, Vec<u8>)>> {
    let tasks = graph.tasks();
    if tasks.is_empty() {
        return Err(Error::Invalid(
            "a graph without tasks makes no trace; write one that has some".into(),
        ));
    }
    if let Some(timeline) = timeline.filter(|timeline| timeline.spans.len() != tasks.len()) {
        return Err(Error::Invalid(format!(
            "a timeline of {} tasks does not fit a graph of {}; use the one of its own run",
            timeline.spans.len(),
            tasks.len()
        )));
    }
    let mut of_rank: BTreeMap<u32, Vec<&Task>> = BTreeMap::new();
    for task in tasks {
        of_rank.entry(task.rank).or_default().push(task);
    }
    let ranks: Vec<u32> = of_rank.keys().copied().collect();
    let context = Context::new(graph);
    let file = |(rank, tasks): (u32, Vec<&Task>)| {
        let mut bytes = Vec::new();
        framing::put(&mut bytes, &header::metadata(graph, &ranks, rank, tasks.len()))?;
        for task in tasks {
            let span = timeline.map(|timeline| timeline.span(task.id));
            framing::put(&mut bytes, &node(graph, task, span, &context)?)?;
        }
        Ok((rank, bytes))
    };
    of_rank.into_iter().map(file).collect()
}

fn node(graph: &Graph, task: &Task, span: Option<Span>, context: &Context) -> Result<Node> {
    let mut data_deps = Vec::new();
    for &before in graph.predecessors(task.id) {
        let other = graph.task(before);
        if other.rank != task.rank {
            return Err(Error::Graph(format!(
                "task {} ({}) of rank {} waits for task {} ({}) of rank {}, which a Chakra trace can only say with a \
                 message: put a send and a receive between them",
                task.id.0, task.label, task.rank, before.0, other.label, other.rank
            )));
        }
        data_deps.push(before.0.into());
    }
    let mut attr = operations::attributes(task, context)?;
    attr.extend([
        attribute(names::TASK, Value::Uint32(task.id.0)),
        attribute(names::RESOURCE, Value::Uint32(task.resource.0)),
        attribute(names::PHASE, Value::Uint32(task.phase.0)),
    ]);
    // Ends are rounded, not durations, so that what follows without a gap still does.
    let micros = |seconds: f64| (seconds * 1e6).round() as u64;
    let start_time_micros = span.map_or(0, |span| micros(span.start_seconds));
    let end_micros = span.map_or(0, |span| micros(span.end_seconds));
    Ok(Node {
        id: task.id.0.into(),
        name: task.label.clone(),
        r#type: operations::kind(&task.op) as i32,
        data_deps,
        start_time_micros,
        duration_micros: end_micros.saturating_sub(start_time_micros),
        attr,
        ..Node::default()
    })
}
