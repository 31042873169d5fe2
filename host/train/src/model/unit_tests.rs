use half::{bf16, f16};

use super::*;
use crate::model::{read_out, reference};

/// Working weights as bytes, and the fp32 values that they stand for.
struct Host {
    bytes: Vec<u8>,
    element: usize,
    values: Vec<f32>,
}

impl WeightSource for Host {
    fn copy_out(&self, first_element: u64, out: &mut [u8]) {
        let start = first_element as usize * self.element;
        out.copy_from_slice(&self.bytes[start..start + out.len()]);
    }
}

/// Weights away from their initial values, so that every gradient is worth comparing.
fn host(model: &Model) -> Host {
    let mut values = vec![0.0; model.tensors().elements() as usize];
    model.tensors().initialise(5, 0, &mut values);
    for (index, value) in values.iter_mut().enumerate() {
        *value = *value * 2.0 + 0.05 * ((index * 37 % 101) as f32 / 101.0 - 0.5);
    }
    let mut bytes = Vec::new();
    for value in &mut values {
        match model.dtype() {
            DType::Fp32 => bytes.extend(value.to_le_bytes()),
            DType::Fp16 => {
                let rounded = f16::from_f32(*value);
                bytes.extend(rounded.to_le_bytes());
                *value = rounded.to_f32();
            }
            DType::Bf16 => {
                let rounded = bf16::from_f32(*value);
                bytes.extend(rounded.to_le_bytes());
                *value = rounded.to_f32();
            }
        }
    }
    Host { bytes, element: model.dtype().bytes() as usize, values }
}

fn model(dtype: DType, tied: bool) -> Model {
    let shape = Shape { layers: 3, hidden: 24, heads: 3, vocab: 37, seq: 16, tied };
    Model::new(shape, dtype, Device::Cpu).unwrap()
}

fn tokens(model: &Model, seq: usize) -> (Tensor, Tensor) {
    let tokens = (0..4 * (seq + 1)).map(|i| (i * i * 31 % 37) as i64).collect();
    let sequences = 4;
    model.batch(&Batch { tokens, sequences }).unwrap()
}

/// Loss, and the gradients in the order in which they left, as fp32.
fn streamed(
    model: &Model,
    source: &dyn WeightSource,
    inputs: &Tensor,
    targets: &Tensor,
    factor: f64,
) -> (f64, Vec<(u64, Vec<f32>)>) {
    let mut gradients = Vec::new();
    let mut sink = |first: u64, gradient: &Tensor| {
        assert!(gradient.is_contiguous());
        assert_eq!(gradient.kind(), kind(model.dtype()));
        let mut bytes = vec![0; gradient.numel() * 4];
        read_out(gradient, DType::Fp32, &mut bytes)?;
        let values =
            bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect();
        gradients.push((first, values));
        Ok(())
    };
    let layers = model.tensors().shape().layers;
    let embed = model.load(Unit::Embed, source).unwrap();
    let mut checkpoints = vec![model.forward(&embed, inputs).unwrap()];
    for layer in 0..layers {
        let block = model.load(Unit::Block(layer), source).unwrap();
        let output = model.forward(&block, &checkpoints[layer as usize]).unwrap();
        checkpoints.push(output);
    }
    let head = model.load(Unit::Head, source).unwrap();
    let last = checkpoints.pop().unwrap();
    let mut tied = TiedGradient::default();
    let (loss, mut grad) =
        model.backward_head(&head, &last, targets, factor, &mut tied, &mut sink).unwrap();
    let evaluated = model.loss(&head, &last, targets).unwrap();
    assert!((evaluated - loss).abs() < 1e-6, "{evaluated} {loss}");
    for layer in (0..layers).rev() {
        let block = model.load(Unit::Block(layer), source).unwrap();
        let input = checkpoints.pop().unwrap();
        grad = model.backward_block(&block, &input, &grad, &mut sink).unwrap();
    }
    model.backward_embed(inputs, &grad, &mut tied, &mut sink).unwrap();
    (loss, gradients)
}

/// Largest difference to the reference, relative to the largest gradient element of each tensor; and the losses.
fn difference(model: &Model, seq: usize, factor: f64) -> (f64, f64, f64) {
    let source = host(model);
    let (inputs, targets) = tokens(model, seq);
    let (loss, gradients) = streamed(model, &source, &inputs, &targets, factor);
    let list = model.tensors();
    let (loss_expected, expected) = reference::loss_and_gradients(
        list,
        &source.values,
        Kind::Double,
        &inputs,
        &targets,
        factor,
    );
    assert_eq!(gradients.len(), list.tensors().len());
    let mut worst = 0f64;
    for (info, expected) in list.tensors().iter().zip(expected) {
        let (_, found) = gradients.iter().find(|(first, _)| *first == info.flat_start).unwrap();
        let mut bytes = vec![0; expected.numel() * 4];
        read_out(&expected, DType::Fp32, &mut bytes).unwrap();
        let expected: Vec<f32> =
            bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect();
        let scale = expected.iter().fold(0f32, |m, g| m.max(g.abs()));
        assert!(scale > 0.0, "{} has no gradient", info.name);
        for (a, b) in found.iter().zip(&expected) {
            worst = worst.max(f64::from((a - b).abs() / scale));
        }
    }
    (worst, loss, loss_expected)
}

#[test]
fn streamed_gradients_equal_whole_graph_autograd() {
    for tied in [true, false] {
        for seq in [16, 9] {
            let (worst, loss, expected) = difference(&model(DType::Fp32, tied), seq, 1.0);
            assert!((loss - expected).abs() <= 1e-6 * expected, "{loss} {expected}");
            assert!(worst <= 1e-6, "tied {tied}, seq {seq}: {worst}");
        }
    }
}

#[test]
fn loss_in_pieces_and_explicit_attention_change_nothing() {
    for tied in [true, false] {
        let mut model = model(DType::Fp32, tied);
        // Seven tokens at a time, which does not divide the 64 of the batch.
        model.logits_max = 37 * 7 + 3;
        model.math.explicit_attention = true;
        let (worst, loss, expected) = difference(&model, 16, 1.0);
        assert!((loss - expected).abs() <= 1e-6 * expected);
        assert!(worst <= 1e-6, "{worst}");
    }
}

#[test]
fn sixteen_bit_gradients_are_those_of_fp32_within_their_precision() {
    for (dtype, factor, bound) in [(DType::Bf16, 1.0, 0.06), (DType::Fp16, 1024.0, 0.01)] {
        for explicit in [false, true] {
            let mut model = model(dtype, true);
            model.math.explicit_attention = explicit;
            let (worst, loss, expected) = difference(&model, 16, factor);
            assert!((loss - expected).abs() <= 0.01 * expected, "{loss} {expected}");
            assert!(worst <= bound, "{dtype:?}: {worst}");
        }
    }
}

#[test]
fn power_of_two_scale_changes_fp32_gradients_by_that_factor_only() {
    let model = model(DType::Fp32, true);
    let source = host(&model);
    let (inputs, targets) = tokens(&model, 16);
    let (_, plain) = streamed(&model, &source, &inputs, &targets, 1.0);
    let (_, scaled) = streamed(&model, &source, &inputs, &targets, 4096.0);
    for ((_, plain), (_, scaled)) in plain.iter().zip(&scaled) {
        for (a, b) in plain.iter().zip(scaled) {
            assert_eq!((a * 4096.0).to_bits(), b.to_bits());
        }
    }
}

#[test]
fn passes_are_reproducible_bit_for_bit_and_on_any_thread() {
    for dtype in [DType::Fp32, DType::Bf16, DType::Fp16] {
        let run = move || {
            let model = model(dtype, true);
            let source = host(&model);
            let (inputs, targets) = tokens(&model, 16);
            let (loss, gradients) = streamed(&model, &source, &inputs, &targets, 8.0);
            let bits: Vec<u32> = gradients
                .iter()
                .flat_map(|(_, values)| values.iter().map(|value| value.to_bits()))
                .collect();
            (loss.to_bits(), bits)
        };
        let first = run();
        assert!(first == run());
        assert!(first == std::thread::spawn(run).join().unwrap());
    }
}

#[test]
fn gradients_leave_in_flat_order_within_each_unit_and_complete_its_ranges() {
    for tied in [true, false] {
        let model = model(DType::Fp32, tied);
        let source = host(&model);
        let (inputs, targets) = tokens(&model, 16);
        let (_, gradients) = streamed(&model, &source, &inputs, &targets, 1.0);
        let mut left = gradients.into_iter();
        for plan in model.plans().iter().rev() {
            for range in &plan.completes {
                let mut next = range.start;
                while next < range.end {
                    let (first, values) = left.next().unwrap();
                    assert_eq!(first, next, "{}", plan.unit);
                    next += values.len() as u64;
                }
                assert_eq!(next, range.end);
            }
        }
        assert!(left.next().is_none());
    }
}

#[test]
fn overflow_of_the_loss_scale_is_visible_in_the_gradients() {
    let model = model(DType::Fp16, true);
    let source = host(&model);
    let (inputs, targets) = tokens(&model, 16);
    let (loss, gradients) = streamed(&model, &source, &inputs, &targets, 1e9);
    assert!(loss.is_finite());
    assert!(gradients.iter().any(|(_, values)| values.iter().any(|value| !value.is_finite())));
}

#[test]
fn calls_that_do_not_fit_the_model_are_errors() {
    let model = model(DType::Fp32, true);
    let source = host(&model);
    let (inputs, targets) = tokens(&model, 16);
    let head = model.load(Unit::Head, &source).unwrap();
    let embed = model.load(Unit::Embed, &source).unwrap();
    let hidden = model.forward(&embed, &inputs).unwrap();
    assert!(model.forward(&head, &hidden).is_err());
    assert!(model.loss(&embed, &hidden, &targets).is_err());
    let mut sink = |_: u64, _: &Tensor| Ok(());
    assert!(model.backward_block(&head, &hidden, &hidden, &mut sink).is_err());
    let mut tied = TiedGradient::default();
    let result = model.backward_embed(&inputs, &hidden, &mut tied, &mut sink);
    assert!(result.unwrap_err().to_string().contains("tied"));
    let long = tokens_of(&model, 17);
    let text = model.forward(&embed, &long).unwrap_err().to_string();
    assert!(text.starts_with("forward pass of embedding"), "{text}");
    let tokens = vec![37; 17];
    let sequences = 1;
    let text = model.batch(&Batch { tokens, sequences }).unwrap_err().to_string();
    assert!(text.contains("token 37") && text.contains("--vocab"), "{text}");
}

fn tokens_of(model: &Model, length: usize) -> Tensor {
    model.tokens(&vec![1; length], 1).unwrap()
}

#[test]
fn an_error_of_the_sink_ends_the_pass() {
    let model = model(DType::Fp32, true);
    let source = host(&model);
    let (inputs, _) = tokens(&model, 16);
    let embed = model.load(Unit::Embed, &source).unwrap();
    let block = model.load(Unit::Block(0), &source).unwrap();
    let hidden = model.forward(&embed, &inputs).unwrap();
    let mut calls = 0;
    let mut sink = |_: u64, _: &Tensor| {
        calls += 1;
        Err(Error::Invalid("full".into()))
    };
    let result = model.backward_block(&block, &hidden, &hidden, &mut sink);
    assert_eq!(result.unwrap_err().to_string(), "full");
    assert_eq!(calls, 1);
}
