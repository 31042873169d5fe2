//! What a graph must fulfil before anything runs.

use std::collections::HashMap;

use super::{Collective, Graph, Op, Resource, Task, TaskId};
use crate::error::{Error, Result};

/// Resources and predecessors exist.
pub(super) fn endpoints(
    tasks: &[Task],
    resources: &[Resource],
    edges: &[(TaskId, TaskId)],
) -> Result<()> {
    for task in tasks {
        if task.resource.0 as usize >= resources.len() {
            return fail(task, "runs on a resource that is not in the graph");
        }
    }
    for &(before, after) in edges {
        if before.index() >= tasks.len() || after.index() >= tasks.len() {
            return Err(Error::Graph(format!(
                "edge {} -> {} names a task that is not in the graph",
                before.0, after.0
            )));
        }
    }
    Ok(())
}

/// Acyclic, with bytes where they are needed, sends matched with receives, collectives complete.
pub(super) fn graph(graph: &Graph) -> Result<()> {
    for task in graph.tasks() {
        let needs_bytes = matches!(
            task.op,
            Op::Transfer { .. }
                | Op::Storage { .. }
                | Op::Collective { .. }
                | Op::Send { .. }
                | Op::Receive { .. }
        );
        if needs_bytes && task.op.bytes() == 0 {
            return fail(task, "moves no bytes");
        }
    }
    acyclic(graph)?;
    messages(graph)?;
    collectives(graph)
}

fn acyclic(graph: &Graph) -> Result<()> {
    let mut waiting: Vec<usize> =
        graph.tasks().iter().map(|task| graph.predecessors(task.id).len()).collect();
    let mut ready: Vec<TaskId> =
        graph.tasks().iter().map(|task| task.id).filter(|id| waiting[id.index()] == 0).collect();
    let mut done = 0;
    while let Some(id) = ready.pop() {
        done += 1;
        for &next in graph.successors(id) {
            waiting[next.index()] -= 1;
            if waiting[next.index()] == 0 {
                ready.push(next);
            }
        }
    }
    if done == graph.tasks().len() {
        return Ok(());
    }
    match graph.tasks().iter().find(|task| waiting[task.id.index()] > 0) {
        Some(task) => fail(task, "waits for itself through its predecessors (cycle)"),
        None => Ok(()),
    }
}

fn messages(graph: &Graph) -> Result<()> {
    let mut open: HashMap<(u32, u32, u64), (&Task, i64, u64)> = HashMap::new();
    for task in graph.tasks() {
        let (key, change, bytes) = match task.op {
            Op::Send { to_rank, tag, bytes } => ((task.rank, to_rank, tag), 1, bytes),
            Op::Receive { from_rank, tag, bytes } => ((from_rank, task.rank, tag), -1, bytes),
            _ => continue,
        };
        let entry = open.entry(key).or_insert((task, 0, bytes));
        if entry.2 != bytes {
            return fail(task, "sends and receives a different number of bytes");
        }
        entry.1 += change;
    }
    for (task, balance, _) in open.values() {
        if *balance != 0 {
            return fail(task, "is a send or receive without its counterpart");
        }
    }
    Ok(())
}

fn collectives(graph: &Graph) -> Result<()> {
    let mut seen: HashMap<u32, (Collective, u64, Vec<u32>)> = HashMap::new();
    for task in graph.tasks() {
        let Op::Collective { kind, group, bytes } = task.op else {
            continue;
        };
        let entry = seen.entry(group).or_insert((kind, bytes, Vec::new()));
        if entry.0 != kind || entry.1 != bytes {
            return fail(task, "disagrees with its group on kind or bytes");
        }
        if entry.2.contains(&task.rank) {
            return fail(task, "takes part twice in one collective");
        }
        entry.2.push(task.rank);
    }
    Ok(())
}

fn fail<T>(task: &Task, what: &str) -> Result<T> {
    Err(Error::Graph(format!("task {} ({}) {what}", task.id.0, task.label)))
}

#[cfg(test)]
mod tests {
    use super::super::{Direction, GraphBuilder, Place, ResourceId};
    use super::*;

    fn cpu(builder: &mut GraphBuilder) -> ResourceId {
        builder.resource("cpu", Place::HOST, 1)
    }

    fn message(builder: GraphBuilder) -> String {
        builder.build().map(|_| String::new()).unwrap_or_else(|error| error.to_string())
    }

    #[test]
    fn a_cycle_is_refused_and_named() {
        let mut builder = GraphBuilder::new();
        let cpu = cpu(&mut builder);
        let first = builder.task(cpu, Op::Mark, "first", &[]);
        let second = builder.task(cpu, Op::Mark, "second", &[first]);
        builder.edge(second, first);
        assert!(message(builder).contains("cycle"));
    }

    #[test]
    fn unknown_resources_and_predecessors_are_refused() {
        let mut builder = GraphBuilder::new();
        builder.task(ResourceId(7), Op::Mark, "lost", &[]);
        assert!(message(builder).contains("lost"));
        let mut builder = GraphBuilder::new();
        let cpu = cpu(&mut builder);
        builder.task(cpu, Op::Mark, "early", &[TaskId(9)]);
        assert!(message(builder).contains("not in the graph"));
    }

    #[test]
    fn a_transfer_without_bytes_is_refused() {
        let mut builder = GraphBuilder::new();
        let cpu = cpu(&mut builder);
        let op =
            Op::Storage { direction: Direction::Write, drive: 0, other: Place::HOST, bytes: 0 };
        builder.task(cpu, op, "empty", &[]);
        assert!(message(builder).contains("empty"));
    }

    #[test]
    fn a_send_needs_its_receive() {
        let mut builder = GraphBuilder::new();
        let cpu = cpu(&mut builder);
        builder.task(cpu, Op::Send { to_rank: 1, tag: 5, bytes: 8 }, "send", &[]);
        assert!(message(builder).contains("counterpart"));
        let mut builder = GraphBuilder::new();
        let cpu = self::cpu(&mut builder);
        builder.task(cpu, Op::Send { to_rank: 1, tag: 5, bytes: 8 }, "send", &[]);
        builder.rank(1);
        builder.task(cpu, Op::Receive { from_rank: 0, tag: 5, bytes: 8 }, "receive", &[]);
        assert_eq!(message(builder), "");
    }

    #[test]
    fn ranks_of_a_collective_must_agree() {
        let mut builder = GraphBuilder::new();
        let cpu = cpu(&mut builder);
        let op = |bytes| Op::Collective { kind: Collective::AllReduce, group: 1, bytes };
        builder.task(cpu, op(8), "rank 0", &[]);
        builder.rank(1);
        builder.task(cpu, op(16), "rank 1", &[]);
        assert!(message(builder).contains("rank 1"));
    }
}
