//! The disk behind a directory, as the kernel describes it.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// A disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlockDevice {
    /// Kernel names of the disks: one, or those that a volume is made of.
    pub disks: Vec<String>,
    /// What the first says it is.
    pub model: Option<String>,
    /// Bytes of its sectors.
    pub sector_bytes: u64,
    /// Bytes that it writes at a time.
    pub physical_bytes: u64,
    /// Whether it spins.
    pub rotational: bool,
    /// PCI addresses on the way from the root to it, the root's ports first.
    pub pci: Vec<String>,
}

impl BlockDevice {
    /// The disk on which `path` lies; `None` where there is none, as for file systems in memory and overlays.
    pub fn of(path: &Path) -> std::io::Result<Option<Self>> {
        let device = std::fs::metadata(path)?.dev();
        let (major, minor) = (libc::major(device), libc::minor(device));
        Ok(Self::at(&PathBuf::from(format!("/sys/dev/block/{major}:{minor}"))))
    }

    /// The disk, or partition of one, that the kernel describes in a directory.
    fn at(described: &Path) -> Option<Self> {
        let mut directory = std::fs::canonicalize(described).ok()?;
        if directory.join("partition").exists() {
            directory.pop();
        }
        let mut disks = Vec::new();
        collect(&directory, &mut disks);
        disks.sort();
        disks.dedup();
        let (first_name, first) = disks.first()?.clone();
        let number = |name: &str| read(&directory.join("queue").join(name))?.parse().ok();
        Some(Self {
            disks: disks.into_iter().map(|(name, _)| name).collect(),
            model: read(&first.join("device/model"))
                .or_else(|| first_name.starts_with("vd").then(|| "virtual disk".to_owned())),
            sector_bytes: number("logical_block_size").unwrap_or(512),
            physical_bytes: number("physical_block_size").unwrap_or(512),
            rotational: number("rotational") == Some(1),
            pci: bus(&first),
        })
    }
}

/// The disks under a volume, by following what it is made of.
fn collect(directory: &Path, disks: &mut Vec<(String, PathBuf)>) {
    let parts = std::fs::read_dir(directory.join("slaves")).into_iter().flatten().flatten();
    let mut volume = false;
    for part in parts {
        volume = true;
        if let Ok(mut part) = std::fs::canonicalize(part.path()) {
            if part.join("partition").exists() {
                part.pop();
            }
            collect(&part, disks);
        }
    }
    if !volume && let Some(name) = directory.file_name() {
        disks.push((name.to_string_lossy().into_owned(), directory.to_path_buf()));
    }
}

fn read(path: &Path) -> Option<String> {
    let text = std::fs::read_to_string(path).ok()?;
    let text = text.trim();
    (!text.is_empty()).then(|| text.to_owned())
}

/// The way over the bus to a disk. Where the kernel may use several ways to an NVMe drive, it keeps the disk apart from them, in the
/// folder of its subsystem, which has a link to each controller: the way is known where there is one.
fn bus(disk: &Path) -> Vec<String> {
    let direct = pci(disk);
    let subsystem = disk.parent().filter(|parent| {
        let name = parent.file_name().unwrap_or_default().to_string_lossy();
        direct.is_empty() && name.starts_with("nvme-subsys")
    });
    let entries = subsystem.and_then(|folder| std::fs::read_dir(folder).ok());
    let controllers: Vec<PathBuf> = entries
        .into_iter()
        .flatten()
        .flatten()
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_symlink()))
        .filter(|entry| {
            let name = entry.file_name().to_string_lossy().into_owned();
            let number = name.strip_prefix("nvme").unwrap_or_default();
            !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())
        })
        .filter_map(|entry| std::fs::canonicalize(entry.path()).ok())
        .collect();
    match &controllers[..] {
        [controller] => pci(controller),
        _ => direct,
    }
}

/// Parts of a path that are PCI addresses (`0000:3b:00.0`).
fn pci(path: &Path) -> Vec<String> {
    let is_address = |name: &str| {
        let bytes = name.as_bytes();
        bytes.len() == 12 && bytes[4] == b':' && bytes[7] == b':' && bytes[10] == b'.'
    };
    let names = path.components().map(|part| part.as_os_str().to_string_lossy().into_owned());
    names.filter(|name| is_address(name)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_partition_belongs_to_its_disk_and_a_volume_to_all_of_its_disks() {
        let root = tempfile::tempdir().unwrap();
        let make = |path: &str, files: &[(&str, &str)]| {
            let directory = root.path().join(path);
            std::fs::create_dir_all(directory.join("queue")).unwrap();
            for (name, text) in files {
                let file = directory.join(name);
                std::fs::create_dir_all(file.parent().unwrap()).unwrap();
                std::fs::write(file, text).unwrap();
            }
            directory
        };
        let disk = "pci0000:00/0000:00:01.0/0000:02:00.0/nvme/nvme0/nvme0n1";
        let facts = [
            ("queue/logical_block_size", "4096\n"),
            ("queue/physical_block_size", "4096\n"),
            ("queue/rotational", "0\n"),
            ("device/model", "Fast Drive \n"),
        ];
        make(disk, &facts);
        let partition = make(&format!("{disk}/nvme0n1p2"), &[("partition", "2\n")]);
        let found = BlockDevice::at(&partition).unwrap();
        assert_eq!(found.disks, ["nvme0n1"]);
        assert_eq!(found.model.as_deref(), Some("Fast Drive"));
        assert_eq!((found.sector_bytes, found.rotational), (4096, false));
        assert_eq!(found.pci, ["0000:00:01.0", "0000:02:00.0"]);
        let other = make("pci0000:00/0000:00:02.0/ata1/sda", &[("queue/rotational", "1\n")]);
        let volume = make("virtual/block/md0/slaves", &[]).parent().unwrap().to_path_buf();
        for (name, target) in [("nvme0n1p2", &partition), ("sda", &other)] {
            std::os::unix::fs::symlink(target, volume.join("slaves").join(name)).unwrap();
        }
        std::fs::remove_dir(volume.join("slaves/queue")).unwrap();
        assert_eq!(BlockDevice::at(&volume).unwrap().disks, ["nvme0n1", "sda"]);
        assert!(BlockDevice::at(&root.path().join("none")).is_none());
    }

    #[test]
    fn a_disk_with_ways_kept_apart_is_found_by_its_only_controller() {
        let root = tempfile::tempdir().unwrap();
        let subsystem = root.path().join("virtual/nvme-subsystem/nvme-subsys0");
        std::fs::create_dir_all(subsystem.join("nvme0n1/queue")).unwrap();
        let controller = |number: u32| {
            let way = format!("pci0000:00/0000:00:01.0/0000:0{number}:00.0/nvme/nvme{number}");
            let way = root.path().join(way);
            std::fs::create_dir_all(&way).unwrap();
            std::os::unix::fs::symlink(&way, subsystem.join(format!("nvme{number}"))).unwrap();
        };
        let found = || BlockDevice::at(&subsystem.join("nvme0n1")).unwrap().pci;
        assert!(found().is_empty());
        controller(3);
        assert_eq!(found(), ["0000:00:01.0", "0000:03:00.0"]);
        controller(4);
        assert!(found().is_empty());
    }
}
