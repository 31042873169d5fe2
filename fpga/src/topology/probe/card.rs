//! What is wrong with a card.

use std::io::ErrorKind;

use super::super::cards::{Card, USER_DRIVER};
use super::super::p2p::P2p;
use super::super::surroundings::Surroundings;
use super::Observation;

/// In the names of all platforms of the SmartSSD.
const PLATFORM: &str = "u2_gen3x4_xdma";

pub(super) fn name(card: &Card) -> String {
    format!("card {}", card.address)
}

/// What is seen of a card, up to what makes looking further pointless.
pub(super) fn observations(card: &Card, around: &Surroundings) -> Vec<Observation> {
    let mut seen = vec![driver(card, around)];
    // The name may come from the management function, so it may be known whatever drives this one.
    let bound = card.user_function && card.driver.as_deref() == Some(USER_DRIVER);
    if card.shell.is_some() || bound {
        seen.push(shell(card));
    }
    if bound && card.shell.as_deref().is_none_or(is_right) {
        seen.push(p2p(card));
    }
    if bound {
        seen.extend(node(card, around));
    }
    seen
}

fn driver(card: &Card, around: &Surroundings) -> Observation {
    let name = name(card);
    if !card.user_function {
        let remedy = format!(
            "flash the platform with `{}` and switch the machine off and on again, or take the user function back from the \
             other machine or virtual machine that has it",
            program(card)
        );
        let found = "it shows its management function alone: the user function is not there";
        return Observation::failure(&name, found).remedy(remedy);
    }
    let found = match card.driver.as_deref() {
        Some(USER_DRIVER) => return Observation::good(&name, "XRT's driver xocl has it"),
        Some(other) => format!("the driver {other} has it, not XRT's xocl"),
        None => "no driver has it: XRT's xocl is not loaded, or was not built".to_owned(),
    };
    let kernel = around.kernel.as_deref().unwrap_or("unknown");
    let remedy = format!(
        "`sudo modprobe xocl`; `dkms status` tells whether it was built. It does not build on new kernels: the platform was \
         made for Ubuntu 20.04 with kernel 5.4, this kernel is {kernel}. A function given to a virtual machine (vfio-pci) \
         must be taken back"
    );
    Observation::failure(&name, found).remedy(remedy)
}

fn shell(card: &Card) -> Observation {
    let name = name(card);
    match &card.shell {
        Some(shell) if is_right(shell) => {
            Observation::good(&name, format!("its platform is {shell}"))
        }
        Some(shell) => {
            let remedy = format!(
                "flash the SmartSSD's platform with `{}`, then switch the machine off and on again",
                program(card)
            );
            let found = format!("wrong shell: {shell}, not the SmartSSD's *{PLATFORM}*");
            Observation::failure(&name, found).remedy(remedy)
        }
        None => {
            let remedy = format!("`xbutil examine --device {}` may tell", card.address);
            Observation::warning(&name, "its driver does not tell its platform").remedy(remedy)
        }
    }
}

/// Names are spelled with colons and dots too, as in `xilinx.com:u2:gen3x4_xdma_gc:2.0`.
fn is_right(shell: &str) -> bool {
    shell.to_ascii_lowercase().replace([':', '.'], "_").contains(PLATFORM)
}

fn program(card: &Card) -> String {
    let address = card.management.as_ref().unwrap_or(&card.address);
    format!("sudo xbmgmt program --device {address} --base")
}

fn p2p(card: &Card) -> Observation {
    let (name, address) = (name(card), &card.address);
    let enable = format!("sudo xbutil configure --device {address} --p2p enable");
    match card.p2p {
        P2p::Enabled => Observation::good(&name, "P2P is enabled"),
        P2p::Disabled => {
            Observation::failure(&name, "P2P is disabled").remedy(format!("`{enable}`"))
        }
        P2p::NoIomem => {
            let remedy =
                "reboot warm; if that does not help, turn on 'Above 4G decoding' in the BIOS";
            let found =
                "P2P is enabled, but BIOS or bridges have no room for the card's memory yet";
            Observation::failure(&name, found).remedy(remedy)
        }
        P2p::Broken => {
            let remedy = format!(
                "`sudo xbutil configure --device {address} --p2p disable`, `{enable}`, then reboot warm"
            );
            let found =
                "P2P is set up wrongly: its window does not lead to all of the card's memory";
            Observation::failure(&name, found).remedy(remedy)
        }
        P2p::Unsupported => {
            let remedy = format!(
                "flash a platform that has P2P with `{}`, then switch the machine off and on again",
                program(card)
            );
            Observation::failure(&name, "its platform has no P2P").remedy(remedy)
        }
        P2p::Unknown => {
            let remedy = format!("`xbutil examine --device {address} --report platform` may tell");
            Observation::warning(&name, "its driver does not tell whether P2P is enabled")
                .remedy(remedy)
        }
    }
}

fn node(card: &Card, around: &Surroundings) -> Option<Observation> {
    let name = name(card);
    let Some(node) = &card.device_node else {
        let found = "its driver made no device node, so programs cannot open it";
        let remedy = "`sudo dmesg` tells what the driver ran into";
        return Some(Observation::failure(&name, found).remedy(remedy));
    };
    let shown = node.display();
    Some(match around.nodes.get(node)? {
        Ok(()) => Observation::good(&name, format!("{shown} opens")),
        Err(ErrorKind::PermissionDenied) => {
            let found = format!("no permission to open {shown}");
            let remedy =
                "`sudo usermod --append --groups render $USER` and log in again, or run it as root";
            Observation::failure(&name, found).remedy(remedy)
        }
        Err(ErrorKind::NotFound) => {
            let remedy = "in a container, pass it in; else `sudo udevadm trigger` makes it anew";
            Observation::failure(&name, format!("{shown} is not there")).remedy(remedy)
        }
        Err(other) => {
            let remedy = "`sudo dmesg` and `xbutil examine` may tell why";
            Observation::failure(&name, format!("{shown} does not open: {other}")).remedy(remedy)
        }
    })
}
