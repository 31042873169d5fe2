//! Saving a model so that transformers loads it.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use nearfield_runtime::types::DType;
use serde_json::{Map, Value, json};

use super::dtype::{encode, torch_name};
use super::table::Table;
use crate::error::{Error, Result};
use crate::model::{TensorInfo, TensorList};

/// Elements converted at a time.
const PIECE: u64 = 1 << 20;
/// What belongs to a model beside its weights and its config.json.
const COMPANIONS: [&str; 10] = [
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
    "chat_template.jinja",
    "chat_template.json",
    "generation_config.json",
];

/// How a model is saved.
#[derive(Debug, Clone)]
pub struct SaveOptions {
    /// Number format of the weights.
    pub dtype: DType,
    /// Most bytes of tensors in one file, unless one tensor is larger.
    pub shard_bytes: u64,
    /// Whether a directory that is there already may be replaced.
    pub replace: bool,
}

/// A model that is being saved: into a directory beside the wanted one, which takes its place when all is there.
#[derive(Debug)]
pub struct Writer {
    target: PathBuf,
    partial: PathBuf,
    list: TensorList,
    dtype: DType,
    files: Vec<(PathBuf, File)>,
    /// File and offset of each tensor, by its first element in the flat vector.
    places: HashMap<u64, (usize, u64)>,
    written: AtomicU64,
}

impl Writer {
    /// Checks that a model can be saved at `target`, before anything is done that takes time.
    ///
    /// # Errors
    /// [`Error::Checkpoint`] where something is there already, unless it may be replaced.
    pub fn check(target: &Path, replace: bool) -> Result<()> {
        let occupied = match std::fs::read_dir(target) {
            Ok(mut entries) => entries.next().is_some(),
            Err(error) => error.kind() != std::io::ErrorKind::NotFound,
        };
        if occupied && !(replace && is_model(target)) {
            let what = "something is there already".to_owned();
            let remedy = "save to another directory, or add --overwrite if it is a model that may be replaced";
            return Err(Error::checkpoint(target, what, remedy));
        }
        Ok(())
    }

    /// Makes the files with their tables of tensors. `config`: keys of config.json, whose number format is set here;
    /// `companions`: a directory from which the tokenizer's files are copied.
    ///
    /// # Errors
    /// [`Error::Checkpoint`] with what the system reports.
    pub fn create(
        target: &Path,
        list: &TensorList,
        mut config: Map<String, Value>,
        companions: Option<&Path>,
        options: &SaveOptions,
    ) -> Result<Self> {
        Self::check(target, options.replace)?;
        let partial = beside(target, "partial");
        std::fs::create_dir_all(&partial).map_err(|error| failed("make", &partial, &error))?;
        config.remove("torch_dtype");
        config.insert("dtype".into(), torch_name(options.dtype).into());
        let text = format!("{:#}\n", Value::Object(config));
        put(&partial.join("config.json"), text.as_bytes())?;
        for name in companions.iter().flat_map(|_| COMPANIONS) {
            let from = companions.map(|directory| directory.join(name)).unwrap_or_default();
            if from.is_file() {
                let to = partial.join(name);
                std::fs::copy(&from, &to)
                    .and_then(|_| File::open(&to)?.sync_all())
                    .map_err(|error| failed("copy", &from, &error))?;
            }
        }
        let shards = shards(list.tensors(), options);
        let mut files = Vec::new();
        let mut places = HashMap::new();
        let mut map = BTreeMap::new();
        for (number, shard) in shards.iter().enumerate() {
            let name = match shards.len() {
                1 => "model.safetensors".to_owned(),
                count => format!("model-{:05}-of-{count:05}.safetensors", number + 1),
            };
            let path = partial.join(&name);
            let (file, offsets) = begin(&path, shard, options.dtype)?;
            map.extend(shard.iter().map(|tensor| (tensor.name.clone(), name.clone())));
            let of_shard = shard.iter().zip(offsets);
            places.extend(of_shard.map(|(tensor, offset)| (tensor.flat_start, (number, offset))));
            files.push((path, file));
        }
        if shards.len() > 1 {
            let total = list.elements() * options.dtype.bytes();
            let index = json!({"metadata": {"total_size": total}, "weight_map": map});
            put(&partial.join("model.safetensors.index.json"), format!("{index:#}\n").as_bytes())?;
        }
        Ok(Self {
            target: target.to_path_buf(),
            partial,
            list: list.clone(),
            dtype: options.dtype,
            files,
            places,
            written: AtomicU64::new(0),
        })
    }

    /// Writes elements `[first, first + values.len())` of the flat vector; each once, in any order, from any thread.
    ///
    /// # Errors
    /// [`Error::Checkpoint`] with what the system reports.
    pub fn put(&self, first: u64, values: &[f32]) -> Result<()> {
        let mut raw = Vec::new();
        for piece in self.list.pieces(first, values.len() as u64, PIECE) {
            encode(self.dtype, &values[piece.span()], &mut raw);
            let (file, offset) = self.places[&piece.tensor.flat_start];
            let (path, file) = &self.files[file];
            let offset = offset + piece.offset * self.dtype.bytes();
            file.write_all_at(&raw, offset).map_err(|error| failed("write", path, &error))?;
            self.written.fetch_add(piece.elements, Relaxed);
        }
        Ok(())
    }

    /// Makes the files durable, and the directory the wanted one.
    ///
    /// # Errors
    /// Elements that were not written, and what the system reports.
    pub fn finish(self) -> Result<()> {
        let written = self.written.load(Relaxed);
        if written != self.list.elements() {
            return Err(Error::Invalid(format!(
                "{written} of {} elements were saved; this is a defect of the program",
                self.list.elements()
            )));
        }
        for (path, file) in &self.files {
            file.sync_all().map_err(|error| failed("write", path, &error))?;
        }
        let sync = |directory: &Path| {
            File::open(directory)
                .and_then(|directory| directory.sync_all())
                .map_err(|error| failed("make", directory, &error))
        };
        sync(&self.partial)?;
        let old = beside(&self.target, "old");
        let replaced = self.target.exists();
        if replaced {
            std::fs::rename(&self.target, &old)
                .map_err(|error| failed("move aside", &self.target, &error))?;
        }
        std::fs::rename(&self.partial, &self.target)
            .map_err(|error| failed("make", &self.target, &error))?;
        let parent = self.target.parent().filter(|parent| !parent.as_os_str().is_empty());
        sync(parent.unwrap_or(Path::new(".")))?;
        if replaced { remove(&old) } else { Ok(()) }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        // Of a model that was not finished nothing is left; a finished one has another name by now.
        let _ = std::fs::remove_dir_all(&self.partial);
    }
}

/// Whether a directory holds nothing but a model: only that is ever replaced.
fn is_model(directory: &Path) -> bool {
    let Ok(mut entries) = std::fs::read_dir(directory) else { return false };
    directory.join("config.json").is_file()
        && entries.all(|entry| {
            let name = entry.map(|entry| entry.file_name());
            name.is_ok_and(|name| {
                let name = name.to_string_lossy();
                COMPANIONS.contains(&&*name)
                    || name == "config.json"
                    || name.ends_with(".safetensors")
                    || name.ends_with(".safetensors.index.json")
            })
        })
}

/// Tensors of each file: in order, as many as fit.
fn shards<'a>(tensors: &'a [TensorInfo], options: &SaveOptions) -> Vec<&'a [TensorInfo]> {
    let (mut shards, mut start, mut bytes) = (Vec::new(), 0, 0);
    for (index, tensor) in tensors.iter().enumerate() {
        let own = tensor.elements() * options.dtype.bytes();
        if index > start && bytes + own > options.shard_bytes {
            shards.push(&tensors[start..index]);
            (start, bytes) = (index, 0);
        }
        bytes += own;
    }
    shards.push(&tensors[start..]);
    shards
}

/// Makes a file of its full length with its table; returns where each tensor's data begins.
fn begin(path: &Path, tensors: &[TensorInfo], dtype: DType) -> Result<(File, Vec<u64>)> {
    let mut table = Table::default();
    for tensor in tensors {
        table.add(tensor.name.clone(), &tensor.shape, dtype);
    }
    let (starts, bytes) = (table.starts(), table.data_bytes());
    let head = table.head()?;
    let data = head.len() as u64;
    let make = || {
        let file = File::options().read(true).write(true).create_new(true).open(path)?;
        file.write_all_at(&head, 0)?;
        file.set_len(data + bytes)?;
        Ok(file)
    };
    let file = make().map_err(|error| failed("write", path, &error))?;
    Ok((file, starts.into_iter().map(|start| data + start).collect()))
}

/// A name beside `target` that nobody else uses: on the same file system, so that one can become the other at once.
fn beside(target: &Path, ending: &str) -> PathBuf {
    let name = target.file_name().unwrap_or_default().to_string_lossy();
    target.with_file_name(format!(".{name}.nearfield-{}.{ending}", std::process::id()))
}

fn remove(directory: &Path) -> Result<()> {
    match std::fs::remove_dir_all(directory) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(failed("remove", directory, &error))
        }
        _ => Ok(()),
    }
}

fn put(path: &Path, content: &[u8]) -> Result<()> {
    let write = || {
        std::fs::write(path, content)?;
        File::open(path)?.sync_all()
    };
    write().map_err(|error| failed("write", path, &error))
}

fn failed(operation: &str, path: &Path, error: &std::io::Error) -> Error {
    let remedy = match error.kind() {
        std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => {
            "make room there, or save to another place"
        }
        std::io::ErrorKind::PermissionDenied => "make the directory writable for this user",
        _ => "check the file system",
    };
    Error::checkpoint(path, format!("cannot {operation} it: {error}"), remedy)
}
