//! Bits that changed on a drive at rest, and files cut short: noticed, and named by drive, subgroup and variable.

#![allow(clippy::unwrap_used)] // A test fails by panicking.

mod toy;

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nearfield_runtime::Error;
use nearfield_runtime::io::{FaultAction, FaultOperation, FaultRule, Faults, IoOptions};
use nearfield_runtime::store::{digest_of, inspect, verify};
use nearfield_techniques::offload::{OffloadOptions, System};
use toy::{Script, compressed, options};

const LAST: u64 = 4;
const BLOCK: u64 = 4096;

/// A run with drives that hold its second step, complete or cut short in the middle of the update.
struct Rest {
    script: Script,
    _root: tempfile::TempDir,
    dirs: Vec<PathBuf>,
}

fn rest(options: OffloadOptions, interrupted: bool) -> Rest {
    let script = Script::new(options, 300, &[], LAST);
    let root = toy::fast_directory();
    let dirs = toy::directories(root.path(), 2);
    let mut done = 0;
    let mut engine = script.create(&dirs, IoOptions::default()).unwrap();
    script.go(&mut engine, &mut done, if interrupted { 1 } else { 2 }).unwrap();
    drop(engine);
    if interrupted {
        // The first part that drive 1 writes back is cut short.
        let rule = FaultRule {
            operation: FaultOperation::Write,
            nth: 2,
            file: "drive1/slots.nf".into(),
            action: FaultAction::Crash,
        };
        let io =
            IoOptions { faults: Some(Arc::new(Faults::new(vec![rule]))), ..IoOptions::default() };
        let (mut engine, mut done) = script.resume(&dirs, io).unwrap();
        script.go(&mut engine, &mut done, 2).unwrap_err();
        drop(engine);
        assert!(inspect(&dirs).unwrap().interrupted);
    }
    Rest { script, _root: root, dirs }
}

/// Flips one bit and returns what was there.
fn flip(path: &Path, bit: u64) {
    let file = OpenOptions::new().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, bit / 8).unwrap();
    byte[0] ^= 1 << (bit % 8);
    file.write_all_at(&byte, bit / 8).unwrap();
}

/// The n-th bit to flip in a block: spread, but the same in every run.
fn bit_in(block: u64) -> u64 {
    (block.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20) % (BLOCK * 8)
}

/// Whether the error names drive 1 and this file (or the directory).
fn names(error: &Error, path: &Path, what: &str) {
    let (drive, named) = match error.root() {
        Error::Corrupt { drive, path, .. } | Error::Damaged { drive, path, .. } => (*drive, path),
        other => panic!("{what}: {other}"),
    };
    assert_eq!(drive, 1, "{what}: {error}");
    assert!(path.starts_with(named), "{what}: {error}");
}

#[test]
fn superblock_layout_and_journal() {
    let rest = rest(options(System::SuO), false);
    for (name, blocks) in [("superblock.nf", 1), ("layout.nf", 2), ("journal.nf", 64)] {
        let path = rest.dirs[1].join(name);
        assert_eq!(std::fs::metadata(&path).unwrap().len(), blocks * BLOCK);
        for block in 0..blocks.max(16) {
            // A flip in the first eight bytes of the superblock makes it a file of another program.
            let within = bit_in(block + 1).max(64);
            let bit = (block % blocks) * BLOCK * 8 + within;
            let what = format!("{name}, bit {bit}");
            flip(&path, bit);
            let error = rest.script.resume(&rest.dirs, IoOptions::default()).unwrap_err();
            names(&error, &path, &what);
            let wanted = match name {
                "superblock.nf" => "the superblock".to_owned(),
                "layout.nf" => "the layout".to_owned(),
                _ => format!("journal record {block}"),
            };
            assert!(error.to_string().contains(&wanted), "{what}: {error}");
            for error in [
                inspect(&rest.dirs).unwrap_err(),
                verify(&rest.dirs, &mut |_| {}).unwrap_err(),
                digest_of(&rest.dirs).unwrap_err(),
            ] {
                names(&error, &path, &what);
            }
            flip(&path, bit);
        }
    }
    rest.script.resume_and_finish(&rest.dirs, 2, 2, "all bits put back");
}

#[test]
fn every_block_of_the_slots() {
    let rest = rest(options(System::SuO), false);
    let path = rest.dirs[1].join("slots.nf");
    let expected = &rest.script.expected[2].0;
    let (engine, _) = rest.script.resume(&rest.dirs, IoOptions::default()).unwrap();
    let layout = engine.layout().clone();
    drop(engine);
    let parts = layout.on_drive(1);
    let data: u64 = parts.iter().map(|&part| 3 * layout.padded(part) * 4 / BLOCK).sum();
    let (mut found_data, mut found_headers) = (0, 0);
    let mut variables = std::collections::BTreeMap::<String, u64>::new();
    for block in 0..std::fs::metadata(&path).unwrap().len() / BLOCK {
        let bit = block * BLOCK * 8 + bit_in(block);
        let what = format!("slots.nf, bit {bit}");
        flip(&path, bit);
        match verify(&rest.dirs, &mut |_| {}) {
            Ok(findings) if findings.is_empty() => {
                // A free slot, or room behind a short part: nothing relies on it.
                assert_eq!(&digest_of(&rest.dirs).unwrap(), expected, "{what}");
            }
            Ok(findings) => {
                found_data += 1;
                let [finding] = &findings[..] else { panic!("{what}: {findings:?}") };
                assert!(finding.drive == 1 && finding.path == rest.dirs[1], "{what}: {finding:?}");
                assert!(parts.iter().any(|&part| layout.parts[part].subgroup == finding.subgroup));
                *variables.entry(finding.variable.clone()).or_default() += 1;
                assert_eq!(inspect(&rest.dirs).unwrap().step, 2);
                let error = digest_of(&rest.dirs).unwrap_err();
                let Error::Corrupt { drive, subgroup, variable, .. } = &error else {
                    panic!("{what}: {error}")
                };
                assert_eq!(
                    (*drive, *subgroup, variable),
                    (1, finding.subgroup, &finding.variable),
                    "{what}"
                );
                // Weights are checked when the run is resumed, moments when the next step reads them.
                let resumed = rest.script.resume(&rest.dirs, IoOptions::default());
                assert_eq!(resumed.is_err(), variable == "param", "{what}");
            }
            Err(error) => {
                found_headers += 1;
                names(&error, &path, &what);
                let text = error.to_string();
                assert!(text.contains("the header of slot"), "{text}");
                assert!(text.contains("subgroup"), "{text}");
                names(&digest_of(&rest.dirs).unwrap_err(), &path, &what);
            }
        }
        flip(&path, bit);
    }
    assert_eq!(found_headers, parts.len());
    assert_eq!(found_data, data);
    assert!(variables.values().all(|&count| count == data / 3), "{variables:?}");
    assert_eq!(variables.keys().collect::<Vec<_>>(), ["exp_avg", "exp_avg_sq", "param"]);
    rest.script.resume_and_finish(&rest.dirs, 2, 2, "all bits put back");
}

#[test]
fn a_moment_that_changed_stops_the_next_step() {
    let rest = rest(options(System::SuO), false);
    let path = rest.dirs[1].join("slots.nf");
    let mut stopped = 0;
    for block in 0..std::fs::metadata(&path).unwrap().len() / BLOCK {
        let root = toy::fast_directory();
        let dirs = toy::copy_drives(&rest.dirs, root.path());
        flip(&dirs[1].join("slots.nf"), block * BLOCK * 8 + bit_in(block));
        let findings = verify(&dirs, &mut |_| {}).unwrap_or_default();
        let Some(finding) = findings.first().filter(|finding| finding.variable != "param") else {
            continue;
        };
        let (mut engine, mut done) = rest.script.resume(&dirs, IoOptions::default()).unwrap();
        let error = rest.script.go(&mut engine, &mut done, 3).unwrap_err();
        let Error::Corrupt { drive, subgroup, variable, .. } = error.root() else {
            panic!("{error}")
        };
        assert_eq!((*drive, *subgroup, variable), (1, finding.subgroup, &finding.variable));
        drop(engine);
        // The wrong value was not sealed as good: it is still found.
        let again = rest.script.resume(&dirs, IoOptions::default()).unwrap_err();
        assert!(
            matches!(again.root(), Error::Corrupt { variable: named, .. } if named == variable)
        );
        stopped += 1;
    }
    assert!(stopped > 4, "{stopped}");
}

#[test]
fn gradients_that_an_interrupted_step_needs() {
    for (options, variables) in [
        (options(System::SuO), &["gradient"][..]),
        (options(System::BasePipe), &["gradient"][..]),
        (compressed(), &["gradient_index", "gradient_value"][..]),
    ] {
        let rest = rest(options, true);
        let system = rest.script.options.system.name();
        assert_eq!(verify(&rest.dirs, &mut |_| {}).unwrap(), vec![], "{system}");
        let path = rest.dirs[1].join("gradients.nf");
        let (mut headers, mut found) = (0, Vec::new());
        for block in 0..std::fs::metadata(&path).unwrap().len() / BLOCK {
            let bit = block * BLOCK * 8 + bit_in(block);
            let what = format!("{system}: gradients.nf, bit {bit}");
            flip(&path, bit);
            let root = toy::fast_directory();
            let dirs = toy::copy_drives(&rest.dirs, root.path());
            flip(&path, bit);
            let copy = dirs[1].join("gradients.nf");
            match verify(&dirs, &mut |_| {}) {
                Ok(findings) if findings.is_empty() => {
                    rest.script.resume_and_finish(&dirs, 2, 2, &what);
                }
                Ok(findings) => {
                    let [finding] = &findings[..] else { panic!("{what}: {findings:?}") };
                    let error = rest.script.resume(&dirs, IoOptions::default()).unwrap_err();
                    names(&error, &copy, &what);
                    let Error::Corrupt { subgroup, variable, .. } = error.root() else {
                        panic!("{what}: {error}")
                    };
                    assert_eq!((*subgroup, variable), (finding.subgroup, &finding.variable));
                    found.push(variable.clone());
                }
                Err(error) => {
                    names(&error, &copy, &what);
                    assert!(error.to_string().contains("the header of the gradients of subgroup"));
                    let error = rest.script.resume(&dirs, IoOptions::default()).unwrap_err();
                    names(&error, &copy, &what);
                    headers += 1;
                }
            }
        }
        assert!(headers >= 2, "{system}: {headers} headers");
        for variable in variables {
            assert!(found.iter().any(|named| named == variable), "{system}: {variable} not found");
        }
        rest.script.resume_and_finish(&rest.dirs, 2, 2, system);
    }
}

#[test]
fn residuals_that_the_next_step_needs() {
    for interrupted in [false, true] {
        let rest = rest(compressed(), interrupted);
        let path = rest.dirs[1].join("residual.nf");
        let (mut headers, mut data) = (0, 0);
        for block in 0..std::fs::metadata(&path).unwrap().len() / BLOCK {
            let bit = block * BLOCK * 8 + bit_in(block);
            let what = format!("residual.nf, bit {bit}, interrupted: {interrupted}");
            let root = toy::fast_directory();
            let dirs = toy::copy_drives(&rest.dirs, root.path());
            let copy = dirs[1].join("residual.nf");
            flip(&copy, bit);
            match rest.script.resume(&dirs, IoOptions::default()) {
                // The region of the step before, which the next one overwrites.
                Ok(resumed) => {
                    drop(resumed);
                    rest.script.resume_and_finish(&dirs, 2, 2, &what);
                }
                Err(error) => {
                    names(&error, &copy, &what);
                    match error.root() {
                        Error::Corrupt { variable, .. } => {
                            assert_eq!(variable, "residual", "{what}");
                            data += 1;
                        }
                        _ => {
                            let text = error.to_string();
                            assert!(
                                text.contains("the header of the residual of subgroup"),
                                "{text}"
                            );
                            headers += 1;
                        }
                    }
                }
            }
        }
        assert!(headers >= 2 && data >= 2, "{headers} headers, {data} blocks of data");
    }
}

#[test]
fn an_older_copy_of_a_file_is_not_taken_for_the_newest() {
    let before = rest(compressed(), false);
    let kept = toy::fast_directory();
    let old = toy::copy_drives(&before.dirs, kept.path());
    // The same run a step later, cut short in an update.
    let rule = FaultRule {
        operation: FaultOperation::Write,
        nth: 2,
        file: "drive1/slots.nf".into(),
        action: FaultAction::Crash,
    };
    let io = IoOptions { faults: Some(Arc::new(Faults::new(vec![rule]))), ..IoOptions::default() };
    let (mut engine, mut done) = before.script.resume(&before.dirs, io).unwrap();
    before.script.go(&mut engine, &mut done, 3).unwrap_err();
    drop(engine);
    for name in ["gradients.nf", "residual.nf", "slots.nf", "journal.nf"] {
        let root = toy::fast_directory();
        let dirs = toy::copy_drives(&before.dirs, root.path());
        let path = dirs[1].join(name);
        std::fs::copy(old[1].join(name), &path).unwrap();
        match before.script.resume(&dirs, IoOptions::default()) {
            // Nothing of drive 1 was valid at the new step yet, so its slots are as they were.
            Ok(resumed) => {
                assert!(matches!(name, "slots.nf" | "journal.nf"), "{name} was accepted");
                drop(resumed);
                before.script.resume_and_finish(&dirs, 2, 3, name);
            }
            // Drive 0 may have come further before drive 1 failed: then its state is newer than the journals say.
            Err(error) if name == "journal.nf" && !error.to_string().contains("for step 3") => {
                assert!(error.to_string().contains("but the journal says step 2"), "{error}");
            }
            Err(error) => {
                names(&error, &path, name);
                assert!(error.to_string().contains("for step 3"), "{error}");
            }
        }
    }
    before.script.resume_and_finish(&before.dirs, 3, 3, "as it was left");
}

#[test]
fn files_cut_short_or_gone() {
    let rest = rest(compressed(), false);
    for name in
        ["superblock.nf", "layout.nf", "slots.nf", "gradients.nf", "residual.nf", "journal.nf"]
    {
        let length = std::fs::metadata(rest.dirs[1].join(name)).unwrap().len();
        for left in [length - 1, length - BLOCK, 0] {
            let root = toy::fast_directory();
            let dirs = toy::copy_drives(&rest.dirs, root.path());
            let path = dirs[1].join(name);
            OpenOptions::new().write(true).open(&path).unwrap().set_len(left).unwrap();
            for error in [
                rest.script.resume(&dirs, IoOptions::default()).unwrap_err(),
                verify(&dirs, &mut |_| {}).unwrap_err(),
                digest_of(&dirs).unwrap_err(),
                inspect(&dirs).unwrap_err(),
            ] {
                match error {
                    Error::Truncated { path: named, expected, actual } => {
                        assert_eq!((named, expected, actual), (path.clone(), length, left));
                    }
                    other => panic!("{name} cut to {left}: {other}"),
                }
            }
        }
        let root = toy::fast_directory();
        let dirs = toy::copy_drives(&rest.dirs, root.path());
        std::fs::remove_file(dirs[1].join(name)).unwrap();
        let text = rest.script.resume(&dirs, IoOptions::default()).unwrap_err().to_string();
        let named = if name == "superblock.nf" { &dirs[1] } else { &dirs[1].join(name) };
        assert!(text.contains(named.to_str().unwrap()), "{text}");
        // What is left is not touched: with the file put back the run continues.
        std::fs::copy(rest.dirs[1].join(name), dirs[1].join(name)).unwrap();
        rest.script.resume_and_finish(&dirs, 2, 2, name);
    }
}

#[test]
fn inspection_verification_and_digest_agree_with_the_run() {
    for options in [options(System::SuO), options(System::Base), options(System::Su), compressed()]
    {
        let rest = rest(options, false);
        let report = inspect(&rest.dirs).unwrap();
        assert_eq!((report.step, report.iteration, report.interrupted), (2, 2, false));
        assert_eq!(report.drives.len(), 2);
        let (engine, _) = rest.script.resume(&rest.dirs, IoOptions::default()).unwrap();
        let layout = engine.layout().clone();
        assert_eq!(report.elements, layout.elements);
        for drive in &report.drives {
            assert_eq!(drive.parts, layout.on_drive(drive.drive).len());
            assert_eq!(drive.path, rest.dirs[drive.drive as usize]);
        }
        drop(engine);
        let mut read = 0;
        assert_eq!(verify(&rest.dirs, &mut |bytes| read = bytes).unwrap(), vec![]);
        // Three variables, and the residuals where there are any.
        let residuals = u64::from(rest.dirs[0].join("residual.nf").exists());
        assert_eq!(read, (3 + residuals) * 4 * layout.padded_total());
        assert_eq!(digest_of(&rest.dirs).unwrap(), rest.script.expected[2].0);
        rest.script.resume_and_finish(&rest.dirs, 2, 2, "looked at");
    }
}
