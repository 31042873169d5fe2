//! A compute unit: its registers, and the run that they start.

use nearfield_hls::interface::{KERNELS, KernelInterface};
use nearfield_hls::launch::{CHUNK, RESULT_BYTES};
use nearfield_hls::native;
use nearfield_runtime::device::pair_bounds_bytes;

use super::memory::Memory;
use crate::xclbin::{FIRST_ARGUMENT, argument_step};

/// Registers of a unit, and what it is doing.
#[derive(Debug, Clone)]
pub struct Unit {
    pub kernel: &'static KernelInterface,
    pub state: u32,
    registers: Vec<u32>,
}

/// A run is under way.
pub const BUSY: u32 = 1;
/// A run has ended, which is said once.
pub const DONE: u32 = 6;
/// Nothing is under way.
pub const IDLE: u32 = 4;

impl Unit {
    /// The units of a card, one of each kernel, in the order of their registers.
    pub fn all() -> Vec<Self> {
        let unit = |kernel: &&'static KernelInterface| {
            let last: u64 = kernel.arguments.iter().map(|a| argument_step(a.kind.bytes())).sum();
            let count = (FIRST_ARGUMENT + last) as usize / 4 + 1;
            Self { kernel, state: IDLE, registers: vec![0; count] }
        };
        KERNELS.iter().map(unit).collect()
    }

    /// Writes registers from `offset` on; says whether that starts a run.
    pub fn write(&mut self, offset: u64, content: &[u8]) -> Result<bool, String> {
        let (words, _) = content.as_chunks::<4>();
        for (number, word) in words.iter().enumerate() {
            let place = offset as usize / 4 + number;
            if place * 4 < FIRST_ARGUMENT as usize {
                continue;
            }
            let register = self.registers.get_mut(place);
            let name = self.kernel.name;
            *register.ok_or_else(|| format!("kernel {name} has no register {place}"))? =
                u32::from_le_bytes(*word);
        }
        let starts = offset == 0 && words.first().is_some_and(|word| word[0] & 1 != 0);
        if starts && self.state == BUSY {
            return Err(format!("kernel {} was started while it runs", self.kernel.name));
        }
        if starts {
            self.state = BUSY;
        }
        Ok(starts)
    }

    /// Reads a register; the end of a run is said once.
    pub fn read(&mut self, offset: u64) -> u32 {
        if offset != 0 {
            return self.registers.get(offset as usize / 4).copied().unwrap_or(0);
        }
        let state = self.state;
        if state == DONE {
            self.state = IDLE;
        }
        state
    }

    /// The bits of all arguments.
    fn arguments(&self) -> Vec<u64> {
        let mut offset = FIRST_ARGUMENT;
        let word = |at: u64| u64::from(self.registers.get(at as usize / 4).copied().unwrap_or(0));
        self.kernel
            .arguments
            .iter()
            .map(|argument| {
                let bytes = argument.kind.bytes();
                let value =
                    if bytes == 8 { word(offset) | word(offset + 4) << 32 } else { word(offset) };
                offset += argument_step(bytes);
                value
            })
            .collect()
    }

    /// The run that the registers describe, with addresses of this process: what lies outside the buffers is refused.
    pub fn prepare(&self, memory: &Memory) -> Result<Vec<u64>, String> {
        let values = self.arguments();
        let value = |name: &str| self.kernel.position(name).map_or(0, |place| values[place]);
        let width = |format: u64| match format {
            1 => 4,
            2 | 3 => 2,
            _ => 0,
        };
        let end = value("start").saturating_add(value("elements"));
        let rule = value("rule") & 0xff;
        let moment = width(value("moment_format"));
        let mut slots = values.clone();
        for (slot, argument) in slots.iter_mut().zip(self.kernel.arguments) {
            if !argument.kind.is_memory() {
                continue;
            }
            let bytes = match (self.kernel.name, argument.name) {
                (_, "result") => RESULT_BYTES as u64,
                (_, "gradient") => end.saturating_mul(width(value("gradient_format"))),
                (_, "param_in" | "param_out") => end.saturating_mul(4),
                // AdaGrad keeps no first moment, SGD no second one.
                (_, "exp_avg_in" | "exp_avg_out") if rule == 3 => 0,
                (_, "exp_avg_sq_in" | "exp_avg_sq_out") if rule == 4 => 0,
                (_, "exp_avg_in" | "exp_avg_out" | "exp_avg_sq_in" | "exp_avg_sq_out") => {
                    end.saturating_mul(moment)
                }
                (_, "weights_out") => end.saturating_mul(width(value("weights_format"))),
                ("check_pairs", "indices") => (value("pairs") * 4).next_multiple_of(64),
                ("check_pairs", "bounds") => pair_bounds_bytes(value("elements")),
                (_, "bounds") => pair_bounds_bytes(end.saturating_add(value("first_element"))),
                (_, "indices" | "values") => {
                    let (bounds, first) = (value("bounds"), value("first_element"));
                    let table = memory
                        .read(bounds, pair_bounds_bytes(end.saturating_add(first)))
                        .ok_or("the table of pairs lies outside the buffers")?;
                    let (entries, _) = table.as_chunks::<4>();
                    let from = ((first + value("start")) / CHUNK) as usize;
                    let to = (end + first).div_ceil(CHUNK) as usize;
                    let used = entries[from..=to].iter().map(|entry| u32::from_le_bytes(*entry));
                    (u64::from(used.max().unwrap_or(0)) * 4).next_multiple_of(64)
                }
                (kernel, name) => return Err(format!("kernel {kernel}: {name} is not known")),
            };
            let name = argument.name;
            *slot = match memory.place(*slot, bytes) {
                _ if bytes == 0 => 0,
                Some(place) if (place as u64).is_multiple_of(64) => place as u64,
                Some(_) => return Err(format!("{name} at {slot:#x} is not a multiple of 64")),
                None => {
                    let left = memory.left(*slot);
                    return Err(format!("{name} at {slot:#x}: {bytes} bytes, {left} are there"));
                }
            };
        }
        Ok(slots)
    }
}

/// Runs a kernel on what [`Unit::prepare`] has found.
pub fn run(kernel: &KernelInterface, slots: &[u64]) -> Result<(), String> {
    // SAFETY: every address has as many bytes in a buffer as the kernel touches, as was checked; that no one else uses them is the
    // host's part, as on a card.
    unsafe { native::run(kernel, slots) }.map_err(|error| error.to_string())
}
