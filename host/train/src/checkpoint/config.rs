//! `config.json` to and from an [`Architecture`].

use std::path::{Path, PathBuf};

use nearfield_runtime::types::DType;
use serde_json::{Map, Value, json};

use super::rope;
use crate::error::{Error, Result};
use crate::model::{Activation, Architecture, Family, LAYERS_MAX, Windows};

/// What a model's `config.json` says.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// The model.
    pub architecture: Architecture,
    /// Token that ends a text.
    pub end_of_text: Option<u32>,
    /// All keys, to be saved with the trained model.
    pub keys: Map<String, Value>,
}

impl Config {
    /// Reads `config.json` in `directory`.
    ///
    /// # Errors
    /// [`Error::Checkpoint`]: no such file, no JSON, a kind of model or an option that is not known, a size that is missing.
    pub fn read(directory: &Path) -> Result<Self> {
        let path = directory.join("config.json");
        let text = std::fs::read_to_string(&path).map_err(|error| {
            let remedy = "give the directory of a Hugging Face model with --model";
            Error::checkpoint(&path, format!("cannot read it: {error}"), remedy)
        })?;
        Self::parse(&path, &text)
    }

    /// Parses the text of `path`.
    fn parse(path: &Path, text: &str) -> Result<Self> {
        let value: Value = serde_json::from_str(text).map_err(|error| {
            Error::checkpoint(path, format!("it is no JSON: {error}"), "fetch the model again")
        })?;
        let Value::Object(keys) = value else {
            let what = "it is no JSON object".to_owned();
            return Err(Error::checkpoint(path, what, "fetch the model again"));
        };
        let reader = Keys { path: path.to_path_buf(), keys: &keys };
        let architecture = reader.architecture()?;
        let end_of_text = match keys.get("eos_token_id") {
            Some(Value::Array(list)) => list.first().and_then(Value::as_u64),
            Some(value) => value.as_u64(),
            None => None,
        };
        Ok(Self {
            end_of_text: end_of_text.and_then(|token| u32::try_from(token).ok()),
            architecture,
            keys,
        })
    }
}

/// Keys of a configuration, with errors that name them.
pub(super) struct Keys<'a> {
    pub path: PathBuf,
    pub keys: &'a Map<String, Value>,
}

impl Keys<'_> {
    pub fn error(&self, what: String) -> Error {
        Error::checkpoint(&self.path, what, "use a model of a kind that is supported")
    }

    /// A value that is there and not null.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.keys.get(key).filter(|value| !value.is_null())
    }

    fn size(&self, key: &str) -> Result<Option<u32>> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let number = value.as_u64().and_then(|number| u32::try_from(number).ok());
        number.map(Some).ok_or_else(|| self.error(format!("{key} is {value}, not a size")))
    }

    fn need(&self, key: &str) -> Result<u32> {
        self.size(key)?.ok_or_else(|| self.error(format!("{key} is missing")))
    }

    pub fn number(&self, key: &str) -> Result<Option<f64>> {
        let Some(value) = self.get(key) else { return Ok(None) };
        value.as_f64().map(Some).ok_or_else(|| self.error(format!("{key} is {value}, no number")))
    }

    pub fn flag(&self, key: &str, otherwise: bool) -> Result<bool> {
        let Some(value) = self.get(key) else { return Ok(otherwise) };
        value.as_bool().ok_or_else(|| self.error(format!("{key} is {value}, not true or false")))
    }

    fn family(&self) -> Result<Family> {
        let kind = self.get("model_type").and_then(Value::as_str).unwrap_or_default();
        let names = Family::ALL.map(Family::name).join(", ");
        Family::ALL.into_iter().find(|family| family.name() == kind).ok_or_else(|| {
            self.error(format!("model_type {kind:?} is not known; known are {names}"))
        })
    }

    fn activation(&self, key: &str, otherwise: &str) -> Result<Activation> {
        let name = self.get(key).and_then(Value::as_str).unwrap_or(otherwise);
        Ok(match name {
            "gelu" => Activation::Gelu,
            "gelu_new" | "gelu_pytorch_tanh" | "gelu_fast" => Activation::GeluTanh,
            "silu" | "swish" => Activation::Silu,
            "relu" => Activation::Relu,
            _ => return Err(self.error(format!("{key} {name:?} is not known"))),
        })
    }

    fn architecture(&self) -> Result<Architecture> {
        if self.get("quantization_config").is_some() {
            let what = "its weights are quantised, which cannot be trained".to_owned();
            return Err(Error::checkpoint(&self.path, what, "use the model in full precision"));
        }
        let family = self.family()?;
        let architecture = if family == Family::Gpt2 { self.gpt2()? } else { self.llama(family)? };
        architecture.validate().map_err(|error| self.error(error.to_string()))?;
        Ok(architecture)
    }

    fn gpt2(&self) -> Result<Architecture> {
        for (key, usual) in [
            ("scale_attn_weights", true),
            ("scale_attn_by_inverse_layer_idx", false),
            ("add_cross_attention", false),
        ] {
            if self.flag(key, usual)? != usual {
                return Err(self.error(format!("{key} = {} is not supported", !usual)));
            }
        }
        let (hidden, heads) = (self.need("n_embd")?, self.need("n_head")?);
        Ok(Architecture {
            family: Family::Gpt2,
            layers: self.need("n_layer")?,
            hidden,
            heads,
            key_value_heads: heads,
            head_width: self.head_width(hidden, heads)?,
            feed_forward: self.size("n_inner")?.unwrap_or(hidden.saturating_mul(4)),
            vocab: self.need("vocab_size")?,
            positions: self.need("n_positions")?,
            tied: self.flag("tie_word_embeddings", true)?,
            activation: self.activation("activation_function", "gelu_new")?,
            norm_eps: self.number("layer_norm_epsilon")?.unwrap_or(1e-5),
            qkv_biases: true,
            out_bias: true,
            feed_forward_biases: true,
            rope: None,
            windows: None,
        })
    }

    fn llama(&self, family: Family) -> Result<Architecture> {
        let (hidden, heads) = (self.need("hidden_size")?, self.need("num_attention_heads")?);
        let shared = self.size("num_key_value_heads")?;
        let key_value_heads = match (shared, family) {
            (Some(heads), _) => heads,
            (None, Family::Llama) => heads,
            _ => return Err(self.error("num_key_value_heads is missing".into())),
        };
        let attention_biases = self.flag("attention_bias", false)?;
        let positions = self.need("max_position_embeddings")?;
        Ok(Architecture {
            family,
            layers: self.need("num_hidden_layers")?,
            hidden,
            heads,
            key_value_heads,
            head_width: match self.size("head_dim")? {
                Some(width) => width,
                // As in transformers: its own, whatever the hidden size is.
                None if family == Family::Qwen3 => 128,
                None => self.head_width(hidden, heads)?,
            },
            feed_forward: self.need("intermediate_size")?,
            vocab: self.need("vocab_size")?,
            positions,
            tied: self.flag("tie_word_embeddings", false)?,
            activation: self.activation("hidden_act", "silu")?,
            norm_eps: self.number("rms_norm_eps")?.unwrap_or(1e-6),
            qkv_biases: family == Family::Qwen2 || attention_biases,
            out_bias: family != Family::Qwen2 && attention_biases,
            feed_forward_biases: family == Family::Llama && self.flag("mlp_bias", false)?,
            rope: Some(rope::read(self, positions)?),
            windows: self.windows(family)?,
        })
    }

    fn head_width(&self, hidden: u32, heads: u32) -> Result<u32> {
        if heads == 0 || !hidden.is_multiple_of(heads) {
            return Err(self.error(format!("{heads} heads do not divide a width of {hidden}")));
        }
        Ok(hidden / heads)
    }

    fn windows(&self, family: Family) -> Result<Option<Windows>> {
        let layers = self.need("num_hidden_layers")?;
        if layers > LAYERS_MAX {
            return Err(
                self.error(format!("num_hidden_layers is {layers}, more than {LAYERS_MAX}"))
            );
        }
        // Mistral's default where the key is missing; null says that there is none.
        let absent = family == Family::Mistral && !self.keys.contains_key("sliding_window");
        let tokens = if absent { Some(4096) } else { self.size("sliding_window")? };
        let Some(tokens) = tokens else { return Ok(None) };
        let used = match family {
            Family::Mistral => true,
            Family::Qwen2 | Family::Qwen3 => self.flag("use_sliding_window", false)?,
            Family::Gpt2 | Family::Llama => false,
        };
        if !used {
            return Ok(None);
        }
        let layers: Vec<bool> = match self.get("layer_types").and_then(Value::as_array) {
            Some(types) => types.iter().map(|kind| self.slides(kind)).collect::<Result<_>>()?,
            None if family == Family::Mistral => vec![true; layers as usize],
            None => {
                let first = self.size("max_window_layers")?.unwrap_or(28);
                (0..layers).map(|layer| layer >= first).collect()
            }
        };
        Ok(layers.contains(&true).then_some(Windows { tokens, layers }))
    }

    fn slides(&self, kind: &Value) -> Result<bool> {
        match kind.as_str() {
            Some("sliding_attention") => Ok(true),
            Some("full_attention") => Ok(false),
            _ => Err(self.error(format!("layer_types has {kind}, which is not known"))),
        }
    }
}

/// The keys of a `config.json` with which transformers loads a model that was saved in `dtype`.
pub fn to_config(architecture: &Architecture, dtype: DType) -> Map<String, Value> {
    let activation = match architecture.activation {
        Activation::Gelu => "gelu",
        Activation::GeluTanh => "gelu_new",
        Activation::Silu => "silu",
        Activation::Relu => "relu",
    };
    let mut keys = json!({
        "architectures": [architecture.family.class()],
        "model_type": architecture.family.name(),
        "vocab_size": architecture.vocab,
        "tie_word_embeddings": architecture.tied,
        "dtype": super::dtype::torch_name(dtype),
        "bos_token_id": null,
        "eos_token_id": null,
    });
    let own = if architecture.family == Family::Gpt2 {
        json!({
            "n_layer": architecture.layers,
            "n_embd": architecture.hidden,
            "n_head": architecture.heads,
            "n_inner": architecture.feed_forward,
            "n_positions": architecture.positions,
            "activation_function": activation,
            "layer_norm_epsilon": architecture.norm_eps,
            "attn_pdrop": 0.0,
            "embd_pdrop": 0.0,
            "resid_pdrop": 0.0,
        })
    } else {
        json!({
            "num_hidden_layers": architecture.layers,
            "hidden_size": architecture.hidden,
            "num_attention_heads": architecture.heads,
            "num_key_value_heads": architecture.key_value_heads,
            "head_dim": architecture.head_width,
            "intermediate_size": architecture.feed_forward,
            "max_position_embeddings": architecture.positions,
            "hidden_act": activation,
            "rms_norm_eps": architecture.norm_eps,
            "attention_bias": architecture.family != Family::Qwen2 && architecture.qkv_biases,
            "mlp_bias": architecture.feed_forward_biases,
            "rope_parameters": architecture.rope.as_ref().map(rope::write),
            // As versions of transformers before 5 read it.
            "rope_theta": architecture.rope.map(|rope| rope.theta),
            "rope_scaling": architecture.rope.as_ref().and_then(rope::write_scaling),
        })
    };
    let windows = match &architecture.windows {
        Some(windows) => json!({
            "use_sliding_window": true,
            "sliding_window": windows.tokens,
            "layer_types": windows.layers.iter().map(|&slides| {
                if slides { "sliding_attention" } else { "full_attention" }
            }).collect::<Vec<_>>(),
        }),
        None => json!({"sliding_window": null}),
    };
    for part in [own, windows] {
        if let (Value::Object(keys), Value::Object(part)) = (&mut keys, part) {
            keys.extend(part);
        }
    }
    match keys {
        Value::Object(keys) => keys,
        _ => Map::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Rope, RopeScaling, Shape};

    const LLAMA: &str = r#"{"model_type":"llama","num_hidden_layers":2,"hidden_size":32,"num_attention_heads":4,
        "num_key_value_heads":2,"intermediate_size":48,"vocab_size":64,"max_position_embeddings":64,"eos_token_id":[2,3]}"#;

    fn parse(text: &str) -> Result<Config> {
        Config::parse(Path::new("m/config.json"), text)
    }

    fn with(key: &str, value: Value) -> Result<Config> {
        let mut keys: Map<String, Value> = serde_json::from_str(LLAMA).unwrap();
        keys.insert(key.into(), value);
        parse(&Value::Object(keys).to_string())
    }

    #[test]
    fn configurations_of_both_generations_of_transformers_are_read() {
        let config = parse(LLAMA).unwrap();
        assert_eq!(config.end_of_text, Some(2));
        let scaling = RopeScaling::None;
        assert_eq!(config.architecture.rope, Some(Rope { theta: 1e4, scaling }));
        let new = with(
            "rope_parameters",
            json!({"rope_type": "linear", "rope_theta": 5e5, "factor": 2.0}),
        );
        let mut old: Map<String, Value> = serde_json::from_str(LLAMA).unwrap();
        old.insert("rope_theta".into(), json!(5e5));
        old.insert("rope_scaling".into(), json!({"type": "linear", "factor": 2.0}));
        let old = parse(&Value::Object(old).to_string()).unwrap();
        assert_eq!(old.architecture, new.unwrap().architecture);
    }

    #[test]
    fn what_is_not_supported_is_named() {
        let text = |result: Result<Config>| result.unwrap_err().to_string();
        assert!(text(parse("{")).contains("m/config.json: it is no JSON"));
        assert!(text(parse("[]")).contains("no JSON object"));
        let unknown = text(with("model_type", json!("mamba")));
        assert!(unknown.contains("\"mamba\"") && unknown.contains("gpt2, llama"), "{unknown}");
        assert!(text(with("vocab_size", Value::Null)).contains("vocab_size is missing"));
        assert!(text(with("vocab_size", json!(-4))).contains("vocab_size is -4"));
        assert!(text(with("hidden_act", json!("relu6"))).contains("hidden_act \"relu6\""));
        assert!(text(with("quantization_config", json!({}))).contains("quantised"));
        assert!(text(with("num_key_value_heads", json!(3))).contains("share 3 heads"));
        let rope = json!({"rope_type": "longrope", "rope_theta": 1e4});
        assert!(text(with("rope_parameters", rope)).contains("\"longrope\""));
        let rope = json!({"rope_type": "llama3", "rope_theta": 1e4, "factor": 8.0});
        assert!(text(with("rope_parameters", rope)).contains("low_freq_factor"));
    }

    #[test]
    fn windows_follow_each_familys_rules() {
        let windows = |kind: &str, changes: Value| {
            let mut keys: Map<String, Value> = serde_json::from_str(LLAMA).unwrap();
            keys.insert("model_type".into(), json!(kind));
            keys.extend(changes.as_object().unwrap().clone());
            parse(&Value::Object(keys).to_string()).unwrap().architecture.windows
        };
        let some = |tokens, layers: [bool; 2]| Some(Windows { tokens, layers: layers.to_vec() });
        assert_eq!(windows("mistral", json!({})), some(4096, [true, true]));
        assert_eq!(windows("mistral", json!({"sliding_window": null})), None);
        assert_eq!(windows("llama", json!({"sliding_window": 8})), None);
        assert_eq!(windows("qwen2", json!({"sliding_window": 8})), None);
        let used = json!({"sliding_window": 8, "use_sliding_window": true, "max_window_layers": 1});
        assert_eq!(windows("qwen3", used), some(8, [false, true]));
        let types = json!({"sliding_window": 8, "use_sliding_window": true,
            "layer_types": ["sliding_attention", "full_attention"]});
        assert_eq!(windows("qwen3", types), some(8, [true, false]));
    }

    #[test]
    fn a_configuration_that_is_written_reads_back_the_same() {
        let gpt: Architecture =
            Shape { layers: 2, hidden: 32, heads: 4, vocab: 64, seq: 16, tied: false }.into();
        let mut all = vec![gpt];
        for (kind, key, value) in [
            ("llama", "mlp_bias", json!(true)),
            ("llama", "attention_bias", json!(true)),
            ("mistral", "sliding_window", json!(5)),
            ("qwen2", "tie_word_embeddings", json!(true)),
            ("qwen3", "head_dim", json!(16)),
            (
                "llama",
                "rope_parameters",
                json!({"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0, "original_max_position_embeddings": 16}),
            ),
            (
                "llama",
                "rope_parameters",
                json!({"rope_type": "llama3", "rope_theta": 1e6, "factor": 4.0, "low_freq_factor": 1.0,
                    "high_freq_factor": 4.0, "original_max_position_embeddings": 16}),
            ),
            (
                "llama",
                "rope_parameters",
                json!({"rope_type": "dynamic", "rope_theta": 1e6, "factor": 4.0}),
            ),
        ] {
            let mut keys: Map<String, Value> = serde_json::from_str(LLAMA).unwrap();
            keys.insert("model_type".into(), json!(kind));
            keys.insert(key.into(), value);
            all.push(parse(&Value::Object(keys).to_string()).unwrap().architecture);
        }
        for architecture in all {
            let written = Value::Object(to_config(&architecture, DType::Bf16)).to_string();
            assert_eq!(parse(&written).unwrap().architecture, architecture, "{written}");
        }
    }
}
