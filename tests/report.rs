//! The page of a run, as a browser sees it.
#![allow(clippy::unwrap_used)] // A test fails by panicking.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

/// Names under which Chromium is installed.
const BROWSERS: [&str; 4] = ["chromium", "chromium-browser", "google-chrome", "chrome"];

fn nearfield(home: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nearfield"));
    command.env_clear().env("HOME", home).args(arguments).output().unwrap()
}

fn browser(home: &Path, arguments: &[&str]) -> Output {
    let usual = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--window-size=1100,2400",
    ];
    for name in BROWSERS {
        let mut command = Command::new(name);
        command.env("HOME", home).args(usual).args(arguments);
        match command.output() {
            Ok(output) => return output,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => panic!("{name}: {error}"),
        }
    }
    panic!("Chromium is needed (on Debian: apt-get install chromium)");
}

#[test]
fn the_page_of_a_run_is_whole_in_a_browser() {
    let root = tempfile::tempdir().unwrap();
    let path = |name: &str| root.path().join(name).to_str().unwrap().to_owned();
    fs::write(path("text.txt"), "The quick brown fox jumps over the lazy dog.\n".repeat(300))
        .unwrap();
    fs::create_dir(path("drive")).unwrap();
    let (text, drive, out) = (path("text.txt"), path("drive"), path("out"));
    let train = [
        "train",
        "--data",
        &text,
        "--drive",
        &drive,
        "--out",
        &out,
        "--layers",
        "2",
        "--hidden",
        "32",
        "--heads",
        "2",
        "--seq",
        "32",
        "--batch",
        "2",
        "--steps",
        "12",
        "--sample",
        "0",
        "--eval-every",
        "4",
        "--subgroup-size",
        "9000",
        "--drive-tbw",
        "600",
        "--progress",
        "none",
        "--compute",
        "cpu",
    ];
    let trained = nearfield(root.path(), &train);
    assert!(trained.status.success(), "{}", String::from_utf8_lossy(&trained.stderr));
    let report = path("out/report.json");
    let made = nearfield(root.path(), &["report", &report]);
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let page = path("out/report.html");
    assert_eq!(String::from_utf8_lossy(&made.stdout).trim(), page);

    let url = format!("file://{page}");
    let seen = browser(root.path(), &["--dump-dom", &url]);
    let dom = String::from_utf8_lossy(&seen.stdout).into_owned();
    assert!(dom.contains("</html>"), "{}", String::from_utf8_lossy(&seen.stderr));
    for part in
        ["Loss and seconds", "drive0.read", "gpu0.compute", "media write", "Wear", "State digest"]
    {
        assert!(dom.contains(part), "{part}");
    }
    // A picture of the run, and a strip for each resource, all parsed as pictures.
    let resources = dom.matches("preserveAspectRatio").count();
    assert!(resources >= 5 && dom.matches("<svg").count() == resources + 1, "{resources}");
    assert!(!dom.contains("class=\"differs\""));
    let picture = path("page.png");
    let shot = browser(root.path(), &[&format!("--screenshot={picture}"), &url]);
    let bytes = fs::metadata(&picture).map_or(0, |metadata| metadata.len());
    assert!(bytes > 30_000, "{bytes}: {}", String::from_utf8_lossy(&shot.stderr));

    fs::write(path("x.json"), "{}").unwrap();
    let wrong = nearfield(root.path(), &["report", &path("x.json")]);
    assert!(String::from_utf8_lossy(&wrong.stderr).contains("is no report"));
    assert_eq!(wrong.status.code(), Some(1));
}
