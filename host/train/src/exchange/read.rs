//! Reading the state of an optimizer that ran elsewhere.

use std::collections::HashMap;
use std::fs::File;
use std::path::{Path, PathBuf};

use nearfield_runtime::types::Variable;

use super::pickle::{Tensor, Value};
use super::safetensors_file;
use super::torch_file::TorchFile;
use crate::checkpoint::{Numbers, Stored, open_safetensors};
use crate::error::{Error, Result};
use crate::model::{TensorInfo, TensorList};

/// Elements read at a time.
const PIECE: u64 = 1 << 20;

/// Steps done and the moments of every parameter, in a file.
#[derive(Debug)]
pub struct OptimizerState {
    path: PathBuf,
    file: File,
    list: TensorList,
    step: u64,
    /// First and second moment of each parameter, by its first element in the flat vector.
    places: HashMap<u64, [Numbers; 2]>,
}

fn wrong(path: &Path, what: String) -> Error {
    let remedy = "save optimizer.state_dict() of a torch.optim.AdamW or Adam over all parameters of this model";
    Error::checkpoint(path, what, remedy)
}

impl OptimizerState {
    /// Opens a `.safetensors` file, or else a file of `torch.save(optimizer.state_dict(), …)`.
    ///
    /// The optimizer may have one group of all parameters in the model's order, or two: those with two or more dimensions, then the
    /// others. Names of parameters count where the file has them.
    ///
    /// # Errors
    /// [`Error::Checkpoint`]: a file that is not of that kind, or not of this model.
    pub fn open(path: &Path, list: &TensorList) -> Result<Self> {
        if path.extension().is_some_and(|ending| ending == "safetensors") {
            return Self::open_safetensors(path, list);
        }
        let (mut archive, value) = TorchFile::open(path)?;
        let state = value.get("state").ok_or_else(|| wrong(path, "it has no state".into()))?;
        let Value::Dict(state) = state else {
            return Err(wrong(path, "its state is no dictionary".into()));
        };
        let order = order(path, &value, list, state)?;
        let mut step = None;
        let mut places = HashMap::new();
        for (tensor, index) in order {
            let missing =
                || wrong(path, format!("it has no state of {}, parameter {index}", tensor.name));
            let entry = state.iter().find(|(key, _)| *key == Value::Int(index));
            let (_, entry) = entry.ok_or_else(missing)?;
            let own = steps(path, &mut archive, entry.get("step").ok_or_else(missing)?)?;
            if *step.get_or_insert(own) != own {
                return Err(wrong(
                    path,
                    format!("{} has done {own} steps, others not", tensor.name),
                ));
            }
            let moment = |archive: &mut TorchFile, name: &str| match entry.get(name) {
                Some(Value::Tensor(stored)) => place(path, archive, stored, tensor, name),
                _ => Err(wrong(path, format!("{} has no {name}", tensor.name))),
            };
            let both = [moment(&mut archive, "exp_avg")?, moment(&mut archive, "exp_avg_sq")?];
            places.insert(tensor.flat_start, both);
        }
        let step = step.ok_or_else(|| wrong(path, "it has no parameters".into()))?;
        let file = archive.into_file();
        Ok(Self { path: path.to_path_buf(), file, list: list.clone(), step, places })
    }

    fn open_safetensors(path: &Path, list: &TensorList) -> Result<Self> {
        let (file, metadata, start) = open_safetensors(path)?;
        let find = |name: &str, shape: &[u64]| {
            let info = metadata
                .info(name)
                .ok_or_else(|| wrong(path, format!("it has no tensor {name}")))?;
            let sizes: Vec<u64> = info.shape.iter().map(|&size| size as u64).collect();
            let one = |sizes: &[u64]| sizes.iter().all(|&size| size == 1);
            if sizes != shape && !(shape.is_empty() && one(&sizes)) {
                return Err(wrong(path, format!("{name} has the sizes {sizes:?}, not {shape:?}")));
            }
            let dtype = Stored::new(info.dtype)
                .ok_or_else(|| wrong(path, format!("{name} has the format {:?}", info.dtype)))?;
            Ok(Numbers { offset: start + info.data_offsets.0 as u64, dtype })
        };
        let place = find(safetensors_file::STEP, &[])?;
        let mut step = [0.0];
        place
            .read(&file, 0, &mut step, &mut Vec::new())
            .map_err(|error| wrong(path, format!("cannot read it: {error}")))?;
        let step = whole(path, f64::from(step[0]))?;
        let mut places = HashMap::new();
        for tensor in list.tensors() {
            let moment = |variable: &str| {
                find(&safetensors_file::name(variable, &tensor.name), &tensor.shape)
            };
            places.insert(tensor.flat_start, [moment("exp_avg")?, moment("exp_avg_sq")?]);
        }
        Ok(Self { path: path.to_path_buf(), file, list: list.clone(), step, places })
    }

    /// Optimizer steps done.
    pub fn step(&self) -> u64 {
        self.step
    }

    /// Reads elements of a moment from `first` of the flat vector on.
    ///
    /// # Errors
    /// What the system reports, and numbers that are not finite.
    pub fn read(&self, variable: Variable, first: u64, out: &mut [f32]) -> Result<()> {
        let which = usize::from(variable == Variable::ExpAvgSq);
        let mut raw = Vec::new();
        for piece in self.list.pieces(first, out.len() as u64, PIECE) {
            let numbers = self.places[&piece.tensor.flat_start][which];
            let target = &mut out[piece.span()];
            numbers
                .read(&self.file, piece.offset, target, &mut raw)
                .map_err(|error| wrong(&self.path, format!("cannot read it: {error}")))?;
            if let Some(value) = target.iter().find(|value| !value.is_finite()) {
                let what = format!("{} of {} holds {value}", variable.name(), piece.tensor.name);
                return Err(wrong(&self.path, what));
            }
        }
        Ok(())
    }

    /// Reads everything once.
    ///
    /// # Errors
    /// Those of [`OptimizerState::read`].
    pub fn verify(&self) -> Result<()> {
        let mut values = Vec::new();
        for variable in [Variable::ExpAvg, Variable::ExpAvgSq] {
            let mut first = 0;
            while first < self.list.elements() {
                values.resize((self.list.elements() - first).min(PIECE) as usize, 0.0);
                self.read(variable, first, &mut values)?;
                first += values.len() as u64;
            }
        }
        Ok(())
    }
}

/// Which parameter of the file each tensor is.
fn order<'a>(
    path: &Path,
    value: &Value,
    list: &'a TensorList,
    state: &[(Value, Value)],
) -> Result<Vec<(&'a TensorInfo, i64)>> {
    let Some(Value::List(groups)) = value.get("param_groups") else {
        return Err(wrong(path, "it has no param_groups".into()));
    };
    let (mut indices, mut names) = (Vec::new(), Vec::new());
    for group in groups {
        if group.get("amsgrad") == Some(&Value::Bool(true)) {
            return Err(wrong(path, "its optimizer used amsgrad, which is not supported".into()));
        }
        let Some(Value::List(params)) = group.get("params") else {
            return Err(wrong(path, "a group has no params".into()));
        };
        for param in params {
            let Value::Int(index) = param else {
                return Err(wrong(path, format!("a parameter is {param:?}, not a number")));
            };
            indices.push(*index);
        }
        if let Some(Value::List(own)) = group.get("param_names") {
            names.extend(own.iter().filter_map(|name| match name {
                Value::Text(name) => Some(name.as_str()),
                _ => None,
            }));
        }
    }
    let count = list.tensors().len();
    if indices.len() != count {
        return Err(wrong(
            path,
            format!("its optimizer has {} parameters, the model {count}", indices.len()),
        ));
    }
    if names.len() == count {
        return list
            .tensors()
            .iter()
            .map(|tensor| {
                let at = names.iter().position(|name| *name == tensor.name);
                let missing = || wrong(path, format!("its optimizer has no {}", tensor.name));
                Ok((tensor, indices[at.ok_or_else(missing)?]))
            })
            .collect();
    }
    let registration: Vec<&TensorInfo> = list.tensors().iter().collect();
    let flat: Vec<&TensorInfo> = list.in_flat_order().collect();
    let fits = |order: &[&TensorInfo]| {
        order.iter().zip(&indices).all(|(tensor, index)| {
            let entry = state.iter().find(|(key, _)| *key == Value::Int(*index));
            let shape = entry.and_then(|(_, entry)| match entry.get("exp_avg") {
                Some(Value::Tensor(stored)) => Some(&stored.shape),
                _ => None,
            });
            shape.is_none_or(|shape| *shape == tensor.shape)
        })
    };
    let orders = if groups.len() == 1 { [registration, flat] } else { [flat, registration] };
    let fitting = orders.into_iter().find(|order| fits(order));
    let fitting = fitting.ok_or_else(|| {
        let text = "the sizes of its parameters are not those of the model, neither in the model's order nor with matrices first";
        wrong(path, text.into())
    })?;
    Ok(fitting.into_iter().zip(indices).collect())
}

/// A number of steps: a number, or a tensor with one.
fn steps(path: &Path, archive: &mut TorchFile, value: &Value) -> Result<u64> {
    match value {
        Value::Int(number) => whole(path, *number as f64),
        Value::Float(number) => whole(path, *number),
        Value::Tensor(tensor) if tensor.shape.iter().all(|&size| size == 1) => {
            let number = match tensor.kind.as_str() {
                "LongStorage" => {
                    let raw =
                        archive.bytes(path, &tensor.key, tensor.offset.saturating_mul(8), 8)?;
                    raw.first_chunk().map_or(0.0, |bytes| i64::from_le_bytes(*bytes) as f64)
                }
                kind => {
                    let dtype = stored(path, kind)?;
                    let width = dtype.bytes();
                    let at = tensor.offset.saturating_mul(width);
                    let raw = archive.bytes(path, &tensor.key, at, width as usize)?;
                    let mut out = [0.0];
                    dtype.decode(&raw, &mut out);
                    f64::from(out[0])
                }
            };
            whole(path, number)
        }
        other => Err(wrong(path, format!("a step is {other:?}"))),
    }
}

fn whole(path: &Path, number: f64) -> Result<u64> {
    if number >= 0.0 && number.fract() == 0.0 && number < 9e15 {
        return Ok(number as u64);
    }
    Err(wrong(path, format!("its number of steps is {number}")))
}

fn stored(path: &Path, kind: &str) -> Result<Stored> {
    Ok(match kind {
        "DoubleStorage" => Stored::F64,
        "FloatStorage" => Stored::F32,
        "HalfStorage" => Stored::F16,
        "BFloat16Storage" => Stored::Bf16,
        _ => return Err(wrong(path, format!("it has numbers of the kind {kind}"))),
    })
}

fn place(
    path: &Path,
    archive: &mut TorchFile,
    stored_tensor: &Tensor,
    tensor: &TensorInfo,
    name: &str,
) -> Result<Numbers> {
    if stored_tensor.shape != tensor.shape {
        return Err(wrong(
            path,
            format!(
                "{name} of {} has the sizes {:?}, not {:?}",
                tensor.name, stored_tensor.shape, tensor.shape
            ),
        ));
    }
    if stored_tensor.stride.len() != stored_tensor.shape.len() {
        return Err(wrong(path, format!("{name} of {} has no strides", tensor.name)));
    }
    let mut expected = 1;
    for (&size, &stride) in stored_tensor.shape.iter().zip(&stored_tensor.stride).rev() {
        if size != 1 && stride != expected {
            return Err(wrong(path, format!("{name} of {} is not contiguous", tensor.name)));
        }
        expected *= size;
    }
    let dtype = stored(path, &stored_tensor.kind)?;
    let (start, bytes) = archive.storage(path, &stored_tensor.key)?;
    let end = stored_tensor
        .offset
        .checked_add(tensor.elements())
        .and_then(|elements| elements.checked_mul(dtype.bytes()));
    if end.is_none_or(|end| end > bytes) {
        return Err(wrong(path, format!("{name} of {} is cut off", tensor.name)));
    }
    Ok(Numbers { offset: start + stored_tensor.offset * dtype.bytes(), dtype })
}
