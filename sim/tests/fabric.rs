//! Graphs of the offload technique on described machines.
#![allow(clippy::unwrap_used)] // A test fails by panicking.

use nearfield_runtime::graph::Graph;
use nearfield_sim::fabric::{Fabric, FabricCosts, Selection};
use nearfield_sim::{Simulation, VirtualExecutor};
use nearfield_techniques::offload::placement::layout;
use nearfield_techniques::offload::plan::update;
use nearfield_techniques::offload::{FlatModel, OffloadOptions, System, Upstream};

const BOX: &str = r#"
name = "box"

[host]
copy_bytes_per_second = 1e10
[[host.kernels.update]]
bytes = 1e6
bytes_per_second = 2e10
[[host.kernels.cast]]
bytes = 1e6
bytes_per_second = 2e10

[gpus.card]
forward = [{ flops = 1e9, flops_per_second = 1e13 }]
backward = [{ flops = 1e9, flops_per_second = 1e13 }]

[drive]
count_max = 10
read = [{ bytes = 1e5, bytes_per_second = 1e9 }, { bytes = 1e6, bytes_per_second = 3e9 }]
write = [{ bytes = 1e6, bytes_per_second = 2e9 }]
mixed_seconds_per_second = 1.0
seal_seconds = 1e-4
kernels.update = [{ bytes = 1e6, bytes_per_second = 1e10 }]

[uplink]
down_bytes_per_second = 8e9
up_bytes_per_second = 8e9
"#;

const N: u64 = 40_000_000;

fn graph(system: System, drives: u32, elements: u64) -> Graph {
    let options = OffloadOptions {
        system,
        subgroup_elements: 1 << 20,
        upstream: Upstream::Fp32Storage,
        ..OffloadOptions::default()
    };
    let layout = layout(&FlatModel::single(elements).unwrap(), &options, drives).unwrap();
    let parts: Vec<usize> = (0..layout.parts.len()).collect();
    update::plan(&layout, &options, &parts).unwrap().graph
}

fn simulate(text: &str, system: System, drives: u32, elements: u64) -> Simulation {
    let costs =
        FabricCosts::new(&Fabric::parse(text).unwrap(), &Selection::drives(drives)).unwrap();
    VirtualExecutor::new(costs).unwrap().simulate(&graph(system, drives, elements)).unwrap()
}

fn seconds(system: System, drives: u32) -> f64 {
    simulate(BOX, system, drives, N).timeline.seconds()
}

#[test]
fn near_storage_beats_the_baseline_once_the_uplink_is_full() {
    for drives in [1, 2, 4, 6, 10] {
        assert!(seconds(System::SuO, drives) <= seconds(System::Su, drives), "{drives}");
        assert!(seconds(System::BasePipe, drives) <= seconds(System::Base, drives), "{drives}");
    }
    // More drives never slow the baseline; from 8 GB/s of drives on they do not speed it up either.
    let base: Vec<f64> = (1..=10).map(|drives| seconds(System::BasePipe, drives)).collect();
    assert!(base.windows(2).all(|pair| pair[1] <= pair[0] * 1.02), "{base:?}");
    assert!(base[9] > 0.9 * base[6], "{base:?}");
    // Near storage goes on scaling.
    let near: Vec<f64> = [1, 10].map(|drives| seconds(System::SuO, drives)).to_vec();
    assert!(near[0] / near[1] > 5.0, "{near:?}");
    assert!(base[9] / near[1] > 1.4, "{base:?} {near:?}");
    // With one drive there is nothing to gain.
    assert!(seconds(System::SuO, 1) > 0.95 * seconds(System::BasePipe, 1));
}

#[test]
fn no_run_is_faster_than_a_bound_and_time_grows_with_the_model() {
    for drives in [1, 3, 10] {
        let found = seconds(System::SuO, drives);
        let each = N as f64 / f64::from(drives);
        // Media: reads of g, p, m, v and the new weights, writes of p, m, v, on one back end.
        assert!(found >= each * (20.0 / 3e9 + 12.0 / 2e9));
        assert!(found >= N as f64 * 4.0 / 8e9);
        let twice = simulate(BOX, System::SuO, drives, 2 * N).timeline.seconds();
        assert!((twice / found - 2.0).abs() < 0.1, "{drives}: {found} {twice}");
    }
}

#[test]
fn links_carry_the_bytes_of_the_graph() {
    for system in [System::Base, System::BasePipe, System::Su, System::SuO] {
        let traffic = graph(system, 3, N).traffic();
        let links = simulate(BOX, system, 3, N).links;
        let sum = |end: &str| -> u64 {
            links.iter().filter(|link| link.name.ends_with(end)).map(|link| link.bytes).sum()
        };
        assert_eq!(sum(".read"), traffic.media_read, "{system:?}");
        assert_eq!(sum(".write"), traffic.media_write, "{system:?}");
        assert_eq!(sum("uplink.up"), traffic.shared_up, "{system:?}");
        assert_eq!(sum("uplink.down"), traffic.shared_down, "{system:?}");
        assert!(links.iter().all(|link| link.utilisation <= 1.0));
    }
}

#[test]
fn a_fabric_file_can_be_written_and_read_again() {
    let fabric = Fabric::parse(BOX).unwrap();
    assert_eq!(Fabric::parse(&fabric.to_toml().unwrap()).unwrap(), fabric);
}

#[test]
fn what_is_wrong_is_named() {
    let error = |from: &str, to: &str| {
        assert!(BOX.contains(from));
        Fabric::parse(&BOX.replacen(from, to, 1)).unwrap_err().to_string()
    };
    let text = error("down_bytes_per_second = 8e9", "down_bytes_per_second = -8e9");
    assert!(text.contains("line 26") && text.contains("not a number above 0"), "{text}");
    let text = error("seal_seconds", "seal_second");
    assert!(text.contains("unknown field `seal_second`"), "{text}");
    let text = error("count_max = 10", "count_max = 0");
    assert!(text.contains("drive.count_max"), "{text}");
    let text = error("{ bytes = 1e5,", "{ bytes = 1e7,");
    assert!(text.contains("drive.read") && text.contains("ascend"), "{text}");
    let text = error("write = [{ bytes = 1e6, bytes_per_second = 2e9 }]", "write = []");
    assert!(text.contains("drive.write") && text.contains("at least one"), "{text}");
    let eleven = FabricCosts::new(&Fabric::parse(BOX).unwrap(), &Selection::drives(11))
        .unwrap_err()
        .to_string();
    assert!(eleven.contains("11 drives") && eleven.contains("count_max"), "{eleven}");
    let text = BOX.replacen("kernels.update = [", "kernels.other = [", 1);
    let costs = FabricCosts::new(&Fabric::parse(&text).unwrap(), &Selection::drives(1)).unwrap();
    let graph = graph(System::SuO, 1, 5000);
    let text = VirtualExecutor::new(costs).unwrap().simulate(&graph).unwrap_err().to_string();
    assert!(text.contains("drive.kernels.update is missing"), "{text}");
}
