//! What a card's use depends on besides the card: XRT, the kernel, containers, permissions.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use super::cards::cards;
use super::pairing::DrivePlace;
use super::pci::{Pci, read};
use crate::xrt::{Xrt, XrtError};

/// What [`probe`](super::probe()) takes into account.
#[derive(Debug, Clone)]
pub struct Surroundings {
    /// Whether XRT's library loads, or why not.
    pub xrt: Result<(), String>,
    /// What shows that this process runs in a container, if something does.
    pub container: Option<String>,
    /// The kernel's release, such as `5.4.0-100-generic`.
    pub kernel: Option<String>,
    /// Whether this process may open the cards' device nodes for reading and writing, or why not.
    pub nodes: BTreeMap<PathBuf, Result<(), ErrorKind>>,
    /// Directories for states; may be empty.
    pub drives: Vec<DrivePlace>,
}

impl Surroundings {
    /// Those of this process. Loads XRT, and opens and closes the cards' device nodes.
    pub fn system(pci: &Pci, drives: Vec<DrivePlace>) -> Self {
        let xrt = Xrt::load().map(drop).map_err(|error| match error {
            XrtError::NoLibrary { reason } => reason,
            other => other.to_string(),
        });
        Self::at(Path::new("/"), pci, xrt, drives)
    }

    /// Those that a root of files shows.
    fn at(root: &Path, pci: &Pci, xrt: Result<(), String>, drives: Vec<DrivePlace>) -> Self {
        let nodes = cards(pci).unwrap_or_default().into_iter().filter_map(|card| card.device_node);
        Self {
            xrt,
            container: container(root),
            kernel: read(&root.join("proc/sys/kernel/osrelease")),
            nodes: nodes.map(|node| (node.clone(), opens(&node))).collect(),
            drives,
        }
    }
}

fn opens(node: &Path) -> Result<(), ErrorKind> {
    match OpenOptions::new().read(true).write(true).open(node) {
        Ok(_) => Ok(()),
        Err(error) => Err(error.kind()),
    }
}

/// What shows a container: files that engines put there, the first process's variable `container`, or its control group.
fn container(root: &Path) -> Option<String> {
    for file in [".dockerenv", "run/.containerenv"] {
        if root.join(file).exists() {
            return Some(format!("/{file} is there"));
        }
    }
    // Only root may read another's variables; without them, the rest must tell.
    let variables = std::fs::read(root.join("proc/1/environ")).unwrap_or_default();
    let engine = variables.split(|&byte| byte == 0).find_map(|one| one.strip_prefix(b"container="));
    if let Some(engine) = engine.filter(|engine| !engine.is_empty()) {
        let engine = String::from_utf8_lossy(engine);
        return Some(format!("the first process has container={engine}"));
    }
    let groups = read(&root.join("proc/1/cgroup"))?;
    let ours = |name: &&str| ["docker", "kubepods", "lxc"].iter().any(|one| name.starts_with(one));
    let paths = groups.lines().filter_map(|line| line.splitn(3, ':').nth(2));
    let name = paths.flat_map(|path| path.split('/')).find(ours)?;
    Some(format!("the first process is in control group {name}"))
}

#[cfg(test)]
mod tests {
    use super::super::tree::Tree;
    use super::*;

    fn shown(files: &[(&str, &[u8])]) -> Option<String> {
        let root = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let path = root.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        container(root.path())
    }

    #[test]
    fn containers_show_by_any_of_four_signs() {
        let cases: [(&str, &[u8], &str); 7] = [
            (".dockerenv", b"", "/.dockerenv"),
            ("run/.containerenv", b"", "/run/.containerenv"),
            ("proc/1/environ", b"PATH=/bin\0container=podman\0A=b", "container=podman"),
            ("proc/1/environ", b"container=l\xffc", "container=l"),
            ("proc/1/cgroup", b"12:pids:/docker/0123\n0::/\n", "docker"),
            (
                "proc/1/cgroup",
                b"0::/kubepods.slice/kubepods-pod1.slice/a.scope\n",
                "kubepods.slice",
            ),
            ("proc/1/cgroup", b"3:cpu:/\n1:name=systemd:/lxc.payload.one\n", "lxc.payload.one"),
        ];
        for (file, text, sign) in cases {
            let found = shown(&[(file, text)]).unwrap_or_default();
            assert!(found.contains(sign), "{sign}: {found}");
        }
    }

    #[test]
    fn a_plain_system_shows_none() {
        let none: [&[(&str, &[u8])]; 4] = [
            &[],
            &[
                ("proc/1/environ", b"PATH=/bin\0xcontainer=a\0"),
                ("proc/1/cgroup", b"0::/init.scope\n"),
            ],
            &[("proc/1/environ", b"container=\0")],
            &[("proc/1/cgroup", b"docker\n0:docker:/\n0::/user/mydocker\n\xff")],
        ];
        for files in none {
            assert_eq!(shown(files), None);
        }
        assert_eq!(shown(&[("proc/1/cgroup", b"docker\n0:docker:/\n0::/user/mydocker\n")]), None);
    }

    #[test]
    fn kernel_and_device_nodes_are_looked_at() {
        let tree = Tree::new();
        for (port, bus) in [("0000:00:01.0", 1), ("0000:00:02.0", 0x11), ("0000:00:03.0", 0x21)] {
            tree.smart_ssd(&[port], bus);
        }
        let root = tree.path("..");
        let look = || Surroundings::at(&root, &tree.pci(), Ok(()), Vec::new());
        assert_eq!(look().kernel, None);
        std::fs::create_dir_all(root.join("proc/sys/kernel")).unwrap();
        std::fs::write(root.join("proc/sys/kernel/osrelease"), "5.4.0-100-generic\n").unwrap();
        std::fs::create_dir_all(root.join("dev/dri")).unwrap();
        std::fs::write(root.join("dev/dri/renderD129"), "").unwrap();
        // It opens for reading alone.
        std::fs::create_dir_all(root.join("dev/dri/renderD161")).unwrap();
        let found = look();
        assert_eq!(found.kernel.as_deref(), Some("5.4.0-100-generic"));
        assert_eq!(found.container, None);
        let states: Vec<_> = found.nodes.values().copied().collect();
        assert_eq!(states, [Ok(()), Err(ErrorKind::NotFound), Err(ErrorKind::IsADirectory)]);
        assert!(found.nodes.keys().next().unwrap().ends_with("dev/dri/renderD129"));
    }
}
