//! Tensors and units of a shape.

use nearfield_runtime::types::DType;
use nearfield_runtime::{Error, Result};

use super::{Input, ModelShape, Output};
use crate::offload::plan::gradient::UnitShape;
use crate::offload::{FlatModel, TensorRun};

/// Most tokens of a step, and of a sequence: operations stay below 2^63.
const TOKENS_MAX: u64 = 1 << 22;
const SEQ_MAX: u64 = 1 << 20;

/// A tensor as the optimizer and the graphs see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ShapeTensor {
    /// Its unit: 0 the input, then the blocks, then the output.
    pub unit: u64,
    /// Elements.
    pub elements: u64,
    /// Whether weight decay applies: to matrices and tables, not to biases and norms.
    pub decay: bool,
}

impl ModelShape {
    /// All tensors, unit after unit.
    pub(super) fn tensors(&self) -> Vec<ShapeTensor> {
        let mut tensors = Vec::new();
        let mut add = |unit: u64, elements: u64, decay: bool| {
            if elements > 0 {
                tensors.push(ShapeTensor { unit, elements, decay });
            }
        };
        let h = self.hidden;
        let bias = |width: u64| if self.biases { width } else { 0 };
        let shift = if self.norm_shifts { h } else { 0 };
        match self.input {
            Input::TokensAndPositions => {
                add(0, self.vocab * h, true);
                add(0, self.positions * h, true);
            }
            Input::TokensPositionsSegments => {
                add(0, self.vocab * h, true);
                add(0, (self.positions + 2) * h, true);
                add(0, h, false);
                add(0, shift, false);
            }
            Input::TokensAndNorm => {
                add(0, self.vocab * h, true);
                add(0, h, false);
                add(0, shift, false);
            }
            Input::Tokens => add(0, self.vocab * h, true),
            Input::Patches { numbers } => {
                add(0, numbers * h, true);
                add(0, bias(h), false);
                add(0, (self.positions + 1) * h, true);
            }
        }
        let queries = self.heads * self.head_width;
        let keys = self.key_value_heads * self.head_width;
        let of_attention =
            |width: u64| if self.biases || self.attention_biases { width } else { 0 };
        for block in 1..=self.layers {
            // Attention: queries, keys and values; then the projection.
            add(block, h * (queries + 2 * keys), true);
            add(block, of_attention(queries + 2 * keys), false);
            add(block, queries * h, true);
            add(block, bias(h), false);
            // Feed-forward: in (and gate), then out.
            let inner = self.feed_forward_matrices - 1;
            add(block, inner * h * self.feed_forward, true);
            add(block, bias(inner * self.feed_forward), false);
            add(block, h * self.feed_forward, true);
            add(block, bias(h), false);
            if self.head_norms {
                add(block, 2 * self.head_width, false);
            }
            for _ in 0..2 {
                add(block, h, false);
                add(block, shift, false);
            }
        }
        let head = self.layers + 1;
        add(head, h, false);
        add(head, shift, false);
        match self.output {
            Output::Tied => {}
            Output::Untied => add(head, self.vocab * h, true),
            Output::Classes { classes } => {
                add(head, classes * h, true);
                add(head, bias(classes), false);
            }
        }
        tensors
    }

    /// The flat vector: all tensors with weight decay first, unit after unit, then those without.
    ///
    /// # Errors
    /// [`nearfield_runtime::Error::Invalid`] for sizes that form no model.
    pub fn flat(&self) -> Result<FlatModel> {
        self.validate()?;
        let run = |tensor: &ShapeTensor| TensorRun {
            name: format!("unit {}", tensor.unit),
            elements: tensor.elements,
            group: u32::from(!tensor.decay),
        };
        let mut runs: Vec<TensorRun> = self.tensors().iter().map(run).collect();
        runs.sort_by_key(|run| run.group);
        FlatModel::new(runs)
    }

    /// The units of a step over `batch` sequences of `seq` tokens (images, which have as many as they have), in the order
    /// of the forward pass: input, blocks, output.
    ///
    /// # Errors
    /// [`nearfield_runtime::Error::Invalid`] for sizes that form no model, and more tokens than it has positions.
    pub fn units(&self, batch: u64, seq: u64, dtype: DType) -> Result<Vec<UnitShape>> {
        self.validate()?;
        let tensors = self.tensors();
        let mut gradients: Vec<Vec<(u64, u64)>> = vec![Vec::new(); self.layers as usize + 2];
        let mut elements = vec![0; gradients.len()];
        let mut start = 0;
        for decay in [true, false] {
            for tensor in tensors.iter().filter(|tensor| tensor.decay == decay) {
                let unit = tensor.unit as usize;
                elements[unit] += tensor.elements;
                match gradients[unit].last_mut() {
                    Some((first, length)) if *first + *length == start => {
                        *length += tensor.elements;
                    }
                    _ => gradients[unit].push((start, tensor.elements)),
                }
                start += tensor.elements;
            }
        }
        // An image has the tokens of its patches, and one for its class.
        let seq = if let Input::Patches { .. } = self.input { self.positions + 1 } else { seq };
        let learned =
            matches!(self.input, Input::TokensAndPositions | Input::TokensPositionsSegments);
        if learned && seq > self.positions {
            return Err(Error::Invalid(format!(
                "--seq {seq} is more than the {} positions of the model {}",
                self.positions, self.name
            )));
        }
        let tokens =
            batch.checked_mul(seq).filter(|&tokens| tokens <= TOKENS_MAX && seq <= SEQ_MAX);
        let tokens = tokens.ok_or_else(|| {
            Error::Invalid(format!(
                "--batch {batch} and --seq {seq} are too many tokens: at most {TOKENS_MAX} in a step, {SEQ_MAX} in a sequence"
            ))
        })?;
        let last = gradients.len() - 1;
        // A tied output uses the input's table, which comes first.
        let table = (self.output == Output::Tied).then(|| (0, self.vocab * self.hidden));
        let reads = |index: usize, own: &[(u64, u64)]| {
            let shared = table.filter(|_| index == last);
            shared.into_iter().chain(own.iter().copied()).collect::<Vec<_>>()
        };
        let unit = |(index, gradients): (usize, Vec<(u64, u64)>)| {
            let matrices = 2 * tokens * elements[index];
            let (name, weights, flops) = if index == 0 {
                let flops = if matches!(self.input, Input::Patches { .. }) { matrices } else { 0 };
                ("input".to_owned(), elements[0], flops)
            } else if index < last {
                let attention = 4 * tokens * seq * self.heads * self.head_width;
                (format!("block {}", index - 1), elements[index], matrices + attention)
            } else {
                let (table, rows) = match self.output {
                    Output::Tied => (self.vocab * self.hidden, tokens),
                    Output::Untied => (0, tokens),
                    Output::Classes { .. } => (0, batch),
                };
                let weights = elements[last] + table;
                ("output".to_owned(), weights, 2 * rows * weights)
            };
            // A block keeps 34 bytes a token and hidden element in 16 bits (Korthikanti et al. 2022, section 4, without the
            // scores of attention); the output its scores, in fp32 as well.
            let working = if index < last {
                17 * tokens * self.hidden * dtype.bytes()
            } else {
                let scores = match self.output {
                    Output::Classes { classes } => batch * classes,
                    _ => tokens * self.vocab,
                };
                scores * (dtype.bytes() + 4)
            };
            UnitShape {
                name,
                weight_elements: weights,
                output_bytes: tokens * self.hidden * dtype.bytes(),
                working_bytes: working,
                score_bytes: if (1..last).contains(&index) {
                    4 * tokens * seq * self.heads
                } else {
                    0
                },
                forward_flops: flops,
                // The output's forward pass runs within its backward pass.
                forward: index < last,
                backward_weights: true,
                reads: reads(index, &gradients),
                gradients,
            }
        };
        Ok(gradients.into_iter().enumerate().map(unit).collect())
    }
}
