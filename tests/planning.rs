//! What is said of a run before it begins: predicted seconds, virtual time, dry runs, refusals.
#![allow(clippy::unwrap_used)] // A test fails by panicking.

#[path = "common/training.rs"]
mod common;

use std::process::Command;

use common::{Place, failed_with, succeeded};
use serde_json::Value;

#[test]
fn a_calibrated_machine_predicts_the_phases_of_a_run() {
    let place = Place::new();
    let drives = place.drives(2);
    let fabric = place.path("fabric.toml");
    let mut calibrate = Command::new(env!("CARGO_BIN_EXE_nearfield"));
    calibrate.env_clear().args(["calibrate", "--compute", "cpu", "--out"]).arg(&fabric);
    for drive in &drives {
        calibrate.arg("--drive").arg(drive);
    }
    succeeded(&calibrate.output().unwrap());
    assert_eq!(std::fs::read_dir(&drives[0]).unwrap().count(), 0);
    let flag = ["--steps", "3", "--fabric", fabric.to_str().unwrap()];
    succeeded(&place.train("su+o", &drives, &flag));
    let report = place.report();
    for phase in ["forward", "backward", "update"] {
        assert!(report["predicted_phase_seconds"][phase].as_f64().unwrap() > 0.0, "{phase}");
    }
    let text = std::fs::read_to_string(&fabric).unwrap();
    let first_rate = text.lines().position(|line| line.starts_with("copy_bytes")).unwrap();
    let wrong = text.replacen("copy_bytes_per_second = ", "copy_bytes_per_second = -", 1);
    std::fs::write(&fabric, wrong).unwrap();
    let line = format!("line {}", first_rate + 1);
    let flag = [&flag[..], &["--overwrite"]].concat();
    let words = ["fabric.toml", line.as_str(), "not a number above 0", "copy_bytes_per_second"];
    failed_with(&place.train("su+o", &drives, &flag), &words);
}

#[test]
fn training_in_virtual_time_is_the_same_training_on_another_clock() {
    let place = Place::new();
    let drives = place.drives(3);
    let run = |more: &[&str]| {
        let output =
            place.train("su+o+c", &drives, &[&["--steps", "4", "--overwrite"], more].concat());
        succeeded(&output);
        let text = std::fs::read_to_string(place.path("r.json")).unwrap();
        serde_json::from_str::<Value>(&text).unwrap()
    };
    let real = run(&[]);
    let virtually = ["--device", "virtual", "--fabric", "smartssd-falcon", "--gpu", "a5000"];
    let trace = place.path("trace.json");
    let first = run(&[&virtually[..], &["--trace", trace.to_str().unwrap()]].concat());
    let second = run(&virtually);
    for key in ["loss", "state_digest", "traffic"] {
        assert_eq!(first[key], real[key], "{key}");
    }
    assert_eq!((&real["clock"], &first["clock"]), (&"wall".into(), &"virtual".into()));
    // The clock of a described machine is the same in each run, and another for another machine.
    assert_eq!(first["phase_seconds"], second["phase_seconds"]);
    let a100 = run(&[&virtually[..5], &["a100"]].concat());
    assert_ne!(first["phase_seconds"], a100["phase_seconds"]);
    assert!(std::fs::read_to_string(trace).unwrap().contains("drive2.write"));
    for (more, words) in [
        (&["--device", "virtual"][..], &["--device virtual needs --fabric"][..]),
        (&virtually[..4], &["several", "--gpu"]),
        (&["--device", "virtual", "--fabric", "nowhere"], &["nowhere", "server-2026"]),
    ] {
        let more = [&["--steps", "4", "--overwrite"], more].concat();
        failed_with(&place.train("su+o", &drives, &more), words);
    }
}

#[test]
fn what_this_machine_cannot_hold_is_refused_before_anything_is_made() {
    let place = Place::new();
    let drives = place.drives(1);
    for (flags, wanted) in [
        (&["--layers", "16777216"][..], &["GB", "--layers"][..]),
        (&["--batch", "400000000"], &["GB", "--batch"]),
        (&["--hidden", "16777216"], &["GB", "--hidden"]),
        (&["--threads", "100000"], &["--threads 100000", "1024"]),
        (&["--loss-scale", "1e300"], &["loss scale", "2^120"]),
        (&["--batch", "0"], &["--batch must"]),
        (&["--trace", "."], &["--trace"]),
        (&["--report", "."], &["--report"]),
    ] {
        let mut train = Command::new(env!("CARGO_BIN_EXE_nearfield"));
        train.current_dir(place.root.path()).args(["train", "--data"]).arg(&place.text);
        let output = train.arg("--drive").arg(&drives[0]).args(flags).output().unwrap();
        failed_with(&output, wanted);
        assert_eq!(std::fs::read_dir(&drives[0]).unwrap().count(), 0, "{flags:?}");
    }
    let inside = drives[0].join("inside");
    std::fs::create_dir(&inside).unwrap();
    failed_with(&place.train("su+o", &[drives[0].clone(), inside], &[]), &["lies in the other"]);
}

#[test]
fn a_dry_run_says_what_the_run_then_takes_and_makes_nothing() {
    let place = Place::new();
    let drives = place.drives(2);
    let sizes = ["--steps", "3", "--drive-tbw", "600", "--progress", "json"];
    let dry = place.train("su+o", &drives, &[&sizes[..], &["--dry-run"]].concat());
    succeeded(&dry);
    assert!(std::fs::read_dir(&drives[0]).unwrap().next().is_none());
    assert!(!place.path("out").exists() && !place.path("r.json").exists());
    let dry: Value = serde_json::from_slice(&dry.stdout).unwrap();
    succeeded(&place.train("su+o", &drives, &sizes));
    let report = place.report();
    for (link, bytes) in dry["traffic"].as_object().unwrap() {
        let measured = report["traffic"][link]["measured"].as_u64();
        assert_eq!(bytes.as_u64().map(|bytes| 3 * bytes), measured, "{link}");
    }
    for (drive, need) in drives.iter().zip(dry["drives"].as_array().unwrap()) {
        let files = std::fs::read_dir(drive).unwrap().map(|file| file.unwrap());
        let bytes: u64 = files.map(|file| file.metadata().unwrap().len()).sum();
        assert!(need["needs_bytes"].as_u64().unwrap().abs_diff(bytes) <= 16_384, "{need} {bytes}");
    }
    let wear = |report: &Value| report["endurance"]["steps_to_rating"].as_f64().unwrap();
    assert!((wear(&dry) / wear(&report) - 1.0).abs() < 1e-9);
    let (said, measured) = (&dry["host_memory_bytes"], &report["memory_peak"]["process"]);
    let ratio = said.as_f64().unwrap() / measured.as_f64().unwrap();
    assert!((0.8..1.2).contains(&ratio), "{said} said, {measured} measured");
    let shown = place.train("su+o", &drives, &["--steps", "3", "--overwrite", "--dry-run"]);
    succeeded(&shown);
    let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
    assert!(shown.contains("This run can work") && shown.contains("working weights"), "{shown}");
}

#[test]
fn a_dry_run_of_a_resume_says_what_the_run_would_say() {
    let place = Place::new();
    let drives = place.drives(2);
    succeeded(&place.train("su+o", &drives, &["--steps", "4"]));
    let dry = |more: &[&str]| {
        let flags = [&["--resume", "--dry-run"], more].concat();
        place.train("su+o", &drives, &flags)
    };
    succeeded(&dry(&["--steps", "6"]));
    for (flag, value) in [
        ("--moment-dtype", "bf16"),
        ("--gradient-dtype", "bf16"),
        ("--optimizer", "adam"),
        ("--accumulate", "3"),
        ("--placement", "flat-equal"),
        ("--eval-fraction", "0.2"),
    ] {
        let flags = ["--steps", "6", flag, value];
        let said = String::from_utf8(dry(&flags).stderr).unwrap();
        let refused = place.train("su+o", &drives, &[&["--resume"], &flags[..]].concat());
        assert!(!refused.status.success(), "{flag}");
        assert_eq!(said, String::from_utf8(refused.stderr).unwrap(), "{flag}");
    }
    let done = dry(&["--steps", "4"]);
    let shown = String::from_utf8_lossy(&done.stdout).into_owned();
    assert!(done.status.code() == Some(1) && shown.contains("4 iterations already"), "{shown}");
}
