//! From a call of the runtime to launches of a kernel: one for each run of elements with scalars of its own, and one for the
//! padding behind them.

use nearfield_runtime::device::BOUNDS_CHUNK;
use nearfield_runtime::kernels::{Dither, Scalars, Segment, UpdateSums};
use nearfield_runtime::types::{DType, Optimizer};
use nearfield_runtime::{Error, Result};

use crate::interface::KernelInterface;

/// Elements to whose multiples launches are rounded: a word of 512 bits of a 16-bit format.
pub const GRAIN: u64 = 32;

/// Elements of one pass of the dataflow, and of one entry of the table of pairs.
pub const CHUNK: u64 = BOUNDS_CHUNK;

/// The value of an argument that is not memory.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Scalar {
    /// 32 bits.
    U32(u32),
    /// 64 bits.
    U64(u64),
    /// fp32.
    F32(f32),
}

impl Scalar {
    /// Its bits, from the lowest.
    pub const fn bits(self) -> u64 {
        match self {
            Self::U32(value) => value as u64,
            Self::U64(value) => value,
            Self::F32(value) => value.to_bits() as u64,
        }
    }
}

const fn rule(optimizer: Optimizer) -> u32 {
    match optimizer {
        Optimizer::Adamw => 1,
        Optimizer::Adam => 2,
        Optimizer::Adagrad => 3,
        Optimizer::SgdMomentum => 4,
    }
}

const fn format(dtype: DType) -> u32 {
    match dtype {
        DType::Fp32 => 1,
        DType::Fp16 => 2,
        DType::Bf16 => 3,
    }
}

/// What the launches of one call have in common.
#[derive(Debug, Clone, Copy)]
pub struct Call<'a> {
    /// Update rule.
    pub optimizer: Optimizer,
    /// Consecutive runs with their own hyper-parameters; what follows the last is padding.
    pub segments: &'a [Segment],
    /// Position of the buffers in their subgroup, in elements, a multiple of [`GRAIN`].
    pub first_element: u64,
    /// Elements of the buffers, padding included.
    pub elements: u64,
    /// Number format of a dense gradient.
    pub gradient: Option<DType>,
    /// Number format of the moments.
    pub moments: DType,
    /// The random bits with which moments in bf16 are rounded.
    pub dither: Dither,
    /// Number format of the weights' copy.
    pub weights: Option<DType>,
}

/// One launch: elements `[begin, end)` of the buffers under one set of scalars.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Launch {
    begin: u64,
    end: u64,
    /// `None` for padding, which goes through unchanged.
    scalars: Option<Scalars>,
}

impl Launch {
    /// Elements that it updates or copies.
    pub fn elements(&self) -> u64 {
        self.end - self.begin
    }
}

impl Call<'_> {
    /// The launches of the call, in order.
    ///
    /// # Errors
    /// [`Error::Invalid`] when the segments exceed the buffers, or the buffers do not begin at a multiple of [`GRAIN`].
    pub fn launches(&self) -> Result<Vec<Launch>> {
        if !self.first_element.is_multiple_of(GRAIN) {
            let first = self.first_element;
            return Err(Error::Invalid(format!(
                "a kernel's buffers begin with element {first} of their subgroup, which is not a multiple of {GRAIN}"
            )));
        }
        let mut launches: Vec<Launch> = Vec::with_capacity(self.segments.len() + 1);
        let mut begin = 0;
        for segment in self.segments {
            let end = begin + segment.elements as u64;
            if end > self.elements {
                let elements = self.elements;
                return Err(Error::Invalid(format!(
                    "the segments of an update exceed its buffers of {elements} elements"
                )));
            }
            if end > begin {
                launches.push(Launch { begin, end, scalars: Some(segment.scalars) });
            }
            begin = end;
        }
        if begin < self.elements {
            launches.push(Launch { begin, end: self.elements, scalars: None });
        }
        Ok(launches)
    }

    /// The value of an argument in a launch; `None` for memory, and for a name that no kernel has.
    pub fn scalar(&self, launch: &Launch, name: &str) -> Option<Scalar> {
        let start = launch.begin / GRAIN * GRAIN;
        let scalar = |of: fn(&Scalars) -> f32| Scalar::F32(launch.scalars.as_ref().map_or(0.0, of));
        Some(match name {
            "start" => Scalar::U64(start),
            "elements" => Scalar::U64(launch.end.next_multiple_of(GRAIN) - start),
            "begin" => Scalar::U64(launch.begin),
            "end" => Scalar::U64(launch.end),
            "first_element" => Scalar::U64(self.first_element),
            "origin" => Scalar::U64(self.dither.origin()),
            // Padding is copied, but moments that the rule does not keep are not there to be copied.
            "rule" => {
                Scalar::U32(rule(self.optimizer) | if launch.scalars.is_none() { COPY } else { 0 })
            }
            "gradient_format" => Scalar::U32(self.gradient.map_or(0, format)),
            "moment_format" => Scalar::U32(format(self.moments)),
            "weights_format" => Scalar::U32(self.weights.map_or(0, format)),
            "key0" => Scalar::U32(self.dither.keys()[0]),
            "key1" => Scalar::U32(self.dither.keys()[1]),
            "unscale" => scalar(|s| s.unscale),
            "beta1" => scalar(|s| s.beta1),
            "one_minus_beta1" => scalar(|s| s.one_minus_beta1),
            "beta2" => scalar(|s| s.beta2),
            "one_minus_beta2" => scalar(|s| s.one_minus_beta2),
            "bias_root" => scalar(|s| s.bias_root),
            "alpha" => scalar(|s| s.alpha),
            "eps" => scalar(|s| s.eps),
            "omega" => scalar(|s| s.omega),
            "decay" => scalar(|s| s.decay),
            _ => return None,
        })
    }

    /// The bits of all arguments of a kernel in a launch, memory from `memory`.
    ///
    /// # Errors
    /// [`Error::Invalid`] for an argument that has no value.
    pub fn slots(
        &self,
        kernel: &KernelInterface,
        launch: &Launch,
        memory: &dyn Fn(&str) -> Option<u64>,
    ) -> Result<Vec<u64>> {
        kernel
            .arguments
            .iter()
            .map(|argument| {
                let value = if argument.kind.is_memory() {
                    memory(argument.name)
                } else {
                    self.scalar(launch, argument.name).map(Scalar::bits)
                };
                let (kernel, argument) = (kernel.name, argument.name);
                value.ok_or_else(|| {
                    Error::Invalid(format!("kernel {kernel}: argument {argument} has no value"))
                })
            })
            .collect()
    }
}

/// Set in a rule where elements go through unchanged.
const COPY: u32 = 0x100;

/// Bytes of a result.
pub const RESULT_BYTES: usize = 64;

/// The sums that an update has left in its result, and how many elements or pairs it has counted.
pub fn sums(result: &[u8; RESULT_BYTES]) -> (UpdateSums, u64) {
    let (numbers, _) = result.as_chunks::<8>();
    let [gradient_in, param_in, m_in, v_in, param_out, m_out, v_out, counted] =
        std::array::from_fn(|index| u64::from_le_bytes(numbers[index]));
    (UpdateSums { gradient_in, param_in, m_in, v_in, param_out, m_out, v_out }, counted)
}
