//! The table of `recovery.rs`, row by row.

use super::super::journal::Record;
use super::super::recovery::{Decision, DriveFacts, decide};
use super::super::slots::{SlotFound, SlotHeader};
use super::*;
use RecordKind::{Begin, Commit, Intent, Skip, Void};

const RUN: RunId = RunId([7; 16]);

/// A journal record in short: kind, sequence number, iteration, step.
type Short = (RecordKind, u64, u64, u64);

fn long((kind, sequence, iteration, step): Short) -> Record {
    Record { run: RUN, kind, sequence, content: record(iteration, step) }
}

/// A drive with the given records and, for each of its parts, the generations that slots hold.
fn drive(index: u32, records: &[Short], generations: &[&[u64]]) -> DriveFacts {
    let parts = spec().layout.on_drive(index);
    assert_eq!(parts.len(), generations.len());
    let mut slots = Vec::new();
    for (&part, generations) in parts.iter().zip(generations) {
        for &generation in *generations {
            slots.push(SlotFound::Header(SlotHeader {
                run: RUN,
                slot: slots.len() as u32,
                part: part as u32,
                subgroup: part as u32,
                variables: 2,
                generation,
                elements: padded(part) as u64,
                checksums: [generation, 0, 0],
            }));
        }
    }
    DriveFacts {
        path: PathBuf::from(format!("d{index}")),
        records: records.iter().map(|&short| long(short)).collect(),
        slots,
        parts,
    }
}

fn decision(first: DriveFacts, second: DriveFacts) -> Result<Decision> {
    decide(&[first, second], &spec().layout)
}

fn repairs(decision: &Decision) -> Vec<(u32, Short)> {
    let short = |record: &Record| {
        (record.kind, record.sequence, record.content.iteration, record.content.step)
    };
    decision.repairs.iter().map(|(drive, record)| (*drive, short(record))).collect()
}

fn refused(first: DriveFacts, second: DriveFacts) -> String {
    decision(first, second).expect_err("no crash leaves this").to_string()
}

const START: Short = (Begin, 0, 0, 0);
const FIRST: Short = (Intent, 1, 1, 1);
const DONE: Short = (Commit, 2, 1, 1);
const SECOND: Short = (Intent, 3, 2, 2);

#[test]
fn nothing_is_done_to_a_run_that_ended_between_steps() {
    let found = decision(
        drive(0, &[START, FIRST, DONE], &[&[1, 0], &[0, 1]]),
        drive(1, &[START, FIRST, DONE], &[&[1]]),
    )
    .unwrap();
    assert_eq!(repairs(&found), []);
    let recovered = &found.recovered;
    assert_eq!((recovered.step, recovered.iteration, &recovered.redo), (1, 1, &None));
    assert_eq!(found.current[0].iter().map(|slot| slot.slot).collect::<Vec<_>>(), [0, 3]);
}

#[test]
fn an_intent_on_every_drive_is_carried_out() {
    let found = decision(
        drive(0, &[START, FIRST, DONE, SECOND], &[&[1, 2], &[1, 0]]),
        drive(1, &[START, FIRST, DONE, SECOND], &[&[0, 1]]),
    )
    .unwrap();
    assert_eq!(repairs(&found), []);
    assert_eq!((found.recovered.step, found.recovered.iteration), (2, 2));
    assert_eq!(found.recovered.blob, b"after iteration 2");
    assert_eq!(found.recovered.redo.unwrap().parts, [1, 2]);
    let generations: Vec<u64> = found.current[0].iter().map(|slot| slot.generation).collect();
    assert_eq!(generations, [2, 1]);
}

#[test]
fn an_intent_whose_parts_are_all_done_is_committed() {
    let records = [START, FIRST, DONE, SECOND];
    let found =
        decision(drive(0, &records, &[&[1, 2], &[1, 2]]), drive(1, &records, &[&[2, 1]])).unwrap();
    assert_eq!(repairs(&found), [(0, (Commit, 4, 2, 2)), (1, (Commit, 4, 2, 2))]);
    assert_eq!((found.recovered.step, &found.recovered.redo), (2, &None));
}

#[test]
fn an_intent_on_some_drives_only_is_void() {
    let found = decision(
        drive(0, &[START, FIRST, DONE, SECOND], &[&[1, 0], &[1]]),
        drive(1, &[START, FIRST, DONE], &[&[1]]),
    )
    .unwrap();
    let void = |sequence| (Void, sequence, 1, 1);
    assert_eq!(repairs(&found), [(1, void(3)), (0, void(4)), (1, void(4))]);
    assert_eq!((found.recovered.step, found.recovered.iteration), (1, 1));
    assert_eq!(found.recovered.blob, b"after iteration 1");

    // A crash among these repairs leads to the same end, whichever of them had been made.
    for made in 1..=3 {
        let mut logs = [vec![START, FIRST, DONE, SECOND], vec![START, FIRST, DONE]];
        for (drive, short) in repairs(&found).into_iter().take(made) {
            logs[drive as usize].push(short);
        }
        let again =
            decision(drive(0, &logs[0], &[&[1, 0], &[1]]), drive(1, &logs[1], &[&[1]])).unwrap();
        for (drive, short) in repairs(&again) {
            logs[drive as usize].push(short);
        }
        assert_eq!((again.recovered.step, again.recovered.iteration), (1, 1));
        for log in &logs {
            assert_eq!(log.last(), Some(&void(4)), "after {made} repairs");
            assert!(log.iter().zip(0..).all(|(short, sequence)| short.1 == sequence), "{log:?}");
        }
        let settled =
            decision(drive(0, &logs[0], &[&[1, 0], &[1]]), drive(1, &logs[1], &[&[1]])).unwrap();
        assert_eq!(repairs(&settled), []);
    }
}

#[test]
fn a_commit_or_a_skip_on_one_drive_is_copied_to_the_other() {
    let skip = (Skip, 3, 2, 1);
    for (first, second, missing) in [
        (vec![START, FIRST, DONE], vec![START, FIRST], DONE),
        (vec![START, FIRST, DONE, skip], vec![START, FIRST, DONE], skip),
    ] {
        let one = decision(drive(0, &first, &[&[1], &[1]]), drive(1, &second, &[&[1]])).unwrap();
        assert_eq!(repairs(&one), [(1, missing)]);
        assert_eq!((one.recovered.step, one.recovered.iteration), (1, missing.2));
        let other = decision(drive(0, &second, &[&[1], &[1]]), drive(1, &first, &[&[1]])).unwrap();
        assert_eq!(repairs(&other), [(0, missing)]);
    }
}

#[test]
fn what_no_crash_leaves_is_refused() {
    let whole = [START, FIRST, DONE];
    let good = || drive(1, &whole, &[&[1]]);
    let said = refused(drive(0, &whole, &[&[1], &[0]]), good());
    assert!(
        said.contains("subgroup 2") && said.contains("of step 0, but the journal says step 1"),
        "{said}"
    );
    let said = refused(drive(0, &whole, &[&[1], &[2]]), good());
    assert!(said.contains("subgroup 2") && said.contains("of step 2"), "{said}");
    let said = refused(drive(0, &whole, &[&[1], &[1, 1]]), good());
    assert!(said.contains("two slots claim step 1"), "{said}");
    let said = refused(drive(0, &whole, &[&[1], &[]]), good());
    assert!(said.contains("no slot holds its state"), "{said}");
    let said = refused(drive(0, &[START], &[&[0], &[0]]), good());
    assert!(said.contains("drive 0") && said.contains("older copy"), "{said}");
    let said = refused(drive(0, &[START, FIRST, (Commit, 2, 9, 1)], &[&[1], &[1]]), good());
    assert!(said.contains("different histories"), "{said}");
    let said = refused(drive(0, &[START, FIRST, DONE, SECOND], &[&[2], &[1]]), good());
    assert!(said.contains("of step 2"), "a slot of a step that had not begun: {said}");
}

#[test]
fn a_damaged_header_counts_only_when_a_part_lacks_its_state() {
    let records = [START, FIRST, DONE];
    let damaged = SlotFound::Damaged { expected: 1, found: 2 };
    let mut spare = drive(0, &records, &[&[1, 0], &[1]]);
    spare.slots.push(damaged);
    let found = decision(spare, drive(1, &records, &[&[1]])).unwrap();
    assert!(found.recovered.notes[0].contains("slot 3"), "{:?}", found.recovered.notes);

    let mut needed = drive(0, &records, &[&[1], &[0]]);
    needed.slots.push(damaged);
    let said = refused(needed, drive(1, &records, &[&[1]]));
    assert!(said.contains("the header of slot 2") && said.contains("subgroup 2"), "{said}");

    let mut torn = drive(0, &records, &[&[1], &[1]]);
    torn.slots.push(SlotFound::Torn);
    assert_eq!(
        decision(torn, drive(1, &records, &[&[1]])).unwrap().recovered.notes,
        Vec::<String>::new()
    );
}
