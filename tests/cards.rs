//! Training with `--device xrt`, on emulated cards behind the real XRT.

#![allow(clippy::unwrap_used)] // A test fails by panicking.

#[path = "common/training.rs"]
mod common;
#[allow(dead_code)] // Not every test opens the library itself.
#[path = "common/lookalike.rs"]
mod lookalike;

use std::path::PathBuf;
use std::process::Output;
use std::time::Duration;

use common::{Place, failed_with, succeeded};
use nearfield_fpga::card::ABORT_IN_RUN;
use nearfield_fpga::emulation::Emulation;
use nearfield_xrt_lookalike::faults::VARIABLE;

const LIMIT: Duration = Duration::from_secs(240);

/// The program that plays a card: it lies beside the command, since a test of the whole workspace builds both.
fn emulation(cards: u32) -> Emulation {
    let beside = PathBuf::from(env!("CARGO_BIN_EXE_nearfield"));
    let card = beside.with_file_name("nearfield-emulated-card");
    assert!(card.exists(), "build it: cargo build --release -p nearfield-fpga --bins");
    Emulation::new(cards, &card).unwrap()
}

#[test]
fn emulated_cards_train_to_the_digest_of_the_processor() {
    let place = Place::new();
    let cases: [(u32, &str, &[&str]); 3] = [
        (2, "su+o", &["--dtype", "bf16", "--moment-dtype", "bf16"]),
        (2, "su+o+c", &["--topk-keep", "0.05", "--dtype", "bf16"]),
        (4, "su", &["--optimizer", "adagrad"]),
    ];
    for (cards, system, more) in cases {
        let drives = place.drives(cards as usize);
        let flags = [&["--steps", "3", "--overwrite"], more].concat();
        succeeded(&place.train(system, &drives, &flags));
        let expected = place.report();
        let emulation = emulation(cards);
        let bitstream = emulation.bitstream().display().to_string();
        let xrt = [&flags[..], &["--device", "xrt", "--bitstream", &bitstream]].concat();
        let mut command = place.command(system, &drives, &xrt);
        command.env("PATH", "/usr/bin:/bin");
        let ended = emulation.run(command, LIMIT).unwrap();
        assert!(ended.status.is_some_and(|status| status.success()), "{system}: {ended:?}");
        let report = place.report();
        assert_eq!(report["state_digest"], expected["state_digest"], "{system} {more:?}");
        assert_eq!(report["loss"], expected["loss"], "{system} {more:?}");
        for (link, bytes) in report["traffic"].as_object().unwrap() {
            assert_eq!(bytes["predicted"], bytes["measured"], "{system} {link}");
        }
    }
}

#[test]
fn a_missing_or_wrong_bitstream_is_named() {
    let place = Place::new();
    let drives = place.drives(1);
    failed_with(
        &place.train("su+o", &drives, &["--device", "xrt"]),
        &["--bitstream", "make bitstream"],
    );
    failed_with(
        &place.train("su+o", &drives, &["--bitstream", "x"]),
        &["--bitstream", "--device xrt"],
    );
    let text = place.text.display().to_string();
    let wrong = ["--device", "xrt", "--bitstream", &text];
    failed_with(&place.train("su+o", &drives, &wrong), &["text.txt", "xclbin"]);
}

/// Flags of a run that is cut short on cards and goes on without them.
const STEPS: [&str; 2] = ["--steps", "6"];

/// The digest of an undisturbed run.
fn undisturbed(place: &Place, drives: &[PathBuf], flags: &[&str]) -> serde_json::Value {
    let flags = [&STEPS[..], flags, &["--overwrite"]].concat();
    succeeded(&place.train("su+o+c", drives, &flags));
    place.report()["state_digest"].clone()
}

/// The state of a run that was cut short is whole: the run goes on from it to the digest of an undisturbed one.
fn goes_on(place: &Place, drives: &[PathBuf], flags: &[&str], expected: &serde_json::Value) {
    let flags = [&STEPS[..], flags, &["--resume"]].concat();
    succeeded(&place.train("su+o+c", drives, &flags));
    assert_eq!(&place.report()["state_digest"], expected);
}

const KEEP: [&str; 2] = ["--topk-keep", "0.05"];

#[test]
fn a_card_that_dies_in_a_step_costs_that_step_only() {
    let place = Place::new();
    let drives = place.drives(2);
    let expected = undisturbed(&place, &drives, &KEEP);
    let emulation = emulation(2);
    let bitstream = emulation.bitstream().display().to_string();
    let xrt = ["--device", "xrt", "--bitstream", &bitstream, "--card-timeout", "3", "--overwrite"];
    let mut command = place.command("su+o+c", &drives, &[&STEPS[..], &KEEP, &xrt].concat());
    // A step has some ten runs on each card, so the third step or so is hit.
    command.env("PATH", "/usr/bin:/bin").env(ABORT_IN_RUN, "31");
    let ended = emulation.run(command, LIMIT).unwrap();
    assert_eq!(ended.status.and_then(|status| status.code()), Some(1), "{ended:?}");
    assert!(ended.output.contains("has not ended within 3 s"), "{ended:?}");
    assert!(ended.output.contains("asked to abort in run 31"), "{ended:?}");
    let done = std::fs::read_to_string(place.path("out/metrics.jsonl")).unwrap();
    assert!((1..6).contains(&done.lines().count()), "{done}");
    goes_on(&place, &drives, &KEEP, &expected);
}

/// The command on cards of a look-alike of XRT's library, which is asked for trouble.
fn on_lookalike(place: &Place, drives: &[PathBuf], play: &str, flags: &[&str]) -> Output {
    let folder = place.path("xrt");
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir(&folder).unwrap();
    let bitstream = lookalike::put_into(&folder);
    let bitstream = bitstream.display().to_string();
    let xrt = ["--device", "xrt", "--bitstream", &bitstream];
    let mut command = place.command("su+o+c", drives, &[&xrt, &STEPS[..], &KEEP, flags].concat());
    command.env("LD_LIBRARY_PATH", folder).env(VARIABLE, play).output().unwrap()
}

#[test]
fn runs_that_fail_or_never_end_cost_their_step_only() {
    let place = Place::new();
    let drives = place.drives(2);
    let expected = undisturbed(&place, &drives, &KEEP);
    let cards = ["--card", "0", "--card", "0000:11:00.1"];
    let flags = [&cards[..], &["--card-timeout", "2", "--overwrite"]].concat();
    let plays = [
        ("", ""),
        ("1:run:31:hang", "card 0000:11:00.1: kernel"),
        ("0:run:25:state 5", "ended in state 5"),
        ("0:run:22:skip", "says that it has worked on"),
        ("1:sync:25:hang", "xrtBOSync has not ended within 2 s"),
    ];
    for (play, said) in plays {
        let output = on_lookalike(&place, &drives, play, &flags);
        if play.is_empty() {
            succeeded(&output);
            assert_eq!(place.report()["state_digest"], expected);
            continue;
        }
        failed_with(&output, &[said]);
        assert_eq!(output.status.code(), Some(1), "{play}");
        goes_on(&place, &drives, &KEEP, &expected);
    }
}

#[test]
fn cards_are_found_by_their_drives_or_named() {
    let place = Place::new();
    let drives = place.drives(2);
    // This machine's drives have no FPGA behind their switch.
    failed_with(&on_lookalike(&place, &drives, "", &[]), &["--device xrt", "SmartSSD"]);
    let named = |cards: &[&str]| {
        let flags: Vec<&str> = cards.iter().flat_map(|card| ["--card", card]).collect();
        on_lookalike(&place, &drives, "cards=2", &flags)
    };
    let empty = |drive: &PathBuf| std::fs::read_dir(drive).unwrap().count() == 0;
    failed_with(&named(&["0"]), &["1 cards and 2 drives"]);
    failed_with(&named(&["0", "x"]), &["--card x", "PCI address"]);
    failed_with(&named(&["0", "0"]), &["card 0 is in use"]);
    failed_with(&named(&["0", "7"]), &["card 7 cannot be opened"]);
    let small = ["--card", "0", "--card", "1"];
    failed_with(&on_lookalike(&place, &drives, "memory=40000", &small), &["card 0", "(P2P)"]);
    assert!(drives.iter().all(empty), "a run that cannot begin leaves state");
    failed_with(&place.train("su+o", &drives, &["--card", "0"]), &["--card needs --device xrt"]);
    let never = place.train("su+o", &drives, &["--device", "xrt", "--card-timeout", "0"]);
    failed_with(&never, &["--card-timeout"]);
}
