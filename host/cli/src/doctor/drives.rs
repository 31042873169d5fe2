//! Drives: file system, alignment, space, speed, what they share.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use nearfield_bench::probe::{self, Speed};
use nearfield_runtime::io::BlockDevice;

use super::finding::Finding;
use super::link;
use crate::values::human_bytes;

/// Names of file systems by their magic numbers.
const FILE_SYSTEMS: [(i64, &str); 12] = [
    (0xef53, "ext4"),
    (0x5846_5342, "xfs"),
    (0x9123_683e, "btrfs"),
    (0x2fc1_2fc1, "zfs"),
    (0xf2f5_2010, "f2fs"),
    (0x794c_7630, "overlay"),
    (0x0102_1994, "tmpfs"),
    (0x8584_58f6, "ramfs"),
    (0x6969, "nfs"),
    (0xff53_4d42, "cifs"),
    (0x6573_5546, "fuse"),
    (0x0102_1997, "9p"),
];
/// Those that are no local disk.
const NOT_LOCAL: [&str; 7] = ["overlay", "tmpfs", "ramfs", "nfs", "cifs", "fuse", "9p"];
/// Space below which hardly any model has room.
const LEAST_SPACE: u64 = 10 << 30;

pub fn findings(drives: &[PathBuf], measure: bool) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut disks: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    let mut ports: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    for (number, drive) in drives.iter().enumerate() {
        let name = format!("drive {number}");
        if !drive.is_dir() {
            let remedy = if drive.exists() {
                "give a directory on the drive"
            } else {
                "make it, or mount the drive there"
            };
            let found = format!("{} is no directory", drive.display());
            findings.push(Finding::failure(&name, found, remedy));
            continue;
        }
        findings.push(file_system(&name, drive));
        match BlockDevice::of(drive) {
            Ok(Some(device)) => {
                findings.push(disk(&name, &device));
                // The last address is the drive itself, where it is an NVMe drive.
                if let Some(address) = device.pci.last() {
                    findings.extend(link::findings(&name, address));
                }
                for disk in &device.disks {
                    disks.entry(disk.clone()).or_default().push(number);
                }
                // The last address is the drive itself, the one before it the port that it hangs from.
                if let Some(port) = device.pci.len().checked_sub(2) {
                    ports.entry(device.pci[port].clone()).or_default().push(number);
                }
            }
            Ok(None) => {
                findings.push(Finding::note(&name, "is on no disk that the kernel knows", ""))
            }
            Err(error) => findings.push(Finding::failure(&name, error.to_string(), "")),
        }
        findings.push(space(&name, drive));
        findings.extend(access(&name, drive, measure));
    }
    findings.extend(shared(
        &disks,
        "are on one disk",
        "one disk is not faster twice; give each of its own",
    ));
    findings.extend(shared(
        &ports,
        "hang from one PCI port",
        "their speeds do not add up beyond that of its link",
    ));
    findings
}

/// Drives that have something in common.
fn shared(groups: &BTreeMap<String, Vec<usize>>, what: &str, remedy: &str) -> Vec<Finding> {
    let several = groups.iter().filter(|(_, numbers)| numbers.len() > 1);
    let finding = |(name, numbers): (&String, &Vec<usize>)| {
        let numbers = numbers.iter().map(usize::to_string).collect::<Vec<_>>().join(", ");
        Finding::note("drives", format!("{numbers} {what}: {name}"), remedy)
    };
    several.map(finding).collect()
}

fn statfs(drive: &Path) -> Option<libc::statfs> {
    let path = CString::new(drive.as_os_str().as_bytes()).ok()?;
    // SAFETY: the structure is plain data, and the call writes it; the path ends with a zero.
    unsafe {
        let mut found = std::mem::zeroed::<libc::statfs>();
        (libc::statfs(path.as_ptr(), &mut found) == 0).then_some(found)
    }
}

fn file_system(name: &str, drive: &Path) -> Finding {
    let Some(found) = statfs(drive) else {
        return Finding::failure(name, format!("{}: no file system", drive.display()), "");
    };
    let magic = found.f_type & 0xffff_ffff;
    let kind = FILE_SYSTEMS.iter().find(|(number, _)| *number == magic);
    let kind =
        kind.map_or_else(|| format!("file system {magic:#x}"), |(_, kind)| (*kind).to_owned());
    let text = format!("{}, {kind}", drive.display());
    if NOT_LOCAL.contains(&kind.as_str()) {
        let remedy = "that is no local disk: the state would lie in memory, on a network, or in a container's layer; \
                      mount a drive, and give a directory on it";
        return Finding::warning(name, text, remedy);
    }
    Finding::good(name, text)
}

fn disk(name: &str, device: &BlockDevice) -> Finding {
    let model = device.model.as_deref().unwrap_or("unnamed");
    let disks = device.disks.join(" + ");
    let found = format!("{disks} ({model}), sectors of {} bytes", device.sector_bytes);
    if device.rotational && model != "virtual disk" {
        let remedy =
            "a disk that spins reads some 0.2 GB/s; a step reads and writes 28 bytes a parameter";
        return Finding::warning(name, found, remedy);
    }
    if device.sector_bytes > 4096 {
        let remedy = "state is aligned to 4096 bytes; use a drive with sectors of 512 or 4096";
        return Finding::failure(name, found, remedy);
    }
    Finding::good(name, found)
}

fn space(name: &str, drive: &Path) -> Finding {
    let free = statfs(drive).map_or(0, |found| found.f_bavail * found.f_bsize as u64);
    // Master weights, moments, gradients, and a spare slot in eight.
    let text =
        format!("{} free, for some {:.1e} parameters", human_bytes(free), free as f64 / 18.0);
    if free < LEAST_SPACE {
        return Finding::warning(name, text, "free some, or use another drive");
    }
    Finding::good(name, text)
}

/// Whether files can be made and pass the page cache, and how fast they are.
fn access(name: &str, drive: &Path, measure: bool) -> Vec<Finding> {
    let access = match probe::access(drive) {
        Ok(access) => access,
        Err(error) => {
            let remedy =
                "no file can be made there: check permissions, and whether it is mounted read-only";
            return vec![Finding::failure(name, format!("{error:#}"), remedy)];
        }
    };
    let direct = match access.alignment_bytes {
        Some(bytes) => Finding::good(name, format!("direct I/O, aligned to {bytes} bytes")),
        None => Finding::warning(
            name,
            "no direct I/O",
            "transfers go through the page cache, which competes for memory; use ext4 or xfs on a local drive",
        ),
    };
    let mut findings = vec![direct];
    if measure {
        findings.push(match probe::speed(drive) {
            Ok(speed) => speed_finding(name, &speed),
            Err(error) => Finding::failure(name, format!("{error:#}"), ""),
        });
    }
    findings
}

fn speed_finding(name: &str, speed: &Speed) -> Finding {
    let found = format!(
        "reads {:.2} GB/s, writes {:.2} GB/s; 4 KiB read in {:.0} us, header durable in {:.2} ms",
        speed.read_bytes_per_second / 1e9,
        speed.write_bytes_per_second / 1e9,
        speed.small_read_seconds * 1e6,
        speed.seal_seconds * 1e3
    );
    if speed.seal_seconds > 5e-3 {
        let remedy = "flushes are slow: the drive has no protection against power cuts; --durability process does \
                      without them, and a power cut can then lose the run";
        return Finding::warning(name, found, remedy);
    }
    Finding::good(name, found)
}
