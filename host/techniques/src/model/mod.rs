//! Shapes of models: what graphs and simulations need to know of a model, without its numbers.

mod config;
mod named;
mod units;

use nearfield_runtime::{Error, Result};
use serde::{Deserialize, Serialize};

pub use named::NAMES;

/// How a model's input becomes its first hidden states.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Input {
    /// A table of tokens, and one of positions.
    TokensAndPositions,
    /// Those, and one of two segments; a norm after them (BERT).
    TokensPositionsSegments,
    /// A table of tokens and a norm after it; positions enter the attention (BLOOM).
    TokensAndNorm,
    /// A table of tokens; positions enter the attention (Llama).
    Tokens,
    /// Patches of so many numbers, a class token, and positions (ViT).
    Patches {
        /// Numbers of a patch: width x height x channels.
        numbers: u64,
    },
}

/// What turns the last hidden states into a loss.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Output {
    /// The input's table again.
    Tied,
    /// A matrix of its own.
    Untied,
    /// A matrix for the first position only.
    Classes {
        /// Number of classes.
        classes: u64,
    },
}

/// A transformer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelShape {
    /// Name for reports.
    pub name: String,
    /// Blocks.
    pub layers: u64,
    /// Width of the hidden states.
    pub hidden: u64,
    /// Attention heads.
    pub heads: u64,
    /// Width of a head.
    pub head_width: u64,
    /// Heads of keys and values; fewer than `heads` where they are shared.
    pub key_value_heads: u64,
    /// Width of the feed-forward layer.
    pub feed_forward: u64,
    /// Matrices of the feed-forward layer: 2, or 3 with a gate.
    pub feed_forward_matrices: u64,
    /// Different tokens.
    pub vocab: u64,
    /// Longest sequence.
    pub positions: u64,
    /// Whether matrices have biases.
    pub biases: bool,
    /// Whether queries, keys and values have biases, where other matrices have none.
    pub attention_biases: bool,
    /// Whether each query and each key has a norm of its own.
    pub head_norms: bool,
    /// Whether norms have shifts, and not only gains.
    pub norm_shifts: bool,
    /// Input.
    pub input: Input,
    /// Output.
    pub output: Output,
}

impl ModelShape {
    /// The shape called `name`, one of [`NAMES`].
    ///
    /// # Errors
    /// [`Error::Invalid`] with the names that exist.
    pub fn named(name: &str) -> Result<Self> {
        named::shape(name).ok_or_else(|| {
            Error::Invalid(format!(
                "model {name:?} is not known; use one of {}, or the path of a config.json",
                NAMES.join(", ")
            ))
        })
    }

    /// The shape that a Hugging Face `config.json` describes.
    ///
    /// # Errors
    /// [`Error::Invalid`] that names the key which is missing or the kind of model that is not known.
    pub fn from_config(name: &str, text: &str) -> Result<Self> {
        config::shape(name, text)
    }

    /// Checks that the sizes form a model.
    ///
    /// # Errors
    /// [`Error::Invalid`] that names the size.
    pub fn validate(&self) -> Result<()> {
        let numbers = if let Input::Patches { numbers } = self.input { numbers } else { 1 };
        // Their products stay below 2^63.
        for (size, value, most) in [
            ("layers", self.layers, 1 << 14),
            ("hidden", self.hidden, 1 << 17),
            ("heads", self.heads, 1 << 14),
            ("head width", self.head_width, 1 << 14),
            ("key_value_heads", self.key_value_heads, self.heads),
            ("feed_forward", self.feed_forward, 1 << 20),
            ("vocab", self.vocab.max(1), 1 << 24),
            ("positions", self.positions.max(1), 1 << 24),
            ("numbers of a patch", numbers, 1 << 24),
        ] {
            if value == 0 || value > most {
                let name = &self.name;
                let message = format!("model {name}: {size} {value} is not between 1 and {most}");
                return Err(Error::Invalid(message));
            }
        }
        if self.heads * self.head_width > 1 << 20
            || !self.heads.is_multiple_of(self.key_value_heads)
        {
            return Err(Error::Invalid(format!(
                "model {}: {} heads of width {}, {} of keys and values",
                self.name, self.heads, self.head_width, self.key_value_heads
            )));
        }
        Ok(())
    }

    /// Number of parameters.
    pub fn parameters(&self) -> u64 {
        self.tensors().iter().map(|tensor| tensor.elements).sum()
    }
}

#[cfg(test)]
mod tests;
