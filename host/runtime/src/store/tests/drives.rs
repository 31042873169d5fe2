//! Directories that do not form the run that is asked for.

use super::*;
use crate::error::Error;
use crate::io::free_bytes;

fn refusal<T>(result: Result<T>) -> String {
    result.err().expect("the drives do not fit").to_string()
}

#[test]
fn drives_in_any_order_come_back_in_that_of_the_run_with_their_engines() {
    let mut toy = Toy::created();
    toy.dirs.reverse();
    let engines = engines(2, None);
    let (stores, _) = open(&toy.dirs, engines.clone(), Some(&spec()), Durability::Power).unwrap();
    assert_eq!(stores.iter().map(DriveStore::drive).collect::<Vec<_>>(), [0, 1]);
    assert!(stores[0].path().ends_with("drive0") && stores[1].path().ends_with("drive1"));
    assert!(
        Arc::ptr_eq(stores[0].engine(), &engines[1])
            && Arc::ptr_eq(stores[1].engine(), &engines[0])
    );
    assert_eq!(digest(&stores).unwrap(), reference(0));
}

#[test]
fn a_missing_a_foreign_and_a_copied_drive_are_named() {
    let (toy, other) = (Toy::created(), Toy::created());
    let open_dirs =
        |dirs: &[PathBuf]| refusal(open(dirs, engines(dirs.len(), None), None, Durability::Power));
    for drive in 0..2 {
        let said = open_dirs(&toy.dirs[1 - drive..2 - drive]);
        assert!(
            said.contains(&format!("drive {drive} of the 2 drives")) && said.contains("missing"),
            "{said}"
        );
    }
    let said = open_dirs(&[toy.dirs[0].clone(), other.dirs[1].clone()]);
    assert!(said.contains("belongs to run") && said.contains("drives of one run only"), "{said}");
    let said = open_dirs(&[toy.dirs[0].clone(), toy.dirs[0].clone()]);
    assert!(said.contains("the same directory"), "{said}");
    let copy = toy.copy();
    let said = open_dirs(&[toy.dirs[0].clone(), toy.dirs[1].clone(), copy.dirs[1].clone()]);
    assert!(said.contains("copies of one drive"), "{said}");
    let empty = Toy::empty();
    let said = open_dirs(&[toy.dirs[0].clone(), empty.dirs[1].clone()]);
    assert!(said.contains("holds no state of a run"), "{said}");
    toy.open(Durability::Power, None).unwrap();
}

#[test]
fn a_drive_from_an_older_copy_is_refused() {
    let toy = Toy::created();
    let old = toy.copy();
    let (stores, recovered) = toy.open(Durability::Power, None).unwrap();
    train(&stores, &recovered, &ITERATIONS).unwrap();
    drop(stores);
    copy_files(&old.dirs[1], &toy.dirs[1]);
    let said = refusal(toy.open(Durability::Power, None));
    assert!(said.contains("drive 1") && said.contains("older copy"), "{said}");
}

#[test]
fn an_interrupted_creation_is_named_and_may_be_begun_again() {
    let toy = Toy::empty();
    drop(create(&toy.dirs, engines(2, None), spec(), Durability::Power, false).unwrap());
    let said = refusal(toy.open(Durability::Power, None));
    assert!(said.contains("interrupted"), "{said}");
    toy.create(Durability::Power, false).unwrap();
    toy.open(Durability::Power, None).unwrap();
}

#[test]
fn another_run_is_replaced_only_when_told_to() {
    let toy = Toy::created();
    let run = inspect(&toy.dirs).unwrap().run;
    let said = refusal(toy.create(Durability::Power, false));
    assert!(said.contains("--resume") && said.contains("--overwrite"), "{said}");
    assert_eq!(inspect(&toy.dirs).unwrap().run, run);
    toy.create(Durability::Power, true).unwrap();
    assert_ne!(inspect(&toy.dirs).unwrap().run, run);
}

#[test]
fn a_creation_without_all_initial_state_does_not_finish() {
    let toy = Toy::empty();
    let creation = create(&toy.dirs, engines(2, None), spec(), Durability::Power, false).unwrap();
    let said = refusal(creation.finish(record(0, 0)));
    assert!(said.contains("part 0 was not given its initial values"), "{said}");
    assert!(!toy.dirs[0].join("superblock.nf").exists());
}

#[test]
fn a_run_with_other_options_is_refused_with_the_option_named() {
    let toy = Toy::created();
    let ask = |change: &dyn Fn(&mut StateSpec)| {
        let mut spec = spec();
        change(&mut spec);
        refusal(open(&toy.dirs, engines(2, None), Some(&spec), Durability::Power))
    };
    let said = ask(&|spec| spec.optimizer = Optimizer::Adamw);
    assert!(said.contains("--optimizer sgd-momentum, not adamw"), "{said}");
    let said = ask(&|spec| spec.gradients = GradientFormat::Dense { dtype: DType::Fp16 });
    assert!(said.contains("--gradient-dtype"), "{said}");
    let said = ask(&|spec| spec.residual = false);
    assert!(said.contains("--error-feedback"), "{said}");
    let said = ask(&|spec| {
        spec.layout =
            Layout::new(9, 1024, 2, vec![Part { drive: 0, subgroup: 0, start: 0, elements: 9 }])
                .unwrap()
    });
    assert!(said.contains("4248 parameters, not 9"), "{said}");
    let said = ask(&|spec| spec.layout.parts[2].drive = 1);
    assert!(said.contains("--placement"), "{said}");
}

#[test]
fn a_state_of_another_format_version_is_refused() {
    let toy = Toy::created();
    let path = toy.dirs[1].join("superblock.nf");
    let bytes = std::fs::read(&path).unwrap();
    std::fs::write(&path, block::with_version(&bytes, 9)).unwrap();
    let said = refusal(toy.open(Durability::Power, None));
    assert!(said.contains("format version 9") && said.contains("drive1"), "{said}");
}

#[test]
fn a_drive_in_use_is_refused_to_writers_and_readers() {
    let toy = Toy::created();
    let (stores, _) = toy.open(Durability::Power, None).unwrap();
    for refused in [
        toy.open(Durability::Power, None).map(drop),
        toy.create(Durability::Power, true).map(drop),
        inspect(&toy.dirs).map(drop),
    ] {
        assert!(matches!(refused, Err(Error::Locked { .. })), "{refused:?}");
    }
    drop(stores);
    inspect(&toy.dirs).unwrap();
}

#[test]
fn a_file_that_was_cut_short_is_named() {
    for name in
        ["slots.nf", "gradients.nf", "residual.nf", "journal.nf", "layout.nf", "superblock.nf"]
    {
        let toy = Toy::created();
        let file = std::fs::OpenOptions::new().write(true).open(toy.dirs[0].join(name)).unwrap();
        file.set_len(file.metadata().unwrap().len() - 4096).unwrap();
        let said = refusal(toy.open(Durability::Power, None));
        assert!(said.contains(name) && said.contains("cut short"), "{said}");
    }
}

fn large(elements: u64) -> StateSpec {
    let part =
        |drive: u32| Part { drive, subgroup: drive, start: u64::from(drive) * elements, elements };
    StateSpec {
        gradients: GradientFormat::Dense { dtype: DType::Fp32 },
        residual: false,
        optimizer: Optimizer::SgdMomentum,
        moments: DType::Fp32,
        ahead: false,
        layout: Layout::new(2 * elements, 1024, 2, vec![part(0), part(1)]).unwrap(),
    }
}

#[test]
fn drives_on_one_file_system_need_room_together_and_nothing_is_written_without_it() {
    let toy = Toy::empty();
    let free = free_bytes(toy.root.path()).unwrap();
    let bytes = |elements| bytes_on_drive(&large(elements), 0, 4096).unwrap();
    // Each of the two fits by itself: 20 bytes an element (two slots of two variables, and gradients).
    let elements = free / 20 * 7 / 10;
    assert!(bytes(elements) < free && 2 * bytes(elements) > free);
    match create::check_space(&toy.dirs, &large(elements)) {
        Err(Error::NoSpace { needed, .. }) => assert_eq!(needed, 2 * bytes(elements)),
        other => panic!("{other:?}"),
    }
    create::check_space(&toy.dirs, &large(elements / 4)).unwrap();

    let said =
        create(&toy.dirs, engines(2, None), large(1 << 44), Durability::Power, false).unwrap_err();
    assert!(matches!(said, Error::NoSpace { .. }), "{said}");
    for dir in &toy.dirs {
        let names: Vec<_> =
            std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names, ["lock"]);
    }
}

#[test]
fn the_report_and_the_digest_describe_the_state_at_rest() {
    let toy = Toy::created();
    let (stores, recovered) = toy.open(Durability::Power, None).unwrap();
    train(&stores, &recovered, &ITERATIONS).unwrap();
    drop(stores);
    let report = inspect(&toy.dirs).unwrap();
    assert_eq!((report.step, report.iteration, report.interrupted), (4, 5, false));
    assert_eq!(report.drives.iter().map(|drive| drive.parts).collect::<Vec<_>>(), [2, 1]);
    assert_eq!(report.drives[0].journal[0], (RecordKind::Commit, 5, 4));
    assert_eq!(digest_of(&toy.dirs).unwrap(), reference(4));
    assert_eq!(verify(&toy.dirs, &mut |_| {}).unwrap(), []);
}
