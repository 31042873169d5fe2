//! A card: opened once, called in its own threads, given up when a call does not come back.

use std::collections::BTreeSet;
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;

use super::error::XrtError;
use super::library::Xrt;
use super::name::CardName;
use super::signals::Kept;
use super::sys::{Functions, Handle, Uuid, attempt, zero};
use super::worker::Worker;

/// Cards that this program has open. Held while one is opened, loaded or closed: XRT's own software emulation breaks when two
/// threads do so at a time.
static OPEN: Mutex<BTreeSet<CardName>> = Mutex::new(BTreeSet::new());
/// Whether any card was given up.
static ANY_LOST: AtomicBool = AtomicBool::new(false);

/// Whether a card was given up since the program began. Nothing of XRT is closed or freed then, since that may wait for ever; the
/// system does it when the program ends. A program should then end by [`libc::_exit`], without what libraries do at an end.
pub fn any_lost() -> bool {
    ANY_LOST.load(Ordering::Acquire)
}

/// An open card with a bitstream. Kernels and buffers keep it open.
#[derive(Debug, Clone)]
pub struct Card {
    pub(super) inner: Arc<Inner>,
}

#[derive(Debug)]
pub(super) struct Inner {
    pub functions: &'static Functions,
    pub name: CardName,
    pub device: Handle,
    pub uuid: Uuid,
    /// Longest time that a call may take.
    pub limit: Duration,
    /// Makes the calls that start kernels and wait for them.
    pub runs: Worker,
    /// Makes all others, so that copies do not wait for kernels.
    pub copies: Worker,
    lost: OnceLock<String>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        if any_lost() {
            return;
        }
        let (functions, device) = (self.functions, self.device);
        let mut open = OPEN.lock();
        if device.valid().is_some() {
            // SAFETY: the handle is open, and whatever came from it holds this value, so it is gone.
            let close = move || unsafe { (functions.device_close)(device) };
            if self.on(&self.copies, "xrtDeviceClose", self.limit, close).is_err() {
                // The card stays in the list of those in use.
                return;
            }
        }
        open.remove(&self.name);
        drop(open);
        self.runs.end();
        self.copies.end();
    }
}

impl Inner {
    /// Makes a call in one of the card's threads. One that takes longer than `limit` gives the card up.
    pub fn on<T: Send + 'static>(
        &self,
        worker: &Worker,
        what: &str,
        limit: Duration,
        call: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, XrtError> {
        self.usable()?;
        /// Time beyond its own that a wait which ends by itself gets to say so.
        const GRACE: Duration = Duration::from_millis(500);
        worker.call(limit + GRACE, call).ok_or_else(|| {
            self.lose(XrtError::TimedOut {
                card: self.name.clone(),
                what: what.into(),
                seconds: limit.as_secs(),
            })
        })
    }

    /// Makes a call that is no run; where it fails, the inner result says why.
    pub fn attempt<T: Send + 'static>(
        &self,
        what: &'static str,
        limit: Duration,
        call: impl FnOnce(&'static Functions) -> Option<T> + Send + 'static,
    ) -> Result<Result<T, String>, XrtError> {
        let functions = self.functions;
        self.on(&self.copies, what, limit, move || attempt(|| call(functions)))
    }

    /// The same within the card's limit, for a failure that needs no words of its own.
    pub fn call<T: Send + 'static>(
        &self,
        what: &'static str,
        call: impl FnOnce(&'static Functions) -> Option<T> + Send + 'static,
    ) -> Result<T, XrtError> {
        self.attempt(what, self.limit, call)?.map_err(|reason| XrtError::Call {
            card: self.name.clone(),
            call: what,
            reason,
        })
    }

    /// Frees or closes something, unless a card was given up.
    pub fn discard(
        &self,
        what: &'static str,
        call: impl FnOnce(&'static Functions) + Send + 'static,
    ) {
        if !any_lost() {
            // A refusal leaves nothing to be done; a call that hangs has given the card up.
            let _ = self.call(what, move |functions| {
                call(functions);
                Some(())
            });
        }
    }

    fn usable(&self) -> Result<(), XrtError> {
        match self.lost.get() {
            None => Ok(()),
            Some(reason) => Err(XrtError::Lost { card: self.name.clone(), reason: reason.clone() }),
        }
    }

    /// Gives the card up. Other cards go on.
    pub fn lose(&self, error: XrtError) -> XrtError {
        ANY_LOST.store(true, Ordering::Release);
        let _ = self.lost.set(error.to_string());
        error
    }

    pub fn invalid(&self, what: String) -> XrtError {
        XrtError::Invalid { card: self.name.clone(), what }
    }
}

impl Card {
    /// Opens a card and loads a bitstream. No later call to the card may take longer than `limit`.
    ///
    /// # Errors
    /// No such card, one that is open already, or a bitstream that it does not take.
    pub fn open(
        xrt: Xrt,
        name: &CardName,
        bitstream: &Path,
        limit: Duration,
    ) -> Result<Self, XrtError> {
        let card = || name.clone();
        let invalid = |what: &str| XrtError::Invalid { card: card(), what: what.into() };
        let path = CString::new(bitstream.as_os_str().as_bytes())
            .map_err(|_| invalid("a path with a zero byte"))?;
        let thread = |what: &str| {
            Worker::start(&format!("card {name} {what}"))
                .map_err(|error| invalid(&format!("no thread for it: {error}")))
        };
        let (runs, copies) = (thread("runs")?, thread("copies")?);
        let mut open = OPEN.lock();
        if !open.insert(card()) {
            return Err(XrtError::InUse { card: card() });
        }
        // From here on, dropping takes the card from the list, and closes it once it is open.
        let mut inner = Inner {
            functions: xrt.functions,
            name: card(),
            device: Handle(std::ptr::null_mut()),
            uuid: [0; 16],
            limit,
            runs,
            copies,
            lost: OnceLock::new(),
        };
        let opened = inner.begin(path, bitstream);
        drop(open);
        opened?;
        Ok(Self { inner: Arc::new(inner) })
    }

    /// How it is named.
    pub fn name(&self) -> &CardName {
        &self.inner.name
    }
}

impl Inner {
    /// Opens the device and loads the bitstream.
    fn begin(&mut self, path: CString, bitstream: &Path) -> Result<(), XrtError> {
        /// A bitstream is loaded in some seconds.
        const LEAST: Duration = Duration::from_secs(60);
        let (name, limit) = (self.name.clone(), self.limit.max(LEAST));
        let open = move |functions: &Functions| {
            match name {
                // SAFETY: any number is allowed.
                CardName::Index(index) => unsafe { (functions.device_open)(index) },
                CardName::Address(address) => {
                    let address = CString::new(address).ok()?;
                    // SAFETY: the text ends with a zero.
                    unsafe { (functions.device_open_by_address)(address.as_ptr()) }
                }
            }
            .valid()
        };
        let device = self
            .attempt("xrtDeviceOpen", limit, open)?
            .map_err(|reason| XrtError::NoCard { card: self.name.clone(), reason })?;
        self.device = device;
        let load = move |functions: &Functions| {
            // SAFETY: the device is open and the path ends with a zero.
            zero(unsafe { (functions.load_xclbin_file)(device, path.as_ptr()) })
        };
        let signals = Kept::new();
        self.attempt("xrtDeviceLoadXclbinFile", limit, load)?.map_err(|reason| XrtError::Load {
            card: self.name.clone(),
            file: bitstream.to_owned(),
            reason,
        })?;
        drop(signals);
        self.uuid = self.call("xrtDeviceGetXclbinUUID", move |functions| {
            let mut uuid = [0; 16];
            // SAFETY: the identifier has 16 bytes.
            zero(unsafe { (functions.xclbin_uuid)(device, uuid.as_mut_ptr()) })?;
            Some(uuid)
        })?;
        Ok(())
    }
}
