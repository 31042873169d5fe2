//! The same graphs for real and in virtual time: equal bytes, equal state.
#![allow(clippy::unwrap_used)] // A test fails by panicking.
#![allow(dead_code)] // Not all of the shared toy model is used here.

#[path = "../../host/techniques/tests/toy/mod.rs"]
mod toy;

use std::sync::Arc;

use nearfield_runtime::graph::{Graph, Traffic};
use nearfield_runtime::types::DType;
use nearfield_sim::fabric::{Fabric, FabricCosts, Selection};
use nearfield_sim::{LinkUse, VirtualExecutor};
use nearfield_techniques::offload::plan::gradient::MicroStep;
use nearfield_techniques::offload::{OffloadEngine, OffloadOptions, System, Upstream};

fn machine(drives: u32) -> VirtualExecutor<FabricCosts> {
    let fabric = Fabric::shipped("smartssd-falcon").unwrap().unwrap();
    let selection = Selection { gpu: Some("a5000".into()), ..Selection::drives(drives) };
    VirtualExecutor::new(FabricCosts::new(&fabric, &selection).unwrap()).unwrap()
}

/// Bytes that the links of the machine have carried, as the counters of real devices name them.
fn carried(links: &[LinkUse]) -> Traffic {
    let sum = |wanted: &dyn Fn(&str) -> bool| -> u64 {
        links.iter().filter(|link| wanted(&link.name)).map(|link| link.bytes).sum()
    };
    let media = |kind: &'static str| {
        sum(&|name| name.starts_with("drive") && !name.contains("peer") && name.ends_with(kind))
    };
    // What flash and FPGA exchange passes the card, but not the port of the card.
    let (up, down) = (
        sum(&|name| name.starts_with("port") && name.ends_with("to box")),
        sum(&|name| name.starts_with("port") && name.ends_with("to card")),
    );
    let fpga = |end: &'static str| sum(&|name| name.starts_with("fpga") && name.ends_with(end));
    let ssd = |end: &'static str| sum(&|name| name.starts_with("ssd") && name.ends_with(end));
    // Weights fetched from the FPGA's memory leave it without having been read from flash.
    let fetched = (up + fpga("to local")) - ssd("to card");
    Traffic {
        shared_down: down,
        shared_up: up,
        internal_read: fpga("to local"),
        internal_write: fpga("to card") - fetched,
        media_read: media(".read"),
        media_write: media(".write"),
    }
}

#[test]
fn simulated_links_carry_what_real_devices_count_to_the_byte() {
    for (system, upstream) in [
        (System::Base, Upstream::Fp16Local),
        (System::BasePipe, Upstream::Fp32Storage),
        (System::Su, Upstream::Fp32Storage),
        (System::SuO, Upstream::Fp16Local),
        (System::SuO, Upstream::Fp32Storage),
        (System::SuOC, Upstream::Fp32Storage),
        (System::SuOC, Upstream::Fp16Local),
    ] {
        for drives in [1, 4] {
            let options = OffloadOptions {
                system,
                upstream,
                weights_dtype: DType::Fp16,
                subgroup_elements: 30_000,
                ..OffloadOptions::default()
            };
            let root = tempfile::tempdir().unwrap();
            let (model, units) = toy::model(20_000);
            let config = toy::config(options, toy::directories(root.path(), drives), units.clone());
            let record = toy::record(0, 1.0);
            let mut engine =
                OffloadEngine::create(&config, model, false, &record, &toy::initial).unwrap();
            let before = engine.traffic();
            toy::steps(&mut engine, &units, 3, 1.0).unwrap();
            let counted = engine.traffic() - before;
            let run = |graph: &Graph| carried(&machine(drives).simulate(graph).unwrap().links);
            let gradients = run(&engine.gradient_plan(MicroStep::Offload).graph);
            let update = run(engine.update_graph());
            assert_eq!(counted, (gradients + update).times(3), "{system:?} {upstream:?} {drives}");
        }
    }
}

#[test]
fn training_in_virtual_time_is_the_same_training() {
    for system in [System::Base, System::Su, System::SuO, System::SuOC] {
        let options =
            OffloadOptions { system, subgroup_elements: 30_000, ..OffloadOptions::default() };
        let run = |virtually: bool| {
            let root = tempfile::tempdir().unwrap();
            let (model, units) = toy::model(20_000);
            let dirs = toy::directories(root.path(), 3);
            let config = toy::config(options.clone(), dirs, units.clone());
            let record = toy::record(0, 1.0);
            let mut engine =
                OffloadEngine::create(&config, model, false, &record, &toy::initial).unwrap();
            if virtually {
                engine.set_executor(Arc::new(machine(3)));
            }
            toy::steps(&mut engine, &units, 4, 1.0).unwrap();
            toy::state(&engine)
        };
        assert!(run(true) == run(false), "{system:?}");
    }
}
