//! What to do with the drives of a run that ended somewhere: a pure decision over what each drive says.
//!
//! Two orders hold in every run and make the decision possible:
//!
//! 1. An event (begin, intent, commit, skip, void) is durable on **all** drives, with one sequence number, before
//!    the next begins on any. So newest records differ by at most one, and whoever is behind missed one event.
//! 2. No header of step t is written before the intent of t is durable on all drives; and a commit of t is
//!    written nowhere before all headers of t are durable everywhere. Data without a header is nobody's: free slots may
//!    be written ahead of the intent.
//!
//! | newest event s                    | state becomes | what is done                                          |
//! |-----------------------------------|---------------|-------------------------------------------------------|
//! | intent of t on every drive        | t             | parts still at t-1 are updated again; then commit     |
//! | intent of t on some drives only   | t-1           | voided: no header of t can have been written (2)      |
//! | commit of t on some or all        | t             | copied to the drives that lack it                     |
//! | skip on some or all               | as it was     | taken as done, copied to the drives that lack it      |
//! | void on some or all               | as it was     | copied to the drives that lack it                     |
//!
//! **Void.** The intent of t stays on some drives. Two things keep it from being taken for that of a later attempt
//! at t: a later intent has a higher sequence number, and intents count only when *every* drive has the same record.
//! To leave the rings without gaps, a drive that lacks record s gets a void at s, then every drive a void at s+1. A
//! crash in between again finds an intent that not every drive has, and voids it.
//!
//! **Skip.** A skip changes no slot and carries the trainer's state in full, so one drive is enough to complete it;
//! undoing it would make the trainer run an iteration that it had ended.
//!
//! Anything else was not left by a crash: a drive from an older copy, damage, or a power cut under
//! `Durability::Process`, which does not survive one. It is refused, with drive and subgroup named.

use std::path::PathBuf;

use super::journal::{Record, RecordKind, StepRecord};
use super::slots::{SlotFound, SlotHeader, SlotState};
use crate::error::{Error, Result};
use crate::layout::Layout;
use crate::types::HyperParameters;

/// What one drive says.
#[derive(Debug, Clone)]
pub(crate) struct DriveFacts {
    /// Directory, for messages.
    pub path: PathBuf,
    /// Records of its journal, oldest first; never empty.
    pub records: Vec<Record>,
    /// Its slots.
    pub slots: Vec<SlotFound>,
    /// Its parts (layout indices, flat order).
    pub parts: Vec<usize>,
}

/// An update that has begun and must be completed before anything else.
#[derive(Debug, Clone, PartialEq)]
pub struct Redo {
    /// Multiplier of each gradient element.
    pub unscale: f32,
    /// Hyper-parameters of each parameter group.
    pub groups: Vec<HyperParameters>,
    /// Layout indices of the parts still to be updated, ascending.
    pub parts: Vec<usize>,
}

/// Where a run stands when its drives are opened.
#[derive(Debug, Clone, PartialEq)]
pub struct Recovered {
    /// Optimizer step of the state; with `redo`, once that is done.
    pub step: u64,
    /// Training iterations done, skipped ones included; with `redo`, once that is done.
    pub iteration: u64,
    /// State of the trainer that belongs to it.
    pub blob: Vec<u8>,
    /// An update that was cut short.
    pub redo: Option<Redo>,
    /// What was found and repaired, for the log.
    pub notes: Vec<String>,
}

/// What to do.
#[derive(Debug, Clone)]
pub(crate) struct Decision {
    /// What the caller is told.
    pub recovered: Recovered,
    /// Records to make durable, in this order, on these drives.
    pub repairs: Vec<(u32, Record)>,
    /// Current slot of each part, by drive and place.
    pub current: Vec<Vec<SlotState>>,
}

/// Decides; `facts` are in the order of the drives.
pub(crate) fn decide(facts: &[DriveFacts], layout: &Layout) -> Result<Decision> {
    let mut notes = Vec::new();
    let newest: Vec<&Record> = facts.iter().map(last).collect();
    let sequence = newest.iter().map(|record| record.sequence).max().unwrap_or(0);
    check_histories(facts, sequence)?;
    let behind: Vec<u32> = (0..facts.len() as u32)
        .filter(|&drive| newest[drive as usize].sequence < sequence)
        .collect();
    let at = |kind: RecordKind| {
        newest.iter().copied().find(|record| record.sequence == sequence && record.kind == kind)
    };

    let mut repairs = Vec::new();
    let (content, state_step, in_progress) = match at(RecordKind::Intent) {
        Some(intent) if newest.iter().all(|record| record.same(intent)) => {
            (intent.content.clone(), intent.content.step, true)
        }
        Some(intent) => {
            let before = before_intent(facts, sequence)?;
            let void = |at| Record {
                run: intent.run,
                kind: RecordKind::Void,
                sequence: at,
                content: before.clone(),
            };
            repairs.extend(behind.iter().map(|&drive| (drive, void(sequence))));
            repairs.extend((0..facts.len() as u32).map(|drive| (drive, void(sequence + 1))));
            notes.push(format!(
                "step {} had not begun on every drive; its intent is void and its iteration runs again",
                intent.content.step
            ));
            (before.clone(), before.step, false)
        }
        None => {
            // `sequence` is the greatest of `newest`, so one drive has it.
            let event = newest.iter().find(|record| record.sequence == sequence).copied();
            let event =
                event.ok_or_else(|| Error::Invalid("a run has at least one drive".into()))?;
            repairs.extend(behind.iter().map(|&drive| (drive, event.clone())));
            for &drive in &behind {
                notes.push(format!(
                    "drive {drive} missed the last journal record; it was copied to it"
                ));
            }
            (event.content.clone(), event.content.step, false)
        }
    };

    let mut current = Vec::with_capacity(facts.len());
    let mut redo = Vec::new();
    for (drive, fact) in facts.iter().enumerate() {
        let chosen = choose(drive as u32, fact, layout, state_step, in_progress, &mut notes)?;
        redo.extend(
            fact.parts
                .iter()
                .zip(&chosen)
                .filter(|(_, slot)| slot.generation < state_step)
                .map(|(&part, _)| part),
        );
        current.push(chosen);
    }
    redo.sort_unstable();

    let mut pending = None;
    if in_progress && redo.is_empty() {
        notes.push(format!("step {state_step} was complete on every drive and is now committed"));
        for (drive, record) in newest.iter().enumerate() {
            let commit =
                Record { kind: RecordKind::Commit, sequence: sequence + 1, ..(*record).clone() };
            repairs.push((drive as u32, commit));
        }
    } else if in_progress {
        notes.push(format!(
            "step {state_step} was cut short; {} parts are updated again",
            redo.len()
        ));
        pending =
            Some(Redo { unscale: content.unscale, groups: content.groups.clone(), parts: redo });
    }
    let recovered = Recovered {
        step: state_step,
        iteration: content.iteration,
        blob: content.blob,
        redo: pending,
        notes,
    };
    Ok(Decision { recovered, repairs, current })
}

fn last(fact: &DriveFacts) -> &Record {
    fact.records.last().expect("a drive without journal records is refused when it is read")
}

fn record_at(fact: &DriveFacts, sequence: u64) -> Option<&Record> {
    fact.records.iter().rev().find(|record| record.sequence == sequence)
}

/// Drives must agree on the last two events; an intent on one may be a void on another.
fn check_histories(facts: &[DriveFacts], sequence: u64) -> Result<()> {
    for (drive, fact) in facts.iter().enumerate() {
        let own = last(fact).sequence;
        if own + 1 < sequence {
            return Err(Error::Drives {
                what: format!(
                    "drive {drive} ({}) is {} journal records behind the other drives: it comes from an older copy of the run",
                    fact.path.display(),
                    sequence - own
                ),
                remedy: "give the drives as they were left by the last run, or put all of them back from one copy".into(),
            });
        }
    }
    for at in [sequence.checked_sub(1), Some(sequence)].into_iter().flatten() {
        let mut seen: Vec<(usize, &Record)> = Vec::new();
        for (drive, fact) in facts.iter().enumerate() {
            let Some(record) = record_at(fact, at) else { continue };
            if let Some((other, _)) =
                seen.iter().find(|(_, before)| !before.same(record) && !compatible(before, record))
            {
                return Err(Error::Drives {
                    what: format!(
                        "drive {drive} ({}) and drive {other} ({}) tell different histories (journal record {at})",
                        fact.path.display(),
                        facts[*other].path.display()
                    ),
                    remedy: "put all drives of the run back from one copy".into(),
                });
            }
            seen.push((drive, record));
        }
    }
    Ok(())
}

fn compatible(one: &Record, other: &Record) -> bool {
    use RecordKind::{Intent, Void};
    matches!((one.kind, other.kind), (Intent, Void) | (Void, Intent))
}

/// What the trainer had recorded before the intent of `sequence`.
fn before_intent(facts: &[DriveFacts], sequence: u64) -> Result<StepRecord> {
    // Where a void fills the place of the intent, it repeats the record before it.
    let void = facts
        .iter()
        .filter_map(|fact| record_at(fact, sequence))
        .find(|record| record.kind == RecordKind::Void);
    let before = sequence.checked_sub(1).and_then(|before| {
        facts
            .iter()
            .filter_map(|fact| record_at(fact, before))
            .find(|record| record.kind != RecordKind::Intent)
    });
    match void.or(before) {
        Some(record) => Ok(record.content.clone()),
        None => Err(Error::Drives {
            what: "the journals begin with an intent, which no run writes first".into(),
            remedy: "put all drives of the run back from one copy".into(),
        }),
    }
}

/// The newest slot of each part of a drive, checked against what the journal allows.
fn choose(
    drive: u32,
    fact: &DriveFacts,
    layout: &Layout,
    step: u64,
    in_progress: bool,
    notes: &mut Vec<String>,
) -> Result<Vec<SlotState>> {
    let file = fact.path.join(super::geometry::SLOTS_FILE);
    let headers: Vec<&SlotHeader> = fact
        .slots
        .iter()
        .filter_map(|slot| match slot {
            SlotFound::Header(header) => Some(header),
            _ => None,
        })
        .collect();
    let damaged = fact.slots.iter().enumerate().find_map(|(slot, found)| match *found {
        SlotFound::Damaged { expected, found } => Some((slot, expected, found)),
        _ => None,
    });
    let mut chosen = Vec::with_capacity(fact.parts.len());
    for &part in &fact.parts {
        let subgroup = layout.parts[part].subgroup;
        let best = headers
            .iter()
            .filter(|header| header.part as usize == part)
            .max_by_key(|header| header.generation);
        let fits = best.is_some_and(|header| {
            header.generation == step || (in_progress && header.generation + 1 == step)
        });
        let (Some(best), true) = (best, fits) else {
            if let Some((slot, expected, found)) = damaged {
                return Err(Error::Damaged {
                    drive,
                    path: file,
                    what: format!(
                        "the header of slot {slot}, which held subgroup {subgroup} (part {part}: param and moments),"
                    ),
                    expected,
                    found,
                });
            }
            let newest = match best {
                Some(header) => format!("its newest state is of step {}", header.generation),
                None => "no slot holds its state".into(),
            };
            return Err(Error::Drives {
                what: format!(
                    "drive {drive} ({}), subgroup {subgroup} (part {part}): {newest}, but the journal says step {step}",
                    fact.path.display()
                ),
                remedy: "give the drives as the last run left them, or put all of them back from one copy (a run with \
                         --durability process does not survive a power cut)"
                    .into(),
            });
        };
        let twins = headers
            .iter()
            .filter(|header| header.part == best.part && header.generation == best.generation);
        if twins.count() > 1 {
            return Err(Error::Drives {
                what: format!(
                    "drive {drive} ({}), subgroup {subgroup} (part {part}): two slots claim step {}",
                    fact.path.display(),
                    best.generation
                ),
                remedy: "put all drives of the run back from one copy".into(),
            });
        }
        chosen.push(SlotState {
            slot: best.slot,
            generation: best.generation,
            checksums: best.checksums,
        });
    }
    if let Some((slot, ..)) = damaged {
        notes.push(format!("drive {drive}: the header of slot {slot}, which holds no current state, was damaged; check the drive's health"));
    }
    Ok(chosen)
}
