//! Writes the place of libtorch into this package's test programs, so that they run without environment variables, and passes it on to
//! the build scripts of dependent packages as `DEP_NEARFIELD_TRAIN_LIBTORCH_LIB`.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    if let Ok(directory) = std::env::var("DEP_TCH_LIBTORCH_LIB") {
        println!("cargo::rustc-link-arg=-Wl,-rpath,{directory}");
        println!("cargo::metadata=libtorch_lib={directory}");
    }
}
