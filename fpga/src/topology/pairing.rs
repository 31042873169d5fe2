//! Which card stands beside which drive.
//!
//! Inside a SmartSSD a switch has two ports below it: behind one is the drive, behind the other the FPGA. So the ways to both are
//! the same down to that switch, and part at its ports. Switches above, in a server or an enclosure, are shared with others too.

use std::path::{Path, PathBuf};

use nearfield_runtime::io::BlockDevice;

use super::cards::Card;
use super::pci::{Pci, is_address};

/// A directory for states, and the drive that it lies on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DrivePlace {
    /// The directory.
    pub directory: PathBuf,
    /// The drive's PCI function; `None` where it has none, or the directory lies on several drives.
    pub address: Option<String>,
}

impl DrivePlace {
    /// Where a directory lies. One that is not there yet lies where the first part of its path does that is.
    pub fn of(directory: &Path) -> Self {
        let there = std::path::absolute(directory).unwrap_or_else(|_| directory.to_owned());
        let there = there.ancestors().find(|part| part.exists()).unwrap_or(Path::new("/"));
        let disk = BlockDevice::of(there).ok().flatten().filter(|disk| disk.disks.len() == 1);
        let address = disk.and_then(|disk| disk.pci.last().cloned());
        Self { directory: directory.to_owned(), address }
    }
}

/// Why a drive has no card.
#[derive(Debug, thiserror::Error)]
pub enum PairingError {
    /// No PCI function.
    #[error(
        "{} does not lie on one NVMe drive: it is on a virtual disk, a network, RAID, or a volume of several. Give a \
         directory on a SmartSSD's own drive, or name the cards with --card, once for each drive",
        directory.display()
    )]
    NoAddress {
        /// The directory.
        directory: PathBuf,
    },
    /// The function is not in the kernel's list.
    #[error(
        "the drive of {} ({address}) is not among the kernel's PCI devices, so the card beside it cannot be found. \
         Containers may hide them: name the cards with --card, once for each drive",
        directory.display()
    )]
    NotFound {
        /// The directory.
        directory: PathBuf,
        /// The drive's function.
        address: String,
    },
    /// No card is behind the same switch.
    #[error(
        "the drive of {} ({address}) is in no SmartSSD: no card hangs behind the same switch, {}. Give a directory on a \
         SmartSSD's own drive; where a virtual machine hides the switches, name the cards with --card, once for each drive",
        directory.display(),
        known(cards)
    )]
    NotBeside {
        /// The directory.
        directory: PathBuf,
        /// The drive's function.
        address: String,
        /// Cards of this machine.
        cards: Vec<String>,
    },
    /// Several cards are equally near.
    #[error(
        "the drive of {} ({address}) has no card of its own: cards {} are equally near. It may be a plain drive beside \
         SmartSSDs; give a directory on a SmartSSD's own drive, or name the cards with --card, once for each drive",
        directory.display(),
        cards.join(", ")
    )]
    NoCardOfItsOwn {
        /// The directory.
        directory: PathBuf,
        /// The drive's function.
        address: String,
        /// The cards.
        cards: Vec<String>,
    },
    /// Only the management function is there.
    #[error(
        "card {card} beside the drive of {} ({address}) shows its management function alone, so nothing can be computed \
         with it. Flash its platform with `sudo xbmgmt program --device {card} --base` and boot cold, or take its user \
         function back from the virtual machine that has it",
        directory.display()
    )]
    NoUserFunction {
        /// The directory.
        directory: PathBuf,
        /// The drive's function.
        address: String,
        /// The card's management function.
        card: String,
    },
    /// Two directories lead to one card.
    #[error(
        "card {card} is beside the drives of both {} ({other_address}) and {} ({address}). Give one directory for each \
         SmartSSD, or name the cards with --card, once for each drive",
        other.display(), directory.display()
    )]
    Taken {
        /// The later directory.
        directory: PathBuf,
        /// Its drive's function.
        address: String,
        /// The card.
        card: String,
        /// The earlier directory.
        other: PathBuf,
        /// Its drive's function.
        other_address: String,
    },
}

fn known(cards: &[String]) -> String {
    match cards {
        [] => "and this machine shows no cards".into(),
        cards => format!("among cards {}", cards.join(", ")),
    }
}

/// The card of each drive, as indices into `cards`.
///
/// It is the card whose way has the most bridges in common with the drive's. No other card may have as many, both must hang right
/// behind the last of them or one port below, and each card goes to one drive.
///
/// # Errors
/// The first drive that has no card.
pub fn pair(drives: &[DrivePlace], cards: &[Card], pci: &Pci) -> Result<Vec<usize>, PairingError> {
    let mut taken: Vec<usize> = Vec::with_capacity(drives.len());
    for drive in drives {
        let directory = drive.directory.clone();
        let Some(address) = drive.address.clone() else {
            return Err(PairingError::NoAddress { directory });
        };
        let card = card_of(drive, &address, cards, pci)?;
        if let Some(before) = taken.iter().position(|&before| before == card) {
            return Err(PairingError::Taken {
                directory,
                address,
                card: cards[card].address.clone(),
                other: drives[before].directory.clone(),
                other_address: drives[before].address.clone().unwrap_or_default(),
            });
        }
        taken.push(card);
    }
    Ok(taken)
}

fn card_of(
    drive: &DrivePlace,
    address: &str,
    cards: &[Card],
    pci: &Pci,
) -> Result<usize, PairingError> {
    let (directory, address) = (drive.directory.clone(), address.to_owned());
    let Some(way) = pci.path_of(&address) else {
        return Err(PairingError::NotFound { directory, address });
    };
    let bridges = |card: &Card| bridges(common(&way, &card.path));
    let most = cards.iter().map(bridges).max().unwrap_or(0);
    let nearest: Vec<usize> =
        (0..cards.len()).filter(|&card| bridges(&cards[card]) == most).collect();
    let names =
        |indices: &[usize]| indices.iter().map(|&card| cards[card].address.clone()).collect();
    match nearest[..] {
        [card] if most > 0 && beside(&way, &cards[card].path) => {
            if cards[card].user_function {
                return Ok(card);
            }
            Err(PairingError::NoUserFunction {
                directory,
                address,
                card: cards[card].address.clone(),
            })
        }
        [_, _, ..] if most > 0 => {
            Err(PairingError::NoCardOfItsOwn { directory, address, cards: names(&nearest) })
        }
        _ => {
            let all: Vec<usize> = (0..cards.len()).collect();
            Err(PairingError::NotBeside { directory, address, cards: names(&all) })
        }
    }
}

/// The bridge at which the ways to a drive and to its card part: the switch inside a SmartSSD.
pub fn switch_between<'a>(drive: &'a [String], card: &Card) -> Option<&'a str> {
    let shared = common(drive, &card.path);
    shared.iter().rev().find(|name| is_address(name)).map(String::as_str)
}

/// What two ways share, without the functions that they lead to.
fn common<'a>(one: &'a [String], other: &[String]) -> &'a [String] {
    let most = one.len().min(other.len()).saturating_sub(1);
    let same = (0..most).take_while(|&index| one[index] == other[index]).count();
    &one[..same]
}

/// Bridges, without host bridges.
fn bridges(shared: &[String]) -> usize {
    shared.iter().filter(|name| is_address(name)).count()
}

/// Whether at most one port lies between where two ways part and either end.
fn beside(one: &[String], other: &[String]) -> bool {
    let shared = common(one, other).len();
    one.len() - shared <= 2 && other.len() - shared <= 2
}

#[cfg(test)]
mod tests;
