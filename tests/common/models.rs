//! Models and data that transformers has made, and the command that trains them.
#![allow(dead_code, clippy::unwrap_used)] // A test fails by panicking, and not every test uses all.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use serde_json::Value;

pub fn python(arguments: &[&str]) -> String {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let python = std::env::var_os("NEARFIELD_PYTHON")
        .map_or(workspace.join(".venv/bin/python"), PathBuf::from);
    let script = workspace.join("tests/models/reference.py");
    let output =
        Command::new(&python).arg(script).args(arguments).output().unwrap_or_else(|error| {
            panic!("{} with transformers is needed ({error}): run `make build`", python.display())
        });
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Models and data, made once.
pub fn made() -> &'static Path {
    static MADE: OnceLock<tempfile::TempDir> = OnceLock::new();
    MADE.get_or_init(|| {
        let root = tempfile::tempdir().unwrap();
        python(&["make", root.path().to_str().unwrap()]);
        root
    })
    .path()
}

pub struct Place(pub tempfile::TempDir);

impl Place {
    pub fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// A copy of a model that may be spoiled.
    pub fn model(&self, name: &str) -> PathBuf {
        let copy = self.path("model");
        let _ = fs::remove_dir_all(&copy);
        fs::create_dir(&copy).unwrap();
        for entry in fs::read_dir(made().join(name)).unwrap() {
            let entry = entry.unwrap();
            fs::copy(entry.path(), copy.join(entry.file_name())).unwrap();
        }
        copy
    }

    pub fn train(&self, model: &Path, data: &Path, more: &str) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_nearfield"));
        command.env_clear().env("HOME", self.0.path()).arg("train");
        command.arg("--model").arg(model).arg("--data").arg(data);
        for drive in ["drive0", "drive1"] {
            fs::create_dir_all(self.path(drive)).unwrap();
            command.arg("--drive").arg(self.path(drive));
        }
        command.arg("--out").arg(self.path("out")).arg("--report").arg(self.path("r.json"));
        command.args("--seq 24 --batch 2 --accumulate 2 --threads 1 --compute cpu".split(' '));
        command.args("--lr 0.001 --schedule constant --warmup 0 --subgroup-size 9000".split(' '));
        command.args("--eval-fraction 0 --progress none".split(' '));
        command.args(more.split_whitespace());
        command.output().unwrap()
    }

    pub fn report(&self) -> Value {
        serde_json::from_slice(&fs::read(self.path("r.json")).unwrap()).unwrap()
    }
}

pub fn succeeded(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

pub fn failed_with(output: &Output, words: &[&str]) {
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{text}");
    for word in words {
        assert!(text.contains(word), "{text:?} lacks {word:?}");
    }
}

pub fn losses(report: &Value) -> Vec<f64> {
    serde_json::from_value(report["loss"].clone()).unwrap()
}
