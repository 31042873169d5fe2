//! A run that ends anywhere continues at step t or t+1, and its state is that of a run that never ended.

mod toy;

use std::path::Path;
use std::sync::Arc;

use nearfield_runtime::io::{FaultAction, FaultOperation, FaultRule, Faults};
use nearfield_runtime::{Error, Result};
use nearfield_techniques::offload::plan::gradient::UnitShape;
use nearfield_techniques::offload::{
    EngineConfig, FlatModel, OffloadEngine, OffloadOptions, System,
};

const LAST: u64 = 3;
const DRIVES: u32 = 2;

fn options(system: System, error_feedback: bool) -> OffloadOptions {
    OffloadOptions {
        system,
        subgroup_elements: 2048,
        topk_keep: 0.3,
        error_feedback,
        ..OffloadOptions::default()
    }
}

struct Case {
    root: tempfile::TempDir,
    model: FlatModel,
    units: Vec<UnitShape>,
    config: EngineConfig,
}

impl Case {
    fn new(options: OffloadOptions) -> Self {
        let root = tempfile::tempdir().unwrap();
        let (model, units) = toy::model(350);
        let drives = toy::directories(root.path(), DRIVES);
        let config = toy::config(options, drives, units.clone());
        Self { root, model, units, config }
    }

    fn create(&self, config: &EngineConfig) -> Result<OffloadEngine> {
        OffloadEngine::create(
            config,
            self.model.clone(),
            false,
            &toy::record(0, 1.0),
            &toy::initial,
        )
    }

    fn with_faults(&self, faults: &Arc<Faults>) -> EngineConfig {
        let mut config = self.config.clone();
        config.io.faults = Some(Arc::clone(faults));
        config
    }

    /// Opens the drives again, checks where they stand, and finishes the run.
    fn resume_and_finish(&self, at_least: u64) -> String {
        let (mut engine, recovered) =
            OffloadEngine::resume(&self.config, self.model.clone()).unwrap();
        let step = engine.step();
        assert!(step >= at_least && step <= LAST, "resumed at {step}, not from {at_least} on");
        assert_eq!(recovered.blob, format!("after step {step}").into_bytes());
        assert_eq!(recovered.iteration, step);
        toy::steps(&mut engine, &self.units, LAST, 1.0).unwrap();
        engine.digest().unwrap()
    }
}

fn expected(options: &OffloadOptions) -> String {
    let case = Case::new(options.clone());
    let mut engine = case.create(&case.config).unwrap();
    toy::steps(&mut engine, &case.units, LAST, 1.0).unwrap();
    engine.digest().unwrap()
}

/// Requests that creation takes, and those that the whole run takes.
fn requests(options: &OffloadOptions) -> (u64, u64) {
    let case = Case::new(options.clone());
    let faults = Arc::new(Faults::new(Vec::new()));
    let mut engine = case.create(&case.with_faults(&faults)).unwrap();
    let created = faults.requests();
    toy::steps(&mut engine, &case.units, LAST, 1.0).unwrap();
    (created, faults.requests())
}

fn crash_at(nth: u64) -> FaultRule {
    FaultRule {
        operation: FaultOperation::Any,
        nth,
        file: String::new(),
        action: FaultAction::Crash,
    }
}

/// Runs until the injected crash; returns the steps that had surely been done.
fn run_until_crash(case: &Case, faults: &Arc<Faults>) -> u64 {
    let config = case.with_faults(faults);
    let Ok(mut engine) = case.create(&config) else { return 0 };
    // The error itself is the point of the test; what counts is what the drives hold.
    let _ = toy::steps(&mut engine, &case.units, LAST, 1.0);
    engine.step()
}

#[test]
fn a_crash_at_every_io_boundary_is_survived() {
    for (system, feedback, stride) in [
        (System::SuO, false, 1),
        (System::BasePipe, false, 3),
        (System::Su, false, 5),
        (System::SuOC, true, 2),
    ] {
        let options = options(system, feedback);
        let expected = expected(&options);
        let (created, all) = requests(&options);
        for nth in (created + 1..=all).step_by(stride) {
            let case = Case::new(options.clone());
            let faults = Arc::new(Faults::new(vec![crash_at(nth)]));
            let done = run_until_crash(&case, &faults);
            assert!(faults.crashed(), "request {nth} of {all}");
            assert_eq!(
                case.resume_and_finish(done),
                expected,
                "{system:?}, crash at request {nth}"
            );
        }
    }
}

#[test]
fn a_power_cut_that_drops_or_tears_unflushed_writes_is_survived() {
    let systems =
        [(System::SuO, false), (System::Base, false), (System::SuOC, true), (System::Su, false)];
    for (index, &(system, feedback)) in systems.iter().enumerate() {
        let options = options(system, feedback);
        let expected = expected(&options);
        let (created, all) = requests(&options);
        for seed in 0..60_u64 {
            let case = Case::new(options.clone());
            let nth = created + 1 + (seed * 7919 + index as u64 * 31) % (all - created);
            let faults = Arc::new(Faults::tracking(vec![crash_at(nth)]));
            let done = run_until_crash(&case, &faults);
            faults.power_cut(seed).unwrap();
            let found = case.resume_and_finish(done);
            assert_eq!(found, expected, "{system:?}, crash at request {nth}, seed {seed}");
        }
    }
}

#[test]
fn a_crash_while_an_interrupted_step_is_redone_is_survived() {
    let options = options(System::SuO, false);
    let expected = expected(&options);
    let (created, all) = requests(&options);
    for first in (created + 10..all).step_by(7) {
        for second in [20, 45, 70, 90] {
            let case = Case::new(options.clone());
            let done = run_until_crash(&case, &Arc::new(Faults::new(vec![crash_at(first)])));
            let again = Arc::new(Faults::tracking(vec![crash_at(second)]));
            // Whether the second crash hits the redo, a later step, or nothing depends on where the first one did.
            if let Ok((mut engine, _)) =
                OffloadEngine::resume(&case.with_faults(&again), case.model.clone())
            {
                let _ = toy::steps(&mut engine, &case.units, LAST, 1.0);
            }
            again.power_cut(first + second).unwrap();
            assert_eq!(case.resume_and_finish(done), expected, "{first} then {second}");
        }
    }
}

#[test]
fn a_crash_during_creation_is_recognised() {
    let options = options(System::SuO, false);
    let (created, _) = requests(&options);
    for nth in [1, created / 3, created / 2] {
        let case = Case::new(options.clone());
        let faults = Arc::new(Faults::new(vec![crash_at(nth)]));
        assert!(case.create(&case.with_faults(&faults)).is_err());
        let error = OffloadEngine::resume(&case.config, case.model.clone()).unwrap_err();
        assert!(error.to_string().contains("interrupted"), "{error}");
        // Nothing but a fresh start is needed.
        case.create(&case.config).unwrap();
    }
}

#[test]
fn a_skipped_iteration_changes_nothing_but_the_trainers_state() {
    let options = options(System::SuOC, true);
    let case = Case::new(options.clone());
    let mut engine = case.create(&case.config).unwrap();
    toy::steps(&mut engine, &case.units, 1, 1.0).unwrap();
    let digest = engine.digest().unwrap();
    let toy = toy::Toy { step: 99, scale: 1.0, dtype: options.gradient_dtype, units: &case.units };
    let offload = nearfield_techniques::offload::plan::gradient::MicroStep::Offload;
    engine.run_gradients(offload, &toy, 1.0).unwrap();
    let mut record = toy::record(1, 1.0);
    (record.iteration, record.blob) = (2, b"skipped".to_vec());
    engine.skip(&record).unwrap();
    assert_eq!(engine.digest().unwrap(), digest);
    drop(engine);
    let (mut engine, recovered) = OffloadEngine::resume(&case.config, case.model.clone()).unwrap();
    assert_eq!((recovered.iteration, recovered.blob), (2, b"skipped".to_vec()));
    assert_eq!(engine.digest().unwrap(), digest);
    toy::steps(&mut engine, &case.units, LAST, 1.0).unwrap();
    assert_eq!(engine.digest().unwrap(), expected(&options));
}

fn failing(operation: FaultOperation, errno: i32, file: &str, nth: u64) -> Vec<FaultRule> {
    vec![FaultRule { operation, nth, file: file.into(), action: FaultAction::Fail(errno) }]
}

#[test]
fn a_failing_drive_is_named_and_the_run_continues_after_repair() {
    let options = options(System::SuO, false);
    let expected = expected(&options);
    for (operation, errno, file) in [
        (FaultOperation::Read, libc::EIO, "drive1/slots.nf"),
        (FaultOperation::Write, libc::EIO, "drive0/slots.nf"),
        (FaultOperation::Write, libc::ENOSPC, "drive1/gradients.nf"),
        (FaultOperation::Write, libc::EROFS, "drive1/journal.nf"),
        (FaultOperation::Flush, libc::EIO, "drive0/slots.nf"),
        (FaultOperation::Flush, libc::EIO, "drive1/gradients.nf"),
        (FaultOperation::Read, libc::ENODEV, "drive0/slots.nf"),
    ] {
        let case = Case::new(options.clone());
        let mut engine = case.create(&case.config).unwrap();
        toy::steps(&mut engine, &case.units, 1, 1.0).unwrap();
        drop(engine);
        // Skips what opening itself reads and writes.
        let counted = Arc::new(Faults::new(failing(operation, errno, file, u64::MAX)));
        drop(OffloadEngine::resume(&case.with_faults(&counted), case.model.clone()).unwrap());
        let mut failed = None;
        for nth in 1..200 {
            let faults = Arc::new(Faults::new(failing(operation, errno, file, nth)));
            let Ok((mut engine, _)) =
                OffloadEngine::resume(&case.with_faults(&faults), case.model.clone())
            else {
                continue;
            };
            failed = toy::steps(&mut engine, &case.units, LAST, 1.0).err();
            break;
        }
        let error = failed.expect("the fault hits a step").to_string();
        assert!(error.contains(file), "{error}");
        assert_eq!(case.resume_and_finish(1), expected, "{operation:?} {errno} {file}");
    }
}

fn flip(path: &Path, offset: u64) {
    use std::os::unix::fs::FileExt;
    let file = std::fs::OpenOptions::new().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, offset).unwrap();
    byte[0] ^= 4;
    file.write_all_at(&byte, offset).unwrap();
    file.sync_all().unwrap();
}

/// What a run on damaged drives reports, from opening to its last step.
fn outcome(case: &Case) -> Result<()> {
    let (mut engine, _) = OffloadEngine::resume(&case.config, case.model.clone())?;
    toy::steps(&mut engine, &case.units, LAST, 1.0)
}

#[test]
fn a_flipped_bit_in_any_state_file_is_detected_and_named() {
    for name in ["superblock.nf", "layout.nf", "slots.nf", "journal.nf"] {
        let case = Case::new(options(System::SuO, false));
        let mut engine = case.create(&case.config).unwrap();
        toy::steps(&mut engine, &case.units, 1, 1.0).unwrap();
        drop(engine);
        let path = case.root.path().join("drive1").join(name);
        let length = std::fs::metadata(&path).unwrap().len();
        let mut detected = 0;
        let places: Vec<u64> = match name {
            "slots.nf" => (0..length / 4096).map(|page| page * 4096 + 40).collect(),
            "journal.nf" => vec![40, 4096 + 40, 2 * 4096 + 41],
            _ => vec![0, 9, 40, 100],
        };
        for offset in &places {
            flip(&path, *offset);
            let text = match outcome(&case) {
                Ok(()) => {
                    // Only what holds no current state may be damaged without notice; verification agrees.
                    assert_eq!(name, "slots.nf");
                    assert!(
                        nearfield_runtime::store::verify(&case.config.drives, &mut |_| {})
                            .unwrap()
                            .is_empty()
                    );
                    return;
                }
                Err(error) => error.root().to_string(),
            };
            assert!(text.contains("drive1"), "{name} at {offset}: {text}");
            detected += 1;
            flip(&path, *offset);
        }
        assert!(detected > 0);
    }
}

#[test]
fn flipped_data_names_drive_subgroup_and_variable() {
    let rule = |file: &str, nth| {
        vec![FaultRule {
            operation: FaultOperation::Read,
            nth,
            file: file.into(),
            action: FaultAction::FlipBit,
        }]
    };
    let mut seen = std::collections::BTreeSet::new();
    for file in ["drive1/slots.nf", "drive1/gradients.nf"] {
        for nth in 1..60 {
            let case = Case::new(options(System::SuO, false));
            let mut engine = case.create(&case.config).unwrap();
            toy::steps(&mut engine, &case.units, 1, 1.0).unwrap();
            drop(engine);
            let faults = Arc::new(Faults::new(rule(file, nth)));
            let config = case.with_faults(&faults);
            let outcome = OffloadEngine::resume(&config, case.model.clone())
                .and_then(|(mut engine, _)| toy::steps(&mut engine, &case.units, 2, 1.0));
            let Err(error) = outcome else { continue };
            match error.root() {
                Error::Corrupt { drive: 1, path, variable, .. } => {
                    assert!(path.ends_with("drive1"), "{error}");
                    seen.insert(variable.clone());
                }
                Error::Damaged { drive: 1, .. } => {}
                other => panic!("{other}"),
            }
        }
    }
    for variable in ["param", "exp_avg", "exp_avg_sq", "gradient"] {
        assert!(seen.contains(variable), "{seen:?}");
    }
}

#[test]
fn wrong_drives_are_refused_with_their_names() {
    let case = Case::new(options(System::SuO, false));
    let mut engine = case.create(&case.config).unwrap();
    toy::steps(&mut engine, &case.units, 1, 1.0).unwrap();
    let digest = engine.digest().unwrap();

    let error = OffloadEngine::resume(&case.config, case.model.clone()).unwrap_err();
    assert!(matches!(error, Error::Locked { .. }), "{error}");
    drop(engine);

    let mut swapped = case.config.clone();
    swapped.drives.reverse();
    let (engine, _) = OffloadEngine::resume(&swapped, case.model.clone()).unwrap();
    assert_eq!(engine.digest().unwrap(), digest);
    drop(engine);

    let mut twice = case.config.clone();
    twice.drives[1] = twice.drives[0].clone();
    let error = OffloadEngine::resume(&twice, case.model.clone()).unwrap_err().to_string();
    assert!(error.contains("same directory"), "{error}");

    let other = Case::new(options(System::SuO, false));
    drop(other.create(&other.config).unwrap());
    let mut foreign = case.config.clone();
    foreign.drives[1] = other.config.drives[1].clone();
    let error = OffloadEngine::resume(&foreign, case.model.clone()).unwrap_err().to_string();
    assert!(error.contains("belongs to run"), "{error}");

    let mut missing = case.config.clone();
    std::fs::rename(&missing.drives[1], case.root.path().join("elsewhere")).unwrap();
    let error = OffloadEngine::resume(&missing, case.model.clone()).unwrap_err().to_string();
    assert!(error.contains("drive1") && error.contains("does not exist"), "{error}");
    std::fs::rename(case.root.path().join("elsewhere"), &missing.drives[1]).unwrap();

    missing.options.subgroup_elements = 4096;
    let error = OffloadEngine::resume(&missing, case.model.clone()).unwrap_err().to_string();
    assert!(error.contains("--subgroup-size"), "{error}");

    let error = case.create(&case.config).unwrap_err().to_string();
    assert!(error.contains("--overwrite"), "{error}");

    let path = case.config.drives[1].join("slots.nf");
    let length = std::fs::metadata(&path).unwrap().len();
    std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(length - 4096).unwrap();
    let error = OffloadEngine::resume(&case.config, case.model.clone()).unwrap_err();
    assert!(matches!(error, Error::Truncated { .. }), "{error}");
}
