//! What XRT can fail with.

use std::path::PathBuf;

use super::name::CardName;

/// An error of XRT, or of how it is used.
#[derive(Debug, thiserror::Error)]
pub enum XrtError {
    /// The library is not there.
    #[error("XRT was not found ({reason}). Install it, and run `source /opt/xilinx/xrt/setup.sh`")]
    NoLibrary {
        /// What the loader says of each name.
        reason: String,
    },
    /// The library lacks a function.
    #[error("{library} has no {symbol}: XRT 2.12 (2021.2) or later is needed")]
    Symbol {
        /// The library.
        library: String,
        /// The function.
        symbol: &'static str,
    },
    /// No such card.
    #[error(
        "card {card} cannot be opened: {reason}. `nearfield doctor` looks at the cards; opening one needs permission for its \
         device files"
    )]
    NoCard {
        /// Which card.
        card: CardName,
        /// What the system says.
        reason: String,
    },
    /// A card that this program has open already.
    #[error("card {card} is in use by this program already; give each drive a card of its own")]
    InUse {
        /// Which card.
        card: CardName,
    },
    /// A bitstream was refused.
    #[error("card {card} does not take {}: {reason}. It must be built for the card's platform", file.display())]
    Load {
        /// Which card.
        card: CardName,
        /// The bitstream.
        file: PathBuf,
        /// What the system says.
        reason: String,
    },
    /// A kernel is not in the bitstream.
    #[error("card {card} has no kernel {kernel}: build the bitstream with `make bitstream`")]
    NoKernel {
        /// Which card.
        card: CardName,
        /// Its name.
        kernel: String,
    },
    /// Memory cannot be had.
    #[error(
        "card {card} has no {bytes} bytes left in bank {bank}: {reason}. A smaller --subgroup-size takes less"
    )]
    Memory {
        /// Which card.
        card: CardName,
        /// As asked for.
        bytes: usize,
        /// Group of banks.
        bank: u32,
        /// What the system says.
        reason: String,
    },
    /// Memory in the card's window on the bus cannot be had.
    #[error(
        "card {card} gives no {bytes} bytes in its window on the bus (P2P), bank {bank}: {reason}. `nearfield doctor` says whether \
         P2P is enabled; `sudo xbutil configure --device ADDRESS --p2p enable` does so. If it is, a smaller --subgroup-size \
         takes less"
    )]
    Window {
        /// Which card.
        card: CardName,
        /// As asked for.
        bytes: usize,
        /// Group of banks.
        bank: u32,
        /// What the system says.
        reason: String,
    },
    /// A call has not come back in time. The card is not used any more.
    #[error(
        "card {card}: {what} has not ended within {seconds} s. The card is given up; `xbutil reset --device ADDRESS` may bring it \
         back. --card-timeout allows more time"
    )]
    TimedOut {
        /// Which card.
        card: CardName,
        /// The kernel or the function.
        what: String,
        /// How long was waited.
        seconds: u64,
    },
    /// A run has ended in a state that leaves open what the card does. The card is not used any more.
    #[error(
        "card {card}: kernel {kernel} is in state {state}, and may still run. The card is given up; `xbutil reset --device ADDRESS` \
         may bring it back"
    )]
    Unknown {
        /// Which card.
        card: CardName,
        /// Which kernel.
        kernel: String,
        /// As XRT numbers states.
        state: i32,
    },
    /// The card was given up earlier.
    #[error("card {card} was given up: {reason}")]
    Lost {
        /// Which card.
        card: CardName,
        /// What happened then.
        reason: String,
    },
    /// A run has failed.
    #[error(
        "card {card}: kernel {kernel} ended in state {state}; `dmesg` and `xbutil examine` say more"
    )]
    Failed {
        /// Which card.
        card: CardName,
        /// Which kernel.
        kernel: String,
        /// As XRT numbers states.
        state: i32,
    },
    /// Another call was refused.
    #[error("card {card}: {call} failed: {reason}")]
    Call {
        /// Which card.
        card: CardName,
        /// The function.
        call: &'static str,
        /// What the system says.
        reason: String,
    },
    /// A range outside a buffer, or an argument that is missing.
    #[error("card {card}: {what}")]
    Invalid {
        /// Which card.
        card: CardName,
        /// What is wrong.
        what: String,
    },
}
