//! Cards as sysfs shows them, which card stands beside which drive, and what is wrong with them.
//!
//! What XRT's drivers put into sysfs is read as XRT 2.12 and 2.13 lay it out. This follows XRT's sources; it was not seen on a
//! card.

mod cards;
mod p2p;
mod pairing;
mod pci;
mod probe;
mod surroundings;
#[cfg(test)]
mod tree;

pub use cards::{Card, cards};
pub use p2p::P2p;
pub use pairing::{DrivePlace, PairingError, pair, switch_between};
pub use pci::Pci;
pub use probe::{Grade, Observation, probe};
pub use surroundings::Surroundings;
