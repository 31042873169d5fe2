//! From text to tokens and back.

use std::path::{Path, PathBuf};

use serde_json::Value;
use tokenizers::Tokenizer;

use crate::error::{Error, Result};

/// What tokens stand for.
#[derive(Debug)]
pub enum Vocabulary {
    /// Token n is byte n.
    Bytes,
    /// Tokens whose text is not known.
    Numbers,
    /// A Hugging Face tokenizer.
    Trained(Box<Trained>),
}

/// A tokenizer with what belongs around a document.
#[derive(Debug)]
pub struct Trained {
    tokenizer: Tokenizer,
    path: PathBuf,
    /// Tokens before each document.
    begin: Vec<u32>,
    /// The token after it.
    end: Option<u32>,
    digest: String,
}

impl Vocabulary {
    /// The tokenizer of the model in `directory`, or the one of `file`. `end_of_text`: the model's own opinion about the token that
    /// ends a text, which a `tokenizer_config.json` beside the tokenizer overrides.
    ///
    /// # Errors
    /// [`Error::Checkpoint`]: no tokenizer, or none that can be read.
    pub fn load(directory: &Path, file: Option<&Path>, end_of_text: Option<u32>) -> Result<Self> {
        let path = file.map_or_else(|| directory.join("tokenizer.json"), Path::to_path_buf);
        let bytes = std::fs::read(&path).map_err(|error| {
            let what = format!("cannot read the tokenizer: {error}");
            let remedy =
                "give its file with --tokenizer, or data that is tokenised already (.bin, .npy)";
            Error::checkpoint(&path, what, remedy)
        })?;
        let mut tokenizer = Tokenizer::from_bytes(&bytes).map_err(|error| {
            let remedy = "a tokenizer.json of the tokenizers library is needed";
            Error::checkpoint(&path, format!("it is no tokenizer: {error}"), remedy)
        })?;
        // Documents are cut and padded here, each in its own way.
        let plain = tokenizer.with_truncation(None).map(|tokenizer| tokenizer.with_padding(None));
        plain.map_err(|error| Error::Invalid(format!("the tokenizer's truncation: {error}")))?;
        let named = named_end(&path).and_then(|name| tokenizer.token_to_id(&name));
        let end = named.or(end_of_text);
        let mut trained = Trained {
            tokenizer,
            begin: Vec::new(),
            end,
            digest: blake3::hash(&bytes).to_hex().to_string(),
            path,
        };
        // What a tokenizer puts before a text, whatever the text is.
        let (bare, whole) = (trained.encode("a", false)?, trained.encode("a", true)?);
        let at = whole.windows(bare.len().max(1)).position(|window| window == bare);
        trained.begin = whole[..at.unwrap_or(0)].to_vec();
        Ok(Self::Trained(Box::new(trained)))
    }

    /// Number of different tokens that it makes.
    pub fn size(&self) -> u32 {
        match self {
            Self::Bytes => 256,
            Self::Numbers => u32::MAX,
            Self::Trained(trained) => {
                let ids = trained.tokenizer.get_vocab(true).into_values();
                ids.max().map_or(0, |largest| largest + 1)
            }
        }
    }

    /// Tokens of text, with nothing around them.
    ///
    /// # Errors
    /// What the tokenizer reports.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>> {
        match self {
            Self::Bytes => Ok(text.bytes().map(u32::from).collect()),
            Self::Numbers => Err(Error::Invalid(
                "text cannot become tokens without a tokenizer; give one with --tokenizer".into(),
            )),
            Self::Trained(trained) => trained.encode(text, false),
        }
    }

    /// Tokens of several texts.
    ///
    /// # Errors
    /// What the tokenizer reports.
    pub fn encode_all(&self, texts: Vec<&str>) -> Result<Vec<Vec<u32>>> {
        match self {
            Self::Bytes | Self::Numbers => {
                texts.into_iter().map(|text| self.encode(text)).collect()
            }
            Self::Trained(trained) => {
                let encodings = trained.tokenizer.encode_batch(texts, false);
                let encodings = encodings.map_err(|error| trained.failed(&error))?;
                Ok(encodings.into_iter().map(|encoding| encoding.get_ids().to_vec()).collect())
            }
        }
    }

    /// Text of tokens; bytes that are no UTF-8 become replacement characters.
    ///
    /// # Errors
    /// What the tokenizer reports.
    pub fn decode(&self, tokens: &[u32]) -> Result<String> {
        match self {
            Self::Bytes => {
                let bytes: Vec<u8> = tokens.iter().map(|&token| token as u8).collect();
                Ok(String::from_utf8_lossy(&bytes).into_owned())
            }
            Self::Numbers => {
                let tokens: Vec<String> = tokens.iter().map(u32::to_string).collect();
                Ok(tokens.join(" "))
            }
            Self::Trained(trained) => {
                let text = trained.tokenizer.decode(tokens, false);
                text.map_err(|error| trained.failed(&error))
            }
        }
    }

    /// Tokens before each document.
    pub fn begin(&self) -> &[u32] {
        match self {
            Self::Bytes | Self::Numbers => &[],
            Self::Trained(trained) => &trained.begin,
        }
    }

    /// The token after each document, where there is one.
    pub fn end(&self) -> Option<u32> {
        match self {
            Self::Bytes | Self::Numbers => None,
            Self::Trained(trained) => trained.end,
        }
    }

    /// Tells one vocabulary from another.
    pub fn digest(&self) -> &str {
        match self {
            Self::Bytes => "bytes",
            Self::Numbers => "numbers",
            Self::Trained(trained) => &trained.digest,
        }
    }
}

impl Trained {
    fn encode(&self, text: &str, around: bool) -> Result<Vec<u32>> {
        let encoding = self.tokenizer.encode(text, around);
        Ok(encoding.map_err(|error| self.failed(&error))?.get_ids().to_vec())
    }

    fn failed(&self, error: &tokenizers::Error) -> Error {
        let remedy = "check that the tokenizer is whole and fits the data";
        Error::checkpoint(&self.path, format!("the tokenizer failed: {error}"), remedy)
    }
}

/// The token that ends a text, as a `tokenizer_config.json` beside the tokenizer names it.
fn named_end(tokenizer: &Path) -> Option<String> {
    let text = std::fs::read_to_string(tokenizer.with_file_name("tokenizer_config.json")).ok()?;
    let config: Value = serde_json::from_str(&text).ok()?;
    let token = config.get("eos_token")?;
    let name = token.as_str().or_else(|| token.get("content")?.as_str());
    name.map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A word-level tokenizer: `[B]` before, and as many words as are given.
    pub(crate) fn tokenizer(directory: &Path, words: &[&str]) {
        let mut vocab = serde_json::Map::new();
        for (index, word) in ["[UNK]", "[B]", "[E]"].iter().chain(words).enumerate() {
            vocab.insert((*word).into(), index.into());
        }
        let special = serde_json::json!({"id": "[B]", "ids": [1], "tokens": ["[B]"]});
        let tokenizer = serde_json::json!({
            "version": "1.0",
            "truncation": {"max_length": 3, "strategy": "LongestFirst", "stride": 0, "direction": "Right"},
            "padding": null,
            "added_tokens": [{"id": 2, "content": "[E]", "single_word": false, "lstrip": false, "rstrip": false,
                "normalized": false, "special": true}],
            "normalizer": null,
            "pre_tokenizer": {"type": "Whitespace"},
            "post_processor": {"type": "TemplateProcessing",
                "single": [{"SpecialToken": {"id": "[B]", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
                "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
                "special_tokens": {"[B]": special}},
            "decoder": null,
            "model": {"type": "WordLevel", "vocab": vocab, "unk_token": "[UNK]"},
        });
        std::fs::write(directory.join("tokenizer.json"), tokenizer.to_string()).unwrap();
    }

    #[test]
    fn a_tokenizer_brings_what_belongs_around_a_document() {
        let root = tempfile::tempdir().unwrap();
        tokenizer(root.path(), &["a", "b", "c"]);
        let load = |end| Vocabulary::load(root.path(), None, end).unwrap();
        let vocabulary = load(Some(7));
        assert_eq!((vocabulary.begin(), vocabulary.end()), (&[1][..], Some(7)));
        // Longer than the tokenizer's own limit.
        assert_eq!(vocabulary.encode("a b c a b").unwrap(), [3, 4, 5, 3, 4]);
        assert_eq!(vocabulary.encode_all(vec!["a", "c x"]).unwrap(), [vec![3], vec![5, 0]]);
        assert_eq!(vocabulary.decode(&[3, 5]).unwrap(), "a c");
        assert_eq!(vocabulary.size(), 6);
        std::fs::write(
            root.path().join("tokenizer_config.json"),
            r#"{"eos_token": {"content": "[E]"}}"#,
        )
        .unwrap();
        assert_eq!(load(Some(7)).end(), Some(2));
    }

    #[test]
    fn an_absent_or_broken_tokenizer_is_named_with_a_remedy() {
        let root = tempfile::tempdir().unwrap();
        let text = Vocabulary::load(root.path(), None, None).unwrap_err().to_string();
        assert!(text.contains("tokenizer.json") && text.contains("--tokenizer"), "{text}");
        std::fs::write(root.path().join("tokenizer.json"), "{}").unwrap();
        let text = Vocabulary::load(root.path(), None, None).unwrap_err().to_string();
        assert!(text.contains("it is no tokenizer"), "{text}");
    }

    #[test]
    fn bytes_are_their_own_tokens() {
        let vocabulary = Vocabulary::Bytes;
        assert_eq!(vocabulary.encode("aä").unwrap(), [97, 195, 164]);
        assert_eq!(vocabulary.decode(&[97, 195, 164, 255]).unwrap(), "aä\u{fffd}");
        assert_eq!((vocabulary.size(), vocabulary.end()), (256, None));
    }
}
