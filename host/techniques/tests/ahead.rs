//! Updates that are written ahead: the same state as without, whether the guess was right, wrong, or overturned.

#![allow(clippy::unwrap_used)] // A test fails by panicking.

mod toy;

use std::sync::Arc;

use nearfield_runtime::io::{FaultAction, FaultOperation, FaultRule, Faults};
use nearfield_runtime::types::{DType, Optimizer};
use nearfield_techniques::offload::plan::formulas;
use nearfield_techniques::offload::plan::gradient::MicroStep;
use nearfield_techniques::offload::{
    OffloadEngine, OffloadOptions, Placement, System, Upstream, WeightsPlace,
};
use toy::Toy;

const STEPS: u64 = 4;
const SIZE: u64 = 30_000;

fn options(system: System) -> OffloadOptions {
    OffloadOptions { system, subgroup_elements: 40_000, ..OffloadOptions::default() }
}

#[test]
fn the_state_is_that_of_a_run_without() {
    for optimizer in [Optimizer::Adamw, Optimizer::SgdMomentum] {
        for (drives, placement, upstream, pieces, moment_dtype, weights_dtype) in [
            (1, Placement::EqualRr, Upstream::Fp16Local, 4, DType::Fp32, DType::Fp32),
            (2, Placement::EqualRr, Upstream::Fp32Storage, 1, DType::Fp32, DType::Bf16),
            (3, Placement::SubgroupRr, Upstream::Fp16Local, 3, DType::Bf16, DType::Fp16),
            (4, Placement::FlatEqual, Upstream::Fp16Local, 4, DType::Fp32, DType::Fp32),
        ] {
            for system in [System::SuO, System::SuOC] {
                let without = OffloadOptions {
                    optimizer,
                    placement,
                    upstream,
                    pieces,
                    moment_dtype,
                    weights_dtype,
                    topk_keep: 0.2,
                    error_feedback: system == System::SuOC,
                    ..options(system)
                };
                let with = OffloadOptions { overlap_update: true, ..without.clone() };
                let expected = toy::run(without, drives, SIZE, STEPS);
                let found = toy::run(with, drives, SIZE, STEPS);
                assert!(found == expected, "{optimizer:?} {system:?} {drives} {placement:?}");
            }
        }
    }
}

/// A run that guesses right in some steps and wrong in others: digest and weights after each, and right guesses.
fn mixed(options: OffloadOptions, overturned_after: usize) -> (Vec<(String, Vec<u8>)>, u64) {
    let root = tempfile::tempdir().unwrap();
    let (model, units) = toy::model(SIZE);
    let drives = toy::directories(root.path(), 2);
    let config = toy::config(options.clone(), drives, units.clone());
    let mut engine =
        OffloadEngine::create(&config, model, false, &toy::record(0, 1.0), &toy::initial).unwrap();
    let (mut states, mut adopted) = (Vec::new(), 0);
    for (iteration, kind) in
        (1..).zip(["right", "clipped", "right", "overflow", "overturned", "right"])
    {
        let step = engine.step() + 1;
        let mut toy = Toy::new(iteration, 1.0, &options, &units);
        if kind == "overturned" {
            toy.overturned_after = overturned_after;
        }
        let expected = toy::record(step, 1.0);
        toy::gradients(&mut engine, &toy, 1.0, &expected).unwrap();
        let mut record = nearfield_runtime::store::StepRecord { iteration, ..expected };
        match kind {
            "overflow" => {
                record.step -= 1;
                engine.skip(&record).unwrap();
                states.push(toy::state(&engine));
                continue;
            }
            "clipped" | "overturned" => record.unscale = 0.25,
            _ => {}
        }
        adopted += u64::from(engine.is_ahead(&record));
        toy::update(&mut engine, &record).unwrap();
        states.push(toy::state(&engine));
    }
    (states, adopted)
}

#[test]
fn a_wrong_guess_leaves_nothing_behind() {
    for weights_dtype in [DType::Fp32, DType::Bf16] {
        let without = OffloadOptions { weights_dtype, ..options(System::SuO) };
        let with = OffloadOptions { overlap_update: true, ..without.clone() };
        let expected = mixed(without, 0);
        assert_eq!(expected.1, 0);
        for overturned_after in [0, 1, 2, 3, usize::MAX] {
            let found = mixed(with.clone(), overturned_after);
            assert_eq!(found.1, 3, "every right guess counts, and no other");
            assert!(found.0 == expected.0, "{overturned_after}");
        }
    }
}

#[test]
fn bytes_are_those_of_a_run_without_and_those_of_a_wrong_guess_are_counted() {
    for weights in [WeightsPlace::Host, WeightsPlace::Drive] {
        let options = OffloadOptions { overlap_update: true, weights, ..options(System::SuO) };
        let root = tempfile::tempdir().unwrap();
        let (model, units) = toy::model(SIZE);
        let drives = toy::directories(root.path(), 2);
        let config = toy::config(options.clone(), drives, units.clone());
        let mut engine =
            OffloadEngine::create(&config, model, false, &toy::record(0, 1.0), &toy::initial)
                .unwrap();
        let [ahead, adopt] = engine.blueprint().step_plans();
        let predicted = ahead.graph.traffic();
        assert_eq!(adopt.graph.traffic(), Default::default());
        if weights == WeightsPlace::Host {
            assert_eq!(predicted, formulas::step_traffic(engine.layout(), &options));
        }
        assert_eq!(engine.blueprint().traffic(1), predicted);
        toy::steps(&mut engine, &units, 2, 1.0).unwrap();
        assert_eq!(engine.traffic(), predicted.times(2));
        for overturned_after in [1, 2] {
            let before = engine.traffic();
            let mut toy = Toy::new(3, 1.0, &options, &units);
            toy.overturned_after = overturned_after;
            let timeline = engine.run_ahead(&toy, 1.0, &toy::record(3, 1.0)).unwrap();
            let moved = timeline.traffic(&engine.blueprint().step_plans()[0].graph);
            assert_eq!(engine.traffic() - before, moved);
            assert!(moved.media_write < predicted.media_write, "{moved:?}");
            assert!(!engine.is_ahead(&toy::record(3, 1.0)));
        }
    }
}

/// What a caller sees that goes on after an update was written ahead and neither adopted, made nor skipped.
#[test]
fn weights_of_an_update_that_does_not_count_are_not_used() {
    for weights_dtype in [DType::Fp32, DType::Bf16] {
        let options =
            OffloadOptions { overlap_update: true, weights_dtype, ..options(System::SuO) };
        let root = tempfile::tempdir().unwrap();
        let (model, units) = toy::model(SIZE);
        let drives = toy::directories(root.path(), 2);
        let config = toy::config(options.clone(), drives, units.clone());
        let mut engine =
            OffloadEngine::create(&config, model, false, &toy::record(0, 1.0), &toy::initial)
                .unwrap();
        toy::steps(&mut engine, &units, 1, 1.0).unwrap();
        let bytes = engine.weights().bytes() as usize;
        let seen = |engine: &OffloadEngine| {
            let mut weights = vec![0; bytes];
            engine.weight_source().copy_out(0, &mut weights).unwrap();
            weights
        };
        let before = seen(&engine);
        let toy = Toy::new(2, 1.0, &options, &units);
        engine.run_ahead(&toy, 1.0, &toy::record(2, 1.0)).unwrap();
        assert!(toy::state(&engine).1 != before, "they were written ahead");
        assert!(seen(&engine) == before, "but are not the model's");
        // Another micro-step begins with the right ones, as every unit sees.
        let toy = Toy::new(2, 1.0, &options, &units);
        engine.run_gradients(MicroStep::Accumulate, &toy, 1.0).unwrap();
        assert!(toy::state(&engine).1 == before);
        toy::steps(&mut engine, &units, STEPS, 1.0).unwrap();
        let plain = OffloadOptions { overlap_update: false, ..options };
        assert!(toy::state(&engine) == toy::run(plain, 2, SIZE, STEPS));
    }
}

/// A gradient that a drive returned wrong is found before anything is recorded.
#[test]
fn wrong_data_is_found_before_the_step_is_recorded() {
    let options = OffloadOptions { overlap_update: true, ..options(System::SuO) };
    let root = tempfile::tempdir().unwrap();
    let (model, units) = toy::model(SIZE);
    let drives = toy::directories(root.path(), 2);
    let faults = Arc::new(Faults::new(vec![FaultRule {
        operation: FaultOperation::Read,
        nth: 1,
        file: "gradients.nf".into(),
        action: FaultAction::FlipBit,
    }]));
    let mut config = toy::config(options.clone(), drives.clone(), units.clone());
    let create = |config: &_| {
        OffloadEngine::create(config, model.clone(), true, &toy::record(0, 1.0), &toy::initial)
    };
    let before = toy::state(&create(&config).unwrap());
    config.io.faults = Some(faults);
    let mut engine = create(&config).unwrap();
    let toy = Toy::new(1, 1.0, &options, &units);
    engine.run_ahead(&toy, 1.0, &toy::record(1, 1.0)).unwrap();
    let error = engine.adopt(&toy::record(1, 1.0)).unwrap_err().to_string();
    assert!(error.contains("gradient") && error.contains("checksum"), "{error}");
    drop(engine);
    config.io.faults = None;
    let (engine, recovered) = OffloadEngine::resume(&config, model).unwrap();
    assert_eq!((engine.step(), recovered.redo), (0, None));
    assert!(toy::state(&engine) == before);
}

#[test]
fn calls_out_of_turn_and_runs_that_cannot_are_refused() {
    let root = tempfile::tempdir().unwrap();
    let (model, units) = toy::model(SIZE);
    let drives = toy::directories(root.path(), 1);
    let plain = options(System::SuO);
    let config = toy::config(plain.clone(), drives.clone(), units.clone());
    let record = toy::record(0, 1.0);
    let create = |config, overwrite| {
        OffloadEngine::create(config, model.clone(), overwrite, &record, &toy::initial).unwrap()
    };
    let mut engine = create(&config, false);
    let toy = Toy::new(1, 1.0, &plain, &units);
    let error = engine.run_ahead(&toy, 1.0, &toy::record(1, 1.0)).unwrap_err().to_string();
    assert!(error.contains("--overlap-update"), "{error}");
    drop(engine);
    // A run that was begun without has no slots for it.
    let ahead = OffloadOptions { overlap_update: true, ..plain.clone() };
    let with = toy::config(ahead.clone(), drives.clone(), units.clone());
    let error = OffloadEngine::resume(&with, model.clone()).unwrap_err().to_string();
    assert!(error.contains("--overlap-update") && error.contains("slots"), "{error}");
    // One that was begun with them goes on without.
    let mut engine = create(&with, true);
    let error = engine.adopt(&toy::record(1, 1.0)).unwrap_err().to_string();
    assert!(error.contains("not written ahead"), "{error}");
    assert!(engine.run_ahead(&toy, 1.0, &toy::record(2, 1.0)).is_err());
    toy::steps(&mut engine, &units, 2, 1.0).unwrap();
    drop(engine);
    let mut engine = OffloadEngine::resume(&config, model.clone()).unwrap().0;
    toy::steps(&mut engine, &units, STEPS, 1.0).unwrap();
    assert_eq!(toy::state(&engine), toy::run(plain.clone(), 1, SIZE, STEPS));
    for system in [System::Memory, System::Base, System::BasePipe, System::Su] {
        let options = OffloadOptions { system, ..ahead.clone() };
        let error = options.validate().unwrap_err().to_string();
        assert!(error.contains("--overlap-update"), "{error}");
    }
}
