//! Finding the programs of Vitis and the platform.

use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::error::BitstreamError;

/// A version such as 2021.2.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version {
    /// Year.
    pub year: u32,
    /// Release of the year.
    pub release: u32,
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{}.{}", self.year, self.release)
    }
}

impl Version {
    /// Streams with a depth, and dataflow in a loop, as the kernels have them.
    const NEEDED: Self = Self { year: 2020, release: 2 };

    /// The first `20YY.R` in a text.
    pub fn find(text: &str) -> Option<Self> {
        text.split(|c: char| !c.is_ascii_digit() && c != '.').find_map(|word| {
            let mut numbers = word.split('.');
            let (year, release) = (numbers.next()?, numbers.next()?);
            let year = year.parse().ok().filter(|year| (2019..2100).contains(year))?;
            Some(Self { year, release: release.parse().ok()? })
        })
    }
}

/// What the machine has.
#[derive(Debug, Clone)]
pub struct Tools {
    /// The compiler and linker.
    pub vpp: PathBuf,
    /// Its version.
    pub version: Version,
    /// The platform's description.
    pub platform: PathBuf,
}

/// Where programs and platforms are looked for.
#[derive(Debug, Clone, Default)]
pub struct Places {
    /// `PATH`.
    pub path: Option<OsString>,
    /// `XILINX_VITIS`.
    pub vitis: Option<PathBuf>,
    /// `PLATFORM_REPO_PATHS`.
    pub platforms: Option<OsString>,
}

impl Places {
    /// As the environment has them.
    pub fn of_environment() -> Self {
        Self {
            path: std::env::var_os("PATH"),
            vitis: std::env::var_os("XILINX_VITIS").map(PathBuf::from),
            platforms: std::env::var_os("PLATFORM_REPO_PATHS"),
        }
    }

    fn program(&self, name: &'static str) -> Result<PathBuf, BitstreamError> {
        let of_vitis = self.vitis.iter().map(|vitis| vitis.join("bin"));
        let of_path = self.path.iter().flat_map(std::env::split_paths);
        of_vitis
            .chain(of_path)
            .map(|folder| folder.join(name))
            .find(|path| path.is_file())
            .ok_or(BitstreamError::Missing { program: name })
    }

    fn platform(&self, name: &str) -> Result<PathBuf, BitstreamError> {
        if name.ends_with(".xpfm") {
            let path = PathBuf::from(name);
            if path.is_file() {
                return Ok(path);
            }
            let searched = "the given place".into();
            return Err(BitstreamError::NoPlatform { platform: name.into(), searched });
        }
        let mut folders: Vec<PathBuf> =
            self.platforms.iter().flat_map(std::env::split_paths).collect();
        folders.push("/opt/xilinx/platforms".into());
        let file = format!("{name}.xpfm");
        let found = folders.iter().find_map(|folder| {
            let candidates = [folder.join(name).join(&file), folder.join(&file)];
            candidates.into_iter().find(|path| path.is_file())
        });
        found.ok_or_else(|| {
            let folders: Vec<String> = folders.iter().map(|f| f.display().to_string()).collect();
            BitstreamError::NoPlatform { platform: name.into(), searched: folders.join(", ") }
        })
    }
}

impl Tools {
    /// Looks for everything that a build needs.
    ///
    /// # Errors
    /// What is missing or too old, and what to do about it.
    pub fn find(platform: &str, places: &Places) -> Result<Self, BitstreamError> {
        let vpp = places.program("v++")?;
        let version = version_of(&vpp)?;
        if version < Version::NEEDED {
            return Err(BitstreamError::TooOld {
                program: "v++",
                found: version.to_string(),
                needed: "2020.2",
                remedy: "The platform of the SmartSSD was made for 2021.2",
            });
        }
        Ok(Self { vpp, version, platform: places.platform(platform)? })
    }
}

fn version_of(program: &Path) -> Result<Version, BitstreamError> {
    let name = program.display().to_string();
    let output = Command::new(program).arg("--version").output().map_err(|error| {
        BitstreamError::Program { program: name.clone(), what: error.to_string() }
    })?;
    let text = String::from_utf8_lossy(&output.stdout);
    Version::find(&text).ok_or_else(|| BitstreamError::Program {
        program: name,
        what: "`--version` does not name a version such as 2021.2".into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_found_and_ordered() {
        let text =
            "\n****** v++ v2021.2 (64-bit)\n  **** SW Build 3363252 on 2021-10-14-04:41:01\n";
        assert_eq!(Version::find(text), Some(Version { year: 2021, release: 2 }));
        assert_eq!(Version::find("v++ of 10.2"), None);
        assert!(Version { year: 2020, release: 1 } < Version::NEEDED);
        assert!(Version { year: 2022, release: 1 } > Version::NEEDED);
    }
}
