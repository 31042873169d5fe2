//! What a model is made of: the families that are known, and everything in which their members differ.

use serde::{Deserialize, Serialize};

use super::plan::Unit;
use super::shape::Shape;
use crate::error::{Error, Result};

/// Families of decoder-only transformers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Family {
    /// GPT-2: learned positions, layer norms, biases everywhere, matrices stored input-major.
    Gpt2,
    /// Llama: rotary positions, RMS norms, a gated feed-forward layer.
    Llama,
    /// Mistral: as Llama, with windows of attention in some.
    Mistral,
    /// Qwen2: as Llama, with biases of queries, keys and values.
    Qwen2,
    /// Qwen3: as Llama, with norms of queries and keys.
    Qwen3,
}

impl Family {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Gpt2, Self::Llama, Self::Mistral, Self::Qwen2, Self::Qwen3];

    /// Hugging Face's `model_type`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Gpt2 => "gpt2",
            Self::Llama => "llama",
            Self::Mistral => "mistral",
            Self::Qwen2 => "qwen2",
            Self::Qwen3 => "qwen3",
        }
    }

    /// transformers' class with a language-modelling head.
    pub const fn class(self) -> &'static str {
        match self {
            Self::Gpt2 => "GPT2LMHeadModel",
            Self::Llama => "LlamaForCausalLM",
            Self::Mistral => "MistralForCausalLM",
            Self::Qwen2 => "Qwen2ForCausalLM",
            Self::Qwen3 => "Qwen3ForCausalLM",
        }
    }
}

/// The function within the feed-forward layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Activation {
    /// Gaussian error linear unit.
    Gelu,
    /// Its approximation with a hyperbolic tangent (GPT-2).
    GeluTanh,
    /// x·sigmoid(x).
    Silu,
    /// max(x, 0).
    Relu,
}

/// Rotary position embedding (Su et al. 2021).
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rope {
    /// Base of the wavelengths.
    pub theta: f64,
    /// How wavelengths are stretched for longer sequences.
    pub scaling: RopeScaling,
}

/// Ways to use a model on longer sequences than it was made for.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum RopeScaling {
    /// None.
    None,
    /// All wavelengths by the same factor.
    Linear {
        /// The factor.
        factor: f64,
    },
    /// A larger base for sequences beyond the trained length (NTK-aware).
    Dynamic {
        /// The factor.
        factor: f64,
    },
    /// Long wavelengths more than short ones (YaRN; Peng et al. 2023).
    Yarn {
        /// The factor of the longest wavelengths.
        factor: f64,
        /// Rotations over the trained length above which a wavelength stays.
        beta_fast: f64,
        /// Rotations below which it takes the whole factor.
        beta_slow: f64,
        /// Factor of the attention scores' square root.
        attention_factor: f64,
        /// Trained length, in tokens.
        original: u32,
        /// Whether the bounds are whole dimensions.
        truncate: bool,
    },
    /// The same idea with a smooth step in between (Llama 3.1).
    Llama3 {
        /// The factor of the longest wavelengths.
        factor: f64,
        /// Wavelengths per trained length below which the whole factor is taken.
        low: f64,
        /// Above which the wavelength stays.
        high: f64,
        /// Trained length, in tokens.
        original: u32,
    },
}

/// Blocks in which a token sees only the last few tokens.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Windows {
    /// Tokens that are seen, the own one included.
    pub tokens: u32,
    /// For each block whether it has the window.
    #[serde(with = "bits")]
    pub layers: Vec<bool>,
}

/// Flags as a text of 0 and 1: a state on drives has little room for the description of its model.
mod bits {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub fn serialize<S: Serializer>(flags: &[bool], serializer: S) -> Result<S::Ok, S::Error> {
        let text: String = flags.iter().map(|&flag| if flag { '1' } else { '0' }).collect();
        serializer.serialize_str(&text)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<bool>, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.chars()
            .map(|flag| match flag {
                '1' => Ok(true),
                '0' => Ok(false),
                other => Err(D::Error::custom(format!("{other:?} is neither 0 nor 1"))),
            })
            .collect()
    }
}

/// A decoder-only transformer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Architecture {
    /// Family, which decides names, norms and the layout of matrices.
    pub family: Family,
    /// Transformer blocks.
    pub layers: u32,
    /// Width of the residual stream, in elements.
    pub hidden: u32,
    /// Attention heads.
    pub heads: u32,
    /// Heads of keys and values, each shared by `heads / key_value_heads` query heads.
    pub key_value_heads: u32,
    /// Width of a head.
    pub head_width: u32,
    /// Width of the feed-forward layer.
    pub feed_forward: u32,
    /// Number of different tokens.
    pub vocab: u32,
    /// Longest sequence, in tokens.
    pub positions: u32,
    /// The head multiplies with the embedding matrix instead of one of its own.
    pub tied: bool,
    /// Within the feed-forward layer.
    pub activation: Activation,
    /// Added to the variance in norms.
    pub norm_eps: f64,
    /// Biases of queries, keys and values.
    pub qkv_biases: bool,
    /// Bias of attention's output.
    pub out_bias: bool,
    /// Biases of the feed-forward layer.
    pub feed_forward_biases: bool,
    /// Rotary positions; `None` where positions are learned.
    pub rope: Option<Rope>,
    /// Windows of attention.
    pub windows: Option<Windows>,
}

/// Most blocks: each has a dozen tensors, with names and places.
pub(crate) const LAYERS_MAX: u32 = 1 << 16;
/// Largest value of each size: keeps every product of sizes below 2^63.
const SIZE_MAX: u32 = 1 << 24;

impl From<Shape> for Architecture {
    /// The GPT-2 of this shape.
    fn from(shape: Shape) -> Self {
        Self {
            family: Family::Gpt2,
            layers: shape.layers,
            hidden: shape.hidden,
            heads: shape.heads,
            key_value_heads: shape.heads,
            head_width: shape.hidden.checked_div(shape.heads).unwrap_or(0),
            feed_forward: shape.hidden.saturating_mul(4),
            vocab: shape.vocab,
            positions: shape.seq,
            tied: shape.tied,
            activation: Activation::GeluTanh,
            norm_eps: 1e-5,
            qkv_biases: true,
            out_bias: true,
            feed_forward_biases: true,
            rope: None,
            windows: None,
        }
    }
}

impl Architecture {
    /// Checks that the sizes form a model.
    ///
    /// # Errors
    /// [`Error::Invalid`] that names the size.
    pub fn validate(&self) -> Result<()> {
        let sizes = [
            ("number of blocks", self.layers),
            ("hidden size", self.hidden),
            ("number of attention heads", self.heads),
            ("number of key and value heads", self.key_value_heads),
            ("width of a head", self.head_width),
            ("width of the feed-forward layer", self.feed_forward),
            ("vocabulary", self.vocab),
            ("number of positions", self.positions),
        ];
        let invalid = |text: String| Err(Error::Invalid(text));
        for (name, value) in sizes {
            let most = if name == "number of blocks" { LAYERS_MAX } else { SIZE_MAX };
            if value == 0 || value > most {
                return invalid(format!(
                    "the model's {name} is {value}, which is not between 1 and {most}"
                ));
            }
        }
        if !self.heads.is_multiple_of(self.key_value_heads) {
            return invalid(format!(
                "the model's {} attention heads cannot share {} heads of keys and values evenly",
                self.heads, self.key_value_heads
            ));
        }
        if u64::from(self.heads) * u64::from(self.head_width) > u64::from(SIZE_MAX) {
            return invalid(format!(
                "the model's {} heads of width {} are wider than {SIZE_MAX}",
                self.heads, self.head_width
            ));
        }
        let rotary = self.family != Family::Gpt2;
        if self.rope.is_some() != rotary {
            return invalid(format!(
                "a model of the family {} {} rotary positions",
                self.family.name(),
                if rotary { "needs" } else { "has no" }
            ));
        }
        if rotary && !self.head_width.is_multiple_of(2) {
            return invalid(format!(
                "rotary positions need heads of even width, not {}",
                self.head_width
            ));
        }
        if !(self.norm_eps.is_finite() && self.norm_eps > 0.0) {
            return invalid(format!("the model's norm epsilon {} is not above 0", self.norm_eps));
        }
        if let Some(windows) = &self.windows
            && (windows.tokens == 0 || windows.layers.len() != self.layers as usize)
        {
            return invalid(format!(
                "windows of {} tokens for {} blocks do not fit a model of {} blocks",
                windows.tokens,
                windows.layers.len(),
                self.layers
            ));
        }
        if let Some(rope) = &self.rope {
            rope.validate()?;
        }
        Ok(())
    }

    /// Width of all query heads together.
    pub const fn query_width(&self) -> u32 {
        self.heads * self.head_width
    }

    /// Width of all key heads, or value heads, together.
    pub const fn key_width(&self) -> u32 {
        self.key_value_heads * self.head_width
    }

    /// The window of block `layer`, where it has one.
    pub fn window(&self, layer: u32) -> Option<u32> {
        let windows = self.windows.as_ref()?;
        windows.layers.get(layer as usize)?.then_some(windows.tokens)
    }

    /// Floating-point operations of a unit's forward pass over `batch` sequences of `seq` tokens; `elements`: the weights it reads.
    pub fn forward_flops(&self, unit: Unit, elements: u64, batch: u32, seq: u32) -> u64 {
        let tokens = u64::from(batch) * u64::from(seq);
        let attention = 4 * tokens * u64::from(seq) * u64::from(self.query_width());
        match unit {
            Unit::Embed => 0,
            Unit::Block(_) => 2 * tokens * elements + attention,
            Unit::Head => 2 * tokens * elements,
        }
    }

    /// Number of parameters.
    pub fn parameters(&self) -> u128 {
        // From the tensors of one block: any number of blocks is asked about before it is known to fit.
        let one = Self { layers: 1, ..self.clone() };
        super::tensors::registration(&one)
            .iter()
            .map(|tensor| {
                let elements: u128 = tensor.shape.iter().map(|&size| u128::from(size)).product();
                match tensor.unit {
                    Unit::Block(_) => elements * u128::from(self.layers),
                    _ => elements,
                }
            })
            .sum()
    }
}

impl Rope {
    fn validate(&self) -> Result<()> {
        let (factor, original) = match self.scaling {
            RopeScaling::None => (1.0, 1),
            RopeScaling::Linear { factor } | RopeScaling::Dynamic { factor } => (factor, 1),
            RopeScaling::Yarn { factor, original, .. }
            | RopeScaling::Llama3 { factor, original, .. } => (factor, original),
        };
        let good = |value: f64| value.is_finite() && value > 0.0;
        if !good(factor) || !good(self.theta) || original == 0 {
            return Err(Error::Invalid(format!(
                "rotary positions with base {}, factor {factor} and trained length {original}: all must be above 0",
                self.theta
            )));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn llama() -> Architecture {
        let shape = Shape { layers: 2, hidden: 32, heads: 4, vocab: 64, seq: 16, tied: false };
        Architecture {
            family: Family::Llama,
            key_value_heads: 2,
            rope: Some(Rope { theta: 1e4, scaling: RopeScaling::None }),
            qkv_biases: false,
            out_bias: false,
            feed_forward_biases: false,
            ..Architecture::from(shape)
        }
    }

    #[test]
    fn sizes_that_form_no_model_are_named() {
        llama().validate().unwrap();
        let text = |change: &dyn Fn(&mut Architecture)| {
            let mut architecture = llama();
            change(&mut architecture);
            architecture.validate().unwrap_err().to_string()
        };
        assert!(text(&|a| a.vocab = 0).contains("vocabulary is 0"));
        assert!(text(&|a| a.key_value_heads = 3).contains("4 attention heads"));
        assert!(text(&|a| a.rope = None).contains("needs rotary"));
        assert!(text(&|a| a.head_width = 7).contains("even width"));
        let windows = Windows { tokens: 4, layers: vec![true] };
        assert!(text(&|a| a.windows = Some(windows.clone())).contains("1 blocks"));
        let rope = Rope { theta: 1e4, scaling: RopeScaling::Linear { factor: 0.0 } };
        assert!(text(&|a| a.rope = Some(rope)).contains("factor 0"));
    }

    #[test]
    fn parameters_are_those_of_the_tensors() {
        // Two tables, and for each block attention (24 x 32 x ...) as Llama has it.
        let block = 32 * 32 + 2 * 16 * 32 + 32 * 32 + 3 * 32 * 128 + 2 * 32;
        assert_eq!(llama().parameters(), 2 * 64 * 32 + 2 * block + 32);
    }
}
