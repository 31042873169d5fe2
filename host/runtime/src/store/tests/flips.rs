//! One flipped bit anywhere in live data or metadata is found.

use super::*;
use crate::error::Error;

/// A run whose third step was cut short: its gradients, and two parts of three, are still needed.
fn interrupted() -> Toy {
    let toy = Toy::created();
    let (stores, recovered) = toy.open(Durability::Power, None).unwrap();
    train(&stores, &recovered, &ITERATIONS[..3]).unwrap();
    offload(&stores, 3).unwrap();
    stores.iter().for_each(|store| store.intent(&record(4, 3)).unwrap());
    toy
}

fn flip(path: &Path, offset: u64, bit: u8) {
    use std::os::unix::fs::FileExt;
    let file = std::fs::OpenOptions::new().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, offset).unwrap();
    byte[0] ^= 1 << (bit % 8);
    file.write_all_at(&byte, offset).unwrap();
}

/// What reading all says of a flip: the drive and file or variable that are named.
fn found(toy: &Toy) -> Option<(u32, String)> {
    match verify(&toy.dirs, &mut |_| {}) {
        Ok(findings) => match &findings[..] {
            [] => None,
            [one] => Some((one.drive, one.variable.clone())),
            more => panic!("one flip, {} findings", more.len()),
        },
        Err(Error::Damaged { drive, path, .. }) => {
            Some((drive, path.file_name().unwrap().to_string_lossy().into_owned()))
        }
        Err(other) => panic!("{other}"),
    }
}

#[test]
fn a_flip_in_any_live_byte_range_names_drive_and_place() {
    let toy = interrupted();
    assert_eq!(found(&toy), None);
    // (drive, file, name expected, first byte, bytes)
    let mut ranges = Vec::new();
    {
        let (stores, recovered) =
            open(&toy.dirs, engines(2, None), None, Durability::Power).unwrap();
        assert_eq!(recovered.redo.map(|redo| redo.parts), Some(vec![0, 1, 2]));
        for store in &stores {
            let drive = store.drive();
            // The first eight bytes of a superblock are its magic; `superblock.rs` tests what a flip there says.
            ranges.push((drive, "superblock.nf", "superblock.nf", 8, 4088));
            ranges.push((drive, "layout.nf", "layout.nf", 0, 8192));
            ranges.push((drive, "journal.nf", "journal.nf", 0, 4096 * 6));
            for &part in store.parts() {
                let bytes = padded(part) as u64 * 4;
                let state = store.expected(part).unwrap();
                let param = store.data_offset(state.slot, Variable::Param).unwrap();
                let exp_avg = store.data_offset(state.slot, Variable::ExpAvg).unwrap();
                ranges.push((drive, "slots.nf", "slots.nf", param - 4096, 4096));
                ranges.push((drive, "slots.nf", "param", param, bytes));
                ranges.push((drive, "slots.nf", "exp_avg", exp_avg, bytes));
                let gradient = store.gradient_offset(part, Variable::Gradient).unwrap();
                ranges.push((drive, "gradients.nf", "gradients.nf", gradient - 4096, 4096));
                ranges.push((drive, "gradients.nf", "gradient", gradient, bytes));
                let residual = store.residual_before(part, 4).unwrap().offset;
                ranges.push((drive, "residual.nf", "residual.nf", residual - 4096, 4096));
                ranges.push((drive, "residual.nf", "residual", residual, bytes));
            }
        }
    }
    for (drive, file, name, start, bytes) in ranges {
        let path = toy.dirs[drive as usize].join(file);
        // First and last byte, and some between at distances that meet every sector and every byte of a word.
        let inner = (0..bytes).step_by(1021);
        for (count, offset) in inner.chain([bytes - 1]).enumerate() {
            flip(&path, start + offset, count as u8);
            let found = found(&toy);
            assert_eq!(found, Some((drive, name.to_owned())), "{file} byte {}", start + offset);
            flip(&path, start + offset, count as u8);
        }
    }
    assert_eq!(found(&toy), None);
}

#[test]
fn an_older_residual_never_takes_the_place_of_a_damaged_one() {
    let toy = interrupted();
    let offset = {
        let (stores, _) = open(&toy.dirs, engines(2, None), None, Durability::Power).unwrap();
        stores[1].residual_before(1, 4).unwrap().offset
    };
    flip(&toy.dirs[1].join("residual.nf"), offset - 4096 + 30, 3);
    let error =
        toy.open(Durability::Power, None).expect_err("step 2's residual is not that of step 3");
    let said = error.to_string();
    assert!(said.contains("residual of subgroup 1") && said.contains("drive 1"), "{said}");
}

#[test]
fn the_digest_refuses_state_that_does_not_match_its_checksum() {
    let toy = Toy::created();
    let (stores, _) = toy.open(Durability::Power, None).unwrap();
    let slot = stores[1].expected(1).unwrap().slot;
    let offset = stores[1].data_offset(slot, Variable::ExpAvg).unwrap();
    flip(stores[1].slots_file().path(), offset + 77, 5);
    match digest(&stores) {
        Err(Error::Corrupt { drive: 1, subgroup: 1, variable, .. }) => {
            assert_eq!(variable, "exp_avg")
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_interrupted_state_has_no_digest() {
    let said = digest_of(&interrupted().dirs).unwrap_err().to_string();
    assert!(said.contains("step 3 was cut short"), "{said}");
}
