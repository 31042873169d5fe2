//! Tasks a second of the virtual executor: independent ones, and transfers that share links.

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use nearfield_runtime::Result;
use nearfield_runtime::graph::{Graph, GraphBuilder, Op, Place, Task};
use nearfield_sim::{Cost, CostModel, Link, LinkId, Use, VirtualExecutor};

/// 64 drives behind one uplink.
struct Box64 {
    links: Vec<Link>,
}

impl CostModel for Box64 {
    fn links(&self) -> &[Link] {
        &self.links
    }

    fn cost(&self, _: &Graph, task: &Task) -> Result<Cost> {
        Ok(match task.op {
            Op::Transfer { from: Place::Local(drive), bytes, .. } => {
                let a_use = |link| Use { link: LinkId(link), per_byte: 1.0 };
                let route = [a_use(drive), a_use(64)].into_iter().collect();
                Cost { seconds: 1e-5, bytes, route }
            }
            _ => Cost::fixed(1e-6),
        })
    }
}

fn machine() -> VirtualExecutor<Box64> {
    let link = |index: u32| Link {
        name: format!("link {index}"),
        capacity: if index < 64 { 3e9 } else { 16e9 },
    };
    VirtualExecutor::new(Box64 { links: (0..65).map(link).collect() }).expect("valid links")
}

fn independent(tasks: u32) -> Graph {
    let mut builder = GraphBuilder::new();
    let resources: Vec<_> =
        (0..8).map(|index| builder.resource(&format!("r{index}"), Place::HOST, 1)).collect();
    for index in 0..tasks {
        let op = Op::Kernel { name: "k", elements: 1, bytes: 1 };
        builder.task(resources[index as usize % 8], op, String::new(), &[]);
    }
    builder.build().expect("a valid graph")
}

fn shared(tasks: u32) -> Graph {
    let mut builder = GraphBuilder::new();
    let resources: Vec<_> =
        (0..64).map(|index| builder.resource(&format!("r{index}"), Place::HOST, 1)).collect();
    for index in 0..tasks {
        let drive = index % 64;
        let bytes = 1_000_000 + u64::from(index.wrapping_mul(2_654_435_761) % 100_000);
        let op = Op::Transfer { from: Place::Local(drive), to: Place::HOST, bytes };
        builder.task(resources[drive as usize], op, String::new(), &[]);
    }
    builder.build().expect("a valid graph")
}

fn benchmarks(criterion: &mut Criterion) {
    let executor = machine();
    let mut group = criterion.benchmark_group("virtual executor");
    group.sample_size(10);
    for tasks in [100_000, 1_000_000] {
        let graph = independent(tasks);
        group.throughput(Throughput::Elements(u64::from(tasks)));
        group.bench_function(format!("independent/{tasks}"), |bencher| {
            bencher.iter(|| executor.simulate(&graph).expect("it runs"));
        });
    }
    for tasks in [20_000, 200_000] {
        let graph = shared(tasks);
        group.throughput(Throughput::Elements(u64::from(tasks)));
        group.bench_function(format!("64 transfers on shared links/{tasks}"), |bencher| {
            bencher.iter(|| executor.simulate(&graph).expect("it runs"));
        });
    }
    group.finish();
}

criterion_group!(benches, benchmarks);
criterion_main!(benches);
