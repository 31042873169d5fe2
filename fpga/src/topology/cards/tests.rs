//! Cards in made-up trees.

use super::super::tree::{ENABLED, Tree};
use super::*;

const WAY: [&str; 3] = ["0000:00:01.0", "0000:01:00.0", "0000:02:00.0"];

fn one(tree: &Tree) -> Card {
    let mut found = cards(&tree.pci()).unwrap();
    assert_eq!(found.len(), 1, "{found:?}");
    found.remove(0)
}

fn way(end: &str) -> [&str; 4] {
    [WAY[0], WAY[1], WAY[2], end]
}

#[test]
fn a_card_in_good_order_is_described_whole() {
    let tree = Tree::new();
    let made = tree.smart_ssd(&["0000:00:01.0"], 1);
    let dev = tree.path("../dev/dri/renderD129");
    let found = one(&tree);
    assert_eq!(found.device_node.as_ref().unwrap().file_name(), dev.file_name());
    assert!(found.device_node.as_ref().unwrap().ends_with("dev/dri/renderD129"));
    assert_eq!(
        found,
        Card {
            address: "0000:04:00.1".into(),
            user_function: true,
            management: Some("0000:04:00.0".into()),
            driver: Some("xocl".into()),
            shell: Some("xilinx_u2_gen3x4_xdma_gc_base_2".into()),
            shell_uuid: Some("1234567890abcdef1234567890abcdef".into()),
            p2p: P2p::Enabled,
            path: ["pci0000:00", "0000:00:01.0", &made.switch, "0000:02:01.0", &made.user]
                .map(str::to_owned)
                .to_vec(),
            device_node: found.device_node.clone(),
        }
    );
}

#[test]
fn cards_are_sorted_and_other_functions_are_none() {
    let tree = Tree::new();
    assert_eq!(cards(&tree.pci()).unwrap(), [], "a system without PCI");
    tree.smart_ssd(&["0000:00:03.0"], 0x21);
    tree.smart_ssd(&["0000:00:01.0"], 1);
    tree.function(&["0000:00:1f.1"]);
    tree.files("0000:00:1f.1", &[("vendor", "0x8086\n"), ("class", "0x120000\n")]);
    tree.function(&["0000:00:1f.0"]);
    tree.xilinx(&["0000:00:05.0"], "");
    tree.files("0000:00:05.0", &[("class", "0x058000\n")]);
    tree.xilinx(&["0000:00:06.2"], "");
    tree.link("bus/pci/devices/0000:09:00.1", "../../../devices/nowhere/0000:09:00.1");
    let found: Vec<_> = cards(&tree.pci()).unwrap().into_iter().map(|card| card.address).collect();
    assert_eq!(found, ["0000:04:00.1", "0000:24:00.1"]);
}

#[test]
fn a_management_function_alone_is_a_card_without_user_function() {
    let tree = Tree::new();
    tree.xilinx(&way("0000:04:00.0"), "");
    let found = one(&tree);
    assert!(!found.user_function);
    assert_eq!((found.address.as_str(), found.driver), ("0000:04:00.0", None));
    assert_eq!(found.management.as_deref(), Some("0000:04:00.0"));
    assert_eq!((found.p2p, found.device_node, found.path.len()), (P2p::Unknown, None, 5));
    tree.files("0000:04:00.0", &[("class", "0xff0000\n")]);
    assert_eq!(cards(&tree.pci()).unwrap(), [], "neither class nor driver");
    tree.bind("0000:04:00.0", "xclmgmt");
    assert_eq!(one(&tree).driver.as_deref(), Some("xclmgmt"));
}

#[test]
fn the_factorys_image_is_told_by_the_management_function() {
    let tree = Tree::new();
    tree.xilinx(&way("0000:04:00.0"), "xclmgmt");
    tree.files("0000:04:00.0", &[("rom.m.7/VBNV", "xilinx_u2_gen3x4_xdma_gc_base_2\n")]);
    assert_eq!(one(&tree).shell.as_deref(), Some("xilinx_u2_gen3x4_xdma_gc_base_2"));
    tree.files("0000:04:00.0", &[("mfg", "0\n")]);
    assert_eq!(one(&tree).shell.as_deref(), Some("xilinx_u2_gen3x4_xdma_gc_base_2"));
    tree.files("0000:04:00.0", &[("mfg", "1\n"), ("board_name", "u2\n")]);
    assert_eq!(one(&tree).shell.as_deref(), Some("xilinx_u2_GOLDEN"));
}

#[test]
fn an_unbound_user_function_has_the_shell_that_the_management_function_tells() {
    let tree = Tree::new();
    tree.xilinx(&way("0000:04:00.0"), "xclmgmt");
    tree.xilinx(&way("0000:04:00.1"), "");
    tree.files("0000:04:00.0", &[("rom.m.7/VBNV", "xilinx_u250\n")]);
    let found = one(&tree);
    assert_eq!((found.driver, found.shell.as_deref()), (None, Some("xilinx_u250")));
    tree.files("0000:04:00.1", &[("rom.u.7/VBNV", "xilinx_u50\n")]);
    assert_eq!(one(&tree).shell.as_deref(), Some("xilinx_u50"));
}

#[test]
fn what_xrts_driver_is_bound_to_is_a_user_function_whatever_its_number() {
    let tree = Tree::new();
    tree.xilinx(&["0000:00:05.0"], "xocl");
    let found = one(&tree);
    assert!(found.user_function);
    assert_eq!((found.address.as_str(), found.management), ("0000:00:05.0", None));
}

#[test]
fn a_function_of_another_vendor_in_the_slot_is_no_management_function() {
    let tree = Tree::new();
    tree.xilinx(&way("0000:04:00.1"), "vfio-pci");
    tree.function(&way("0000:04:00.0"));
    tree.files("0000:04:00.0", &[("vendor", "0x1234\n")]);
    let found = one(&tree);
    assert_eq!((found.management, found.driver.as_deref()), (None, Some("vfio-pci")));
}

#[test]
fn empty_broken_and_missing_files_say_nothing() {
    let tree = Tree::new();
    tree.xilinx(&way("0000:04:00.1"), "");
    tree.link("bus/pci/devices/0000:04:00.1/driver", "../../bus/pci/drivers/gone");
    tree.files("0000:04:00.1", &[("rom.u.1/VBNV", " \n"), ("rom.u.x/VBNV", "wrong name")]);
    tree.files("0000:04:00.1", &[("rom.u/VBNV", "no number"), ("rom.u./VBNV", "no number")]);
    tree.files("0000:04:00.1", &[("p2p.u.1/other", ""), ("drm/card0/dev", "")]);
    tree.files("0000:04:00.1", &[("drm/renderDx/dev", ""), ("rom.u.3", "a file")]);
    tree.files("0000:04:00.1", &[("drm/renderD5", "a file")]);
    std::fs::write(tree.path("bus/pci/devices/0000:04:00.1/rom.u.1/uuid"), [0xff, 0xfe]).unwrap();
    tree.link("bus/pci/devices/0000:04:00.1/p2p.u.0", "nowhere");
    let found = one(&tree);
    assert_eq!((found.driver, found.shell, found.shell_uuid), (None, None, None));
    assert_eq!((found.p2p, found.device_node), (P2p::Unknown, None));
    tree.files("0000:04:00.1", &[("rom.u.2/VBNV", "xilinx_u2\n"), ("p2p.u.2/config", ENABLED)]);
    let found = one(&tree);
    assert_eq!((found.shell.as_deref(), found.p2p), (Some("xilinx_u2"), P2p::Enabled));
    tree.files("0000:04:00.1", &[("p2p.u.1/config", "garbage\n")]);
    assert_eq!(one(&tree).p2p, P2p::Unknown, "the first counts");
}

#[test]
fn of_several_folders_the_one_with_the_lowest_number_counts() {
    let tree = Tree::new();
    tree.xilinx(&way("0000:04:00.1"), "xocl");
    for number in [131, 135, 99, 129, 100, 134, 101] {
        let (node, rom) = (format!("drm/renderD{number}/dev"), format!("rom.u.{number}/VBNV"));
        tree.files("0000:04:00.1", &[(&node, ""), (&rom, &format!("xilinx_{number}\n"))]);
    }
    let found = one(&tree);
    assert_eq!(found.shell.as_deref(), Some("xilinx_99"));
    assert!(found.device_node.unwrap().ends_with("renderD99"));
}

#[test]
fn the_list_of_functions_must_be_readable() {
    let tree = Tree::new();
    std::fs::create_dir_all(tree.path("bus/pci")).unwrap();
    std::fs::write(tree.path("bus/pci/devices"), "").unwrap();
    assert!(cards(&tree.pci()).is_err());
}
