//! SmartSSDs: cards, XRT, and which card stands beside which drive.

use std::path::PathBuf;

use nearfield_fpga::topology::{DrivePlace, Grade, Observation, Pci, Surroundings, probe};

use super::finding::{Finding, Status};

pub fn findings(drives: &[PathBuf]) -> Vec<Finding> {
    let pci = Pci::system();
    let places = drives.iter().map(|drive| DrivePlace::of(drive)).collect();
    let seen = probe(&pci, &Surroundings::system(&pci, places));
    seen.into_iter().map(finding).collect()
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
