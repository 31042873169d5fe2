//! The C functions of XRT that are used, as its headers declare them (2.12 and later).

use std::ffi::{c_char, c_int, c_uint, c_void};

use libloading::Library;

use super::error::XrtError;

/// A device, a kernel, a run, or a buffer, by where it came from.
pub type Handle = *mut c_void;
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
/// `ERT_CMD_STATE_COMPLETED`.
pub const COMPLETED: c_int = 4;
/// States of a run that is still under way: new, queued, running, submitted.
pub const UNDER_WAY: [c_int; 4] = [1, 2, 3, 7];

macro_rules! functions {
    ($($field:ident: $name:literal = $type:ty;)*) => {
        /// Addresses of the functions; valid as long as the library is loaded.
        #[derive(Debug)]
        pub struct Functions {
            $(pub $field: $type,)*
            _library: Library,
        }

        impl Functions {
            /// Looks all of them up.
            ///
            /// # Errors
            /// [`XrtError::Symbol`] for one that is not there.
            pub fn of(library: Library, path: &str) -> Result<Self, XrtError> {
                $(
                    // SAFETY: the type is the function's in XRT's headers.
                    let $field: $type = *unsafe { library.get::<$type>(concat!($name, "\0").as_bytes()) }
                        .map_err(|_| XrtError::Symbol { library: path.into(), symbol: $name })?;
                )*
                Ok(Self { $($field,)* _library: library })
            }
        }
    };
}

functions! {
    device_open: "xrtDeviceOpen" = unsafe extern "C" fn(c_uint) -> Handle;
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
