//! Makes the drives of a new run.

use std::collections::HashMap;
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::drive::{DriveStore, Durability, Parts};
use super::files::Files;
use super::geometry::{
    GRADIENTS_FILE, Geometry, JOURNAL_FILE, RESIDUAL_FILE, SLOTS_FILE, bytes_on_drive,
};
use super::journal::StepRecord;
use super::lock::DriveLock;
use super::room::{Wanted, check_room, flush_directory, remove_state};
use super::superblock::{
    LAYOUT_FILE, RunId, SUPERBLOCK_FILE, StateSpec, Superblock, encode_layout,
};
use crate::error::{Error, Result};
use crate::io::{IoEngine, OpenMode};
use crate::types::DType;

/// Everything that a run leaves in a drive directory, the superblock first.
pub(super) const STATE_FILES: [&str; 6] =
    [SUPERBLOCK_FILE, LAYOUT_FILE, SLOTS_FILE, GRADIENTS_FILE, RESIDUAL_FILE, JOURNAL_FILE];

/// Drives being made: they wait for the initial state of every part, then for [`Creation::finish`].
#[derive(Debug)]
pub struct Creation {
    stores: Vec<DriveStore>,
}

/// Reserves all space of a new run on the directories `dirs`, one a drive, and fills it with zeros.
///
/// The caller then writes the initial data of each part to [`DriveStore::initial_slot`], seals it with generation 0,
/// and calls [`Creation::finish`]. Until then no drive counts as holding a run.
///
/// # Errors
/// A directory that is missing, not writable, given twice, in use, or holds a run (unless `overwrite`); too little
/// space on a file system for all of its drives together, found before anything is written.
pub fn create(
    dirs: &[PathBuf],
    engines: Vec<Arc<IoEngine>>,
    spec: StateSpec,
    durability: Durability,
    overwrite: bool,
) -> Result<Creation> {
    if spec.layout.drives as usize != dirs.len() || engines.len() != dirs.len() {
        return Err(Error::Invalid(format!(
            "a layout for {} drives cannot be made on {} directories",
            spec.layout.drives,
            dirs.len()
        )));
    }
    distinct(dirs)?;
    let locks = dirs.iter().map(|dir| DriveLock::exclusive(dir)).collect::<Result<Vec<_>>>()?;
    for dir in dirs {
        refuse_other_run(dir, overwrite)?;
    }
    check_space(dirs, &spec)?;
    let spec = Arc::new(spec);
    let run = RunId::random()?;
    let made: Vec<Result<DriveStore>> = std::thread::scope(|scope| {
        let threads: Vec<_> = dirs
            .iter()
            .zip(engines)
            .zip(locks)
            .enumerate()
            .map(|(drive, ((dir, engine), lock))| {
                let spec = Arc::clone(&spec);
                scope.spawn(move || make(drive as u32, dir, engine, lock, spec, run, durability))
            })
            .collect();
        threads
            .into_iter()
            .map(|thread| {
                thread.join().unwrap_or_else(|_| {
                    Err(Error::Cancelled(
                        "a thread that makes a drive ended without a result".into(),
                    ))
                })
            })
            .collect()
    });
    Ok(Creation { stores: made.into_iter().collect::<Result<_>>()? })
}

impl Creation {
    /// The drives, for their initial state.
    pub fn stores(&self) -> &[DriveStore] {
        &self.stores
    }

    /// Makes everything durable and turns the directories into drives of a run; `record` is the trainer's
    /// state before the first iteration.
    ///
    /// # Errors
    /// A part without initial state, and what the drives report.
    pub fn finish(self, record: StepRecord) -> Result<Vec<DriveStore>> {
        for store in &self.stores {
            store.begin_run(&record)?;
        }
        for store in &self.stores {
            let layout = encode_layout(store.superblock().run, &store.spec().layout);
            put(store.path(), LAYOUT_FILE, &layout)?;
            put(store.path(), SUPERBLOCK_FILE, &store.superblock().encode())?;
            store.created();
        }
        Ok(self.stores)
    }
}

/// Two drives must not be one directory, nor one lie in the other.
pub(super) fn distinct(dirs: &[PathBuf]) -> Result<()> {
    let mut seen: HashMap<(u64, u64), &Path> = HashMap::new();
    let mut paths: Vec<(&Path, PathBuf)> = Vec::new();
    for dir in dirs {
        let metadata =
            std::fs::metadata(dir).map_err(|source| Error::io("open", dir, 0, 0, source))?;
        if !metadata.is_dir() {
            return Err(Error::Drives {
                what: format!("{} is not a directory", dir.display()),
                remedy: "give --drive a directory on the drive".into(),
            });
        }
        let full = dir.canonicalize().map_err(|source| Error::io("open", dir, 0, 0, source))?;
        if let Some((other, _)) = paths.iter().find(|(_, other): &&(&Path, PathBuf)| {
            *other != full && (other.starts_with(&full) || full.starts_with(other))
        }) {
            return Err(Error::Drives {
                what: format!("one of {} and {} lies in the other", other.display(), dir.display()),
                remedy: "give each drive a directory of its own".into(),
            });
        }
        paths.push((dir.as_path(), full));
        if let Some(other) = seen.insert((metadata.dev(), metadata.ino()), dir) {
            return Err(Error::Drives {
                what: format!("{} and {} are the same directory", other.display(), dir.display()),
                remedy: "give each drive a directory of its own".into(),
            });
        }
    }
    Ok(())
}

fn refuse_other_run(dir: &Path, overwrite: bool) -> Result<()> {
    if overwrite {
        return Ok(());
    }
    if !dir.join(SUPERBLOCK_FILE).exists() {
        // The layout is written when everything else is there: without it a creation was cut off, with it a
        // superblock was lost.
        if !dir.join(LAYOUT_FILE).exists() {
            return Ok(());
        }
        return Err(super::open::superblock_lost(dir));
    }
    Err(Error::Format {
        path: dir.to_path_buf(),
        what: "the directory holds the state of another run".into(),
        remedy: "continue that run with --resume, replace it with --overwrite, or give another directory".into(),
    })
}

/// Checks that there is room for a run on its drives.
pub(super) fn check_space(dirs: &[PathBuf], spec: &StateSpec) -> Result<()> {
    let wanted = (0..).zip(dirs).map(|(drive, directory)| {
        Ok(Wanted { directory, bytes: bytes_on_drive(spec, drive, 4096)? })
    });
    check_room(wanted.collect::<Result<Vec<_>>>()?)
}

fn make(
    drive: u32,
    dir: &Path,
    engine: Arc<IoEngine>,
    lock: DriveLock,
    spec: Arc<StateSpec>,
    run: RunId,
    durability: Durability,
) -> Result<DriveStore> {
    remove_state(dir)?;
    let alignment = engine.open(&dir.join(JOURNAL_FILE), OpenMode::Create)?.alignment();
    let geometry = Geometry::new(&spec, drive, alignment)?;
    let files = Files::open(engine, dir, &geometry, || OpenMode::Create)?;
    for (name, bytes) in geometry.files() {
        files.named(name)?.reserve(bytes)?;
    }
    files.zero_fill(&geometry)?;
    let layout_digest = *blake3::hash(&encode_layout(run, &spec.layout)).as_bytes();
    let superblock = Superblock {
        run,
        drive,
        drives: spec.layout.drives,
        optimizer: spec.optimizer,
        master: DType::Fp32,
        moments: spec.moments,
        ahead: spec.ahead,
        gradients: spec.gradients,
        residual: spec.residual,
        elements: spec.layout.elements,
        align_elements: spec.layout.align_elements,
        alignment: geometry.alignment,
        capacity: geometry.capacity,
        slots: geometry.slots,
        parts: spec.layout.parts.len() as u32,
        layout_digest,
    };
    let parts = geometry.parts.len();
    let path = dir.to_path_buf();
    let store = DriveStore::assemble(
        Parts { path, superblock, spec, geometry, durability, files, lock },
        None,
    );
    if store.spec().residual {
        for place in 0..parts {
            store.write_residual(place, 0, 0)?;
        }
    }
    Ok(store)
}

/// Writes a small file whole or not at all, durably.
fn put(dir: &Path, name: &str, bytes: &[u8]) -> Result<()> {
    let path = dir.join(name);
    let temporary = dir.join(format!("{name}.new"));
    let error = |operation, source| Error::io(operation, &path, 0, bytes.len() as u64, source);
    let mut file = File::create(&temporary).map_err(|source| error("create", source))?;
    file.write_all(bytes)
        .and_then(|()| file.sync_all())
        .map_err(|source| error("write", source))?;
    std::fs::rename(&temporary, &path).map_err(|source| error("rename", source))?;
    flush_directory(dir)
}
