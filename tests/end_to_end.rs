//! The command as a user runs it: training on drives, kill and resume, wrong input.
#![allow(clippy::unwrap_used)] // A test fails by panicking.

#[path = "common/training.rs"]
mod common;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use common::{Place, failed_with, state, succeeded};
use serde_json::Value;

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

/// Kills a run with SIGKILL after a random time, again and again, until it ends.
fn killed_at_random_times(seeds: std::ops::Range<u64>) {
    const STEPS: &str = "12";
    let place = Place::new();
    succeeded(&place.train("memory", &[], &["--steps", STEPS]));
    let expected = place.report();
    let drives = place.drives(2);
    let mut hits = 0;
    for seed in seeds {
        let mut random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut wait = |most_millis: u64| {
            random = (random ^ (random >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            std::thread::sleep(Duration::from_micros((random >> 24) % (1000 * most_millis)));
        };
        let mut child = place.begin("su+o", &drives, &["--steps", STEPS, "--overwrite"], 1);
        wait(100);
        // Later kills also meet runs that are starting or recovering.
        for _ in 0..2 {
            child.kill().unwrap();
            hits += u64::from(!child.wait().unwrap().success());
            let mut command = place.command("su+o", &drives, &["--steps", STEPS, "--resume"]);
            child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
            wait(600);
        }
        child.kill().unwrap();
        child.wait().unwrap();
        succeeded(&place.train("su+o", &drives, &["--steps", STEPS, "--resume"]));
        let report = place.report();
        assert_eq!(report["state_digest"], expected["state_digest"], "seed {seed}");
        assert_eq!(report["loss"], expected["loss"], "seed {seed}");
        succeeded(&state("verify", &drives));
    }
    assert!(hits > 0, "no kill hit a running process");
}

#[test]
fn a_run_killed_at_random_times_ends_like_one_never_killed() {
    killed_at_random_times(0..4);
}

#[test]
#[ignore = "several minutes"]
fn a_run_killed_at_random_times_ends_like_one_never_killed_over_hundreds_of_seeds() {
    killed_at_random_times(1000..1200);
}

#[test]
fn ctrl_c_ends_after_the_step_and_the_run_can_be_continued() {
    let place = Place::new();
    succeeded(&place.train("memory", &[], &["--steps", "40"]));
    let expected = place.report();
    let drives = place.drives(2);
    let mut child = place.begin("su+o", &drives, &["--steps", "40", "--overwrite"], 2);
    let interrupt = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(interrupt.success());
    assert_eq!(child.wait().unwrap().code(), Some(130));
    let report = place.report();
    assert_eq!(report["interrupted"], true);
    let steps = report["steps"].as_u64().unwrap();
    assert!((2..40).contains(&steps), "{steps}");
    assert_eq!(report["loss"].as_array().unwrap().len() as u64, steps);
    succeeded(&state("verify", &drives));
    succeeded(&place.train("su+o", &drives, &["--steps", "40", "--resume"]));
    assert_eq!(place.report()["state_digest"], expected["state_digest"]);
    assert_eq!(place.report()["loss"], expected["loss"]);
}

#[test]
fn compressed_gradients_still_lower_the_loss_and_end_near_dense_ones() {
    let place = Place::new();
    let drives = place.drives(2);
    let flags = ["--steps", "60", "--lr", "0.003", "--overwrite"];
    let last = |more: &[&str], system| {
        succeeded(&place.train(system, &drives, &[&flags[..], more].concat()));
        let report = place.report();
        let losses: Vec<f64> = serde_json::from_value(report["loss"].clone()).unwrap();
        for (link, bytes) in report["traffic"].as_object().unwrap() {
            assert_eq!(bytes["predicted"], bytes["measured"], "{system} {link}");
        }
        (losses[0], losses[50..].iter().sum::<f64>() / 10.0)
    };
    let (first, dense) = last(&[], "su+o");
    let (same, compressed) = last(&["--topk-keep", "0.05"], "su+o+c");
    assert_eq!(first, same);
    assert!(dense < first - 1.0, "{first} -> {dense}");
    assert!(compressed < first - 0.5 * (first - dense), "{first} -> {compressed}, dense {dense}");
}

#[test]
fn the_fpga_kernels_train_to_the_same_digest() {
    let place = Place::new();
    let drives = place.drives(2);
    let cases: [(&str, &[&str]); 3] = [
        ("su+o", &[]),
        ("su+o", &["--dtype", "bf16", "--gradient-dtype", "bf16", "--moment-dtype", "bf16"]),
        ("su+o+c", &["--topk-keep", "0.05", "--dtype", "bf16", "--optimizer", "sgd-momentum"]),
    ];
    for (system, more) in cases {
        let digest = |device: &[&str]| {
            let flags = [&["--steps", "4", "--overwrite"], more, device].concat();
            succeeded(&place.train(system, &drives, &flags));
            place.report()["state_digest"].clone()
        };
        let fpga = digest(&["--device", "emulated", "--device-kernels", "hls"]);
        assert_eq!(digest(&[]), fpga, "{system} {more:?}");
    }
}

#[test]
fn a_run_whose_superblock_is_lost_is_not_overwritten() {
    let place = Place::new();
    let drives = place.drives(2);
    succeeded(&place.train("su+o", &drives, &["--steps", "3"]));
    for lost in [&drives[..1], &drives[..]] {
        let kept: Vec<Vec<u8>> =
            lost.iter().map(|dir| std::fs::read(dir.join("superblock.nf")).unwrap()).collect();
        for dir in lost {
            std::fs::remove_file(dir.join("superblock.nf")).unwrap();
        }
        let slots = std::fs::read(drives[0].join("slots.nf")).unwrap();
        for more in [&["--steps", "3"][..], &["--steps", "4", "--resume"]] {
            let words = ["superblock.nf is missing", "--overwrite"];
            failed_with(&place.train("su+o", &drives, more), &words);
        }
        assert!(std::fs::read(drives[0].join("slots.nf")).unwrap() == slots);
        for (dir, bytes) in lost.iter().zip(kept) {
            std::fs::write(dir.join("superblock.nf"), bytes).unwrap();
        }
    }
    succeeded(&place.train("su+o", &drives, &["--steps", "4", "--resume"]));
}

#[test]
fn an_interrupted_measurement_leaves_nothing() {
    let place = Place::new();
    let drives = place.drives(1);
    let mut io = Command::new(env!("CARGO_BIN_EXE_nearfield"));
    io.args(["bench", "io", "--bytes", "64MiB", "--rounds", "1000", "--drive"]).arg(&drives[0]);
    let mut child = io.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    while std::fs::read_dir(&drives[0]).unwrap().count() == 0 {
        assert!(child.try_wait().unwrap().is_none());
        std::thread::sleep(Duration::from_millis(5));
    }
    std::thread::sleep(Duration::from_millis(100));
    let terminate = Command::new("kill").args(["-TERM", &child.id().to_string()]).status().unwrap();
    assert!(terminate.success());
    assert_eq!(child.wait().unwrap().code(), Some(143));
    assert_eq!(std::fs::read_dir(&drives[0]).unwrap().count(), 0);
}

#[test]
fn drives_of_different_speed_have_different_shares_and_keep_them() {
    let place = Place::new();
    let drives = place.drives(3);
    // The learning rate must not depend on --steps, which change.
    let run = |system: &str, drives: &[PathBuf], more: &[&str]| {
        let steady = ["--schedule", "constant", "--warmup", "0"];
        place.train(system, drives, &[&steady[..], more].concat())
    };
    succeeded(&run("su+o", &drives, &["--steps", "4"]));
    let equal = place.report();
    let weighted: Vec<PathBuf> = drives
        .iter()
        .zip([4, 1, 2])
        .map(|(drive, weight)| PathBuf::from(format!("{}={weight}", drive.display())))
        .collect();
    for system in ["su+o", "base"] {
        succeeded(&run(system, &weighted, &["--steps", "2", "--overwrite"]));
        // In another order, and measured: what is on the drives counts.
        let turned = [weighted[2].clone(), weighted[0].clone(), weighted[1].clone()];
        succeeded(&run(system, &turned, &["--steps", "3", "--resume"]));
        succeeded(&run(system, &drives, &["--steps", "4", "--resume", "--balance"]));
        let report = place.report();
        assert_eq!(report["state_digest"], equal["state_digest"]);
        let parameters: Vec<f64> =
            serde_json::from_value(report["drive_parameters"].clone()).unwrap();
        let total: f64 = parameters.iter().sum();
        for (own, weight) in parameters.iter().zip([4.0, 1.0, 2.0]) {
            assert!((own / total - weight / 7.0).abs() < 0.08, "{parameters:?}");
        }
    }
    failed_with(&place.train("su+o", &weighted[..1], &["--balance"]), &["--balance", "weights"]);
    let mixed = [weighted[0].clone(), drives[1].clone()];
    failed_with(&place.train("su+o", &mixed, &["--overwrite"]), &["DIR=WEIGHT"]);
    let measured = place.train("su+o", &drives, &["--steps", "1", "--overwrite", "--balance"]);
    succeeded(&measured);
    assert!(String::from_utf8_lossy(&measured.stderr).contains("drive 2: reads"));
}

#[test]
fn an_update_within_the_backward_pass_changes_nothing_but_time() {
    let place = Place::new();
    let drives = place.drives(2);
    for (system, more) in [
        ("su+o", &["--dtype", "fp32", "--clip", "0"][..]),
        // Overflows at first, and clips.
        (
            "su+o",
            &[
                "--dtype",
                "fp16",
                "--clip",
                "1.45",
                "--initial-loss-scale",
                "16777216",
                "--steps",
                "16",
            ],
        ),
        ("su+o+c", &["--dtype", "bf16", "--error-feedback", "--clip", "1.6"]),
        ("su+o", &["--weights", "drive", "--activations", "drive", "--clip", "0"]),
    ] {
        let steps = if more.contains(&"--steps") { &[][..] } else { &["--steps", "12"] };
        let flags = [&["--overwrite"], steps, more].concat();
        succeeded(&place.train(system, &drives, &flags));
        let expected = place.report();
        let ahead = [&flags[..], &["--overlap-update"]].concat();
        succeeded(&place.train(system, &drives, &ahead));
        let report = place.report();
        assert_eq!(report["state_digest"], expected["state_digest"], "{system} {more:?}");
        assert_eq!(report["loss"], expected["loss"]);
        assert_eq!(report["skipped_steps"], expected["skipped_steps"]);
        assert_eq!(report["skipped_steps"] != 0, more.contains(&"fp16"));
        for (link, bytes) in report["traffic"].as_object().unwrap() {
            assert_eq!(bytes["predicted"], bytes["measured"], "{link} {system} {more:?}");
        }
        let of = |key: &str| report["updates_ahead"][key].as_u64().unwrap();
        assert!(of("counted") > 0, "{} {more:?}", report["updates_ahead"]);
        let wrong = more.contains(&"fp16");
        assert!(!wrong || of("in_vain") > 0, "{} {more:?}", report["updates_ahead"]);
        // What is written ahead is known before.
        let dry = [&ahead[..], &["--dry-run", "--progress", "json"]].concat();
        let dry = place.train(system, &drives, &dry);
        succeeded(&dry);
        let dry: Value = serde_json::from_slice(&dry.stdout).unwrap();
        for (drive, need) in drives.iter().zip(dry["drives"].as_array().unwrap()) {
            let files = std::fs::read_dir(drive).unwrap().map(|file| file.unwrap());
            let bytes: u64 = files.map(|file| file.metadata().unwrap().len()).sum();
            let needed = need["needs_bytes"].as_u64().unwrap();
            let outputs = if more.contains(&"--activations") { 1 << 20 } else { 16_384 };
            assert!(needed.abs_diff(bytes) <= outputs, "{need} {bytes}");
        }
    }
    // Cut off and continued, with and without.
    let run = |more: &[&str]| {
        let flags = [&["--steps", "6", "--clip", "0", "--overlap-update"], more].concat();
        place.train("su+o", &drives, &flags)
    };
    succeeded(&run(&["--overwrite"]));
    let whole = place.report()["state_digest"].clone();
    let fault = ["--overwrite", "--inject", "write:150:crash"];
    assert!(!run(&fault).status.success());
    succeeded(&run(&["--resume"]));
    assert_eq!(place.report()["state_digest"], whole);
    failed_with(
        &place.train("base", &drives, &["--overlap-update", "--overwrite"]),
        &["--overlap-update", "su+o"],
    );
}

#[test]
fn the_reference_lists_every_flag_and_no_other() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nearfield"));
    let help = command.env_clear().args(["train", "--help"]).output().unwrap().stdout;
    let help = String::from_utf8(help).unwrap();
    // Descriptions, which may name flags as well, are indented further.
    let flags = |line: &str| {
        let flag = line.strip_prefix("      ")?.split([' ', '=']).next()?;
        flag.starts_with("--").then(|| flag.to_owned())
    };
    let mut helped: Vec<String> = help.lines().filter_map(flags).collect();
    helped.retain(|flag| flag != "--help");
    let reference = include_str!("../docs/src/reference/flags.md");
    let reference = reference.split("## Options that exclude each other").next().unwrap();
    let listed = reference.lines().filter_map(|line| {
        let flag = line.strip_prefix("| `")?.split('`').next()?;
        flag.starts_with("--").then(|| flag.to_owned())
    });
    let mut listed: Vec<String> = listed.collect();
    helped.sort();
    listed.sort();
    assert!(helped.len() > 40, "{helped:?}");
    assert_eq!(listed, helped);
}

#[test]
fn what_a_run_writes_never_replaces_what_it_reads() {
    let place = Place::new();
    let drives = place.drives(1);
    succeeded(&place.train("su+o", &drives, &["--steps", "2"]));
    let text = place.text.to_str().unwrap().to_owned();
    let slots = drives[0].join("slots.nf");
    let before = (std::fs::read(&place.text).unwrap(), std::fs::read(&slots).unwrap());
    let resume = ["--steps", "3", "--resume", "--trace"];
    failed_with(
        &place.train("su+o", &drives, &[&resume[..], &[text.as_str()]].concat()),
        &["--trace would replace", "--data"],
    );
    let inside = slots.to_str().unwrap();
    failed_with(
        &place.train("su+o", &drives, &[&resume[..], &[inside]].concat()),
        &["--trace", "drive directory"],
    );
    assert!(before == (std::fs::read(&place.text).unwrap(), std::fs::read(&slots).unwrap()));
    let report = place.path("r.json");
    let mut command = Command::new(env!("CARGO_BIN_EXE_nearfield"));
    command.env_clear().arg("report").arg(&report).arg("--out").arg(&report);
    failed_with(&command.output().unwrap(), &["is the report itself"]);
    succeeded(&place.train("su+o", &drives, &["--steps", "3", "--resume"]));
    for (flag, value, word) in [
        ("--drive-tbw", "-1", "rating"),
        ("--drive-tbw", "nan", "rating"),
        ("--sample", "4294967295", "100000"),
        ("--initial-loss-scale", "1", "dynamic loss scale"),
        ("--inject", "write:0:crash", "operation:nth"),
    ] {
        let given = format!("{flag}={value}");
        let mut command = place.command("su+o", &drives, &["--steps", "4", "--resume"]);
        if flag == "--sample" {
            command = Command::new(env!("CARGO_BIN_EXE_nearfield"));
            command.env_clear().arg("train").arg("--drive").arg(&drives[0]).arg("--data");
            command.arg(&place.text);
        }
        failed_with(&command.arg(given).output().unwrap(), &[word]);
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
    failed_with(
        &place.train("su+o", &drives, &["--device-kernels", "hls"]),
        &["--device-kernels", "--device emulated"],
    );
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
