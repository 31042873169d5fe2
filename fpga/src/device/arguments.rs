//! Arguments of a launch, by their names.

use nearfield_hls::interface::{KernelInterface, Kind};
use nearfield_runtime::{Error, Result};

use crate::xrt::{Buffer, Value};

/// All arguments of a kernel in their order: memory from `buffer`, the bits of numbers from `scalar`.
///
/// # Errors
/// [`Error::Invalid`] names an argument that has no value.
pub fn bind<'a>(
    interface: &KernelInterface,
    buffer: &dyn Fn(&str) -> Option<&'a Buffer>,
    scalar: &dyn Fn(&str) -> Option<u64>,
) -> Result<Vec<Value<'a>>> {
    let value = |name: &str, kind: Kind| {
        Some(match kind {
            Kind::Read | Kind::Write => Value::Buffer(buffer(name)?),
            Kind::U64 => Value::U64(scalar(name)?),
            Kind::U32 => Value::U32(scalar(name)? as u32),
            Kind::F32 => Value::F32(f32::from_bits(scalar(name)? as u32)),
        })
    };
    interface
        .arguments
        .iter()
        .map(|argument| {
            value(argument.name, argument.kind).ok_or_else(|| {
                let (kernel, name) = (interface.name, argument.name);
                Error::Invalid(format!("kernel {kernel}: argument {name} has no value"))
            })
        })
        .collect()
}
