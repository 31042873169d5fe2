//! The measurements alone, without the rest of the command line: `cargo run --release -p nearfield-bench --example bench -- update`.

use clap::Parser;

#[derive(Parser)]
struct Line {
    #[command(subcommand)]
    bench: nearfield_bench::BenchArgs,
}

fn main() -> anyhow::Result<()> {
    nearfield_bench::run(Line::parse().bench)
}
