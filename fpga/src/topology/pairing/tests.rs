//! Drives and cards behind switches of every kind.

use std::path::{Path, PathBuf};

use super::super::cards::cards;
use super::super::tree::Tree;
use super::*;

fn place(directory: &str, address: &str) -> DrivePlace {
    DrivePlace { directory: directory.into(), address: Some(address.into()) }
}

fn paired(tree: &Tree, drives: &[&str]) -> Result<Vec<String>, PairingError> {
    let names = ["/data/a", "/data/b", "/data/c"];
    let places: Vec<_> =
        drives.iter().zip(names).map(|(address, name)| place(name, address)).collect();
    let cards = cards(&tree.pci()).unwrap();
    let found = pair(&places, &cards, &tree.pci())?;
    Ok(found.into_iter().map(|card| cards[card].address.clone()).collect())
}

/// An error's text, which names what it is about and what to do.
fn said(result: Result<Vec<String>, PairingError>, parts: &[&str]) -> PairingError {
    let error = result.unwrap_err();
    let text = error.to_string();
    for part in parts {
        assert!(text.contains(part), "{part}: {text}");
    }
    error
}

#[test]
fn each_drive_has_the_card_behind_its_own_switch_in_any_order() {
    let tree = Tree::new();
    let first = tree.smart_ssd(&["0000:00:01.0"], 1);
    let second = tree.smart_ssd(&["0000:00:02.0"], 0x11);
    let both = paired(&tree, &[&first.drive, &second.drive]).unwrap();
    assert_eq!(both, [first.user.clone(), second.user.clone()]);
    let turned = paired(&tree, &[&second.drive, &first.drive]).unwrap();
    assert_eq!(turned, [second.user, first.user]);
    assert_eq!(paired(&tree, &[]).unwrap(), [""; 0]);
}

#[test]
fn smart_ssds_behind_one_switch_of_an_enclosure_keep_their_own_pairs() {
    let tree = Tree::new();
    let above = ["0000:00:01.0", "0000:60:00.0"];
    let first = tree.smart_ssd(&[above[0], above[1], "0000:61:00.0"], 1);
    let second = tree.smart_ssd(&[above[0], above[1], "0000:61:01.0"], 0x11);
    let both = paired(&tree, &[&second.drive, &first.drive]).unwrap();
    assert_eq!(both, [second.user.clone(), first.user.clone()]);

    let plain = [above[0], above[1], "0000:61:02.0", "0000:70:00.0"];
    tree.function(&plain);
    let error = said(
        paired(&tree, &[plain[3]]),
        &["/data/a", "0000:70:00.0", "no card of its own", "--card", &first.user, &second.user],
    );
    assert!(matches!(error, PairingError::NoCardOfItsOwn { cards, .. } if cards.len() == 2));
}

#[test]
fn a_plain_drive_behind_an_enclosures_switch_does_not_take_its_only_card() {
    let tree = Tree::new();
    let above = ["0000:00:01.0", "0000:60:00.0"];
    let only = tree.smart_ssd(&[above[0], above[1], "0000:61:00.0"], 1);
    tree.function(&[above[0], above[1], "0000:61:02.0", "0000:70:00.0"]);
    let error =
        said(paired(&tree, &["0000:70:00.0"]), &["/data/a", "0000:70:00.0", &only.user, "--card"]);
    assert!(matches!(error, PairingError::NotBeside { .. }), "{error:?}");
    assert_eq!(paired(&tree, &[&only.drive]).unwrap(), [only.user]);
}

#[test]
fn a_drive_deeper_than_the_card_is_not_beside_it() {
    let tree = Tree::new();
    let above = ["0000:00:01.0", "0000:60:00.0"];
    tree.xilinx(&[above[0], above[1], "0000:61:00.0", "0000:62:00.1"], "xocl");
    let deep = ["0000:61:01.0", "0000:63:00.0", "0000:64:00.0", "0000:65:00.0"];
    tree.function(&[&above[..], &deep[..]].concat());
    let error = said(paired(&tree, &["0000:65:00.0"]), &["is in no SmartSSD"]);
    assert!(matches!(error, PairingError::NotBeside { .. }), "{error:?}");
}

#[test]
fn both_may_hang_right_behind_the_bridge() {
    let tree = Tree::new();
    tree.xilinx(&["0000:00:01.0", "0000:01:00.0", "0000:02:01.1"], "xocl");
    tree.function(&["0000:00:01.0", "0000:01:00.0", "0000:02:00.0"]);
    assert_eq!(paired(&tree, &["0000:02:00.0"]).unwrap(), ["0000:02:01.1"]);
}

#[test]
fn a_host_bridge_in_common_is_not_enough() {
    let tree = Tree::new();
    tree.xilinx(&["0000:00:05.1"], "xocl");
    tree.function(&["0000:00:06.0"]);
    tree.function(&["0000:00:01.0", "0000:01:00.0"]);
    for drive in ["0000:00:06.0", "0000:01:00.0"] {
        let error = said(paired(&tree, &[drive]), &["virtual machine", "0000:00:05.1"]);
        assert!(matches!(error, PairingError::NotBeside { .. }), "{error:?}");
    }
    tree.xilinx(&["0000:00:07.1"], "xocl");
    let error = said(paired(&tree, &["0000:00:06.0"]), &["0000:00:05.1, 0000:00:07.1"]);
    assert!(matches!(error, PairingError::NotBeside { .. }), "none is near: {error:?}");
}

#[test]
fn two_drives_do_not_share_a_card() {
    let tree = Tree::new();
    let only = tree.smart_ssd(&["0000:00:01.0"], 1);
    let parts = ["/data/a", "/data/b", &*only.drive, &*only.user, "--card"];
    let error = said(paired(&tree, &[&only.drive, &only.drive]), &parts);
    assert!(matches!(error, PairingError::Taken { .. }), "{error:?}");
}

#[test]
fn a_drive_without_address_and_one_that_is_not_there_are_told_apart() {
    let tree = Tree::new();
    let only = tree.smart_ssd(&["0000:00:01.0"], 1);
    let known = cards(&tree.pci()).unwrap();
    let raid = DrivePlace { directory: PathBuf::from("/mnt/raid"), address: None };
    let good = place("/data/a", &only.drive);
    let error = pair(&[good, raid], &known, &tree.pci()).unwrap_err();
    assert!(
        matches!(&error, PairingError::NoAddress { directory } if directory == Path::new("/mnt/raid"))
    );
    let text = error.to_string();
    assert!(
        text.contains("/mnt/raid") && text.contains("--card") && text.contains("RAID"),
        "{text}"
    );
    for gone in ["0000:7f:00.0", "nvme0n1", "", "../0000:03:00.0"] {
        let error = said(paired(&tree, &[gone]), &["/data/a", gone, "--card"]);
        assert!(matches!(error, PairingError::NotFound { .. }), "{error:?}");
    }
}

#[test]
fn without_cards_no_drive_is_in_a_smart_ssd() {
    let tree = Tree::new();
    tree.function(&["0000:00:01.0", "0000:01:00.0"]);
    said(paired(&tree, &["0000:01:00.0"]), &["this machine shows no cards"]);
}

#[test]
fn a_card_that_shows_its_management_function_alone_cannot_be_used() {
    let tree = Tree::new();
    tree.function(&["0000:00:01.0", "0000:01:00.0", "0000:02:00.0", "0000:03:00.0"]);
    tree.xilinx(&["0000:00:01.0", "0000:01:00.0", "0000:02:01.0", "0000:04:00.0"], "xclmgmt");
    let error = said(
        paired(&tree, &["0000:03:00.0"]),
        &["/data/a", "0000:03:00.0", "xbmgmt program --device 0000:04:00.0 --base"],
    );
    assert!(matches!(error, PairingError::NoUserFunction { .. }), "{error:?}");
}

#[test]
fn a_card_whose_way_is_unknown_is_near_to_nothing() {
    let tree = Tree::new();
    let only = tree.smart_ssd(&["0000:00:01.0"], 1);
    let mut known = cards(&tree.pci()).unwrap();
    known[0].path.clear();
    let error = pair(&[place("/data/a", &only.drive)], &known, &tree.pci()).unwrap_err();
    assert!(matches!(error, PairingError::NotBeside { .. }), "{error:?}");
}

#[test]
fn the_switch_between_is_the_last_bridge_in_common() {
    let tree = Tree::new();
    let only = tree.smart_ssd(&["0000:00:01.0", "0000:60:00.0", "0000:61:00.0"], 1);
    let way = tree.pci().path_of(&only.drive).unwrap();
    let mut card = cards(&tree.pci()).unwrap().remove(0);
    assert_eq!(switch_between(&way, &card), Some(&*only.switch));
    card.path.truncate(2);
    assert_eq!(switch_between(&way, &card), None, "a host bridge is no switch");
}
