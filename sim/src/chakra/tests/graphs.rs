//! Graphs to write.

use nearfield_runtime::graph::{
    Collective, Direction, Graph, GraphBuilder, MemoryClaim, Op, Place, TaskId,
};
use proptest::prelude::*;

use super::super::values::KERNELS;

pub(super) const COLLECTIVES: [Collective; 5] = [
    Collective::AllReduce,
    Collective::AllGather,
    Collective::ReduceScatter,
    Collective::Broadcast,
    Collective::AllToAll,
];

/// Ranks 0, 2 and 7 with every operation, edges in both directions of the task order, claims, and a resource and a
/// phase that no task uses.
pub(super) fn everything() -> Graph {
    let mut builder = GraphBuilder::new();
    let gpu = builder.resource("gpu0.compute", Place::Gpu(0), 1);
    let read = builder.resource("drive3.read", Place::Drive(3), 2);
    let near = builder.resource("drive3.kernel", Place::Local(3), 1);
    let link = builder.resource("link", Place::Host(1), 4);
    builder.resource("unused", Place::HOST, 9);
    builder.phase("forward");
    builder.phase("nothing happens");
    builder.rank(7);
    let storage = |direction, other| Op::Storage { direction, drive: 3, other, bytes: 4096 };
    let load = builder.task(read, storage(Direction::Read, Place::Local(3)), "load", &[]);
    let name = KERNELS[4];
    let op = Op::Kernel { name, elements: 1024, bytes: 28672 };
    let update = builder.task(near, op, "update \"π\"\n", &[load]);
    builder.rank(0);
    let op = Op::Compute { flops: 1 << 60, bytes: u64::MAX };
    let compute = builder.task(gpu, op, "matmul", &[]);
    builder.phase("update");
    let up = Op::Transfer { from: Place::Gpu(0), to: Place::HOST, bytes: 7 };
    let up = builder.task(link, up, "", &[compute]);
    let down = Op::Transfer { from: Place::HOST, to: Place::Gpu(0), bytes: 8 };
    let down = builder.task(link, down, "down", &[]);
    builder.edge(up, down);
    let send = Op::Send { to_rank: 7, tag: u64::MAX, bytes: 5 };
    builder.task(link, send, "send", &[down, compute]);
    builder.rank(7);
    let receive = Op::Receive { from_rank: 0, tag: u64::MAX, bytes: 5 };
    let receive = builder.task(link, receive, "receive", &[]);
    let store = storage(Direction::Write, Place::HOST);
    let store = builder.task(read, store, "store", &[receive, update]);
    let seal = builder.task(read, Op::Seal { drive: 3, metadata_bytes: 512 }, "seal", &[store]);
    for (group, kind) in (0..).zip(COLLECTIVES) {
        for rank in [0, 2, 7] {
            if rank == 2 && group == 1 {
                continue;
            }
            builder.rank(rank);
            let op = Op::Collective { kind, group: group * 1000, bytes: 640 };
            builder.task(link, op, format!("collective {group}"), &[]);
        }
    }
    builder.rank(2);
    let begin = builder.task(gpu, Op::Mark, "begin", &[]);
    builder.edge(begin, TaskId(begin.0 - 2));
    let claim = |place, bytes, from: Option<TaskId>, to| MemoryClaim { place, bytes, from, to };
    builder.claim(claim(Place::Local(3), 1 << 40, Some(load), Some(seal)));
    builder.claim(claim(Place::HOST, 0, None, Some(down)));
    builder.claim(claim(Place::Gpu(0), 3, Some(compute), None));
    builder.build().unwrap()
}

/// Something that adds tasks to a graph.
#[derive(Debug, Clone)]
enum Step {
    Task(u32, Op),
    Message { from: u32, to: u32, far: bool, bytes: u64 },
    Collective { kind: Collective, ranks: u32, bytes: u64 },
}

fn places() -> impl Strategy<Value = Place> {
    prop_oneof![
        (0..9_u32).prop_map(Place::Host),
        any::<u32>().prop_map(Place::Gpu),
        (0..99_u32).prop_map(Place::Drive),
        any::<u32>().prop_map(Place::Local),
    ]
}

/// Operations of one rank alone.
fn operations() -> impl Strategy<Value = Op> {
    let bytes = 1..=u64::MAX;
    let direction = prop_oneof![Just(Direction::Read), Just(Direction::Write)];
    prop_oneof![
        (0..=i64::MAX as u64, any::<u64>()).prop_map(|(flops, bytes)| Op::Compute { flops, bytes }),
        (prop::sample::select(KERNELS.to_vec()), 0..1_u64 << 50, any::<u64>())
            .prop_map(|(name, elements, bytes)| Op::Kernel { name, elements, bytes }),
        (places(), places(), bytes.clone()).prop_map(|(from, to, bytes)| Op::Transfer {
            from,
            to,
            bytes
        }),
        (direction, any::<u32>(), places(), bytes).prop_map(|(direction, drive, other, bytes)| {
            Op::Storage { direction, drive, other, bytes }
        }),
        (any::<u32>(), any::<u64>())
            .prop_map(|(drive, metadata_bytes)| Op::Seal { drive, metadata_bytes }),
        Just(Op::Mark),
    ]
}

fn steps() -> impl Strategy<Value = Step> {
    let bytes = 1..=i64::MAX as u64;
    prop_oneof![
        6 => (0..5_u32, operations()).prop_map(|(rank, op)| Step::Task(rank, op)),
        1 => (0..5_u32, 0..5_u32, any::<bool>(), bytes.clone())
            .prop_map(|(from, to, far, bytes)| Step::Message { from, to, far, bytes }),
        1 => (prop::sample::select(COLLECTIVES.to_vec()), 1..32_u32, bytes)
            .prop_map(|(kind, ranks, bytes)| Step::Collective { kind, ranks, bytes }),
    ]
}

prop_compose! {
    /// Valid graphs of up to five ranks.
    pub(super) fn graphs()(
        steps in prop::collection::vec(steps(), 1..25),
        labels in prop::collection::vec(".{0,9}", 1..9),
        edges in prop::collection::vec((any::<usize>(), any::<usize>()), 0..60),
        claims in prop::collection::vec((places(), any::<u64>(), any::<(u32, u32)>()), 0..5),
        (resources, lanes, backwards) in (1..6_u32, 1..9_u32, any::<bool>()),
    ) -> Graph {
        let mut builder = GraphBuilder::new();
        let place = |index| [Place::Gpu(1), Place::HOST, Place::Local(2)][index as usize % 3];
        let ids: Vec<_> = (0..resources)
            .map(|index| builder.resource(&format!("r{index}"), place(index), lanes + index))
            .collect();
        let mut ranks = Vec::new();
        let mut add = |builder: &mut GraphBuilder, rank, op| {
            let index = ranks.len();
            builder.rank(rank);
            builder.phase(["forward", "backward", "update"][index % labels.len() % 3]);
            builder.task(ids[index % ids.len()], op, &labels[index % labels.len()], &[]);
            ranks.push(rank);
        };
        for (number, step) in (0..).zip(steps) {
            match step {
                Step::Task(rank, op) => add(&mut builder, rank, op),
                Step::Message { from, to, far, bytes } => {
                    let tag = u64::from(number) + (u64::from(far) << 40);
                    add(&mut builder, from, Op::Send { to_rank: to, tag, bytes });
                    add(&mut builder, to, Op::Receive { from_rank: from, tag, bytes });
                }
                Step::Collective { kind, ranks, bytes } => {
                    for rank in (0..5).filter(|rank| ranks >> rank & 1 == 1) {
                        add(&mut builder, rank, Op::Collective { kind, group: number, bytes });
                    }
                }
            }
        }
        let count = ranks.len();
        for (a, b) in edges {
            let (a, b) = (a % count, b % count);
            let (low, high) = (a.min(b), a.max(b));
            if low < high && ranks[low] == ranks[high] {
                let (low, high) = (TaskId(low as u32), TaskId(high as u32));
                if backwards { builder.edge(high, low) } else { builder.edge(low, high) }
            }
        }
        for (place, bytes, (from, to)) in claims {
            let task = |seed: u32| (!seed.is_multiple_of(4)).then_some(TaskId(seed % count as u32));
            builder.claim(MemoryClaim { place, bytes, from: task(from), to: task(to) });
        }
        builder.build().unwrap()
    }
}
