//! What is written is read again; what is damaged is refused.

use nearfield_hls::interface::{KERNELS, UPDATE};

use super::*;
use crate::xclbin::write::{Contents, DRIVE_BANK, HOST_BANK, SOFTWARE_EMULATION};

const CONTENTS: Contents<'_> = Contents {
    platform: "emulated:smartssd",
    digest: "0123abcd",
    mode: SOFTWARE_EMULATION,
    banks: [1 << 30, 1 << 29],
    bitstream: b"a bitstream",
};

fn parsed(bytes: &[u8]) -> Result<Xclbin, XclbinError> {
    Xclbin::parse(Path::new("some.xclbin"), bytes)
}

#[test]
fn what_is_written_is_read() {
    let xclbin = parsed(&CONTENTS.to_bytes().unwrap()).unwrap();
    xclbin.check("0123abcd").unwrap();
    assert_eq!(xclbin.mode, SOFTWARE_EMULATION);
    assert_eq!(xclbin.platform, "emulated:smartssd");
    assert_eq!(xclbin.banks[1].base, 1 << 30);
    assert_eq!(xclbin.banks[1].bytes, 1 << 29);
    let update = xclbin.kernel("update").unwrap();
    let offsets: Vec<u64> = update.arguments.iter().map(|argument| argument.offset).collect();
    assert_eq!(&offsets[..3], [0x10, 0x1c, 0x28]);
    let start = UPDATE.position("start").unwrap();
    assert_eq!(offsets[start], 0x10 + 12 * start as u64);
    let rule = UPDATE.position("rule").unwrap();
    assert_eq!(offsets[rule], 0x10 + 12 * rule as u64);
    assert_eq!(offsets[rule + 1], offsets[rule] + 8);
    assert_eq!(update.instances[0].name, "update_0123abcd");
    for (number, kernel) in KERNELS.iter().enumerate() {
        let unit = &xclbin.units[number];
        let instance = &xclbin.kernel(kernel.name).unwrap().instances[0];
        assert_eq!(unit.name, format!("{}:{}", kernel.name, instance.name));
        assert_eq!(Some(unit.base), instance.base);
        for (argument, of) in kernel.arguments.iter().enumerate() {
            let wires: Vec<usize> = xclbin
                .connections
                .iter()
                .filter(|wire| wire.unit == number && wire.argument == argument)
                .map(|wire| wire.bank)
                .collect();
            let bank = if of.on_drive { DRIVE_BANK } else { HOST_BANK };
            assert_eq!(wires, if of.kind.is_memory() { vec![bank] } else { vec![] });
        }
    }
}

#[test]
fn the_identifier_is_the_contents() {
    let uuid = |contents: &Contents<'_>| parsed(&contents.to_bytes().unwrap()).unwrap().uuid;
    let first = uuid(&CONTENTS);
    assert_eq!(first, uuid(&CONTENTS));
    assert_ne!(first, uuid(&Contents { digest: "0123abce", ..CONTENTS }));
    assert_ne!(first, uuid(&Contents { bitstream: b"another", ..CONTENTS }));
    assert_ne!(first, uuid(&Contents { mode: 0, ..CONTENTS }));
}

#[test]
fn a_container_that_ends_early_is_refused_at_every_length() {
    let bytes = CONTENTS.to_bytes().unwrap();
    for length in 0..bytes.len() {
        let error = parsed(&bytes[..length]).unwrap_err().to_string();
        assert!(error.contains("some.xclbin is damaged"), "{error}");
        // Also where the header says the length that is there.
        let mut short = bytes[..length].to_vec();
        if let Some(field) = short.get_mut(LENGTH_AT..LENGTH_AT + 8) {
            field.copy_from_slice(&(length as u64).to_le_bytes());
            // The last section is padded.
            if length + 8 < bytes.len() {
                parsed(&short).unwrap_err();
            }
        }
    }
    let mut long = bytes;
    long.push(0);
    parsed(&long).unwrap_err();
}

#[test]
fn changed_bits_never_panic() {
    let bytes = CONTENTS.to_bytes().unwrap();
    let mut state = 1_u64;
    let mut random = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize
    };
    for round in 0..20_000 {
        let mut changed = bytes.clone();
        for _ in 0..1 + round % 4 {
            // Headers and tables more often than the description.
            let range = if round % 2 == 0 { HEADER_BYTES + 200 } else { changed.len() };
            let at = random() % range;
            changed[at] ^= 1 << (random() % 8);
        }
        if let Ok(xclbin) = parsed(&changed) {
            let _ = xclbin.check("0123abcd");
        }
    }
}

/// The container with another description of its kernels.
fn described(change: impl Fn(String) -> String) -> Xclbin {
    let mut xclbin = parsed(&CONTENTS.to_bytes().unwrap()).unwrap();
    let text = change(metadata::describe("0123abcd"));
    xclbin.kernels = metadata::parse(&text).unwrap();
    xclbin
}

#[test]
fn other_kernels_are_named() {
    let message = |from: &str, to: &str| {
        described(|text| text.replace(from, to)).check("0123abcd").unwrap_err().to_string()
    };
    let error = message("name=\"update\"", "name=\"updates\"");
    assert!(error.contains("it has no kernel update;"), "{error}");
    let error = message("name=\"exp_avg_sq_out\"", "name=\"variance\"");
    assert!(
        error.contains("kernel update: argument 6 is variance instead of exp_avg_sq_out"),
        "{error}"
    );
    assert!(error.ends_with("rebuild the bitstream"), "{error}");
    let error = message("size=\"0x4\"", "size=\"0x8\"");
    assert!(error.contains("argument rule has 8 bytes instead of 4"), "{error}");
    let error = described(|text| text).check("fedcba98").unwrap_err().to_string();
    assert!(error.contains("0123abcd") && error.contains("fedcba98"), "{error}");
    assert!(error.ends_with("rebuild the bitstream"), "{error}");
}

#[test]
fn arguments_have_numbers_without_gaps() {
    let text = metadata::describe("0123abcd").replacen("id=\"3\"", "id=\"77\"", 1);
    let error = metadata::parse(&text).unwrap_err();
    assert!(error.contains("kernel update has no argument 3"), "{error}");
}

#[test]
fn contents_that_do_not_fit_are_refused() {
    assert!(Contents { digest: "0123", ..CONTENTS }.to_bytes().is_err());
    assert!(Contents { banks: [1 << 30, 0], ..CONTENTS }.to_bytes().is_err());
}
