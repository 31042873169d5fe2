//! Builds a graph task by task.

use super::{Edges, Graph, MemoryClaim, Op, PhaseId, Place, Resource, ResourceId, Task, TaskId};
use crate::error::Result;

/// Collects resources, tasks and edges; [`GraphBuilder::build`] validates them.
#[derive(Debug, Default)]
pub struct GraphBuilder {
    tasks: Vec<Task>,
    resources: Vec<Resource>,
    phases: Vec<String>,
    claims: Vec<MemoryClaim>,
    edges: Vec<(TaskId, TaskId)>,
    phase: PhaseId,
    rank: u32,
}

impl GraphBuilder {
    /// An empty graph.
    pub fn new() -> Self {
        Self::default()
    }

    /// The resource called `name`, added when it is new.
    pub fn resource(&mut self, name: &str, place: Place, lanes: u32) -> ResourceId {
        if let Some(index) = self.resources.iter().position(|resource| resource.name == name) {
            return ResourceId(index as u32);
        }
        self.resources.push(Resource { name: name.to_owned(), place, lanes: lanes.max(1) });
        ResourceId(self.resources.len() as u32 - 1)
    }

    /// Tasks added from here on belong to the phase called `name`.
    pub fn phase(&mut self, name: &str) {
        let index = self.phases.iter().position(|phase| phase == name).unwrap_or_else(|| {
            self.phases.push(name.to_owned());
            self.phases.len() - 1
        });
        self.phase = PhaseId(index as u32);
    }

    /// Tasks added from here on are run by `rank`.
    pub fn rank(&mut self, rank: u32) {
        self.rank = rank;
    }

    /// Adds a task that starts once all tasks of `after` have ended.
    pub fn task(
        &mut self,
        resource: ResourceId,
        op: Op,
        label: impl Into<String>,
        after: &[TaskId],
    ) -> TaskId {
        if self.phases.is_empty() {
            self.phase("step");
        }
        let id = TaskId(self.tasks.len() as u32);
        self.tasks.push(Task {
            id,
            op,
            resource,
            label: label.into(),
            phase: self.phase,
            rank: self.rank,
        });
        self.edges.extend(after.iter().map(|&before| (before, id)));
        id
    }

    /// Adds an edge between tasks that exist: `after` starts once `before` has ended.
    pub fn edge(&mut self, before: TaskId, after: TaskId) {
        self.edges.push((before, after));
    }

    /// Declares memory that is held from the start of one task to the end of another.
    pub fn claim(&mut self, claim: MemoryClaim) {
        self.claims.push(claim);
    }

    /// Number of tasks so far.
    pub fn len(&self) -> usize {
        self.tasks.len()
    }

    /// Whether no task was added yet.
    pub fn is_empty(&self) -> bool {
        self.tasks.is_empty()
    }

    /// Validates and freezes the graph.
    ///
    /// # Errors
    /// [`crate::Error::Graph`] that names the task: an unknown resource or predecessor, a cycle, no bytes
    /// where some are needed, a send without its receive, a collective whose ranks disagree.
    pub fn build(mut self) -> Result<Graph> {
        self.edges.sort_unstable();
        self.edges.dedup();
        super::validate::endpoints(&self.tasks, &self.resources, &self.edges)?;
        let successors = rows(self.tasks.len(), self.edges.iter().copied());
        self.edges.sort_unstable_by_key(|&(before, after)| (after, before));
        let predecessors =
            rows(self.tasks.len(), self.edges.iter().map(|&(before, after)| (after, before)));
        let graph = Graph {
            tasks: self.tasks,
            resources: self.resources,
            phases: self.phases,
            claims: self.claims,
            predecessors,
            successors,
        };
        super::validate::graph(&graph)?;
        Ok(graph)
    }
}

/// Compressed rows of `pairs`, which are sorted by their first member.
fn rows(tasks: usize, pairs: impl Iterator<Item = (TaskId, TaskId)>) -> Edges {
    let mut edges = Edges { starts: vec![0; tasks + 1], items: Vec::new() };
    for (from, to) in pairs {
        edges.starts[from.index() + 1] += 1;
        edges.items.push(to);
    }
    for index in 0..tasks {
        edges.starts[index + 1] += edges.starts[index];
    }
    edges
}
