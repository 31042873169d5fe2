//! The executor of real runs: threads, wall time.

use std::collections::VecDeque;
use std::time::Instant;

use parking_lot::{Condvar, Mutex};

use super::workers::{Job, Workers};
use super::{Executor, Outcome, Work};
use crate::error::{Error, Result};
use crate::graph::{Graph, Op, ResourceId, TaskId};
use crate::timeline::{Span, Timeline};

/// Runs each resource's tasks on threads of its own, in order of readiness (ties: graph order).
///
/// Each resource with tasks gets as many threads as it has lanes. They are kept for later runs, until the executor is
/// dropped. A run that begins while another one runs has threads of its own.
#[derive(Debug, Default)]
pub struct ThreadedExecutor {
    workers: Mutex<Workers>,
}

struct State {
    /// Tasks whose predecessors have ended, per resource, first come first.
    ready: Vec<VecDeque<TaskId>>,
    /// Predecessors that have not ended, per task.
    waiting: Vec<u32>,
    spans: Vec<Span>,
    unfinished: usize,
    error: Option<Error>,
}

struct Run<'a> {
    graph: &'a Graph,
    work: &'a dyn Work,
    start: Instant,
    state: Mutex<State>,
    /// Signalled when a resource has a task to run or when the run ends.
    changed: Vec<Condvar>,
}

impl Executor for ThreadedExecutor {
    fn run(&self, graph: &Graph, work: &dyn Work) -> Result<Timeline> {
        let mut tasks_on = vec![0_u32; graph.resources().len()];
        for task in graph.tasks() {
            tasks_on[task.resource.0 as usize] += 1;
        }
        let run = Run::new(graph, work);
        run.release_roots();
        let jobs = graph.resources().iter().enumerate().flat_map(|(index, resource)| {
            let run = &run;
            (0..resource.lanes.min(tasks_on[index])).map(move |lane| {
                let serve: Job<'_> = Box::new(move || run.serve(ResourceId(index as u32), lane));
                (resource.name.as_str(), lane, serve)
            })
        });
        let refused = |source| {
            run.fail(Error::Memory { what: "an executor thread", bytes: 0, source });
        };
        match self.workers.try_lock() {
            Some(mut workers) => workers.run(jobs, refused),
            None => Workers::default().run(jobs, refused),
        }
        let state = run.state.into_inner();
        match state.error {
            Some(error) => Err(error),
            None => Ok(Timeline { spans: state.spans }),
        }
    }
}

impl<'a> Run<'a> {
    fn new(graph: &'a Graph, work: &'a dyn Work) -> Self {
        let waiting =
            graph.tasks().iter().map(|task| graph.predecessors(task.id).len() as u32).collect();
        Self {
            graph,
            work,
            start: Instant::now(),
            state: Mutex::new(State {
                ready: vec![VecDeque::new(); graph.resources().len()],
                waiting,
                spans: vec![Span::default(); graph.tasks().len()],
                unfinished: graph.tasks().len(),
                error: None,
            }),
            changed: graph.resources().iter().map(|_| Condvar::new()).collect(),
        }
    }

    fn release_roots(&self) {
        let mut state = self.state.lock();
        let roots: Vec<TaskId> = self
            .graph
            .tasks()
            .iter()
            .map(|task| task.id)
            .filter(|id| state.waiting[id.index()] == 0)
            .collect();
        for id in roots {
            self.make_ready(&mut state, id);
        }
    }

    /// Runs tasks of one resource until none is left or the run has failed.
    fn serve(&self, resource: ResourceId, lane: u32) {
        let queue = resource.0 as usize;
        let mut state = self.state.lock();
        loop {
            if state.unfinished == 0 || state.error.is_some() {
                return;
            }
            let Some(id) = state.ready[queue].pop_front() else {
                self.changed[queue].wait(&mut state);
                continue;
            };
            drop(state);
            let start_seconds = self.start.elapsed().as_secs_f64();
            let outcome = self.perform(id);
            let end_seconds = self.start.elapsed().as_secs_f64();
            state = self.state.lock();
            let left_out = matches!(outcome, Ok(Outcome::LeftOut));
            state.spans[id.index()] = Span { start_seconds, end_seconds, lane, left_out };
            match outcome {
                Ok(_) => self.complete(&mut state, id),
                Err(error) => {
                    // The first error is kept; later ones follow from the same cause or come too late.
                    state.error.get_or_insert(error);
                    self.wake_all();
                }
            }
        }
    }

    fn perform(&self, id: TaskId) -> Result<Outcome> {
        super::perform(self.work, self.graph.task(id))
    }

    fn complete(&self, state: &mut State, id: TaskId) {
        state.unfinished -= 1;
        for &next in self.graph.successors(id) {
            state.waiting[next.index()] -= 1;
            if state.waiting[next.index()] == 0 {
                self.make_ready(state, next);
            }
        }
        if state.unfinished == 0 {
            self.wake_all();
        }
    }

    /// Queues a task, or completes it on the spot when it is only a mark.
    fn make_ready(&self, state: &mut State, id: TaskId) {
        let task = self.graph.task(id);
        if matches!(task.op, Op::Mark) {
            let now = self.start.elapsed().as_secs_f64();
            state.spans[id.index()] = Span::new(now, now);
            self.complete(state, id);
            return;
        }
        state.ready[task.resource.0 as usize].push_back(id);
        self.changed[task.resource.0 as usize].notify_one();
    }

    fn fail(&self, error: Error) {
        self.state.lock().error.get_or_insert(error);
        self.wake_all();
    }

    fn wake_all(&self) {
        for changed in &self.changed {
            changed.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

    use proptest::prelude::*;

    use super::*;
    use crate::graph::{GraphBuilder, Place, Task};

    const KERNEL: Op = Op::Kernel { name: "work", elements: 1, bytes: 1 };

    #[test]
    fn an_empty_graph_runs() {
        let graph = GraphBuilder::new().build().unwrap();
        let timeline = ThreadedExecutor::default().run(&graph, &|_: &Task| Ok(())).unwrap();
        assert_eq!(timeline.seconds(), 0.0);
    }

    #[test]
    fn a_task_that_is_left_out_is_not_performed_and_its_span_says_so() {
        struct Half;
        impl Work for Half {
            fn perform(&self, task: &Task) -> Result<()> {
                assert_eq!(task.id.0 % 2, 0);
                Ok(())
            }

            fn leaves_out(&self, task: &Task) -> bool {
                task.id.0 % 2 == 1
            }
        }
        let mut builder = GraphBuilder::new();
        let cpu = builder.resource("cpu", Place::HOST, 1);
        let mut last = Vec::new();
        for _ in 0..6 {
            last = vec![builder.task(cpu, KERNEL, "t", &last)];
        }
        let graph = builder.build().unwrap();
        let timeline = ThreadedExecutor::default().run(&graph, &Half).unwrap();
        let left_out: Vec<bool> = timeline.spans.iter().map(|span| span.left_out).collect();
        assert_eq!(left_out, [false, true, false, true, false, true]);
        assert_eq!(timeline.utilisation(&graph)[0].tasks, 3);
    }

    #[test]
    fn one_resource_runs_its_tasks_in_graph_order() {
        let mut builder = GraphBuilder::new();
        let cpu = builder.resource("cpu", Place::HOST, 1);
        for _ in 0..50 {
            builder.task(cpu, KERNEL, "t", &[]);
        }
        let graph = builder.build().unwrap();
        let order = Mutex::new(Vec::new());
        ThreadedExecutor::default()
            .run(&graph, &|task: &Task| {
                order.lock().push(task.id.0);
                Ok(())
            })
            .unwrap();
        assert_eq!(order.into_inner(), (0..50).collect::<Vec<_>>());
    }

    #[test]
    fn the_first_error_names_its_task_and_stops_what_has_not_started() {
        let mut builder = GraphBuilder::new();
        let cpu = builder.resource("cpu", Place::HOST, 1);
        let first = builder.task(cpu, KERNEL, "read exp_avg of subgroup 3", &[]);
        builder.task(cpu, KERNEL, "never", &[first]);
        let graph = builder.build().unwrap();
        let performed = AtomicU32::new(0);
        let error = ThreadedExecutor::default()
            .run(&graph, &|_: &Task| {
                performed.fetch_add(1, SeqCst);
                Err(Error::Invalid("broken".into()))
            })
            .unwrap_err();
        assert_eq!(error.to_string(), "read exp_avg of subgroup 3: broken");
        assert_eq!(performed.load(SeqCst), 1);
    }

    #[test]
    fn a_panic_in_work_becomes_an_error() {
        let mut builder = GraphBuilder::new();
        let cpu = builder.resource("cpu", Place::HOST, 1);
        builder.task(cpu, KERNEL, "bad", &[]);
        let graph = builder.build().unwrap();
        let error =
            ThreadedExecutor::default().run(&graph, &|_: &Task| panic!("boom")).unwrap_err();
        assert!(
            matches!(error, Error::Panic { ref label, ref message } if label == "bad" && message == "boom")
        );
    }

    #[test]
    fn marks_end_without_work_and_release_their_successors() {
        let mut builder = GraphBuilder::new();
        let cpu = builder.resource("cpu", Place::HOST, 1);
        let mark = builder.task(cpu, Op::Mark, "mark", &[]);
        let mark = builder.task(cpu, Op::Mark, "mark", &[mark]);
        builder.task(cpu, KERNEL, "work", &[mark]);
        let graph = builder.build().unwrap();
        let performed = AtomicU32::new(0);
        ThreadedExecutor::default()
            .run(&graph, &|_: &Task| {
                performed.fetch_add(1, SeqCst);
                Ok(())
            })
            .unwrap();
        assert_eq!(performed.load(SeqCst), 1);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(40))]
        /// On random graphs each task runs once, after its predecessors, and no resource exceeds its lanes.
        #[test]
        fn every_task_runs_once_after_its_predecessors(
            edges in prop::collection::vec((0_u32..60, 0_u32..60), 0..150),
            placed in prop::collection::vec((0_usize..4, any::<bool>()), 60),
        ) {
            let mut builder = GraphBuilder::new();
            let resources: Vec<_> = (0..4)
                .map(|index| builder.resource(&format!("r{index}"), Place::HOST, index % 2 + 1))
                .collect();
            for (index, &(resource, mark)) in placed.iter().enumerate() {
                let after: Vec<TaskId> = edges
                    .iter()
                    .filter(|&&(before, after)| before < after && after as usize == index)
                    .map(|&(before, _)| TaskId(before))
                    .collect();
                let op = if mark { Op::Mark } else { KERNEL };
                builder.task(resources[resource], op, "t", &after);
            }
            let graph = builder.build().unwrap();
            let done: Vec<AtomicU32> = (0..60).map(|_| AtomicU32::new(0)).collect();
            let running: Vec<AtomicU32> = (0..4).map(|_| AtomicU32::new(0)).collect();
            ThreadedExecutor::default().run(&graph, &|task: &Task| {
                let resource = task.resource.0 as usize;
                let now = running[resource].fetch_add(1, SeqCst) + 1;
                let mut ok = now <= graph.resources()[resource].lanes;
                for &before in graph.predecessors(task.id) {
                    let mark = matches!(graph.task(before).op, Op::Mark);
                    ok &= mark || done[before.index()].load(SeqCst) == 1;
                }
                done[task.id.index()].fetch_add(1, SeqCst);
                running[resource].fetch_sub(1, SeqCst);
                if ok { Ok(()) } else { Err(Error::Invalid("order".into())) }
            }).unwrap();
            for task in graph.tasks() {
                let expected = u32::from(!matches!(task.op, Op::Mark));
                prop_assert_eq!(done[task.id.index()].load(SeqCst), expected);
            }
        }
    }
}
