//! What the kernels cost on an FPGA: cycles and memory traffic, from how often their loops run.
//!
//! Every loop is pipelined to take one pass a cycle, and the processes of the dataflow run side by side. So a pass of the
//! dataflow lasts as many cycles as its longest loop has passes, and a pipeline to fill: as long as no port waits for the
//! memory. The memory is a second limit, the bytes of all bursts over its rate. How many cycles a pipeline takes to fill, and
//! whether the clock is reached, only synthesis can tell: [`FILL_CYCLES`] is an assumption.

/// Names of the loops whose passes are counted, in the order of `kernels/loops.hpp`.
pub const LOOPS: [&str; 25] = [
    "load gradient",
    "load param",
    "load exp_avg",
    "load exp_avg_sq",
    "unpack gradient",
    "unpack param",
    "unpack exp_avg",
    "unpack exp_avg_sq",
    "compute",
    "pack param",
    "pack exp_avg",
    "pack exp_avg_sq",
    "pack weights",
    "store param",
    "store exp_avg",
    "store exp_avg_sq",
    "store weights",
    "load indices",
    "load values",
    "merge",
    "join",
    "fill",
    "check",
    "bounds",
    "store bounds",
];

/// Bytes of a word on every port.
pub const WORD_BYTES: u64 = 64;
/// Cycles that the deepest pipeline, that of the arithmetic, is taken to need before its first result: two additions, four
/// multiplications, a root and a division of fp32 in a row, at about 300 MHz.
pub const FILL_CYCLES: u64 = 120;
/// Clock of the SmartSSD's platform, in Hz.
pub const CLOCK_HERTZ: f64 = 300e6;
/// DDR4-2400 of 64 bits, in bytes a second.
pub const MEMORY_BYTES_PER_SECOND: f64 = 19.2e9;

/// How often loops have run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Counts {
    /// Passes of each of [`LOOPS`].
    pub passes: [u64; LOOPS.len()],
    /// Passes of the dataflow.
    pub chunks: u64,
    /// Passes of the longest loop of each pass of the dataflow, added up.
    pub longest: u64,
}

/// What limits a kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limit {
    /// A port: a word a cycle.
    Port,
    /// A loop between the ports.
    Pipeline,
    /// The memory behind the ports.
    Memory,
}

impl Limit {
    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Port => "port",
            Self::Pipeline => "pipeline",
            Self::Memory => "memory",
        }
    }
}

impl Counts {
    /// Cycles, where the memory is no limit.
    pub const fn cycles(&self) -> u64 {
        self.longest + self.chunks * FILL_CYCLES
    }

    /// Bytes read from memory and written to it in bursts of words. Result words and the table of a check of pairs are few.
    pub fn memory_bytes(&self) -> u64 {
        self.bursts().map(|(_, passes)| passes * WORD_BYTES).sum()
    }

    fn bursts(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let all = LOOPS.into_iter().zip(self.passes);
        all.filter(|(name, _)| name.starts_with("load") || name.starts_with("store"))
    }

    /// Seconds at a clock and a rate of memory.
    pub fn seconds(&self, clock_hertz: f64, memory_bytes_per_second: f64) -> f64 {
        let memory = self.memory_bytes() as f64 / memory_bytes_per_second;
        (self.cycles() as f64 / clock_hertz).max(memory)
    }

    /// What limits the kernel there.
    pub fn limit(&self, clock_hertz: f64, memory_bytes_per_second: f64) -> Limit {
        if self.memory_bytes() as f64 / memory_bytes_per_second
            >= self.cycles() as f64 / clock_hertz
        {
            return Limit::Memory;
        }
        let longest = self.passes.iter().copied().max().unwrap_or(0);
        let port = self.bursts().map(|(_, passes)| passes).max().unwrap_or(0);
        if port == longest { Limit::Port } else { Limit::Pipeline }
    }

    /// The loop with the most passes.
    pub fn longest_loop(&self) -> &'static str {
        let all = LOOPS.into_iter().zip(self.passes);
        all.max_by_key(|(_, passes)| *passes).map_or("", |(name, _)| name)
    }
}

/// Seconds of the paper's kernels on `elements` elements, `pairs` of them kept, by their structure (Smart-Infinity, section 6):
/// reading, updating and writing take turns; kept pairs are first expanded over a port that is one element wide.
pub fn paper_seconds(
    elements: u64,
    pairs: Option<u64>,
    clock_hertz: f64,
    memory_bytes_per_second: f64,
) -> f64 {
    let elements = elements as f64;
    let Some(pairs) = pairs else {
        let cycles = elements * 7.5 / 16.0;
        return (cycles / clock_hertz).max(30.0 * elements / memory_bytes_per_second);
    };
    // Zeros a word a cycle, the better of two readings; a cycle for each pair; the gradient element by element.
    let cycles = elements / 16.0 + pairs as f64 + elements + elements * 6.5 / 16.0;
    cycles / clock_hertz
}
