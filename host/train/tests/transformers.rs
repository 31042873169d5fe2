//! Models of every family beside transformers: logits, loss and gradients of random weights, and models that were saved here.
#![allow(clippy::unwrap_used)] // A test fails by panicking.

use std::path::{Path, PathBuf};
use std::process::Command;

use nearfield_runtime::types::DType;
use nearfield_train::checkpoint::{Checkpoint, Config, SaveOptions, Writer, to_config};
use nearfield_train::data::Batch;
use nearfield_train::model::{Model, TensorList, TiedGradient, Unit, WeightSource, read_out};
use safetensors::SafeTensors;
use tch::{Device, Tensor};

/// Largest difference of a logit, and of a gradient relative to the largest of its tensor.
const WORST: f64 = 1e-4;

fn python(arguments: &[&str]) {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let python = std::env::var_os("NEARFIELD_PYTHON")
        .map_or(workspace.join(".venv/bin/python"), PathBuf::from);
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/transformers/reference.py");
    let output =
        Command::new(&python).arg(script).args(arguments).output().unwrap_or_else(|error| {
            panic!("{} with transformers is needed ({error}): run `make build`", python.display())
        });
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

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

fn floats(file: &SafeTensors<'_>, name: &str) -> Vec<f32> {
    let data = file.tensor(name).unwrap();
    data.data().chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
}

fn integers(file: &SafeTensors<'_>, name: &str) -> Vec<i64> {
    let data = file.tensor(name).unwrap();
    data.data().chunks_exact(8).map(|b| i64::from_le_bytes(b.try_into().unwrap())).collect()
}

fn read(tensor: &Tensor) -> Vec<f32> {
    let mut bytes = vec![0; tensor.numel() * 4];
    read_out(tensor, DType::Fp32, &mut bytes).unwrap();
    bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
}

fn difference(one: &[f32], other: &[f32]) -> f64 {
    assert_eq!(one.len(), other.len());
    one.iter().zip(other).fold(0.0, |worst, (a, b)| f64::max(worst, f64::from((a - b).abs())))
}

/// Loss and gradients by tensor, unit after unit as in training.
fn streamed(model: &Model, source: &Host, batch: &Batch) -> (f64, Vec<f32>) {
    let mut flat = vec![f32::NAN; source.0.len()];
    let mut sink = |first: u64, gradient: &Tensor| {
        let values = read(gradient);
        flat[first as usize..first as usize + values.len()].copy_from_slice(&values);
        Ok(())
    };
    let tokens = model.batch(batch).unwrap();
    let load = |unit| model.load(unit, source).unwrap();
    let layers = model.architecture().layers;
    let mut inputs = vec![model.forward(&load(Unit::Embed), &tokens.inputs, None).unwrap()];
    for layer in 0..layers {
        let output = model.forward(&load(Unit::Block(layer)), &inputs[layer as usize], None);
        inputs.push(output.unwrap());
    }
    let mut tied = TiedGradient::default();
    let last = inputs.pop().unwrap();
    let head = load(Unit::Head);
    let (loss, mut gradient) =
        model.backward_head(&head, &last, &tokens.targets, 1.0, &mut tied, &mut sink).unwrap();
    for layer in (0..layers).rev() {
        let (block, input) = (load(Unit::Block(layer)), inputs.pop().unwrap());
        gradient = model.backward_block(&block, &input, &gradient, None, &mut sink).unwrap();
    }
    model.backward_embed(&tokens, &gradient, &mut tied, &mut sink).unwrap();
    (loss, flat)
}

fn save(target: &Path, list: &TensorList, values: &[f32], own: Option<&Config>, dtype: DType) {
    let keys = own.map_or_else(|| to_config(list.architecture(), dtype), |own| own.keys.clone());
    let options = SaveOptions { dtype, shard_bytes: 50_000, replace: false };
    let writer = Writer::create(target, list, keys, None, &options).unwrap();
    writer.put(0, values).unwrap();
    writer.finish().unwrap();
}

#[test]
fn logits_and_gradients_are_those_of_transformers_and_saved_models_load_there() {
    let root = tempfile::tempdir().unwrap();
    let place = root.path().to_str().unwrap();
    python(&["make", place]);
    let mut names: Vec<String> = std::fs::read_dir(root.path())
        .unwrap()
        .filter_map(|entry| {
            let name = entry.unwrap().file_name().into_string().unwrap();
            name.strip_suffix(".expected").map(str::to_owned)
        })
        .collect();
    names.sort();
    assert_eq!(names.len(), 14);
    for name in &names {
        let directory = root.path().join(name);
        let config = Config::read(&directory).unwrap();
        let model = Model::new(config.architecture.clone(), 40, DType::Fp32, Device::Cpu).unwrap();
        let list = model.tensors();
        let checkpoint = Checkpoint::open(&directory, list).unwrap();
        assert_eq!(checkpoint.unused(), [""; 0]);
        checkpoint.verify(2).unwrap();
        let mut source = Host(vec![0.0; list.elements() as usize]);
        checkpoint.read(0, &mut source.0).unwrap();

        let bytes = std::fs::read(root.path().join(format!("{name}.expected"))).unwrap();
        let expected = SafeTensors::deserialize(&bytes).unwrap();
        let inputs = integers(&expected, "tokens");
        let logits = model.forward_logits(&source, &inputs, 3).unwrap();
        let worst = difference(&read(&logits), &floats(&expected, "logits"));
        assert!(worst <= WORST, "{name}: logits differ by {worst}");

        let targets = integers(&expected, "targets");
        let batch = Batch { inputs, targets, documents: None, sequences: 3 };
        let (loss, gradients) = streamed(&model, &source, &batch);
        let expected_loss = f64::from(floats(&expected, "loss")[0]);
        assert!((loss - expected_loss).abs() <= 1e-5, "{name}: {loss} {expected_loss}");
        let mut worst = 0_f64;
        for tensor in list.tensors() {
            let theirs = floats(&expected, &format!("gradient.{}", tensor.name));
            let range = tensor.range();
            let own = &gradients[range.start as usize..range.end as usize];
            let scale = theirs.iter().fold(0.0, |most: f32, value| most.max(value.abs()));
            let off = difference(own, &theirs) / f64::from(scale);
            assert!(off <= WORST, "{name}: gradient of {} differs by {off}", tensor.name);
            worst = worst.max(off);
        }
        println!(
            "{name:14} logits within {:.1e}, gradients within {worst:.1e}",
            difference(&read(&logits), &floats(&expected, "logits"))
        );

        let target = |ending: &str| root.path().join(format!("{name}.{ending}"));
        save(&target("saved-fp32"), list, &source.0, Some(&config), DType::Fp32);
        save(&target("saved-bf16"), list, &source.0, Some(&config), DType::Bf16);
        save(&target("written"), list, &source.0, None, DType::Fp32);
    }
    python(&["check", place]);
}
