//! The kernels compiled for the CPU: the same sources, run one process of the dataflow after the other.

use nearfield_runtime::device::{
    Kernels, Launch as DeviceLaunch, LocalGradient, PairsCheck, pair_bounds_bytes,
};
use nearfield_runtime::kernels::UpdateSums;
use nearfield_runtime::memory::Region;
use nearfield_runtime::types::DType;
use nearfield_runtime::{Error, Result};

use crate::account::{Counts, LOOPS};
use crate::interface::{CHECK_PAIRS, KernelInterface, UPDATE, UPDATE_TOPK};
use crate::launch::{CHUNK, Call, GRAIN, RESULT_BYTES, sums};

unsafe extern "C" {
    fn nearfield_call_update(slots: *const u64);
    fn nearfield_call_update_topk(slots: *const u64);
    fn nearfield_call_check_pairs(slots: *const u64);
    fn nearfield_take_counts(into: *mut u64, loops: i32);
}

/// Runs a kernel.
///
/// # Safety
/// `slots` has the bits of every argument, and what is memory is as long as the kernel reads and writes: whole words of 64
/// bytes, aligned to 64.
///
/// # Errors
/// [`Error::Invalid`] for a kernel that does not exist, or another number of arguments.
pub unsafe fn run(kernel: &KernelInterface, slots: &[u64]) -> Result<()> {
    let name = kernel.name;
    if slots.len() != kernel.arguments.len() {
        let (wanted, given) = (kernel.arguments.len(), slots.len());
        return Err(Error::Invalid(format!(
            "kernel {name} takes {wanted} arguments, {given} were given"
        )));
    }
    // SAFETY: as this function's.
    unsafe {
        match name {
            "update" => nearfield_call_update(slots.as_ptr()),
            "update_topk" => nearfield_call_update_topk(slots.as_ptr()),
            "check_pairs" => nearfield_call_check_pairs(slots.as_ptr()),
            _ => return Err(Error::Invalid(format!("kernel {name} does not exist"))),
        }
    }
    Ok(())
}

/// How often loops have run in the kernels of this thread since the last call.
pub fn take_counts() -> Counts {
    let mut numbers = [0; LOOPS.len() + 2];
    // SAFETY: as many numbers as the array holds.
    unsafe { nearfield_take_counts(numbers.as_mut_ptr(), LOOPS.len() as i32) };
    let [.., chunks, longest] = numbers;
    let mut passes = [0; LOOPS.len()];
    passes.copy_from_slice(&numbers[..LOOPS.len()]);
    Counts { passes, chunks, longest }
}

/// A word that a kernel writes its result to.
#[repr(C, align(64))]
struct ResultWord([u8; RESULT_BYTES]);

/// The kernels as those of a device.
#[derive(Debug, Clone, Copy, Default)]
pub struct NativeKernels;

/// Checks that `elements` of `bytes` bytes, in whole words, lie within a buffer.
fn checked(region: &Region, elements: u64, bytes: u64, name: &str) -> Result<u64> {
    let needed = (elements * bytes).next_multiple_of(64);
    let address = region.as_ptr() as u64;
    if (region.len() as u64) < needed || !address.is_multiple_of(64) {
        let length = region.len();
        return Err(Error::Invalid(format!(
            "kernel buffer {name}: {length} bytes, {needed} are needed from a multiple of 64"
        )));
    }
    Ok(address)
}

impl Kernels for NativeKernels {
    fn check_pairs(
        &self,
        indices: &Region,
        pairs: u64,
        elements: u64,
        bounds: &mut Region,
    ) -> Result<PairsCheck> {
        let count = u32::try_from(pairs)
            .map_err(|_| Error::Invalid(format!("{pairs} kept pairs are too many for a kernel")))?;
        let mut result = ResultWord([0; RESULT_BYTES]);
        let bounds_bytes = pair_bounds_bytes(elements);
        let slots = [
            checked(indices, pairs, 4, "indices")?,
            checked(bounds, bounds_bytes, 1, "bounds")?,
            (&raw mut result) as u64,
            u64::from(count),
            elements,
        ];
        // SAFETY: the buffers were checked above; `bounds` is borrowed mutably.
        unsafe { run(&CHECK_PAIRS, &slots)? };
        Ok(pairs_check(&result.0))
    }

    fn update(&self, launch: DeviceLaunch<'_>) -> Result<UpdateSums> {
        let DeviceLaunch { optimizer, segments, first_element, moments, dither, .. } = launch;
        let elements = launch.elements as u64;
        let whole = elements.next_multiple_of(GRAIN);
        let mut result = ResultWord([0; RESULT_BYTES]);
        let mut memory: Vec<(&str, u64)> = vec![("result", (&raw mut result) as u64)];
        let (kernel, gradient) = match launch.gradient {
            LocalGradient::Dense(buffer, dtype) => {
                memory.push(("gradient", checked(buffer, whole, dtype.bytes(), "gradient")?));
                (&UPDATE, Some(dtype))
            }
            LocalGradient::Pairs { indices, values, bounds, pairs } => {
                memory.push(("indices", checked(indices, pairs, 4, "indices")?));
                memory.push(("values", checked(values, pairs, 4, "values")?));
                let bytes = pair_bounds_bytes(first_element + elements);
                memory.push(("bounds", checked(bounds, bytes, 1, "bounds")?));
                let table = &bounds.as_u32()[..bytes as usize / 4];
                let used = &table[..=(first_element + elements).div_ceil(CHUNK) as usize];
                if !used.is_sorted() || used.iter().any(|&bound| u64::from(bound) > pairs) {
                    return Err(Error::Invalid(
                        "the kept pairs of an update have not been checked".into(),
                    ));
                }
                (&UPDATE_TOPK, None)
            }
        };
        let width = moments.bytes();
        let states = [
            (["param_in", "param_out"], Some(launch.param), DType::Fp32.bytes()),
            (["exp_avg_in", "exp_avg_out"], launch.exp_avg, width),
            (["exp_avg_sq_in", "exp_avg_sq_out"], launch.exp_avg_sq, width),
        ];
        for (names, region, bytes) in states {
            // A moment that the rule does not keep is not touched.
            let address = match &region {
                Some(region) => checked(region, whole, bytes, names[0])?,
                None => 0,
            };
            memory.extend(names.map(|name| (name, address)));
        }
        let weights = launch.weights.as_ref().map(|(_, dtype)| *dtype);
        let address = match &launch.weights {
            Some((region, dtype)) => checked(region, whole, dtype.bytes(), "weights_out")?,
            None => 0,
        };
        memory.push(("weights_out", address));
        let call = Call {
            optimizer,
            segments,
            first_element,
            elements,
            gradient,
            moments,
            dither,
            weights,
        };
        let mut total = UpdateSums::default();
        for one in call.launches()? {
            let find = |name: &str| memory.iter().find(|(n, _)| *n == name).map(|(_, at)| *at);
            let slots = call.slots(kernel, &one, &find)?;
            // SAFETY: every buffer that the formats name holds `whole` elements, as checked above, and what is written is
            // borrowed mutably; pairs are read as far as the table of their check says.
            unsafe { run(kernel, &slots)? };
            total.add(&sums(&result.0).0);
        }
        Ok(total)
    }
}

/// What `check_pairs` has left in its result.
pub fn pairs_check(result: &[u8; RESULT_BYTES]) -> PairsCheck {
    let (words, _) = result.as_chunks::<4>();
    let word = |index: usize| u32::from_le_bytes(words[index]);
    PairsCheck {
        checksum: u64::from(word(0)) | u64::from(word(1)) << 32,
        first_wrong: (word(2) != u32::MAX).then(|| u64::from(word(2))),
    }
}

/// How many pairs `check_pairs` says to have looked at.
pub fn pairs_counted(result: &[u8; RESULT_BYTES]) -> u64 {
    let (words, _) = result.as_chunks::<4>();
    u64::from(u32::from_le_bytes(words[3]))
}
