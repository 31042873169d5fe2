//! Compiles the kernels' sources for the CPU.

const SOURCES: [&str; 4] = [
    "kernels/update.cpp",
    "kernels/update_topk.cpp",
    "kernels/check_pairs.cpp",
    "native/calls.cpp",
];

fn main() {
    for folder in ["kernels", "native", "standin"] {
        println!("cargo:rerun-if-changed={folder}");
    }
    cc::Build::new()
        .cpp(true)
        .std("c++14")
        .files(SOURCES)
        .include("standin")
        .define("NEARFIELD_COUNT_PASSES", None)
        // Every operation rounds by itself, as the operators of the FPGA do.
        .flag("-ffp-contract=off")
        .flag_if_supported("-Wno-unknown-pragmas")
        .flag_if_supported("-Wno-unused-label")
        .opt_level(3)
        .debug(false)
        .compile("nearfield_hls_kernels");
}
