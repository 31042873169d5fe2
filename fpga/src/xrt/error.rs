//! What XRT can fail with.

use std::path::PathBuf;

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
        "card {card} cannot be opened: {reason}. `xbutil examine` lists the cards; opening one needs permission for its device \
         files"
    )]
    NoCard {
        /// Its index.
        card: u32,
        /// What the system says.
        reason: String,
    },
    /// A card that this program has open already.
    #[error("card {card} is in use by this program already; give each drive a card of its own")]
    InUse {
        /// Its index.
        card: u32,
    },
    /// A bitstream was refused.
    #[error("card {card} does not take {}: {reason}. It must be built for the card's platform", file.display())]
    Load {
        /// Which card.
        card: u32,
        /// The bitstream.
        file: PathBuf,
        /// What the system says.
        reason: String,
    },
    /// A kernel is not in the bitstream.
    #[error("card {card} has no kernel {kernel}: build the bitstream with `make bitstream`")]
    NoKernel {
        /// Which card.
        card: u32,
        /// Its name.
        kernel: String,
    },
    /// Memory cannot be had.
    #[error(
        "card {card} has no {bytes} bytes left in bank {bank}: {reason}. A smaller --subgroup-size takes less"
    )]
    Memory {
        /// Which card.
        card: u32,
        /// As asked for.
        bytes: usize,
        /// Group of banks.
        bank: u32,
        /// What the system says.
        reason: String,
    },
    /// A run has not ended in time.
    #[error(
        "card {card}: kernel {kernel} has not ended within {seconds} s; `xbutil reset --device …` may bring the card back"
    )]
    TimedOut {
        /// Which card.
        card: u32,
        /// Which kernel.
        kernel: String,
        /// How long was waited.
        seconds: u64,
    },
    /// A run has failed.
    #[error(
        "card {card}: kernel {kernel} ended in state {state}; `dmesg` and `xbutil examine` say more"
    )]
    Failed {
        /// Which card.
        card: u32,
        /// Which kernel.
        kernel: String,
        /// As XRT numbers states.
        state: i32,
    },
    /// Another call was refused.
    #[error("card {card}: {call} failed: {reason}")]
    Call {
        /// Which card.
        card: u32,
        /// The function.
        call: &'static str,
        /// What the system says.
        reason: String,
    },
    /// A range outside a buffer, or an argument that is missing.
    #[error("card {card}: {what}")]
    Invalid {
        /// Which card.
        card: u32,
        /// What is wrong.
        what: String,
    },
}

/// What errno says; XRT leaves it at 0 for some failures.
pub(super) fn reason() -> String {
    let error = std::io::Error::last_os_error();
    match error.raw_os_error() {
        None | Some(0) => "XRT gives no reason".into(),
        Some(_) => error.to_string(),
    }
}
