//! What can be wrong with a build.

use std::path::PathBuf;

/// Why there is no bitstream.
#[derive(Debug, thiserror::Error)]
pub enum BitstreamError {
    /// A program of Vitis is not there.
    #[error(
        "{program} was not found. Install Vitis (the platform of the SmartSSD was made for 2021.2) and run \
         `source <Vitis>/settings64.sh`, or set XILINX_VITIS"
    )]
    Missing {
        /// Its name.
        program: &'static str,
    },
    /// A version that cannot build for the platform.
    #[error("{program} is version {found}; at least {needed} is needed. {remedy}")]
    TooOld {
        /// The program.
        program: &'static str,
        /// What it says of itself.
        found: String,
        /// What is needed.
        needed: &'static str,
        /// What to do.
        remedy: &'static str,
    },
    /// The platform is not installed.
    #[error(
        "platform {platform} was not found in {searched}. Install its development package, set PLATFORM_REPO_PATHS, or give \
         the path of its .xpfm file"
    )]
    NoPlatform {
        /// As asked for.
        platform: String,
        /// Where it was looked for.
        searched: String,
    },
    /// A program could not be started, or says nothing about its version.
    #[error("{program}: {what}")]
    Program {
        /// Its name or path.
        program: String,
        /// What happened.
        what: String,
    },
    /// A step has failed.
    #[error("{step} failed with {status}; its output is in {}. Run the same command again to go on from there", log.display())]
    Failed {
        /// What was being made.
        step: String,
        /// How the program ended.
        status: String,
        /// Where its output is.
        log: PathBuf,
    },
    /// A step has ended well, but its result is not there.
    #[error("{step} ended without an error, but {} is not there", output.display())]
    NoOutput {
        /// What was being made.
        step: String,
        /// What should be there.
        output: PathBuf,
    },
    /// The file system has refused something.
    #[error("{}: {source}", path.display())]
    Io {
        /// Which file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
}
