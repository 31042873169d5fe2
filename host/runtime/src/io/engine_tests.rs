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
fn a_memory_file_system_is_never_called_direct() {
    let Ok(directory) = tempfile::tempdir_in("/dev/shm") else {
        eprintln!("/dev/shm is not there; this test needs a file system in memory");
        return;
    };
    let path = directory.path().join("f");
    std::fs::write(&path, b"kept").unwrap();
    let required = IoOptions { direct: Direct::Required, ..IoOptions::default() };
    let error = IoEngine::start("test", &required).unwrap().open(&path, OpenMode::Create);
    assert!(error.unwrap_err().to_string().contains("--direct off"));
    assert_eq!(std::fs::read(&path).unwrap(), b"kept");
    let engine = start(Backend::Auto, None);
    let file = engine.open(&path, OpenMode::Create).unwrap();
    assert_eq!((file.direct(), file.alignment(), file.len().unwrap()), (false, 1, 0));
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

#[test]
fn memory_mapped_where_a_registered_arena_was_is_not_taken_for_it() {
    let directory = tempfile::tempdir().unwrap();
    let engine = start(Backend::Auto, None);
    let path = directory.path().join("f");
    let file = engine.open(&path, OpenMode::Create).unwrap();
    let registered = Arena::new("test", 4 << 20, false).unwrap();
    engine.register(&[&registered]).unwrap();
    registered.allocate(8192).unwrap().fill(0xaa);
    drop(registered);
    for _ in 0..4 {
        let arena = Arena::new("test", 4 << 20, false).unwrap();
        let mut region = arena.allocate(8192).unwrap();
        region.fill(0x55);
        engine.write(&file, 0, &region).unwrap();
        assert!(std::fs::read(&path).unwrap().iter().all(|&byte| byte == 0x55));
    }
}

#[test]
fn a_second_registration_is_refused_and_transfers_go_on() {
    let directory = tempfile::tempdir().unwrap();
    let engine = start(Backend::Auto, None);
    let file = engine.open(&directory.path().join("f"), OpenMode::Create).unwrap();
    let arenas = [0, 1].map(|_| Arena::new("test", 1 << 20, false).unwrap());
    let first = engine.register(&[&arenas[0]]).unwrap();
    assert!(!first || !engine.register(&[&arenas[1]]).unwrap());
    for arena in &arenas {
        engine.write(&file, 0, &arena.allocate(20_480).unwrap()).unwrap();
    }
}

/// Makes `io_uring_setup` fail with `errno` in this thread and those it starts, as a container's profile does.
fn deny_io_uring(errno: i32) {
    let jump = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
    let give = (libc::BPF_RET | libc::BPF_K) as u16;
    let step = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    let mut program = [
        step((libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16, 0, 0, 0),
        step(jump, 0, 1, libc::SYS_io_uring_setup as u32),
        step(give, 0, 0, libc::SECCOMP_RET_ERRNO | errno as u32),
        step(give, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: both calls concern this thread only, and the program is copied by the kernel.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        let mode = libc::SECCOMP_MODE_FILTER;
        assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, mode, &raw const program, 0, 0), 0);
    }
}

#[test]
fn where_io_uring_is_denied_threads_take_over_and_a_requirement_names_the_cause() {
    for (errno, cause) in [(libc::EPERM, "denied"), (libc::ENOSYS, "does not offer")] {
        let denied = move || {
            deny_io_uring(errno);
            assert_eq!(start(Backend::Auto, None).backend(), "threads");
            let required = IoOptions { backend: Backend::Uring, ..IoOptions::default() };
            let error = IoEngine::start("test", &required).unwrap_err().to_string();
            assert!(error.contains(cause), "{error}");
        };
        std::thread::spawn(denied).join().unwrap();
    }
}

#[test]
fn reserving_neither_shortens_a_file_nor_fills_a_drive_that_is_too_small() {
    let directory = tempfile::tempdir().unwrap();
    let engine = start(Backend::Auto, None);
    let file = engine.open(&directory.path().join("f"), OpenMode::Create).unwrap();
    file.reserve(65_536).unwrap();
    file.reserve(4096).unwrap();
    assert_eq!(file.len().unwrap(), 65_536);
    let error = file.reserve(1 << 60).unwrap_err();
    assert!(
        matches!(error, Error::NoSpace { needed, available, .. } if needed > available),
        "{error}"
    );
    assert_eq!(file.len().unwrap(), 65_536);
}

#[test]
fn a_file_that_ends_off_the_grid_is_named_truncated() {
    both(|backend| {
        let directory = tempfile::tempdir().unwrap();
        let engine = start(backend, None);
        let path = directory.path().join("short");
        std::fs::write(&path, vec![1; 10_001]).unwrap();
        let file = engine.open(&path, OpenMode::Read).unwrap();
        let arena = Arena::new("test", 1 << 20, false).unwrap();
        let error = engine.read(&file, 0, &mut arena.allocate(32_768).unwrap()).unwrap_err();
        assert!(matches!(error, Error::Truncated { actual: 10_001, .. }), "{error}");
    });
}

#[test]
fn a_flush_covers_only_writes_that_had_completed_when_it_began() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("f");
    std::fs::write(&path, [1; 1024]).unwrap();
    let file = DriveFile::open(&path, OpenMode::ReadWrite, Direct::Off).unwrap();
    let again = DriveFile::open(&path, OpenMode::ReadWrite, Direct::Off).unwrap();
    let faults = Faults::tracking(Vec::new());
    let done = faults.will_write(&file, 0, 512).unwrap();
    file.write_once(0, &[2; 512]).unwrap();
    faults.landed(&done);
    let open = faults.will_write(&file, 512, 512).unwrap();
    let covered = faults.written(&again);
    assert_eq!(covered, done);
    file.write_once(512, &[2; 512]).unwrap();
    faults.landed(&open);
    faults.flushed(&covered);
    // Whatever the fate of the second write, some seed loses it, and none loses the first.
    let mut lost = false;
    for seed in 0..16 {
        faults.power_cut(seed).unwrap();
        let after = std::fs::read(&path).unwrap();
        assert_eq!(after[..512], [2; 512]);
        lost |= after[512..] == [1; 512];
        file.write_once(512, &[1; 512]).unwrap();
        let write = faults.will_write(&file, 512, 512).unwrap();
        file.write_once(512, &[2; 512]).unwrap();
        faults.landed(&write);
    }
    assert!(lost);
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

/// Once the engine's thread freed the counter that its wake-up is read to while the kernel still had that read.
#[test]
fn an_engine_stopped_after_its_last_transfer_leaves_no_read_behind() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("f");
    std::fs::write(&path, [7; 4096]).unwrap();
    let arena = Arena::new("test", 4096, false).unwrap();
    let mut region = arena.allocate(4096).unwrap();
    for _ in 0..5000 {
        let engine = start(Backend::Auto, None);
        let file = engine.open(&path, OpenMode::Read).unwrap();
        engine.read(&file, 0, &mut region).unwrap();
        drop(engine);
    }
}
