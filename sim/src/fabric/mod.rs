//! Descriptions of machines: places, links and rates, read from TOML.

mod costs;
mod numbers;

use std::collections::BTreeMap;
use std::path::Path;

use nearfield_runtime::{Error, Result};
use serde::{Deserialize, Serialize};

pub use costs::FabricCosts;
pub use numbers::{Positive, SizePoint, WorkPoint};

/// A machine that trains with its state on drives. Rates are what the machine reaches, not what is printed on it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fabric {
    /// Name for reports.
    pub name: String,
    /// The server.
    pub host: Host,
    /// Compute devices by name, of which a run has one; it may be the host's own processor.
    pub gpus: BTreeMap<String, Gpu>,
    /// Each drive.
    pub drive: Drive,
    /// The link between the host and all drives; without it, drives only share the host's memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uplink: Option<Uplink>,
    /// Ways to put the machine together, by name; without any there is one, called `default`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub topologies: BTreeMap<String, Topology>,
}

/// A way to put the machine together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Topology {
    /// Whether the compute device is behind the uplink as well, so that its transfers share it with the drives.
    pub gpu_behind_uplink: bool,
}

/// What of a fabric a run uses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Selection {
    /// Number of drives.
    pub drives: u32,
    /// Name of the compute device; without it the only one of the fabric.
    pub gpu: Option<String>,
    /// Name of the topology; without it `default`.
    pub topology: Option<String>,
}

impl Selection {
    /// So many drives, the only compute device, the default topology.
    pub const fn drives(drives: u32) -> Self {
        Self { drives, gpu: None, topology: None }
    }
}

/// The server's memory and processor.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Host {
    /// Bytes copied a second, all copies together.
    pub copy_bytes_per_second: Positive,
    /// Seconds from the end of a task to the start of one that waits for it; without it 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub task_seconds: Option<Positive>,
    /// Rates of the kernels by name, counted in the bytes that a kernel touches; at least one point each.
    pub kernels: BTreeMap<String, Vec<SizePoint>>,
}

/// The compute device.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Gpu {
    /// Its memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<Positive>,
    /// Rates of forward passes over their operations.
    pub forward: Vec<WorkPoint>,
    /// Rates of backward passes, recomputation included.
    pub backward: Vec<WorkPoint>,
    /// Host to device; without it a copy within the host's memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub down_bytes_per_second: Option<Positive>,
    /// Device to host.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub up_bytes_per_second: Option<Positive>,
}

/// One drive, and the near-storage device beside it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Drive {
    /// Most drives that the machine takes; without it any number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub count_max: Option<u32>,
    /// Disks behind the drives, where drives are directories that share disks; without it each drive is a disk.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disks: Option<u32>,
    /// Rates of reads over their size, with others in flight.
    pub read: Vec<SizePoint>,
    /// Rates of writes over their size, with others in flight.
    pub write: Vec<SizePoint>,
    /// Rates of reads with nothing else in flight; without them a lone read has no latency beyond `read`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub read_alone: Vec<SizePoint>,
    /// Rates of writes with nothing else in flight.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub write_alone: Vec<SizePoint>,
    /// What a disk does in a second of reading and writing together, in seconds of doing one of them: 1 when both
    /// share one back end, 2 when neither disturbs the other.
    pub mixed_seconds_per_second: Positive,
    /// Seconds until a header is durable, flush included.
    pub seal_seconds: Positive,
    /// Seconds to allocate and map the buffers of a tasklet in the device beside the drive (0 without the key).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allocate_seconds: Option<Positive>,
    /// Seconds to launch a kernel there (0 without the key).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub launch_seconds: Option<Positive>,
    /// Rates of the kernels of the device beside the drive; without them the host's processor plays it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub kernels: BTreeMap<String, Vec<SizePoint>>,
    /// Drive to the memory beside it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub internal_read_bytes_per_second: Option<Positive>,
    /// Memory beside the drive to the drive.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub internal_write_bytes_per_second: Option<Positive>,
}

/// The link that all drives share.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Uplink {
    /// Host to drives.
    pub down_bytes_per_second: Positive,
    /// Drives to host.
    pub up_bytes_per_second: Positive,
    /// Both directions together; without it they do not disturb each other.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub joint_bytes_per_second: Option<Positive>,
}

impl Fabric {
    /// Names of the descriptions that come with the program.
    pub const SHIPPED: [&str; 1] = ["smartssd-falcon"];

    /// The description of that name that comes with the program; `None` when there is none.
    pub fn shipped(name: &str) -> Option<Result<Self>> {
        let text = match name {
            "smartssd-falcon" => include_str!("../../fabrics/smartssd-falcon.toml"),
            _ => return None,
        };
        Some(Self::parse(text))
    }

    /// Reads a description.
    ///
    /// # Errors
    /// [`Error::Invalid`] that names the file, the line and the key.
    pub fn load(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path)
            .map_err(|error| Error::Invalid(format!("fabric {}: {error}", path.display())))?;
        Self::parse(&text)
            .map_err(|error| Error::Invalid(format!("fabric {}: {error}", path.display())))
    }

    /// Reads a description from text.
    ///
    /// # Errors
    /// [`Error::Invalid`] that names the line and the key.
    pub fn parse(text: &str) -> Result<Self> {
        let fabric: Self =
            toml::from_str(text).map_err(|error| Error::Invalid(error.to_string()))?;
        fabric.check()?;
        Ok(fabric)
    }

    /// The compute device of a run.
    ///
    /// # Errors
    /// [`Error::Invalid`] with the names that exist, when `name` is none of them or is needed.
    pub fn gpu(&self, name: Option<&str>) -> Result<&Gpu> {
        let names = || self.gpus.keys().map(String::as_str).collect::<Vec<_>>().join(", ");
        match name {
            Some(name) => self.gpus.get(name).ok_or_else(|| {
                Error::Invalid(format!(
                    "fabric {} has no GPU {name}; it has {}",
                    self.name,
                    names()
                ))
            }),
            None => match self.gpus.values().next() {
                Some(only) if self.gpus.len() == 1 => Ok(only),
                _ => Err(Error::Invalid(format!(
                    "fabric {} has several GPUs; choose one with --gpu: {}",
                    self.name,
                    names()
                ))),
            },
        }
    }

    /// The description as text.
    ///
    /// # Errors
    /// [`Error::Invalid`] if it cannot be written as TOML, which is a defect.
    pub fn to_toml(&self) -> Result<String> {
        toml::to_string_pretty(self).map_err(|error| Error::Invalid(error.to_string()))
    }

    fn check(&self) -> Result<()> {
        let kernels = |of: &str, kernels: &BTreeMap<String, Vec<SizePoint>>| {
            let curves = kernels.iter().map(|(name, points)| {
                (format!("{of}.kernels.{name}"), points.iter().map(|p| p.bytes.get()).collect())
            });
            curves.collect::<Vec<(String, Vec<f64>)>>()
        };
        let sizes = |points: &[SizePoint]| points.iter().map(|p| p.bytes.get()).collect();
        let work = |points: &[WorkPoint]| points.iter().map(|p| p.flops.get()).collect();
        let mut curves: Vec<(String, Vec<f64>)> = vec![
            ("drive.read".into(), sizes(&self.drive.read)),
            ("drive.write".into(), sizes(&self.drive.write)),
        ];
        for (name, gpu) in &self.gpus {
            curves.push((format!("gpus.{name}.forward"), work(&gpu.forward)));
            curves.push((format!("gpus.{name}.backward"), work(&gpu.backward)));
        }
        curves.extend(kernels("host", &self.host.kernels));
        curves.extend(kernels("drive", &self.drive.kernels));
        for (key, points) in [
            ("drive.read_alone", &self.drive.read_alone),
            ("drive.write_alone", &self.drive.write_alone),
        ] {
            if !points.is_empty() {
                curves.push((key.into(), sizes(points)));
            }
        }
        for (key, sizes) in curves {
            if sizes.is_empty() {
                return Err(Error::Invalid(format!("{key}: at least one point is needed")));
            }
            if !sizes.is_sorted_by(|a, b| a < b) {
                return Err(Error::Invalid(format!("{key}: sizes must ascend")));
            }
        }
        if self.gpus.is_empty() {
            return Err(Error::Invalid("gpus: at least one compute device is needed".into()));
        }
        for (key, count) in
            [("drive.count_max", self.drive.count_max), ("drive.disks", self.drive.disks)]
        {
            if count == Some(0) {
                return Err(Error::Invalid(format!("{key}: 0 is too few; at least 1 is needed")));
            }
        }
        Ok(())
    }
}
