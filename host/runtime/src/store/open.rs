//! Opens the drives of a run and finds out where it stands.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::create::{STATE_FILES, distinct};
use super::drive::{DriveStore, Durability, Parts, Restored};
use super::files::Files;
use super::geometry::Geometry;
use super::gradients::{GradientFound, GradientHeader, GradientInfo, ResidualInfo};
use super::journal::{Record, scan};
use super::lock::DriveLock;
use super::recovery::{Decision, DriveFacts, Recovered, decide};
use super::slots::SlotFound;
use super::superblock::{LAYOUT_FILE, SUPERBLOCK_FILE, StateSpec, Superblock, decode_layout};
use crate::error::{Error, Result};
use crate::io::{DriveFile, IoEngine, OpenMode};

/// Drives read, decided on, not yet repaired.
pub(super) struct Loaded {
    pub stores: Vec<DriveStore>,
    pub records: Vec<Vec<Record>>,
    decision: Decision,
}

impl Loaded {
    pub fn recovered(&self) -> &Recovered {
        &self.decision.recovered
    }
}

/// Opens the drives of a run for work; the order of `dirs` does not matter, `engines` follow it.
///
/// The drives come back in the order of the run, and [`Recovered`] says at which step they are and whether an
/// update must be completed first. `expected` is what the caller is about to run; a difference is an error.
///
/// # Errors
/// Drives that are missing, given twice, of another run, in use, damaged, cut short or of another format, each named.
pub fn open(
    dirs: &[PathBuf],
    engines: Vec<Arc<IoEngine>>,
    expected: Option<&StateSpec>,
    durability: Durability,
) -> Result<(Vec<DriveStore>, Recovered)> {
    let loaded = load(dirs, engines, expected, durability, true)?;
    let Loaded { stores, decision, .. } = loaded;
    for note in &decision.recovered.notes {
        tracing::info!("{note}");
    }
    // All of them before the first repair, which speaks for the state of every drive.
    for store in &stores {
        store.settle()?;
    }
    for (drive, record) in decision.repairs {
        stores[drive as usize].write_record(record)?;
    }
    Ok((stores, decision.recovered))
}

/// Reads all drives; with `write` they are locked for this process alone.
pub(super) fn load(
    dirs: &[PathBuf],
    engines: Vec<Arc<IoEngine>>,
    expected: Option<&StateSpec>,
    durability: Durability,
    write: bool,
) -> Result<Loaded> {
    distinct(dirs)?;
    let mut found = Vec::with_capacity(dirs.len());
    for (place, (dir, engine)) in dirs.iter().zip(engines).enumerate() {
        found.push((superblock(dir, place as u32)?, dir, engine));
    }
    check_identity(&found)?;
    found.sort_by_key(|(superblock, ..)| superblock.drive);
    let mut drives = Vec::with_capacity(found.len());
    for (superblock, dir, engine) in found {
        drives.push(read_drive(superblock, dir, engine, expected, durability, write)?);
    }
    let facts: Vec<DriveFacts> = drives
        .iter()
        .map(|drive| DriveFacts {
            path: drive.parts.path.clone(),
            records: drive.records.clone(),
            slots: drive.slots.clone(),
            parts: drive.parts.geometry.parts.clone(),
        })
        .collect();
    let Some(layout) = drives.first().map(|drive| drive.parts.spec.layout.clone()) else {
        return Err(Error::Invalid("give at least one --drive".into()));
    };
    let decision = decide(&facts, &layout)?;
    for drive in &drives {
        drive.check_needed(&decision.recovered)?;
    }
    let mut stores = Vec::with_capacity(drives.len());
    let mut records = Vec::with_capacity(drives.len());
    for (drive, current) in drives.into_iter().zip(decision.current.clone()) {
        let last = drive.records.last().cloned();
        let restored = last.map(|last| Restored {
            current,
            last,
            gradients: drive.gradient_infos(),
            residual: drive.residual_infos(),
        });
        stores.push(DriveStore::assemble(drive.parts, restored));
        records.push(drive.records);
    }
    Ok(Loaded { stores, records, decision })
}

struct DriveRead {
    parts: Parts,
    records: Vec<Record>,
    slots: Vec<SlotFound>,
    /// Headers of each part's gradients, and of its two residual regions.
    gradients: Vec<GradientFound>,
    residual: Vec<[GradientFound; 2]>,
}

impl DriveRead {
    fn gradient_infos(&self) -> Vec<Option<GradientInfo>> {
        let headers = self.parts.geometry.parts.iter().zip(&self.gradients);
        headers
            .map(|(&part, found)| header_of(&self.parts.superblock, part, found))
            .map(|header| header.map(GradientHeader::info))
            .collect()
    }

    fn residual_infos(&self) -> Vec<[Option<ResidualInfo>; 2]> {
        let Parts { geometry, superblock, .. } = &self.parts;
        let info = |place: usize, region: usize| {
            let found = &self.residual.get(place)?[region];
            let header = header_of(superblock, geometry.parts[place], found)?;
            Some(ResidualInfo {
                generation: header.generation,
                offset: geometry.residual_data(place, region as u32),
                checksum: header.checksums[0],
            })
        };
        (0..geometry.parts.len()).map(|place| [info(place, 0), info(place, 1)]).collect()
    }

    /// Refuses to go on from gradients or residuals of another step than the one that needs them.
    ///
    /// A header that is torn, damaged or old is harmless while nothing relies on it. But an update that is repeated
    /// needs the gradients of its own step, and the next iteration the residual of `recovered.step`: both were
    /// durable before the journal got there, so anything else is damage, and older data would go unnoticed.
    fn check_needed(&self, recovered: &Recovered) -> Result<()> {
        let Parts { geometry, superblock, files, spec, .. } = &self.parts;
        let damaged = |file: &DriveFile, what: &str, part: usize, found: &[GradientFound]| {
            let (expected, found) = found
                .iter()
                .find_map(|found| match *found {
                    GradientFound::Damaged { expected, found } => Some((expected, found)),
                    _ => None,
                })
                .unwrap_or((recovered.step, 0));
            let subgroup = spec.layout.parts[part].subgroup;
            Err(Error::Damaged {
                drive: superblock.drive,
                path: file.path().to_path_buf(),
                what: format!(
                    "the header of {what} of subgroup {subgroup} (part {part}) for step {}",
                    recovered.step
                ),
                expected,
                found,
            })
        };
        if let Some(redo) = &recovered.redo {
            for (place, info) in self.gradient_infos().into_iter().enumerate() {
                let part = geometry.parts[place];
                let fits = info.is_some_and(|info| info.generation == recovered.step);
                if redo.parts.contains(&part) && !fits {
                    let found = std::slice::from_ref(&self.gradients[place]);
                    return damaged(&files.gradients, "the gradients", part, found);
                }
            }
        }
        if let Some(file) = &files.residual {
            for (place, regions) in self.residual_infos().into_iter().enumerate() {
                let of_step = |info: ResidualInfo| info.generation == recovered.step;
                if !regions.into_iter().flatten().any(of_step) {
                    let part = geometry.parts[place];
                    return damaged(file, "the residual", part, &self.residual[place]);
                }
            }
        }
        Ok(())
    }
}

fn superblock(dir: &Path, place: u32) -> Result<Superblock> {
    let path = dir.join(SUPERBLOCK_FILE);
    match std::fs::read(&path) {
        Ok(bytes) => Superblock::decode(&path, place, &bytes),
        Err(source) if source.kind() == std::io::ErrorKind::NotFound => {
            if dir.join(LAYOUT_FILE).exists() {
                return Err(superblock_lost(dir));
            }
            let begun = STATE_FILES.iter().any(|name| dir.join(name).exists());
            Err(Error::Format {
                path: dir.to_path_buf(),
                what: if begun {
                    "the creation of a run was interrupted here".into()
                } else {
                    "the directory holds no state of a run".into()
                },
                remedy: "start anew without --resume, or give the directories of the run".into(),
            })
        }
        Err(source) => Err(Error::io("read", &path, 0, 4096, source)),
    }
}

/// What is said about a directory that has everything of a run but the superblock.
pub(super) fn superblock_lost(dir: &Path) -> Error {
    Error::Format {
        path: dir.to_path_buf(),
        what: format!("the directory holds the state of a run, but {SUPERBLOCK_FILE} is missing"),
        remedy: format!(
            "copy {SUPERBLOCK_FILE} back if you have a copy, or give the run up with --overwrite"
        ),
    }
}

/// All drives of one run, each once.
fn check_identity(found: &[(Superblock, &PathBuf, Arc<IoEngine>)]) -> Result<()> {
    let Some((first, first_dir, _)) = found.first() else { return Ok(()) };
    for (superblock, dir, _) in found {
        if superblock.run != first.run {
            return Err(Error::Drives {
                what: format!(
                    "{} belongs to run {}, but {} to run {}",
                    dir.display(),
                    superblock.run,
                    first_dir.display(),
                    first.run
                ),
                remedy: "give the drives of one run only".into(),
            });
        }
    }
    for drive in 0..first.drives {
        let holders: Vec<String> = found
            .iter()
            .filter(|(superblock, ..)| superblock.drive == drive)
            .map(|(_, dir, _)| dir.display().to_string())
            .collect();
        match holders.len() {
            1 => {}
            0 => {
                return Err(Error::Drives {
                    what: format!(
                        "drive {drive} of the {} drives of run {} is missing",
                        first.drives, first.run
                    ),
                    remedy: "give all of its directories with --drive".into(),
                });
            }
            _ => {
                return Err(Error::Drives {
                    what: format!(
                        "{} all say that they are drive {drive} of the run: copies of one drive",
                        holders.join(" and ")
                    ),
                    remedy: "give each drive once".into(),
                });
            }
        }
    }
    Ok(())
}

fn read_drive(
    superblock: Superblock,
    dir: &Path,
    engine: Arc<IoEngine>,
    expected: Option<&StateSpec>,
    durability: Durability,
    write: bool,
) -> Result<DriveRead> {
    let lock = if write { DriveLock::exclusive(dir)? } else { DriveLock::shared(dir)? };
    let path = dir.join(LAYOUT_FILE);
    let bytes = std::fs::read(&path).map_err(|source| Error::io("read", &path, 0, 0, source))?;
    let layout = decode_layout(&path, &superblock, &bytes)?;
    let spec = StateSpec {
        optimizer: superblock.optimizer,
        moments: superblock.moments,
        gradients: superblock.gradients,
        residual: superblock.residual,
        ahead: superblock.ahead,
        layout,
    };
    if let Some(expected) = expected {
        check_spec(dir, &spec, expected)?;
        check_slots(dir, &superblock, expected)?;
    }
    let geometry = Geometry::new(&spec, superblock.drive, superblock.alignment)?;
    let mode = if write { OpenMode::ReadWrite } else { OpenMode::Read };
    let files = Files::open(engine, dir, &geometry, || mode)?;
    files.check_lengths(&geometry)?;
    let records = read_journal(&superblock, &files, &geometry)?;
    let slots = read_slots(&superblock, &files, &geometry)?;
    let gradients = read_gradients(&files, &geometry)?;
    let residual = read_residuals(&files, &geometry)?;
    let path = dir.to_path_buf();
    let parts = Parts { path, superblock, spec: Arc::new(spec), geometry, durability, files, lock };
    Ok(DriveRead { parts, records, slots, gradients, residual })
}

/// Names the option that differs from the run's.
fn check_spec(dir: &Path, stored: &StateSpec, expected: &StateSpec) -> Result<()> {
    let differs = |what: String| {
        Err(Error::Drives {
            what: format!("{}: {what}", dir.display()),
            remedy: "resume with the options of the run, or start anew with --overwrite".into(),
        })
    };
    if stored.optimizer != expected.optimizer {
        return differs(format!(
            "the run has --optimizer {}, not {}",
            stored.optimizer.name(),
            expected.optimizer.name()
        ));
    }
    if stored.moments != expected.moments {
        return differs(format!(
            "the run has --moment-dtype {}, not {}",
            stored.moments.name(),
            expected.moments.name()
        ));
    }
    if stored.layout.elements != expected.layout.elements {
        return differs(format!(
            "the run has a model of {} parameters, not {} (--layers, --hidden, --vocab, --seq)",
            stored.layout.elements, expected.layout.elements
        ));
    }
    if stored.gradients != expected.gradients {
        return differs(format!(
            "the run stores gradients as {}, not {} (--system, --gradient-dtype, --topk-keep)",
            stored.gradients, expected.gradients
        ));
    }
    if stored.residual != expected.residual {
        return differs("--error-feedback differs from the run's".into());
    }
    if stored.layout != expected.layout {
        return differs(format!(
            "the state lies in {} parts on {} drives, which --system, --placement, --subgroup-size and the number of drives would lay out differently",
            stored.layout.parts.len(),
            stored.layout.drives
        ));
    }
    Ok(())
}

/// A run that writes updates ahead needs a slot more for each part. Drives with few parts have them anyway.
fn check_slots(dir: &Path, superblock: &Superblock, expected: &StateSpec) -> Result<()> {
    let parts = expected.layout.on_drive(superblock.drive).len() as u64;
    if !expected.ahead || u64::from(superblock.slots) >= 2 * parts {
        return Ok(());
    }
    Err(Error::Drives {
        what: format!(
            "{}: --overlap-update needs a slot more for each of the {parts} parts, but the run was begun without it and has {} slots",
            dir.display(),
            superblock.slots
        ),
        remedy: "resume without --overlap-update, or move the run to other drives with nearfield state repartition --overlap-update".into(),
    })
}

fn read_journal(
    superblock: &Superblock,
    files: &Files,
    geometry: &Geometry,
) -> Result<Vec<Record>> {
    let damaged = |what: String, expected, found| Error::Damaged {
        drive: superblock.drive,
        path: files.journal.path().to_path_buf(),
        what,
        expected,
        found,
    };
    let blocks = files.read_journal(geometry)?;
    let blocks: Vec<&[u8]> = blocks.iter().map(|block| &block[..]).collect();
    let journal = scan(superblock.run, &blocks).map_err(|fault| {
        damaged(format!("journal record {}", fault.place), fault.expected, fault.found)
    })?;
    if journal.records.is_empty() {
        return Err(damaged("the journal, which has no record,".into(), 1, 0));
    }
    if journal.torn {
        tracing::info!(
            drive = superblock.drive,
            "the last journal record was cut short and does not count"
        );
    }
    Ok(journal.records)
}

fn read_slots(
    superblock: &Superblock,
    files: &Files,
    geometry: &Geometry,
) -> Result<Vec<SlotFound>> {
    (0..geometry.slots)
        .map(|slot| {
            let found =
                files.read_block(&files.slots, geometry.slot_header(slot), SlotFound::decode)?;
            Ok(match found {
                // A header of another run or slot was written to the wrong place, or read from there.
                SlotFound::Header(header)
                    if header.run != superblock.run || header.slot != slot =>
                {
                    SlotFound::Damaged { expected: u64::from(slot), found: u64::from(header.slot) }
                }
                found => found,
            })
        })
        .collect()
}

fn read_gradients(files: &Files, geometry: &Geometry) -> Result<Vec<GradientFound>> {
    (0..geometry.parts.len())
        .map(|place| {
            let offset = geometry.gradient(place).header;
            files.read_block(&files.gradients, offset, |bytes| GradientFound::decode(false, bytes))
        })
        .collect()
}

fn read_residuals(files: &Files, geometry: &Geometry) -> Result<Vec<[GradientFound; 2]>> {
    let Some(file) = &files.residual else { return Ok(Vec::new()) };
    let read = |place: usize, region: u32| {
        let offset = geometry.residual_header(place, region);
        files.read_block(file, offset, |bytes| GradientFound::decode(true, bytes))
    };
    (0..geometry.parts.len()).map(|place| Ok([read(place, 0)?, read(place, 1)?])).collect()
}

fn header_of<'a>(
    superblock: &Superblock,
    part: usize,
    found: &'a GradientFound,
) -> Option<&'a GradientHeader> {
    match found {
        GradientFound::Header(header)
            if header.run == superblock.run && header.part as usize == part =>
        {
            Some(header)
        }
        _ => None,
    }
}
