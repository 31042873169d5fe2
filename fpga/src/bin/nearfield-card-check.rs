//! Runs the kernels on cards and compares every bit with the CPU's.

use std::fs::OpenOptions;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use nearfield_fpga::device::bind;
use nearfield_fpga::xrt::{Buffer, Card, Kernel, Placement, Xrt};
use nearfield_hls::interface::{CHECK_PAIRS, KernelInterface, UPDATE, UPDATE_TOPK};
use nearfield_hls::launch::{Call, RESULT_BYTES, sums};
use nearfield_hls::native::pairs_check;
use nearfield_runtime::device::{
    CpuKernels, Kernels, Launch, LocalGradient, PairsCheck, pair_bounds_bytes,
};
use nearfield_runtime::kernels::{Dither, Isa, Scalars, Segment, UpdateSums};
use nearfield_runtime::memory::{Arena, Region};
use nearfield_runtime::types::{DType, HyperParameters, Optimizer};

type Error = Box<dyn std::error::Error>;

/// Runs the kernels on cards and compares every bit with the CPU's
#[derive(Debug, Parser)]
#[command(version)]
struct Arguments {
    /// The bitstream
    #[arg(long)]
    bitstream: PathBuf,
    /// Cards, from the first one on
    #[arg(long, default_value_t = 1)]
    cards: u32,
    /// Elements that are updated
    #[arg(long, default_value_t = 300_000)]
    elements: u32,
    /// Share of the gradient that is kept, for the kernels of pairs
    #[arg(long, default_value_t = 0.03)]
    keep: f64,
    /// Folder for a file that is read into the card's memory and written from it
    #[arg(long)]
    folder: Option<PathBuf>,
    /// Seconds that a kernel may take
    #[arg(long, default_value_t = 30)]
    limit: u64,
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<(), Error> {
    let xrt = Xrt::load()?;
    let cards: Vec<Card> = (0..arguments.cards)
        .map(|card| Card::open(&xrt, card, &arguments.bitstream))
        .collect::<Result<_, _>>()?;
    // All cards at once, a thread each: the launches of one must not disturb those of another.
    std::thread::scope(|scope| {
        let threads: Vec<_> = cards
            .iter()
            .map(|card| scope.spawn(|| check(card, arguments).map_err(|error| error.to_string())))
            .collect();
        for thread in threads {
            thread.join().map_err(|_| "a check has panicked")??;
        }
        Ok(())
    })
}

/// Random numbers, the same whatever the machine.
struct Random(u64);

impl Random {
    fn word(&mut self) -> u32 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 32) as u32
    }

    fn value(&mut self, scale: f32) -> f32 {
        (self.word() as f32 / u32::MAX as f32 - 0.5) * 2.0 * scale
    }
}

/// What is checked: an update of one kind.
struct Case {
    optimizer: Optimizer,
    moments: DType,
    elements: usize,
    keep: Option<f64>,
    seed: u64,
}

/// The arrays of a case, as the CPU's kernels take them.
struct Arrays {
    names: [&'static str; 8],
    regions: Vec<Region>,
    pairs: u64,
}

fn region(bytes: u64) -> Result<Region, Error> {
    let bytes = bytes.next_multiple_of(4096).max(4096);
    Ok(Arena::new("check of cards", bytes, false)?.allocate(bytes)?)
}

const NAMES: [&str; 8] =
    ["gradient", "param", "exp_avg", "exp_avg_sq", "weights", "indices", "values", "bounds"];

impl Case {
    fn arrays(&self) -> Result<Arrays, Error> {
        let elements = self.elements as u64;
        let mut random = Random(self.seed);
        let width = self.moments.bytes();
        let bytes = [4, 4, width, width, 2].map(|width| width * elements);
        let mut regions: Vec<Region> = bytes.into_iter().map(region).collect::<Result<_, _>>()?;
        for index in 0..self.elements {
            regions[0].as_f32_mut()[index] = random.value(1.0);
            regions[1].as_f32_mut()[index] = random.value(8.0);
            for (place, scale) in [(2, 0.1), (3, 0.01)] {
                let value = random.value(scale);
                let value = if place == 3 { value.abs() } else { value };
                match self.moments {
                    DType::Bf16 => {
                        regions[place].as_u16_mut()[index] = (value.to_bits() >> 16) as u16;
                    }
                    _ => regions[place].as_f32_mut()[index] = value,
                }
            }
        }
        let keep = self.keep.unwrap_or(0.0) * f64::from(u32::MAX);
        let kept: Vec<u32> =
            (0..elements as u32).filter(|_| f64::from(random.word()) <= keep).collect();
        let (mut indices, mut values) = (region(4 * elements)?, region(4 * elements)?);
        indices.as_u32_mut()[..kept.len()].copy_from_slice(&kept);
        for value in &mut values.as_f32_mut()[..kept.len()] {
            *value = random.value(1.0);
        }
        regions.extend([indices, values, region(pair_bounds_bytes(elements))?]);
        Ok(Arrays { names: NAMES, regions, pairs: kept.len() as u64 })
    }

    fn segments(&self) -> [Segment; 2] {
        let scalars = |lr: f64| {
            let hyper = HyperParameters { lr, weight_decay: 0.01, ..HyperParameters::default() };
            Scalars::new(self.optimizer, &hyper, 3, 0.5)
        };
        // Groups end anywhere, and some padding is left.
        let first = self.elements / 3;
        let second = self.elements - first - (self.elements / 50).min(7);
        [(first, 1e-2), (second, 1e-3)]
            .map(|(elements, lr)| Segment { elements, scalars: scalars(lr) })
    }

    /// On the CPU.
    fn on_host(&self, arrays: &mut Arrays) -> Result<(UpdateSums, Option<PairsCheck>), Error> {
        let kernels = CpuKernels { isa: Isa::detect(), pool: None };
        let [gradient, param, exp_avg, exp_avg_sq, weights, indices, values, bounds] =
            &mut arrays.regions[..]
        else {
            return Err("arrays are missing".into());
        };
        let mut check = None;
        let gradient = match self.keep {
            None => LocalGradient::Dense(gradient, DType::Fp32),
            Some(_) => {
                let (pairs, elements) = (arrays.pairs, self.elements as u64);
                check = Some(kernels.check_pairs(indices, pairs, elements, bounds)?);
                LocalGradient::Pairs { indices, values, bounds, pairs }
            }
        };
        let sums = kernels.update(Launch {
            optimizer: self.optimizer,
            segments: &self.segments(),
            first_element: 0,
            elements: self.elements,
            gradient,
            param,
            exp_avg: (self.optimizer != Optimizer::Adagrad).then_some(exp_avg),
            exp_avg_sq: (self.optimizer != Optimizer::SgdMomentum).then_some(exp_avg_sq),
            moments: self.moments,
            dither: Dither::new(7, 4096),
            weights: Some((weights, DType::Fp16)),
        })?;
        Ok((sums, check))
    }
}

/// The buffer that an argument is bound to.
fn bound(argument: &str) -> &str {
    match argument {
        "weights_out" => "weights",
        other => other.trim_end_matches("_in").trim_end_matches("_out"),
    }
}

/// A kernel of a card, and what it is called with.
struct Bound {
    kernel: Kernel,
    interface: &'static KernelInterface,
}

impl Bound {
    fn open(card: &Card, interface: &'static KernelInterface) -> Result<Self, Error> {
        Ok(Self { kernel: Kernel::open(card, interface.name)?, interface })
    }

    fn launch(
        &self,
        buffers: &[(&str, Buffer)],
        scalar: &dyn Fn(&str) -> Option<u64>,
        limit: Duration,
    ) -> Result<(), Error> {
        let buffer = |name: &str| {
            let found = buffers.iter().find(|(buffer, _)| *buffer == bound(name));
            found.map(|(_, buffer)| buffer)
        };
        let values = bind(self.interface, &buffer, scalar)?;
        // SAFETY: buffers are as long as the arrays of the case, in whole pages, and nothing else uses them.
        unsafe { self.kernel.launch(&values, limit)? };
        Ok(())
    }
}

fn check(card: &Card, arguments: &Arguments) -> Result<(), Error> {
    let limit = Duration::from_secs(arguments.limit);
    let [update, update_topk, check_pairs] =
        [&UPDATE, &UPDATE_TOPK, &CHECK_PAIRS].map(|interface| Bound::open(card, interface));
    let (update, update_topk, check_pairs) = (update?, update_topk?, check_pairs?);
    let rules = [Optimizer::Adamw, Optimizer::Adam, Optimizer::Adagrad, Optimizer::SgdMomentum];
    for (number, optimizer) in rules.into_iter().enumerate() {
        for keep in [None, Some(arguments.keep)] {
            let moments = if number % 2 == 0 { DType::Fp32 } else { DType::Bf16 };
            let elements = arguments.elements as usize;
            let seed = u64::from(card.index()) * 100 + number as u64;
            let case = Case { optimizer, moments, elements, keep, seed };
            let given = case.arrays()?;
            let mut expected = case.arrays()?;
            let (expected_sums, expected_check) = case.on_host(&mut expected)?;
            let main = if keep.is_some() { &update_topk } else { &update };
            let mut buffers = Vec::new();
            let sized = given.names.iter().zip(&given.regions);
            for (name, region) in sized {
                let placed = [&UPDATE, &UPDATE_TOPK]
                    .into_iter()
                    .zip([&update, &update_topk])
                    .find_map(|(interface, kernel)| {
                        let place =
                            interface.arguments.iter().position(|a| bound(a.name) == *name)?;
                        Some((interface.arguments[place], kernel.kernel.bank(place)))
                    });
                let (argument, bank) = placed.ok_or("an array without argument")?;
                let placement = if argument.on_drive { Placement::Bus } else { Placement::Card };
                let mut buffer = card.allocate(region.len(), bank?, placement)?;
                through_file(card, arguments.folder.as_deref(), &mut buffer, placement, region)?;
                buffer.to_card(region.len(), 0)?;
                buffers.push((*name, buffer));
            }
            let place = UPDATE.position("result").ok_or("no result")?;
            let bank = update.kernel.bank(place)?;
            buffers.push(("result", card.allocate(4096, bank, Placement::Card)?));
            let result = |buffers: &mut Vec<(&str, Buffer)>| -> Result<[u8; RESULT_BYTES], Error> {
                let (_, buffer) = buffers.last_mut().ok_or("no result")?;
                buffer.from_card(RESULT_BYTES, 0)?;
                Ok(buffer.as_slice()[..RESULT_BYTES].try_into()?)
            };
            if let Some(expected) = expected_check {
                let scalar = |name: &str| match name {
                    "pairs" => Some(given.pairs),
                    "elements" => Some(elements as u64),
                    _ => None,
                };
                check_pairs.launch(&buffers, &scalar, limit)?;
                if pairs_check(&result(&mut buffers)?) != expected {
                    return Err("check_pairs: another result than the CPU's".into());
                }
            }
            let call = Call {
                optimizer,
                segments: &case.segments(),
                first_element: 0,
                elements: elements as u64,
                gradient: keep.is_none().then_some(DType::Fp32),
                moments,
                dither: Dither::new(7, 4096),
                weights: Some(DType::Fp16),
            };
            let mut total = UpdateSums::default();
            for launch in call.launches()? {
                let scalar = |name: &str| call.scalar(&launch, name).map(|value| value.bits());
                main.launch(&buffers, &scalar, limit)?;
                total.add(&sums(&result(&mut buffers)?).0);
            }
            let title = format!("card {}: {optimizer:?}, {}", card.index(), main.interface.name);
            if total != expected_sums {
                return Err(format!("{title}: other sums than the CPU's").into());
            }
            let width = moments.bytes() as usize;
            let widths = [
                ("param", 1, 4),
                ("exp_avg", 2, width),
                ("exp_avg_sq", 3, width),
                ("weights", 4, 2),
            ];
            for (name, place, width) in widths {
                let (_, buffer) = &mut buffers[place];
                let bytes = elements * width;
                buffer.from_card(bytes, 0)?;
                let found = &buffer.as_slice()[..bytes];
                if let Some(at) = (0..bytes).find(|&at| found[at] != expected.regions[place][at]) {
                    return Err(format!("{title}: {name} differs at element {}", at / width).into());
                }
            }
            println!("{title}: every bit of {elements} elements is the CPU's");
        }
    }
    Ok(())
}

/// Fills a buffer: over a file with direct I/O where a drive reaches it, and back, else by the host.
fn through_file(
    card: &Card,
    folder: Option<&Path>,
    buffer: &mut Buffer,
    placement: Placement,
    content: &[u8],
) -> Result<(), Error> {
    let Some(folder) = folder.filter(|_| placement == Placement::Bus) else {
        buffer.as_mut_slice().copy_from_slice(content);
        return Ok(());
    };
    let path = folder.join(format!("card{}", card.index()));
    std::fs::write(&path, content)?;
    let file =
        OpenOptions::new().read(true).write(true).custom_flags(libc::O_DIRECT).open(&path)?;
    file.read_exact_at(buffer.as_mut_slice(), 0)?;
    file.write_all_at(buffer.as_slice(), 0)?;
    if std::fs::read(&path)? != content {
        return Err("what was written from the card's memory is not what was read into it".into());
    }
    Ok(())
}
