//! One run: events in the order of virtual time.

use std::cmp::Ordering;
use std::collections::{BinaryHeap, VecDeque};

use nearfield_runtime::exec::Outcome;
use nearfield_runtime::graph::{Graph, Op, Task, TaskId};
use nearfield_runtime::timeline::{Span, Timeline};
use nearfield_runtime::{Error, Result};

use super::Simulation;
use super::rendezvous::Rendezvous;
use crate::cost::{Cost, CostModel};
use crate::network::Network;

/// Most lanes of a resource.
const LANES_MAX: u32 = 1024;

/// A point in time at which a task ends, or at which its transfer begins.
struct Event {
    seconds: f64,
    task: TaskId,
    /// The transfer that begins; `None` where the task ends.
    transfer: Option<Box<Cost>>,
}

impl Event {
    fn key(&self) -> (f64, u32) {
        (self.seconds, self.task.0)
    }
}

impl PartialEq for Event {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Event {}

impl PartialOrd for Event {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Event {
    /// The earliest is the greatest, as the heap gives the greatest first.
    fn cmp(&self, other: &Self) -> Ordering {
        let (time, task) = self.key();
        let (other_time, other_task) = other.key();
        other_time.total_cmp(&time).then(other_task.cmp(&task))
    }
}

struct Run<'a, C> {
    costs: &'a C,
    graph: &'a Graph,
    perform: &'a mut dyn FnMut(&Task) -> Result<Outcome>,
    now: f64,
    events: BinaryHeap<Event>,
    network: Network,
    rendezvous: Rendezvous,
    /// Tasks that wait for each resource, first come first.
    ready: Vec<VecDeque<TaskId>>,
    /// Lanes of each resource that have no task in hand.
    free: Vec<Vec<u32>>,
    /// Predecessors that have not ended, per task.
    waiting: Vec<u32>,
    spans: Vec<Span>,
    unfinished: usize,
    /// Resources that may have a task to start.
    idle: Vec<u32>,
    /// Tasks that have become ready at this point in time.
    fresh: Vec<TaskId>,
    /// Tasks that begin now.
    begin: Vec<TaskId>,
    /// Tasks that have ended and whose successors were not told yet.
    told: Vec<TaskId>,
}

/// Runs `graph` on the machine of `costs`, and `perform` for each task when it starts.
pub(super) fn run<C: CostModel>(
    costs: &C,
    graph: &Graph,
    perform: &mut dyn FnMut(&Task) -> Result<Outcome>,
) -> Result<Simulation> {
    let waiting: Vec<u32> =
        graph.tasks().iter().map(|task| graph.predecessors(task.id).len() as u32).collect();
    let mut run = Run {
        costs,
        graph,
        perform,
        now: 0.0,
        events: BinaryHeap::new(),
        network: Network::new(costs.links()),
        rendezvous: Rendezvous::new(graph),
        ready: vec![VecDeque::new(); graph.resources().len()],
        // The last is taken first.
        free: graph
            .resources()
            .iter()
            .map(|resource| (0..costs.lanes(resource).clamp(1, LANES_MAX)).rev().collect())
            .collect(),
        waiting,
        spans: vec![Span::default(); graph.tasks().len()],
        unfinished: graph.tasks().len(),
        idle: Vec::new(),
        fresh: Vec::new(),
        begin: Vec::new(),
        told: Vec::new(),
    };
    run.all()?;
    let timeline = Timeline { spans: run.spans };
    let links = run.network.usage(costs.links(), timeline.seconds());
    Ok(Simulation { timeline, links })
}

impl<C: CostModel> Run<'_, C> {
    fn all(&mut self) -> Result<()> {
        let roots = self.graph.tasks().iter().map(|task| task.id);
        let roots: Vec<TaskId> = roots.filter(|id| self.waiting[id.index()] == 0).collect();
        for id in roots {
            self.make_ready(id);
        }
        self.tell();
        let mut ended = Vec::new();
        loop {
            self.start_tasks()?;
            self.network.settle(self.now);
            let next = self.events.peek().map_or(f64::INFINITY, |event| event.seconds);
            let next = next.min(self.network.next_end());
            if next == f64::INFINITY {
                break;
            }
            self.now = next;
            self.network.take_ended(next, &mut ended);
            while self.events.peek().is_some_and(|event| event.seconds <= next) {
                let Some(event) = self.events.pop() else { break };
                match event.transfer {
                    None => ended.push(event.task),
                    Some(cost) => self.network.begin(next, event.task, cost.bytes, cost.route),
                }
            }
            ended.sort_unstable();
            for id in ended.drain(..) {
                let resource = self.graph.task(id).resource.0;
                let free = &mut self.free[resource as usize];
                free.push(self.spans[id.index()].lane);
                if free.len() > 1 {
                    // The lowest lane last, so that traces use few.
                    free.sort_unstable_by(|a, b| b.cmp(a));
                }
                self.idle.push(resource);
                self.spans[id.index()].end_seconds = self.now;
                self.told.push(id);
            }
            self.tell();
        }
        if self.unfinished > 0 {
            return Err(Error::Invalid(format!(
                "{} tasks of the graph never started: collective operations or messages wait for each other",
                self.unfinished
            )));
        }
        Ok(())
    }

    /// Starts the next task of each resource that is free.
    fn start_tasks(&mut self) -> Result<()> {
        // Order matters only for the work that is performed: by resource.
        self.idle.sort_unstable();
        self.idle.dedup();
        for resource in self.idle.drain(..) {
            let index = resource as usize;
            while let (Some(&lane), Some(&id)) =
                (self.free[index].last(), self.ready[index].front())
            {
                self.free[index].pop();
                self.ready[index].pop_front();
                let span = &mut self.spans[id.index()];
                span.start_seconds = self.now;
                span.lane = lane;
                self.rendezvous.arrive(self.graph, id, &mut self.begin);
            }
        }
        for place in 0..self.begin.len() {
            self.begin(self.begin[place])?;
        }
        self.begin.clear();
        Ok(())
    }

    fn begin(&mut self, id: TaskId) -> Result<()> {
        let task = self.graph.task(id);
        let named = |source| Error::Task { label: task.label.clone(), source: Box::new(source) };
        let cost = self.costs.cost(self.graph, task).map_err(named)?;
        let finite = |value: f64| value.is_finite() && value >= 0.0;
        if !(finite(cost.seconds) && cost.route.iter().all(|used| finite(used.per_byte))) {
            let message = format!("a cost that is no number: {cost:?}");
            return Err(named(Error::Invalid(message)));
        }
        if (self.perform)(task)? == Outcome::LeftOut {
            self.spans[id.index()].left_out = true;
            self.events.push(Event { seconds: self.now, task: id, transfer: None });
            return Ok(());
        }
        let flows = cost.bytes > 0 && !cost.route.is_empty();
        if flows && cost.seconds == 0.0 {
            self.network.begin(self.now, id, cost.bytes, cost.route);
        } else {
            let seconds = self.now + cost.seconds;
            let transfer = flows.then(|| Box::new(cost));
            self.events.push(Event { seconds, task: id, transfer });
        }
        Ok(())
    }

    /// Tells the successors of what has ended, and queues those that are ready in graph order.
    fn tell(&mut self) {
        while let Some(id) = self.told.pop() {
            self.unfinished -= 1;
            for &next in self.graph.successors(id) {
                self.waiting[next.index()] -= 1;
                if self.waiting[next.index()] == 0 {
                    self.make_ready(next);
                }
            }
        }
        self.fresh.sort_unstable();
        for id in self.fresh.drain(..) {
            let resource = self.graph.task(id).resource.0;
            self.ready[resource as usize].push_back(id);
            self.idle.push(resource);
        }
    }

    /// Takes note of a ready task; one that is only a mark ends on the spot.
    fn make_ready(&mut self, id: TaskId) {
        if matches!(self.graph.task(id).op, Op::Mark) {
            let now = self.now;
            self.spans[id.index()] = Span::new(now, now);
            self.told.push(id);
        } else {
            self.fresh.push(id);
        }
    }
}
