use nearfield_runtime::types::DType;

use super::*;

#[test]
fn names_give_the_sizes_that_they_promise() {
    for name in NAMES {
        let shape = ModelShape::named(name).unwrap();
        let billions: f64 = name.split_once('-').unwrap().1.trim_end_matches('b').parse().unwrap();
        let found = shape.parameters() as f64 / 1e9;
        assert!((found / billions - 1.0).abs() < 0.035, "{name}: {found}");
        assert_eq!(shape.flat().unwrap().elements(), shape.parameters());
    }
    let error = ModelShape::named("gpt2-4b").unwrap_err().to_string();
    assert!(error.contains("gpt2-4.0b"), "{error}");
}

#[test]
fn parameters_equal_the_published_counts() {
    // GPT-2 (124M): 124 439 808 parameters with tied embeddings.
    let gpt2 = r#"{"model_type":"gpt2","n_layer":12,"n_embd":768,"n_head":12,"vocab_size":50257,"n_positions":1024}"#;
    assert_eq!(ModelShape::from_config("gpt2", gpt2).unwrap().parameters(), 124_439_808);
    // Llama 2 7B: 6 738 415 616.
    let llama = r#"{"model_type":"llama","num_hidden_layers":32,"hidden_size":4096,"num_attention_heads":32,
        "num_key_value_heads":32,"intermediate_size":11008,"vocab_size":32000,"max_position_embeddings":4096,
        "tie_word_embeddings":false}"#;
    assert_eq!(ModelShape::from_config("llama", llama).unwrap().parameters(), 6_738_415_616);
    // BLOOM 7.1B: 7 069 016 064.
    let bloom =
        r#"{"model_type":"bloom","n_layer":30,"hidden_size":4096,"n_head":32,"vocab_size":250880}"#;
    assert_eq!(ModelShape::from_config("bloom", bloom).unwrap().parameters(), 7_069_016_064);
}

#[test]
fn units_complete_every_gradient_once() {
    for name in ["gpt2-1.16b", "bert-0.34b", "bloom-3b", "vit-0.30b"] {
        let shape = ModelShape::named(name).unwrap();
        let units = shape.units(4, 128, DType::Fp16).unwrap();
        assert_eq!(units.len() as u64, shape.layers + 2);
        let mut runs: Vec<(u64, u64)> =
            units.iter().flat_map(|unit| unit.gradients.clone()).collect();
        runs.sort_unstable();
        let mut next = 0;
        for (start, elements) in runs {
            assert_eq!(start, next, "{name}");
            next += elements;
        }
        assert_eq!(next, shape.parameters());
        // 2 operations a parameter and token, but for the input's tables, and some for attention.
        let flops: u64 = units.iter().map(|unit| unit.forward_flops).sum();
        let least = 2 * 4 * 128 * 12 * shape.layers * shape.hidden * shape.hidden;
        assert!(flops > least && flops < 2 * least, "{name}");
    }
}

#[test]
fn wrong_configurations_are_named() {
    let error = |text: &str| ModelShape::from_config("config.json", text).unwrap_err().to_string();
    assert!(error("{").contains("config.json is not valid JSON"));
    assert!(error("[]").contains("not a JSON object"));
    assert!(error(r#"{"model_type":"mamba"}"#).contains("\"mamba\" is not known"));
    assert!(error(r#"{"model_type":"gpt2","n_embd":8}"#).contains("num_attention_heads"));
    let odd = r#"{"model_type":"gpt2","n_layer":1,"n_embd":10,"n_head":4,"vocab_size":9,"n_positions":8}"#;
    assert!(error(odd).contains("not a multiple of heads 4"));
}
