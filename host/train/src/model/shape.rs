//! The shape of a GPT-2 model that is trained from scratch.

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// Sizes of a GPT-2 model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Shape {
    /// Transformer blocks.
    pub layers: u32,
    /// Width of the residual stream, in elements.
    pub hidden: u32,
    /// Attention heads; divides `hidden`.
    pub heads: u32,
    /// Number of different tokens.
    pub vocab: u32,
    /// Longest sequence, in tokens.
    pub seq: u32,
    /// The head multiplies with the embedding matrix (GPT-2's way) instead of one of its own.
    #[serde(default = "tied_by_default")]
    pub tied: bool,
}

const fn tied_by_default() -> bool {
    true
}

/// Largest value of each size: keeps every product of sizes below 2^63.
const SIZE_MAX: u32 = 1 << 24;

impl Shape {
    /// Checks that the sizes form a model.
    pub fn validate(&self) -> Result<()> {
        let sizes = [
            ("layers", self.layers, 1),
            ("hidden", self.hidden, 1),
            ("heads", self.heads, 1),
            ("vocab", self.vocab, 2),
            ("seq", self.seq, 1),
        ];
        for (name, value, least) in sizes {
            if value < least || value > SIZE_MAX {
                return Err(Error::Invalid(format!(
                    "{name} {value} is not between {least} and {SIZE_MAX}; set --{name} in this range"
                )));
            }
        }
        if !self.hidden.is_multiple_of(self.heads) {
            let below = self.hidden / self.heads * self.heads;
            let above = below + self.heads;
            let near = if below == 0 { above.to_string() } else { format!("{below} or {above}") };
            return Err(Error::Invalid(format!(
                "hidden {} is not a multiple of heads {}; use --hidden {near}, or a number of --heads that divides it",
                self.hidden, self.heads
            )));
        }
        Ok(())
    }

    /// Number of parameters.
    pub fn parameters(&self) -> u128 {
        let [layers, hidden, vocab, seq] =
            [self.layers, self.hidden, self.vocab, self.seq].map(u128::from);
        let tables = if self.tied { vocab } else { 2 * vocab };
        (tables + seq) * hidden + layers * (12 * hidden * hidden + 13 * hidden) + 2 * hidden
    }

    /// Elements of each head.
    pub const fn head_elements(&self) -> u32 {
        self.hidden / self.heads
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: Shape = Shape { layers: 2, hidden: 64, heads: 2, vocab: 256, seq: 64, tied: true };

    #[test]
    fn sizes_out_of_range_are_named_with_the_range() {
        SMALL.validate().unwrap();
        let text = |shape: Shape| shape.validate().unwrap_err().to_string();
        assert!(text(Shape { layers: 0, ..SMALL }).contains("--layers"));
        assert!(text(Shape { heads: 0, ..SMALL }).contains("--heads"));
        assert!(text(Shape { vocab: 1, ..SMALL }).contains("between 2"));
        let seq = u32::MAX;
        assert!(text(Shape { seq, ..SMALL }).contains("16777216"));
    }

    #[test]
    fn indivisible_hidden_names_the_nearest_values() {
        let text = |hidden, heads| {
            let shape = Shape { hidden, heads, ..SMALL };
            shape.validate().unwrap_err().to_string()
        };
        assert!(text(65, 2).contains("--hidden 64 or 66"));
        assert!(text(3, 4).contains("--hidden 4,"));
    }

    #[test]
    fn parameters_are_those_of_the_tensors() {
        for tied in [true, false] {
            let shape = Shape { tied, ..SMALL };
            let list = crate::model::TensorList::new(shape).unwrap();
            assert_eq!(u128::from(list.elements()), shape.parameters());
        }
    }

    #[test]
    fn tied_is_the_default_and_unknown_keys_are_refused() {
        let text = r#"{"layers":2,"hidden":64,"heads":2,"vocab":256,"seq":64}"#;
        assert_eq!(serde_json::from_str::<Shape>(text).unwrap(), SMALL);
        let text = text.replace("layers", "layer");
        assert!(serde_json::from_str::<Shape>(&text).is_err());
    }
}
