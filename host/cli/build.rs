//! Writes the place of libtorch into the command, so that it runs without environment variables.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    if let Ok(directory) = std::env::var("DEP_NEARFIELD_TRAIN_LIBTORCH_LIB") {
        println!("cargo::rustc-link-arg=-Wl,-rpath,{directory}");
    }
}
