//! Cards, memory, kernels and runs.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::collections::{BTreeSet, HashMap};
use std::ffi::{c_int, c_void};
use std::sync::{Arc, Condvar, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nearfield_hls::interface::{Argument, KERNELS, KernelInterface, Kind};
use nearfield_hls::native;

use crate::faults::{Call, Fault, Play, VARIABLE};

const COMPLETED: c_int = 4;
/// What the card's memory holds before anything was brought there.
const UNTOUCHED: u8 = 0xee;

static PLAY: LazyLock<Play> = LazyLock::new(|| {
    let text = std::env::var(VARIABLE).unwrap_or_default();
    Play::parse(&text).unwrap_or_else(|item| {
        eprintln!("look-alike of XRT: {VARIABLE} has {item:?}, which is no item");
        std::process::abort()
    })
});
static OPEN: Mutex<BTreeSet<u32>> = Mutex::new(BTreeSet::new());

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A card that is open.
#[derive(Debug)]
pub struct Card {
    index: u32,
    /// How often each call was made.
    calls: Mutex<HashMap<u8, u64>>,
    /// Bytes in use of each bank.
    used: Mutex<[usize; 2]>,
}

impl Card {
    /// Opens a card, or says why not.
    pub fn open(index: u32) -> Result<Arc<Self>, c_int> {
        if index >= PLAY.cards {
            return Err(libc::ENODEV);
        }
        if !locked(&OPEN).insert(index) {
            return Err(libc::EBUSY);
        }
        Ok(Arc::new(Self { index, calls: Mutex::default(), used: Mutex::default() }))
    }

    /// Closes it. What was not freed before is said.
    pub fn close(self: Arc<Self>) {
        let left = Arc::strong_count(&self) - 1;
        if left > 0 {
            eprintln!("look-alike of XRT: card {} is closed with {left} objects left", self.index);
        }
        locked(&OPEN).remove(&self.index);
    }

    /// Counts a call, and gives its fault.
    pub fn fault(&self, call: Call) -> Option<Fault> {
        let mut calls = locked(&self.calls);
        let count = calls.entry(call as u8).or_default();
        *count += 1;
        let hit = |rule: &&crate::faults::Rule| {
            rule.card == self.index && rule.call == call && rule.nth == *count
        };
        PLAY.rules.iter().find(hit).map(|rule| rule.fault)
    }
}

/// Whole pages of memory.
#[derive(Debug)]
struct Pages {
    start: *mut u8,
    layout: Layout,
}

// SAFETY: plain memory; who uses it is up to the callers, as on a card.
unsafe impl Send for Pages {}
// SAFETY: as above.
unsafe impl Sync for Pages {}

impl Pages {
    fn new(bytes: usize) -> Option<Self> {
        let layout = Layout::from_size_align(bytes.max(1), 4096).ok()?;
        // SAFETY: the layout is not empty.
        let start = unsafe { alloc_zeroed(layout) };
        (!start.is_null()).then_some(Self { start, layout })
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout.
        unsafe { dealloc(self.start, self.layout) };
    }
}

/// Memory of a card.
#[derive(Debug)]
pub struct Buffer {
    owner: Arc<Card>,
    bank: usize,
    bytes: usize,
    memory: Pages,
    /// The host's own copy, where it does not reach the card's memory.
    copy: Option<Pages>,
}

impl Buffer {
    /// Nothing where the bank does not have as much.
    pub fn new(owner: Arc<Card>, bytes: usize, bank: u32, window: bool) -> Option<Self> {
        let bank = bank as usize;
        let mut used = locked(&owner.used);
        let of_bank = used.get_mut(bank)?;
        let after = of_bank.checked_add(bytes)?;
        if after > PLAY.memory {
            return None;
        }
        let memory = Pages::new(bytes)?;
        let copy = if window { None } else { Some(Pages::new(bytes)?) };
        if !window {
            // SAFETY: as many bytes were allocated.
            unsafe { std::ptr::write_bytes(memory.start, UNTOUCHED, bytes) };
        }
        *of_bank = after;
        drop(used);
        Some(Self { owner, bank, bytes, memory, copy })
    }

    pub fn card(&self) -> &Card {
        &self.owner
    }

    /// Where the host looks.
    pub fn host(&self) -> *mut u8 {
        self.copy.as_ref().unwrap_or(&self.memory).start
    }

    /// Copies a range; says whether it lies in the buffer.
    pub fn sync(&self, to_card: bool, bytes: usize, offset: usize) -> bool {
        if offset.checked_add(bytes).is_none_or(|end| end > self.bytes) {
            return false;
        }
        if let Some(copy) = &self.copy {
            let (from, to) = if to_card { (copy, &self.memory) } else { (&self.memory, copy) };
            // SAFETY: both have as many bytes.
            unsafe {
                let to = to.start.add(offset);
                std::ptr::copy_nonoverlapping(from.start.add(offset), to, bytes);
            }
        }
        true
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        locked(&self.owner.used)[self.bank] -= self.bytes;
    }
}

/// A kernel of a card.
#[derive(Debug)]
pub struct Kernel {
    owner: Arc<Card>,
    interface: &'static KernelInterface,
}

impl Kernel {
    pub fn open(owner: Arc<Card>, name: &str) -> Option<Arc<Self>> {
        let interface = KERNELS.into_iter().find(|kernel| kernel.name == name)?;
        Some(Arc::new(Self { owner, interface }))
    }

    pub fn argument(&self, number: c_int) -> Option<&'static Argument> {
        self.interface.arguments.get(usize::try_from(number).ok()?)
    }

    pub fn run(&self) -> Run {
        Run {
            owner: Arc::clone(&self.owner),
            interface: self.interface,
            slots: Mutex::new(vec![None; self.interface.arguments.len()]),
            progress: Arc::default(),
        }
    }
}

/// State of a run; nothing while it is under way.
type Progress = (Mutex<Option<c_int>>, Condvar);

/// A run that is used again and again.
#[derive(Debug)]
pub struct Run {
    owner: Arc<Card>,
    interface: &'static KernelInterface,
    slots: Mutex<Vec<Option<u64>>>,
    progress: Arc<Progress>,
}

impl Run {
    /// Sets an argument; nothing where there is no such one, or a buffer lies in the wrong bank.
    ///
    /// # Safety
    /// Where the argument is memory, `bits` is an open buffer's handle.
    pub unsafe fn set(&self, number: c_int, bits: u64, float: f64) -> Option<()> {
        let number = usize::try_from(number).ok()?;
        let argument = self.interface.arguments.get(number)?;
        let value = match argument.kind {
            Kind::Read | Kind::Write => {
                // SAFETY: the caller's promise.
                let buffer = unsafe { &*(bits as *const c_void).cast::<Buffer>() };
                let same = std::ptr::eq(Arc::as_ptr(&buffer.owner), Arc::as_ptr(&self.owner));
                if !same || buffer.bank != usize::from(argument.on_drive) {
                    return None;
                }
                buffer.memory.start as u64
            }
            Kind::U32 => bits & u64::from(u32::MAX),
            Kind::U64 => bits,
            Kind::F32 => u64::from((float as f32).to_bits()),
        };
        locked(&self.slots)[number] = Some(value);
        Some(())
    }

    /// Starts the kernel in a thread of its own.
    ///
    /// # Safety
    /// The kernel stays within the buffers, which stay open until it has ended.
    pub unsafe fn start(&self) -> Result<(), c_int> {
        let slots: Option<Vec<u64>> = locked(&self.slots).iter().copied().collect();
        let slots = slots.ok_or(libc::EINVAL)?;
        let fault = self.owner.fault(Call::Run);
        if fault == Some(Fault::Fail) {
            return Err(libc::EIO);
        }
        *locked(&self.progress.0) = None;
        let (progress, interface) = (Arc::clone(&self.progress), self.interface);
        std::thread::spawn(move || {
            let state = match fault {
                Some(Fault::Hang) => return,
                Some(Fault::Skip) => COMPLETED,
                Some(Fault::State(state)) => state,
                other => {
                    if let Some(Fault::Slow(milliseconds)) = other {
                        std::thread::sleep(Duration::from_millis(milliseconds));
                    }
                    // SAFETY: the caller's promise.
                    match unsafe { native::run(interface, &slots) } {
                        Ok(()) => COMPLETED,
                        Err(error) => {
                            eprintln!("look-alike of XRT: {error}");
                            std::process::abort()
                        }
                    }
                }
            };
            *locked(&progress.0) = Some(state);
            progress.1.notify_all();
        });
        Ok(())
    }

    /// Waits for the end; nothing when it takes longer than `limit`.
    pub fn wait(&self, limit: Duration) -> Option<c_int> {
        let under_way = |state: &mut Option<c_int>| state.is_none();
        let ended = self.progress.1.wait_timeout_while(locked(&self.progress.0), limit, under_way);
        *ended.unwrap_or_else(PoisonError::into_inner).0
    }
}
