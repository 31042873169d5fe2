//! Kernels and their runs.

use std::ffi::{CString, c_int, c_uint};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::card::{Buffer, Card, Inner};
use super::error::XrtError;
use super::sys::{COMPLETED, Handle, UNDER_WAY};

/// The value of an argument.
#[derive(Debug, Clone, Copy)]
pub enum Value<'a> {
    /// Memory of the kernel's card.
    Buffer(&'a Buffer),
    /// 32 bits.
    U32(u32),
    /// 64 bits.
    U64(u64),
    /// fp32.
    F32(f32),
}

/// A kernel of a card, with one run that is used again and again.
#[derive(Debug)]
pub struct Kernel {
    inner: Arc<Inner>,
    name: String,
    kernel: Handle,
    run: Mutex<Run>,
}

#[derive(Debug)]
struct Run {
    handle: Handle,
    /// Whether a launch has not ended in time: the card may still be at it.
    lost: bool,
}

// SAFETY: XRT's handles may be used from any thread; the run is behind a lock.
unsafe impl Send for Kernel {}
// SAFETY: as above.
unsafe impl Sync for Kernel {}

impl Drop for Kernel {
    fn drop(&mut self) {
        let functions = &self.inner.shared.functions;
        // SAFETY: both handles are this value's alone; the run goes before its kernel, the kernel before its card.
        unsafe {
            (functions.run_close)(self.run.get_mut().handle);
            (functions.kernel_close)(self.kernel);
        }
    }
}

impl Kernel {
    /// The kernel of a name, with one compute unit.
    ///
    /// # Errors
    /// [`XrtError::NoKernel`] when the bitstream has none of that name.
    pub fn open(card: &Card, name: &str) -> Result<Self, XrtError> {
        let inner = Arc::clone(&card.inner);
        let absent = || XrtError::NoKernel { card: inner.index, kernel: name.into() };
        let text = CString::new(name).map_err(|_| absent())?;
        let functions = &inner.shared.functions;
        // SAFETY: the device is open, the identifier has 16 bytes, the name ends with a zero.
        let kernel =
            unsafe { (functions.kernel_open)(inner.device, inner.uuid.as_ptr(), text.as_ptr()) };
        if kernel.is_null() {
            return Err(absent());
        }
        // SAFETY: the kernel is open.
        let handle = unsafe { (functions.run_open)(kernel) };
        if handle.is_null() {
            let error = inner.failed("xrtRunOpen");
            // SAFETY: nothing uses the kernel.
            unsafe { (functions.kernel_close)(kernel) };
            return Err(error);
        }
        let run = Mutex::new(Run { handle, lost: false });
        Ok(Self { inner, name: name.into(), kernel, run })
    }

    /// The group of banks of an argument that is memory.
    ///
    /// # Errors
    /// [`XrtError::Invalid`] when the argument has none.
    pub fn bank(&self, argument: usize) -> Result<u32, XrtError> {
        // SAFETY: the kernel is open; a number without argument gives an error.
        let group = unsafe { (self.inner.shared.functions.group)(self.kernel, argument as c_int) };
        u32::try_from(group).map_err(|_| {
            let what = format!("kernel {}: argument {argument} has no memory", self.name);
            XrtError::Invalid { card: self.inner.index, what }
        })
    }

    /// Runs the kernel and waits for its end. `values` are all arguments by their numbers.
    ///
    /// # Safety
    /// The kernel reads and writes only inside the buffers with these values, and what it writes nothing else uses meanwhile.
    ///
    /// # Errors
    /// [`XrtError::TimedOut`], [`XrtError::Failed`], or what XRT reports.
    pub unsafe fn launch(&self, values: &[Value], limit: Duration) -> Result<(), XrtError> {
        let functions = &self.inner.shared.functions;
        let card = self.inner.index;
        let mut run = self.run.lock();
        if run.lost {
            let what = format!("kernel {} has not ended an earlier run", self.name);
            return Err(XrtError::Invalid { card, what });
        }
        for (number, value) in values.iter().enumerate() {
            let (handle, number) = (run.handle, number as c_int);
            // SAFETY: the run is open, and the kernel's description has this type for the argument. In a list of variable
            // length, fp32 travels as fp64.
            let code = unsafe {
                match *value {
                    Value::Buffer(buffer) => {
                        if buffer.inner.index != card {
                            let what = "a buffer of another card".into();
                            return Err(XrtError::Invalid { card, what });
                        }
                        (functions.set_argument)(handle, number, buffer.handle)
                    }
                    Value::U32(value) => (functions.set_argument)(handle, number, value),
                    Value::U64(value) => (functions.set_argument)(handle, number, value),
                    Value::F32(value) => (functions.set_argument)(handle, number, f64::from(value)),
                }
            };
            if code != 0 {
                return Err(self.inner.failed("xrtRunSetArg"));
            }
        }
        // SAFETY: all arguments are set.
        if unsafe { (functions.run_start)(run.handle) } != 0 {
            return Err(self.inner.failed("xrtRunStart"));
        }
        let begin = Instant::now();
        loop {
            let left = limit.saturating_sub(begin.elapsed());
            let wait = left.as_millis().clamp(1, 1000) as c_uint;
            // SAFETY: the run was started.
            let state = unsafe { (functions.run_wait)(run.handle, wait) };
            let kernel = || self.name.clone();
            if state == COMPLETED {
                return Ok(());
            }
            if !UNDER_WAY.contains(&state) {
                return Err(XrtError::Failed { card, kernel: kernel(), state });
            }
            if left.is_zero() {
                run.lost = true;
                return Err(XrtError::TimedOut {
                    card,
                    kernel: kernel(),
                    seconds: limit.as_secs(),
                });
            }
        }
    }
}
