//! Training with `--device xrt`, on emulated cards behind the real XRT.

#![allow(clippy::unwrap_used)] // A test fails by panicking.

#[path = "common/training.rs"]
mod common;

use std::path::PathBuf;
use std::time::Duration;

use common::{Place, failed_with, succeeded};
use nearfield_fpga::emulation::Emulation;

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
