use std::fs;

use nearfield_runtime::types::DType;
use serde_json::{Value, json};

use super::*;
use crate::checkpoint::{Config, SaveOptions, Writer, to_config};
use crate::model::{Architecture, Family, Rope, RopeScaling, Shape};

fn list(tied: bool) -> TensorList {
    let shape = Shape { layers: 2, hidden: 8, heads: 2, vocab: 19, seq: 6, tied };
    TensorList::new(Architecture {
        family: Family::Llama,
        key_value_heads: 1,
        rope: Some(Rope { theta: 1e4, scaling: RopeScaling::None }),
        qkv_biases: false,
        out_bias: false,
        feed_forward_biases: false,
        ..shape.into()
    })
    .unwrap()
}

fn values(list: &TensorList) -> Vec<f32> {
    let mut values = vec![0.0; list.elements() as usize];
    list.initialise(3, 0, &mut values);
    values
}

fn save(directory: &Path, list: &TensorList, dtype: DType, shard_bytes: u64) -> Result<()> {
    let options = SaveOptions { dtype, shard_bytes, replace: false };
    let config = to_config(list.architecture(), dtype);
    let writer = Writer::create(directory, list, config, None, &options)?;
    let values = values(list);
    // In pieces that do not respect tensors, the later ones first.
    for (index, piece) in values.chunks(37).enumerate().rev() {
        writer.put(index as u64 * 37, piece)?;
    }
    writer.finish()
}

fn read(directory: &Path, list: &TensorList) -> Result<Vec<f32>> {
    let checkpoint = Checkpoint::open(directory, list)?;
    checkpoint.verify(2)?;
    let mut values = vec![f32::NAN; list.elements() as usize];
    for (index, piece) in values.chunks_mut(53).enumerate() {
        checkpoint.read(index as u64 * 53, piece)?;
    }
    Ok(values)
}

/// A saved model, changed by `change`, then opened.
fn broken(change: impl Fn(&Path)) -> String {
    let root = tempfile::tempdir().unwrap();
    let directory = root.path().join("model");
    save(&directory, &list(false), DType::Fp32, 2000).unwrap();
    change(&directory);
    read(&directory, &list(false)).unwrap_err().to_string()
}

/// Rewrites the table of a file.
fn edit(path: &Path, change: impl Fn(&mut Value)) {
    let bytes = fs::read(path).unwrap();
    let header = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let mut table: Value = serde_json::from_slice(&bytes[8..8 + header]).unwrap();
    change(&mut table);
    let text = table.to_string();
    let mut edited = (text.len() as u64).to_le_bytes().to_vec();
    edited.extend(text.bytes());
    edited.extend(&bytes[8 + header..]);
    fs::write(path, edited).unwrap();
}

fn first(directory: &Path) -> PathBuf {
    paths(directory).unwrap().remove(0)
}

#[test]
fn what_is_saved_reads_back_in_one_file_or_several() {
    for (tied, shard_bytes) in [(true, 1 << 30), (false, 2000), (false, 1)] {
        let root = tempfile::tempdir().unwrap();
        let directory = root.path().join("model");
        let list = list(tied);
        save(&directory, &list, DType::Fp32, shard_bytes).unwrap();
        assert_eq!(read(&directory, &list).unwrap(), values(&list));
        let files = paths(&directory).unwrap().len();
        assert_eq!(files == 1, shard_bytes > 2000, "{files}");
        let config = Config::read(&directory).unwrap();
        assert_eq!(&config.architecture, list.architecture());
        let left: Vec<_> = fs::read_dir(root.path()).unwrap().collect();
        assert_eq!(left.len(), 1);
    }
}

#[test]
fn sixteen_bit_weights_are_rounded_to_nearest_even() {
    let root = tempfile::tempdir().unwrap();
    let list = list(true);
    for (dtype, worst) in [(DType::Bf16, 0.004), (DType::Fp16, 0.0005)] {
        let directory = root.path().join(dtype.name());
        save(&directory, &list, dtype, 1 << 30).unwrap();
        for (read, own) in read(&directory, &list).unwrap().iter().zip(values(&list)) {
            assert!((read - own).abs() <= worst * own.abs() + 4e-8, "{read} {own}");
        }
    }
}

#[test]
fn names_of_older_checkpoints_and_what_is_no_weight_are_accepted() {
    let root = tempfile::tempdir().unwrap();
    let directory = root.path().join("model");
    let list = list(true);
    save(&directory, &list, DType::Fp32, 1 << 30).unwrap();
    edit(&first(&directory), |table| {
        let table = table.as_object_mut().unwrap();
        for name in table.keys().cloned().collect::<Vec<_>>() {
            if let Some(short) = name.strip_prefix("model.") {
                let entry = table.remove(&name).unwrap();
                table.insert(short.to_owned(), entry);
            }
        }
        let end = table.values().filter_map(|e| e["data_offsets"][1].as_u64()).max().unwrap();
        for (name, dtype) in
            [("layers.0.rotary_emb.inv_freq", "F32"), ("count", "I64"), ("extra", "F32")]
        {
            table.insert(
                name.into(),
                json!({"dtype": dtype, "shape": [0], "data_offsets": [end, end]}),
            );
        }
    });
    assert_eq!(read(&directory, &list).unwrap(), values(&list));
    assert_eq!(Checkpoint::open(&directory, &list).unwrap().unused(), ["extra"]);
}

#[test]
fn damage_is_named_with_the_file() {
    let cut = broken(|directory| {
        let file = fs::File::options().write(true).open(first(directory)).unwrap();
        file.set_len(file.metadata().unwrap().len() - 3).unwrap();
    });
    assert!(cut.contains("model-00001-of") && cut.contains("its table asks for"), "{cut}");
    let short = broken(|directory| fs::write(first(directory), b"abc").unwrap());
    assert!(short.contains("only 3 bytes"), "{short}");
    let header = broken(|directory| {
        fs::write(first(directory), [255; 64]).unwrap();
    });
    assert!(header.contains("its table has"), "{header}");
    let table = broken(|directory| {
        let mut bytes = 8_u64.to_le_bytes().to_vec();
        bytes.extend(b"{\"a\": 1}");
        fs::write(first(directory), bytes).unwrap();
    });
    assert!(table.contains("cannot be read"), "{table}");
    let shard = broken(|directory| fs::remove_file(first(directory)).unwrap());
    assert!(shard.contains("model-00001-of") && shard.contains("is missing"), "{shard}");
    let none = broken(|directory| {
        fs::remove_file(directory.join("model.safetensors.index.json")).unwrap();
        fs::write(directory.join("pytorch_model.bin"), b"x").unwrap();
    });
    assert!(none.contains("pickle"), "{none}");
    let index = broken(|directory| {
        let path = directory.join("model.safetensors.index.json");
        fs::write(path, r#"{"weight_map": {"a": "../secret"}}"#).unwrap();
    });
    assert!(index.contains("elsewhere"), "{index}");
}

#[test]
fn mismatches_are_named_with_the_tensor() {
    let rename = broken(|directory| {
        edit(&first(directory), |table| {
            let entry = table.as_object_mut().unwrap().remove("model.embed_tokens.weight").unwrap();
            table["model.other.weight"] = entry;
        });
    });
    assert!(rename.contains("model.embed_tokens.weight are in none"), "{rename}");
    let shape = broken(|directory| {
        edit(&first(directory), |table| {
            table["model.embed_tokens.weight"]["shape"] = json!([8, 19]);
        });
    });
    assert!(shape.contains("sizes [8, 19]") && shape.contains("[19, 8]"), "{shape}");
    let dtype = broken(|directory| {
        edit(&first(directory), |table| {
            table["model.embed_tokens.weight"]["dtype"] = json!("I32");
        });
    });
    assert!(dtype.contains("format I32"), "{dtype}");
}

#[test]
fn numbers_that_are_not_finite_are_named_by_element() {
    let nan = broken(|directory| {
        let path = first(directory);
        let mut bytes = fs::read(&path).unwrap();
        let header = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
        bytes[8 + header + 20..][..4].copy_from_slice(&f32::NAN.to_le_bytes());
        fs::write(&path, bytes).unwrap();
    });
    assert!(nan.contains("element 5 of model.embed_tokens.weight is NaN"), "{nan}");
}

#[test]
fn only_a_model_is_ever_replaced_and_an_incomplete_one_is_never_put_in_place() {
    let root = tempfile::tempdir().unwrap();
    let directory = root.path().join("model");
    let list = list(true);
    fs::create_dir(&directory).unwrap();
    fs::write(directory.join("notes.txt"), "mine").unwrap();
    let text = save(&directory, &list, DType::Fp32, 1 << 30).unwrap_err().to_string();
    assert!(text.contains("something is there already"), "{text}");
    assert!(Writer::check(&directory, true).is_err());
    fs::remove_dir_all(&directory).unwrap();
    save(&directory, &list, DType::Fp32, 1 << 30).unwrap();
    assert!(Writer::check(&directory, false).is_err());
    let options = SaveOptions { dtype: DType::Bf16, shard_bytes: 1 << 30, replace: true };
    let create = || {
        let config = to_config(list.architecture(), DType::Bf16);
        Writer::create(&directory, &list, config, Some(&directory), &options).unwrap()
    };
    let writer = create();
    writer.put(0, &values(&list)[1..]).unwrap();
    assert!(writer.finish().unwrap_err().to_string().contains("were saved"));
    assert_eq!(read(&directory, &list).unwrap(), values(&list));
    fs::write(directory.join("tokenizer.json"), "{}").unwrap();
    let writer = create();
    writer.put(0, &values(&list)).unwrap();
    writer.finish().unwrap();
    assert!(directory.join("tokenizer.json").is_file());
    assert_ne!(read(&directory, &list).unwrap(), values(&list));
    let text = fs::read_to_string(directory.join("config.json")).unwrap();
    assert!(text.contains("bfloat16"), "{text}");
}
