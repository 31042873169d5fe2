//! A state goes from one set of drives to another: the same digest, and the same run from there on.

#![allow(clippy::unwrap_used)] // A test fails by panicking.

mod toy;

use nearfield_runtime::Result;
use nearfield_runtime::store::StateReader;
use nearfield_runtime::types::{DType, Optimizer, Variable};
use nearfield_techniques::offload::{
    InitialState, OffloadEngine, OffloadOptions, Placement, System,
};

struct Other(StateReader);

impl InitialState for Other {
    fn read(&self, variable: Variable, first: u64, out: &mut [f32]) -> Result<()> {
        self.0.read(variable, first, out)
    }

    fn is_zero(&self, _: Variable) -> bool {
        false
    }
}

#[test]
fn a_state_moves_to_any_number_of_drives_and_goes_on_the_same() {
    const SIZE: u64 = 9_000;
    for optimizer in [Optimizer::Adamw, Optimizer::SgdMomentum] {
        let from =
            OffloadOptions { optimizer, subgroup_elements: 7_000, ..OffloadOptions::default() };
        let root = toy::fast_directory();
        let (model, units) = toy::model(SIZE);
        let drives = toy::directories(root.path(), 3);
        let config = toy::config(from.clone(), drives.clone(), units.clone());
        let record = toy::record(0, 1.0);
        let mut engine =
            OffloadEngine::create(&config, model.clone(), false, &record, &toy::initial).unwrap();
        toy::steps(&mut engine, &units, 3, 1.0).unwrap();
        let digest = engine.digest().unwrap();
        toy::steps(&mut engine, &units, 5, 1.0).unwrap();
        let end = engine.digest().unwrap();
        drop(engine);
        // The run as it was after three steps.
        let again = toy::fast_directory();
        let drives = toy::directories(again.path(), 3);
        let config = toy::config(from.clone(), drives.clone(), units.clone());
        let mut engine =
            OffloadEngine::create(&config, model.clone(), false, &record, &toy::initial).unwrap();
        toy::steps(&mut engine, &units, 3, 1.0).unwrap();
        drop(engine);
        let reader = Other(StateReader::open(&drives).unwrap());
        assert_eq!((reader.0.step(), reader.0.digest().unwrap()), (3, digest.clone()));
        assert_eq!(reader.0.blob(), b"after step 3");
        for (count, system, placement) in [
            (1, System::SuO, Placement::EqualRr),
            (5, System::Base, Placement::FlatEqual),
            (2, System::Su, Placement::SubgroupRr),
            (0, System::Memory, Placement::EqualRr),
        ] {
            let options =
                OffloadOptions { system, placement, subgroup_elements: 4_000, ..from.clone() };
            let root = toy::fast_directory();
            let drives = toy::directories(root.path(), count);
            let config = toy::config(options, drives.clone(), units.clone());
            let record = toy::record(3, 1.0);
            let engine =
                OffloadEngine::create(&config, model.clone(), false, &record, &reader).unwrap();
            assert_eq!(engine.digest().unwrap(), digest, "{count} drives");
            let mut engine = if count > 0 {
                drop(engine);
                let (engine, recovered) = OffloadEngine::resume(&config, model.clone()).unwrap();
                assert_eq!((recovered.step, recovered.iteration), (3, 3));
                engine
            } else {
                engine
            };
            toy::steps(&mut engine, &units, 5, 1.0).unwrap();
            assert_eq!(engine.digest().unwrap(), end, "{count} drives");
        }
        let mut out = [0.0; 4];
        assert!(reader.0.read(Variable::Gradient, 0, &mut out).is_err());
        assert!(reader.0.read(Variable::Param, u64::MAX - 3, &mut out[..1]).is_err());
    }
}

/// Moments of two bytes in parts of several blocks, each block of whole pages: also where residuals have memory of their own.
#[test]
fn narrow_moments_move_in_whole_pages() {
    let moment_dtype = DType::Bf16;
    for (size, error_feedback) in [(9_000, true), (20_000, true), (30_000, false)] {
        let from = OffloadOptions { moment_dtype, ..OffloadOptions::default() };
        let (model, units) = toy::model(size);
        let root = tempfile::tempdir().unwrap();
        let drives = toy::directories(root.path(), 2);
        let config = toy::config(from, drives.clone(), units.clone());
        let record = toy::record(0, 1.0);
        let mut engine =
            OffloadEngine::create(&config, model.clone(), false, &record, &toy::initial).unwrap();
        toy::steps(&mut engine, &units, 3, 1.0).unwrap();
        let digest = engine.digest().unwrap();
        drop(engine);
        let reader = Other(StateReader::open(&drives).unwrap());
        assert_eq!(reader.0.moments(), moment_dtype);
        let system = System::SuOC;
        let to =
            OffloadOptions { system, error_feedback, moment_dtype, ..OffloadOptions::default() };
        let drives = toy::directories(&root.path().join("to"), 1);
        let config = toy::config(to, drives, units.clone());
        let record = toy::record(3, 1.0);
        let engine = OffloadEngine::create(&config, model, false, &record, &reader).unwrap();
        assert_eq!(engine.digest().unwrap(), digest, "{size}");
    }
}
