//! A look-alike of XRT's library for tests: it exports the C functions that Nearfield calls, runs the kernels' sources on the CPU,
//! and fails on demand. It shows what XRT's software emulation cannot: runs that never end or fail, cards and kernels that are
//! missing, memory that is refused.
//!
//! It is not XRT, and nothing of XRT is in it. The environment variable `NEARFIELD_LOOKALIKE` lists what it plays, see
//! [`faults::Play`].

pub mod faults;
mod objects;

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::Arc;
use std::time::Duration;

use faults::{Call, Fault};
use objects::{Buffer, Card, Kernel, Run};

/// `ERT_CMD_STATE_TIMEOUT`: the wait has ended, not the run.
const STILL_UNDER_WAY: c_int = 8;
const P2P: u64 = 1 << 30;

fn refuse(errno: c_int) {
    // SAFETY: the number belongs to this thread.
    unsafe { *libc::__errno_location() = errno };
}

fn handle<T>(value: Arc<T>) -> *mut c_void {
    Arc::into_raw(value).cast_mut().cast()
}

/// What a handle stands for, which stays open.
///
/// # Safety
/// The handle came from [`handle`] with this type and is not closed.
unsafe fn of<'a, T>(handle: *mut c_void) -> &'a T {
    // SAFETY: the caller's promise.
    unsafe { &*handle.cast::<T>() }
}

/// What a handle stands for, which is closed.
///
/// # Safety
/// As [`of`], and the handle is not used again.
unsafe fn taken<T>(handle: *mut c_void) -> Arc<T> {
    // SAFETY: the caller's promise.
    unsafe { Arc::from_raw(handle.cast::<T>()) }
}

/// A card at which others hold on as well.
///
/// # Safety
/// As [`of`].
unsafe fn shared(handle: *mut c_void) -> Arc<Card> {
    // SAFETY: the caller's promise; the count of the handle itself stays.
    unsafe {
        Arc::increment_strong_count(handle.cast::<Card>());
        Arc::from_raw(handle.cast::<Card>())
    }
}

/// Acts out a fault of a call that is no run; says whether the call fails.
fn fails(card: &Card, call: Call) -> bool {
    match card.fault(call) {
        None => false,
        Some(Fault::Hang) => loop {
            std::thread::sleep(Duration::from_secs(3600));
        },
        Some(Fault::Slow(milliseconds)) => {
            std::thread::sleep(Duration::from_millis(milliseconds));
            false
        }
        Some(_) => {
            refuse(libc::EIO);
            true
        }
    }
}

fn open(index: u32) -> *mut c_void {
    match Card::open(index) {
        Err(errno) => {
            refuse(errno);
            std::ptr::null_mut()
        }
        Ok(card) if fails(&card, Call::Open) => std::ptr::null_mut(),
        Ok(card) => handle(card),
    }
}

/// Opens the card at a place in the list.
#[unsafe(no_mangle)]
pub extern "C" fn xrtDeviceOpen(index: c_uint) -> *mut c_void {
    open(index)
}

/// Opens the card at a PCI address: card `i` has bus `16 + i`.
///
/// # Safety
/// The text ends with a zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xrtDeviceOpenByBDF(address: *const c_char) -> *mut c_void {
    // SAFETY: the caller's promise.
    let address = unsafe { CStr::from_ptr(address) }.to_string_lossy().into_owned();
    let bus = address.strip_prefix("0000:").and_then(|rest| rest.strip_suffix(":00.1"));
    let index = bus.and_then(|bus| u32::from_str_radix(bus, 16).ok()?.checked_sub(16));
    open(index.unwrap_or(u32::MAX))
}

/// Closes a card.
///
/// # Safety
/// The handle is an open card's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xrtDeviceClose(device: *mut c_void) -> c_int {
    // SAFETY: the caller's promise.
    let card = unsafe { taken::<Card>(device) };
    if fails(&card, Call::Close) {
        return -1;
    }
    card.close();
    0
}

/// Takes any file that is there.
///
/// # Safety
/// The handle is an open card's, the path ends with a zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xrtDeviceLoadXclbinFile(
    device: *mut c_void,
    path: *const c_char,
) -> c_int {
    // SAFETY: the caller's promise.
    let (card, path) = unsafe { (of::<Card>(device), CStr::from_ptr(path)) };
    if fails(card, Call::Load) {
        return -1;
    }
    match std::fs::metadata(path.to_string_lossy().as_ref()) {
        Ok(_) => 0,
        Err(error) => {
            refuse(error.raw_os_error().unwrap_or(libc::EINVAL));
            -1
        }
    }
}

/// Always the same identifier.
///
/// # Safety
/// `uuid` has room for 16 bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xrtDeviceGetXclbinUUID(_device: *mut c_void, uuid: *mut u8) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { std::ptr::write_bytes(uuid, 7, 16) };
    0
}

/// Opens a kernel by its name.
///
/// # Safety
/// The handle is an open card's, the name ends with a zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xrtPLKernelOpen(
    device: *mut c_void,
    _uuid: *const u8,
    name: *const c_char,
) -> *mut c_void {
    // SAFETY: the caller's promise.
    let (card, name) = unsafe { (shared(device), CStr::from_ptr(name)) };
    let failed = fails(&card, Call::Kernel);
    match Kernel::open(card, &name.to_string_lossy()) {
        Some(kernel) if !failed => handle(kernel),
        _ => {
            refuse(libc::ENOENT);
            std::ptr::null_mut()
        }
    }
}

/// Closes a kernel.
///
/// # Safety
/// The handle is an open kernel's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xrtKernelClose(kernel: *mut c_void) -> c_int {
    // SAFETY: the caller's promise.
    drop(unsafe { taken::<Kernel>(kernel) });
    0
}

/// Bank 1 for memory that drives reach, 0 for other memory.
///
/// # Safety
/// The handle is an open kernel's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xrtKernelArgGroupId(kernel: *mut c_void, argument: c_int) -> c_int {
    // SAFETY: the caller's promise.
    let kernel = unsafe { of::<Kernel>(kernel) };
    match kernel.argument(argument) {
        Some(argument) if argument.kind.is_memory() => c_int::from(argument.on_drive),
        _ => {
            refuse(libc::EINVAL);
            -1
        }
    }
}

/// A run of a kernel.
///
/// # Safety
/// The handle is an open kernel's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xrtRunOpen(kernel: *mut c_void) -> *mut c_void {
    // SAFETY: the caller's promise.
    handle(Arc::new(unsafe { of::<Kernel>(kernel) }.run()))
}

/// Closes a run.
///
/// # Safety
/// The handle is an open run's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xrtRunClose(run: *mut c_void) -> c_int {
    // SAFETY: the caller's promise.
    drop(unsafe { taken::<Run>(run) });
    0
}

/// Sets an argument.
///
/// XRT's function takes a variable number of arguments, which stable Rust cannot define. By the calling conventions of Linux on
/// x86-64 and on 64-bit ARM, the value is where the third parameter would be, or the first one of floating point.
///
/// # Safety
/// The handle is an open run's, and the value is of the argument's type.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xrtRunSetArg(
    run: *mut c_void,
    number: c_int,
    bits: u64,
    float: f64,
) -> c_int {
    // SAFETY: the caller's promise.
    let run = unsafe { of::<Run>(run) };
    // SAFETY: as above; where the argument is memory, the value is an open buffer's handle.
    match unsafe { run.set(number, bits, float) } {
        Some(()) => 0,
        None => {
            refuse(libc::EINVAL);
            -1
        }
    }
}

/// Starts a run.
///
/// # Safety
/// The handle is an open run's with all its arguments, and what the kernel touches stays open until it has ended.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xrtRunStart(run: *mut c_void) -> c_int {
    // SAFETY: the caller's promise.
    let run = unsafe { of::<Run>(run) };
    // SAFETY: as above.
    match unsafe { run.start() } {
        Ok(()) => 0,
        Err(errno) => {
            refuse(errno);
            -1
        }
    }
}

/// Waits for the end of a run, at most so many milliseconds.
///
/// # Safety
/// The handle is a started run's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xrtRunWaitFor(run: *mut c_void, milliseconds: c_uint) -> c_int {
    // SAFETY: the caller's promise.
    let run = unsafe { of::<Run>(run) };
    run.wait(Duration::from_millis(milliseconds.into())).unwrap_or(STILL_UNDER_WAY)
}

/// Allocates memory of a card.
///
/// # Safety
/// The handle is an open card's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xrtBOAlloc(
    device: *mut c_void,
    bytes: usize,
    flags: u64,
    bank: c_uint,
) -> *mut c_void {
    // SAFETY: the caller's promise.
    let card = unsafe { shared(device) };
    let window = flags & P2P != 0;
    if fails(&card, if window { Call::Window } else { Call::Allocate }) {
        return std::ptr::null_mut();
    }
    match Buffer::new(card, bytes, bank, window) {
        Some(buffer) => handle(Arc::new(buffer)),
        // XRT gives no reason here.
        None => std::ptr::null_mut(),
    }
}

/// Frees memory.
///
/// # Safety
/// The handle is an open buffer's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xrtBOFree(buffer: *mut c_void) -> c_int {
    // SAFETY: the caller's promise.
    drop(unsafe { taken::<Buffer>(buffer) });
    0
}

/// Memory as the host sees it.
///
/// # Safety
/// The handle is an open buffer's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xrtBOMap(buffer: *mut c_void) -> *mut c_void {
    // SAFETY: the caller's promise.
    unsafe { of::<Buffer>(buffer) }.host().cast()
}

/// Copies between the host's memory and the card's.
///
/// # Safety
/// The handle is an open buffer's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xrtBOSync(
    buffer: *mut c_void,
    direction: c_int,
    bytes: usize,
    offset: usize,
) -> c_int {
    // SAFETY: the caller's promise.
    let buffer = unsafe { of::<Buffer>(buffer) };
    if fails(buffer.card(), Call::Sync) {
        return -1;
    }
    if buffer.sync(direction == 0, bytes, offset) {
        0
    } else {
        refuse(libc::EINVAL);
        -1
    }
}
