//! Made-up trees of sysfs and of `/dev`, for tests.

use std::path::PathBuf;

use tempfile::TempDir;

use super::pci::Pci;

/// A tree: `sys` and `dev` below a folder of its own.
pub struct Tree(TempDir);

/// A SmartSSD in a tree: addresses of what it is made of.
pub struct SmartSsd {
    pub switch: String,
    pub drive: String,
    pub user: String,
}

impl Tree {
    pub fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    pub fn pci(&self) -> Pci {
        Pci::at(self.0.path().join("sys")).with_dev(self.0.path().join("dev"))
    }

    /// A path below `/sys`.
    pub fn path(&self, path: &str) -> PathBuf {
        self.0.path().join("sys").join(path)
    }

    /// A function at the end of a way through bridges below the host bridge `pci0000:00`, and all of these.
    pub fn function(&self, way: &[impl AsRef<str>]) {
        let way: Vec<&str> = way.iter().map(AsRef::as_ref).collect();
        for end in 1..=way.len() {
            let above = format!("devices/pci0000:00/{}", way[..end - 1].join("/"));
            self.linked(way[end - 1], above.trim_end_matches('/'));
        }
    }

    /// A function whose folder lies in another.
    pub fn linked(&self, address: &str, above: &str) {
        std::fs::create_dir_all(self.path(above).join(address)).unwrap();
        let link = format!("bus/pci/devices/{address}");
        if !self.path(&link).exists() {
            self.link(&link, &format!("../../../{above}/{address}"));
        }
    }

    pub fn link(&self, from: &str, to: &str) {
        std::fs::create_dir_all(self.path(from).parent().unwrap()).unwrap();
        std::os::unix::fs::symlink(to, self.path(from)).unwrap();
    }

    /// Files in a function's folder.
    pub fn files(&self, address: &str, files: &[(&str, &str)]) {
        for (name, text) in files {
            let path = self.path(&format!("bus/pci/devices/{address}/{name}"));
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
    }

    /// A function of Xilinx, bound to a driver unless its name is empty.
    pub fn xilinx(&self, way: &[impl AsRef<str>], driver: &str) {
        let address = way[way.len() - 1].as_ref();
        self.function(way);
        self.files(address, &[("vendor", "0x10ee\n"), ("class", "0x120000\n")]);
        self.bind(address, driver);
    }

    pub fn bind(&self, address: &str, driver: &str) {
        let link = self.path(&format!("bus/pci/devices/{address}/driver"));
        std::fs::remove_file(&link).ok();
        if !driver.is_empty() {
            let folder = self.path(&format!("bus/pci/drivers/{driver}"));
            std::fs::create_dir_all(&folder).unwrap();
            std::os::unix::fs::symlink(folder, link).unwrap();
        }
    }

    /// A SmartSSD in good order: a switch on bus `bus` below `above`, behind it a drive on bus `bus + 2` and a card on `bus + 3`.
    pub fn smart_ssd(&self, above: &[&str], bus: u32) -> SmartSsd {
        let at = |bus: u32, device: u32, function: u32| {
            format!("0000:{bus:02x}:{device:02x}.{function}")
        };
        let (switch, left, right) = (at(bus, 0, 0), at(bus + 1, 0, 0), at(bus + 1, 1, 0));
        let (drive, management, user) = (at(bus + 2, 0, 0), at(bus + 3, 0, 0), at(bus + 3, 0, 1));
        let way = |port: &str, end: &str| -> Vec<String> {
            above.iter().copied().chain([&*switch, port, end]).map(str::to_owned).collect()
        };
        self.function(&way(&left, &drive));
        self.files(&drive, &[("vendor", "0x144d\n"), ("class", "0x010802\n")]);
        self.xilinx(&way(&right, &management), "xclmgmt");
        self.xilinx(&way(&right, &user), "xocl");
        let node = format!("drm/renderD{}/dev", 128 + bus);
        self.files(
            &user,
            &[
                ("rom.u.1048576/VBNV", "xilinx_u2_gen3x4_xdma_gc_base_2\n"),
                ("rom.u.1048576/uuid", "1234567890abcdef1234567890abcdef\n"),
                ("p2p.u.1048577/config", ENABLED),
                (&node, "226:128\n"),
            ],
        );
        SmartSsd { switch, drive, user }
    }
}

/// P2P as it should be: a window of 4 GiB.
pub const ENABLED: &str = "bar:4294967296\nexp_bar:4294967296\nrbar:4294967296\nremap:4294967296\n";
