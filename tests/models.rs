//! Models of others as a user trains them: fine-tuning beside plain PyTorch, data of every kind, wrong models and data.
#![allow(clippy::unwrap_used)] // A test fails by panicking.

#[path = "common/models.rs"]
mod common;

use std::fs;
use std::path::Path;

use common::{Place, failed_with, losses, made, python, succeeded};
use serde_json::Value;

/// Largest difference of a loss from that of plain PyTorch.
const WORST: f64 = 1e-5;

#[test]
fn fine_tuning_equals_a_plain_loop_in_pytorch() {
    let root = made();
    let directory = root.to_str().unwrap();
    for (model, data, options) in [
        ("gpt2", "tokens.npy", ""),
        ("qwen3", "tokens.npy", "--system base"),
        ("qwen3", "pairs.jsonl", "--packing false"),
        ("gpt2", "pairs.jsonl", "--packing false --system su --placement flat-equal"),
    ] {
        let place = Place::new();
        let saved = place.path("saved");
        let more = format!("--order sequential --steps 20 --save {} {options}", saved.display());
        succeeded(&place.train(&root.join(model), &root.join(data), &more));
        let theirs: Vec<f64> =
            serde_json::from_str(&python(&["train", directory, model, data, "float32"])).unwrap();
        let own = losses(&place.report());
        assert_eq!(own.len(), theirs.len());
        let worst = own.iter().zip(&theirs).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
        assert!(worst <= WORST, "{model} on {data}: losses differ by {worst}: {own:?} {theirs:?}");
        assert!(own[19] < own[0] - 0.5, "{own:?}");
        let torch = root.join(format!("{model}.torch"));
        // transformers loads what was saved, with its tokenizer.
        let compared: Value = serde_json::from_str(&python(&[
            "compare",
            torch.to_str().unwrap(),
            saved.to_str().unwrap(),
        ]))
        .unwrap();
        println!("{model} on {data}: losses within {worst:.1e}, {compared}");
        assert!(compared["logits"].as_f64().unwrap() <= 1e-4, "{compared}");
        assert!(compared["weights"].as_f64().unwrap() <= 1e-4, "{compared}");
        assert_eq!(compared["text"], true);
    }
}

#[test]
fn runs_on_every_kind_of_data_resume_where_they_stopped() {
    let root = made();
    let text = root.join("text");
    fs::create_dir_all(&text).unwrap();
    fs::write(text.join("a.txt"), "The lazy dog sleeps; the fox jumps.\n".repeat(60)).unwrap();
    for (data, options) in [
        ("tokens.npy", ""),
        ("tokens.bin", "--token-width u32 --order shuffle"),
        ("pairs.jsonl", ""),
        ("text", "--dtype bf16"),
    ] {
        let data = root.join(data);
        let place = Place::new();
        let model = root.join("qwen3");
        let run = |more: &str| succeeded(&place.train(&model, &data, &format!("{options} {more}")));
        run("--steps 6");
        let whole = place.report();
        run("--steps 3 --overwrite");
        let shown = run("--steps 6 --resume --prompt The --sample 5");
        assert!(shown.contains("sample        The"), "{shown}");
        let resumed = place.report();
        assert_eq!(losses(&whole), losses(&resumed), "{}", data.display());
        assert_eq!(whole["state_digest"], resumed["state_digest"]);
    }
}

#[test]
fn weights_and_activations_on_drives_change_nothing_but_memory() {
    let root = made();
    let place = Place::new();
    let run = |model: &str, more: &str| {
        let data = root.join("pairs.jsonl");
        succeeded(&place.train(&root.join(model), &data, &format!("--steps 4 --overwrite {more}")));
        let report = place.report();
        for (link, bytes) in report["traffic"].as_object().unwrap() {
            assert_eq!(bytes["predicted"], bytes["measured"], "{link} with {more}");
        }
        (losses(&report), report["state_digest"].clone())
    };
    for (model, dtype) in [("gpt2", "fp32"), ("qwen3", "bf16")] {
        let dtype = format!("--dtype {dtype}");
        let expected = run(model, &dtype);
        for more in [
            "--activations device",
            "--activations drive",
            "--weights drive",
            "--weights drive --activations drive --system base",
            "--weights drive --system su --upstream fp32-storage",
        ] {
            assert!(run(model, &format!("{dtype} {more}")) == expected, "{model} {more}");
        }
    }
}

#[test]
fn a_model_or_data_that_cannot_be_used_is_named_and_an_old_run_is_kept() {
    let root = made();
    let place = Place::new();
    let data = root.join("pairs.jsonl");
    let good = root.join("gpt2");
    succeeded(&place.train(&good, &data, "--steps 2"));
    let digest = place.report()["state_digest"].clone();
    let wrong = |change: &dyn Fn(&Path), words: &[&str]| {
        let model = place.model("gpt2");
        change(&model);
        failed_with(&place.train(&model, &data, "--steps 2 --overwrite"), words);
    };
    let edit = |model: &Path, key: &str, value: Value| {
        let path = model.join("config.json");
        let mut config: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        config[key] = value;
        fs::write(path, config.to_string()).unwrap();
    };
    let shard = |model: &Path| model.join("model-00001-of-00005.safetensors");
    assert!(shard(&good).is_file(), "{:?}", fs::read_dir(&good).unwrap().collect::<Vec<_>>());
    wrong(&|model| edit(model, "model_type", "mamba".into()), &["\"mamba\"", "known are gpt2"]);
    wrong(&|model| edit(model, "n_layer", 3.into()), &["transformer.h.2", "fetch the model again"]);
    wrong(&|model| edit(model, "n_embd", 36.into()), &["has the sizes", "[310, 36]"]);
    wrong(
        &|model| fs::remove_file(model.join("config.json")).unwrap(),
        &["config.json", "--model"],
    );
    wrong(&|model| fs::remove_file(shard(model)).unwrap(), &["model-00001-of", "is missing"]);
    wrong(
        &|model| {
            let file = fs::File::options().write(true).open(shard(model)).unwrap();
            file.set_len(1000).unwrap();
        },
        &["model-00001-of", "cut off"],
    );
    wrong(
        &|model| {
            let mut bytes = fs::read(shard(model)).unwrap();
            let end = bytes.len();
            bytes[end - 4..].copy_from_slice(&f32::INFINITY.to_le_bytes());
            fs::write(shard(model), bytes).unwrap();
        },
        &["is inf, not a finite number"],
    );
    wrong(
        &|model| fs::remove_file(model.join("tokenizer.json")).unwrap(),
        &["tokenizer.json", "--tokenizer"],
    );
    let model = place.model("gpt2");
    let bad = place.path("bad.jsonl");
    let lines = fs::read_to_string(&data).unwrap().replacen("completion", "complet", 1);
    fs::write(&bad, lines.replacen("\n{\"prompt\"", "\n{\"prompt\" ", 2)).unwrap();
    failed_with(
        &place.train(&model, &bad, "--overwrite"),
        &["bad.jsonl: line 1: there is a prompt"],
    );
    fs::write(&bad, "{\"text\": \"a\"}\n{\"text\": \"b\n").unwrap();
    failed_with(&place.train(&model, &bad, "--overwrite"), &["bad.jsonl: line 2: it is no JSON"]);
    let large = place.path("large.npy");
    let bytes = fs::read(root.join("tokens.npy")).unwrap();
    let end = bytes.len();
    let tokens = [&bytes[..end - 2], &400_u16.to_le_bytes()].concat();
    fs::write(&large, tokens).unwrap();
    failed_with(&place.train(&model, &large, "--overwrite"), &["vocabulary of 401", "310"]);
    failed_with(&place.train(&model, &data, "--layers 3"), &["--layers", "--model"]);
    let occupied = place.path("occupied");
    fs::create_dir(&occupied).unwrap();
    fs::write(occupied.join("notes"), "mine").unwrap();
    let save = format!("--overwrite --save {}", occupied.display());
    failed_with(&place.train(&model, &data, &save), &["something is there already"]);
    // Nothing of all this has touched the run.
    succeeded(&place.train(&good, &data, "--steps 2 --resume"));
    assert_eq!(place.report()["state_digest"], digest);
    // Another model is not continued by mistake.
    let other = root.join("qwen3");
    failed_with(
        &place.train(&other, &data, "--steps 2 --resume"),
        &["the run has a model of", "--overwrite"],
    );
}
