//! libtorch, GPUs, FPGA cards.

use nearfield_train::measure;

use super::finding::Finding;

/// Vendor of the FPGA on a SmartSSD, as PCI names it.
const XILINX: &str = "0x10ee";

pub fn findings() -> Vec<Finding> {
    let mut findings = vec![libtorch(), gpu()];
    findings.extend(cards());
    findings
}

fn libtorch() -> Finding {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let path = maps.lines().find(|line| line.contains("libtorch_cpu.so"));
    match path.and_then(|line| line.split_whitespace().nth(5)) {
        Some(path) => Finding::good("libtorch", path),
        None => Finding::note("libtorch", "linked into the program", ""),
    }
}

fn gpu() -> Finding {
    let driver = std::fs::read_to_string("/proc/driver/nvidia/version").ok();
    let driver = driver.as_deref().and_then(|text| text.lines().next());
    match (measure::cuda_devices(), driver) {
        (0, None) => Finding::note("GPU", "none; models compute on the processor", ""),
        (0, Some(driver)) => {
            let remedy = "libtorch does not see the GPU: it was built without CUDA, or for a newer driver; install \
                          torch with CUDA in .venv, or set LIBTORCH to such a libtorch, and build again";
            Finding::warning("GPU", driver, remedy)
        }
        (count, driver) => {
            Finding::good("GPU", format!("{count}; {}", driver.unwrap_or("driver unknown")))
        }
    }
}

/// FPGA cards. They are found, but not used in this version.
fn cards() -> Option<Finding> {
    let devices = std::fs::read_dir("/sys/bus/pci/devices").ok()?.flatten();
    let of_xilinx = devices.filter(|device| {
        let vendor = std::fs::read_to_string(device.path().join("vendor"));
        vendor.is_ok_and(|vendor| vendor.trim() == XILINX)
    });
    let cards: Vec<String> =
        of_xilinx.map(|card| card.file_name().to_string_lossy().into_owned()).collect();
    if cards.is_empty() {
        return None;
    }
    let remedy =
        "this version does not use FPGAs: the processor plays the device beside each drive";
    Some(Finding::note("FPGA cards", cards.join(", "), remedy))
}
