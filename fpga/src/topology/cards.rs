//! Cards on the PCI bus.

use std::path::{Path, PathBuf};

use super::p2p::P2p;
use super::pci::{Pci, read, slot};

/// Xilinx's number.
const VENDOR: &str = "0x10ee";
/// Processing accelerators, the class of management functions.
const ACCELERATOR: &str = "0x1200";
/// XRT's driver of user functions, with which programs compute.
pub(super) const USER_DRIVER: &str = "xocl";
/// XRT's driver of management functions, with which cards are flashed.
const MANAGEMENT_DRIVER: &str = "xclmgmt";

/// A card. What its drivers tell is laid out as in XRT 2.12 and 2.13; it was not seen on a card.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Card {
    /// The user function, such as `0000:04:00.1`; of a card that shows none, the management function.
    pub address: String,
    /// Whether `address` is a user function. Without one, programs cannot compute with the card.
    pub user_function: bool,
    /// The management function, where this system sees it.
    pub management: Option<String>,
    /// The driver that `address` is bound to, `xocl` when all is well.
    pub driver: Option<String>,
    /// Name of the platform that is flashed, such as `xilinx_u2_gen3x4_xdma_gc_base_2`, from either function.
    pub shell: Option<String>,
    /// The platform's UUID as the user function has it.
    pub shell_uuid: Option<String>,
    /// Whether drives reach its memory.
    pub p2p: P2p,
    /// The way to `address` from the host bridge; empty where the kernel does not show it.
    pub path: Vec<String>,
    /// Through which programs open it; there if the driver says so, even if `/dev` lacks it.
    pub device_node: Option<PathBuf>,
}

/// Cards of a machine, by address.
///
/// Every function 1 of Xilinx is a user function, and so is what XRT's driver for them is bound to, as virtual machines number
/// functions anew. A management function counts where its slot shows no user function.
///
/// # Errors
/// The kernel's list of functions cannot be read. A system without PCI has no cards.
pub fn cards(pci: &Pci) -> std::io::Result<Vec<Card>> {
    let xilinx: Vec<String> = pci
        .functions()?
        .into_iter()
        .filter(|address| {
            pci.read(address, "vendor").is_some_and(|vendor| vendor.eq_ignore_ascii_case(VENDOR))
        })
        .collect();
    let is_user = |address: &str| {
        slot(address).1 == "1" || pci.driver(address).as_deref() == Some(USER_DRIVER)
    };
    let mut cards = Vec::new();
    for address in &xilinx {
        let beside = |other: &&String| slot(other).0 == slot(address).0 && *other != address;
        if is_user(address) {
            let management =
                xilinx.iter().filter(beside).find(|other| slot(other).1 == "0" && !is_user(other));
            cards.push(with_user(pci, address, management));
        } else if manages(pci, address) && !xilinx.iter().filter(beside).any(|other| is_user(other))
        {
            cards.push(without_user(pci, address));
        }
    }
    Ok(cards)
}

fn manages(pci: &Pci, address: &str) -> bool {
    let class = || pci.read(address, "class").is_some_and(|class| class.starts_with(ACCELERATOR));
    let driver = || pci.driver(address).as_deref() == Some(MANAGEMENT_DRIVER);
    slot(address).1 == "0" && (class() || driver())
}

fn with_user(pci: &Pci, address: &str, management: Option<&String>) -> Card {
    let folder = pci.folder(address);
    let first = |kind, file| parts(&folder, kind).iter().find_map(|part| read(&part.join(file)));
    let other = || management.and_then(|address| managed_shell(&pci.folder(address)));
    let p2p = parts(&folder, "p2p.u")
        .iter()
        .find_map(|part| std::fs::read_to_string(part.join("config")).ok())
        .map_or(P2p::Unknown, |config| P2p::read(&config));
    Card {
        address: address.to_owned(),
        user_function: true,
        management: management.cloned(),
        driver: pci.driver(address),
        shell: first("rom.u", "VBNV").or_else(other),
        shell_uuid: first("rom.u", "uuid"),
        p2p,
        path: pci.path_of(address).unwrap_or_default(),
        device_node: render_node(&folder).map(|name| pci.dev().join("dri").join(name)),
    }
}

fn without_user(pci: &Pci, address: &str) -> Card {
    Card {
        address: address.to_owned(),
        user_function: false,
        management: Some(address.to_owned()),
        driver: pci.driver(address),
        shell: managed_shell(&pci.folder(address)),
        shell_uuid: None,
        p2p: P2p::Unknown,
        path: pci.path_of(address).unwrap_or_default(),
        device_node: None,
    }
}

/// The platform as a management function tells it. A card as it leaves the factory has none, but says `mfg` instead.
fn managed_shell(folder: &Path) -> Option<String> {
    if read(&folder.join("mfg")).is_some_and(|value| value != "0") {
        let board = read(&folder.join("board_name")).unwrap_or_else(|| "board".into());
        return Some(format!("xilinx_{board}_GOLDEN"));
    }
    parts(folder, "rom.m").iter().find_map(|part| read(&part.join("VBNV")))
}

/// Folders of what a driver splits a function into, such as `rom.u.1048576`, in order.
fn parts(folder: &Path, kind: &str) -> Vec<PathBuf> {
    numbered(folder, &format!("{kind}.")).into_iter().map(|(_, path)| path).collect()
}

/// The first node for computing, such as `renderD128`.
fn render_node(folder: &Path) -> Option<String> {
    let (number, _) = numbered(&folder.join("drm"), "renderD").into_iter().next()?;
    Some(format!("renderD{number}"))
}

/// Folders whose names are a prefix and a number, by number.
fn numbered(folder: &Path, prefix: &str) -> Vec<(u64, PathBuf)> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut found: Vec<_> = entries
        .filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            let number = name.strip_prefix(prefix)?;
            let number = number.bytes().all(|byte| byte.is_ascii_digit()).then_some(number)?;
            Some((number.parse().ok()?, entry.path()))
        })
        .filter(|(_, path)| path.is_dir())
        .collect();
    found.sort();
    found
}

#[cfg(test)]
mod tests {
    use super::super::tree::{ENABLED, Tree};
    use super::*;

    const WAY: [&str; 3] = ["0000:00:01.0", "0000:01:00.0", "0000:02:00.0"];

    fn one(tree: &Tree) -> Card {
        let mut found = cards(&tree.pci()).unwrap();
        assert_eq!(found.len(), 1, "{found:?}");
        found.remove(0)
    }

    fn way(end: &str) -> [&str; 4] {
        [WAY[0], WAY[1], WAY[2], end]
    }

    #[test]
    fn a_card_in_good_order_is_described_whole() {
        let tree = Tree::new();
        let made = tree.smart_ssd(&["0000:00:01.0"], 1);
        let dev = tree.path("../dev/dri/renderD129");
        let found = one(&tree);
        assert_eq!(found.device_node.as_ref().unwrap().file_name(), dev.file_name());
        assert!(found.device_node.as_ref().unwrap().ends_with("dev/dri/renderD129"));
        assert_eq!(
            found,
            Card {
                address: "0000:04:00.1".into(),
                user_function: true,
                management: Some("0000:04:00.0".into()),
                driver: Some("xocl".into()),
                shell: Some("xilinx_u2_gen3x4_xdma_gc_base_2".into()),
                shell_uuid: Some("1234567890abcdef1234567890abcdef".into()),
                p2p: P2p::Enabled,
                path: ["pci0000:00", "0000:00:01.0", &made.switch, "0000:02:01.0", &made.user]
                    .map(str::to_owned)
                    .to_vec(),
                device_node: found.device_node.clone(),
            }
        );
    }

    #[test]
    fn cards_are_sorted_and_other_functions_are_none() {
        let tree = Tree::new();
        assert_eq!(cards(&tree.pci()).unwrap(), [], "a system without PCI");
        tree.smart_ssd(&["0000:00:03.0"], 0x21);
        tree.smart_ssd(&["0000:00:01.0"], 1);
        tree.function(&["0000:00:1f.1"]);
        tree.files("0000:00:1f.1", &[("vendor", "0x8086\n"), ("class", "0x120000\n")]);
        tree.function(&["0000:00:1f.0"]);
        tree.xilinx(&["0000:00:05.0"], "");
        tree.files("0000:00:05.0", &[("class", "0x058000\n")]);
        tree.xilinx(&["0000:00:06.2"], "");
        tree.link("bus/pci/devices/0000:09:00.1", "../../../devices/nowhere/0000:09:00.1");
        let found: Vec<_> =
            cards(&tree.pci()).unwrap().into_iter().map(|card| card.address).collect();
        assert_eq!(found, ["0000:04:00.1", "0000:24:00.1"]);
    }

    #[test]
    fn a_management_function_alone_is_a_card_without_user_function() {
        let tree = Tree::new();
        tree.xilinx(&way("0000:04:00.0"), "");
        let found = one(&tree);
        assert!(!found.user_function);
        assert_eq!((found.address.as_str(), found.driver), ("0000:04:00.0", None));
        assert_eq!(found.management.as_deref(), Some("0000:04:00.0"));
        assert_eq!((found.p2p, found.device_node, found.path.len()), (P2p::Unknown, None, 5));
        tree.files("0000:04:00.0", &[("class", "0xff0000\n")]);
        assert_eq!(cards(&tree.pci()).unwrap(), [], "neither class nor driver");
        tree.bind("0000:04:00.0", "xclmgmt");
        assert_eq!(one(&tree).driver.as_deref(), Some("xclmgmt"));
    }

    #[test]
    fn the_factorys_image_is_told_by_the_management_function() {
        let tree = Tree::new();
        tree.xilinx(&way("0000:04:00.0"), "xclmgmt");
        tree.files("0000:04:00.0", &[("rom.m.7/VBNV", "xilinx_u2_gen3x4_xdma_gc_base_2\n")]);
        assert_eq!(one(&tree).shell.as_deref(), Some("xilinx_u2_gen3x4_xdma_gc_base_2"));
        tree.files("0000:04:00.0", &[("mfg", "0\n")]);
        assert_eq!(one(&tree).shell.as_deref(), Some("xilinx_u2_gen3x4_xdma_gc_base_2"));
        tree.files("0000:04:00.0", &[("mfg", "1\n"), ("board_name", "u2\n")]);
        assert_eq!(one(&tree).shell.as_deref(), Some("xilinx_u2_GOLDEN"));
    }

    #[test]
    fn an_unbound_user_function_has_the_shell_that_the_management_function_tells() {
        let tree = Tree::new();
        tree.xilinx(&way("0000:04:00.0"), "xclmgmt");
        tree.xilinx(&way("0000:04:00.1"), "");
        tree.files("0000:04:00.0", &[("rom.m.7/VBNV", "xilinx_u250\n")]);
        let found = one(&tree);
        assert_eq!((found.driver, found.shell.as_deref()), (None, Some("xilinx_u250")));
        tree.files("0000:04:00.1", &[("rom.u.7/VBNV", "xilinx_u50\n")]);
        assert_eq!(one(&tree).shell.as_deref(), Some("xilinx_u50"));
    }

    #[test]
    fn what_xrts_driver_is_bound_to_is_a_user_function_whatever_its_number() {
        let tree = Tree::new();
        tree.xilinx(&["0000:00:05.0"], "xocl");
        let found = one(&tree);
        assert!(found.user_function);
        assert_eq!((found.address.as_str(), found.management), ("0000:00:05.0", None));
    }

    #[test]
    fn a_function_of_another_vendor_in_the_slot_is_no_management_function() {
        let tree = Tree::new();
        tree.xilinx(&way("0000:04:00.1"), "vfio-pci");
        tree.function(&way("0000:04:00.0"));
        tree.files("0000:04:00.0", &[("vendor", "0x1234\n")]);
        let found = one(&tree);
        assert_eq!((found.management, found.driver.as_deref()), (None, Some("vfio-pci")));
    }

    #[test]
    fn empty_broken_and_missing_files_say_nothing() {
        let tree = Tree::new();
        tree.xilinx(&way("0000:04:00.1"), "");
        tree.link("bus/pci/devices/0000:04:00.1/driver", "../../bus/pci/drivers/gone");
        tree.files("0000:04:00.1", &[("rom.u.1/VBNV", " \n"), ("rom.u.x/VBNV", "wrong name")]);
        tree.files("0000:04:00.1", &[("rom.u/VBNV", "no number"), ("rom.u./VBNV", "no number")]);
        tree.files("0000:04:00.1", &[("p2p.u.1/other", ""), ("drm/card0/dev", "")]);
        tree.files("0000:04:00.1", &[("drm/renderDx/dev", ""), ("rom.u.3", "a file")]);
        std::fs::write(tree.path("bus/pci/devices/0000:04:00.1/rom.u.1/uuid"), [0xff, 0xfe])
            .unwrap();
        tree.link("bus/pci/devices/0000:04:00.1/p2p.u.0", "nowhere");
        let found = one(&tree);
        assert_eq!((found.driver, found.shell, found.shell_uuid), (None, None, None));
        assert_eq!((found.p2p, found.device_node), (P2p::Unknown, None));
        tree.files("0000:04:00.1", &[("rom.u.2/VBNV", "xilinx_u2\n"), ("p2p.u.2/config", ENABLED)]);
        let found = one(&tree);
        assert_eq!((found.shell.as_deref(), found.p2p), (Some("xilinx_u2"), P2p::Enabled));
        tree.files("0000:04:00.1", &[("p2p.u.1/config", "garbage\n")]);
        assert_eq!(one(&tree).p2p, P2p::Unknown, "the first counts");
    }

    #[test]
    fn the_list_of_functions_must_be_readable() {
        let tree = Tree::new();
        std::fs::create_dir_all(tree.path("bus/pci")).unwrap();
        std::fs::write(tree.path("bus/pci/devices"), "").unwrap();
        assert!(cards(&tree.pci()).is_err());
    }
}
