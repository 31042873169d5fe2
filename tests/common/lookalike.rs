//! A look-alike of XRT's library where the loader finds it, and a bitstream for it.
#![allow(clippy::unwrap_used)] // A test fails by panicking.

use std::path::{Path, PathBuf};

use nearfield_fpga::xclbin::kernels_digest;
use nearfield_fpga::xclbin::write::{Contents, SOFTWARE_EMULATION};

/// The library, which lies beside the test's program.
pub fn library() -> PathBuf {
    let program = std::env::current_exe().unwrap();
    program.with_file_name("libnearfield_xrt_lookalike.so")
}

/// Puts the library into a folder, under the name of XRT's, and a bitstream; gives the bitstream.
pub fn put_into(folder: &Path) -> PathBuf {
    std::os::unix::fs::symlink(library(), folder.join("libxrt_coreutil.so.2")).unwrap();
    let digest = kernels_digest();
    let contents = Contents {
        platform: "lookalike",
        digest: &digest,
        mode: SOFTWARE_EMULATION,
        banks: [1 << 30; 2],
        bitstream: b"lookalike",
    };
    let bitstream = folder.join("kernels.xclbin");
    std::fs::write(&bitstream, contents.to_bytes().unwrap()).unwrap();
    bitstream
}
