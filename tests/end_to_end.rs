//! The command as a user runs it: training on drives, kill and resume, wrong input.
#![allow(clippy::unwrap_used)] // A test fails by panicking.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

struct Place {
    root: tempfile::TempDir,
    text: PathBuf,
}

impl Place {
    fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        let text = root.path().join("text.txt");
        let line = "The quick brown fox jumps over the lazy dog; then it sleeps.\n";
        std::fs::write(&text, line.repeat(400)).unwrap();
        Self { root, text }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    fn drives(&self, count: usize) -> Vec<PathBuf> {
        (0..count)
            .map(|index| {
                let path = self.path(&format!("drive{index}"));
                std::fs::create_dir_all(&path).unwrap();
                path
            })
            .collect()
    }

    fn train(&self, system: &str, drives: &[PathBuf], more: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_nearfield"));
        // The command must run without any of the variables that it was built with.
        command.env_clear().env("HOME", self.root.path()).arg("train");
        command.arg("--data").arg(&self.text).args(["--system", system]);
        for drive in drives {
            command.arg("--drive").arg(drive);
        }
        command.args(
            "--layers 2 --hidden 32 --heads 2 --vocab 256 --seq 32 --batch 2 --seed 7".split(' '),
        );
        command.args("--subgroup-size 9000 --sample 0 --threads 1 --compute cpu".split(' '));
        command.arg("--out").arg(self.path("out")).arg("--report").arg(self.path("r.json"));
        command.args(more).output().unwrap()
    }

    fn report(&self) -> Value {
        serde_json::from_slice(&std::fs::read(self.path("r.json")).unwrap()).unwrap()
    }
}

fn succeeded(output: &Output) {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

fn failed_with(output: &Output, words: &[&str]) {
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success(), "succeeded, but should fail with {words:?}");
    for word in words {
        assert!(text.contains(word), "{text:?} lacks {word:?}");
    }
}

fn state(command: &str, drives: &[PathBuf]) -> Output {
    let mut nearfield = Command::new(env!("CARGO_BIN_EXE_nearfield"));
    nearfield.env_clear().args(["state", command]);
    for drive in drives {
        nearfield.arg("--drive").arg(drive);
    }
    nearfield.output().unwrap()
}

#[test]
fn every_system_ends_with_the_same_digest_and_the_predicted_bytes() {
    let place = Place::new();
    succeeded(&place.train("memory", &[], &["--steps", "6"]));
    let expected = place.report();
    let losses: Vec<f64> = serde_json::from_value(expected["loss"].clone()).unwrap();
    assert!(losses.len() == 6 && losses[5] < losses[0], "{losses:?}");
    for (system, count) in [("base", 2), ("base-pipe", 3), ("su", 1), ("su+o", 1), ("su+o", 4)] {
        let drives = place.drives(count);
        succeeded(&place.train(system, &drives, &["--steps", "6", "--overwrite"]));
        let report = place.report();
        assert_eq!(report["state_digest"], expected["state_digest"], "{system} {count}");
        assert_eq!(report["loss"], expected["loss"]);
        for (link, bytes) in report["traffic"].as_object().unwrap() {
            assert_eq!(bytes["predicted"], bytes["measured"], "{system} {link}");
        }
        let digest = state("digest", &drives);
        assert_eq!(
            String::from_utf8_lossy(&digest.stdout).trim(),
            report["state_digest"].as_str().unwrap()
        );
        succeeded(&state("verify", &drives));
        succeeded(&state("inspect", &drives));
    }
    let picture = std::fs::read_to_string(place.path("out/run.svg")).unwrap();
    assert!(picture.starts_with("<svg"));
}

#[test]
fn a_run_killed_anywhere_and_resumed_ends_like_one_never_killed() {
    let place = Place::new();
    succeeded(&place.train("memory", &[], &["--steps", "5"]));
    let expected = place.report();
    for kill in ["any:150:kill", "write:217:kill", "flush:31:kill", "any:420:kill"] {
        let drives = place.drives(2);
        let first =
            place.train("su+o", &drives, &["--steps", "5", "--overwrite", "--inject", kill]);
        assert!(!first.status.success(), "{kill} did not hit the run");
        let again = place.train("su+o", &drives, &["--steps", "5", "--resume"]);
        if !again.status.success() {
            // Killed while the drives were being made: nothing had begun.
            failed_with(&again, &["interrupted"]);
            continue;
        }
        let report = place.report();
        assert_eq!(report["state_digest"], expected["state_digest"], "{kill}");
        assert_eq!(report["loss"], expected["loss"], "{kill}");
    }
}

#[test]
fn half_precision_with_accumulation_and_a_trace() {
    let place = Place::new();
    let trace = place.path("trace.json");
    let drives = place.drives(2);
    for dtype in ["bf16", "fp16"] {
        let flags = [
            "--steps",
            "3",
            "--overwrite",
            "--accumulate",
            "2",
            "--dtype",
            dtype,
            "--gradient-dtype",
            dtype,
        ];
        succeeded(&place.train("memory", &[], &flags));
        let expected = place.report()["state_digest"].clone();
        let mut flags = flags.to_vec();
        flags.extend(["--trace", trace.to_str().unwrap()]);
        succeeded(&place.train("su+o", &drives, &flags));
        assert_eq!(place.report()["state_digest"], expected);
        let events: Vec<Value> = serde_json::from_slice(&std::fs::read(&trace).unwrap()).unwrap();
        assert!(events.len() > 100);
    }
}

#[test]
fn wrong_input_gets_a_clear_error() {
    let place = Place::new();
    let drives = place.drives(2);
    let config = place.path("train.toml");
    std::fs::write(&config, "subgroup-sise = 5\n").unwrap();
    failed_with(
        &place.train("su+o", &drives, &["--config", config.to_str().unwrap()]),
        &["subgroup-sise", "subgroup-size"],
    );
    failed_with(&place.train("su+o", &[], &[]), &["--drive"]);
    failed_with(&place.train("memory", &drives, &[]), &["--system memory"]);
    failed_with(&place.train("su+q", &drives, &[]), &["su+q", "base-pipe"]);
    failed_with(
        &place.train("su+o", &[place.path("nowhere")], &[]),
        &["nowhere", "does not exist"],
    );
    failed_with(&place.train("su+o", &drives, &["--topk-keep", "0.1"]), &["--topk-keep", "su+o+c"]);
    failed_with(&place.train("su+o", &drives, &["--resume"]), &["no state", "--resume"]);
    let broken = place.path("broken.txt");
    std::fs::write(&broken, [b'a', 0xff, b'b'].repeat(500)).unwrap();
    let with = |text: &Path| {
        let place = Place { root: tempfile::tempdir().unwrap(), text: text.to_path_buf() };
        place.train("memory", &[], &["--steps", "1"])
    };
    failed_with(&with(&broken), &["broken.txt", "UTF-8"]);
    let empty = place.path("empty.txt");
    std::fs::write(&empty, "").unwrap();
    failed_with(&with(&empty), &["empty.txt"]);
    succeeded(&place.train("su+o", &drives, &["--steps", "1"]));
    failed_with(&place.train("su+o", &drives, &["--steps", "1"]), &["--overwrite"]);
    let other = [drives[0].clone()];
    failed_with(&place.train("su+o", &other, &["--steps", "2", "--resume"]), &["missing"]);
    failed_with(
        &place.train("su+o", &drives, &["--steps", "2", "--resume", "--batch", "3"]),
        &["--batch"],
    );
    failed_with(
        &place.train(
            "su+o",
            &drives,
            &["--steps", "3", "--resume", "--inject", "write:9:ENOSPC@drive1"],
        ),
        &["drive1", "full"],
    );
    succeeded(&place.train("su+o", &drives, &["--steps", "3", "--resume"]));
}
