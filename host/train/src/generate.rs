//! Text from a trained model, through the same units as training.

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::model::{Model, WeightSource};
use crate::random::{Purpose, Random, split};

/// How to continue a text.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GenerateOptions {
    /// Tokens to add.
    pub tokens: u32,
    /// Divides the logits before sampling: below 1 is safer, above 1 wilder; 0 always takes the likeliest token.
    pub temperature: f64,
    /// Seed of the sampling.
    pub seed: u64,
}

impl Default for GenerateOptions {
    fn default() -> Self {
        Self { tokens: 200, temperature: 0.8, seed: 0 }
    }
}

/// Continues `prompt` and returns the added tokens, all below `allowed`: later entries of a vocabulary may stand for no text.
///
/// `stop` is asked before each token and ends the text early.
///
/// Every token streams all units through the device again, on at most the model's `seq` last
/// tokens, so memory stays that of one unit.
pub fn generate(
    model: &Model,
    source: &dyn WeightSource,
    prompt: &[u32],
    allowed: u32,
    options: &GenerateOptions,
    stop: &dyn Fn() -> bool,
) -> Result<Vec<u32>> {
    if !options.temperature.is_finite() || options.temperature < 0.0 {
        return Err(Error::Invalid(format!(
            "temperature {} is not a finite number of at least 0; use 0.8, for example",
            options.temperature
        )));
    }
    let random = Random::new(options.seed, Purpose::Sample);
    if prompt.is_empty() {
        return Err(Error::Invalid("a text cannot be continued that has no token yet".into()));
    }
    let mut text = prompt.to_vec();
    let start = text.len();
    let seq = model.seq() as usize;
    for index in 0..options.tokens {
        if stop() {
            break;
        }
        let context = &text[text.len().saturating_sub(seq)..];
        let mut logits = next_logits(model, source, context)?;
        logits.truncate(allowed as usize);
        let [low, high] = split(u64::from(index));
        let draw = random.unit([low, high, 0, 0]);
        text.push(choose(&logits, options.temperature, draw)?);
    }
    Ok(text.split_off(start))
}

/// Logits of the token after `context`.
fn next_logits(model: &Model, source: &dyn WeightSource, context: &[u32]) -> Result<Vec<f32>> {
    let tokens: Vec<i64> = context.iter().map(|&token| i64::from(token)).collect();
    let (head, hidden) = model.forward_to_head(source, model.tokens(&tokens, 1)?, None)?;
    let next = model.next_token_logits(&head, &hidden)?;
    let count = next.numel();
    let mut logits = vec![0f32; count];
    next.f_copy_data(&mut logits, count).map_err(|error| Error::torch("logits", &error))?;
    Ok(logits)
}

/// The token whose share of the cumulated softmax holds `draw` in [0, 1); with temperature 0 the likeliest, the lowest of equals.
fn choose(logits: &[f32], temperature: f64, draw: f64) -> Result<u32> {
    if logits.iter().any(|logit| logit.is_nan()) {
        return Err(Error::Invalid(
            "the model's logits are not numbers; its weights are damaged or training has diverged: resume from an earlier state".into(),
        ));
    }
    let best = (0..logits.len()).fold(
        0,
        |best, index| {
            if logits[index] > logits[best] { index } else { best }
        },
    );
    if temperature == 0.0 {
        return Ok(best as u32);
    }
    let weight =
        |&logit: &f32| libm::exp((f64::from(logit) - f64::from(logits[best])) / temperature);
    let total: f64 = logits.iter().map(weight).sum();
    let mut left = draw * total;
    for (token, logit) in logits.iter().enumerate() {
        left -= weight(logit);
        if left < 0.0 {
            return Ok(token as u32);
        }
    }
    // Rounding can leave a tiny remainder after the last token.
    Ok(best as u32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::Batch;
    use crate::model::{Shape, TiedGradient, Unit};
    use nearfield_runtime::types::DType;
    use tch::Device;

    struct Host(Vec<f32>);

    impl WeightSource for Host {
        fn copy_out(&self, first_element: u64, out: &mut [u8]) -> nearfield_runtime::Result<()> {
            let values = &self.0[first_element as usize..];
            for (to, value) in out.chunks_exact_mut(4).zip(values) {
                to.copy_from_slice(&value.to_le_bytes());
            }
            Ok(())
        }
    }

    fn model(vocab: u32) -> (Model, Host) {
        let shape = Shape { layers: 1, hidden: 8, heads: 2, vocab, seq: 6, tied: true };
        let model = Model::new(shape, shape.seq, DType::Fp32, Device::Cpu).unwrap();
        let mut weights = vec![0.0; model.tensors().elements() as usize];
        model.tensors().initialise(1, 0, &mut weights);
        (model, Host(weights))
    }

    #[test]
    fn text_is_a_function_of_the_seed_and_goes_on_past_the_context() {
        let (model, source) = model(300);
        let run = |seed, temperature| {
            let options = GenerateOptions { tokens: 20, temperature, seed };
            generate(&model, &source, &[97, 98], 256, &options, &|| false).unwrap()
        };
        assert_eq!(run(1, 1.0).len(), 20);
        assert_eq!(run(1, 1.0), run(1, 1.0));
        assert_ne!(run(1, 1.0), run(2, 1.0));
        assert_eq!(run(1, 0.0), run(2, 0.0));
    }

    #[test]
    fn prompt_outside_the_vocabulary_and_bad_temperature_are_errors() {
        let (model, source) = model(100);
        let options = GenerateOptions::default();
        let error = generate(&model, &source, &[0xf0], 256, &options, &|| false).unwrap_err();
        assert!(error.to_string().contains("--vocab"));
        let temperature = -1.0;
        let options = GenerateOptions { temperature, ..options };
        assert!(generate(&model, &source, &[1], 256, &options, &|| false).is_err());
    }

    #[test]
    fn sampling_follows_the_softmax() {
        let logits = [0.0f32, 2f32.ln(), f32::NEG_INFINITY];
        let pick = |draw| choose(&logits, 1.0, draw).unwrap();
        assert_eq!((pick(0.0), pick(0.33), pick(0.34), pick(0.99)), (0, 0, 1, 1));
        // Temperature 1/2 squares the odds: 1 to 4.
        assert_eq!(choose(&logits, 0.5, 0.19).unwrap(), 0);
        assert_eq!(choose(&logits, 0.5, 0.21).unwrap(), 1);
        assert_eq!(choose(&[1.0, 3.0, 3.0], 0.0, 0.9).unwrap(), 1);
        assert!(choose(&[1.0, f32::NAN], 1.0, 0.0).is_err());
    }

    /// Data, passes and sampling together: Adam on the streamed gradients teaches the model a text that it then continues.
    #[test]
    fn a_trained_model_continues_the_text_it_learnt() {
        let text = b"quick brown fox; ".repeat(20);
        let shape = Shape { layers: 1, hidden: 32, heads: 2, vocab: 128, seq: 16, tied: true };
        let model = Model::new(shape, shape.seq, DType::Fp32, Device::Cpu).unwrap();
        let elements = model.tensors().elements() as usize;
        let mut source = Host(vec![0.0; elements]);
        model.tensors().initialise(3, 0, &mut source.0);
        let (mut first, mut second) = (vec![0f32; elements], vec![0f32; elements]);
        let mut losses = Vec::new();
        for step in 0..150 {
            let batch = batch(&text, step as usize);
            let (loss, gradient) = gradient(&model, &source, &batch);
            losses.push(loss);
            let rate = 0.01 * (1.0 - 0.999f32.powi(step + 1)).sqrt();
            for index in 0..elements {
                let g = gradient[index];
                first[index] = 0.9 * first[index] + 0.1 * g;
                second[index] = 0.999 * second[index] + 0.001 * g * g;
                source.0[index] -= rate * first[index] / (second[index].sqrt() + 1e-8);
            }
        }
        assert!(losses[0] > 4.0 && losses[149] < 0.5, "{losses:?}");
        let options = GenerateOptions { tokens: 24, temperature: 0.0, seed: 0 };
        let tokens: Vec<u32> = text.iter().map(|&byte| u32::from(byte)).collect();
        let added = generate(&model, &source, &tokens[..16], 256, &options, &|| false).unwrap();
        let none = generate(&model, &source, &tokens[..16], 256, &options, &|| true).unwrap();
        assert!(none.is_empty());
        assert_eq!(added, tokens[16..40]);
    }

    /// Eight sequences that begin at other places in each step.
    fn batch(text: &[u8], step: usize) -> Batch {
        let starts = (0..8).map(|row| (step * 37 + row * 11) % (text.len() - 17));
        let part = |shift: usize| {
            let tokens = |start: usize| text[start + shift..start + shift + 16].iter();
            starts.clone().flat_map(tokens).map(|&byte| i64::from(byte)).collect()
        };
        Batch { inputs: part(0), targets: part(1), documents: None, sequences: 8 }
    }

    /// Loss and the flat gradient of one batch.
    fn gradient(model: &Model, source: &Host, batch: &Batch) -> (f64, Vec<f32>) {
        let mut flat = vec![0f32; source.0.len()];
        let mut sink = |first: u64, gradient: &tch::Tensor| {
            let to = &mut flat[first as usize..first as usize + gradient.numel()];
            gradient.copy_data(to, gradient.numel());
            Ok(())
        };
        let tokens = model.batch(batch).unwrap();
        let load = |unit| model.load(unit, source).unwrap();
        let embedded = model.forward(&load(Unit::Embed), &tokens.inputs, None).unwrap();
        let block = load(Unit::Block(0));
        let hidden = model.forward(&block, &embedded, None).unwrap();
        let mut tied = TiedGradient::default();
        let (loss, grad) = model
            .backward_head(&load(Unit::Head), &hidden, &tokens.targets, 1.0, &mut tied, &mut sink)
            .unwrap();
        let grad = model.backward_block(&block, &embedded, &grad, None, &mut sink).unwrap();
        model.backward_embed(&tokens, &grad, &mut tied, &mut sink).unwrap();
        (loss, flat)
    }
}
