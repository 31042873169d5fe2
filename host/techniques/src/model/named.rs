//! Shapes by name: those that the papers of this school were measured with.

use super::{Input, ModelShape, Output};

/// All names.
pub const NAMES: [&str; 17] = [
    "gpt2-0.77b",
    "gpt2-1.16b",
    "gpt2-1.7b",
    "gpt2-2.5b",
    "gpt2-4.0b",
    "gpt2-8.4b",
    "gpt2-16.6b",
    "gpt2-20.5b",
    "gpt2-24.8b",
    "gpt2-33.0b",
    "bert-0.34b",
    "bert-4.0b",
    "bert-8.3b",
    "bloom-3b",
    "bloom-7.1b",
    "vit-0.30b",
    "vit-0.63b",
];

/// GPT-2's vocabulary, padded to a multiple of 128.
const GPT2_VOCAB: u64 = 50_304;
/// BERT's, padded as well.
const BERT_VOCAB: u64 = 30_592;
/// Width of the sizes of which only the number of parameters is known.
const WIDTH: u64 = 2560;

pub(super) fn shape(name: &str) -> Option<ModelShape> {
    // A size alone is GPT-2's.
    let wanted = name.to_ascii_lowercase();
    let of_gpt2 = format!("gpt2-{wanted}");
    let name = NAMES.into_iter().find(|known| *known == wanted || *known == of_gpt2)?;
    let gpt2 = |layers, hidden, heads| ModelShape {
        name: name.to_owned(),
        layers,
        hidden,
        heads,
        head_width: hidden / heads,
        key_value_heads: heads,
        feed_forward: 4 * hidden,
        feed_forward_matrices: 2,
        vocab: GPT2_VOCAB,
        positions: 1024,
        biases: true,
        attention_biases: false,
        head_norms: false,
        norm_shifts: true,
        input: Input::TokensAndPositions,
        output: Output::Tied,
    };
    let bert = |layers, hidden, heads| ModelShape {
        vocab: BERT_VOCAB,
        input: Input::TokensPositionsSegments,
        ..gpt2(layers, hidden, heads)
    };
    let bloom = |hidden| ModelShape {
        vocab: 250_880,
        positions: 2048,
        input: Input::TokensAndNorm,
        ..gpt2(30, hidden, 32)
    };
    let vit = |layers, hidden| ModelShape {
        positions: 196,
        input: Input::Patches { numbers: 16 * 16 * 3 },
        output: Output::Classes { classes: 1000 },
        ..gpt2(layers, hidden, 16)
    };
    Some(match name {
        "gpt2-0.77b" => gpt2(36, 1280, 20),
        "gpt2-1.16b" => gpt2(13, WIDTH, 16),
        "gpt2-1.7b" => gpt2(20, WIDTH, 16),
        "gpt2-2.5b" => gpt2(30, WIDTH, 16),
        "gpt2-4.0b" => gpt2(49, WIDTH, 16),
        "gpt2-8.4b" => gpt2(105, WIDTH, 16),
        "gpt2-16.6b" => gpt2(209, WIDTH, 16),
        "gpt2-20.5b" => gpt2(259, WIDTH, 16),
        "gpt2-24.8b" => gpt2(314, WIDTH, 16),
        "gpt2-33.0b" => gpt2(418, WIDTH, 16),
        "bert-0.34b" => bert(24, 1024, 16),
        "bert-4.0b" => bert(50, WIDTH, 16),
        "bert-8.3b" => bert(105, WIDTH, 16),
        "bloom-3b" => bloom(2560),
        "bloom-7.1b" => bloom(4096),
        "vit-0.30b" => vit(24, 1024),
        "vit-0.63b" => vit(32, 1280),
        _ => return None,
    })
}
