//! Every system, number of drives, placement, format and cut gives the same bits.

#![allow(clippy::unwrap_used)] // A test fails by panicking.

mod toy;

use std::sync::Arc;

use nearfield_hls::NativeKernels;
use nearfield_runtime::device::SpeedLimits;
use nearfield_runtime::types::{DType, Optimizer};
use nearfield_techniques::offload::plan::formulas;
use nearfield_techniques::offload::{
    DeviceChoice, OffloadEngine, OffloadOptions, Placement, System, Upstream,
};

const STEPS: u64 = 4;

fn options(system: System) -> OffloadOptions {
    OffloadOptions { system, subgroup_elements: 70_000, ..OffloadOptions::default() }
}

#[test]
fn every_system_number_of_drives_and_placement_has_the_digest_of_memory() {
    for optimizer in [Optimizer::Adamw, Optimizer::Adam, Optimizer::Adagrad, Optimizer::SgdMomentum]
    {
        let with = |system| OffloadOptions { optimizer, ..options(system) };
        let expected = toy::run(with(System::Memory), 1, 9_000, STEPS);
        for system in [System::Base, System::BasePipe, System::Su, System::SuO] {
            for (drives, placement, upstream) in [
                (1, Placement::FlatEqual, Upstream::Fp16Local),
                (2, Placement::SubgroupRr, Upstream::Fp32Storage),
                (3, Placement::FlatEqual, Upstream::Fp32Storage),
                (6, Placement::SubgroupRr, Upstream::Fp16Local),
                (10, Placement::FlatEqual, Upstream::Fp16Local),
            ] {
                let options = OffloadOptions { placement, upstream, ..with(system) };
                let found = toy::run(options, drives, 9_000, STEPS);
                assert!(found == expected, "{optimizer:?} {system:?} {drives} {placement:?}");
            }
        }
    }
}

#[test]
fn pieces_formats_and_upstream_do_not_change_the_state() {
    let expected = toy::run(options(System::Memory), 1, 40_000, STEPS);
    for (pieces, subgroup_elements) in [(1, 300_000), (3, 300_000), (4, 1_000_000)] {
        let options = OffloadOptions { pieces, subgroup_elements, ..options(System::SuO) };
        assert!(toy::run(options, 2, 40_000, STEPS) == expected, "{pieces} pieces");
    }
    for weights_dtype in [DType::Fp16, DType::Bf16] {
        let base = OffloadOptions { weights_dtype, ..options(System::Memory) };
        let (digest, weights) = toy::run(base.clone(), 1, 40_000, STEPS);
        assert_eq!(digest, expected.0);
        for system in [System::Base, System::Su, System::SuO] {
            for upstream in [Upstream::Fp16Local, Upstream::Fp32Storage] {
                let options = OffloadOptions { system, upstream, ..base.clone() };
                let found = toy::run(options, 2, 40_000, STEPS);
                assert!(found.0 == digest && found.1 == weights, "{system:?} {upstream:?}");
            }
        }
    }
    for gradient_dtype in [DType::Fp16, DType::Bf16] {
        for system in [System::Memory, System::BasePipe, System::SuO] {
            let options = OffloadOptions { gradient_dtype, ..options(system) };
            assert!(
                toy::run(options, 2, 40_000, STEPS) == expected,
                "{system:?} {gradient_dtype:?}"
            );
        }
    }
}

#[test]
fn narrow_moments_are_the_same_on_every_system_number_of_drives_and_cut() {
    let moment_dtype = DType::Bf16;
    for optimizer in [Optimizer::Adamw, Optimizer::Adagrad, Optimizer::SgdMomentum] {
        let with = |system| OffloadOptions { optimizer, moment_dtype, ..options(system) };
        let expected = toy::run(with(System::Memory), 1, 40_000, STEPS);
        let wide = OffloadOptions { optimizer, ..options(System::Memory) };
        assert_ne!(toy::run(wide, 1, 40_000, STEPS).0, expected.0);
        for system in [System::Base, System::BasePipe, System::Su, System::SuO] {
            for (drives, placement, pieces, gradient_dtype) in [
                (1, Placement::FlatEqual, 4, DType::Fp32),
                (3, Placement::SubgroupRr, 1, DType::Bf16),
                (10, Placement::EqualRr, 3, DType::Fp32),
            ] {
                let options = OffloadOptions { placement, pieces, gradient_dtype, ..with(system) };
                let options = OffloadOptions { subgroup_elements: 150_000, ..options };
                let found = toy::run(options, drives, 40_000, STEPS);
                assert!(found == expected, "{optimizer:?} {system:?} {drives} {placement:?}");
            }
        }
    }
}

#[test]
fn keeping_everything_equals_no_compression() {
    let expected = toy::run(options(System::SuO), 2, 9_000, STEPS);
    let options = OffloadOptions { topk_keep: 1.0, ..options(System::SuOC) };
    assert_eq!(toy::run(options, 2, 9_000, STEPS), expected);
}

#[test]
fn compression_does_not_depend_on_pieces_or_upstream() {
    for error_feedback in [false, true] {
        let with = |pieces, upstream| OffloadOptions {
            topk_keep: 0.05,
            error_feedback,
            pieces,
            upstream,
            subgroup_elements: 400_000,
            ..options(System::SuOC)
        };
        let expected = toy::run(with(1, Upstream::Fp16Local), 1, 40_000, STEPS);
        assert_eq!(toy::run(with(4, Upstream::Fp32Storage), 1, 40_000, STEPS), expected);
        let dense = toy::run(options(System::SuO), 1, 40_000, STEPS);
        assert_ne!(dense.0, expected.0);
    }
}

#[test]
fn measured_bytes_equal_the_graph_and_the_formula() {
    for system in [System::Base, System::BasePipe, System::Su, System::SuO, System::SuOC] {
        for upstream in [Upstream::Fp16Local, Upstream::Fp32Storage] {
            for (drives, error_feedback) in [(1, false), (3, system == System::SuOC)] {
                let moment_dtype = if drives == 1 { DType::Fp32 } else { DType::Bf16 };
                let options =
                    OffloadOptions { upstream, error_feedback, moment_dtype, ..options(system) };
                let root = tempfile::tempdir().unwrap();
                let (model, units) = toy::model(30_000);
                let drives = toy::directories(root.path(), drives);
                let config = toy::config(options.clone(), drives, units.clone());
                let record = toy::record(0, 1.0);
                let mut engine =
                    OffloadEngine::create(&config, model, false, &record, &toy::initial).unwrap();
                let before = engine.io_stats();
                let metadata = engine.metadata_bytes();
                toy::steps(&mut engine, &units, 3, 1.0).unwrap();
                let formula = formulas::step_traffic(engine.layout(), &options).times(3);
                assert_eq!(engine.traffic(), formula, "{system:?} {upstream:?}");
                assert_eq!(engine.predicted_step_traffic().times(3), formula);
                let written = engine.io_stats().bytes_written - before.bytes_written;
                let metadata = engine.metadata_bytes() - metadata;
                assert_eq!(written, formula.media_write + metadata);
                assert_eq!(engine.io_stats().bytes_read - before.bytes_read, formula.media_read);
                let (peak, allocations) = engine.local_memory();
                match system {
                    System::SuO | System::SuOC => {
                        let largest = (0..engine.layout().drives)
                            .map(|d| formulas::local_memory_bytes(engine.layout(), &options, d));
                        assert_eq!(Some(peak), largest.max());
                    }
                    System::Su => {
                        assert_eq!(allocations, 3 * 4 * engine.layout().parts.len() as u64)
                    }
                    _ => assert_eq!(allocations, 0),
                }
            }
        }
    }
}

#[test]
fn the_fpga_kernels_give_the_same_bits_as_those_of_the_processor() {
    for system in [System::Su, System::SuO, System::SuOC] {
        for moment_dtype in [DType::Fp32, DType::Bf16] {
            for gradient_dtype in [DType::Fp32, DType::Fp16] {
                if system == System::SuOC && gradient_dtype == DType::Fp16 {
                    continue;
                }
                let options = OffloadOptions {
                    moment_dtype,
                    gradient_dtype,
                    weights_dtype: DType::Fp16,
                    topk_keep: 0.05,
                    ..options(system)
                };
                let expected = toy::run(options.clone(), 2, 9_000, 3);
                let root = tempfile::tempdir().unwrap();
                let (model, units) = toy::model(9_000);
                let directories = toy::directories(root.path(), 2);
                let mut config = toy::config(options, directories, units.clone());
                config.device = DeviceChoice::Emulated {
                    kernels: Some(Arc::new(NativeKernels)),
                    limits: SpeedLimits::default(),
                    shared: None,
                };
                let record = toy::record(0, 1.0);
                let mut engine =
                    OffloadEngine::create(&config, model, false, &record, &toy::initial).unwrap();
                toy::steps(&mut engine, &units, 3, 1.0).unwrap();
                assert_eq!(toy::state(&engine), expected, "{system:?} {moment_dtype:?}");
            }
        }
    }
}

#[test]
fn an_emulated_device_gives_the_same_bits_and_keeps_to_its_limits() {
    let options = options(System::SuO);
    let expected = toy::run(options.clone(), 1, 9_000, 2);
    let root = tempfile::tempdir().unwrap();
    let (model, units) = toy::model(9_000);
    let mut config = toy::config(options, toy::directories(root.path(), 1), units.clone());
    let (read, write, shared) = (40_000_000, 25_000_000, 50_000_000);
    let limits = SpeedLimits { media_read: Some(read), media_write: Some(write), internal: None };
    config.device = DeviceChoice::Emulated { kernels: None, limits, shared: Some(shared) };
    let mut engine =
        OffloadEngine::create(&config, model, false, &toy::record(0, 1.0), &toy::initial).unwrap();
    assert!(engine.describe().contains("emulated"));
    let begin = std::time::Instant::now();
    toy::steps(&mut engine, &units, 2, 1.0).unwrap();
    let seconds = begin.elapsed().as_secs_f64();
    assert_eq!(toy::state(&engine), expected);
    let traffic = engine.traffic();
    assert_eq!(traffic, engine.predicted_step_traffic().times(2));
    for (bytes, rate) in [
        (traffic.media_read, read),
        (traffic.media_write, write),
        (traffic.shared_down, shared),
        (traffic.shared_up, shared),
    ] {
        let least = bytes as f64 / rate as f64;
        assert!(seconds >= least && least > 0.01, "{bytes} bytes at {rate} in {seconds} s");
    }
}
