//! Steps of the offload technique as Chakra traces.
#![allow(clippy::unwrap_used)] // A test fails by panicking.

use std::collections::BTreeSet;

use nearfield_runtime::graph::{Graph, Op};
use nearfield_runtime::types::DType;
use nearfield_sim::chakra;
use nearfield_sim::fabric::{Fabric, FabricCosts, Selection};
use nearfield_sim::{Simulation, VirtualExecutor};
use nearfield_techniques::offload::placement::layout;
use nearfield_techniques::offload::plan::gradient::{self, MicroStep, UnitShape};
use nearfield_techniques::offload::plan::update;
use nearfield_techniques::offload::{Expansion, FlatModel, OffloadOptions, System, Upstream};

const ELEMENTS: u64 = 3_000_000;

/// The graphs of a step: gradients, then the update.
fn graphs(system: System, upstream: Upstream) -> [Graph; 2] {
    let options = OffloadOptions {
        system,
        upstream,
        subgroup_elements: 1 << 20,
        weights_dtype: DType::Bf16,
        expansion: match upstream {
            Upstream::Fp16Local => Expansion::Merged,
            Upstream::Fp32Storage => Expansion::Separate,
        },
        ..OffloadOptions::default()
    };
    let layout = layout(&FlatModel::single(ELEMENTS).unwrap(), &options, 2).unwrap();
    let unit = UnitShape {
        name: "block".into(),
        weight_elements: ELEMENTS,
        output_bytes: 4096,
        working_bytes: 0,
        score_bytes: 0,
        backward_weights: true,
        reads: Vec::new(),
        forward_flops: 1_000_000,
        forward: true,
        gradients: vec![(0, ELEMENTS)],
    };
    let gradient = gradient::plan(&layout, &options, &[unit], MicroStep::Offload).unwrap().0.graph;
    let parts: Vec<usize> = (0..layout.parts.len()).collect();
    [gradient, update::plan(&layout, &options, &parts).unwrap().graph]
}

fn simulate(graph: &Graph) -> Simulation {
    let fabric = Fabric::shipped("smartssd-falcon").unwrap().unwrap();
    let gpu = fabric.gpus.keys().next().cloned();
    let selection = Selection { gpu, ..Selection::drives(2) };
    VirtualExecutor::new(FabricCosts::new(&fabric, &selection).unwrap())
        .unwrap()
        .simulate(graph)
        .unwrap()
}

#[test]
fn steps_of_every_system_come_back_and_take_the_same_time() {
    let folder = tempfile::tempdir().unwrap();
    let mut kernels = BTreeSet::new();
    let systems = [System::Base, System::BasePipe, System::Su, System::SuO, System::SuOC];
    let upstreams = [Upstream::Fp16Local, Upstream::Fp32Storage];
    for (system, upstream) in systems.into_iter().flat_map(|s| upstreams.map(|u| (s, u))) {
        for graph in graphs(system, upstream) {
            let timeline = simulate(&graph).timeline;
            let stem = folder.path().join("step");
            let paths = chakra::write(&graph, Some(&timeline), &stem).unwrap();
            assert_eq!(paths, [folder.path().join("step.0.et")]);
            let read = chakra::read(&paths).unwrap();
            assert_eq!(format!("{read:?}"), format!("{graph:?}"), "{system:?} {upstream:?}");
            assert_eq!(simulate(&read).timeline.spans, timeline.spans);
            kernels.extend(graph.tasks().iter().filter_map(|task| match task.op {
                Op::Kernel { name, .. } => Some(name),
                _ => None,
            }));
        }
    }
    // All kernels that a technique has are known to the reader.
    let all = [
        "allocate",
        "cast",
        "check_pairs",
        "decompress",
        "release",
        "topk",
        "update",
        "update_topk",
    ];
    assert_eq!(kernels, BTreeSet::from(all));
}
