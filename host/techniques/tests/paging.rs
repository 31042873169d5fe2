//! Weights and outputs of units on drives: the same state, every byte counted, nothing in host memory that grows with the model.

#![allow(clippy::unwrap_used)] // A test fails by panicking.

mod toy;

use nearfield_runtime::types::DType;
use nearfield_techniques::offload::plan::formulas;
use nearfield_techniques::offload::plan::gradient::{MicroStep, UnitShape, paged_traffic};
use nearfield_techniques::offload::{
    ActivationPlace, OffloadEngine, OffloadOptions, Placement, System, WeightsPlace,
};
use toy::Toy;

const STEPS: u64 = 3;
const SIZE: u64 = 9_000;

fn options(system: System) -> OffloadOptions {
    OffloadOptions { system, subgroup_elements: 7_000, ..OffloadOptions::default() }
}

/// The toy's units with seven more, without weights, before the last.
fn deep_units() -> Vec<UnitShape> {
    let (_, mut units) = toy::model(SIZE);
    let extra = UnitShape {
        name: "extra".into(),
        output_bytes: 5_000,
        gradients: Vec::new(),
        reads: Vec::new(),
        ..units[1].clone()
    };
    let last = units.len() - 1;
    units.splice(last..last, std::iter::repeat_n(extra, 7));
    units
}

/// What a run leaves, and the weights that its units were given in each step.
struct Outcome {
    digest: String,
    loaded: Vec<Vec<(u64, Vec<u8>)>>,
}

fn run(options: &OffloadOptions, drives: u32, units: &[UnitShape]) -> Outcome {
    let root = toy::fast_directory();
    let (model, _) = toy::model(SIZE);
    let drives =
        if options.system.on_drives() { toy::directories(root.path(), drives) } else { vec![] };
    let config = toy::config(options.clone(), drives, units.to_vec());
    let record = toy::record(0, 1.0);
    let mut engine = OffloadEngine::create(&config, model, false, &record, &toy::initial).unwrap();
    let mut loaded = Vec::new();
    let before = engine.io_stats();
    for step in 1..=STEPS {
        let toy = Toy::new(step, 1.0, options, units);
        engine.run_gradients(MicroStep::Offload, &toy, 1.0).unwrap();
        engine.update(&toy::record(step, 1.0)).unwrap();
        loaded.push(toy.loaded.into_inner().unwrap().into_iter().collect());
    }
    if options.system.on_drives() {
        let formula = formulas::step_traffic(engine.layout(), options)
            + paged_traffic(engine.layout(), options, units);
        assert_eq!(engine.predicted_step_traffic(), formula);
        assert_eq!(engine.traffic(), formula.times(STEPS));
        let read = engine.io_stats().bytes_read - before.bytes_read;
        assert_eq!(read, formula.times(STEPS).media_read);
    }
    if options.weights == WeightsPlace::Drive {
        assert_eq!(engine.weights().bytes(), 0);
        assert_eq!(engine.budget().weights_bytes, 0);
    }
    // Reading outside of a step, anywhere.
    let width = options.weights_dtype.bytes();
    let elements = engine.layout().elements;
    let read = |first: u64, count: u64| {
        let mut bytes = vec![0; (count * width) as usize];
        engine.weight_source().copy_out(first, &mut bytes).unwrap();
        bytes
    };
    let all = read(0, elements);
    for first in [0, 1, 1023, 1025, 6_999, elements - 3] {
        let count = (elements - first).min(20_001);
        let expected = &all[(first * width) as usize..((first + count) * width) as usize];
        assert!(read(first, count) == expected, "{first}");
    }
    loaded.push(vec![(0, all)]);
    Outcome { digest: engine.digest().unwrap(), loaded }
}

#[test]
fn weights_from_drives_are_those_of_host_memory() {
    let (_, units) = toy::model(SIZE);
    for weights_dtype in [DType::Fp32, DType::Bf16, DType::Fp16] {
        let with = |system| OffloadOptions { weights_dtype, ..options(system) };
        let expected = run(&with(System::Memory), 1, &units);
        for system in [System::Base, System::BasePipe, System::Su, System::SuO] {
            for (drives, placement) in
                [(1, Placement::EqualRr), (3, Placement::SubgroupRr), (4, Placement::FlatEqual)]
            {
                let weights = WeightsPlace::Drive;
                let options = OffloadOptions { placement, weights, ..with(system) };
                let found = run(&options, drives, &units);
                assert_eq!(found.digest, expected.digest);
                assert!(found.loaded == expected.loaded, "{weights_dtype:?} {system:?} {drives}");
            }
        }
    }
}

#[test]
fn outputs_come_back_from_the_drives_as_they_left() {
    let units = deep_units();
    let expected = run(&options(System::Memory), 1, &units);
    for drives in [1, 2, 5, 12] {
        for activations in [ActivationPlace::Device, ActivationPlace::Host, ActivationPlace::Drive]
        {
            let weights = if drives == 2 { WeightsPlace::Drive } else { WeightsPlace::Host };
            let options = OffloadOptions { activations, weights, ..options(System::SuO) };
            let found = run(&options, drives, &units);
            assert_eq!(found.digest, expected.digest, "{activations:?} on {drives} drives");
        }
    }
}

#[test]
fn nothing_is_left_beside_the_state_and_a_run_resumes() {
    let root = toy::fast_directory();
    let drives = toy::directories(root.path(), 2);
    let units = deep_units();
    let options = OffloadOptions {
        activations: ActivationPlace::Drive,
        weights: WeightsPlace::Drive,
        ..options(System::SuO)
    };
    let (model, _) = toy::model(SIZE);
    let config = toy::config(options.clone(), drives.clone(), units.clone());
    let record = toy::record(0, 1.0);
    let mut engine =
        OffloadEngine::create(&config, model.clone(), false, &record, &toy::initial).unwrap();
    toy::steps(&mut engine, &units, 2, 1.0).unwrap();
    drop(engine);
    let names: Vec<_> = std::fs::read_dir(&drives[0])
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    assert!(names.iter().all(|name| !name.contains("activations")), "{names:?}");
    let (mut engine, recovered) = OffloadEngine::resume(&config, model.clone()).unwrap();
    assert_eq!(recovered.step, 2);
    toy::steps(&mut engine, &units, STEPS, 1.0).unwrap();
    let digest = engine.digest().unwrap();
    drop(engine);
    assert_eq!(digest, run(&options, 2, &units).digest);
    // The state does not say where weights were: it goes on with a copy in host memory as well.
    let host = OffloadOptions { weights: WeightsPlace::Host, ..options };
    let config = toy::config(host, drives, units);
    assert_eq!(OffloadEngine::resume(&config, model).unwrap().0.digest().unwrap(), digest);
}

#[test]
fn a_system_without_drives_is_refused() {
    for change in [
        |options: &mut OffloadOptions| options.weights = WeightsPlace::Drive,
        |options: &mut OffloadOptions| options.activations = ActivationPlace::Drive,
    ] {
        let mut options = options(System::Memory);
        change(&mut options);
        assert!(options.validate().unwrap_err().to_string().contains("--system memory"));
    }
}
