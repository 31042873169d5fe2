//! Runs that are cut short at every request.

use super::*;
use crate::io::{FaultAction, FaultOperation, FaultRule};

fn at(operation: FaultOperation, nth: u64, action: FaultAction) -> Vec<FaultRule> {
    vec![FaultRule { operation, nth, file: String::new(), action }]
}

/// Runs with a crash at the first, second … write and flush until a run ends without one; reads change nothing, so these
/// are all states that a crash can leave.
fn at_every_change(mut run: impl FnMut(FaultOperation, u64) -> bool) {
    for operation in [FaultOperation::Write, FaultOperation::Flush] {
        let points = (1..).take_while(|&nth| run(operation, nth)).count();
        assert!(points >= 30 || operation == FaultOperation::Flush, "{points} writes in a run");
    }
}

/// One session of the run: opens, goes on to the end or to the crash; says how far the journal got, if it opened.
fn session(toy: &Toy, durability: Durability, faults: &Arc<Faults>) -> Result<Recovered> {
    let (stores, recovered) = toy.open(durability, Some(Arc::clone(faults)))?;
    train(&stores, &recovered, &ITERATIONS).map(|()| recovered)
}

/// Opens after a crash, checks what recovery says, ends the run and compares it with one that was never cut short.
fn resume_and_compare(toy: &Toy, durability: Durability, context: &str) -> u64 {
    let (stores, recovered) =
        toy.open(durability, None).unwrap_or_else(|error| panic!("{context}: {error}"));
    assert_eq!(recovered.step, steps(recovered.iteration), "{context}");
    assert_eq!(recovered.blob, record(recovered.iteration, 0).blob, "{context}");
    if recovered.redo.is_none() {
        assert_eq!(digest(&stores).unwrap(), reference(recovered.step), "{context}");
    }
    train(&stores, &recovered, &ITERATIONS).unwrap_or_else(|error| panic!("{context}: {error}"));
    assert_eq!(digest(&stores).unwrap(), reference(4), "{context}");
    drop(stores);
    recovered.iteration
}

#[test]
fn a_power_cut_at_any_request_loses_no_finished_iteration() {
    let template = Toy::created();
    at_every_change(|operation, nth| {
        let toy = template.copy();
        let faults = Arc::new(Faults::tracking(at(operation, nth, FaultAction::Crash)));
        let ended = session(&toy, Durability::Power, &faults);
        assert_eq!(ended.is_err(), faults.crashed());
        // Whatever a drive had told to be recorded before the cut is there after it.
        let told = newest_on_all(&toy);
        faults.power_cut(nth).unwrap();
        let context = format!("power cut at {operation:?} {nth}");
        let reached = resume_and_compare(&toy, Durability::Power, &context);
        assert!(reached + 1 >= told, "{context}: {reached} of {told}");
        if !faults.crashed() {
            assert_eq!(reached, ITERATIONS.len() as u64);
        }
        faults.crashed()
    });
}

/// Iterations that the journal of every drive counts as done, torn and unflushed records included.
fn newest_on_all(toy: &Toy) -> u64 {
    let report = inspect(&toy.dirs).unwrap();
    report.drives.iter().map(|drive| drive.journal[0].1).min().unwrap()
}

#[test]
fn a_kill_at_any_request_is_survived_without_flushes() {
    let template = Toy::created();
    at_every_change(|operation, nth| {
        let toy = template.copy();
        let faults = Arc::new(Faults::new(at(operation, nth, FaultAction::Crash)));
        let ended = session(&toy, Durability::Process, &faults);
        assert_eq!(ended.is_err(), faults.crashed());
        resume_and_compare(&toy, Durability::Process, &format!("kill at {operation:?} {nth}"));
        faults.crashed()
    });
}

#[test]
fn a_second_power_cut_during_recovery_is_survived() {
    let template = Toy::created();
    for nth in (1..).step_by(7) {
        let toy = template.copy();
        let first = Arc::new(Faults::tracking(at(FaultOperation::Write, nth, FaultAction::Crash)));
        if session(&toy, Durability::Power, &first).is_ok() {
            assert!(nth > 30, "a run has more than {nth} writes");
            break;
        }
        first.power_cut(nth).unwrap();
        // Reads change nothing, so the second crash is at a write or a flush of what recovery does next.
        for (operation, second) in [FaultOperation::Write, FaultOperation::Flush]
            .into_iter()
            .flat_map(|operation| [1, 2, 3, 5, 9].map(|second| (operation, second)))
        {
            let again = toy.copy();
            let faults = Arc::new(Faults::tracking(at(operation, second, FaultAction::Crash)));
            // Near the end of the run there may be fewer requests than that; then it simply ends.
            let ended = session(&again, Durability::Power, &faults);
            assert_eq!(ended.is_err(), faults.crashed());
            faults.power_cut(nth * 31 + second).unwrap();
            let context = format!("write {nth}, then {operation:?} {second}");
            resume_and_compare(&again, Durability::Power, &context);
        }
    }
}

#[test]
fn what_was_found_is_flushed_before_recovery_writes() {
    // The process ends after the last header of step 1 is written; nothing says that it is durable.
    let toy = Toy::created();
    let (stores, _) = toy.open(Durability::Process, None).unwrap();
    offload(&stores, 1).unwrap();
    stores.iter().for_each(|store| store.intent(&record(1, 1)).unwrap());
    let cut = Arc::new(Faults::new(at(FaultOperation::Write, 1, FaultAction::Crash)));
    update_without_commit(&stores);
    drop(stores);

    let engines = engines(2, Some(Arc::clone(&cut)));
    open(&toy.dirs, engines.clone(), None, Durability::Power).unwrap_err();
    assert!(cut.crashed(), "recovery has a commit to write");
    for engine in &engines {
        assert_eq!(engine.stats().flushes, 4, "slots, gradients, residuals and journal come first");
    }
    let (_, recovered) = toy.open(Durability::Power, None).unwrap();
    assert_eq!((recovered.step, recovered.redo), (1, None));
}

fn update_without_commit(stores: &[DriveStore]) {
    let failed = update_until_commit(stores);
    assert!(failed.is_ok());
}

fn update_until_commit(stores: &[DriveStore]) -> Result<()> {
    for store in stores {
        for way in store.begin_update(1)? {
            let zeros = vec![0.0; padded(way.part)];
            let mut sums = Vec::new();
            for variable in [Variable::Param, Variable::ExpAvg] {
                sums.push(put(
                    store,
                    store.slots_file(),
                    store.data_offset(way.to_slot, variable)?,
                    &zeros,
                )?);
            }
            store.seal(way.part, way.to_slot, 1, &sums)?;
        }
    }
    Ok(())
}

#[test]
fn after_an_error_of_the_drive_nothing_more_is_written_until_it_is_opened_again() {
    for operation in [FaultOperation::Write, FaultOperation::Flush] {
        let toy = Toy::created();
        let fail = |action| vec![FaultRule { operation, nth: 6, file: "drive1".into(), action }];
        let faults = Arc::new(Faults::new(fail(FaultAction::Fail(libc::EIO))));
        let (stores, recovered) = toy.open(Durability::Power, Some(faults)).unwrap();
        let error = train(&stores, &recovered, &ITERATIONS).unwrap_err();
        assert!(
            error.to_string().contains("drive1") && error.to_string().contains("fault"),
            "{error}"
        );
        drop(stores);
        resume_and_compare(&toy, Durability::Power, "after EIO");
    }
}

#[test]
fn calls_out_of_turn_are_refused() {
    let toy = Toy::created();
    let (stores, _) = toy.open(Durability::Power, None).unwrap();
    let store = &stores[0];
    assert!(store.begin_update(1).is_err());
    assert!(store.commit().is_err());
    assert!(store.intent(&record(2, 2)).is_err());
    assert!(store.seal(0, 0, 0, &[0, 0]).is_err());
    offload(&stores, 1).unwrap();
    store.intent(&record(1, 1)).unwrap();
    assert!(store.seal_gradient(0, 1, 1536, &[0]).is_err(), "the update may need the old ones");
    let moves = store.begin_update(1).unwrap();
    assert!(store.finish_update().is_err());
    assert!(store.seal(moves[1].part, moves[1].to_slot, 1, &[0, 0]).is_err());
    assert!(store.seal(moves[0].part, moves[0].from_slot, 1, &[0, 0]).is_err());
}
