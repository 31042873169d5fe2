//! Weights in safetensors files, one or several with an index, read in pieces.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use safetensors::tensor::Metadata;
use serde::Deserialize;

use super::dtype::{Numbers, Stored};
use crate::error::{Error, Result};
use crate::model::{TensorInfo, TensorList};

/// Largest header that the format allows.
const HEADER_MAX: u64 = 100_000_000;
/// Elements read at a time.
const PIECE: u64 = 1 << 20;
/// Parts of names that older checkpoints leave out.
const PREFIXES: [&str; 2] = ["transformer.", "model."];
/// Ends of names of what checkpoints carry that are no weights.
const BUFFERS: [&str; 3] = [".attn.bias", ".attn.masked_bias", ".rotary_emb.inv_freq"];

/// The weights of a model in a directory.
#[derive(Debug)]
pub struct Checkpoint {
    files: Vec<Shard>,
    list: TensorList,
    /// Of each tensor, by its first element in the flat vector.
    places: HashMap<u64, Place>,
    unused: Vec<String>,
}

#[derive(Debug)]
struct Shard {
    path: PathBuf,
    file: File,
}

/// Where a tensor lies.
#[derive(Debug, Clone, Copy)]
struct Place {
    file: usize,
    numbers: Numbers,
}

#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

impl Checkpoint {
    /// Finds every tensor of `list` in the safetensors files of `directory`, and checks their sizes. Reads headers only.
    ///
    /// # Errors
    /// [`Error::Checkpoint`]: no weights, a shard that is missing, cut off or damaged, a tensor that is missing or has other sizes.
    pub fn open(directory: &Path, list: &TensorList) -> Result<Self> {
        let wanted: HashSet<&str> = list.tensors().iter().flat_map(candidates).collect();
        let mut files = Vec::new();
        let mut found: HashMap<String, (Place, Vec<u64>)> = HashMap::new();
        for path in paths(directory)? {
            let number = files.len();
            let (file, metadata, start) = open_file(&path)?;
            for (name, info) in metadata.tensors() {
                let Some(dtype) = Stored::new(info.dtype) else {
                    // Whole numbers beside the weights do not matter.
                    if wanted.contains(name.as_str()) {
                        let what = format!("tensor {name} has the format {:?}", info.dtype);
                        let remedy = "weights in F32, F16 or BF16 are needed";
                        return Err(Error::checkpoint(&path, what, remedy));
                    }
                    continue;
                };
                let offset = start + info.data_offsets.0 as u64;
                let sizes = info.shape.iter().map(|&size| size as u64).collect();
                let numbers = Numbers { offset, dtype };
                found.insert(name, (Place { file: number, numbers }, sizes));
            }
            files.push(Shard { path, file });
        }
        let mut places = HashMap::new();
        for tensor in list.tensors() {
            let name = candidates(tensor).find(|name| found.contains_key(*name));
            let Some((place, sizes)) = name.and_then(|name| found.remove(name)) else {
                let what = format!("the weights of {} are in none of its files", tensor.name);
                let remedy = "the files do not belong to this config.json: fetch the model again";
                return Err(Error::checkpoint(directory, what, remedy));
            };
            if sizes != tensor.shape {
                let what = format!(
                    "{} has the sizes {sizes:?}, but config.json asks for {:?}",
                    tensor.name, tensor.shape
                );
                let remedy = "the files do not belong to this config.json: fetch the model again";
                return Err(Error::checkpoint(&files[place.file].path, what, remedy));
            }
            places.insert(tensor.flat_start, place);
        }
        let tied = list.architecture().tied;
        let mut unused: Vec<String> = found
            .into_keys()
            .filter(|name| !BUFFERS.iter().any(|end| name.ends_with(end)))
            .filter(|name| !(tied && name == "lm_head.weight"))
            .collect();
        unused.sort();
        Ok(Self { files, list: list.clone(), places, unused })
    }

    /// Names of tensors in the files that the model does not have.
    pub fn unused(&self) -> &[String] {
        &self.unused
    }

    /// Reads elements `[first, first + out.len())` of the flat vector.
    ///
    /// # Errors
    /// What the system reports.
    pub fn read(&self, first: u64, out: &mut [f32]) -> Result<()> {
        let mut raw = Vec::new();
        self.list.pieces(first, out.len() as u64, PIECE).try_for_each(|piece| {
            self.read_piece(piece.tensor, piece.offset, &mut out[piece.span()], &mut raw)
        })
    }

    fn read_piece(
        &self,
        tensor: &TensorInfo,
        first: u64,
        out: &mut [f32],
        raw: &mut Vec<u8>,
    ) -> Result<()> {
        let place = self.place(tensor);
        let Shard { path, file } = &self.files[place.file];
        place.numbers.read(file, first, out, raw).map_err(|error| {
            let what = format!("cannot read {}: {error}", tensor.name);
            Error::checkpoint(path, what, "fetch the model again")
        })
    }

    fn place(&self, tensor: &TensorInfo) -> Place {
        self.places[&tensor.flat_start]
    }

    /// Reads all weights once, with `threads` threads, and checks that they are finite numbers.
    ///
    /// # Errors
    /// [`Error::Checkpoint`] with the tensor and the element.
    pub fn verify(&self, threads: usize) -> Result<()> {
        let next = AtomicUsize::new(0);
        let worker = || {
            let (mut raw, mut values) = (Vec::new(), Vec::new());
            while let Some(tensor) = self.list.tensors().get(next.fetch_add(1, Relaxed)) {
                self.verify_tensor(tensor, &mut raw, &mut values)?;
            }
            Ok(())
        };
        std::thread::scope(|scope| {
            let workers: Vec<_> = (0..threads.max(1)).map(|_| scope.spawn(worker)).collect();
            workers.into_iter().try_for_each(|worker| {
                worker.join().unwrap_or_else(|_| {
                    Err(Error::Invalid("a thread that reads weights ended without a result".into()))
                })
            })
        })
    }

    fn verify_tensor(
        &self,
        tensor: &TensorInfo,
        raw: &mut Vec<u8>,
        values: &mut Vec<f32>,
    ) -> Result<()> {
        let mut first = 0;
        while first < tensor.elements() {
            let count = (tensor.elements() - first).min(PIECE);
            values.resize(count as usize, 0.0);
            self.read_piece(tensor, first, values, raw)?;
            if let Some(index) = values.iter().position(|value| !value.is_finite()) {
                let what = format!(
                    "element {} of {} is {}, not a finite number",
                    first + index as u64,
                    tensor.name,
                    values[index]
                );
                let remedy =
                    "its training has diverged, or the file is damaged: use another checkpoint";
                return Err(Error::checkpoint(
                    &self.files[self.place(tensor).file].path,
                    what,
                    remedy,
                ));
            }
            first += count;
        }
        Ok(())
    }
}

/// Names under which checkpoints keep a tensor.
fn candidates(tensor: &TensorInfo) -> impl Iterator<Item = &str> {
    let short = PREFIXES.iter().find_map(|prefix| tensor.name.strip_prefix(prefix));
    std::iter::once(tensor.name.as_str()).chain(short)
}

/// The safetensors files of a model.
fn paths(directory: &Path) -> Result<Vec<PathBuf>> {
    let index = directory.join("model.safetensors.index.json");
    if index.exists() {
        let wrong = |what: String| Error::checkpoint(&index, what, "fetch the model again");
        let text = std::fs::read_to_string(&index)
            .map_err(|error| wrong(format!("cannot read it: {error}")))?;
        let Index { weight_map } = serde_json::from_str(&text)
            .map_err(|error| wrong(format!("it is no index of weights: {error}")))?;
        let mut names: Vec<String> = weight_map.into_values().collect();
        names.sort();
        names.dedup();
        if let Some(name) = names.iter().find(|name| name.contains('/') || name.contains("..")) {
            return Err(wrong(format!("it names a file elsewhere, {name:?}")));
        }
        for name in &names {
            if !directory.join(name).exists() {
                let what = format!("{name} is missing, which is one of its {} files", names.len());
                return Err(wrong(what));
            }
        }
        return Ok(names.iter().map(|name| directory.join(name)).collect());
    }
    let single = directory.join("model.safetensors");
    if single.exists() {
        return Ok(vec![single]);
    }
    let what = "there is neither model.safetensors nor model.safetensors.index.json in it";
    let remedy = if directory.join("pytorch_model.bin").exists() {
        "it has weights in pickle's format only: load and save it with transformers, which writes safetensors"
    } else {
        "give the directory of a Hugging Face model with --model"
    };
    Err(Error::checkpoint(directory, what.into(), remedy))
}

/// Opens a file; returns its table, and where its data begins.
pub(crate) fn open_file(path: &Path) -> Result<(File, Metadata, u64)> {
    let wrong = |what: String| {
        let remedy = "the file is cut off or damaged: fetch the model again";
        Error::checkpoint(path, what, remedy)
    };
    let io = |error: std::io::Error| wrong(format!("cannot read it: {error}"));
    let mut file = File::open(path).map_err(io)?;
    let length = file.metadata().map_err(io)?.len();
    let mut prefix = [0; 8];
    if length < 8 {
        return Err(wrong(format!("it has only {length} bytes")));
    }
    file.read_exact(&mut prefix).map_err(io)?;
    let header = u64::from_le_bytes(prefix);
    if header > HEADER_MAX || header > length - 8 {
        return Err(wrong(format!(
            "it says that its table has {header} bytes, but the file has {length}"
        )));
    }
    let mut text = vec![0; header as usize];
    file.read_exact(&mut text).map_err(io)?;
    let metadata: Metadata = serde_json::from_slice(&text)
        .map_err(|error| wrong(format!("its table of tensors cannot be read: {error}")))?;
    let start = 8 + header;
    let expected = start + metadata.data_len() as u64;
    if expected != length {
        return Err(wrong(format!("it has {length} bytes, but its table asks for {expected}")));
    }
    Ok((file, metadata, start))
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
