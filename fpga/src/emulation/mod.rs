//! XRT's own software emulation around emulated cards: everything that it looks for, in a folder of its own.

mod shim;

use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use crate::card::HOST_BANK_BYTES;
use crate::xclbin::XclbinError;
use crate::xclbin::kernels_digest;
use crate::xclbin::write::{Contents, SOFTWARE_EMULATION};

/// Bytes of each of a card's two banks: together half of the window that XRT's emulation maps.
const BANK_BYTES: u64 = 512 << 20;
/// Output that is kept of a host: some of XRT's failures repeat a line for ever.
const OUTPUT_LIMIT: u64 = 1 << 20;

/// Why there is no emulation.
#[derive(Debug, thiserror::Error)]
pub enum EmulationError {
    /// XRT's software emulation is not the one that is known.
    #[error("{}: {what}. Debian's package libxrt1 202210.2.13.466+dfsg-8 is needed", path.display())]
    Shim {
        /// The library.
        path: PathBuf,
        /// What is wrong.
        what: String,
    },
    /// The container cannot be made.
    #[error(transparent)]
    Container(#[from] XclbinError),
    /// The file system has refused something.
    #[error("{}: {source}", path.display())]
    Io {
        /// Which file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
}

fn io(path: &Path) -> impl FnOnce(std::io::Error) -> EmulationError {
    let path = path.to_owned();
    move |source| EmulationError::Io { path, source }
}

/// Emulated cards, and what XRT needs to find them. Its folder goes with it.
#[derive(Debug)]
pub struct Emulation {
    folder: tempfile::TempDir,
    /// Plain word under which XRT keeps its sockets.
    user: String,
}

/// How a host has ended.
#[derive(Debug)]
pub struct Ended {
    /// Its status; `None` when it had to be killed at the limit.
    pub status: Option<ExitStatus>,
    /// Its standard output and errors, the beginning of them.
    pub output: String,
}

impl Emulation {
    /// So many cards, each played by the program `card`.
    ///
    /// # Errors
    /// Another XRT than the known one, or what the file system reports.
    pub fn new(cards: u32, card: &Path) -> Result<Self, EmulationError> {
        let folder = tempfile::Builder::new().prefix("nearfield-cards").tempdir();
        let folder = folder.map_err(io(&std::env::temp_dir()))?;
        let root = folder.path();
        let write = |name: &str, content: &[u8]| {
            let path = root.join(name);
            std::fs::write(&path, content).map_err(io(&path))
        };
        let model = "vitis/data/emulation/unified/cpu_em/generic_pcie/model";
        for name in ["xrt/lib", model, "run"] {
            let path = root.join(name);
            std::fs::create_dir_all(&path).map_err(io(&path))?;
        }
        write("xrt/lib/libxrt_swemu.so.2", &shim::repaired()?)?;
        let program = root.join(model).join("genericpciemodel");
        let card = card.canonicalize().map_err(io(card))?;
        std::os::unix::fs::symlink(card, &program).map_err(io(&program))?;
        let bank = format!("{}MB", BANK_BYTES >> 20);
        let devices = format!(
            r#"{{"Version":{{"FileVersion":"2.0"}},"Platform":{{"Boards":[{{"Devices":[{{"Name":"nearfield:emulated:1.0","DdrBanks":[{{"Size":"{bank}"}},{{"Size":"{bank}"}}],"NumDevices":"{cards}"}}]}}]}}}}"#
        );
        write("emconfig.json", devices.as_bytes())?;
        let digest = kernels_digest();
        let contents = Contents {
            platform: "nearfield_emulated",
            digest: &digest,
            mode: SOFTWARE_EMULATION,
            banks: [BANK_BYTES; 2],
            bitstream: b"emulated",
        };
        write("kernels.xclbin", &contents.to_bytes()?)?;
        let name = root.file_name().unwrap_or_default().to_string_lossy();
        let user = name.chars().filter(char::is_ascii_alphanumeric).collect();
        Ok(Self { folder, user })
    }

    /// The container that cards are loaded with.
    pub fn bitstream(&self) -> PathBuf {
        self.folder.path().join("kernels.xclbin")
    }

    /// The environment of a host.
    pub fn environment(&self) -> Vec<(&'static str, PathBuf)> {
        let path = |name: &str| self.folder.path().join(name);
        vec![
            ("XCL_EMULATION_MODE", "sw_emu".into()),
            ("XILINX_XRT", path("xrt")),
            ("XILINX_VITIS", path("vitis")),
            ("EMCONFIG_PATH", path("")),
            ("SDACCEL_EM_RUN_DIR", path("run")),
            ("VITIS_SW_EMU_ENABLE_SINGLE_MMAP", "1".into()),
            ("USER", self.user.clone().into()),
            (HOST_BANK_BYTES, BANK_BYTES.to_string().into()),
        ]
    }

    /// Runs a host in a session of its own, and ends whatever it has left when it is over or at the limit: on trouble XRT's
    /// emulation signals the whole group of processes.
    ///
    /// # Errors
    /// The program cannot be started.
    pub fn run(&self, mut host: Command, limit: Duration) -> std::io::Result<Ended> {
        host.envs(self.environment()).stdin(Stdio::null());
        host.stdout(Stdio::piped()).stderr(Stdio::piped());
        // SAFETY: the call only makes a session, which is allowed between fork and exec.
        unsafe {
            host.pre_exec(|| {
                libc::setsid();
                Ok(())
            });
        }
        let mut child = host.spawn()?;
        let group = child.id() as i32;
        let readers = [
            child.stdout.take().map(|stream| reader(Box::new(stream))),
            child.stderr.take().map(|stream| reader(Box::new(stream))),
        ];
        let begin = Instant::now();
        let status = loop {
            if let Some(status) = child.try_wait()? {
                break Some(status);
            }
            if begin.elapsed() >= limit {
                break None;
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        // SAFETY: signals a group that this call has made; where all have ended, there is none.
        unsafe { libc::kill(-group, libc::SIGKILL) };
        child.wait()?;
        let texts = readers.into_iter().flatten().map(|reader| reader.join().unwrap_or_default());
        Ok(Ended { status, output: texts.collect() })
    }
}

impl Drop for Emulation {
    fn drop(&mut self) {
        // Sockets of hosts that ended before they could remove them.
        let _ = std::fs::remove_dir_all(Path::new("/tmp").join(&self.user));
    }
}

/// Reads a stream to its end, and keeps the beginning.
fn reader(mut stream: Box<dyn Read + Send>) -> std::thread::JoinHandle<String> {
    std::thread::spawn(move || {
        let mut kept = Vec::new();
        let _ = stream.by_ref().take(OUTPUT_LIMIT).read_to_end(&mut kept);
        let _ = std::io::copy(&mut stream, &mut std::io::sink());
        String::from_utf8_lossy(&kept).into_owned()
    })
}
