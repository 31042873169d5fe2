//! PCI functions, as the kernel describes them.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// The kernel's description of PCI.
#[derive(Debug, Clone)]
pub struct Pci {
    root: PathBuf,
    dev: PathBuf,
}

impl Pci {
    /// This machine's.
    pub fn system() -> Self {
        Self::at("/sys")
    }

    /// One whose `/sys` lies elsewhere.
    pub fn at(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into(), dev: "/dev".into() }
    }

    /// With a `/dev` that lies elsewhere.
    pub fn with_dev(mut self, dev: impl Into<PathBuf>) -> Self {
        self.dev = dev.into();
        self
    }

    /// The way to a function: the host bridge, the bridges below it, itself; as `pci0000:00`, `0000:00:01.0`, `0000:01:00.0`.
    ///
    /// `None` for what is no address, and for a function that is not there.
    pub fn path_of(&self, address: &str) -> Option<Vec<String>> {
        if !is_address(address) {
            return None;
        }
        let root = std::fs::canonicalize(&self.root).ok()?;
        let real = std::fs::canonicalize(self.folder(address)).ok()?;
        let names = real.strip_prefix(root).ok()?.components();
        let path: Vec<String> = names
            .map(|name| name.as_os_str().to_string_lossy().into_owned())
            .filter(|name| is_address(name) || is_host_bridge(name))
            .collect();
        let whole = is_host_bridge(path.first()?) && path.last()? == address;
        whole.then_some(path)
    }

    /// Addresses of all functions, sorted. A system without PCI has none.
    pub(super) fn functions(&self) -> std::io::Result<Vec<String>> {
        let entries = match std::fs::read_dir(self.root.join("bus/pci/devices")) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            other => other?,
        };
        let mut found = Vec::new();
        for entry in entries {
            found.extend(entry?.file_name().into_string().ok().filter(|name| is_address(name)));
        }
        found.sort();
        Ok(found)
    }

    /// Where a function is described.
    pub(super) fn folder(&self, address: &str) -> PathBuf {
        self.root.join("bus/pci/devices").join(address)
    }

    /// Where device files lie.
    pub(super) fn dev(&self) -> &Path {
        &self.dev
    }

    /// What a file in a function's folder says.
    pub(super) fn read(&self, address: &str, file: &str) -> Option<String> {
        read(&self.folder(address).join(file))
    }

    /// The driver that a function is bound to.
    pub(super) fn driver(&self, address: &str) -> Option<String> {
        let driver = std::fs::canonicalize(self.folder(address).join("driver")).ok()?;
        Some(driver.file_name()?.to_string_lossy().into_owned())
    }
}

/// The text of a file; `None` where there is none.
pub(super) fn read(path: &Path) -> Option<String> {
    let text = std::fs::read_to_string(path).ok()?;
    let text = text.trim();
    (!text.is_empty()).then(|| text.to_owned())
}

/// Slot and function of an address: `0000:04:00` and `1`.
pub(super) fn slot(address: &str) -> (&str, &str) {
    address.rsplit_once('.').unwrap_or((address, ""))
}

/// Whether a name has the form `0000:3b:00.0`. Domains made up by the kernel have more digits than four.
pub(super) fn is_address(name: &str) -> bool {
    let hex = |text: &str| text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let mut parts = name.split(':');
    let (Some(domain), Some(bus), Some(rest), None) =
        (parts.next(), parts.next(), parts.next(), parts.next())
    else {
        return false;
    };
    let Some((device, function)) = rest.split_once('.') else { return false };
    (4..=8).contains(&domain.len())
        && bus.len() == 2
        && device.len() == 2
        && matches!(function.as_bytes(), [b'0'..=b'7'])
        && [domain, bus, device].into_iter().all(hex)
}

/// Whether a name has the form `pci0000:00`.
fn is_host_bridge(name: &str) -> bool {
    let Some((domain, bus)) = name.strip_prefix("pci").and_then(|name| name.split_once(':')) else {
        return false;
    };
    (4..=8).contains(&domain.len())
        && bus.len() == 2
        && [domain, bus].iter().all(|text| text.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

#[cfg(test)]
mod tests {
    use super::super::tree::Tree;
    use super::*;

    #[test]
    fn the_way_to_a_function_leads_from_the_host_bridge_through_every_bridge() {
        let tree = Tree::new();
        tree.function(&["0000:00:01.0", "0000:01:00.0", "0000:02:00.0", "0000:03:00.0"]);
        let found = tree.pci().path_of("0000:03:00.0").unwrap();
        let expected =
            ["pci0000:00", "0000:00:01.0", "0000:01:00.0", "0000:02:00.0", "0000:03:00.0"];
        assert_eq!(found, expected);
        let bridge = tree.pci().path_of("0000:01:00.0").unwrap();
        assert_eq!(bridge, expected[..3]);
    }

    #[test]
    fn a_host_bridge_may_lie_below_other_folders_and_below_a_function() {
        let tree = Tree::new();
        tree.linked("0001:01:00.0", "devices/platform/4000.pcie/pci0001:00/0001:00:00.0");
        assert_eq!(
            tree.pci().path_of("0001:01:00.0").unwrap(),
            ["pci0001:00", "0001:00:00.0", "0001:01:00.0"]
        );
        tree.linked("10000:e1:00.0", "devices/pci0000:00/0000:00:0e.0/pci10000:e0/10000:e0:06.0");
        assert_eq!(
            tree.pci().path_of("10000:e1:00.0").unwrap(),
            ["pci0000:00", "0000:00:0e.0", "pci10000:e0", "10000:e0:06.0", "10000:e1:00.0"]
        );
    }

    #[test]
    fn what_is_not_there_or_leads_elsewhere_has_no_way() {
        let tree = Tree::new();
        tree.function(&["0000:00:01.0", "0000:01:00.0"]);
        let pci = tree.pci();
        for address in ["0000:05:00.0", "", "01:00.0", "../devices/0000:01:00.0", "nvme0n1"] {
            assert_eq!(pci.path_of(address), None, "{address}");
        }
        tree.link("bus/pci/devices/0000:06:00.0", "../../../devices/nowhere/0000:06:00.0");
        assert_eq!(pci.path_of("0000:06:00.0"), None, "a link to nothing");
        tree.link("bus/pci/devices/0000:07:00.0", "../../../devices/pci0000:00/0000:00:01.0");
        assert_eq!(pci.path_of("0000:07:00.0"), None, "a link to another function");
        std::fs::create_dir_all(tree.path("bus/pci/devices/0000:08:00.0")).unwrap();
        assert_eq!(pci.path_of("0000:08:00.0"), None, "no host bridge");
    }

    #[test]
    fn functions_are_those_with_addresses_in_order() {
        let tree = Tree::new();
        assert_eq!(tree.pci().functions().unwrap(), [""; 0], "no PCI at all");
        tree.function(&["0000:00:01.0", "0000:01:00.0"]);
        tree.function(&["0000:00:00.0"]);
        std::fs::write(tree.path("bus/pci/devices/notes.txt"), "").unwrap();
        let found = tree.pci().functions().unwrap();
        assert_eq!(found, ["0000:00:00.0", "0000:00:01.0", "0000:01:00.0"]);
        std::fs::remove_dir_all(tree.path("bus/pci/devices")).unwrap();
        std::fs::write(tree.path("bus/pci/devices"), "").unwrap();
        assert!(tree.pci().functions().is_err(), "a file where a folder should be");
    }

    #[test]
    fn addresses_have_one_form() {
        for good in ["0000:3b:00.0", "0000:3B:1f.7", "10000:e1:00.0"] {
            assert!(is_address(good), "{good}");
        }
        let bad = [
            "3b:00.0",
            "0000:3b:00",
            "0000:3b:00.8",
            "0000:3b:00.10",
            "000g:3b:00.0",
            "0000:3b:0.0",
            "0000:3b:00.0 ",
            "pci0000:00",
            "0000:3b:00:0",
            "0000:00:3b:00.0",
            "00é0:3b:00.0",
            "",
        ];
        for bad in bad {
            assert!(!is_address(bad), "{bad}");
        }
        assert!(is_host_bridge("pci0000:00") && is_host_bridge("pci10000:e0"));
        for bad in ["pci", "pci0000", "pci0000:0", "0000:00", "pci0000:zz", "pci0000:00:01.0"] {
            assert!(!is_host_bridge(bad), "{bad}");
        }
        assert_eq!(slot("0000:04:00.1"), ("0000:04:00", "1"));
    }
}
