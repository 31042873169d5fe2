//! The kernels of a card, called as the runtime calls those of any device.

use std::ops::RangeInclusive;

use nearfield_hls::interface::{CHECK_PAIRS, KERNELS, KernelInterface, UPDATE, UPDATE_TOPK};
use nearfield_hls::launch::{Call, RESULT_BYTES, sums};
use nearfield_hls::native::{pairs_check, pairs_counted};
use nearfield_runtime::device::{
    BufferTable, CheckPairsCall, GradientBuffers, PairsCheck, UpdateCall, pair_bounds_bytes,
};
use nearfield_runtime::kernels::UpdateSums;
use nearfield_runtime::{Error, Result};
use parking_lot::Mutex;

use super::arguments::bind;
use super::buffers::Banks;
use super::work;
use crate::xrt::{Buffer, Card, CardName, Kernel, Placement};

/// Kernels, and the word that they leave results in. One runs at a time.
#[derive(Debug)]
pub struct CardKernels {
    queue: Mutex<Queue>,
    banks: Banks,
}

#[derive(Debug)]
struct Queue {
    kernels: Vec<(&'static KernelInterface, Kernel)>,
    result: Buffer,
    card: CardName,
}

/// What the result holds before a run.
const UNWRITTEN: [u8; RESULT_BYTES] = [0xa5; RESULT_BYTES];

/// Memory of an update by the arguments' names.
type Memory<'a> = [(&'a str, &'a Buffer)];

impl CardKernels {
    /// Opens all kernels, and checks that they agree on the banks.
    pub fn open(card: &Card) -> Result<Self> {
        let mut kernels = Vec::new();
        let mut found: [Option<u32>; 2] = [None, None];
        for interface in KERNELS {
            let kernel = Kernel::open(card, interface.name, interface.arguments.len());
            let kernel = kernel.map_err(work)?;
            for (place, argument) in interface.arguments.iter().enumerate() {
                if !argument.kind.is_memory() {
                    continue;
                }
                let bank = kernel.bank(place).map_err(work)?;
                let known = &mut found[usize::from(argument.on_drive)];
                if known.is_some_and(|known| known != bank) {
                    let (kernel, argument) = (interface.name, argument.name);
                    return Err(Error::Invalid(format!(
                        "card {}: argument {argument} of kernel {kernel} lies in another bank than those like it; \
                         build the bitstream with `make bitstream`",
                        card.name()
                    )));
                }
                *known = Some(bank);
            }
            kernels.push((interface, kernel));
        }
        let [own, drive] = found.map(Option::unwrap_or_default);
        let banks = Banks { drive, kernels: own };
        let result = card.allocate(4096, banks.kernels, Placement::Card).map_err(work)?;
        Ok(Self { queue: Mutex::new(Queue { kernels, result, card: card.name().clone() }), banks })
    }

    pub fn banks(&self) -> Banks {
        self.banks
    }

    pub fn check_pairs(
        &self,
        call: &CheckPairsCall,
        buffers: &BufferTable<Buffer>,
    ) -> Result<PairsCheck> {
        let indices = buffers.read(call.buffers.indices)?;
        let bounds = buffers.write(call.buffers.bounds)?;
        holds(&indices, call.pairs * 4, "indices")?;
        holds(&bounds, pair_bounds_bytes(call.elements), "bounds")?;
        let memory: [(&str, &Buffer); 2] = [("indices", &indices), ("bounds", &bounds)];
        let scalar = |name: &str| match name {
            "pairs" => Some(call.pairs),
            "elements" => Some(call.elements),
            _ => None,
        };
        let mut queue = self.queue.lock();
        // SAFETY: buffers were checked to be long enough, and what is written is locked.
        let result = unsafe { queue.launch(&CHECK_PAIRS, &memory, &scalar)? };
        queue.counted(&CHECK_PAIRS, pairs_counted(&result), call.pairs..=call.pairs)?;
        Ok(pairs_check(&result))
    }

    pub fn update(&self, call: &UpdateCall, buffers: &BufferTable<Buffer>) -> Result<UpdateSums> {
        let param = buffers.write(call.param)?;
        let exp_avg = call.exp_avg.map(|buffer| buffers.write(buffer)).transpose()?;
        let exp_avg_sq = call.exp_avg_sq.map(|buffer| buffers.write(buffer)).transpose()?;
        let weights = call.weights.map(|(buffer, _)| buffers.write(buffer)).transpose()?;
        let (elements, width) = (call.elements, call.moments.bytes());
        holds(&param, 4 * elements, "param")?;
        for (buffer, name) in [(&exp_avg, "exp_avg"), (&exp_avg_sq, "exp_avg_sq")] {
            if let Some(buffer) = buffer {
                holds(buffer, width * elements, name)?;
            }
        }
        if let (Some(buffer), Some((_, dtype))) = (&weights, call.weights) {
            holds(buffer, dtype.bytes() * elements, "weights")?;
        }
        // What a rule does not keep is not touched; XRT wants some memory of the bank for it all the same.
        let first = exp_avg.as_deref().unwrap_or(&param);
        let second = exp_avg_sq.as_deref().unwrap_or(&param);
        let mut memory: Vec<(&str, &Buffer)> = vec![
            ("param_in", &param),
            ("param_out", &param),
            ("exp_avg_in", first),
            ("exp_avg_out", first),
            ("exp_avg_sq_in", second),
            ("exp_avg_sq_out", second),
        ];
        if let Some(weights) = weights.as_deref() {
            memory.push(("weights_out", weights));
        }
        let (dense, indices, values, bounds);
        let (kernel, gradient) = match call.gradient {
            GradientBuffers::Dense(buffer, dtype) => {
                dense = buffers.read(buffer)?;
                holds(&dense, dtype.bytes() * elements, "gradient")?;
                memory.push(("gradient", &dense));
                (&UPDATE, Some(dtype))
            }
            GradientBuffers::Pairs { buffers: pairs, pairs: count } => {
                indices = buffers.read(pairs.indices)?;
                values = buffers.read(pairs.values)?;
                bounds = buffers.read(pairs.bounds)?;
                holds(&indices, 4 * count, "indices")?;
                holds(&values, 4 * count, "values")?;
                holds(&bounds, pair_bounds_bytes(call.first_element + elements), "bounds")?;
                let all: [(&str, &Buffer); 3] =
                    [("indices", &indices), ("values", &values), ("bounds", &bounds)];
                memory.extend(all);
                (&UPDATE_TOPK, None)
            }
        };
        let call = Call {
            optimizer: call.optimizer,
            segments: call.segments,
            first_element: call.first_element,
            elements,
            gradient,
            moments: call.moments,
            dither: call.dither,
            weights: call.weights.map(|(_, dtype)| dtype),
        };
        let mut queue = self.queue.lock();
        let mut total = UpdateSums::default();
        for launch in call.launches()? {
            let scalar = |name: &str| call.scalar(&launch, name).map(|value| value.bits());
            // SAFETY: every buffer holds what the formats name, as checked above; pairs are read as far as the table of their
            // check says, which the device made itself.
            let result = unsafe { queue.launch(kernel, &memory, &scalar)? };
            let (sums, counted) = sums(&result);
            let elements = launch.elements();
            let least = if gradient.is_some() { elements } else { 0 };
            queue.counted(kernel, counted, least..=elements)?;
            total.add(&sums);
        }
        Ok(total)
    }
}

fn holds(buffer: &Buffer, bytes: u64, name: &str) -> Result<()> {
    if buffer.len() as u64 >= bytes.next_multiple_of(64) {
        return Ok(());
    }
    let length = buffer.len();
    Err(Error::Invalid(format!("kernel buffer {name}: {length} bytes, {bytes} are needed")))
}

impl Queue {
    /// Runs a kernel and brings its result to the host. Memory without a buffer is not touched by the launch.
    ///
    /// # Safety
    /// As [`Kernel::launch`].
    unsafe fn launch(
        &mut self,
        interface: &KernelInterface,
        memory: &Memory,
        scalar: &dyn Fn(&str) -> Option<u64>,
    ) -> Result<[u8; RESULT_BYTES]> {
        let found = self.kernels.iter().find(|(known, _)| known.name == interface.name);
        let (_, kernel) =
            found.ok_or_else(|| Error::Invalid("a kernel that is not open".into()))?;
        // A run that writes no result leaves numbers that no run gives.
        self.result.write(0, &UNWRITTEN).map_err(work)?;
        let buffer = |name: &str| {
            let bound = memory.iter().find(|(known, _)| *known == name);
            Some(bound.map_or(&self.result, |(_, buffer)| buffer))
        };
        let values = bind(interface, &buffer, scalar)?;
        // SAFETY: the caller's promise.
        unsafe { kernel.launch(&values) }.map_err(work)?;
        let mut result = [0; RESULT_BYTES];
        self.result.read(0, &mut result).map_err(work)?;
        Ok(result)
    }

    /// Checks what a run says to have counted.
    fn counted(
        &self,
        interface: &KernelInterface,
        counted: u64,
        expected: RangeInclusive<u64>,
    ) -> Result<()> {
        if expected.contains(&counted) {
            return Ok(());
        }
        let (card, kernel) = (&self.card, interface.name);
        let (least, most) = expected.into_inner();
        Err(Error::Invalid(format!(
            "card {card}: kernel {kernel} says that it has worked on {counted} elements or pairs where {least} to {most} were \
             asked for; `nearfield-card-check` compares the card's kernels with the CPU's"
        )))
    }
}
