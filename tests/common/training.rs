//! A small run of the command.
#![allow(dead_code, clippy::unwrap_used)] // A test fails by panicking, and not every test uses all.

use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use serde_json::Value;

pub struct Place {
    pub root: tempfile::TempDir,
    pub text: PathBuf,
}

impl Place {
    pub fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        let text = root.path().join("text.txt");
        let line = "The quick brown fox jumps over the lazy dog; then it sleeps.\n";
        std::fs::write(&text, line.repeat(400)).unwrap();
        Self { root, text }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    pub fn drives(&self, count: usize) -> Vec<PathBuf> {
        (0..count)
            .map(|index| {
                let path = self.path(&format!("drive{index}"));
                std::fs::create_dir_all(&path).unwrap();
                path
            })
            .collect()
    }

    pub fn train(&self, system: &str, drives: &[PathBuf], more: &[&str]) -> Output {
        self.command(system, drives, more).output().unwrap()
    }

    pub fn command(&self, system: &str, drives: &[PathBuf], more: &[&str]) -> Command {
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
        command.args(more);
        command
    }

    /// Begins a run and waits until it has done some iterations.
    pub fn begin(
        &self,
        system: &str,
        drives: &[PathBuf],
        more: &[&str],
        iterations: usize,
    ) -> Child {
        let _ = std::fs::remove_file(self.path("out/metrics.jsonl"));
        let mut command = self.command(system, drives, more);
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let done = || {
            let text = std::fs::read_to_string(self.path("out/metrics.jsonl")).unwrap_or_default();
            text.lines().count()
        };
        while done() < iterations {
            assert!(child.try_wait().unwrap().is_none(), "ended before iteration {iterations}");
            std::thread::sleep(Duration::from_millis(5));
        }
        child
    }

    pub fn report(&self) -> Value {
        serde_json::from_slice(&std::fs::read(self.path("r.json")).unwrap()).unwrap()
    }
}

pub fn succeeded(output: &Output) {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

pub fn failed_with(output: &Output, words: &[&str]) {
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success(), "succeeded, but should fail with {words:?}");
    for word in words {
        assert!(text.contains(word), "{text:?} lacks {word:?}");
    }
}

pub fn state(command: &str, drives: &[PathBuf]) -> Output {
    let mut nearfield = Command::new(env!("CARGO_BIN_EXE_nearfield"));
    nearfield.env_clear().args(["state", command]);
    for drive in drives {
        nearfield.arg("--drive").arg(drive);
    }
    nearfield.output().unwrap()
}
