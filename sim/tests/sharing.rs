//! Links are shared max-min fairly, resources are serial, and the same run gives the same bits.
#![allow(clippy::unwrap_used)] // A test fails by panicking.

use std::sync::Mutex;

use nearfield_runtime::exec::Executor;
use nearfield_runtime::graph::{
    Collective, Graph, GraphBuilder, Op, Place, ResourceId, Task, TaskId,
};
use nearfield_runtime::{Error, Result};
use nearfield_sim::{Cost, CostModel, Link, LinkId, Use, VirtualExecutor};
use proptest::prelude::*;

/// Kernels take `elements` seconds; transfers of `bytes` flow over the links whose bits their tag names.
struct Machine {
    links: Vec<Link>,
    latency_seconds: f64,
}

impl Machine {
    fn new(capacities: &[f64]) -> Self {
        let link = |(index, &capacity): (usize, &f64)| Link { name: format!("l{index}"), capacity };
        Self { links: capacities.iter().enumerate().map(link).collect(), latency_seconds: 0.0 }
    }
}

impl CostModel for Machine {
    fn links(&self) -> &[Link] {
        &self.links
    }

    fn cost(&self, _: &Graph, task: &Task) -> Result<Cost> {
        match task.op {
            Op::Kernel { elements, .. } => Ok(Cost::fixed(elements as f64)),
            // The places of a transfer stand for the set of its links.
            Op::Transfer { from: Place::Gpu(set), bytes, .. } => {
                let uses = (0..self.links.len() as u32).filter(|link| set >> link & 1 == 1);
                let route = uses.map(|link| Use { link: LinkId(link), per_byte: 1.0 }).collect();
                Ok(Cost { seconds: self.latency_seconds, bytes, route })
            }
            Op::Collective { bytes, .. } => Ok(Cost::fixed(bytes as f64)),
            _ => Err(Error::Invalid("no such machine".into())),
        }
    }
}

fn over(set: u32, bytes: u64) -> Op {
    Op::Transfer { from: Place::Gpu(set), to: Place::HOST, bytes }
}

fn kernel(seconds: u64) -> Op {
    Op::Kernel { name: "k", elements: seconds, bytes: 1 }
}

/// A resource of its own for each task.
fn own(builder: &mut GraphBuilder) -> ResourceId {
    let name = format!("r{}", builder.len());
    builder.resource(&name, Place::HOST, 1)
}

fn ends(machine: Machine, builder: GraphBuilder) -> Vec<f64> {
    let graph = builder.build().unwrap();
    let simulation = VirtualExecutor::new(machine).unwrap().simulate(&graph).unwrap();
    simulation.timeline.spans.iter().map(|span| span.end_seconds).collect()
}

#[test]
fn transfers_share_a_link_and_speed_up_when_one_ends() {
    let mut builder = GraphBuilder::new();
    for bytes in [100, 300] {
        let resource = own(&mut builder);
        builder.task(resource, over(1, bytes), "t", &[]);
    }
    // Both at 50 until 2 s, then the other's 200 bytes at 100.
    assert_eq!(ends(Machine::new(&[100.0]), builder), [2.0, 4.0]);
}

#[test]
fn what_one_link_denies_another_transfer_gets() {
    let mut builder = GraphBuilder::new();
    // Links: 0 shared by all (capacity 100), 1 only by the first (capacity 10).
    for (set, bytes) in [(0b11, 10), (0b01, 90), (0b01, 45)] {
        let resource = own(&mut builder);
        builder.task(resource, over(set, bytes), "t", &[]);
    }
    // 10, 45 and 45 a second; after 1 s the second has the link for its other half.
    assert_eq!(ends(Machine::new(&[100.0, 10.0]), builder), [1.0, 1.45, 1.0]);
}

#[test]
fn a_resource_takes_its_tasks_in_order_of_readiness_then_of_the_graph() {
    let mut builder = GraphBuilder::new();
    let (one, two) = (own(&mut builder), builder.resource("two", Place::HOST, 3));
    let late = builder.task(one, kernel(2), "late", &[]);
    let mark = builder.task(one, Op::Mark, "mark", &[late]);
    builder.task(two, kernel(5), "after the mark", &[mark]);
    builder.task(two, kernel(3), "at once", &[]);
    builder.task(two, kernel(1), "then", &[]);
    assert_eq!(ends(Machine::new(&[]), builder), [2.0, 2.0, 9.0, 3.0, 4.0]);
}

#[test]
fn latency_comes_before_the_transfer() {
    let mut builder = GraphBuilder::new();
    for bytes in [100, 100] {
        let resource = own(&mut builder);
        builder.task(resource, over(1, bytes), "t", &[]);
    }
    let machine = Machine { latency_seconds: 0.5, ..Machine::new(&[100.0]) };
    assert_eq!(ends(machine, builder), [2.5, 2.5]);
}

#[test]
fn parts_of_a_collective_begin_together() {
    let mut builder = GraphBuilder::new();
    let (a, b) = (own(&mut builder), builder.resource("b", Place::HOST, 1));
    builder.rank(0);
    let slow = builder.task(a, kernel(3), "slow", &[]);
    let collective = |group| Op::Collective { kind: Collective::AllReduce, group, bytes: 4 };
    builder.task(a, collective(1), "sum", &[slow]);
    builder.rank(1);
    builder.task(b, collective(1), "sum", &[]);
    assert_eq!(ends(Machine::new(&[]), builder), [3.0, 7.0, 7.0]);
}

#[test]
fn work_is_done_in_the_order_of_virtual_time_and_its_error_names_the_task() {
    let mut builder = GraphBuilder::new();
    let (a, b) = (own(&mut builder), builder.resource("b", Place::HOST, 1));
    let first = builder.task(a, kernel(5), "first", &[]);
    builder.task(a, kernel(1), "third", &[first]);
    let second = builder.task(b, kernel(2), "second", &[]);
    builder.task(b, kernel(1), "between", &[second]);
    let graph = builder.build().unwrap();
    let executor = VirtualExecutor::new(Machine::new(&[])).unwrap();
    let order = Mutex::new(Vec::new());
    let note = |task: &Task| -> Result<()> {
        order.lock().unwrap().push(task.label.clone());
        Ok(())
    };
    executor.run(&graph, &note).unwrap();
    assert_eq!(*order.lock().unwrap(), ["first", "second", "between", "third"]);
    let fail = |_: &Task| -> Result<()> { Err(Error::Invalid("broken".into())) };
    assert_eq!(executor.run(&graph, &fail).unwrap_err().to_string(), "first: broken");
}

#[test]
fn what_a_machine_cannot_do_is_an_error() {
    let mut builder = GraphBuilder::new();
    let resource = own(&mut builder);
    let op = Op::Compute { flops: 1, bytes: 1 };
    builder.task(resource, op, "forward block 3", &[]);
    let graph = builder.build().unwrap();
    let error = VirtualExecutor::new(Machine::new(&[])).unwrap().simulate(&graph).unwrap_err();
    assert_eq!(error.to_string(), "forward block 3: no such machine");
    for capacity in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        let error = VirtualExecutor::new(Machine::new(&[capacity])).err().unwrap();
        assert!(error.to_string().contains("link l0"), "{error}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]
    /// On random graphs: order, serial resources, no link above its capacity, nothing faster than a bound,
    /// twice the capacity in half the time, the same bits again.
    #[test]
    fn a_run_keeps_to_every_bound(
        edges in prop::collection::vec((0_u32..40, 0_u32..40), 0..80),
        placed in prop::collection::vec((0_usize..5, 1_u32..16, 1_u64..1000), 40),
        capacities in prop::collection::vec(1.0_f64..100.0, 4),
    ) {
        let mut builder = GraphBuilder::new();
        let resources: Vec<_> = (0..5)
            .map(|index| builder.resource(&format!("r{index}"), Place::HOST, 1))
            .collect();
        for (index, &(resource, set, bytes)) in placed.iter().enumerate() {
            let after: Vec<TaskId> = edges
                .iter()
                .filter(|&&(before, after)| before < after && after as usize == index)
                .map(|&(before, _)| TaskId(before))
                .collect();
            builder.task(resources[resource], over(set, bytes), "t", &after);
        }
        let graph = builder.build().unwrap();
        let run = |factor: f64| {
            let capacities: Vec<f64> = capacities.iter().map(|capacity| capacity * factor).collect();
            VirtualExecutor::new(Machine::new(&capacities)).unwrap().simulate(&graph).unwrap()
        };
        let simulation = run(1.0);
        let timeline = &simulation.timeline;
        prop_assert_eq!(&timeline.spans, &run(1.0).timeline.spans);
        let total = timeline.seconds();
        prop_assert!((run(2.0).timeline.seconds() * 2.0 - total).abs() <= 1e-9 * total);
        // A transfer alone on its links is as fast as it can be.
        let least = |task: &Task| {
            let Op::Transfer { from: Place::Gpu(set), bytes, .. } = task.op else { return 0.0 };
            let used = (0..4).filter(|link| set >> link & 1 == 1);
            bytes as f64 / used.map(|link| capacities[link]).fold(f64::INFINITY, f64::min)
        };
        let mut path = vec![0.0_f64; 40];
        for task in graph.tasks() {
            let span = timeline.span(task.id);
            let before = graph.predecessors(task.id);
            for &before in before {
                prop_assert!(timeline.span(before).end_seconds <= span.start_seconds);
            }
            prop_assert!(span.end_seconds - span.start_seconds >= least(task) * (1.0 - 1e-9));
            let longest = before.iter().map(|before| path[before.index()]).fold(0.0, f64::max);
            path[task.id.index()] = longest + least(task);
        }
        prop_assert!(total >= path.iter().copied().fold(0.0, f64::max) * (1.0 - 1e-9));
        for (link, capacity) in simulation.links.iter().zip(&capacities) {
            prop_assert!(total >= link.bytes as f64 / capacity * (1.0 - 1e-9));
            let passed = link.utilisation * capacity * total;
            prop_assert!((passed - link.bytes as f64).abs() <= 1e-6 * passed.max(1.0), "{link:?}");
        }
        for &resource in &resources {
            let mut spans: Vec<_> = graph.tasks().iter()
                .filter(|task| task.resource == resource)
                .map(|task| timeline.span(task.id)).collect();
            spans.sort_by(|a, b| a.start_seconds.total_cmp(&b.start_seconds));
            for pair in spans.windows(2) {
                prop_assert!(pair[0].end_seconds <= pair[1].start_seconds);
            }
        }
    }
}
