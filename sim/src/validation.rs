//! Measurements that come with the program, to be compared with what is simulated.

use crate::fabric::Fabric;
use nearfield_runtime::Result;

/// Files with measurements: name and text.
pub const DATA: [(&str, &str); 2] = [
    ("smartssd-paper", include_str!("../validation/smartssd-paper.toml")),
    ("two-core-vm", include_str!("../validation/two-core-vm.toml")),
];

/// Descriptions of machines that were calibrated for some of them.
const MACHINES: [(&str, &str); 2] = [
    ("two-core-vm-1", include_str!("../validation/two-core-vm-1.fabric.toml")),
    ("two-core-vm-4", include_str!("../validation/two-core-vm-4.fabric.toml")),
];

/// The machine called `name`: one that was calibrated for a measurement, one that is shipped, or one in a file.
///
/// # Errors
/// [`nearfield_runtime::Error::Invalid`] as of [`Fabric::open`].
pub fn machine(name: &str) -> Result<Fabric> {
    match MACHINES.iter().find(|(known, _)| *known == name) {
        Some((name, text)) => Fabric::parse_as(name, text),
        None => Fabric::open(name),
    }
}
