//! SmartSSDs as the devices of a run.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use nearfield_fpga::device::{CALL_LIMIT, SmartSsds};
use nearfield_fpga::topology::{DrivePlace, Pci, cards, pair};
use nearfield_fpga::xrt::CardName;
use nearfield_runtime::device::NearStorageDevice;
use nearfield_runtime::io::IoEngine;
use nearfield_techniques::offload::DeviceSource;

use super::args::TrainArgs;

/// The cards of this machine, and which of them stands beside which drive.
#[derive(Debug)]
pub struct Cards {
    cards: SmartSsds,
    /// Of each drive, in their order.
    names: Vec<CardName>,
}

impl Cards {
    /// Finds the cards, loads XRT and looks at the bitstream. No card is opened yet.
    pub fn open(args: &TrainArgs, drives: &[PathBuf]) -> Result<Self> {
        let Some(bitstream) = &args.bitstream else {
            bail!("--device xrt needs --bitstream FILE, which `make bitstream` builds");
        };
        let limit = args.card_timeout.map_or(CALL_LIMIT, Duration::from_secs);
        let cards = SmartSsds::new(bitstream, limit).context("--device xrt")?;
        let names = if !args.card.is_empty() {
            given(&args.card, drives)?
        } else if std::env::var_os("XCL_EMULATION_MODE").is_some() {
            // Emulated cards are on no bus.
            (0..drives.len() as u32).map(CardName::Index).collect()
        } else {
            beside(drives).context("--device xrt")?
        };
        Ok(Self { cards, names })
    }
}

/// The cards of `--card`.
fn given(cards: &[String], drives: &[PathBuf]) -> Result<Vec<CardName>> {
    if cards.len() != drives.len() {
        let (cards, drives) = (cards.len(), drives.len());
        bail!("--card is given once for each --drive: there are {cards} cards and {drives} drives");
    }
    let name = |text: &String| text.parse().with_context(|| format!("--card {text}"));
    cards.iter().map(name).collect()
}

/// The cards behind the drives' own switches.
fn beside(drives: &[PathBuf]) -> Result<Vec<CardName>> {
    let pci = Pci::system();
    let cards = cards(&pci).context("the kernel's PCI devices cannot be listed")?;
    if cards.is_empty() {
        bail!("this machine has no SmartSSD; `nearfield doctor` says more");
    }
    let places: Vec<_> = drives.iter().map(|drive| DrivePlace::of(drive)).collect();
    let pairs = pair(&places, &cards, &pci)?;
    Ok(pairs.into_iter().map(|card| CardName::Address(cards[card].address.clone())).collect())
}

impl DeviceSource for Cards {
    fn attach(
        &self,
        drive: u32,
        directory: &Path,
        engine: &Arc<IoEngine>,
    ) -> nearfield_runtime::Result<Box<dyn NearStorageDevice>> {
        let Some(card) = self.names.get(drive as usize) else {
            let directory = directory.display();
            let what = format!("drive {drive} ({directory}) has no card");
            return Err(nearfield_runtime::Error::Invalid(what));
        };
        Ok(Box::new(self.cards.attach(drive, card, engine)?))
    }
}
