//! Whether a container holds the kernels that this program calls.

use nearfield_hls::interface::{KERNELS, KernelInterface};

use super::XclbinError;
use super::read::{Kernel, Xclbin};

impl Xclbin {
    /// Checks that it holds this program's kernels, with the same arguments in the same order, built from the sources with
    /// `digest`.
    ///
    /// # Errors
    /// [`XclbinError::Interface`] names the kernel and the argument that differ, [`XclbinError::Version`] both digests.
    pub fn check(&self, digest: &str) -> Result<(), XclbinError> {
        for interface in KERNELS {
            let name = interface.name;
            let kernel = self
                .kernel(name)
                .ok_or_else(|| self.differs(format!("it has no kernel {name}")))?;
            compare(interface, kernel).map_err(|what| self.differs(what))?;
            let Some(instance) = kernel.instances.first() else {
                return Err(self.differs(format!("kernel {name} has no instance")));
            };
            let prefix = format!("{name}_");
            let found = instance.name.strip_prefix(&prefix).unwrap_or(&instance.name);
            if found != digest {
                return Err(XclbinError::Version {
                    file: self.file.clone(),
                    kernel: name.into(),
                    found: found.into(),
                    expected: digest.into(),
                });
            }
        }
        Ok(())
    }

    fn differs(&self, what: String) -> XclbinError {
        XclbinError::Interface { file: self.file.clone(), what }
    }
}

fn compare(interface: &KernelInterface, kernel: &Kernel) -> Result<(), String> {
    let name = interface.name;
    for (number, expected) in interface.arguments.iter().enumerate() {
        let argument = expected.name;
        let Some(found) = kernel.arguments.get(number) else {
            return Err(format!("kernel {name} lacks argument {argument}"));
        };
        if found.name != argument {
            let found = &found.name;
            return Err(format!(
                "kernel {name}: argument {number} is {found} instead of {argument}"
            ));
        }
        if found.is_memory != expected.kind.is_memory() {
            let (is, should) =
                if found.is_memory { ("memory", "a number") } else { ("a number", "memory") };
            return Err(format!("kernel {name}: argument {argument} is {is} instead of {should}"));
        }
        let (bytes, wanted) = (found.bytes, expected.kind.bytes() as u64);
        if bytes != wanted {
            return Err(format!(
                "kernel {name}: argument {argument} has {bytes} bytes instead of {wanted}"
            ));
        }
    }
    match kernel.arguments.get(interface.arguments.len()) {
        Some(more) => Err(format!("kernel {name} has an argument {} too many", more.name)),
        None => Ok(()),
    }
}
