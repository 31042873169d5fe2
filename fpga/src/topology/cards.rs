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
mod tests;
