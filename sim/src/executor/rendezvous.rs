//! Tasks of several ranks that begin together.

use std::collections::HashMap;

use nearfield_runtime::graph::{Graph, Op, TaskId};

/// What brings tasks together.
#[derive(PartialEq, Eq, Hash)]
enum Meeting {
    /// Parts of a collective operation.
    Group(u32),
    /// A message: sender, receiver, tag.
    Message(u32, u32, u64),
}

/// Holds back the parts of collective operations, sends and receives until all of them are there.
#[derive(Default)]
pub(super) struct Rendezvous {
    /// Parts that have not come yet, and those that have.
    meetings: HashMap<Meeting, (u32, Vec<TaskId>)>,
}

impl Rendezvous {
    pub fn new(graph: &Graph) -> Self {
        let mut rendezvous = Self::default();
        for task in graph.tasks() {
            if let Some(meeting) = meeting(graph, task.id) {
                rendezvous.meetings.entry(meeting).or_default().0 += 1;
            }
        }
        rendezvous
    }

    /// `task` has its resource; adds to `begin` the tasks that can begin now.
    pub fn arrive(&mut self, graph: &Graph, task: TaskId, begin: &mut Vec<TaskId>) {
        let Some(meeting) = meeting(graph, task) else {
            begin.push(task);
            return;
        };
        let (missing, there) = self.meetings.entry(meeting).or_default();
        *missing = missing.saturating_sub(1);
        there.push(task);
        if *missing == 0 {
            begin.append(there);
        }
    }
}

fn meeting(graph: &Graph, id: TaskId) -> Option<Meeting> {
    let task = graph.task(id);
    match task.op {
        Op::Collective { group, .. } => Some(Meeting::Group(group)),
        Op::Send { to_rank, tag, .. } => Some(Meeting::Message(task.rank, to_rank, tag)),
        Op::Receive { from_rank, tag, .. } => Some(Meeting::Message(from_rank, task.rank, tag)),
        _ => None,
    }
}
