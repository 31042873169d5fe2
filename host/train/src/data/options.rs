//! Where data comes from and how sequences are made of it.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::error::Result;

/// What files hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// As the names end.
    Auto,
    /// UTF-8 text.
    Text,
    /// One JSON object a line: `text`, or `prompt` and `completion`.
    Jsonl,
    /// Tokens as little-endian whole numbers, one after the other.
    Bin,
    /// Tokens as a one-dimensional NumPy array.
    Npy,
}

impl Format {
    /// As flags and configuration files spell it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Text => "text",
            Self::Jsonl => "jsonl",
            Self::Bin => "bin",
            Self::Npy => "npy",
        }
    }
}

/// In which order sequences are trained on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Order {
    /// Sequences that begin at any token, drawn anew for each: for one long text.
    Random,
    /// Every sequence once in each epoch, in a new order each time.
    Shuffle,
    /// Every sequence once in each epoch, in the order of the data.
    Sequential,
}

impl Order {
    /// As flags and configuration files spell it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Random => "random",
            Self::Shuffle => "shuffle",
            Self::Sequential => "sequential",
        }
    }
}

/// Width of a token in files that do not say it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TokenWidth {
    /// Two bytes.
    U16,
    /// Four bytes.
    U32,
}

impl TokenWidth {
    /// As flags and configuration files spell it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::U16 => "u16",
            Self::U32 => "u32",
        }
    }

    /// The narrowest that holds every token of a vocabulary.
    pub const fn of_vocab(vocab: u32) -> Self {
        if vocab <= 1 << 16 { Self::U16 } else { Self::U32 }
    }
}

/// Where data comes from and how sequences are made of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CorpusOptions {
    /// A file, or a directory whose files are taken in the order of their paths.
    pub path: PathBuf,
    /// Part of the data, from the end, that is kept for evaluation; 0 for none.
    pub evaluation_fraction: f64,
    /// What the files hold.
    pub format: Format,
    /// Order of sequences; without it random for text and tokens, shuffled for documents.
    pub order: Option<Order>,
    /// Whether documents share sequences; each token still sees its own document only.
    pub packing: bool,
    /// Width of tokens in `.bin` files; without it what the model's vocabulary needs.
    pub token_width: Option<TokenWidth>,
    /// Directory for the tokens of text that a tokenizer has cut, so that they are made once.
    pub cache: PathBuf,
}

impl CorpusOptions {
    /// What the files hold, by option or name.
    ///
    /// # Errors
    /// A path where nothing is that could be read.
    pub fn resolved_format(&self) -> Result<Format> {
        Ok(super::files::find(self)?.format)
    }

    /// Data at `path`, 0.05 of it for evaluation, documents packed, tokens kept beside the results.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            evaluation_fraction: 0.05,
            format: Format::Auto,
            order: None,
            packing: true,
            token_width: None,
            cache: PathBuf::from("runs/nearfield/tokens"),
        }
    }
}
