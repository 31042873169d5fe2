//! Graphs of the offload technique on described machines.
#![allow(clippy::unwrap_used)] // A test fails by panicking.

use nearfield_runtime::graph::{Collective, Graph, GraphBuilder, Op, Place};
use nearfield_sim::fabric::{Fabric, FabricCosts, KernelDesign, Selection};
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
capacity_bytes = 1e12
near.memory_bytes = 4e9
near.kernels.update = [{ bytes = 1e6, bytes_per_second = 1e10 }]
near.pipeline = { clock_hertz = 3e8, word_bytes = 64, memory_bytes_per_second = 2e10 }

[switches]
box = {}
card = { each_drive = true }

[links.uplink]
between = ["host", "box"]
forward_bytes_per_second = 8e9
backward_bytes_per_second = 8e9

[links.port]
between = ["box", "card"]
[links.ssd]
between = ["card", "drive"]
[links.fpga]
between = ["card", "local"]
[links.gpu]
between = ["host", "gpu"]
forward_bytes_per_second = 2e10
backward_bytes_per_second = 2e10
[links.gpu-box]
between = ["box", "gpu"]
forward_bytes_per_second = 2e10
backward_bytes_per_second = 2e10

[topologies]
default.links = ["gpu", "uplink", "port", "ssd", "fpga"]
congested.links = ["gpu-box", "uplink", "port", "ssd", "fpga"]
alone.links = ["uplink"]
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
        assert_eq!(sum("uplink to host"), traffic.shared_up, "{system:?}");
        assert_eq!(sum("uplink to box"), traffic.shared_down, "{system:?}");
        assert!(links.iter().all(|link| link.utilisation <= 1.0));
    }
}

#[test]
fn a_fabric_file_can_be_written_and_read_again() {
    let fabric = Fabric::parse(BOX).unwrap();
    assert_eq!(Fabric::parse(&fabric.to_toml().unwrap()).unwrap(), fabric);
}

#[test]
fn what_is_wrong_is_named_with_its_line_and_key() {
    let line = |of: &str| {
        let before = &BOX[..BOX.find(of).unwrap()];
        format!("line {}", before.matches('\n').count() + 1)
    };
    let error = |from: &str, to: &str| {
        assert!(BOX.contains(from));
        Fabric::parse(&BOX.replacen(from, to, 1)).unwrap_err().to_string()
    };
    let text = error("forward_bytes_per_second = 8e9", "forward_bytes_per_second = -8e9");
    let wanted = line("forward_bytes_per_second = 8e9");
    assert!(text.contains(&wanted) && text.contains("not a number above 0"), "{text}");
    let text = error("seal_seconds", "seal_second");
    assert!(text.contains("unknown field `seal_second`"), "{text}");
    for (from, to, key, what) in [
        ("count_max = 10", "count_max = 0", "drive.count_max", "at least 1"),
        ("read = [{ bytes = 1e5,", "read = [{ bytes = 1e7,", "drive.read", "ascend"),
        (
            "write = [{ bytes = 1e6, bytes_per_second = 2e9 }]",
            "write = []",
            "drive.write",
            "at least one",
        ),
        (
            r#"between = ["host", "box"]"#,
            r#"between = ["host", "bax"]"#,
            "links.uplink.between",
            "no place \"bax\"",
        ),
        (
            r#"between = ["host", "box"]"#,
            r#"between = ["box", "box"]"#,
            "links.uplink.between",
            "itself",
        ),
        (
            r#"between = ["host", "box"]"#,
            r#"between = ["host", "box", "gpu"]"#,
            "",
            "expected two places",
        ),
        (
            r#"alone.links = ["uplink"]"#,
            r#"alone.links = ["uplink", "uplink"]"#,
            "topologies.alone.links",
            "twice",
        ),
        ("box = {}", "host = {}\nbox = {}", "switches.host", "another place"),
        (
            r#"alone.links = ["uplink"]"#,
            r#"alone.links = ["downlink"]"#,
            "topologies.alone.links",
            "no link \"downlink\"",
        ),
    ] {
        let text = error(from, to);
        // Errors of syntax have a column where others have a key.
        let place = format!("{}, {}", line(from), if key.is_empty() { "column" } else { key });
        assert!(text.contains(&place) && text.contains(what), "{text}");
    }
    let fabric = Fabric::parse(BOX).unwrap();
    let refused = |selection: Selection| {
        let costs = FabricCosts::new(&fabric, &selection);
        let graph = graph(System::SuO, selection.drives, 5000);
        let run = costs.and_then(|costs| VirtualExecutor::new(costs)?.simulate(&graph));
        run.unwrap_err().to_string()
    };
    let text = refused(Selection::drives(11));
    assert!(text.contains("11 drives") && text.contains(&line("count_max")), "{text}");
    let topology = |name: &str| Selection { topology: Some(name.into()), ..Selection::drives(1) };
    let text = refused(topology("alone"));
    assert!(text.contains("no route from drive0 to local0"), "{text}");
    assert!(text.contains(&format!("{}, topologies.alone.links", line("alone.links"))), "{text}");
    assert!(refused(topology("other")).contains("alone, congested, default"));
    let text = refused(Selection { gpu: Some("b".into()), ..Selection::drives(1) });
    assert!(text.contains("there is no b; there are card"), "{text}");
    let text = BOX.replacen("near.pipeline", "#", 1).replacen(
        "kernels.update = [",
        "kernels.other = [",
        2,
    );
    let costs = FabricCosts::new(&Fabric::parse(&text).unwrap(), &Selection::drives(1)).unwrap();
    let graph = graph(System::SuO, 1, 5000);
    let text = VirtualExecutor::new(costs).unwrap().simulate(&graph).unwrap_err().to_string();
    assert!(text.contains("drive.near.kernels.update: no rate of the kernel update"), "{text}");
}

#[test]
fn memory_that_is_too_small_is_named() {
    let text = BOX.replacen("near.memory_bytes = 4e9", "near.memory_bytes = 1e7", 1);
    let costs = FabricCosts::new(&Fabric::parse(&text).unwrap(), &Selection::drives(1)).unwrap();
    let graph = graph(System::SuO, 1, N);
    let run = VirtualExecutor::new(costs.clone()).unwrap().simulate(&graph).unwrap();
    let text = costs.check_memory(&graph, &run.timeline).unwrap_err().to_string();
    assert!(text.contains("drive.near.memory_bytes: local0 would hold 0.02 GB"), "{text}");
    let text = Fabric::parse(BOX).unwrap().check_capacity(2_000_000_000_000).unwrap_err();
    assert!(text.to_string().contains("drive.capacity_bytes"), "{text}");
}

#[test]
fn a_machine_twice_as_fast_takes_half_the_time_for_what_transfers_bound() {
    // Every rate doubled, and no fixed costs but those that are doubled too.
    let fast: String = BOX
        .replace("bytes_per_second = 2e10", "bytes_per_second = 4e10")
        .replace("bytes_per_second = 1e", "bytes_per_second = 2e")
        .replace("bytes_per_second = 8e9", "bytes_per_second = 16e9")
        .replace("bytes_per_second = 3e9", "bytes_per_second = 6e9")
        .replace(
            "write = [{ bytes = 1e6, bytes_per_second = 2e9 }]",
            "write = [{ bytes = 1e6, bytes_per_second = 4e9 }]",
        )
        .replace("seal_seconds = 1e-4", "seal_seconds = 0.5e-4");
    for system in [System::Base, System::BasePipe, System::SuO] {
        let slow = simulate(BOX, system, 6, N).timeline.seconds();
        let twice = simulate(&fast, system, 6, N).timeline.seconds();
        assert!((slow / twice - 2.0).abs() < 1e-6, "{system:?} {slow} {twice}");
    }
}

/// A transfer of each kind, alone on the machine.
fn alone(topology: &str, gpus: u32, op: Op, place: Place) -> f64 {
    let mut builder = GraphBuilder::new();
    for rank in 0..if matches!(op, Op::Collective { .. }) { gpus } else { 1 } {
        builder.rank(rank);
        let place = if let Place::Gpu(_) = place { Place::Gpu(rank) } else { place };
        let resource = builder.resource(&format!("engine{rank}"), place, 1);
        builder.task(resource, op.clone(), "one", &[]);
    }
    let selection = Selection { gpus, topology: Some(topology.into()), ..Selection::drives(2) };
    let costs = FabricCosts::new(&Fabric::parse(BOX).unwrap(), &selection).unwrap();
    VirtualExecutor::new(costs)
        .unwrap()
        .simulate(&builder.build().unwrap())
        .unwrap()
        .timeline
        .seconds()
}

#[test]
fn routes_go_over_the_links_of_the_topology() {
    let bytes = 16_000_000_000;
    let up = Op::Transfer { from: Place::Gpu(0), to: Place::HOST, bytes };
    assert!((alone("default", 1, up.clone(), Place::HOST) - 0.8).abs() < 1e-9);
    // Through the box the uplink is the slowest.
    assert!((alone("congested", 1, up, Place::HOST) - 2.0).abs() < 1e-9);
    // A ring of two: each device sends half twice; through the box at its own rate, through the host as well.
    let sum = Op::Collective { kind: Collective::AllReduce, group: 0, bytes };
    assert!((alone("congested", 2, sum.clone(), Place::Gpu(0)) - 0.8).abs() < 1e-9);
    assert!((alone("default", 2, sum, Place::Gpu(0)) - 0.8).abs() < 1e-9);
    let weights = Op::Transfer { from: Place::Local(1), to: Place::HOST, bytes };
    assert!((alone("default", 1, weights, Place::Local(1)) - 2.0).abs() < 1e-9);
}

#[test]
fn all_descriptions_that_are_shipped_can_be_read_and_have_prices() {
    for name in Fabric::shipped_names() {
        let fabric = Fabric::shipped(name).unwrap().unwrap();
        assert_eq!(fabric.name, name);
        for gpu in fabric.gpus.keys() {
            for topology in fabric
                .topologies
                .keys()
                .map(String::as_str)
                .chain(fabric.topologies.is_empty().then_some("default"))
            {
                let selection = Selection {
                    gpu: Some(gpu.clone()),
                    topology: Some(topology.into()),
                    ..Selection::drives(1)
                };
                FabricCosts::new(&fabric, &selection).unwrap();
                assert!(fabric.price_usd(&selection, true).unwrap() > 1000.0);
            }
        }
    }
    // The paper's prices: server, one A5000, plain drives and SmartSSDs.
    let fabric = Fabric::shipped("smartssd-falcon").unwrap().unwrap();
    let selection = Selection { gpu: Some("a5000".into()), ..Selection::drives(10) };
    assert_eq!(fabric.price_usd(&selection, false), Some(45_000.0 + 2_000.0 + 4_000.0));
    assert_eq!(fabric.price_usd(&selection, true), Some(45_000.0 + 2_000.0 + 24_000.0));
}

#[test]
fn kernels_of_the_card_take_the_cycles_of_their_structure() {
    // Smart-Infinity, section 6: 7.5 beats for 16 elements of Adam with a 16-bit copy, not faster than the memory.
    let fabric = Fabric::shipped("smartssd-falcon").unwrap().unwrap();
    let pipeline = fabric.drive.near.unwrap().pipeline.unwrap();
    let seconds = pipeline.seconds(KernelDesign::Sequential, "update", 1 << 24, 30 << 24).unwrap();
    assert!((seconds / ((1 << 24) as f64 * 7.5 / 16.0 / 300e6) - 1.0).abs() < 1e-9);
    // A cycle for each zero and each pair.
    let seconds = pipeline
        .seconds(KernelDesign::Sequential, "decompress", 1 << 20, (4 << 20) + 12 * 1024)
        .unwrap();
    assert!((seconds - ((1 << 20) + 1024) as f64 / 300e6).abs() < 1e-12);
    assert_eq!(pipeline.seconds(KernelDesign::Dataflow, "topk", 1, 4), None);
}
