//! The commands of a build.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use nearfield_hls::interface::KERNELS;

use super::tools::Tools;

/// What is built.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    /// A bitstream for a card.
    Hardware,
    /// A simulation of the hardware, cycle by cycle.
    HardwareEmulation,
}

impl Target {
    /// As `v++` names it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Hardware => "hw",
            Self::HardwareEmulation => "hw_emu",
        }
    }
}

/// What is asked for.
#[derive(Debug, Clone)]
pub struct Request {
    /// What to build.
    pub target: Target,
    /// Clock of the kernels, in MHz.
    pub clock_mhz: u32,
    /// Folder of the kernels' sources.
    pub sources: PathBuf,
    /// Folder for everything that is made.
    pub output: PathBuf,
    /// Revision of the sources, for the name of the result.
    pub revision: String,
    /// Digest of the kernels: in the name of the result and of each kernel's instance.
    pub digest: String,
}

/// One command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Command {
    /// What it makes, in words.
    pub step: String,
    /// The program.
    pub program: PathBuf,
    /// Its arguments.
    pub arguments: Vec<OsString>,
    /// The file that it makes.
    pub output: PathBuf,
    /// Files that it reads.
    pub inputs: Vec<PathBuf>,
}

/// All commands of a build, in order.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The commands.
    pub commands: Vec<Command>,
    /// The linker's settings, and where they are written.
    pub settings: (PathBuf, String),
    /// The result.
    pub result: PathBuf,
}

fn arguments(list: &[&dyn AsRef<std::ffi::OsStr>]) -> Vec<OsString> {
    list.iter().map(|argument| argument.as_ref().to_owned()).collect()
}

impl Plan {
    /// The commands for a request.
    pub fn new(request: &Request, tools: &Tools, sources: &[PathBuf]) -> Self {
        let Request { target, clock_mhz, output, revision, digest, .. } = request;
        let work = output.join(format!("{}-{digest}", target.name()));
        let clock = clock_mhz.to_string();
        let mut commands = Vec::new();
        let mut objects: Vec<PathBuf> = Vec::new();
        for kernel in KERNELS {
            let object = work.join(format!("{}.xo", kernel.name));
            let source = request.sources.join(format!("{}.cpp", kernel.name));
            let temporary = work.join(format!("temporary-{}", kernel.name));
            commands.push(Command {
                step: format!("compiling kernel {}", kernel.name),
                program: tools.vpp.clone(),
                arguments: arguments(&[
                    &"--compile",
                    &"--target",
                    &target.name(),
                    &"--platform",
                    &tools.platform,
                    &"--kernel",
                    &kernel.name,
                    &"--kernel_frequency",
                    &clock,
                    &"--include",
                    &request.sources,
                    &"--temp_dir",
                    &temporary,
                    &"--save-temps",
                    &"--output",
                    &object,
                    &source,
                ]),
                output: object.clone(),
                inputs: sources.to_vec(),
            });
            objects.push(object);
        }
        let settings = work.join("link.cfg");
        let result = output.join(format!("nearfield-{}-{revision}-{digest}.xclbin", target.name()));
        let temporary = work.join("temporary-link");
        let mut link = arguments(&[
            &"--link",
            &"--target",
            &target.name(),
            &"--platform",
            &tools.platform,
            &"--kernel_frequency",
            &clock,
            &"--config",
            &settings,
            &"--temp_dir",
            &temporary,
            &"--save-temps",
            &"--output",
            &result,
        ]);
        link.extend(objects.iter().map(|object| object.as_os_str().to_owned()));
        let inputs = objects.iter().chain([&settings]).cloned().collect();
        commands.push(Command {
            step: "linking".into(),
            program: tools.vpp.clone(),
            arguments: link,
            output: result.clone(),
            inputs,
        });
        Self { commands, settings: (settings, settings_text(digest)), result }
    }

    /// Folder of what is made on the way.
    pub fn work(&self) -> &Path {
        self.settings.0.parent().unwrap_or(Path::new("."))
    }
}

/// One unit of each kernel. A unit's name carries the digest, so that the host can tell whether a bitstream has its kernels. The
/// SmartSSD has one bank of memory, which the linker uses for every port without being told.
fn settings_text(digest: &str) -> String {
    let mut text = String::from("[connectivity]\n");
    for kernel in KERNELS {
        text.push_str(&format!("nk={0}:1:{0}_{digest}\n", kernel.name));
    }
    text
}
