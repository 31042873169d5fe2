//! State out of a run and into another: torch, safetensors, other drives, snapshots.
#![allow(clippy::unwrap_used)] // A test fails by panicking.

#[path = "common/models.rs"]
mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use common::{Place, failed_with, losses, made, python, succeeded};
use serde_json::Value;

/// Largest difference of a loss from that of plain PyTorch.
const WORST: f64 = 1e-5;

fn state(arguments: &[&str], drives: &[PathBuf]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nearfield"));
    command.env_clear().arg("state").args(arguments);
    for drive in drives {
        command.arg("--drive").arg(drive);
    }
    command.output().unwrap()
}

fn drives(place: &Place) -> Vec<PathBuf> {
    vec![place.path("drive0"), place.path("drive1")]
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// A run of `steps` steps on tokens in their order.
fn run(place: &Place, model: &Path, steps: u32, more: &str) -> Value {
    let more = format!("--order sequential --steps {steps} --sample 0 {more}");
    succeeded(&place.train(model, &made().join("tokens.npy"), &more));
    place.report()
}

fn close(own: &[f64], theirs: &[f64]) {
    assert_eq!(own.len(), theirs.len());
    let worst = own.iter().zip(theirs).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
    assert!(worst <= WORST, "losses differ by {worst}: {own:?} {theirs:?}");
}

#[test]
fn a_torch_run_and_a_run_here_continue_each_other() {
    let root = made();
    for name in ["gpt2", "qwen3"] {
        let place = Place::new();
        let model = root.join(name);
        let whole = losses(&run(&place, &model, 10, "--overwrite"));
        let five = run(&place, &model, 5, "--overwrite");
        let exported = place.path("exported");
        let optimizer = place.path("exported.pt");
        succeeded(&state(
            &[
                "export",
                "--model",
                text(&exported),
                "--optimizer",
                text(&optimizer),
                "--from-model",
                text(&model),
            ],
            &drives(&place),
        ));
        // Here, then there.
        let out = place.path("torch");
        let theirs = python(&["steps", text(root), text(&exported), "5", "10", text(&out)]);
        let theirs: Vec<f64> = serde_json::from_str(&theirs).unwrap();
        close(&whole[5..], &theirs);
        // There, then here: from the start, with what torch has saved.
        let begun = place.path("begun");
        let theirs = python(&["steps", text(root), text(&model), "0", "5", text(&begun)]);
        let theirs: Vec<f64> = serde_json::from_str(&theirs).unwrap();
        close(&whole[..5], &theirs);
        let more = format!("--overwrite --optimizer-state {}.pt", begun.display());
        let continued = run(&place, &begun, 10, &more);
        close(&whole[5..], &losses(&continued));
        // What was exported is the state itself, in both forms.
        for file in ["exported.pt", "exported.safetensors"] {
            let optimizer = place.path(file);
            if file.ends_with("safetensors") {
                run(&place, &model, 5, "--overwrite");
                succeeded(&state(&["export", "--optimizer", text(&optimizer)], &drives(&place)));
            }
            let more = format!("--overwrite --optimizer-state {}", optimizer.display());
            let same = run(&place, &exported, 5, &more);
            assert_eq!(same["state_digest"], five["state_digest"], "{name} {file}");
            let more = format!("--overwrite --optimizer-state {}", optimizer.display());
            assert_eq!(losses(&run(&place, &exported, 10, &more)), whole[5..], "{name} {file}");
        }
    }
}

#[test]
fn a_state_is_imported_and_the_run_that_goes_on_chooses_its_own_options() {
    let root = made();
    let place = Place::new();
    let model = root.join("qwen3");
    let whole = run(&place, &model, 10, "");
    let (begun, file) = (place.path("begun"), place.path("begun.pt"));
    python(&["steps", text(root), text(&model), "0", "5", text(&begun)]);
    let import = |model: &Path, file: &Path, more: &str| {
        let mut arguments = vec!["import", "--model", text(model), "--optimizer", text(file)];
        arguments.extend("--subgroup-size 9000".split(' ').chain(more.split_whitespace()));
        state(&arguments, &drives(&place))
    };
    // Nothing that is there is replaced unasked, or by what cannot be used.
    failed_with(&import(&begun, &file, ""), &["--overwrite"]);
    let adagrad = import(&begun, &file, "--overwrite --update-rule adagrad");
    failed_with(&adagrad, &["adamw or adam", "adagrad"]);
    failed_with(&import(&begun, &file, "--overwrite --system memory"), &["memory", "su+o"]);
    failed_with(&import(&begun, &file, "--overwrite --moment-dtype fp16"), &["--moment-dtype"]);
    failed_with(&import(&root.join("gpt2"), &file, "--overwrite"), &["begun.pt"]);
    let kept = run(&place, &model, 10, "--resume");
    assert_eq!(kept["state_digest"], whole["state_digest"]);
    // What has come in goes out and comes in again, to the bit.
    let shown = succeeded(&import(&begun, &file, "--overwrite"));
    assert!(shown.contains("after step 5"), "{shown}");
    let again = place.path("again.safetensors");
    succeeded(&state(&["export", "--optimizer", text(&again)], &drives(&place)));
    assert_eq!(succeeded(&import(&begun, &again, "--overwrite")), shown);
    // The run that goes on says what it is, and from then on it is that run's.
    fs::remove_dir_all(place.path("out")).unwrap();
    let tokens = root.join("tokens.npy");
    let go_on = "--resume --order sequential --steps 10 --sample 0";
    let planned = succeeded(&place.train(&begun, &tokens, &format!("{go_on} --dry-run")));
    assert!(planned.contains("after iteration 5 of 10"), "{planned}");
    let continued = run(&place, &begun, 10, "--resume");
    close(&losses(&whole)[5..], &losses(&continued));
    let other = place.train(&begun, &tokens, &format!("{go_on} --seed 9"));
    failed_with(&other, &["--seed 0, not 9"]);
}

#[test]
fn a_model_of_ones_own_is_exported_from_drives_alone_and_moments_may_be_short() {
    let root = made();
    let place = Place::new();
    run(&place, &root.join("gpt2"), 3, "");
    let model = place.path("exported");
    let optimizer = place.path("moments.safetensors");
    let arguments =
        ["export", "--model", text(&model), "--optimizer", text(&optimizer), "--moments", "bf16"];
    let shown = succeeded(&state(&arguments, &drives(&place)));
    assert!(shown.contains("after step 3") && shown.contains("state digest"), "{shown}");
    assert!(model.join("config.json").is_file() && !model.join("tokenizer.json").exists());
    let bytes = fs::metadata(&optimizer).unwrap().len();
    let parameters = place.report()["parameters"].as_u64().unwrap();
    assert!((4 * parameters..4 * parameters + 20_000).contains(&bytes), "{bytes} {parameters}");
    failed_with(&state(&arguments, &drives(&place)), &["there already"]);
    let again = [&arguments[..], &["--overwrite"]].concat();
    succeeded(&state(&again, &drives(&place)));
    failed_with(&state(&["export"], &drives(&place)), &["--model DIR, --optimizer FILE"]);
    let (target, from) = (place.path("x"), root.join("qwen3"));
    let other = ["export", "--model", text(&target), "--from-model", text(&from)];
    failed_with(&state(&other, &drives(&place)), &["another model than the run"]);
}

#[test]
fn moments_kept_as_bf16_train_as_well_and_go_everywhere_that_others_go() {
    let root = made();
    let place = Place::new();
    let model = root.join("gpt2");
    let wide = run(&place, &model, 6, "--overwrite");
    let whole = run(&place, &model, 6, "--overwrite --moment-dtype bf16");
    assert_ne!(whole["state_digest"], wide["state_digest"]);
    for (narrow, wide) in losses(&whole).iter().zip(losses(&wide)) {
        assert!((narrow - wide).abs() < 1e-2, "{narrow} {wide}");
    }
    // A third less is written for the state, and nothing else changes.
    let written =
        |report: &Value| report["traffic"]["internal_write"]["measured"].as_u64().unwrap();
    let ratio = written(&whole) as f64 / written(&wide) as f64;
    assert!((0.66..0.70).contains(&ratio), "{ratio}");

    let half = run(&place, &model, 3, "--overwrite --moment-dtype bf16");
    let more = "--steps 6 --order sequential --sample 0 --resume";
    let wrong = place.train(&model, &root.join("tokens.npy"), more);
    failed_with(&wrong, &["--moment-dtype bf16, not fp32"]);
    let resumed = run(&place, &model, 6, "--resume --moment-dtype bf16");
    assert_eq!(resumed["state_digest"], whole["state_digest"]);

    // Out of the drives and in again, whatever the format on the way.
    run(&place, &model, 3, "--overwrite --moment-dtype bf16");
    let exported = place.path("exported");
    for (name, moments) in [("m.pt", "fp32"), ("m.safetensors", "bf16")] {
        let file = place.path(name);
        let arguments =
            ["export", "--overwrite", "--model", text(&exported), "--optimizer", text(&file)];
        let arguments = [&arguments[..], &["--moments", moments]].concat();
        run(&place, &model, 3, "--overwrite --moment-dtype bf16");
        succeeded(&state(&arguments, &drives(&place)));
        let more = format!("--overwrite --moment-dtype bf16 --optimizer-state {}", file.display());
        let same = run(&place, &exported, 3, &more);
        assert_eq!(same["state_digest"], half["state_digest"], "{name}");
    }
    let three: Vec<PathBuf> = (0..3).map(|index| place.path(&format!("new{index}"))).collect();
    let mut arguments = vec!["repartition", "--subgroup-size", "9000"];
    for drive in &three {
        fs::create_dir_all(drive).unwrap();
        arguments.extend(["--to", text(drive)]);
    }
    let shown = succeeded(&state(&arguments, &drives(&place)));
    assert!(shown.contains(half["state_digest"].as_str().unwrap()), "{shown}");
    let shown = succeeded(&state(&["inspect"], &three));
    assert!(shown.contains("moments in bf16"), "{shown}");
}

#[test]
fn a_run_goes_on_with_another_number_of_drives() {
    let root = made();
    let place = Place::new();
    let model = root.join("gpt2");
    let whole = run(&place, &model, 8, "--overwrite");
    let half = run(&place, &model, 4, "--overwrite");
    let three: Vec<PathBuf> = (0..3).map(|index| place.path(&format!("new{index}"))).collect();
    let mut arguments =
        vec!["repartition".to_owned(), "--subgroup-size".to_owned(), "9000".to_owned()];
    for drive in &three {
        fs::create_dir_all(drive).unwrap();
        arguments.extend(["--to".to_owned(), text(drive).to_owned()]);
    }
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let shown = succeeded(&state(&arguments, &drives(&place)));
    assert!(shown.contains(half["state_digest"].as_str().unwrap()), "{shown}");
    // Back to two drives by their old names, to go on there.
    for (drive, name) in three.iter().zip(["drive0", "drive1", "drive2"]) {
        let _ = fs::remove_dir_all(place.path(name));
        fs::rename(drive, place.path(name)).unwrap();
    }
    let third = format!("--resume --drive {}", place.path("drive2").display());
    let resumed = run(&place, &model, 8, &third);
    assert_eq!(resumed["state_digest"], whole["state_digest"]);
    assert_eq!(resumed["drives"], 3);
    assert_eq!(losses(&resumed)[4..], losses(&whole)[4..]);
    let own = place.path("drive0");
    let busy = ["repartition", "--to", text(&own)];
    let all: Vec<PathBuf> = (0..3).map(|index| place.path(&format!("drive{index}"))).collect();
    assert!(!state(&busy, &all).status.success());
}

#[test]
fn a_copy_gets_the_slots_that_updates_ahead_need() {
    let place = Place::new();
    let old = run(&place, &made().join("gpt2"), 2, "");
    for (name, more) in [("few", None), ("many", Some("--overlap-update"))] {
        let target = vec![place.path(name)];
        fs::create_dir_all(&target[0]).unwrap();
        let mut arguments =
            vec!["repartition", "--subgroup-size", "4000", "--to", text(&target[0])];
        arguments.extend(more);
        let shown = succeeded(&state(&arguments, &drives(&place)));
        assert!(shown.contains(old["state_digest"].as_str().unwrap()), "{shown}");
        let shown = succeeded(&state(&["inspect", "--json"], &target));
        let report: Value = serde_json::from_str(&shown).unwrap();
        let of = |key: &str| report["drives"][0][key].as_u64().unwrap();
        let (parts, spare) = (of("parts"), of("slots_free"));
        assert!(parts > 3, "{parts}");
        assert_eq!(spare, if more.is_some() { parts } else { 3 });
    }
}

#[test]
fn a_restore_is_laid_out_as_asked() {
    let place = Place::new();
    let old = run(&place, &made().join("gpt2"), 2, "");
    let snapshot = place.path("snapshot");
    succeeded(&state(&["snapshot", "--to", text(&snapshot)], &drives(&place)));
    let targets = vec![place.path("x"), place.path("y")];
    targets.iter().for_each(|target| fs::create_dir_all(target).unwrap());
    let restore =
        ["restore", "--from", text(&snapshot), "--subgroup-size", "3000", "--overlap-update"];
    let shown = succeeded(&state(&restore, &targets));
    assert!(shown.contains(old["state_digest"].as_str().unwrap()), "{shown}");
    let shown = succeeded(&state(&["inspect", "--json"], &targets));
    let report: Value = serde_json::from_str(&shown).unwrap();
    let of = |key: &str| report["drives"][0][key].as_u64().unwrap();
    assert!(of("parts") > 3 && of("slots_free") == of("parts"), "{shown}");
}

#[test]
fn a_snapshot_comes_back_to_the_same_or_another_number_of_drives() {
    let root = made();
    let place = Place::new();
    let model = root.join("gpt2");
    let early = run(&place, &model, 3, "--overwrite");
    let snapshot = place.path("snapshot");
    // What a snapshot that was cut off has left is in nobody's way.
    fs::create_dir_all(place.path(".snapshot.nearfield-snapshot/drive0")).unwrap();
    fs::write(place.path(".snapshot.nearfield-snapshot/drive0/slots.nf"), b"half").unwrap();
    let take = ["snapshot", "--to", text(&snapshot)];
    let shown = succeeded(&state(&take, &drives(&place)));
    assert!(shown.contains(early["state_digest"].as_str().unwrap()), "{shown}");
    assert!(!place.path(".snapshot.nearfield-snapshot").exists());
    failed_with(&state(&take, &drives(&place)), &["there already"]);
    let late = run(&place, &model, 6, "--resume");
    assert_ne!(late["state_digest"], early["state_digest"]);
    let restore = ["restore", "--from", text(&snapshot)];
    failed_with(&state(&restore, &drives(&place)), &["--overwrite"]);
    let replace = ["restore", "--from", text(&snapshot), "--overwrite"];
    succeeded(&state(&replace, &drives(&place)));
    let again = run(&place, &model, 6, "--resume");
    assert_eq!(again["state_digest"], late["state_digest"]);
    let one = vec![place.path("one")];
    fs::create_dir_all(&one[0]).unwrap();
    let shown = succeeded(&state(&restore, &one));
    assert!(shown.contains(early["state_digest"].as_str().unwrap()), "{shown}");
    let digest = succeeded(&state(&["digest"], &one));
    assert_eq!(digest.trim(), early["state_digest"].as_str().unwrap());
    let own = [vec![snapshot.join("drive0")], vec![place.path("drive1")]].concat();
    assert!(!state(&replace, &own).status.success());
    assert_eq!(
        succeeded(&state(&["digest"], &[snapshot.join("drive0"), snapshot.join("drive1")])).trim(),
        early["state_digest"]
    );
    // A copy that was cut off is no state, and says so.
    fs::remove_file(one[0].join("superblock.nf")).unwrap();
    assert!(!state(&["digest"], &one).status.success());
    failed_with(
        &state(&["restore", "--from", text(&place.path("out"))], &one),
        &["is no snapshot"],
    );
    // Damage of a snapshot is found before it is used.
    let slots = snapshot.join("drive0/slots.nf");
    let mut bytes = fs::read(&slots).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle..middle + 4096].fill(7);
    fs::write(&slots, bytes).unwrap();
    let damaged = state(&replace, &drives(&place));
    assert!(!damaged.status.success());
    let kept = run(&place, &model, 6, "--resume");
    assert_eq!(kept["state_digest"], late["state_digest"]);
}

#[test]
fn an_optimizer_file_that_does_not_fit_is_named_and_an_old_run_is_kept() {
    let root = made();
    let place = Place::new();
    let model = root.join("gpt2");
    let old = run(&place, &model, 2, "");
    let good = place.path("good.pt");
    succeeded(&state(&["export", "--optimizer", text(&good)], &drives(&place)));
    let bytes = fs::read(&good).unwrap();
    let wrong = |name: &str, bytes: &[u8], model: &Path, words: &[&str]| {
        let path = place.path(name);
        fs::write(&path, bytes).unwrap();
        let more = format!("--overwrite --steps 4 --optimizer-state {}", path.display());
        failed_with(&place.train(model, &root.join("tokens.npy"), &more), words);
    };
    wrong("cut.pt", &bytes[..bytes.len() / 2], &model, &["cut.pt", "state_dict"]);
    wrong("none.pt", b"hello", &model, &["none.pt"]);
    wrong("other.pt", &bytes, &root.join("qwen3"), &["parameters"]);
    wrong(
        "x.safetensors",
        &fs::read(model.join("model-00001-of-00005.safetensors")).unwrap(),
        &model,
        &["no tensor step"],
    );
    let good = place.path("good.safetensors");
    succeeded(&state(&["export", "--optimizer", text(&good)], &drives(&place)));
    let mut bytes = fs::read(&good).unwrap();
    let end = bytes.len();
    bytes[end - 4..].copy_from_slice(&f32::NAN.to_le_bytes());
    wrong("nan.safetensors", &bytes, &model, &["nan.safetensors", "NaN"]);
    let more = "--steps 4 --optimizer sgd-momentum --overwrite --optimizer-state good.pt";
    failed_with(&place.train(&model, &root.join("tokens.npy"), more), &["adamw or adam"]);
    let kept = run(&place, &model, 2, "--resume");
    assert_eq!(kept["state_digest"], old["state_digest"]);
}
