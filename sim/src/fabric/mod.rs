//! Descriptions of machines: places, links and rates, read from TOML.

mod check;
mod costs;
mod describe;
mod machine;
mod numbers;
mod source;

use std::collections::BTreeMap;
use std::path::Path;

use nearfield_runtime::{Error, Result};
use serde::{Deserialize, Serialize};

pub use costs::FabricCosts;
pub use describe::{
    Drive, Gpu, Host, KernelDesign, LinkDescription, Near, Pipeline, Switch, Topology,
};
pub use numbers::{Positive, SharePoint, SizePoint, WorkPoint};
use source::Source;

/// A machine that trains with its state on drives. Rates are what the machine reaches, not what is printed on it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fabric {
    /// Name for reports.
    pub name: String,
    /// The server.
    pub host: Host,
    /// Kinds of compute devices by name, of which a run uses one; it may be the host's own processor.
    pub gpus: BTreeMap<String, Gpu>,
    /// Each drive.
    pub drive: Drive,
    /// Places with nothing but links.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub switches: BTreeMap<String, Switch>,
    /// Links between places.
    #[serde(default)]
    pub links: BTreeMap<String, LinkDescription>,
    /// Ways to put the machine together, by name; without any there is one, called `default`, that has all links.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub topologies: BTreeMap<String, Topology>,
    /// Where it was read from.
    #[serde(skip)]
    source: Source,
}

/// What of a fabric a run uses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Selection {
    /// Number of drives.
    pub drives: u32,
    /// Number of compute devices.
    pub gpus: u32,
    /// Name of their kind; without it the only one of the fabric.
    pub gpu: Option<String>,
    /// Name of the topology; without it `default`.
    pub topology: Option<String>,
    /// Which kernels cards have.
    pub kernels: KernelDesign,
}

impl Selection {
    /// So many drives, one compute device of the only kind, the default topology.
    pub const fn drives(drives: u32) -> Self {
        Self { drives, gpus: 1, gpu: None, topology: None, kernels: KernelDesign::Dataflow }
    }
}

/// Descriptions that come with the program.
const SHIPPED: [(&str, &str); 3] = [
    ("smartssd-falcon", include_str!("../../fabrics/smartssd-falcon.toml")),
    ("server-2026", include_str!("../../fabrics/server-2026.toml")),
    ("desktop", include_str!("../../fabrics/desktop.toml")),
];

impl Fabric {
    /// Names of the descriptions that come with the program.
    pub fn shipped_names() -> impl Iterator<Item = &'static str> {
        SHIPPED.iter().map(|(name, _)| *name)
    }

    /// The description of that name that comes with the program; `None` when there is none.
    pub fn shipped(name: &str) -> Option<Result<Self>> {
        let (_, text) = SHIPPED.iter().find(|(shipped, _)| *shipped == name)?;
        Some(Self::parse_as(name, text))
    }

    /// The description called `name` that comes with the program, or the one in that file.
    ///
    /// # Errors
    /// [`Error::Invalid`] when there is neither, and what [`Fabric::load`] reports.
    pub fn open(name: &str) -> Result<Self> {
        if let Some(shipped) = Self::shipped(name) {
            return shipped;
        }
        if !Path::new(name).exists() {
            let names: Vec<&str> = Self::shipped_names().collect();
            return Err(Error::Invalid(format!(
                "fabric {name:?} is neither shipped ({}) nor a file; nearfield calibrate writes one",
                names.join(", ")
            )));
        }
        Self::load(Path::new(name))
    }

    /// Reads a description.
    ///
    /// # Errors
    /// [`Error::Invalid`] that names the file, the line and the key.
    pub fn load(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path)
            .map_err(|error| Error::Invalid(format!("fabric {}: {error}", path.display())))?;
        Self::parse_as(&path.display().to_string(), &text)
    }

    /// Reads a description from text.
    ///
    /// # Errors
    /// [`Error::Invalid`] that names the line and the key.
    pub fn parse(text: &str) -> Result<Self> {
        Self::parse_as("", text)
    }

    pub(crate) fn parse_as(name: &str, text: &str) -> Result<Self> {
        let mut fabric: Self = toml::from_str(text)
            .map_err(|error| Error::Invalid(format!("fabric {name}: {error}")))?;
        fabric.source = Source { name: name.to_owned(), text: text.to_owned() };
        check::check(&fabric)?;
        Ok(fabric)
    }

    /// A description made in memory.
    ///
    /// # Errors
    /// [`Error::Invalid`] that names the key.
    pub fn new(
        name: &str,
        host: Host,
        gpus: BTreeMap<String, Gpu>,
        drive: Drive,
        links: BTreeMap<String, LinkDescription>,
    ) -> Result<Self> {
        let fabric = Self {
            name: name.to_owned(),
            host,
            gpus,
            drive,
            switches: BTreeMap::new(),
            links,
            topologies: BTreeMap::new(),
            source: Source::default(),
        };
        check::check(&fabric)?;
        Ok(fabric)
    }

    /// The kind of compute device of a run, and its name.
    ///
    /// # Errors
    /// [`Error::Invalid`] with the names that exist, when `name` is none of them or is needed.
    pub fn gpu(&self, name: Option<&str>) -> Result<(&str, &Gpu)> {
        let names = || self.gpus.keys().map(String::as_str).collect::<Vec<_>>().join(", ");
        let found = match name {
            Some(name) => self.gpus.get_key_value(name).ok_or_else(|| {
                self.error(&["gpus"], &format!("there is no {name}; there are {}", names()))
            })?,
            None => match self.gpus.iter().next() {
                Some(only) if self.gpus.len() == 1 => only,
                _ => {
                    let message = format!("there are several; choose one with --gpu: {}", names());
                    return Err(self.error(&["gpus"], &message));
                }
            },
        };
        Ok((found.0, found.1))
    }

    /// Links of a topology.
    fn link_names(&self, topology: Option<&str>) -> Result<Vec<&str>> {
        let name = topology.unwrap_or("default");
        match self.topologies.get(name) {
            Some(topology) => Ok(topology.links.iter().map(String::as_str).collect()),
            None if name == "default" && self.topologies.is_empty() => {
                Ok(self.links.keys().map(String::as_str).collect())
            }
            None => {
                let names: Vec<&str> = self.topologies.keys().map(String::as_str).collect();
                let names = if names.is_empty() { "default".into() } else { names.join(", ") };
                let message = format!("there is no topology {name}; there are {names}");
                Err(self.error(&["topologies"], &message))
            }
        }
    }

    /// Price of the machine with `selection`; `near` says whether the drives have the device beside them. `None` where a
    /// part has no price.
    pub fn price_usd(&self, selection: &Selection, near: bool) -> Option<f64> {
        let (_, gpu) = self.gpu(selection.gpu.as_deref()).ok()?;
        let beside = match &self.drive.near {
            Some(device) if near => device.price_usd?.get(),
            _ => 0.0,
        };
        let drives = f64::from(selection.drives) * (self.drive.price_usd?.get() + beside);
        let gpus =
            if gpu.in_host_memory { 0.0 } else { f64::from(selection.gpus) * gpu.price_usd?.get() };
        Some(self.host.price_usd?.get() + gpus + drives)
    }

    /// Checks that `needed` bytes fit the `memory` at `key`.
    fn fits(&self, key: &[&str], memory: Option<Positive>, needed: u64, what: &str) -> Result<()> {
        match memory {
            Some(memory) if needed as f64 > memory.get() => {
                let (needed, memory) = (needed as f64 / 1e9, memory.get() / 1e9);
                let message =
                    format!("{what} would hold {needed:.2} GB, but it has {memory:.2} GB");
                Err(self.error(key, &message))
            }
            _ => Ok(()),
        }
    }

    /// Checks that `bytes` of state fit one drive.
    ///
    /// # Errors
    /// [`Error::Invalid`] that names the key.
    pub fn check_capacity(&self, bytes: u64) -> Result<()> {
        self.fits(&["drive", "capacity_bytes"], self.drive.capacity_bytes, bytes, "a drive")
    }

    /// Checks that `bytes` fit the host's memory.
    ///
    /// # Errors
    /// [`Error::Invalid`] that names the key.
    pub fn check_host(&self, bytes: u64) -> Result<()> {
        self.fits(&["host", "memory_bytes"], self.host.memory_bytes, bytes, "the host")
    }

    /// An error about the value at `key`.
    pub(crate) fn error(&self, key: &[&str], message: &str) -> Error {
        self.source.error(key, message)
    }

    /// The description as text.
    ///
    /// # Errors
    /// [`Error::Invalid`] if it cannot be written as TOML, which is a defect.
    pub fn to_toml(&self) -> Result<String> {
        toml::to_string_pretty(self).map_err(|error| Error::Invalid(error.to_string()))
    }
}
