//! Both backends behave the same.

use proptest::prelude::*;

use super::*;
use crate::io::{FaultAction, FaultOperation, FaultRule};

fn start(backend: Backend, faults: Option<Arc<Faults>>) -> Arc<IoEngine> {
    let options =
        IoOptions { backend, block_bytes: 8192, queue_depth: 4, faults, ..IoOptions::default() };
    IoEngine::start("test", &options).unwrap()
}

fn both(test: impl Fn(Backend)) {
    for backend in [Backend::Auto, Backend::Threads] {
        test(backend);
    }
}

fn pattern(length: usize, seed: u8) -> impl Iterator<Item = u8> {
    (0..length)
        .map(move |index| (index as u8).wrapping_mul(31).wrapping_add(seed) ^ (index >> 8) as u8)
}

#[test]
fn many_callers_at_once_read_back_what_they_wrote() {
    both(|backend| {
        let directory = tempfile::tempdir().unwrap();
        let engine = start(backend, None);
        let arena = Arena::new("test", 8 << 20, false).unwrap();
        engine.register(&[&arena]).unwrap();
        let file = engine.open(&directory.path().join("f"), OpenMode::Create).unwrap();
        file.reserve(8 << 20).unwrap();
        std::thread::scope(|scope| {
            for caller in 0..8_u64 {
                let (engine, file, arena) = (&engine, &file, &arena);
                scope.spawn(move || {
                    let mut region = arena.allocate(100 * 4096).unwrap();
                    for (byte, value) in region.iter_mut().zip(pattern(100 * 4096, caller as u8)) {
                        *byte = value;
                    }
                    let offset = caller * (1 << 20);
                    engine.write(file, offset, &region).unwrap();
                    region.fill(0);
                    engine.read(file, offset, &mut region).unwrap();
                    assert!(region.iter().copied().eq(pattern(100 * 4096, caller as u8)));
                });
            }
        });
        engine.flush(&file).unwrap();
        let stats = engine.stats();
        assert_eq!(
            (stats.bytes_read, stats.bytes_written, stats.flushes),
            (8 * 409_600, 8 * 409_600, 1)
        );
    });
}

#[test]
fn reading_past_the_end_says_where_the_file_ends() {
    both(|backend| {
        let directory = tempfile::tempdir().unwrap();
        let engine = start(backend, None);
        let path = directory.path().join("short");
        std::fs::write(&path, vec![1; 12_288]).unwrap();
        let file = engine.open(&path, OpenMode::Read).unwrap();
        let arena = Arena::new("test", 1 << 20, false).unwrap();
        let mut region = arena.allocate(32_768).unwrap();
        let error = engine.read(&file, 0, &mut region).unwrap_err();
        assert!(
            matches!(error, Error::Truncated { expected: 32_768, actual: 12_288, .. }),
            "{error}"
        );
    });
}

#[test]
fn a_direct_transfer_off_the_grid_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let engine = start(Backend::Auto, None);
    let file = engine.open(&directory.path().join("f"), OpenMode::Create).unwrap();
    let arena = Arena::new("test", 1 << 20, false).unwrap();
    let region = arena.allocate(8192).unwrap();
    if file.direct() {
        let error = engine.write(&file, 100, &region).unwrap_err();
        assert!(matches!(error, Error::Misaligned { what: "offset", value: 100, .. }), "{error}");
    }
    assert!(engine.write(&file, 0, &region).is_ok());
}

#[test]
fn a_memory_file_system_works_with_or_without_direct_io() {
    let Ok(directory) = tempfile::tempdir_in("/dev/shm") else { return };
    let engine = start(Backend::Auto, None);
    let file = engine.open(&directory.path().join("f"), OpenMode::Create).unwrap();
    let arena = Arena::new("test", 1 << 20, false).unwrap();
    let mut region = arena.allocate(98_304).unwrap();
    region.fill(7);
    engine.write(&file, 0, &region).unwrap();
    region.fill(0);
    engine.read(&file, 0, &mut region).unwrap();
    assert!(region.iter().all(|&byte| byte == 7));
}

fn with_fault(backend: Backend, rule: FaultRule) -> (Result<()>, Vec<u8>) {
    let directory = tempfile::tempdir().unwrap();
    let engine = start(backend, Some(Arc::new(Faults::new(vec![rule]))));
    let file = engine.open(&directory.path().join("slots.nf"), OpenMode::Create).unwrap();
    let arena = Arena::new("test", 1 << 20, false).unwrap();
    let mut region = arena.allocate(65_536).unwrap();
    for (byte, value) in region.iter_mut().zip(pattern(65_536, 3)) {
        *byte = value;
    }
    let outcome = engine
        .write(&file, 0, &region)
        .and_then(|()| engine.flush(&file))
        .and_then(|()| engine.read(&file, 0, &mut region));
    (outcome, region.to_vec())
}

fn rule(operation: FaultOperation, nth: u64, action: FaultAction) -> FaultRule {
    FaultRule { operation, nth, file: "slots".into(), action }
}

#[test]
fn each_injected_fault_gives_its_error_value() {
    both(|backend| {
        let cases = [
            (FaultOperation::Write, libc::ENOSPC, "full"),
            (FaultOperation::Read, libc::EIO, "health"),
            (FaultOperation::Flush, libc::EIO, "flush"),
            (FaultOperation::Write, libc::EROFS, "read-only"),
            (FaultOperation::Read, libc::ENODEV, "gone"),
        ];
        for (operation, errno, word) in cases {
            let (outcome, _) = with_fault(backend, rule(operation, 1, FaultAction::Fail(errno)));
            let error = outcome.unwrap_err();
            assert!(
                error.to_string().contains(word) && error.to_string().contains("slots.nf"),
                "{error}"
            );
        }
        let (outcome, _) = with_fault(backend, rule(FaultOperation::Any, 9, FaultAction::Crash));
        assert!(matches!(outcome.unwrap_err(), Error::Cancelled(_)));
    });
}

#[test]
fn short_transfers_are_continued_and_a_flipped_bit_arrives() {
    both(|backend| {
        for operation in [FaultOperation::Read, FaultOperation::Write] {
            let (outcome, data) = with_fault(backend, rule(operation, 3, FaultAction::Short));
            outcome.unwrap();
            assert!(data.into_iter().eq(pattern(65_536, 3)));
        }
        let (outcome, data) =
            with_fault(backend, rule(FaultOperation::Read, 2, FaultAction::FlipBit));
        outcome.unwrap();
        let wrong =
            data.iter().zip(pattern(65_536, 3)).filter(|&(&read, written)| read != written).count();
        assert_eq!(wrong, 1);
    });
}

#[test]
fn a_power_cut_undoes_only_what_no_flush_has_covered() {
    let directory = tempfile::tempdir().unwrap();
    let faults = Arc::new(Faults::tracking(Vec::new()));
    let engine = start(Backend::Auto, Some(Arc::clone(&faults)));
    let path = directory.path().join("f");
    let file = engine.open(&path, OpenMode::Create).unwrap();
    file.reserve(65_536).unwrap();
    let arena = Arena::new("test", 1 << 20, false).unwrap();
    let mut region = arena.allocate(65_536).unwrap();
    region.fill(1);
    engine.write(&file, 0, &region).unwrap();
    engine.flush(&file).unwrap();
    region.fill(2);
    engine.write(&file, 0, &region[..32_768]).unwrap();
    faults.power_cut(5).unwrap();
    let after = std::fs::read(&path).unwrap();
    assert!(after[32_768..].iter().all(|&byte| byte == 1));
    assert!(after.chunks(512).all(|sector| sector.iter().all(|&byte| byte == sector[0])));
    assert!(after[..32_768].contains(&1));
}

#[test]
fn rules_are_read_from_text() {
    let rule: FaultRule = "write:5:ENOSPC@drive1/slots.nf".parse().unwrap();
    assert_eq!(rule.action, FaultAction::Fail(libc::ENOSPC));
    assert_eq!((rule.nth, rule.file.as_str()), (5, "drive1/slots.nf"));
    assert!("write:x:EIO".parse::<FaultRule>().is_err());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn any_aligned_range_reads_back(blocks in prop::collection::vec((0_u64..64, 1_u64..40, any::<u8>()), 1..8)) {
        let directory = tempfile::tempdir().unwrap();
        let engine = start(Backend::Auto, None);
        let file = engine.open(&directory.path().join("f"), OpenMode::Create).unwrap();
        file.reserve(1 << 20).unwrap();
        let mut model = vec![0_u8; 104 * 4096];
        let arena = Arena::new("test", 1 << 20, false).unwrap();
        for (start, length, value) in blocks {
            let mut region = arena.allocate(length * 4096).unwrap();
            region.fill(value);
            engine.write(&file, start * 4096, &region).unwrap();
            model[(start * 4096) as usize..((start + length) * 4096) as usize].fill(value);
        }
        let mut region = arena.allocate(104 * 4096).unwrap();
        engine.read(&file, 0, &mut region).unwrap();
        prop_assert_eq!(&region[..], &model[..]);
    }
}
