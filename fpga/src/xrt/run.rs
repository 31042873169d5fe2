//! Kernels and their runs.

use std::ffi::{CString, c_int, c_uint};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::buffer::Buffer;
use super::card::{Card, Inner};
use super::error::XrtError;
use super::sys::{Functions, Handle, attempt, state, zero};

/// Longest wait that XRT is asked for at a time.
const SLICE: Duration = Duration::from_secs(1);

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

/// A value that the card's thread may hold.
#[derive(Debug, Clone, Copy)]
enum Sent {
    Buffer(Handle),
    U32(u32),
    U64(u64),
    F32(f32),
}

/// A kernel of a card, with one run that is used again and again.
#[derive(Debug)]
pub struct Kernel {
    inner: Arc<Inner>,
    name: String,
    arguments: usize,
    kernel: Handle,
    /// Held while it runs.
    run: Mutex<Handle>,
}

impl Drop for Kernel {
    fn drop(&mut self) {
        let (run, kernel) = (*self.run.get_mut(), self.kernel);
        self.inner.discard("xrtKernelClose", move |functions| {
            // SAFETY: both handles are this value's alone; the run goes before its kernel, the kernel before its card.
            unsafe {
                (functions.run_close)(run);
                (functions.kernel_close)(kernel);
            }
        });
    }
}

/// How a run has gone.
enum Outcome {
    Completed,
    /// It was not started.
    Refused(&'static str, String),
    /// The state in which it was left; nothing when the time was over.
    Left(Option<c_int>),
}

impl Kernel {
    /// The kernel of a name, with one compute unit and so many arguments.
    ///
    /// # Errors
    /// [`XrtError::NoKernel`] when the bitstream has none of that name.
    pub fn open(card: &Card, name: &str, arguments: usize) -> Result<Self, XrtError> {
        let inner = Arc::clone(&card.inner);
        let absent = |_| XrtError::NoKernel { card: inner.name.clone(), kernel: name.into() };
        let text = CString::new(name).map_err(|_| absent(String::new()))?;
        let (device, uuid) = (inner.device, inner.uuid);
        let open = move |functions: &Functions| {
            // SAFETY: the device is open, the identifier has 16 bytes, the name ends with a zero.
            unsafe { (functions.kernel_open)(device, uuid.as_ptr(), text.as_ptr()) }.valid()
        };
        let kernel = inner.attempt("xrtPLKernelOpen", inner.limit, open)?;
        let kernel = kernel.map_err(absent)?;
        let run = inner.call("xrtRunOpen", move |functions| {
            // SAFETY: the kernel is open.
            unsafe { (functions.run_open)(kernel) }.valid()
        });
        match run {
            Ok(run) => {
                Ok(Self { inner, name: name.into(), arguments, kernel, run: Mutex::new(run) })
            }
            Err(error) => {
                inner.discard("xrtKernelClose", move |functions| {
                    // SAFETY: nothing uses the kernel.
                    unsafe { (functions.kernel_close)(kernel) };
                });
                Err(error)
            }
        }
    }

    /// The group of banks of an argument that is memory.
    ///
    /// # Errors
    /// [`XrtError::Invalid`] when the argument has none.
    pub fn bank(&self, argument: usize) -> Result<u32, XrtError> {
        let (kernel, name) = (self.kernel, &self.name);
        let group = self.inner.call("xrtKernelArgGroupId", move |functions| {
            // SAFETY: the kernel is open; a number without argument gives an error.
            Some(unsafe { (functions.group)(kernel, argument as c_int) })
        })?;
        u32::try_from(group).map_err(|_| {
            self.inner.invalid(format!("kernel {name}: argument {argument} has no memory"))
        })
    }

    /// Runs the kernel and waits for its end, no longer than the card's limit. `values` are all arguments by their numbers.
    ///
    /// # Safety
    /// The kernel reads and writes only inside the buffers with these values, and what it writes nothing else uses meanwhile. A
    /// card that is given up may go on doing so until it is reset.
    ///
    /// # Errors
    /// [`XrtError::TimedOut`], [`XrtError::Failed`], or what XRT reports.
    pub unsafe fn launch(&self, values: &[Value]) -> Result<(), XrtError> {
        let inner = &self.inner;
        let run = self.run.lock();
        if values.len() != self.arguments {
            let (name, given, wanted) = (&self.name, values.len(), self.arguments);
            return Err(
                inner.invalid(format!("kernel {name}: {given} values for {wanted} arguments"))
            );
        }
        let mut sent = Vec::with_capacity(values.len());
        for value in values {
            sent.push(match *value {
                Value::Buffer(buffer) if !Arc::ptr_eq(&buffer.inner, inner) => {
                    return Err(inner.invalid("a buffer of another card".into()));
                }
                Value::Buffer(buffer) => Sent::Buffer(buffer.handle),
                Value::U32(value) => Sent::U32(value),
                Value::U64(value) => Sent::U64(value),
                Value::F32(value) => Sent::F32(value),
            });
        }
        let (functions, handle, limit) = (inner.functions, *run, inner.limit);
        // SAFETY: the run is open, and the caller has promised the rest.
        let execute = move || unsafe { execute(functions, handle, &sent, limit) };
        let (card, kernel) = (inner.name.clone(), self.name.clone());
        let what = format!("kernel {kernel}");
        match inner.on(&inner.runs, &what, limit, execute)? {
            Outcome::Completed => Ok(()),
            Outcome::Refused(call, reason) => Err(XrtError::Call { card, call, reason }),
            Outcome::Left(Some(state)) if state::FAILED.contains(&state) => {
                Err(XrtError::Failed { card, kernel, state })
            }
            Outcome::Left(Some(state)) => {
                Err(inner.lose(XrtError::Unknown { card, kernel, state }))
            }
            Outcome::Left(None) => {
                let seconds = limit.as_secs();
                Err(inner.lose(XrtError::TimedOut { card, what, seconds }))
            }
        }
    }
}

/// Sets a run's arguments, starts it and waits.
///
/// # Safety
/// The run is open, its kernel has these types of arguments, and it touches only what it may.
unsafe fn execute(functions: &Functions, run: Handle, values: &[Sent], limit: Duration) -> Outcome {
    for (number, value) in values.iter().enumerate() {
        let number = number as c_int;
        // SAFETY: the kernel's description has this type for the argument. In a list of variable length, fp32 travels as fp64.
        let set = attempt(|| unsafe {
            zero(match *value {
                Sent::Buffer(buffer) => (functions.set_argument)(run, number, buffer.0),
                Sent::U32(value) => (functions.set_argument)(run, number, value),
                Sent::U64(value) => (functions.set_argument)(run, number, value),
                Sent::F32(value) => (functions.set_argument)(run, number, f64::from(value)),
            })
        });
        if let Err(reason) = set {
            return Outcome::Refused("xrtRunSetArg", reason);
        }
    }
    // SAFETY: all arguments are set.
    if let Err(reason) = attempt(|| zero(unsafe { (functions.run_start)(run) })) {
        return Outcome::Refused("xrtRunStart", reason);
    }
    let begin = Instant::now();
    loop {
        let left = limit.saturating_sub(begin.elapsed());
        let slice = left.min(SLICE).as_millis().max(1) as c_uint;
        let asked = Instant::now();
        // SAFETY: the run was started.
        let state = unsafe { (functions.run_wait)(run, slice) };
        if state == state::COMPLETED {
            return Outcome::Completed;
        }
        if !state::UNDER_WAY.contains(&state) {
            return Outcome::Left(Some(state));
        }
        if left.is_zero() {
            return Outcome::Left(None);
        }
        if asked.elapsed() < Duration::from_millis(1) {
            // It has not waited.
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}
