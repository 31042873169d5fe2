//! The simulator as a user calls it.
#![allow(clippy::unwrap_used)] // A test fails by panicking.

use std::process::{Command, Output};

use serde_json::Value;

/// `nearfield simulate` on the paper's testbed with an A5000.
fn simulate(words: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nearfield"));
    command.env_clear().args(["simulate", "--fabric", "smartssd-falcon", "--gpu", "a5000"]);
    command.args(words).output().unwrap()
}

fn succeeded(output: &Output) {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

fn failed_with(output: &Output, words: &[&str]) {
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "{text}");
    assert!(!text.contains("panicked"), "{text}");
    for word in words {
        assert!(text.contains(word), "{word:?} is not in {text}");
    }
}

#[test]
fn a_simulated_step_is_one_json_object_a_combination() {
    let sweeps = ["--json", "--sweep", "drives=1,6", "--sweep", "system=base,su,su+o,su+o+c"];
    let output = simulate(&[&["--model", "gpt2-1.16b"], &sweeps[..]].concat());
    succeeded(&output);
    let lines: Vec<Value> = String::from_utf8(output.stdout)
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(lines.len(), 8);
    let find = |drives: u64, system: &str| {
        let line = lines.iter().find(|line| line["drives"] == drives && line["system"] == system);
        line.unwrap_or_else(|| panic!("{system} with {drives} drives is missing"))
    };
    let seconds = |drives, system, phase: &str| find(drives, system)[phase].as_f64().unwrap();
    for line in &lines {
        let phases = ["forward_seconds", "backward_seconds", "update_seconds"];
        let sum: f64 = phases.iter().map(|phase| line[phase].as_f64().unwrap()).sum();
        assert!((sum / line["total_seconds"].as_f64().unwrap() - 1.0).abs() < 1e-9);
        assert_eq!(line["forward_seconds"], lines[0]["forward_seconds"]);
        assert!(!line["bottleneck"].as_str().unwrap().is_empty());
    }
    // Bytes of section 4.7 with the parameters padded to whole pages for each part.
    let parameters = find(6, "su")["parameters"].as_u64().unwrap();
    let per = |system: &str, link: &str| {
        find(6, system)["bytes"][link].as_u64().unwrap() as f64 / parameters as f64
    };
    for (system, link, bytes) in [
        ("base", "shared_down", 16.0),
        ("base", "shared_up", 16.0),
        ("su", "shared_down", 4.0),
        ("su", "shared_up", 4.0),
        ("su+o", "internal_read", 16.0),
        ("su+o", "internal_write", 12.0),
        ("su+o+c", "shared_down", 0.08),
    ] {
        assert!((per(system, link) / bytes - 1.0).abs() < 0.01, "{system} {link}");
    }
    assert!(seconds(6, "su+o", "update_seconds") <= seconds(6, "su", "update_seconds"));
    assert!(seconds(6, "su+o", "update_seconds") < seconds(6, "base", "update_seconds"));
    assert!(seconds(1, "su", "update_seconds") >= 0.95 * seconds(1, "base", "update_seconds"));
    for (words, wanted) in [
        (&["--drives", "11"][..], &["11 drives", "line", "drive.count_max"][..]),
        (&["--model", "gpt2-4b"], &["gpt2-4.0b"]),
        (&["--gpus", "4"], &["4 compute devices", "gpus.a5000.count_max"]),
        (&["--gpus", "0"], &["--gpus 0", "between 1 and"]),
        (&["--drives", "0"], &["--drives must be at least 1"]),
        (&["--drives", "4000000000"], &["drive.count_max"]),
        (&["--subgroup-size", "1"], &["--subgroup-size 1", "parts"]),
        (&["--seq", "2048"], &["--seq 2048", "1024 positions"]),
        (&["--seq", "16000000", "--batch", "16000000"], &["--seq"]),
        (&["--topology", "ring"], &["ring", "congested"]),
        (&["--batch", "4000"], &["gpus.a5000.memory_bytes", "--batch"]),
        (&["--subgroup-size", "400000000"], &["drive.near.memory_bytes", "--subgroup-size"]),
        (&["--model", "flat:1e9"], &["no number of parameters"]),
        (&["--chart", "x.pdf"], &[".svg or .png"]),
        (&["--sweep", "drive=1"], &["keys are drives"]),
        (&["--sweep", "seq=8", "--sweep", "seq=9"], &["given twice"]),
        (&["--topk-keep", "nan"], &["--topk-keep NaN", "above 0"]),
        (&["--drives", "-1"], &["'-1' for '--drives"]),
        (&["--model", "no/config.json"], &["no such file"]),
        (&["--gpus", "2", "--chakra", "x"], &["use --gpus 1"]),
    ] {
        failed_with(&simulate(words), wanted);
    }
}

#[test]
fn a_sweep_gives_a_table_csv_and_charts() {
    let root = tempfile::tempdir().unwrap();
    let path = |name: &str| root.path().join(name).to_str().unwrap().to_owned();
    for chart in ["chart.svg", "chart.png"] {
        let output = simulate(&[
            "--model",
            "gpt2-1.16b",
            "--sweep",
            "drives=1..4",
            "--sweep",
            "system=all",
            "--csv",
            &path("sweep.csv"),
            "--chart",
            &path(chart),
        ]);
        succeeded(&output);
        assert_eq!(String::from_utf8(output.stdout).unwrap().matches("gpt2-1.16b").count(), 20);
    }
    let csv = std::fs::read_to_string(path("sweep.csv")).unwrap();
    assert_eq!(csv.lines().count(), 21);
    assert!(csv.starts_with("fabric,gpu,gpus,"));
    let svg = std::fs::read_to_string(path("chart.svg")).unwrap();
    for wanted in ["base-pipe", "su+o+c", "seconds of a step", "speed-up over base", "drives"] {
        assert!(svg.contains(wanted), "{wanted}");
    }
    // Three stacked bars for each of 20 combinations.
    assert!(svg.matches("<rect").count() >= 60);
    let png = std::fs::read(path("chart.png")).unwrap();
    assert!(png.starts_with(b"\x89PNG") && png.len() > 50_000);
}

#[test]
fn one_combination_names_its_bottleneck_and_what_would_relieve_it() {
    let output = simulate(&["--model", "gpt2-1.16b", "--drives", "6", "--json", "--what-if"]);
    succeeded(&output);
    let line: Value = serde_json::from_slice(&output.stdout).unwrap();
    let total = line["total_seconds"].as_f64().unwrap();
    let what_if = line["what_if"].as_array().unwrap();
    assert_eq!(what_if[0]["name"], line["bottleneck"]);
    assert!(what_if[0]["times_faster"].as_f64().unwrap() > 1.0);
    for relief in what_if {
        let [twice, unlimited] =
            ["twice_seconds", "unlimited_seconds"].map(|key| relief[key].as_f64().unwrap());
        assert!(unlimited <= twice * 1.001 && twice <= total * 1.001, "{relief}");
    }
    assert!(what_if[0]["unlimited_seconds"].as_f64().unwrap() < total);
    // The baseline's uplink: what-if is what a faster one in the description gives.
    let root = tempfile::tempdir().unwrap();
    let file = root.path().join("faster.toml");
    let fabric = include_str!("../sim/fabrics/smartssd-falcon.toml");
    std::fs::write(&file, fabric.replace("= 8e9\n", "= 16e9\n")).unwrap();
    let base = ["--drives", "6", "--json", "--what-if", "--system", "base"];
    let line: Value = serde_json::from_slice(&simulate(&base).stdout).unwrap();
    assert_eq!(line["bottleneck"], "uplink");
    let mut command = Command::new(env!("CARGO_BIN_EXE_nearfield"));
    command.args(["simulate", "--gpu", "a5000", "--fabric"]).arg(&file).args(base);
    let faster: Value = serde_json::from_slice(&command.output().unwrap().stdout).unwrap();
    let [twice, edited] = [&line["what_if"][0]["twice_seconds"], &faster["total_seconds"]];
    assert!((twice.as_f64().unwrap() / edited.as_f64().unwrap() - 1.0).abs() < 1e-9);
    let text = simulate(&["--model", "gpt2-1.16b", "--drives", "6"]);
    let text = String::from_utf8(text.stdout).unwrap();
    for wanted in ["Most memory at a time", "Price 61400 USD", "The bottleneck is"] {
        assert!(text.contains(wanted), "{text}");
    }
}

#[test]
fn several_gpus_share_the_work_and_a_shared_uplink_costs() {
    let run = |gpus: &str, topology: &str| -> Value {
        let output = simulate(&[
            "--gpus",
            gpus,
            "--topology",
            topology,
            "--drives",
            "6",
            "--json",
            "--system",
            "su+o+c",
        ]);
        succeeded(&output);
        serde_json::from_slice(&output.stdout).unwrap()
    };
    let seconds = |line: &Value, phase: &str| line[phase].as_f64().unwrap();
    let (one, three, congested) = (run("1", "default"), run("3", "default"), run("3", "congested"));
    assert_eq!(three["gpus"], 3);
    assert!(seconds(&three, "forward_seconds") < seconds(&one, "forward_seconds"));
    assert!(seconds(&congested, "backward_seconds") > seconds(&three, "backward_seconds"));
}

#[test]
fn graphs_are_written_as_chakra_traces() {
    let root = tempfile::tempdir().unwrap();
    let stem = root.path().join("step");
    let output = simulate(&["--model", "gpt2-1.16b", "--chakra", stem.to_str().unwrap()]);
    succeeded(&output);
    for name in ["step.gradients.0.et", "step.update.0.et"] {
        let file = root.path().join(name);
        assert!(nearfield_sim::chakra::read(&[file]).unwrap().tasks().len() > 100, "{name}");
    }
}

#[test]
fn measurements_are_set_beside_what_is_simulated() {
    let validate = |words: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_nearfield"));
        command.env_clear().arg("validate").args(words).output().unwrap()
    };
    let output = validate(&["--json"]);
    succeeded(&output);
    let text = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let paper = |phase: &str| {
        let of = lines.iter().filter(|line| line["data"] == "smartssd-paper");
        let of = of.filter(|line| line["phase"] == phase && line["error"].is_f64());
        of.map(|line| line["error"].as_f64().unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(paper("update").len(), 4);
    assert!(paper("update").iter().all(|error| error.abs() < 0.15));
    assert!(paper("total").iter().all(|error| error.abs() < 0.1));
    let root = tempfile::tempdir().unwrap();
    let file = root.path().join("mine.toml");
    let data = |entry: &str| {
        let text = format!(
            "source = \"mine\"\n[[entries]]\nfabric = \"desktop\"\nmodel = \"flat:1000000\"\n{entry}"
        );
        std::fs::write(&file, text).unwrap();
        validate(&["--data", file.to_str().unwrap()])
    };
    let good = data("drives = 1\nsystem = \"su+o\"\nmeasured = { update = 0.01 }");
    succeeded(&good);
    assert!(String::from_utf8(good.stdout).unwrap().contains("flat:1000000, 1 drive, su+o"));
    for (entry, words) in [
        ("drives = 2\nsystem = \"su+o\"\nmeasured = { update = 0.01 }", &["drive.count_max"][..]),
        (
            "drives = 1\nsystem = \"su\"\nmeasured = { update = -1 }",
            &["line 2, entry 1", "above 0"],
        ),
        ("drives = 1\nsystem = \"su\"\nmeasured = {}", &["nothing was measured"]),
        ("drives = 1\nsystem = \"su\"\nsystm = 1\nmeasured = { update = 1 }", &["systm"]),
        ("drives = ", &["mine.toml", "line 5"]),
    ] {
        failed_with(&data(entry), words);
    }
}
