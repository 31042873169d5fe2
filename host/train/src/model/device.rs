//! Compute devices, and bytes between them and the host.

use nearfield_runtime::types::DType;
use tch::{Cuda, Device, Kind, Tensor};

use crate::error::{Error, Result};

/// The device named `cpu`, `cuda` or `cuda:N`; fails when it does not exist. Call it before any other use of libtorch.
pub fn parse_device(name: &str) -> Result<Device> {
    let index = match name {
        "cpu" => return Ok(Device::Cpu),
        "cuda" => 0,
        _ => match name.strip_prefix("cuda:").map(str::parse::<usize>) {
            Some(Ok(index)) => index,
            _ => {
                return Err(Error::Invalid(format!(
                    "device {name:?} is not known; use --device cpu, cuda or cuda:N"
                )));
            }
        },
    };
    let loaded = load_cuda();
    let count = if loaded && Cuda::is_available() {
        usize::try_from(Cuda::device_count()).unwrap_or(0)
    } else {
        0
    };
    if index < count {
        return Ok(Device::Cuda(index));
    }
    let cause = if loaded {
        format!(
            "libtorch sees {count} CUDA devices; use --device cpu, or check the driver (nvidia-smi)"
        )
    } else {
        "this libtorch has no CUDA; use --device cpu, or build with a libtorch that has it"
            .to_owned()
    };
    Err(Error::Invalid(format!("device {name:?} is not there: {cause}")))
}

/// Loads libtorch's CUDA half, which registers itself; false when there is none.
///
/// The linker leaves it out because no symbol of it is called, and that is welcome: it takes seconds and gigabytes of address space that
/// runs on the CPU need not pay. It must happen before libtorch is first asked about CUDA, since it remembers the answer.
fn load_cuda() -> bool {
    static LOADED: std::sync::OnceLock<bool> = std::sync::OnceLock::new();
    *LOADED.get_or_init(|| {
        // SAFETY: the name is a C string; the library's initialisers only register kernels with the libtorch that is already loaded,
        // from the same directory. The handle is never closed.
        let handle = unsafe {
            libc::dlopen(c"libtorch_cuda.so".as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL)
        };
        !handle.is_null()
    })
}

/// libtorch's name of a number format.
pub(super) const fn kind(dtype: DType) -> Kind {
    match dtype {
        DType::Fp32 => Kind::Float,
        DType::Fp16 => Kind::Half,
        DType::Bf16 => Kind::BFloat16,
    }
}

/// Copies a tensor's elements, converted to `dtype` (round to nearest even) on its device, to host memory in row-major order.
///
/// `out` has exactly the bytes of the elements.
pub fn read_out(tensor: &Tensor, dtype: DType, out: &mut [u8]) -> Result<()> {
    let bytes = tensor.numel() as u64 * dtype.bytes();
    if out.len() as u64 != bytes {
        return Err(Error::Invalid(format!(
            "a tensor of {bytes} bytes cannot be copied to a buffer of {} bytes",
            out.len()
        )));
    }
    let _guard = tch::no_grad_guard();
    tensor
        .f_to_kind(kind(dtype))
        .and_then(|converted| converted.f_copy_data_u8(out, tensor.numel()))
        .map_err(|error| Error::torch("copy from the compute device", &error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_parsed_and_missing_ones_named() {
        assert_eq!(parse_device("cpu").unwrap(), Device::Cpu);
        for name in ["gpu", "cuda:", "cuda:x", "cuda:-1", ""] {
            let text = parse_device(name).unwrap_err().to_string();
            assert!(text.contains("use --device cpu"), "{text}");
        }
        let text = parse_device("cuda:4096").unwrap_err().to_string();
        assert!(text.contains("cuda:4096") && text.contains("--device cpu"));
    }

    #[test]
    fn elements_are_read_in_row_major_order_and_rounded() {
        let tensor = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.003_906_3]).view([2, 2]).tr();
        let mut bytes = [0; 16];
        read_out(&tensor, DType::Fp32, &mut bytes).unwrap();
        let values: Vec<f32> =
            bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect();
        assert_eq!(values, [1.0, 3.0, 2.0, 4.003_906_3]);
        let mut bytes = [0; 8];
        read_out(&tensor, DType::Bf16, &mut bytes).unwrap();
        assert_eq!(bytes[6..], half::bf16::from_f32(4.0).to_le_bytes());
        assert!(read_out(&tensor, DType::Fp32, &mut bytes).is_err());
    }
}
