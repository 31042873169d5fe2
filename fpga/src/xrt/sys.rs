//! The C functions of XRT that are used, as its headers declare them (2.12 and later).

use std::ffi::{c_char, c_int, c_uint, c_void};

use libloading::Library;

use super::error::XrtError;

/// A device, a kernel, a run, or a buffer, by where it came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(transparent)]
pub struct Handle(pub *mut c_void);

// SAFETY: XRT's handles may be used from any thread, and its functions guard what they share.
unsafe impl Send for Handle {}
// SAFETY: as above.
unsafe impl Sync for Handle {}

impl Handle {
    /// Nothing for the handle by which XRT says that a call has failed.
    pub fn valid(self) -> Option<Self> {
        (!self.0.is_null()).then_some(self)
    }
}

/// A 128-bit identifier.
pub type Uuid = [u8; 16];

/// `XRT_BO_FLAGS_NONE`.
pub const NO_FLAGS: u64 = 0;
/// `XRT_BO_FLAGS_P2P`: the buffer lies in the card's window on the bus, where a drive reaches it.
pub const P2P: u64 = 1 << 30;
/// `XCL_BO_SYNC_BO_TO_DEVICE`.
pub const TO_DEVICE: c_int = 0;
/// `XCL_BO_SYNC_BO_FROM_DEVICE`.
pub const FROM_DEVICE: c_int = 1;

/// States of a run (`ert_cmd_state`).
pub mod state {
    use std::ffi::c_int;

    /// `ERT_CMD_STATE_COMPLETED`.
    pub const COMPLETED: c_int = 4;
    /// Still under way: new, queued, running, submitted; and time-out, which is what a wait ends with when its own time is over.
    pub const UNDER_WAY: [c_int; 5] = [1, 2, 3, 7, 8];
    /// Ended without success: error, abort, and the two failures of kernels on embedded processors. After any other state nobody
    /// knows what the card is at.
    pub const FAILED: [c_int; 4] = [5, 6, 10, 11];
}

macro_rules! functions {
    ($($field:ident: $name:literal = $type:ty;)*) => {
        /// Addresses of the functions.
        #[derive(Debug)]
        pub struct Functions {
            $(pub $field: $type,)*
        }

        impl Functions {
            /// Looks all of them up. The library stays loaded for good: threads and handlers of its own refer to it.
            ///
            /// # Errors
            /// [`XrtError::Symbol`] for one that is not there.
            pub fn of(library: Library, path: &str) -> Result<Self, XrtError> {
                $(
                    // SAFETY: the type is the function's in XRT's headers.
                    let $field: $type = *unsafe { library.get::<$type>(concat!($name, "\0").as_bytes()) }
                        .map_err(|_| XrtError::Symbol { library: path.into(), symbol: $name })?;
                )*
                std::mem::forget(library);
                Ok(Self { $($field,)* })
            }
        }
    };
}

functions! {
    device_open: "xrtDeviceOpen" = unsafe extern "C" fn(c_uint) -> Handle;
    device_open_by_address: "xrtDeviceOpenByBDF" = unsafe extern "C" fn(*const c_char) -> Handle;
    device_close: "xrtDeviceClose" = unsafe extern "C" fn(Handle) -> c_int;
    load_xclbin_file: "xrtDeviceLoadXclbinFile" = unsafe extern "C" fn(Handle, *const c_char) -> c_int;
    xclbin_uuid: "xrtDeviceGetXclbinUUID" = unsafe extern "C" fn(Handle, *mut u8) -> c_int;
    kernel_open: "xrtPLKernelOpen" = unsafe extern "C" fn(Handle, *const u8, *const c_char) -> Handle;
    kernel_close: "xrtKernelClose" = unsafe extern "C" fn(Handle) -> c_int;
    group: "xrtKernelArgGroupId" = unsafe extern "C" fn(Handle, c_int) -> c_int;
    run_open: "xrtRunOpen" = unsafe extern "C" fn(Handle) -> Handle;
    run_close: "xrtRunClose" = unsafe extern "C" fn(Handle) -> c_int;
    set_argument: "xrtRunSetArg" = unsafe extern "C" fn(Handle, c_int, ...) -> c_int;
    run_start: "xrtRunStart" = unsafe extern "C" fn(Handle) -> c_int;
    run_wait: "xrtRunWaitFor" = unsafe extern "C" fn(Handle, c_uint) -> c_int;
    buffer_allocate: "xrtBOAlloc" = unsafe extern "C" fn(Handle, usize, u64, c_uint) -> Handle;
    buffer_free: "xrtBOFree" = unsafe extern "C" fn(Handle) -> c_int;
    buffer_map: "xrtBOMap" = unsafe extern "C" fn(Handle) -> *mut c_void;
    buffer_sync: "xrtBOSync" = unsafe extern "C" fn(Handle, c_int, usize, usize) -> c_int;
}

/// Makes a call that gives nothing when it fails, and says why it failed.
pub fn attempt<T>(call: impl FnOnce() -> Option<T>) -> Result<T, String> {
    // XRT leaves the number of the last error as it was for some failures.
    // SAFETY: the number belongs to this thread.
    unsafe { *libc::__errno_location() = 0 };
    call().ok_or_else(|| {
        let error = std::io::Error::last_os_error();
        match error.raw_os_error() {
            None | Some(0) => "XRT gives no reason".into(),
            Some(_) => error.to_string(),
        }
    })
}

/// Something for the code of a call that has succeeded.
pub fn zero(code: c_int) -> Option<()> {
    (code == 0).then_some(())
}
