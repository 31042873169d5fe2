//! The PCI link of a drive, and how warm the drive is.

use std::path::{Path, PathBuf};

use super::finding::Finding;

/// Where the kernel describes PCI devices.
const DEVICES: &str = "/sys/bus/pci/devices";
/// Below the temperature at which a drive slows down, in degrees: then it is about to.
const NEAR: f64 = 5.0;

/// What can be said of the drive at a PCI address.
pub fn findings(name: &str, address: &str) -> Vec<Finding> {
    of_directory(name, &Path::new(DEVICES).join(address))
}

fn of_directory(name: &str, device: &Path) -> Vec<Finding> {
    link(name, device).into_iter().chain(warmth(name, device)).collect()
}

fn read(path: PathBuf) -> Option<String> {
    Some(std::fs::read_to_string(path).ok()?.trim().to_owned())
}

/// Transfers a second on one lane in 10^9, and lanes.
fn speed(device: &Path, which: &str) -> Option<(f64, u32)> {
    // `16.0 GT/s PCIe`
    let rate = read(device.join(format!("{which}_link_speed")))?;
    let rate = rate.split_whitespace().next()?.parse().ok()?;
    let lanes = read(device.join(format!("{which}_link_width")))?.parse().ok()?;
    (lanes > 0).then_some((rate, lanes))
}

/// 10^9 bytes a second, without what packets take.
fn gigabytes((rate, lanes): (f64, u32)) -> f64 {
    let coding = if rate < 8.0 { 0.8 } else { 128.0 / 130.0 };
    rate * f64::from(lanes) * coding / 8.0
}

fn link(name: &str, device: &Path) -> Option<Finding> {
    let now = speed(device, "current")?;
    let most = speed(device, "max").unwrap_or(now);
    let found = format!("PCI link {} GT/s x{}, {:.1} GB/s each way", now.0, now.1, gigabytes(now));
    if gigabytes(now) < 0.9 * gigabytes(most) {
        let remedy = format!(
            "it could run at {} GT/s x{}, {:.1} GB/s: look at slot, riser and BIOS; some drives are slower while they sleep",
            most.0,
            most.1,
            gigabytes(most)
        );
        return Some(Finding::warning(name, found, &remedy));
    }
    Some(Finding::good(name, found))
}

/// Temperature of an NVMe drive, beside the one at which it slows down.
fn warmth(name: &str, device: &Path) -> Option<Finding> {
    let sensors = |directory: PathBuf| std::fs::read_dir(directory).into_iter().flatten().flatten();
    let sensor = sensors(device.join("nvme"))
        .flat_map(|drive| sensors(drive.path()))
        .map(|entry| entry.path())
        .find(|path| path.join("temp1_input").exists())?;
    let degrees = |file: &str| Some(read(sensor.join(file))?.parse::<f64>().ok()? / 1000.0);
    let now = degrees("temp1_input")?;
    let found = format!("is at {now:.0} degrees");
    let Some(most) = degrees("temp1_max").filter(|&most| most > 0.0) else {
        return Some(Finding::good(name, found));
    };
    let found = format!("{found}; it slows down at {most:.0}");
    if now >= most - NEAR {
        let remedy = "cool it: a heat sink, more air, fewer drives side by side";
        return Some(Finding::warning(name, found, remedy));
    }
    Some(Finding::good(name, found))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let path = root.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, format!("{text}\n")).unwrap();
        }
        root
    }

    fn said(files: &[(&str, &str)]) -> Vec<(String, Option<String>)> {
        let root = device(files);
        let found = of_directory("drive 0", root.path());
        found.into_iter().map(|finding| (finding.found, finding.remedy)).collect()
    }

    #[test]
    fn a_link_below_its_best_is_a_warning() {
        let best = [("max_link_speed", "16.0 GT/s PCIe"), ("max_link_width", "4")];
        let full = [("current_link_speed", "16.0 GT/s PCIe"), ("current_link_width", "4")];
        let half = [("current_link_speed", "16.0 GT/s PCIe"), ("current_link_width", "2")];
        let good = said(&[best, full].concat());
        assert_eq!(good, [("PCI link 16 GT/s x4, 7.9 GB/s each way".to_owned(), None)]);
        let bad = said(&[best, half].concat());
        assert!(
            bad[0].0.contains("x2, 3.9 GB/s") && bad[0].1.as_ref().unwrap().contains("x4, 7.9")
        );
        assert_eq!(said(&[("current_link_speed", "Unknown"), ("current_link_width", "0")]), []);
    }

    #[test]
    fn a_hot_drive_is_a_warning() {
        let sensor = "nvme/nvme0/hwmon3";
        let at = |now: &str| {
            said(&[
                (&format!("{sensor}/temp1_input"), now),
                (&format!("{sensor}/temp1_max"), "84850"),
            ])
        };
        assert_eq!(at("41850"), [("is at 42 degrees; it slows down at 85".to_owned(), None)]);
        assert!(at("81850")[0].1.as_ref().unwrap().contains("cool it"));
    }
}
