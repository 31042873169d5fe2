//! What becomes of calls to cards that fail or never come back, with a look-alike of XRT's library that is asked to fail.

#![allow(clippy::unwrap_used)] // A test fails by panicking.

#[path = "../../tests/common/lookalike.rs"]
mod common;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use common::{library, put_into};
use nearfield_fpga::check::{Extent, check};
use nearfield_fpga::device::SmartSsds;
use nearfield_fpga::xrt::{CardName, Xrt, any_lost};
use nearfield_runtime::device::{
    BufferRange, CheckPairsCall, NearStorageDevice, PairBuffers, Reach, pair_bounds_bytes,
};
use nearfield_runtime::io::{Faults, IoEngine, IoOptions, OpenMode};
use nearfield_xrt_lookalike::faults::VARIABLE;

/// A folder with the look-alike and a bitstream.
fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    put_into(folder.path());
    folder
}

fn bitstream(folder: &Path) -> PathBuf {
    folder.join("kernels.xclbin")
}

fn run(folder: &Path, play: &str, flags: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nearfield-card-check"));
    command.env_clear().env("LD_LIBRARY_PATH", folder).env(VARIABLE, play);
    command.arg("--bitstream").arg(bitstream(folder)).args(["--elements", "70000"]);
    command.args(flags).output().unwrap()
}

/// All that a run has said. It has closed and freed what it had opened.
fn said(output: &Output) -> String {
    let text = format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(!text.contains("objects left"), "{text}");
    text
}

/// A play that ends with an error, which has these words.
fn fails(play: &str, flags: &[&str], words: &[&str]) -> String {
    let folder = folder();
    let output = run(folder.path(), play, flags);
    let text = said(&output);
    assert_eq!(output.status.code(), Some(1), "{play}: {text}");
    for word in words {
        assert!(text.contains(word), "{play}: {text:?} lacks {word:?}");
    }
    text
}

#[test]
fn without_faults_two_cards_give_the_bits_of_the_cpu() {
    let folder = folder();
    let drives = [0, 1].map(|drive| folder.path().join(format!("drive{drive}")));
    drives.iter().for_each(|drive| std::fs::create_dir(drive).unwrap());
    let [first, second] = drives.each_ref().map(|drive| drive.to_str().unwrap());
    let flags = ["--card", "0", "--card", "0000:11:00.1", "--folder", first, "--folder", second];
    let output = run(folder.path(), "cards=2", &flags);
    let text = said(&output);
    assert!(output.status.success(), "{text}");
    assert_eq!(text.matches("every bit of 70000 elements").count(), 16, "{text}");
    assert!(text.contains("card 0000:11:00.1: Adamw, kept pairs"), "{text}");
    for drive in drives {
        assert_eq!(std::fs::read_dir(drive).unwrap().count(), 0);
    }
}

#[test]
fn a_run_of_some_seconds_is_waited_for() {
    let folder = folder();
    let begin = Instant::now();
    let output = run(folder.path(), "0:run:2:slow 2500", &[]);
    assert!(begin.elapsed() >= Duration::from_millis(2500));
    assert!(output.status.success(), "{}", said(&output));
}

#[test]
fn a_run_that_never_ends_is_given_up_and_other_cards_go_on() {
    let begin = Instant::now();
    let flags = ["--card", "0", "--card", "1", "--card-timeout", "2"];
    let text = fails(
        "1:run:4:hang",
        &flags,
        &["card 1: kernel check_pairs has not ended within 2 s", "xbutil reset", "--card-timeout"],
    );
    assert!(begin.elapsed() < Duration::from_secs(60));
    assert_eq!(text.matches("card 0: ").count(), 8, "{text}");
}

#[test]
fn runs_that_fail_are_told_from_runs_whose_end_is_unknown() {
    fails("0:run:1:state 5", &[], &["kernel update ended in state 5", "dmesg"]);
    fails("0:run:1:state 6", &[], &["kernel update ended in state 6"]);
    fails("0:run:1:state 9", &[], &["kernel update is in state 9, and may still run"]);
    fails("0:run:1:fail", &[], &["xrtRunStart failed: Input/output error"]);
}

#[test]
fn a_run_that_has_done_nothing_is_found_out() {
    fails(
        "0:run:1:skip",
        &[],
        &["card 0: kernel update says that it has worked on", "23333 to 23333"],
    );
    fails("0:run:4:skip", &[], &["kernel check_pairs says that it has worked on"]);
}

#[test]
fn what_is_missing_is_named() {
    fails("cards=1", &["--card", "1"], &["card 1 cannot be opened: No such device", "doctor"]);
    fails("", &["--card", "0000:02:00.1"], &["card 0000:02:00.1 cannot be opened"]);
    fails("", &["--card", "3", "--card", "3"], &["card 3 is in use by this program already"]);
    fails("0:load:1:fail", &[], &["card 0 does not take", "kernels.xclbin: Input/output error"]);
    fails("0:kernel:2:fail", &[], &["card 0 has no kernel update_topk", "make bitstream"]);
    fails(
        "memory=300000",
        &[],
        &["gives no 282624 bytes in its window", "bank 1", "--subgroup-size"],
    );
    fails("0:window:1:fail", &[], &["(P2P)", "xbutil configure", "Input/output error"]);
    fails("0:allocate:2:fail", &[], &["card 0 has no 143360 bytes left in bank 0"]);
}

#[test]
fn copies_that_fail_or_hang_are_named() {
    fails("0:sync:3:fail", &[], &["card 0: xrtBOSync failed: Input/output error"]);
    let flags = ["--card-timeout", "1"];
    fails("0:sync:5:hang", &flags, &["card 0: xrtBOSync has not ended within 1 s"]);
}

#[test]
fn a_card_that_does_not_close_does_not_hold_up_the_end() {
    let folder = folder();
    let output = run(folder.path(), "0:close:1:hang", &["--card-timeout", "1"]);
    assert!(output.status.success(), "{}", said(&output));
    assert_eq!(said(&output).matches("every bit").count(), 8);
}

#[test]
fn a_library_that_is_not_xrt_is_named() {
    let folder = folder();
    let link = folder.path().join("libxrt_coreutil.so.2");
    std::fs::remove_file(&link).unwrap();
    // Any library that has none of the functions.
    let other = std::fs::read_to_string("/proc/self/maps").unwrap();
    let other = other.lines().find_map(|line| {
        Some(line.split_whitespace().last()?).filter(|path| path.contains("libm.so"))
    });
    let Some(other) = other else { panic!("this program has no libm") };
    std::os::unix::fs::symlink(other, &link).unwrap();
    let output = run(folder.path(), "", &[]);
    assert_eq!(output.status.code(), Some(1));
    assert!(said(&output).contains("has no xrtDeviceOpen: XRT 2.12"), "{}", said(&output));
}

/// A device over a card of its own in this process.
fn with_device(
    card: u32,
    faults: &str,
    test: impl FnOnce(&dyn NearStorageDevice, &IoEngine, &Path),
) {
    let folder = folder();
    let xrt = Xrt::open(&library()).unwrap();
    let limit = Duration::from_secs(60);
    let cards = SmartSsds::with(xrt, &bitstream(folder.path()), limit).unwrap();
    let faults = (!faults.is_empty()).then(|| Faults::new(vec![faults.parse().unwrap()]));
    let options = IoOptions { faults: faults.map(Into::into), ..IoOptions::default() };
    let engine = IoEngine::start("test", &options).unwrap();
    let device = cards.attach(card, &CardName::Index(card), &engine).unwrap();
    test(&device, &engine, folder.path());
    assert!(!any_lost());
}

/// Reads a file of `length` bytes into 1 MiB of a card's memory.
fn read_into_card(card: u32, faults: &str, length: usize) -> Result<bool, String> {
    let mut outcome = Ok(false);
    with_device(card, faults, |device, engine, folder| {
        let path = folder.join("part.nf");
        let content: Vec<u8> = (0..1 << 20).map(|at: u32| (at % 251) as u8).collect();
        std::fs::write(&path, &content[..length]).unwrap();
        let file = engine.open(&path, OpenMode::Read).unwrap();
        let buffer = device.allocate(1 << 20, Reach::Drive).unwrap();
        let range = BufferRange { buffer, offset: 0, bytes: 1 << 20 };
        outcome =
            device.storage_to_local(&file, 0, range).map_err(|error| error.to_string()).map(|()| {
                let mut found = vec![0; 1 << 20];
                device.local_to_host(range, &mut found).unwrap();
                found == content
            });
    });
    outcome
}

#[test]
fn reads_into_a_cards_memory_are_complete_or_an_error() {
    assert_eq!(read_into_card(4, "", 1 << 20), Ok(true));
    assert_eq!(read_into_card(5, "read:1:short", 1 << 20), Ok(true));
    let cut = read_into_card(6, "", 500_000).unwrap_err();
    assert!(cut.contains("part.nf"), "{cut}");
    let failed = read_into_card(7, "read:1:EIO", 1 << 20).unwrap_err();
    assert!(failed.contains("part.nf") && failed.contains("Input/output error"), "{failed}");
}

#[test]
fn drives_reach_only_what_lies_in_the_window() {
    with_device(8, "", |device, engine, folder| {
        let file = engine.open(&folder.join("x"), OpenMode::Create).unwrap();
        let buffer = device.allocate(4096, Reach::Kernels).unwrap();
        let range = BufferRange { buffer, offset: 0, bytes: 4096 };
        let error = device.local_to_storage(range, &file, 0).unwrap_err().to_string();
        assert!(error.contains("card 8: a buffer that drives do not reach"), "{error}");
        let error = device.storage_to_local(&file, 0, range).unwrap_err().to_string();
        assert!(error.contains("drives do not reach"), "{error}");
        // Readers do not get in each other's way.
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..100 {
                        device.local_to_host(range, &mut [1; 4096]).unwrap();
                    }
                });
            }
        });
    });
}

#[test]
fn wrong_indices_are_found_before_they_are_used() {
    with_device(9, "", |device, _, _| {
        let elements = 100_000;
        let upload = |words: &[u32]| {
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            let buffer = device.allocate(4096, Reach::Drive).unwrap();
            let range = BufferRange { buffer, offset: 0, bytes: bytes.len() as u64 };
            device.host_to_local(&bytes, range).unwrap();
            buffer
        };
        let first_wrong = |words: &[u32]| {
            let bounds = device.allocate(pair_bounds_bytes(elements), Reach::Kernels).unwrap();
            let buffers = PairBuffers { indices: upload(words), values: upload(words), bounds };
            let call = CheckPairsCall { buffers, pairs: words.len() as u64, elements };
            device.check_pairs(&call).unwrap().first_wrong
        };
        assert_eq!(first_wrong(&[0, 5, 70_000, 99_999]), None);
        assert_eq!(first_wrong(&[0, 5, 4, 99_999]), Some(2));
        assert_eq!(first_wrong(&[0, 5, 5, 99_999]), Some(2));
        assert_eq!(first_wrong(&[0, 5, 6, 100_000]), Some(3));
    });
}

#[test]
fn memory_of_a_card_is_given_back() {
    with_device(10, "", |device, _, _| {
        // More than the bank has, if it were not given back.
        for _ in 0..5 {
            let buffer = device.allocate(400 << 20, Reach::Kernels).unwrap();
            device.release(buffer).unwrap();
        }
        let extent = Extent { elements: 1000, keep: 0.5, seed: 1, folder: None };
        assert_eq!(check(device, "card", extent).unwrap().len(), 8);
    });
}
