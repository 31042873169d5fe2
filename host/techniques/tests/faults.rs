//! Faults of the system by value, and drives that do not fit: a clear error, and the state as it was.

#![allow(clippy::unwrap_used)] // A test fails by panicking.

mod toy;

use std::path::PathBuf;
use std::sync::Arc;

use nearfield_runtime::Error;
use nearfield_runtime::io::{FaultAction, FaultOperation, FaultRule, Faults, IoOptions};
use nearfield_runtime::store::{digest_of, inspect, verify};
use nearfield_runtime::types::{DType, Optimizer};
use nearfield_techniques::offload::{OffloadEngine, OffloadOptions, Placement, System};
use toy::{Script, compressed, options};

const LAST: u64 = 4;
/// Seven parts of one or two pieces.
const SCALE: u64 = 400;

/// A run at rest after two steps.
struct Rest {
    script: Script,
    root: tempfile::TempDir,
    dirs: Vec<PathBuf>,
}

fn rest(options: OffloadOptions) -> Rest {
    let script = Script::new(options, SCALE, &[], LAST);
    let root = toy::fast_directory();
    let dirs = toy::directories(root.path(), 2);
    let mut engine = script.create(&dirs, IoOptions::default()).unwrap();
    script.go(&mut engine, &mut 0, 2).unwrap();
    Rest { script, root, dirs }
}

/// Resumes with one fault and goes on until it is met; returns the error.
fn meet(script: &Script, dirs: &[PathBuf], rule: FaultRule) -> Option<Error> {
    let io = IoOptions { faults: Some(Arc::new(Faults::new(vec![rule]))), ..IoOptions::default() };
    let (mut engine, mut done) = match script.resume(dirs, io) {
        Ok(resumed) => resumed,
        Err(error) => return Some(error),
    };
    script.go(&mut engine, &mut done, LAST).err()
}

#[test]
fn failures_of_a_drive_name_it_and_leave_a_state_that_resumes() {
    let errnos = [libc::EIO, libc::ENOSPC, libc::EROFS, libc::ENODEV];
    for options in
        [options(System::SuO), options(System::BasePipe), options(System::Su), compressed()]
    {
        let rest = rest(options);
        for (operation, file, name) in [
            (FaultOperation::Read, "drive1/slots.nf", "read"),
            (FaultOperation::Read, "drive0/gradients.nf", "read"),
            (FaultOperation::Read, "drive0/journal.nf", "read"),
            (FaultOperation::Write, "drive1/slots.nf", "write"),
            (FaultOperation::Write, "drive0/gradients.nf", "write"),
            (FaultOperation::Write, "drive1/journal.nf", "write"),
            (FaultOperation::Flush, "drive0/slots.nf", "flush"),
            (FaultOperation::Flush, "drive1/gradients.nf", "flush"),
            (FaultOperation::Flush, "drive1/journal.nf", "flush"),
        ] {
            for (nth, errno) in [1, 2].into_iter().flat_map(|nth| errnos.map(|errno| (nth, errno)))
            {
                // Reads fail for other reasons than writes; a flush may report what a write could not.
                if operation == FaultOperation::Read && [libc::ENOSPC, libc::EROFS].contains(&errno)
                {
                    continue;
                }
                let root = toy::fast_directory();
                let dirs = toy::copy_drives(&rest.dirs, root.path());
                let rule = FaultRule {
                    operation,
                    nth,
                    file: file.into(),
                    action: FaultAction::Fail(errno),
                };
                let what = format!("{} {rule:?}", rest.script.options.system.name());
                let error =
                    meet(&rest.script, &dirs, rule).unwrap_or_else(|| panic!("{what}: no error"));
                match error.root() {
                    Error::Io { operation, path, source, .. } => {
                        assert_eq!(*operation, name, "{what}: {error}");
                        assert!(path.ends_with(file), "{what}: {error}");
                        assert_eq!(source.raw_os_error(), Some(errno), "{what}: {error}");
                    }
                    _ => panic!("{what}: {error}"),
                }
                assert!(error.to_string().contains(file), "{what}: {error}");
                rest.script.resume_and_finish(&dirs, 2, LAST, &what);
            }
        }
    }
}

#[test]
fn short_transfers_change_nothing() {
    let rest = rest(options(System::SuO));
    for operation in [FaultOperation::Read, FaultOperation::Write] {
        for nth in [1, 70, 75, 80, 90] {
            let root = toy::fast_directory();
            let dirs = toy::copy_drives(&rest.dirs, root.path());
            let rule =
                FaultRule { operation, nth, file: String::new(), action: FaultAction::Short };
            assert!(meet(&rest.script, &dirs, rule).is_none());
            rest.script.resume_and_finish(&dirs, LAST, LAST, "short transfer");
        }
    }
}

#[test]
fn wrongly_read_bits_are_never_taken_for_state() {
    for (options, gradients) in [
        (options(System::SuO), &["gradient"][..]),
        (options(System::Base), &["gradient"][..]),
        (compressed(), &["gradient_index", "gradient_value"][..]),
    ] {
        let rest = rest(options);
        let system = rest.script.options.system.name();
        let mut seen: Vec<String> = Vec::new();
        for file in ["drive1/slots.nf", "drive1/gradients.nf"] {
            for nth in 1..=48 {
                let root = toy::fast_directory();
                let dirs = toy::copy_drives(&rest.dirs, root.path());
                let rule = FaultRule {
                    operation: FaultOperation::Read,
                    nth,
                    file: file.into(),
                    action: FaultAction::FlipBit,
                };
                let what = format!("{system}, bit flipped in read {nth} of {file}");
                if let Some(error) = meet(&rest.script, &dirs, rule) {
                    match error.root() {
                        Error::Corrupt { drive, variable, path, .. } => {
                            assert_eq!(*drive, 1, "{what}: {error}");
                            assert!(path.ends_with("drive1"), "{what}: {error}");
                            seen.push(variable.clone());
                        }
                        Error::Damaged { drive, path, what: damaged, .. } => {
                            assert_eq!(*drive, 1, "{what}: {error}");
                            assert!(path.ends_with(file), "{what}: {error}");
                            seen.push(damaged.split(',').next().unwrap_or_default().to_owned());
                        }
                        _ => panic!("{what}: {error}"),
                    }
                }
                // The drive itself is whole, whatever was read from it.
                rest.script.resume_and_finish(&dirs, 2, LAST, &what);
            }
        }
        for expected in ["param", "exp_avg", "exp_avg_sq"].iter().chain(gradients) {
            assert!(
                seen.iter().any(|named| named == expected),
                "{system}: {expected} not in {seen:?}"
            );
        }
        assert!(seen.iter().any(|named| named.starts_with("the header of slot")), "{seen:?}");
    }
}

#[test]
fn two_runs_cannot_use_one_drive() {
    let rest = rest(options(System::SuO));
    let (engine, _) = rest.script.resume(&rest.dirs, IoOptions::default()).unwrap();
    let locked = |error: Error| {
        assert!(matches!(error, Error::Locked { .. }), "{error}");
        let text = error.to_string();
        assert!(text.contains(&format!("process {}", std::process::id())), "{text}");
        assert!(text.contains("drive"), "{text}");
    };
    locked(rest.script.resume(&rest.dirs, IoOptions::default()).unwrap_err());
    locked(inspect(&rest.dirs).unwrap_err());
    locked(verify(&rest.dirs, &mut |_| {}).unwrap_err());
    locked(digest_of(&rest.dirs).unwrap_err());
    let config = rest.script.config(&rest.dirs, IoOptions::default());
    let (model, _) = toy::model(rest.script.scale);
    let record = rest.script.record(0);
    locked(OffloadEngine::create(&config, model, true, &record, &toy::initial).unwrap_err());
    rest.script.check(&engine, 2, "the run that holds the drives");
    drop(engine);
    rest.script.resume_and_finish(&rest.dirs, 2, 2, "given back");
}

#[test]
fn drives_may_be_given_in_any_order() {
    let rest = rest(options(System::SuO));
    let swapped: Vec<PathBuf> = rest.dirs.iter().rev().cloned().collect();
    assert_eq!(digest_of(&swapped).unwrap(), rest.script.expected[2].0);
    rest.script.resume_and_finish(&swapped, 2, 2, "drives swapped");
    assert_eq!(digest_of(&rest.dirs).unwrap(), rest.script.expected[LAST as usize].0);
}

#[test]
fn drives_that_are_not_the_run_are_named() {
    let ours = rest(options(System::SuO));
    let other = rest(options(System::SuO));
    let (first, second) = (ours.dirs[0].clone(), ours.dirs[1].clone());
    let refused = |dirs: &[PathBuf], parts: &[&str]| {
        let config = ours.script.config(dirs, IoOptions::default());
        let (model, _) = toy::model(ours.script.scale);
        let error = OffloadEngine::resume(&config, model).unwrap_err().to_string();
        for part in parts {
            assert!(error.contains(part), "{error:?} lacks {part:?}");
        }
    };
    let path = |dir: &PathBuf| dir.to_str().unwrap().to_owned();
    refused(std::slice::from_ref(&first), &["drive 1 of the 2 drives", "is missing", "--drive"]);
    refused(&[first.clone(), other.dirs[1].clone()], &["belongs to run", &path(&other.dirs[1])]);
    refused(&[first.clone(), first.clone()], &["are the same directory", &path(&first)]);
    let copy = ours.root.path().join("copy");
    std::fs::create_dir(&copy).unwrap();
    for entry in std::fs::read_dir(&first).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), copy.join(entry.file_name())).unwrap();
    }
    refused(&[first.clone(), copy.clone()], &["copies of one drive", &path(&copy)]);
    let empty = ours.root.path().join("empty");
    std::fs::create_dir(&empty).unwrap();
    refused(&[first.clone(), empty.clone()], &["holds no state of a run", &path(&empty)]);
    let absent = ours.root.path().join("absent");
    refused(&[first.clone(), absent.clone()], &["does not exist", &path(&absent)]);
    let file = first.join("slots.nf");
    refused(&[second.clone(), file.clone()], &["is not a directory", &path(&file)]);
    std::fs::write(empty.join("superblock.nf"), vec![b'x'; 4096]).unwrap();
    refused(&[first.clone(), empty.clone()], &["not a superblock of Nearfield", &path(&empty)]);

    // A drive put back from a copy that is two steps old.
    let root = toy::fast_directory();
    let old = toy::copy_drives(&ours.dirs, root.path());
    let (mut engine, mut done) = ours.script.resume(&ours.dirs, IoOptions::default()).unwrap();
    ours.script.go(&mut engine, &mut done, LAST).unwrap();
    drop(engine);
    refused(&[first.clone(), old[1].clone()], &["older copy", "drive 1", &path(&old[1])]);
    ours.script.resume_and_finish(&ours.dirs, LAST, LAST, "after all refusals");
}

#[test]
fn an_occupied_directory_is_replaced_only_when_told_to() {
    let rest = rest(options(System::SuO));
    let error = rest.script.create(&rest.dirs, IoOptions::default()).unwrap_err().to_string();
    for part in ["another run", "--resume", "--overwrite", "drive0"] {
        assert!(error.contains(part), "{error:?} lacks {part:?}");
    }
    assert_eq!(digest_of(&rest.dirs).unwrap(), rest.script.expected[2].0);
    let config = rest.script.config(&rest.dirs, IoOptions::default());
    let (model, _) = toy::model(rest.script.scale);
    let record = rest.script.record(0);
    let engine = OffloadEngine::create(&config, model, true, &record, &toy::initial).unwrap();
    rest.script.check(&engine, 0, "overwritten");
}

#[test]
fn other_options_are_named() {
    let plain = rest(options(System::SuO));
    let packed = rest(compressed());
    let refused = |rest: &Rest, options: OffloadOptions, scale: u64, name: &str| {
        let (model, units) = toy::model(scale);
        let config = toy::config(options, rest.dirs.clone(), units);
        let error = OffloadEngine::resume(&config, model).unwrap_err().to_string();
        assert!(error.contains(name) && error.contains("drive0"), "{error:?} lacks {name:?}");
    };
    let base = plain.script.options.clone();
    let with = |change: &dyn Fn(&mut OffloadOptions)| {
        let mut options = base.clone();
        change(&mut options);
        options
    };
    refused(&plain, with(&|o| o.optimizer = Optimizer::SgdMomentum), SCALE, "--optimizer");
    refused(&plain, base.clone(), SCALE + 1, "parameters");
    refused(&plain, with(&|o| o.gradient_dtype = DType::Bf16), SCALE, "--gradient-dtype");
    refused(&plain, with(&|o| o.moment_dtype = DType::Bf16), SCALE, "--moment-dtype");
    refused(&plain, with(&|o| o.subgroup_elements = 1024), SCALE, "--subgroup-size");
    refused(&plain, with(&|o| o.placement = Placement::SubgroupRr), SCALE, "--placement");
    refused(&plain, with(&|o| o.system = System::BasePipe), SCALE, "--system");
    refused(&plain, with(&|o| o.system = System::SuOC), SCALE, "--system");
    let base = packed.script.options.clone();
    refused(&packed, OffloadOptions { topk_keep: 0.5, ..base.clone() }, SCALE, "--topk-keep");
    refused(&packed, OffloadOptions { error_feedback: false, ..base }, SCALE, "--error-feedback");

    // What the drives do not depend on may change: handler, pieces and upstream.
    let options = OffloadOptions { system: System::Su, pieces: 1, ..plain.script.options.clone() };
    let script = Script::new(options, SCALE, &[], LAST);
    script.resume_and_finish(&plain.dirs, 2, 2, "another handler");
}

#[test]
fn a_file_system_that_is_too_small_is_refused_before_anything_is_written() {
    let root = toy::fast_directory();
    let mount = root.path().join("small");
    std::fs::create_dir(&mount).unwrap();
    let target = std::ffi::CString::new(mount.to_str().unwrap()).unwrap();
    // SAFETY: every pointer is a string with a final zero that outlives the call.
    let mounted = unsafe {
        libc::mount(
            c"nearfield-test".as_ptr(),
            target.as_ptr(),
            c"tmpfs".as_ptr(),
            0,
            c"size=128k".as_ptr().cast(),
        )
    };
    if mounted != 0 {
        let why = std::io::Error::last_os_error();
        eprintln!("a small file system cannot be mounted here ({why}); this test needs root");
        return;
    }
    let script = Script::new(options(System::SuO), SCALE, &[], 1);
    let dirs = toy::directories(&mount, 2);
    let refused = script.create(&dirs, IoOptions::default()).map(|_| ());
    let left: Vec<_> = dirs
        .iter()
        .flat_map(|dir| std::fs::read_dir(dir).unwrap())
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name != "lock")
        .collect();
    // SAFETY: as above; the file system was mounted by this test.
    unsafe { libc::umount(target.as_ptr()) };
    match refused {
        Err(Error::NoSpace { path, needed, available }) => {
            assert!(path.starts_with(&mount) && needed > available && available <= 128 << 10);
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(left, Vec::<String>::new());
}
