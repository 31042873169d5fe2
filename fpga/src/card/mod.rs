//! An emulated card: the process that XRT's software emulation starts and talks to, with the kernels of this program compiled for
//! the CPU.
//!
//! Where something is wrong that a card would not survive, the process aborts. XRT then ends the host.

mod memory;
mod messages;
mod unit;

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use prost::Message;

use crate::xclbin::{UNIT_RANGE, unit_base};
use memory::Memory;
use messages::{
    Allocate, Allocated, Answer, Close, Copied, Free, FromCard, HEADER_BYTES, Load, Registers,
    ToCard, api,
};
use unit::{DONE, Unit};

/// Environment variable: bytes of the bank that drives do not touch. Buffers there get no shared memory, so that a host that
/// forgets to bring them up to date is found out.
pub const HOST_BANK_BYTES: &str = "NEARFIELD_CARD_HOST_BANK_BYTES";
/// Environment variable: the run, counted from 1 over all kernels, in which the process aborts.
pub const ABORT_IN_RUN: &str = "NEARFIELD_CARD_ABORT_IN_RUN";

/// Largest body of a request: XRT sends no more than 8 MiB at a time.
const BODY_LIMIT: u64 = 64 << 20;

struct Card {
    memory: Arc<Mutex<Memory>>,
    units: Arc<Mutex<Vec<Unit>>>,
    directory: PathBuf,
    host_bank: u64,
    abort_in_run: Option<u64>,
    runs: u64,
}

/// Plays a card until its host closes it or ends.
///
/// # Errors
/// What goes wrong with the host's socket, and requests that a card cannot answer.
pub fn serve() -> Result<(), String> {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse().ok());
    let memory = Memory::new().map_err(|error| format!("no memory for the card: {error}"))?;
    let mut card = Card {
        memory: Arc::new(Mutex::new(memory)),
        units: Arc::new(Mutex::new(Unit::all())),
        directory: PathBuf::from("/tmp"),
        host_bank: number(HOST_BANK_BYTES).unwrap_or(0),
        abort_in_run: number(ABORT_IN_RUN),
        runs: 0,
    };
    let mut host = connect()?;
    let mut header = [0; HEADER_BYTES];
    let mut body = Vec::new();
    loop {
        // A host that has ended needs no card.
        if host.read_exact(&mut header).is_err() {
            return Ok(());
        }
        let (Some(length), Some(request)) = (u64_at(&header, 1), u32_at(&header, 10)) else {
            return Err("a request without header".into());
        };
        if header[0] != 0x09 || header[9] != 0x15 || length > BODY_LIMIT {
            return Err(format!("a request that is none: {header:x?}"));
        }
        body.resize(length as usize, 0);
        host.read_exact(&mut body).map_err(|error| format!("a request ends early: {error}"))?;
        let (answer, last) = card.answer(request, &body)?;
        let mut reply = vec![0x09];
        reply.extend((answer.len() as u64).to_le_bytes());
        reply.extend(answer);
        host.write_all(&reply).map_err(|error| format!("the host takes no answer: {error}"))?;
        if last {
            return Ok(());
        }
    }
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..at + 8)?.try_into().ok().map(u64::from_le_bytes)
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..at + 4)?.try_into().ok().map(u32::from_le_bytes)
}

/// The host makes the socket after it has started this process.
fn connect() -> Result<UnixStream, String> {
    let name = std::env::var("EMULATION_SOCKETID").map_err(
        |_| "EMULATION_SOCKETID is not set: XRT's software emulation starts this program",
    )?;
    let path = match std::env::var("USER") {
        Ok(user) => format!("/tmp/{user}/{name}"),
        Err(_) => "/tmp/xcl_sock".into(),
    };
    for _ in 0..10_000 {
        if let Ok(stream) = UnixStream::connect(&path) {
            return Ok(stream);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Err(format!("no host listens at {path}"))
}

fn decoded<M: Message + Default>(body: &[u8]) -> Result<M, String> {
    M::decode(body).map_err(|error| format!("a request that cannot be read: {error}"))
}

const fn done() -> Answer {
    Answer { done: true, content: None }
}

impl Card {
    /// The answer to a request, and whether it was the last.
    fn answer(&mut self, request: u32, body: &[u8]) -> Result<(Vec<u8>, bool), String> {
        let mut last = false;
        let answer = match request {
            api::CLOSE => {
                last = decoded::<Close>(body)?.all.unwrap_or(false);
                done().encode_to_vec()
            }
            api::LOAD => {
                let load: Load = decoded(body)?;
                let directory = String::from_utf8(load.directory.unwrap_or_default());
                self.directory = directory.map_err(|_| "a directory that is not text")?.into();
                done().encode_to_vec()
            }
            api::SET_UP => done().encode_to_vec(),
            api::ALLOCATE => self.allocate(&decoded(body)?)?.encode_to_vec(),
            api::FREE => {
                let free: Free = decoded(body)?;
                self.memory.lock().free(free.address.unwrap_or(0));
                done().encode_to_vec()
            }
            api::TO_CARD => {
                let copy: ToCard = decoded(body)?;
                let (address, content) =
                    (copy.address.unwrap_or(0), copy.content.unwrap_or_default());
                if !self.memory.lock().write(address, &content) {
                    return Err(format!("a copy to {address:#x}, where no buffer is"));
                }
                Copied { bytes: content.len() as u64, content: None }.encode_to_vec()
            }
            api::FROM_CARD => {
                let copy: FromCard = decoded(body)?;
                let (address, bytes) = (copy.address.unwrap_or(0), copy.bytes.unwrap_or(0));
                let content = self.memory.lock().read(address, bytes);
                let content = content
                    .ok_or_else(|| format!("a copy from {address:#x}, where no buffer is"))?;
                Copied { bytes, content: Some(content) }.encode_to_vec()
            }
            api::WRITE_REGISTERS => {
                let registers: Registers = decoded(body)?;
                let content = registers.content.unwrap_or_default();
                self.write_registers(registers.address.unwrap_or(0), &content)?;
                done().encode_to_vec()
            }
            api::READ_REGISTERS => {
                let registers: Registers = decoded(body)?;
                let (unit, offset) = unit_at(registers.address.unwrap_or(0))?;
                let value = self.units.lock()[unit].read(offset);
                Answer { done: true, content: Some(value.to_le_bytes().to_vec()) }.encode_to_vec()
            }
            other => return Err(format!("request {other} is not one that this card answers")),
        };
        Ok((answer, last))
    }

    fn allocate(&self, request: &Allocate) -> Result<Allocated, String> {
        let (address, bytes) = (request.address.unwrap_or(0), request.bytes.unwrap_or(0));
        let mut memory = self.memory.lock();
        let done = memory.allocate(address, bytes);
        let shared = request.shared.unwrap_or(false) && address >= self.host_bank;
        let file = if done && shared {
            let path = memory
                .share(&self.directory, address)
                .map_err(|error| format!("memory cannot be shared: {error}"))?;
            Some(path.display().to_string())
        } else {
            None
        };
        Ok(Allocated { done, file })
    }

    fn write_registers(&mut self, address: u64, content: &[u8]) -> Result<(), String> {
        let (place, offset) = unit_at(address)?;
        let mut units = self.units.lock();
        let unit = &mut units[place];
        if !unit.write(offset, content)? {
            return Ok(());
        }
        self.runs += 1;
        if self.abort_in_run == Some(self.runs) {
            return Err(format!("asked to abort in run {}", self.runs));
        }
        let kernel = unit.kernel;
        let slots = unit
            .prepare(&self.memory.lock())
            .map_err(|what| format!("kernel {}: {what}", kernel.name))?;
        let units = Arc::clone(&self.units);
        std::thread::spawn(move || {
            if let Err(error) = unit::run(kernel, &slots) {
                eprintln!("emulated card: {error}");
                std::process::abort();
            }
            units.lock()[place].state = DONE;
        });
        Ok(())
    }
}

/// The unit whose registers have an address, and the place in them.
fn unit_at(address: u64) -> Result<(usize, u64), String> {
    let found = (0..nearfield_hls::interface::KERNELS.len())
        .find(|&unit| (unit_base(unit)..unit_base(unit) + UNIT_RANGE).contains(&address));
    let unit = found.ok_or_else(|| format!("no kernel has registers at {address:#x}"))?;
    Ok((unit, address - unit_base(unit)))
}
