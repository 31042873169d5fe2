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
    assert_eq!(ModelShape::named("4.0B").unwrap().name, "gpt2-4.0b");
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
    // Qwen2 7B: 7 615 616 512, with biases of queries, keys and values.
    let qwen = r#"{"model_type":"qwen2","num_hidden_layers":28,"hidden_size":3584,"num_attention_heads":28,
        "num_key_value_heads":4,"intermediate_size":18944,"vocab_size":152064,"max_position_embeddings":131072,
        "tie_word_embeddings":false}"#;
    assert_eq!(ModelShape::from_config("qwen", qwen).unwrap().parameters(), 7_615_616_512);
    // Qwen3 0.6B: 596 049 920, with a norm for each query and key.
    let qwen = r#"{"model_type":"qwen3","num_hidden_layers":28,"hidden_size":1024,"num_attention_heads":16,
        "num_key_value_heads":8,"head_dim":128,"intermediate_size":3072,"vocab_size":151936,
        "max_position_embeddings":40960,"tie_word_embeddings":true}"#;
    assert_eq!(ModelShape::from_config("qwen", qwen).unwrap().parameters(), 596_049_920);
    // Mistral Nemo: 12 247 782 400, with heads narrower than hidden / heads.
    let nemo = r#"{"model_type":"mistral","num_hidden_layers":40,"hidden_size":5120,"num_attention_heads":32,
        "num_key_value_heads":8,"head_dim":128,"intermediate_size":14336,"vocab_size":131072,
        "max_position_embeddings":131072,"tie_word_embeddings":false}"#;
    assert_eq!(ModelShape::from_config("nemo", nemo).unwrap().parameters(), 12_247_782_400);
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
        let tokens = if name.starts_with("vit") { 4 * 197 } else { 4 * 128 };
        let least = 2 * tokens * 12 * shape.layers * shape.hidden * shape.hidden;
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

#[test]
fn sizes_beyond_reason_are_refused_and_never_overflow() {
    let shape = ModelShape::named("gpt2-4.0b").unwrap();
    for (batch, seq) in [(1 << 40, 1024), (u64::MAX, 1024), (4, 2048)] {
        assert!(shape.units(batch, seq, DType::Fp16).is_err());
    }
    let huge = |key: &str, value: u64| {
        let mut config = serde_json::json!({"model_type": "llama", "num_hidden_layers": 2, "hidden_size": 64,
            "num_attention_heads": 4, "vocab_size": 100, "max_position_embeddings": 64});
        config[key] = value.into();
        ModelShape::from_config("x", &config.to_string())
    };
    assert!(huge("num_key_value_heads", 4).is_ok());
    for key in ["num_hidden_layers", "hidden_size", "vocab_size", "intermediate_size", "head_dim"] {
        assert!(huge(key, 1 << 60).is_err(), "{key}");
    }
    assert!(huge("num_key_value_heads", 3).is_err());
    assert!(huge("num_key_value_heads", 8).is_err());
}
