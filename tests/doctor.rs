//! `nearfield doctor` as a user calls it.
#![allow(clippy::unwrap_used)] // A test fails by panicking.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

fn doctor(words: &[&str], drives: &[&Path]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nearfield"));
    command.env_clear().arg("doctor").args(words);
    for drive in drives {
        command.arg("--drive").arg(drive);
    }
    command.output().unwrap()
}

fn findings(output: &Output) -> Vec<Value> {
    let text = String::from_utf8_lossy(&output.stdout);
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn every_finding_says_what_was_looked_at_and_bad_ones_what_to_do() {
    let root = tempfile::tempdir().unwrap();
    let output = doctor(&["--json"], &[root.path()]);
    let found = findings(&output);
    for what in ["kernel", "io_uring", "memory", "processor", "libtorch", "GPU", "drive 0"] {
        assert!(found.iter().any(|finding| finding["what"] == what), "{what}");
    }
    for finding in &found {
        assert!(!finding["found"].as_str().unwrap().is_empty(), "{finding}");
        if finding["status"] == "warning" {
            assert!(finding["remedy"].is_string(), "{finding}");
        }
    }
    let speed = found.iter().filter_map(|finding| finding["found"].as_str());
    assert!(speed.into_iter().any(|text| text.contains("reads") && text.contains("GB/s")));
    assert_eq!(std::fs::read_dir(root.path()).unwrap().count(), 0);
}

#[test]
fn what_does_not_work_is_a_failure_of_the_command() {
    let root = tempfile::tempdir().unwrap();
    let missing = root.path().join("missing");
    // No file can be made there, whoever asks.
    for drive in [missing.as_path(), Path::new("/proc/self")] {
        let output = doctor(&["--json", "--no-measure"], &[drive]);
        assert!(!output.status.success());
        let found = findings(&output);
        let failure = found.iter().find(|finding| finding["status"] == "failure").unwrap();
        assert!(failure["remedy"].is_string(), "{failure}");
        let text = doctor(&["--no-measure"], &[drive]);
        assert!(String::from_utf8_lossy(&text.stdout).contains("FAIL"));
    }
}

#[test]
fn without_drives_the_rest_is_still_looked_at() {
    let output = doctor(&[], &[]);
    assert!(output.status.success());
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.contains("kernel") && text.contains("give --drive DIR"), "{text}");
}
