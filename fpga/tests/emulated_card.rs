//! Emulated cards behind the real XRT. XRT's emulation changes its host's signals and ends it on trouble, so hosts are programs of
//! their own. Without Debian's libxrt1 these tests fail.

#![allow(clippy::unwrap_used)] // A test fails by panicking.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use nearfield_fpga::card::ABORT_IN_RUN;
use nearfield_fpga::emulation::{Emulation, Ended};

const LIMIT: Duration = Duration::from_secs(120);

fn emulation(cards: u32) -> Emulation {
    Emulation::new(cards, Path::new(env!("CARGO_BIN_EXE_nearfield-emulated-card"))).unwrap()
}

fn host(emulation: &Emulation, more: &[&str]) -> Command {
    let mut host = Command::new(env!("CARGO_BIN_EXE_nearfield-card-check"));
    host.env_clear().env("PATH", "/usr/bin:/bin").arg("--bitstream").arg(emulation.bitstream());
    host.args(more);
    host
}

fn succeeded(ended: &Ended) {
    assert!(ended.status.is_some_and(|status| status.success()), "{ended:?}");
}

/// Processes whose program is the emulated card.
fn cards_left() -> usize {
    let name = |entry: std::io::Result<std::fs::DirEntry>| {
        let folder = entry.ok()?.path();
        let target = std::fs::read_link(folder.join("exe")).ok()?;
        let state = std::fs::read_to_string(folder.join("stat")).ok()?;
        (target.ends_with("nearfield-emulated-card") && !state.contains(") Z ")).then_some(())
    };
    std::fs::read_dir("/proc").unwrap().filter_map(name).count()
}

/// In one test, one after the other: it counts processes, and two emulations at once are slow.
#[test]
fn cards_behind_the_real_xrt() {
    two_cards_give_the_bits_of_the_cpu_over_files_and_without_syncs();
    sizes_and_shares();
    a_card_that_dies_is_given_up_and_leaves_nothing();
    a_killed_host_leaves_nothing();
    wrong_containers_and_cards_are_refused();
}

fn two_cards_give_the_bits_of_the_cpu_over_files_and_without_syncs() {
    let emulation = emulation(2);
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let folders = [0, 1].map(|card| folder.path().join(format!("drive{card}")));
    folders.iter().for_each(|folder| std::fs::create_dir(folder).unwrap());
    let [first, second] = folders.each_ref().map(|folder| folder.to_str().unwrap());
    let flags = ["--card", "0", "--card", "1", "--folder", first, "--folder", second];
    let host = host(&emulation, &flags);
    let ended = emulation.run(host, LIMIT).unwrap();
    succeeded(&ended);
    assert_eq!(ended.output.matches("every bit of 300000 elements").count(), 16, "{ended:?}");
    drop(emulation);
    assert_eq!(cards_left(), 0);
}

fn sizes_and_shares() {
    let emulation = emulation(1);
    for (elements, keep) in [("1", "1"), ("1025", "0.000001"), ("65537", "0.49")] {
        let host = host(&emulation, &["--elements", elements, "--keep", keep]);
        succeeded(&emulation.run(host, LIMIT).unwrap());
    }
}

fn a_card_that_dies_is_given_up_and_leaves_nothing() {
    let emulation = emulation(2);
    let folder = emulation.bitstream().parent().unwrap().to_owned();
    let mut host = host(&emulation, &["--card", "0", "--card", "1", "--card-timeout", "2"]);
    host.env(ABORT_IN_RUN, "3");
    let begin = Instant::now();
    let ended = emulation.run(host, LIMIT).unwrap();
    assert!(begin.elapsed() < Duration::from_secs(30));
    assert_eq!(ended.status.and_then(|status| status.code()), Some(1), "{ended:?}");
    assert!(ended.output.contains("has not ended within 2 s"), "{ended:?}");
    assert!(ended.output.contains("asked to abort in run 3"), "{ended:?}");
    drop(emulation);
    assert!(!folder.exists());
    assert_eq!(cards_left(), 0);
}

fn a_killed_host_leaves_nothing() {
    let emulation = emulation(1);
    let folder = emulation.bitstream().parent().unwrap().to_owned();
    let host = host(&emulation, &["--elements", "4000000"]);
    let ended = emulation.run(host, Duration::from_millis(700)).unwrap();
    assert_eq!(ended.status, None, "{ended:?}");
    drop(emulation);
    assert!(!folder.exists());
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(cards_left(), 0);
}

fn wrong_containers_and_cards_are_refused() {
    let emulation = emulation(1);
    std::fs::write(emulation.bitstream(), b"no bitstream").unwrap();
    let ended = emulation.run(host(&emulation, &[]), LIMIT).unwrap();
    assert!(ended.output.contains("kernels.xclbin"), "{ended:?}");
}
