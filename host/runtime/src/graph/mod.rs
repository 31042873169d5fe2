//! Task graphs: what one step consists of, and what must come before what.
//!
//! A technique builds a [`Graph`] with [`GraphBuilder`]; an executor runs it. Everything that decides
//! order is an edge here, never a sleep or a lock inside the work.
//!
//! ```
//! use nearfield_runtime::graph::{Direction, GraphBuilder, Op, Place};
//!
//! let mut graph = GraphBuilder::new();
//! let read = graph.resource("drive0.read", Place::Drive(0), 1);
//! let cpu = graph.resource("host.cpu", Place::HOST, 1);
//! let op = Op::Storage { direction: Direction::Read, drive: 0, other: Place::HOST, bytes: 4096 };
//! let load = graph.task(read, op, "read param", &[]);
//! graph.task(cpu, Op::Kernel { name: "update", elements: 1024, bytes: 28672 }, "update", &[load]);
//! let graph = graph.build()?;
//! assert_eq!(graph.traffic().media_read, 4096);
//! # Ok::<(), nearfield_runtime::Error>(())
//! ```

mod builder;
mod op;
mod traffic;
mod validate;

pub use builder::GraphBuilder;
pub use op::{Collective, Direction, Op, Place};
pub use traffic::Traffic;

/// Index of a resource in its graph.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ResourceId(pub u32);

/// Index of a task in its graph; tasks are numbered in the order in which they were added.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TaskId(pub u32);

impl TaskId {
    /// The index as `usize`.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// Index of a phase (forward, backward, update …) in its graph.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PhaseId(pub u32);

/// A serial engine with a place in the topology.
///
/// `lanes` is how many of its tasks a real executor may have in hand at a time: with two lanes the next
/// transfer's requests are queued before the last one's have drained. The order stays first come, first
/// served. In virtual time the cost model decides whether latencies are hidden this way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resource {
    /// Name in reports and traces, for example `drive3.read`.
    pub name: String,
    /// Where it is.
    pub place: Place,
    /// Tasks in hand at a time, at least 1.
    pub lanes: u32,
}

/// One task of a step.
#[derive(Debug, Clone)]
pub struct Task {
    /// Its index in the graph.
    pub id: TaskId,
    /// What it does.
    pub op: Op,
    /// Which resource it occupies.
    pub resource: ResourceId,
    /// The technique's name for it, shown in traces and errors.
    pub label: String,
    /// The phase of the step.
    pub phase: PhaseId,
    /// The process that runs it.
    pub rank: u32,
}

/// Memory held from the start of one task to the end of another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryClaim {
    /// Where.
    pub place: Place,
    /// How much.
    pub bytes: u64,
    /// Held from the start of this task; `None` from the start of the step.
    pub from: Option<TaskId>,
    /// Held to the end of this task; `None` to the end of the step.
    pub to: Option<TaskId>,
}

/// A validated, immutable task graph.
#[derive(Debug, Clone)]
pub struct Graph {
    tasks: Vec<Task>,
    resources: Vec<Resource>,
    phases: Vec<String>,
    claims: Vec<MemoryClaim>,
    predecessors: Edges,
    successors: Edges,
}

/// Adjacency in compressed rows: the neighbours of task `i` are `items[starts[i]..starts[i + 1]]`.
#[derive(Debug, Clone, Default)]
struct Edges {
    starts: Vec<u32>,
    items: Vec<TaskId>,
}

impl Edges {
    fn of(&self, task: TaskId) -> &[TaskId] {
        let index = task.index();
        &self.items[self.starts[index] as usize..self.starts[index + 1] as usize]
    }
}

impl Graph {
    /// All tasks, in the order in which they were added.
    pub fn tasks(&self) -> &[Task] {
        &self.tasks
    }

    /// One task.
    pub fn task(&self, id: TaskId) -> &Task {
        &self.tasks[id.index()]
    }

    /// All resources.
    pub fn resources(&self) -> &[Resource] {
        &self.resources
    }

    /// Names of the phases.
    pub fn phases(&self) -> &[String] {
        &self.phases
    }

    /// Memory held by tasks.
    pub fn claims(&self) -> &[MemoryClaim] {
        &self.claims
    }

    /// Tasks that must end before `task` starts.
    pub fn predecessors(&self, task: TaskId) -> &[TaskId] {
        self.predecessors.of(task)
    }

    /// Tasks that wait for `task`.
    pub fn successors(&self, task: TaskId) -> &[TaskId] {
        self.successors.of(task)
    }

    /// Bytes that one run of the graph moves over each link, from the tasks themselves.
    pub fn traffic(&self) -> Traffic {
        self.tasks.iter().map(|task| Traffic::of(&task.op)).sum()
    }

    /// Bytes of headers and journal records that one run writes, from the tasks themselves.
    pub fn metadata_bytes(&self) -> u64 {
        self.tasks
            .iter()
            .map(|task| match task.op {
                Op::Seal { metadata_bytes, .. } => metadata_bytes,
                _ => 0,
            })
            .sum()
    }
}
