//! Number formats of checkpoints.

use std::fs::File;
use std::os::unix::fs::FileExt;

use half::{bf16, f16};
use nearfield_runtime::kernels;
use nearfield_runtime::types::DType;
use safetensors::Dtype;

/// Formats whose numbers can become fp32.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stored {
    F64,
    F32,
    F16,
    Bf16,
}

impl Stored {
    pub fn new(dtype: Dtype) -> Option<Self> {
        Some(match dtype {
            Dtype::F64 => Self::F64,
            Dtype::F32 => Self::F32,
            Dtype::F16 => Self::F16,
            Dtype::BF16 => Self::Bf16,
            _ => return None,
        })
    }

    pub const fn bytes(self) -> u64 {
        match self {
            Self::F64 => 8,
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
        }
    }

    /// Little-endian numbers to fp32; `raw` has as many as `out`.
    pub fn decode(self, raw: &[u8], out: &mut [f32]) {
        fn each<const N: usize>(raw: &[u8], out: &mut [f32], of: impl Fn([u8; N]) -> f32) {
            let (numbers, _) = raw.as_chunks::<N>();
            for (to, number) in out.iter_mut().zip(numbers) {
                *to = of(*number);
            }
        }
        match self {
            Self::F64 => each(raw, out, |bytes| f64::from_le_bytes(bytes) as f32),
            Self::F32 => each(raw, out, f32::from_le_bytes),
            Self::F16 => each(raw, out, |bytes| f16::from_le_bytes(bytes).to_f32()),
            Self::Bf16 => each(raw, out, |bytes| bf16::from_le_bytes(bytes).to_f32()),
        }
    }
}

/// Numbers in a file.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Numbers {
    /// Where they begin, in bytes.
    pub offset: u64,
    /// Their format.
    pub dtype: Stored,
}

impl Numbers {
    /// Reads the numbers from `first` on, until `out` is full; `raw` is scratch.
    pub fn read(
        self,
        file: &File,
        first: u64,
        out: &mut [f32],
        raw: &mut Vec<u8>,
    ) -> std::io::Result<()> {
        let width = self.dtype.bytes();
        raw.resize(out.len() * width as usize, 0);
        file.read_exact_at(raw, self.offset + first * width)?;
        self.dtype.decode(raw, out);
        Ok(())
    }
}

/// torch's name of a format.
pub(super) const fn torch_name(dtype: DType) -> &'static str {
    match dtype {
        DType::Fp32 => "float32",
        DType::Fp16 => "float16",
        DType::Bf16 => "bfloat16",
    }
}

/// Little-endian numbers in `dtype`, rounded to nearest even.
pub(crate) fn encode(dtype: DType, values: &[f32], out: &mut Vec<u8>) {
    out.clear();
    if dtype == DType::Fp32 {
        out.extend(values.iter().flat_map(|value| value.to_le_bytes()));
        return;
    }
    let mut bits = vec![0_u16; values.len()];
    match dtype {
        DType::Bf16 => kernels::f32_to_bf16(values, &mut bits),
        _ => kernels::f32_to_f16(values, &mut bits),
    }
    out.extend(bits.iter().flat_map(|value| value.to_le_bytes()));
}
