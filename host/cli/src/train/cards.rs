//! SmartSSDs as the devices of a run.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, bail};
use nearfield_fpga::device::SmartSsds;
use nearfield_runtime::Result;
use nearfield_runtime::device::NearStorageDevice;
use nearfield_runtime::io::IoEngine;
use nearfield_techniques::offload::DeviceSource;

/// The cards of this machine: card `i` stands beside drive `i`.
#[derive(Debug)]
pub struct Cards(SmartSsds);

impl Cards {
    /// Loads XRT and looks at the bitstream.
    pub fn open(bitstream: Option<&Path>) -> anyhow::Result<Self> {
        let Some(bitstream) = bitstream else {
            bail!("--device xrt needs --bitstream FILE, which `make bitstream` builds");
        };
        Ok(Self(SmartSsds::new(bitstream).context("--device xrt")?))
    }
}

impl DeviceSource for Cards {
    fn attach(
        &self,
        drive: u32,
        _directory: &Path,
        engine: &Arc<IoEngine>,
    ) -> Result<Box<dyn NearStorageDevice>> {
        Ok(Box::new(self.0.attach(drive, engine)?))
    }
}
