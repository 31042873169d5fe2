//! Shapes from Hugging Face configurations.

use nearfield_runtime::{Error, Result};
use serde_json::{Map, Value};

use super::{Input, ModelShape, Output};

/// Kinds of models that are understood (`model_type`).
const KINDS: [&str; 11] = [
    "gpt2", "gpt_neox", "opt", "bert", "roberta", "bloom", "vit", "llama", "mistral", "qwen2",
    "qwen3",
];

struct Config<'a> {
    name: &'a str,
    keys: &'a Map<String, Value>,
}

impl Config<'_> {
    fn number(&self, keys: &[&str]) -> Option<u64> {
        keys.iter().find_map(|key| self.keys.get(*key)?.as_u64())
    }

    /// The first of `keys` that is there.
    fn need(&self, keys: &[&str]) -> Result<u64> {
        self.number(keys).ok_or_else(|| {
            let keys = keys.join(" or ");
            Error::Invalid(format!("{}: {keys} is missing or no whole number", self.name))
        })
    }

    fn flag(&self, key: &str, otherwise: bool) -> bool {
        self.keys.get(key).and_then(Value::as_bool).unwrap_or(otherwise)
    }
}

pub(super) fn shape(name: &str, text: &str) -> Result<ModelShape> {
    let value: Value = serde_json::from_str(text)
        .map_err(|error| Error::Invalid(format!("{name} is not valid JSON: {error}")))?;
    let keys =
        value.as_object().ok_or_else(|| Error::Invalid(format!("{name} is not a JSON object")))?;
    let config = Config { name, keys };
    let kind = keys.get("model_type").and_then(Value::as_str).unwrap_or_default();
    if !KINDS.contains(&kind) {
        return Err(Error::Invalid(format!(
            "{name}: model_type {kind:?} is not known; known are {}",
            KINDS.join(", ")
        )));
    }
    let hidden = config.need(&["hidden_size", "n_embd"])?;
    let heads = config.need(&["num_attention_heads", "n_head"])?;
    let head_width = match config.number(&["head_dim"]) {
        Some(width) => width,
        // Its own, whatever the hidden size is.
        None if kind == "qwen3" => 128,
        None if heads > 0 && hidden.is_multiple_of(heads) => hidden / heads,
        None => {
            return Err(Error::Invalid(format!(
                "model {name}: hidden {hidden} is not a multiple of heads {heads}"
            )));
        }
    };
    let gated = matches!(kind, "llama" | "mistral" | "qwen2" | "qwen3");
    let tied_otherwise = kind != "gpt_neox" && !gated;
    let vit = kind == "vit";
    let (vocab, positions, input) = if vit {
        let patch = config.need(&["patch_size"])?;
        let side = config.need(&["image_size"])?;
        if patch == 0 || side < patch {
            return Err(Error::Invalid(format!("{name}: patch_size {patch} of image_size {side}")));
        }
        let channels = config.number(&["num_channels"]).unwrap_or(3);
        let numbers = patch.saturating_mul(patch).saturating_mul(channels);
        (0, (side / patch).saturating_mul(side / patch), Input::Patches { numbers })
    } else {
        let positions = match kind {
            "bloom" => config.number(&["seq_length", "n_positions"]).unwrap_or(2048),
            _ => config.need(&["max_position_embeddings", "n_positions"])?,
        };
        let input = match kind {
            "bert" | "roberta" => Input::TokensPositionsSegments,
            "bloom" => Input::TokensAndNorm,
            _ if gated || kind == "gpt_neox" => Input::Tokens,
            _ => Input::TokensAndPositions,
        };
        (config.need(&["vocab_size"])?, positions, input)
    };
    let shape = ModelShape {
        name: name.to_owned(),
        layers: config.need(&["num_hidden_layers", "n_layer"])?,
        hidden,
        heads,
        head_width,
        key_value_heads: config.number(&["num_key_value_heads"]).unwrap_or(heads),
        feed_forward: config
            .number(&["intermediate_size", "ffn_dim", "n_inner"])
            .unwrap_or(hidden.saturating_mul(4)),
        feed_forward_matrices: if gated { 3 } else { 2 },
        vocab,
        positions,
        biases: !gated,
        attention_biases: kind == "qwen2" || config.flag("attention_bias", false),
        head_norms: kind == "qwen3",
        norm_shifts: !gated,
        input,
        output: if vit {
            Output::Classes { classes: config.number(&["num_labels"]).unwrap_or(1000) }
        } else if config.flag("tie_word_embeddings", tied_otherwise) {
            Output::Tied
        } else {
            Output::Untied
        },
    };
    shape.validate()?;
    Ok(shape)
}
