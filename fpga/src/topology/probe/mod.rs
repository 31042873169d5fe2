//! What stands between this machine and training on its SmartSSDs.

mod card;
mod observation;
#[cfg(test)]
mod tests;

use super::cards::{Card, cards};
use super::pairing::{DrivePlace, pair, switch_between};
use super::pci::Pci;
use super::surroundings::Surroundings;
pub use observation::{Grade, Observation};

/// What observations of no card in particular are about.
const GENERAL: &str = "SmartSSDs";

/// Looks at cards, XRT, and which drive is beside which card.
///
/// The commands that remedies name are those of XRT 2.12 and 2.13.
pub fn probe(pci: &Pci, around: &Surroundings) -> Vec<Observation> {
    let cards = match cards(pci) {
        Ok(cards) => cards,
        Err(error) => {
            let found = format!("the kernel's list of PCI devices cannot be read: {error}");
            let remedy = "allow this user to read /sys/bus/pci/devices";
            return vec![Observation::failure(GENERAL, found).remedy(remedy)];
        }
    };
    if cards.is_empty() {
        return vec![no_card(around)];
    }
    let mut seen = vec![library(around, cards.len())];
    seen.extend(container(around));
    for card in &cards {
        seen.extend(card::observations(card, around));
    }
    seen.extend(pairs(pci, around, &cards));
    seen
}

fn no_card(around: &Surroundings) -> Observation {
    if around.xrt.is_err() {
        return Observation::note(GENERAL, "no SmartSSD");
    }
    let found = "XRT is there, but no card is on the PCI bus";
    let remedy = "after a card's platform was flashed, switch the machine off and on again, as a warm reboot does not load it; \
                  `lspci -d 10ee:` shows what the bus has";
    Observation::note(GENERAL, found).remedy(remedy)
}

fn library(around: &Surroundings, cards: usize) -> Observation {
    match &around.xrt {
        Ok(()) => Observation::good("XRT", "its library loads"),
        Err(reason) => {
            let found = format!("{cards} card(s), but XRT's library does not load: {reason}");
            let remedy = "install XRT 2.12 or 2.13 (the package xrt that comes with the SmartSSD's platform), then run \
                          `source /opt/xilinx/xrt/setup.sh`";
            Observation::failure("XRT", found).remedy(remedy)
        }
    }
}

fn container(around: &Surroundings) -> Option<Observation> {
    let sign = around.container.as_ref()?;
    let found =
        format!("this runs in a container ({sign}), where drives do not reach cards' memory");
    let remedy = "run it on the host: P2P needs device files and folders of XRT's driver that containers lack";
    Some(Observation::warning("container", found).remedy(remedy))
}

/// Which card is beside which drive.
fn pairs(pci: &Pci, around: &Surroundings, cards: &[Card]) -> Vec<Observation> {
    let found = match pair(&around.drives, cards, pci) {
        Ok(found) => found,
        // The error says what to do.
        Err(error) => return vec![Observation::failure("drives and cards", error.to_string())],
    };
    let beside = around.drives.iter().zip(&found);
    let mut seen: Vec<_> = beside.map(|(drive, &card)| behind(pci, drive, &cards[card])).collect();
    let alone = cards.iter().enumerate().filter(|(index, _)| !found.contains(index));
    seen.extend(alone.filter(|(_, card)| card.user_function).map(|(_, card)| {
        let remedy = "to train with it, give a directory on the drive beside it";
        Observation::note(&card::name(card), "no directory on its drive was given").remedy(remedy)
    }));
    seen
}

fn behind(pci: &Pci, drive: &DrivePlace, card: &Card) -> Observation {
    let address = drive.address.as_deref().unwrap_or_default();
    let way = pci.path_of(address).unwrap_or_default();
    let name = format!("drive {}", drive.directory.display());
    let switch = switch_between(&way, card).unwrap_or("unknown");
    let found =
        format!("{name} ({address}) and card {} hang behind the switch {switch}", card.address);
    Observation::good(&name, found)
}
