//! Crashes and power cuts at every I/O boundary of a step: each one continues to the state of the run that had none.

#![allow(clippy::unwrap_used)] // A test fails by panicking.

mod toy;

use std::path::PathBuf;
use std::sync::Arc;

use nearfield_runtime::io::{FaultAction, FaultOperation, FaultRule, Faults, IoOptions};
use nearfield_runtime::store::{Durability, digest_of, inspect, verify};
use nearfield_runtime::types::DType;
use nearfield_techniques::offload::{OffloadOptions, System};
use toy::Script;

/// Iterations of a whole run, and those during which crashes happen.
const LAST: u64 = 4;
const CRASHING: u64 = 2;

fn crash(operation: FaultOperation, nth: u64) -> Vec<FaultRule> {
    vec![FaultRule { operation, nth, file: String::new(), action: FaultAction::Crash }]
}

fn io(faults: &Arc<Faults>) -> IoOptions {
    IoOptions { queue_depth: 8, faults: Some(Arc::clone(faults)), ..IoOptions::default() }
}

fn options(system: System, subgroup_elements: u64) -> OffloadOptions {
    OffloadOptions { system, subgroup_elements, pieces: 2, ..OffloadOptions::default() }
}

/// More parts a drive than there are spare slots, two pieces a part, compression with residuals, moments in
/// bf16, and updates ahead.
fn scripts() -> Vec<Script> {
    vec![
        Script::new(options(System::SuO, 2048), 400, &[], LAST),
        Script::new(options(System::BasePipe, 2048), 500, &[], LAST),
        Script::new(options(System::Su, 1024), 350, &[], LAST),
        Script::new(toy::compressed(), 300, &[], LAST),
        Script::new(
            OffloadOptions { moment_dtype: DType::Bf16, ..options(System::SuO, 2048) },
            400,
            &[],
            LAST,
        ),
        Script::new(
            OffloadOptions { overlap_update: true, ..options(System::SuO, 1024) },
            400,
            &[3],
            LAST,
        ),
    ]
}

/// Runs from creation until the injected crash; returns the iterations that had ended, or none when
/// creation itself was cut short.
fn run_until_crash(
    script: &Script,
    dirs: &[PathBuf],
    faults: &Arc<Faults>,
    last: u64,
) -> Option<u64> {
    let mut done = 0;
    let mut engine = match script.create(dirs, io(faults)) {
        Ok(engine) => engine,
        Err(error) => {
            assert!(faults.crashed(), "{error}");
            return None;
        }
    };
    if let Err(error) = script.go(&mut engine, &mut done, last) {
        assert!(faults.crashed(), "{error}");
    }
    Some(done)
}

/// Requests of creation, and of creation and the first iterations.
fn requests(script: &Script, last: u64) -> (u64, u64) {
    let root = toy::fast_directory();
    let dirs = toy::directories(root.path(), script.drives);
    let faults = Arc::new(Faults::default());
    let mut engine = script.create(&dirs, io(&faults)).unwrap();
    let created = faults.requests();
    script.go(&mut engine, &mut 0, last).unwrap();
    (created, faults.requests())
}

/// Crashes before each request of the first iterations and resumes.
fn crash_everywhere(script: &Script, last: u64) {
    let (created, total) = requests(script, last);
    assert!(total - created > 60, "only {} crash points", total - created);
    let system = script.options.system.name();
    for nth in created + 1..=total {
        let root = toy::fast_directory();
        let dirs = toy::directories(root.path(), script.drives);
        let faults = Arc::new(Faults::new(crash(FaultOperation::Any, nth)));
        let done = run_until_crash(script, &dirs, &faults, last).expect("creation is complete");
        assert!(faults.crashed(), "{system}: request {nth} of {total} was not reached");
        let what = format!("{system}, crash at request {nth} of {total}");
        script.resume_and_finish(&dirs, done, done + 1, &what);
    }
}

#[test]
fn crash_at_every_request_with_su_o() {
    crash_everywhere(&scripts()[0], CRASHING);
}

#[test]
fn crash_at_every_request_with_base_pipe() {
    crash_everywhere(&scripts()[1], CRASHING);
}

#[test]
fn crash_at_every_request_with_su() {
    crash_everywhere(&scripts()[2], CRASHING);
}

#[test]
fn crash_at_every_request_with_compression_and_error_feedback() {
    crash_everywhere(&scripts()[3], CRASHING);
}

#[test]
fn crash_at_every_request_without_flushes() {
    let mut script = Script::new(options(System::SuO, 1024), 200, &[], LAST);
    script.durability = Durability::Process;
    crash_everywhere(&script, CRASHING);
}

#[test]
fn crash_at_every_request_with_updates_ahead() {
    let ahead = OffloadOptions { overlap_update: true, ..options(System::SuO, 2048) };
    crash_everywhere(&Script::new(ahead.clone(), 400, &[], LAST), CRASHING);
    // Compressed, and with an update that was written ahead in vain.
    let compressed = OffloadOptions { overlap_update: true, ..toy::compressed() };
    crash_everywhere(&Script::new(compressed, 200, &[2, 4], 5), 3);
}

#[test]
fn crash_at_every_request_around_skipped_iterations() {
    for options in [toy::compressed(), options(System::SuO, 2048)] {
        crash_everywhere(&Script::new(options, 200, &[2, 4], 5), 3);
    }
}

#[test]
fn power_cut_at_many_points_of_every_system() {
    let scripts = scripts();
    let ranges: Vec<(u64, u64)> = scripts.iter().map(|script| requests(script, CRASHING)).collect();
    for seed in 0_u64..240 {
        let which = seed as usize % scripts.len();
        let (script, (created, total)) = (&scripts[which], ranges[which]);
        let place = (seed / 4).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        let nth = created + 1 + place % (total - created);
        let root = toy::fast_directory();
        let dirs = toy::directories(root.path(), script.drives);
        let faults = Arc::new(Faults::tracking(crash(FaultOperation::Any, nth)));
        let done = run_until_crash(script, &dirs, &faults, CRASHING).expect("creation is complete");
        assert!(faults.crashed());
        faults.power_cut(seed).unwrap();
        let system = script.options.system.name();
        let what = format!("{system}, power cut {seed} at request {nth} of {total}");
        script.resume_and_finish(&dirs, done, done + 1, &what);
    }
}

#[test]
fn power_cut_after_the_last_step_loses_nothing() {
    for script in scripts() {
        let root = toy::fast_directory();
        let dirs = toy::directories(root.path(), script.drives);
        let faults = Arc::new(Faults::tracking(vec![]));
        assert_eq!(run_until_crash(&script, &dirs, &faults, CRASHING), Some(CRASHING));
        faults.power_cut(7).unwrap();
        script.resume_and_finish(&dirs, CRASHING, CRASHING, script.options.system.name());
    }
}

#[test]
fn crash_and_power_cut_during_the_repeated_update() {
    for script in scripts() {
        let system = script.options.system.name();
        let (created, total) = requests(&script, CRASHING);
        let mut redone = 0;
        let mut seed = 0;
        for nth in (created + 1..=total).step_by(19) {
            let root = toy::fast_directory();
            let dirs = toy::directories(root.path(), script.drives);
            let faults = Arc::new(Faults::new(crash(FaultOperation::Any, nth)));
            run_until_crash(&script, &dirs, &faults, CRASHING).expect("creation is complete");
            let report = inspect(&dirs).unwrap();
            if !report.interrupted {
                continue;
            }
            assert!(digest_of(&dirs).unwrap_err().to_string().contains("cut short"));
            assert_eq!(verify(&dirs, &mut |_| {}).unwrap(), vec![]);
            // Reads change nothing, so the crash points that matter are the writes and the flushes.
            for operation in [FaultOperation::Write, FaultOperation::Flush] {
                for again in (1..).step_by(3) {
                    seed += 1;
                    let root = toy::fast_directory();
                    let dirs = toy::copy_drives(&dirs, root.path());
                    let faults = Arc::new(Faults::tracking(crash(operation, again)));
                    let Err(error) = script.resume(&dirs, io(&faults)) else { break };
                    assert!(faults.crashed(), "{error}");
                    redone += 1;
                    if seed % 2 == 0 {
                        faults.power_cut(seed).unwrap();
                    }
                    let what = format!(
                        "{system}, crash at request {nth}, then at {operation:?} {again} of the repetition"
                    );
                    script.resume_and_finish(&dirs, report.iteration, report.iteration, &what);
                }
            }
        }
        assert!(redone >= 10, "{system}: only {redone} repetitions were cut short");
    }
}

#[test]
fn interrupted_creation_is_named() {
    for script in [&scripts()[0], &scripts()[3]] {
        let (created, _) = requests(script, 0);
        let mut named = 0;
        for nth in 1..=created {
            let root = toy::fast_directory();
            let dirs = toy::directories(root.path(), script.drives);
            let faults = Arc::new(Faults::tracking(crash(FaultOperation::Any, nth)));
            assert_eq!(run_until_crash(script, &dirs, &faults, 0), None);
            faults.power_cut(nth).unwrap();
            match script.resume(&dirs, IoOptions::default()) {
                Err(error) => {
                    let text = error.to_string();
                    assert!(text.contains("creation of a run was interrupted"), "{nth}: {text}");
                    assert!(text.contains(root.path().to_str().unwrap()), "{text}");
                    named += 1;
                    // The directories are free for a new start.
                    let mut engine = script.create(&dirs, IoOptions::default()).unwrap();
                    script.go(&mut engine, &mut 0, 1).unwrap();
                    script.check(&engine, 1, "created anew");
                }
                // The run exists; only the first reading of its weights was cut short.
                Ok((engine, done)) => {
                    assert_eq!(done, 0);
                    script.check(&engine, 0, "created");
                }
            }
        }
        assert!(named > 10, "only {named} of {created} crashes were before the end of creation");
    }
}
