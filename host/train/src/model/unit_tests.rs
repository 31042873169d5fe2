use half::{bf16, f16};

use super::*;
use crate::model::{Family, Rope, Shape, read_out, reference};

/// Working weights as bytes, and the fp32 values that they stand for.
struct Host {
    bytes: Vec<u8>,
    element: usize,
    values: Vec<f32>,
}

impl WeightSource for Host {
    fn copy_out(&self, first_element: u64, out: &mut [u8]) -> nearfield_runtime::Result<()> {
        let start = first_element as usize * self.element;
        out.copy_from_slice(&self.bytes[start..start + out.len()]);
        Ok(())
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
    Model::new(shape, shape.seq, dtype, Device::Cpu).unwrap()
}

fn batch(seq: usize) -> Batch {
    let tokens: Vec<i64> = (0..4 * (seq + 1)).map(|i| (i * i * 31 % 37) as i64).collect();
    let part = |shift: usize| {
        tokens.chunks(seq + 1).flat_map(|row| &row[shift..shift + seq]).copied().collect()
    };
    Batch { inputs: part(0), targets: part(1), documents: None, sequences: 4 }
}

fn tokens(model: &Model, seq: usize) -> Tokens {
    model.batch(&batch(seq)).unwrap()
}

/// Loss, and the gradients in the order in which they left, as fp32.
fn streamed(
    model: &Model,
    source: &dyn WeightSource,
    tokens: &Tokens,
    factor: f64,
) -> (f64, Vec<(u64, Vec<f32>)>) {
    let (inputs, targets) = (&tokens.inputs, &tokens.targets);
    let documents = tokens.documents.as_ref();
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
    let layers = model.architecture().layers;
    let embed = model.load(Unit::Embed, source).unwrap();
    let mut checkpoints = vec![model.forward(&embed, inputs, documents).unwrap()];
    for layer in 0..layers {
        let block = model.load(Unit::Block(layer), source).unwrap();
        let output = model.forward(&block, &checkpoints[layer as usize], documents).unwrap();
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
        grad = model.backward_block(&block, &input, &grad, documents, &mut sink).unwrap();
    }
    model.backward_embed(tokens, &grad, &mut tied, &mut sink).unwrap();
    (loss, gradients)
}

/// Largest difference to the reference, relative to the largest gradient element of each tensor; and the losses.
fn difference(model: &Model, seq: usize, factor: f64) -> (f64, f64, f64) {
    let source = host(model);
    let tokens = tokens(model, seq);
    let (loss, gradients) = streamed(model, &source, &tokens, factor);
    let list = model.tensors();
    let (loss_expected, expected) = reference::loss_and_gradients(
        list,
        &source.values,
        Kind::Double,
        &tokens.inputs,
        &tokens.targets,
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
    let tokens = tokens(&model, 16);
    let (_, plain) = streamed(&model, &source, &tokens, 1.0);
    let (_, scaled) = streamed(&model, &source, &tokens, 4096.0);
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
            let tokens = tokens(&model, 16);
            let (loss, gradients) = streamed(&model, &source, &tokens, 8.0);
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
        let tokens = tokens(&model, 16);
        let (_, gradients) = streamed(&model, &source, &tokens, 1.0);
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
    let tokens = tokens(&model, 16);
    let (loss, gradients) = streamed(&model, &source, &tokens, 1e9);
    assert!(loss.is_finite());
    assert!(gradients.iter().any(|(_, values)| values.iter().any(|value| !value.is_finite())));
}

#[test]
fn calls_that_do_not_fit_the_model_are_errors() {
    let model = model(DType::Fp32, true);
    let source = host(&model);
    let tokens = tokens(&model, 16);
    let head = model.load(Unit::Head, &source).unwrap();
    let embed = model.load(Unit::Embed, &source).unwrap();
    let hidden = model.forward(&embed, &tokens.inputs, None).unwrap();
    assert!(model.forward(&head, &hidden, None).is_err());
    assert!(model.loss(&embed, &hidden, &tokens.targets).is_err());
    let mut sink = |_: u64, _: &Tensor| Ok(());
    assert!(model.backward_block(&head, &hidden, &hidden, None, &mut sink).is_err());
    let mut tied = TiedGradient::default();
    let result = model.backward_embed(&tokens, &hidden, &mut tied, &mut sink);
    assert!(result.unwrap_err().to_string().contains("tied"));
    let long = tokens_of(&model, 17);
    let text = model.forward(&embed, &long, None).unwrap_err().to_string();
    assert!(text.starts_with("forward pass of embedding"), "{text}");
    let mut wrong = batch(16);
    wrong.targets[5] = 37;
    let text = model.batch(&wrong).unwrap_err().to_string();
    assert!(text.contains("token 37") && text.contains("--vocab"), "{text}");
}

fn tokens_of(model: &Model, length: usize) -> Tensor {
    model.tokens(&vec![1; length], 1).unwrap()
}

#[test]
fn an_error_of_the_sink_ends_the_pass() {
    let model = model(DType::Fp32, true);
    let source = host(&model);
    let tokens = tokens(&model, 16);
    let embed = model.load(Unit::Embed, &source).unwrap();
    let block = model.load(Unit::Block(0), &source).unwrap();
    let hidden = model.forward(&embed, &tokens.inputs, None).unwrap();
    let mut calls = 0;
    let mut sink = |_: u64, _: &Tensor| {
        calls += 1;
        Err(Error::Invalid("full".into()))
    };
    let result = model.backward_block(&block, &hidden, &hidden, None, &mut sink);
    assert_eq!(result.unwrap_err().to_string(), "full");
    assert_eq!(calls, 1);
}

/// Loss and gradients of a model whose sequences hold several documents, and of the same documents on their own.
#[test]
fn documents_that_share_a_sequence_do_not_see_each_other() {
    let gpt = model(DType::Fp32, true);
    let shape = Shape { layers: 2, hidden: 24, heads: 3, vocab: 37, seq: 16, tied: false };
    let llama = Architecture {
        family: Family::Llama,
        key_value_heads: 1,
        rope: Some(Rope { theta: 100.0, scaling: RopeScaling::None }),
        qkv_biases: false,
        out_bias: false,
        feed_forward_biases: false,
        ..shape.into()
    };
    let llama = Model::new(llama, 16, DType::Fp32, Device::Cpu).unwrap();
    for explicit in [false, true] {
        for architecture in [gpt.architecture(), llama.architecture()] {
            let mut model = Model::new(architecture.clone(), 16, DType::Fp32, Device::Cpu).unwrap();
            model.math.explicit_attention = explicit;
            let source = host(&model);
            let tokens: Vec<i64> = (0..16).map(|i| i * i * 31 % 37).collect();
            let targets: Vec<i64> = (0..16).map(|i| i * 17 % 37).collect();
            let numbers = (0..16).map(|i| i64::from(i >= 5) + i64::from(i >= 11)).collect();
            let packed = Batch {
                inputs: tokens.clone(),
                targets: targets.clone(),
                documents: Some(numbers),
                sequences: 1,
            };
            let packed = model.batch(&packed).unwrap();
            let (loss, gradients) = streamed(&model, &source, &packed, 1.0);
            let mut sum = 0.0;
            let mut expected: Vec<Vec<f32>> = Vec::new();
            for range in [0..5, 5..11, 11..16] {
                let one = Batch {
                    inputs: tokens[range.clone()].to_vec(),
                    targets: targets[range.clone()].to_vec(),
                    documents: None,
                    sequences: 1,
                };
                let one = model.batch(&one).unwrap();
                let share = range.len() as f64 / 16.0;
                let (loss, gradients) = streamed(&model, &source, &one, share);
                sum += loss * share;
                expected.resize(gradients.len(), Vec::new());
                for (total, (_, gradient)) in expected.iter_mut().zip(gradients) {
                    total.resize(gradient.len(), 0.0);
                    total.iter_mut().zip(gradient).for_each(|(total, value)| *total += value);
                }
            }
            assert!((loss - sum).abs() <= 1e-6, "{loss} {sum}");
            for ((_, own), expected) in gradients.iter().zip(&expected) {
                let scale = expected.iter().fold(0_f32, |most, value| most.max(value.abs()));
                for (own, expected) in own.iter().zip(expected) {
                    assert!((own - expected).abs() <= 2e-6 * scale, "{own} {expected}");
                }
            }
        }
    }
}
