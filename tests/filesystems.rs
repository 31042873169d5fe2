//! File systems and kernels as they are out there: sectors of 4096 bytes, XFS, memory, overlays, full ones, and no io_uring.
//!
//! Mounting needs root and loop devices; where they are missing, those tests say so and do nothing.
#![allow(clippy::unwrap_used)] // A test fails by panicking.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Output};

use serde_json::Value;

/// A mounted file system, unmounted when dropped.
struct Mounted {
    root: tempfile::TempDir,
    device: Option<String>,
}

impl Mounted {
    fn at(&self) -> PathBuf {
        self.root.path().join("mount")
    }

    fn drive(&self, name: &str) -> PathBuf {
        let path = self.at().join(name);
        fs::create_dir_all(&path).unwrap();
        path
    }

    fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join("mount")).unwrap();
        Self { root, device: None }
    }

    /// A file of `megabytes` as a disk with sectors of `sector` bytes, with a file system on it.
    fn on_loop(kind: &str, megabytes: u64, sector: u64) -> Option<Self> {
        let mut mounted = Self::new();
        let image = mounted.root.path().join("image");
        fs::File::create(&image).unwrap().set_len(megabytes << 20).unwrap();
        let sector = sector.to_string();
        let image = image.to_str().unwrap();
        let device = tried("losetup", &["--find", "--show", "--sector-size", &sector, image])?;
        mounted.device = Some(device.trim().to_owned());
        let device = device.trim();
        tried(&format!("mkfs.{kind}"), &["-q", device])?;
        let mount = mounted.at();
        tried("mount", &[device, mount.to_str().unwrap()])?;
        Some(mounted)
    }

    fn tmpfs(megabytes: u64) -> Option<Self> {
        let mounted = Self::new();
        let size = format!("size={megabytes}m");
        tried("mount", &["-t", "tmpfs", "-o", &size, "tmpfs", mounted.at().to_str().unwrap()])?;
        Some(mounted)
    }

    fn overlay() -> Option<Self> {
        let mounted = Self::new();
        let part = |name: &str| {
            let path = mounted.root.path().join(name);
            fs::create_dir(&path).unwrap();
            path.to_str().unwrap().to_owned()
        };
        let options = format!(
            "lowerdir={},upperdir={},workdir={}",
            part("lower"),
            part("upper"),
            part("work")
        );
        let mount = mounted.at();
        tried("mount", &["-t", "overlay", "-o", &options, "overlay", mount.to_str().unwrap()])?;
        Some(mounted)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // What is not mounted cannot be unmounted: nothing depends on it.
        let _ = Command::new("umount").arg(self.at()).output();
        if let Some(device) = &self.device {
            let _ = Command::new("losetup").args(["--detach", device]).output();
        }
    }
}

/// The output of a command of the system; `None`, with what it said, where it cannot do that here.
fn tried(command: &str, arguments: &[&str]) -> Option<String> {
    let said = match Command::new(command).args(arguments).output() {
        Ok(output) if output.status.success() => {
            return Some(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        Ok(output) => String::from_utf8_lossy(&output.stderr).trim().to_owned(),
        Err(error) => error.to_string(),
    };
    eprintln!("not tested on this machine: {command} {arguments:?}: {said}");
    None
}

struct Run {
    root: tempfile::TempDir,
    drives: Vec<PathBuf>,
}

impl Run {
    fn new(drives: &[PathBuf]) -> Self {
        let root = tempfile::tempdir().unwrap();
        let line = "The quick brown fox jumps over the lazy dog; then it sleeps.\n";
        fs::write(root.path().join("text.txt"), line.repeat(200)).unwrap();
        Self { root, drives: drives.to_vec() }
    }

    /// A run whose drives are ordinary directories.
    fn plain(count: usize) -> Self {
        let mut run = Self::new(&[]);
        run.drives =
            (0..count).map(|index| run.root.path().join(format!("drive{index}"))).collect();
        run.drives.iter().for_each(|drive| fs::create_dir(drive).unwrap());
        run
    }

    fn command(&self, more: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_nearfield"));
        command.env_clear().env("HOME", self.root.path()).arg("train");
        command.arg("--data").arg(self.root.path().join("text.txt"));
        for drive in &self.drives {
            command.arg("--drive").arg(drive);
        }
        command.args("--layers 2 --hidden 32 --heads 2 --seq 32 --batch 2 --seed 7".split(' '));
        command.args("--subgroup-size 9000 --sample 0 --threads 1 --compute cpu".split(' '));
        command.args("--progress none --schedule constant --warmup 0".split(' '));
        command.arg("--out").arg(self.root.path().join("out"));
        command.args(more);
        command
    }

    fn train(&self, more: &[&str]) -> Output {
        self.command(more).output().unwrap()
    }

    fn digest(&self) -> Value {
        let report = fs::read(self.root.path().join("out/report.json")).unwrap();
        serde_json::from_slice::<Value>(&report).unwrap()["state_digest"].clone()
    }
}

fn succeeded(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{text}");
    text
}

fn failed_with(output: &Output, words: &[&str]) {
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{text}");
    for word in words {
        assert!(text.contains(word), "{text:?} lacks {word:?}");
    }
}

/// The digest of four steps on ordinary directories.
fn expected() -> Value {
    let run = Run::plain(2);
    succeeded(&run.train(&["--steps", "4"]));
    run.digest()
}

/// Two steps, two more after a restart, on a mounted file system.
fn trains_and_resumes(mounted: &Mounted, more: &[&str]) {
    let run = Run::new(&[mounted.drive("a"), mounted.drive("b")]);
    succeeded(&run.train(&[&["--steps", "2"], more].concat()));
    succeeded(&run.train(&[&["--steps", "4", "--resume"], more].concat()));
    assert_eq!(run.digest(), expected());
}

#[test]
fn disks_with_sectors_of_4096_bytes() {
    for sector in [512, 4096] {
        if let Some(mounted) = Mounted::on_loop("ext4", 128, sector) {
            trains_and_resumes(&mounted, &["--direct", "required"]);
            let paged = Run::new(&[mounted.drive("c"), mounted.drive("d")]);
            let more = ["--steps", "4", "--weights", "drive", "--activations", "drive"];
            succeeded(&paged.train(&more));
            assert_eq!(paged.digest(), expected());
        }
    }
}

#[test]
fn xfs_with_direct_io_and_shared_blocks() {
    let Some(mounted) = Mounted::on_loop("xfs", 400, 4096) else { return };
    trains_and_resumes(&mounted, &["--direct", "required"]);
    // A snapshot beside the run takes no room of its own.
    let snapshot = mounted.at().join("snapshot");
    let mut command = Command::new(env!("CARGO_BIN_EXE_nearfield"));
    command.env_clear().args(["state", "snapshot", "--to"]).arg(&snapshot);
    for drive in ["a", "b"] {
        command.arg("--drive").arg(mounted.drive(drive));
    }
    let output = command.output().unwrap();
    succeeded(&output);
    let shown = String::from_utf8_lossy(&output.stdout).into_owned();
    let line = shown.lines().find(|line| line.contains("shared with the drives")).unwrap();
    let (all, shared) = line.trim().split_once(" in all, ").unwrap();
    assert_eq!(shared.strip_suffix(" shared with the drives"), Some(all), "{shown}");
}

#[test]
fn memory_and_overlays() {
    if let Some(mounted) = Mounted::tmpfs(256) {
        trains_and_resumes(&mounted, &[]);
    }
    if let Some(mounted) = Mounted::overlay() {
        trains_and_resumes(&mounted, &[]);
    }
}

#[test]
fn a_file_system_that_is_too_small_is_refused_and_one_that_fills_up_stops_nothing() {
    let Some(small) = Mounted::on_loop("ext4", 8, 512) else { return };
    let run = Run::new(&[small.drive("a")]);
    let large = ["--steps", "2", "--vocab", "40000"];
    failed_with(&run.train(&large), &["are needed", "free"]);
    assert!(
        fs::read_dir(small.drive("a"))
            .unwrap()
            .all(|entry| { entry.unwrap().metadata().unwrap().len() < 4096 })
    );
    let dry = run.train(&[&large[..], &["--dry-run"]].concat());
    let shown = String::from_utf8_lossy(&dry.stdout).into_owned();
    assert!(dry.status.code() == Some(1) && shown.contains("use more drives"), "{shown}");
    // All room is taken once the run has its own: it goes on.
    let Some(mounted) = Mounted::on_loop("ext4", 64, 512) else { return };
    let run = Run::new(&[mounted.drive("a")]);
    succeeded(&run.train(&["--steps", "2"]));
    let filler = mounted.at().join("filler");
    let mut block = vec![1_u8; 1 << 20];
    let mut file = fs::File::create(&filler).unwrap();
    while std::io::Write::write_all(&mut file, &block).is_ok() {}
    block.truncate(4096);
    while std::io::Write::write_all(&mut file, &block).is_ok() {}
    succeeded(&run.train(&["--steps", "4", "--resume"]));
    assert_eq!(run.digest(), expected());
    // What has no room says where, and the state stays.
    let saved = mounted.at().join("saved");
    let more = ["--steps", "4", "--resume", "--save", saved.to_str().unwrap()];
    failed_with(&run.train(&more), &["saved", "make room"]);
    assert!(!saved.exists());
    // Where blocks cannot be shared, a snapshot asks for room before it copies.
    let length = file.metadata().unwrap().len();
    file.set_len(length - (256 << 10)).unwrap();
    let snapshot = mounted.at().join("snapshot");
    let mut command = Command::new(env!("CARGO_BIN_EXE_nearfield"));
    command.env_clear().args(["state", "snapshot", "--to"]).arg(&snapshot);
    command.arg("--drive").arg(mounted.drive("a"));
    failed_with(&command.output().unwrap(), &["are needed", "free"]);
    assert!(!snapshot.exists());
    succeeded(&run.train(&["--steps", "4", "--resume"]));
    assert_eq!(run.digest(), expected());
}

/// Lets a command run where io_uring is denied, as container runtimes do it.
fn without_io_uring(command: &mut Command) {
    let deny = || {
        let statement =
            |code: u32, k: u32| libc::sock_filter { code: code as u16, jt: 0, jf: 0, k };
        let mut filter = [
            // The number of the call.
            statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0),
            libc::sock_filter {
                code: (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16,
                jt: 0,
                jf: 1,
                k: libc::SYS_io_uring_setup as u32,
            },
            statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
            statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW),
        ];
        let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
        // SAFETY: plain settings of this process, with a program that lives for the call.
        let done = unsafe {
            libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
                && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &program) == 0
        };
        if done { Ok(()) } else { Err(std::io::Error::last_os_error()) }
    };
    // SAFETY: between fork and exec only system calls are made, and nothing is allocated.
    unsafe { command.pre_exec(deny) };
}

#[test]
fn where_io_uring_is_denied_threads_take_over_and_the_cause_is_named() {
    let run = Run::plain(2);
    let mut command = run.command(&["--steps", "4"]);
    without_io_uring(&mut command);
    let said = succeeded(&command.output().unwrap());
    assert!(said.contains("seccomp"), "{said}");
    assert_eq!(run.digest(), expected());
    let mut command = run.command(&["--steps", "4", "--overwrite", "--io-backend", "uring"]);
    without_io_uring(&mut command);
    failed_with(&command.output().unwrap(), &["seccomp"]);
    let mut doctor = Command::new(env!("CARGO_BIN_EXE_nearfield"));
    doctor.env_clear().args(["doctor", "--json", "--no-measure"]);
    without_io_uring(&mut doctor);
    let said = String::from_utf8_lossy(&doctor.output().unwrap().stdout).into_owned();
    let line = said.lines().find(|line| line.contains("io_uring")).unwrap();
    let finding: Value = serde_json::from_str(line).unwrap();
    assert_ne!(finding["status"], "good", "{line}");
}
