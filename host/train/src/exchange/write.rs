//! Writing the state of a run for others.

use std::fs::File;
use std::io::Write;
use std::path::Path;

use nearfield_runtime::types::{DType, HyperParameters, Variable};

use super::pickle::{Tensor, Value};
use super::safetensors_file;
use super::torch_file::TorchWriter;
use crate::checkpoint::{Table, encode};
use crate::error::{Error, Result};
use crate::model::{TensorInfo, TensorList};

/// Elements converted at a time.
const PIECE: u64 = 1 << 20;
/// The stored moments, as torch calls them.
const BOTH: [Variable; 2] = [Variable::ExpAvg, Variable::ExpAvgSq];

/// Reads elements of a variable of the flat vector.
pub type Read<'a> = dyn Fn(Variable, u64, &mut [f32]) -> Result<()> + 'a;

/// The moments of a run.
pub struct Moments<'a> {
    /// The model's tensors.
    pub list: &'a TensorList,
    /// Optimizer steps done.
    pub step: u64,
    /// Hyper-parameters of the tensors with weight decay, and of those without.
    pub groups: [HyperParameters; 2],
    /// Whether decay is decoupled (AdamW) or added to the gradient (Adam).
    pub decoupled: bool,
    /// Number format in the file.
    pub dtype: DType,
    /// Where they are.
    pub read: &'a Read<'a>,
}

/// Writes moments to `path`: safetensors where it ends so, else as `torch.save` writes the `state_dict` of a `torch.optim.AdamW` with
/// two groups of parameters, those that decay and those that do not.
///
/// # Errors
/// A file that cannot be written, and what the source reports.
pub fn export(path: &Path, moments: &Moments) -> Result<()> {
    let file = File::create(path).map_err(|error| failed(path, &error))?;
    if path.extension().is_some_and(|ending| ending == "safetensors") {
        moments.safetensors(path, file)
    } else {
        moments.torch(path, file)
    }
}

fn failed(path: &Path, error: &std::io::Error) -> Error {
    let remedy = "make room there, or give another path";
    Error::checkpoint(path, format!("cannot write it: {error}"), remedy)
}

impl Moments<'_> {
    /// Hands over the bytes of a moment of a tensor.
    fn pieces(
        &self,
        tensor: &TensorInfo,
        variable: Variable,
        sink: &mut dyn FnMut(&[u8]) -> Result<()>,
    ) -> Result<()> {
        let (mut values, mut raw) = (Vec::new(), Vec::new());
        let mut done = 0;
        while done < tensor.elements() {
            values.resize((tensor.elements() - done).min(PIECE) as usize, 0.0);
            (self.read)(variable, tensor.flat_start + done, &mut values)?;
            encode(self.dtype, &values, &mut raw);
            sink(&raw)?;
            done += values.len() as u64;
        }
        Ok(())
    }

    fn torch(&self, path: &Path, file: File) -> Result<()> {
        let io = |error: std::io::Error| failed(path, &error);
        let mut writer = TorchWriter::create(file, &self.state_dict()).map_err(io)?;
        for (index, tensor) in self.list.in_flat_order().enumerate() {
            writer.storage(&(3 * index).to_string()).map_err(io)?;
            writer.write(&(self.step as f32).to_le_bytes()).map_err(io)?;
            for (which, variable) in BOTH.into_iter().enumerate() {
                writer.storage(&(3 * index + 1 + which).to_string()).map_err(io)?;
                self.pieces(tensor, variable, &mut |bytes| writer.write(bytes).map_err(io))?;
            }
        }
        writer.finish().map_err(io)
    }

    /// The dictionary; storages are numbered three a parameter: step, first and second moment.
    fn state_dict(&self) -> Value {
        let text = |text: &str| Value::Text(text.to_owned());
        let kind = match self.dtype {
            DType::Fp32 => "FloatStorage",
            DType::Fp16 => "HalfStorage",
            DType::Bf16 => "BFloat16Storage",
        };
        let mut state = Vec::new();
        let mut params = [Vec::new(), Vec::new()];
        for (index, tensor) in self.list.in_flat_order().enumerate() {
            let mut stride = vec![1; tensor.shape.len()];
            for index in (1..stride.len()).rev() {
                stride[index - 1] = stride[index] * tensor.shape[index];
            }
            let moment = |key: usize| {
                Value::Tensor(Tensor {
                    kind: kind.to_owned(),
                    key: key.to_string(),
                    offset: 0,
                    shape: tensor.shape.clone(),
                    stride: stride.clone(),
                })
            };
            let step = Value::Tensor(Tensor {
                kind: "FloatStorage".to_owned(),
                key: (3 * index).to_string(),
                offset: 0,
                shape: Vec::new(),
                stride: Vec::new(),
            });
            let entry = Value::Dict(vec![
                (text("step"), step),
                (text("exp_avg"), moment(3 * index + 1)),
                (text("exp_avg_sq"), moment(3 * index + 2)),
            ]);
            state.push((Value::Int(index as i64), entry));
            params[usize::from(!tensor.decay)].push(Value::Int(index as i64));
        }
        let groups = self.groups.iter().zip(params).map(|(hyper, params)| {
            let betas = vec![Value::Float(hyper.beta1), Value::Float(hyper.beta2)];
            Value::Dict(vec![
                (text("lr"), Value::Float(hyper.lr)),
                (text("betas"), Value::Tuple(betas)),
                (text("eps"), Value::Float(hyper.eps)),
                (text("weight_decay"), Value::Float(hyper.weight_decay)),
                (text("amsgrad"), Value::Bool(false)),
                (text("maximize"), Value::Bool(false)),
                (text("foreach"), Value::None),
                (text("capturable"), Value::Bool(false)),
                (text("differentiable"), Value::Bool(false)),
                (text("fused"), Value::None),
                (text("decoupled_weight_decay"), Value::Bool(self.decoupled)),
                (text("params"), Value::List(params)),
            ])
        });
        Value::Dict(vec![
            (text("state"), Value::Dict(state)),
            (text("param_groups"), Value::List(groups.collect())),
        ])
    }

    fn safetensors(&self, path: &Path, mut file: File) -> Result<()> {
        let io = |error: std::io::Error| failed(path, &error);
        let mut table = Table::default();
        table.add(safetensors_file::STEP.to_owned(), &[], DType::Fp32);
        for tensor in self.list.tensors() {
            for variable in BOTH {
                let name = safetensors_file::name(variable.name(), &tensor.name);
                table.add(name, &tensor.shape, self.dtype);
            }
        }
        file.write_all(&table.head()?).map_err(io)?;
        file.write_all(&(self.step as f32).to_le_bytes()).map_err(io)?;
        for tensor in self.list.tensors() {
            for variable in BOTH {
                self.pieces(tensor, variable, &mut |bytes| file.write_all(bytes).map_err(io))?;
            }
        }
        file.sync_all().map_err(io)
    }
}
