//! Machines in good order and with every fault.

use std::io::ErrorKind;

use super::super::tree::{SmartSsd, Tree};
use super::*;
use Grade::{Failure, Good, Note, Warning};

/// Surroundings without a fault.
fn fine(tree: &Tree) -> Surroundings {
    let nodes =
        cards(&tree.pci()).unwrap_or_default().into_iter().filter_map(|card| card.device_node);
    Surroundings {
        xrt: Ok(()),
        container: None,
        kernel: Some("6.8.0-45-generic".into()),
        nodes: nodes.map(|node| (node, Ok(()))).collect(),
        drives: Vec::new(),
    }
}

fn no_xrt(tree: &Tree) -> Surroundings {
    Surroundings { xrt: Err("no such file".into()), ..fine(tree) }
}

fn place(directory: &str, address: &str) -> DrivePlace {
    DrivePlace { directory: directory.into(), address: Some(address.into()) }
}

/// A machine with one SmartSSD at 0000:04:00.1.
fn one() -> (Tree, SmartSsd) {
    let tree = Tree::new();
    let card = tree.smart_ssd(&["0000:00:01.0"], 1);
    (tree, card)
}

fn look(tree: &Tree, around: &Surroundings) -> Vec<Observation> {
    probe(&tree.pci(), around)
}

fn grades(seen: &[Observation]) -> Vec<Grade> {
    seen.iter().map(|one| one.grade).collect()
}

/// The only observation of a grade, whose texts must contain the parts.
fn only(seen: &[Observation], grade: Grade, what: &str, found: &[&str], remedy: &[&str]) {
    let of: Vec<_> = seen.iter().filter(|one| one.grade == grade).collect();
    assert_eq!(of.len(), 1, "{grade:?}: {seen:#?}");
    assert_eq!(of[0].what, what);
    for part in found {
        assert!(of[0].found.contains(part), "{part}: {:?}", of[0]);
    }
    let text = of[0].remedy.as_deref().unwrap_or_default();
    for part in remedy {
        assert!(text.contains(part), "{part}: {:?}", of[0]);
    }
    assert_eq!(of[0].remedy.is_none(), remedy.is_empty(), "{:?}", of[0]);
}

#[test]
fn a_machine_without_card_and_xrt_is_only_noted() {
    let tree = Tree::new();
    let container = Some("/.dockerenv is there".to_owned());
    let drives = vec![place("/data", "0000:01:00.0")];
    let seen = look(&tree, &Surroundings { container, drives, ..no_xrt(&tree) });
    let expected = Observation {
        what: "SmartSSDs".into(),
        grade: Note,
        found: "no SmartSSD".into(),
        remedy: None,
    };
    assert_eq!(seen, [expected]);
}

#[test]
fn xrt_without_a_card_tells_how_cards_become_visible() {
    let tree = Tree::new();
    tree.function(&["0000:00:01.0", "0000:01:00.0"]);
    let seen = look(&tree, &fine(&tree));
    assert_eq!(grades(&seen), [Note]);
    only(&seen, Note, "SmartSSDs", &["no card"], &["off and on", "lspci -d 10ee:"]);
}

#[test]
fn a_list_of_devices_that_cannot_be_read_is_a_failure() {
    let tree = Tree::new();
    std::fs::create_dir_all(tree.path("bus/pci")).unwrap();
    std::fs::write(tree.path("bus/pci/devices"), "").unwrap();
    let seen = look(&tree, &fine(&tree));
    assert_eq!(grades(&seen), [Failure]);
    only(&seen, Failure, "SmartSSDs", &["cannot be read"], &["/sys/bus/pci/devices"]);
}

#[test]
fn a_machine_in_good_order_has_nothing_else() {
    let (tree, card) = one();
    let drives = vec![place("/data/a", &card.drive)];
    let seen = look(&tree, &Surroundings { drives, ..fine(&tree) });
    assert_eq!(grades(&seen), [Good; 6], "{seen:#?}");
    assert!(seen.iter().all(|one| one.remedy.is_none()));
    let found: Vec<_> = seen.iter().map(|one| one.found.as_str()).collect();
    assert_eq!(
        found[..4],
        [
            "its library loads",
            "XRT's driver xocl has it",
            "its platform is xilinx_u2_gen3x4_xdma_gc_base_2",
            "P2P is enabled"
        ]
    );
    assert!(found[4].ends_with("dev/dri/renderD129 opens"), "{}", found[4]);
    assert_eq!(
        found[5],
        "drive /data/a (0000:03:00.0) and card 0000:04:00.1 hang behind the switch 0000:01:00.0"
    );
    assert_eq!(seen[5].what, "drive /data/a");
}

#[test]
fn cards_without_xrt_are_a_failure() {
    let (tree, _card) = one();
    let seen = look(&tree, &no_xrt(&tree));
    let remedy = ["install XRT", "source /opt/xilinx/xrt/setup.sh"];
    only(&seen, Failure, "XRT", &["1 card", "no such file"], &remedy);
}

#[test]
fn a_card_without_its_driver_is_a_failure_that_names_the_kernel() {
    let (tree, card) = one();
    tree.bind(&card.user, "");
    let remedy = ["modprobe xocl", "dkms", "20.04", "5.4", "6.8.0-45-generic"];
    let seen = look(&tree, &fine(&tree));
    only(&seen, Failure, "card 0000:04:00.1", &["no driver"], &remedy);
    assert!(!seen.iter().any(|one| one.found.contains("P2P")), "{seen:#?}");
    tree.bind(&card.user, "vfio-pci");
    let around = Surroundings { kernel: None, ..fine(&tree) };
    let seen = look(&tree, &around);
    only(&seen, Failure, "card 0000:04:00.1", &["vfio-pci"], &["kernel is unknown", "taken back"]);
}

#[test]
fn a_management_function_alone_is_a_failure() {
    let tree = Tree::new();
    tree.xilinx(&["0000:00:01.0", "0000:04:00.0"], "xclmgmt");
    let seen = look(&tree, &fine(&tree));
    assert_eq!(grades(&seen), [Good, Failure]);
    let remedy = ["sudo xbmgmt program --device 0000:04:00.0 --base", "virtual machine"];
    only(&seen, Failure, "card 0000:04:00.0", &["management function alone"], &remedy);
    tree.files("0000:04:00.0", &[("mfg", "1\n"), ("board_name", "u2\n")]);
    let seen = look(&tree, &fine(&tree));
    assert_eq!(grades(&seen), [Good, Failure, Failure]);
    assert!(seen[2].found.contains("wrong shell: xilinx_u2_GOLDEN"), "{:?}", seen[2]);
}

#[test]
fn another_shell_is_a_failure_and_its_p2p_does_not_matter() {
    let (tree, card) = one();
    for shell in ["xilinx_u2_GOLDEN_2", "xilinx_u250_gen3x16_xdma_shell_4_1", "u2"] {
        tree.files(&card.user, &[("rom.u.1048576/VBNV", shell), ("p2p.u.1048577/config", "")]);
        let seen = look(&tree, &fine(&tree));
        let remedy = ["sudo xbmgmt program --device 0000:04:00.0 --base", "off and on"];
        only(&seen, Failure, "card 0000:04:00.1", &["wrong shell", shell], &remedy);
        assert!(!seen.iter().any(|one| one.found.contains("P2P")), "{seen:#?}");
    }
    for shell in ["xilinx.com:u2:gen3x4_xdma_gc:2.0", "xilinx_U2_gen3x4_xdma_gc_2_202110_1"] {
        tree.files(&card.user, &[("rom.u.1048576/VBNV", shell)]);
        tree.files(&card.user, &[("p2p.u.1048577/config", super::super::tree::ENABLED)]);
        let seen = look(&tree, &fine(&tree));
        assert!(!grades(&seen).contains(&Failure), "{seen:#?}");
    }
}

#[test]
fn a_shell_without_name_is_a_warning() {
    let (tree, card) = one();
    tree.files(&card.user, &[("rom.u.1048576/VBNV", "\n")]);
    let seen = look(&tree, &fine(&tree));
    let remedy = ["xbutil examine --device 0000:04:00.1"];
    only(&seen, Warning, "card 0000:04:00.1", &["platform"], &remedy);
    assert!(seen.iter().any(|one| one.found == "P2P is enabled"));
}

#[test]
fn every_other_state_of_p2p_has_its_remedy() {
    let enable = "`sudo xbutil configure --device 0000:04:00.1 --p2p enable`";
    let disable = "`sudo xbutil configure --device 0000:04:00.1 --p2p disable`";
    let cases: [(&str, Grade, &str, &[&str]); 5] = [
        ("bar:256\nexp_bar:4096\n", Failure, "P2P is disabled", &[enable]),
        ("bar:256\nrbar:4096\n", Failure, "no room", &["warm", "Above 4G decoding"]),
        ("bar:256\nexp_bar:256\nremap:1\n", Failure, "wrongly", &[disable, enable, "warm"]),
        ("exp_bar:0\n", Failure, "no P2P", &["sudo xbmgmt program --device 0000:04:00.0 --base"]),
        ("bar:?\n", Warning, "does not tell", &["xbutil examine --device 0000:04:00.1"]),
    ];
    for (config, grade, found, remedy) in cases {
        let (tree, card) = one();
        tree.files(&card.user, &[("p2p.u.1048577/config", config)]);
        let seen = look(&tree, &fine(&tree));
        only(&seen, grade, "card 0000:04:00.1", &[found], remedy);
    }
    let (tree, card) = one();
    let folder = tree.path(&format!("bus/pci/devices/{}/p2p.u.1048577", card.user));
    std::fs::remove_dir_all(folder).unwrap();
    let seen = look(&tree, &fine(&tree));
    only(&seen, Warning, "card 0000:04:00.1", &["does not tell"], &["xbutil examine"]);
}

#[test]
fn a_container_is_a_warning_where_cards_are() {
    let (tree, _card) = one();
    let container = Some("/.dockerenv is there".to_owned());
    let seen = look(&tree, &Surroundings { container, ..fine(&tree) });
    only(&seen, Warning, "container", &["/.dockerenv is there"], &["on the host"]);
}

#[test]
fn device_nodes_that_do_not_open_are_failures() {
    let cases = [
        (ErrorKind::PermissionDenied, "no permission", "render"),
        (ErrorKind::NotFound, "is not there", "container"),
        (ErrorKind::ResourceBusy, "does not open: resource busy", "dmesg"),
    ];
    for (kind, found, remedy) in cases {
        let (tree, _card) = one();
        let mut around = fine(&tree);
        around.nodes.values_mut().for_each(|node| *node = Err(kind));
        let seen = look(&tree, &around);
        only(&seen, Failure, "card 0000:04:00.1", &["dri/renderD129", found], &[remedy]);
    }
    let (tree, card) = one();
    let around = Surroundings { nodes: Default::default(), ..fine(&tree) };
    let seen = look(&tree, &around);
    assert!(!seen.iter().any(|one| one.found.contains("dri/")), "not tried, not told: {seen:#?}");
    std::fs::remove_dir_all(tree.path(&format!("bus/pci/devices/{}/drm", card.user))).unwrap();
    let seen = look(&tree, &fine(&tree));
    only(&seen, Failure, "card 0000:04:00.1", &["no device node"], &["dmesg"]);
}

#[test]
fn a_card_whose_drive_was_not_given_is_noted() {
    let (tree, card) = one();
    tree.smart_ssd(&["0000:00:02.0"], 0x11);
    let drives = vec![place("/data/a", &card.drive)];
    let seen = look(&tree, &Surroundings { drives, ..fine(&tree) });
    only(&seen, Note, "card 0000:14:00.1", &["no directory"], &["beside it"]);
    let seen = look(&tree, &fine(&tree));
    let noted: Vec<_> = seen.iter().filter(|one| one.grade == Note).map(|one| &*one.what).collect();
    assert_eq!(noted, ["card 0000:04:00.1", "card 0000:14:00.1"], "without drives, all");
}

#[test]
fn drives_without_a_card_of_their_own_are_a_failure_with_the_errors_text() {
    let (tree, card) = one();
    tree.function(&["0000:00:02.0", "0000:50:00.0"]);
    let drives = vec![place("/data/a", &card.drive), place("/data/b", "0000:50:00.0")];
    let seen = look(&tree, &Surroundings { drives: drives.clone(), ..fine(&tree) });
    let error = pair(&drives, &cards(&tree.pci()).unwrap(), &tree.pci()).unwrap_err().to_string();
    assert!(error.contains("/data/b"));
    only(&seen, Failure, "drives and cards", &[&error], &[]);
    assert!(!grades(&seen).contains(&Note), "nothing is said of cards left over: {seen:#?}");
}
