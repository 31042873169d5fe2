//! The commands of a bitstream's build, run with a stand-in for `v++` that records how it was called.

#![allow(clippy::unwrap_used)] // A test fails by panicking.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use nearfield_fpga::bitstream::{BitstreamError, Places, Request, Target, build};

/// Not Vitis: writes each call to a file, and makes the file that it is asked for.
const RECORDING_STAND_IN_FOR_VPP: &str = r#"#!/bin/sh
here=$(dirname "$0")
if [ "$1" = "--version" ]; then cat "$here/version"; exit 0; fi
printf '%s\n' "$*" >> "$here/calls"
if [ -e "$here/fail-$1" ]; then echo "cf2sw failed"; exit 1; fi
while [ $# -gt 0 ]; do
  if [ "$1" = "--output" ]; then output=$2; fi
  shift
done
[ -e "$here/no-output" ] || echo made > "$output"
"#;

struct Bench {
    root: tempfile::TempDir,
}

impl Bench {
    fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        let bin = root.path().join("vitis/bin");
        std::fs::create_dir_all(&bin).unwrap();
        let vpp = bin.join("v++");
        std::fs::write(&vpp, RECORDING_STAND_IN_FOR_VPP).unwrap();
        std::fs::set_permissions(&vpp, std::fs::Permissions::from_mode(0o755)).unwrap();
        let bench = Self { root };
        bench.put("vitis/bin/version", "****** v++ v2021.2 (64-bit)\n");
        bench.put("platforms/card/card.xpfm", "");
        bench.put("kernels/update.cpp", "// update");
        bench.put("kernels/word.hpp", "// word");
        bench
    }

    fn path(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    fn put(&self, name: &str, text: &str) {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    fn places(&self) -> Places {
        Places {
            path: None,
            vitis: Some(self.path("vitis")),
            platforms: Some(self.path("platforms").into()),
        }
    }

    fn request(&self, target: Target) -> Request {
        let output = self.path("out");
        std::fs::create_dir_all(&output).unwrap();
        Request {
            target,
            clock_mhz: 300,
            sources: self.path("kernels"),
            output,
            revision: "abc123".into(),
            digest: "0011aabb".into(),
        }
    }

    fn build(&self, target: Target) -> Result<nearfield_fpga::bitstream::Outcome, BitstreamError> {
        build(&self.request(target), "card", &self.places(), &mut |_| {})
    }

    /// The calls so far, with this bench's folder as `@`.
    fn calls(&self) -> Vec<String> {
        let text = std::fs::read_to_string(self.path("vitis/bin/calls")).unwrap_or_default();
        let root = self.root.path().display().to_string();
        text.lines().map(|line| line.replace(&root, "@")).collect()
    }
}

#[test]
fn kernels_are_compiled_then_linked_under_names_with_the_digest() {
    let bench = Bench::new();
    let outcome = bench.build(Target::Hardware).unwrap();
    let result = bench.path("out/nearfield-hw-abc123-0011aabb.xclbin");
    assert_eq!(outcome.result, result);
    assert!(result.is_file());
    let compile = |kernel: &str| {
        format!(
            "--compile --target hw --platform @/platforms/card/card.xpfm --kernel {kernel} --kernel_frequency 300 \
             --include @/kernels --temp_dir @/out/hw-0011aabb/temporary-{kernel} --save-temps \
             --output @/out/hw-0011aabb/{kernel}.xo @/kernels/{kernel}.cpp"
        )
    };
    let link = "--link --target hw --platform @/platforms/card/card.xpfm --kernel_frequency 300 \
                --config @/out/hw-0011aabb/link.cfg --temp_dir @/out/hw-0011aabb/temporary-link --save-temps \
                --output @/out/nearfield-hw-abc123-0011aabb.xclbin @/out/hw-0011aabb/update.xo \
                @/out/hw-0011aabb/update_topk.xo @/out/hw-0011aabb/check_pairs.xo";
    let expected =
        [compile("update"), compile("update_topk"), compile("check_pairs"), link.to_owned()];
    assert_eq!(bench.calls(), expected);
    let settings = std::fs::read_to_string(bench.path("out/hw-0011aabb/link.cfg")).unwrap();
    assert_eq!(
        settings,
        "[connectivity]\nnk=update:1:update_0011aabb\nnk=update_topk:1:update_topk_0011aabb\n\
         nk=check_pairs:1:check_pairs_0011aabb\n"
    );
}

#[test]
fn a_build_goes_on_where_it_was_cut_short_and_repeats_nothing() {
    let bench = Bench::new();
    bench.put("vitis/bin/fail---link", "");
    let error = bench.build(Target::HardwareEmulation).unwrap_err().to_string();
    assert!(error.contains("linking failed") && error.contains(".log"), "{error}");
    let log = bench.path("out/hw_emu-0011aabb/nearfield-hw_emu-abc123-0011aabb.log");
    assert!(std::fs::read_to_string(&log).unwrap().contains("cf2sw failed"));
    std::fs::remove_file(bench.path("vitis/bin/fail---link")).unwrap();
    let outcome = bench.build(Target::HardwareEmulation).unwrap();
    assert_eq!((outcome.run.len(), outcome.kept.len()), (1, 3));
    let outcome = bench.build(Target::HardwareEmulation).unwrap();
    assert_eq!((outcome.run.len(), outcome.kept.len()), (0, 4));
    // A changed header makes all anew; a result that is gone, itself.
    bench.put("kernels/word.hpp", "// another word");
    assert_eq!(bench.build(Target::HardwareEmulation).unwrap().run.len(), 3);
    std::fs::remove_file(bench.path("out/hw_emu-0011aabb/update.xo")).unwrap();
    assert_eq!(bench.build(Target::HardwareEmulation).unwrap().run, ["compiling kernel update"]);
}

#[test]
fn what_is_missing_is_named_with_a_remedy() {
    let bench = Bench::new();
    let request = bench.request(Target::Hardware);
    let fails = |platform: &str, places: &Places| {
        build(&request, platform, places, &mut |_| {}).unwrap_err().to_string()
    };
    let nothing = Places { path: Some(bench.path("empty").into()), ..Places::default() };
    let error = fails("card", &nothing);
    assert!(error.contains("v++ was not found") && error.contains("settings64.sh"), "{error}");
    let error = fails("other", &bench.places());
    assert!(error.contains("platform other") && error.contains("PLATFORM_REPO_PATHS"), "{error}");
    let missing = bench.path("no.xpfm").display().to_string();
    assert!(fails(&missing, &bench.places()).contains("no.xpfm"));
    bench.put("vitis/bin/version", "****** v++ v2019.2 (64-bit)\n");
    let error = fails("card", &bench.places());
    assert!(error.contains("2019.2") && error.contains("2021.2"), "{error}");
    bench.put("vitis/bin/version", "no idea\n");
    assert!(fails("card", &bench.places()).contains("does not name a version"));
    assert!(bench.calls().is_empty());
    bench.put("vitis/bin/version", "v++ v2021.2\n");
    bench.put("vitis/bin/no-output", "");
    let error = fails("card", &bench.places());
    assert!(error.contains("is not there") && error.contains("update.xo"), "{error}");
}
