//! SmartSSDs: cards, XRT, and which card stands beside which drive.

use std::path::{Path, PathBuf};

use nearfield_fpga::topology::{DrivePlace, Grade, Observation, Pci, Surroundings, probe};
use nearfield_runtime::io::BlockDevice;

use super::finding::{Finding, Status};

pub fn findings(drives: &[PathBuf]) -> Vec<Finding> {
    let pci = Pci::system();
    let places = drives.iter().map(|drive| place_of(drive)).collect();
    let seen = probe(&pci, &Surroundings::system(&pci, places));
    seen.into_iter().map(finding).collect()
}

/// Where a directory lies on the bus. One that is not there yet lies where the first part of its path does that is.
pub fn place_of(directory: &Path) -> DrivePlace {
    let there = std::path::absolute(directory).unwrap_or_else(|_| directory.to_owned());
    let there = there.ancestors().find(|part| part.exists()).unwrap_or(Path::new("/"));
    let disk = BlockDevice::of(there).ok().flatten().filter(|disk| disk.disks.len() == 1);
    let address = disk.and_then(|disk| disk.pci.last().cloned());
    DrivePlace { directory: directory.to_owned(), address }
}

fn finding(seen: Observation) -> Finding {
    let status = match seen.grade {
        Grade::Good => Status::Good,
        Grade::Note => Status::Note,
        Grade::Warning => Status::Warning,
        Grade::Failure => Status::Failure,
    };
    Finding { what: seen.what, status, found: seen.found, remedy: seen.remedy }
}
