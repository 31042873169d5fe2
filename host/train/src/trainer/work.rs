//! The model's part of a step's task graph.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

use nearfield_runtime::kernels::{self, GradientRef, GradientScan, Isa};
use nearfield_runtime::types::DType;
use nearfield_techniques::offload::ModelWork;
use nearfield_techniques::offload::plan::Action;
use parking_lot::Mutex;
use tch::{Device, Tensor};

use crate::error::{Error, Result};
use crate::model::{Model, TiedGradient, Tokens, Unit, UnitWeights, WeightSource, read_out};
use crate::scaler::combined_unscale;

/// Gradients of a micro-batch that was not the last of its step, summed in fp32.
pub(super) type Accumulators = Mutex<Vec<f32>>;

/// One micro-batch on its way through the graph.
pub(super) struct MicroBatch<'a> {
    model: &'a Model,
    /// Loss scale over micro-batches of a step.
    factor: f64,
    gradient_dtype: DType,
    accumulators: Option<&'a Accumulators>,
    tokens: Mutex<Tokens>,
    units: Vec<UnitState>,
    /// Output of the last unit that ran forward.
    hidden: Mutex<Option<Tensor>>,
    /// Gradient of the input of the last unit that ran backward.
    gradient: Mutex<Option<Tensor>>,
    tied: Mutex<TiedGradient>,
    loss: Mutex<f64>,
    scans: Mutex<BTreeMap<u64, GradientScan>>,
    /// Loss scale, and the largest norm that is not clipped.
    expected: (f64, f64),
    /// What was scanned so far, in the order in which it came.
    so_far: Mutex<GradientScan>,
    overturned: AtomicBool,
}

#[derive(Default)]
struct UnitState {
    weights: Mutex<Option<UnitWeights>>,
    /// Output on the compute device, to be saved.
    output: Mutex<Option<Tensor>>,
    /// Its sizes, where its bytes go elsewhere.
    sizes: Mutex<Vec<i64>>,
    /// Output in host memory.
    saved: Mutex<Option<Tensor>>,
    /// Output on the compute device again, for the next unit's backward pass.
    loaded: Mutex<Option<Tensor>>,
    /// Gradients on the compute device.
    gradients: Mutex<Vec<(u64, Tensor)>>,
    /// The same in host memory.
    host: Mutex<Option<HostGradients>>,
}

/// Gradients of a unit in host memory, until they are in the staging buffers.
struct HostGradients {
    /// Each with its first element in the flat vector.
    tensors: Vec<(u64, HostGradient)>,
    /// Elements that were not handed over yet.
    left: u64,
}

/// A tensor's gradient in host memory, in the format that goes to the drive.
enum HostGradient {
    Full(Vec<f32>),
    Half(Vec<u16>),
}

impl HostGradient {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Full(elements) => bytemuck::cast_slice(elements),
            Self::Half(bits) => bytemuck::cast_slice(bits),
        }
    }
}

impl<'a> MicroBatch<'a> {
    pub fn new(
        model: &'a Model,
        tokens: Tokens,
        factor: f64,
        gradient_dtype: DType,
        accumulators: Option<&'a Accumulators>,
    ) -> Self {
        Self {
            model,
            factor,
            gradient_dtype,
            accumulators,
            tokens: Mutex::new(tokens),
            units: model.plans().iter().map(|_| UnitState::default()).collect(),
            hidden: Mutex::new(None),
            gradient: Mutex::new(None),
            tied: Mutex::default(),
            loss: Mutex::new(0.0),
            scans: Mutex::default(),
            expected: (1.0, 0.0),
            so_far: Mutex::default(),
            overturned: AtomicBool::new(false),
        }
    }

    /// Notices when gradients, which carry `loss_scale`, overflow or will be clipped to norm `clip`; 0 for no clipping.
    pub fn expecting(self, loss_scale: f64, clip: f64) -> Self {
        Self { expected: (loss_scale, clip), ..self }
    }

    /// Adds to what was seen so far, and notices when the norm is too large already.
    fn watch(&self, scan: GradientScan) {
        /// The sum is made in another order than the one that counts.
        const MARGIN: f64 = 1.0 - 1e-9;
        let mut so_far = self.so_far.lock();
        so_far.overflow |= scan.overflow;
        so_far.sum_squares += scan.sum_squares;
        let (scale, clip) = self.expected;
        let norm = so_far.sum_squares.sqrt() * MARGIN;
        if so_far.overflow
            || combined_unscale(scale, norm, clip) != combined_unscale(scale, 0.0, 0.0)
        {
            self.overturned.store(true, Ordering::Release);
        }
    }

    /// The mean loss of the micro-batch, without the loss scale.
    pub fn loss(&self) -> f64 {
        *self.loss.lock()
    }

    /// Overflow flag and squared norm of the whole gradient as sent to the drives, added up in flat order.
    pub fn scan(&self) -> GradientScan {
        self.scans.lock().values().fold(GradientScan::default(), |sum, scan| GradientScan {
            overflow: sum.overflow | scan.overflow,
            sum_squares: sum.sum_squares + scan.sum_squares,
        })
    }

    /// The micro-batch, for use by one task.
    fn tokens(&self) -> Tokens {
        self.tokens.lock().shallow_clone()
    }

    fn unit(&self, unit: usize) -> Unit {
        self.model.plans()[unit].unit
    }

    fn act(&self, action: Action) -> Result<()> {
        match action {
            Action::Forward { unit } => self.forward(unit),
            Action::SaveActivation { unit, .. } => {
                let output = take(&self.units[unit].output, "output")?;
                *self.units[unit].saved.lock() = Some(moved(&output, Device::Cpu)?);
                Ok(())
            }
            Action::LoadActivation { unit, .. } => {
                let saved = take(&self.units[unit].saved, "saved output")?;
                *self.units[unit].loaded.lock() = Some(moved(&saved, self.model.device())?);
                Ok(())
            }
            Action::Backward { unit } => self.backward(unit),
            Action::Accumulate { unit } => self.accumulate(unit),
            other => Err(Error::Invalid(format!("{other:?} is not the model's"))),
        }
    }

    fn forward(&self, unit: usize) -> Result<()> {
        let weights = take(&self.units[unit].weights, "weights")?;
        let input = match unit {
            0 => self.tokens.lock().inputs.shallow_clone(),
            _ => take(&self.hidden, "input")?,
        };
        let documents = self.tokens().documents;
        let output = self.model.forward(&weights, &input, documents.as_ref())?;
        *self.units[unit].output.lock() = Some(output.shallow_clone());
        *self.hidden.lock() = Some(output);
        Ok(())
    }

    fn backward(&self, unit: usize) -> Result<()> {
        let mut gradients = Vec::new();
        let mut sink = |first: u64, gradient: &Tensor| {
            gradients.push((first, gradient.shallow_clone()));
            Ok(())
        };
        let input = || {
            let before = &self.units[unit - 1];
            // Where outputs stay on the compute device, nothing was loaded.
            let loaded = before.loaded.lock().take().or_else(|| before.output.lock().take());
            loaded.ok_or_else(|| missing("input"))
        };
        match self.unit(unit) {
            Unit::Head => {
                let weights = take(&self.units[unit].weights, "weights")?;
                let (loss, gradient) = self.model.backward_head(
                    &weights,
                    &input()?,
                    &self.tokens().targets,
                    self.factor,
                    &mut self.tied.lock(),
                    &mut sink,
                )?;
                *self.loss.lock() = loss;
                *self.gradient.lock() = Some(gradient);
            }
            Unit::Block(_) => {
                let weights = take(&self.units[unit].weights, "weights")?;
                let output = take(&self.gradient, "gradient")?;
                let documents = self.tokens().documents;
                let gradient = self.model.backward_block(
                    &weights,
                    &input()?,
                    &output,
                    documents.as_ref(),
                    &mut sink,
                )?;
                *self.gradient.lock() = Some(gradient);
            }
            Unit::Embed => {
                let output = take(&self.gradient, "gradient")?;
                let tokens = self.tokens();
                self.model.backward_embed(&tokens, &output, &mut self.tied.lock(), &mut sink)?;
            }
        }
        *self.units[unit].gradients.lock() = gradients;
        Ok(())
    }

    fn accumulate(&self, unit: usize) -> Result<()> {
        let accumulators = self
            .accumulators
            .ok_or_else(|| Error::Invalid("there are no accumulators in this run".into()))?;
        let gradients = std::mem::take(&mut *self.units[unit].gradients.lock());
        let mut accumulators = accumulators.lock();
        for (first, gradient) in gradients {
            let mut fresh = vec![0.0_f32; gradient.numel()];
            read_out(&gradient, DType::Fp32, bytemuck::cast_slice_mut(&mut fresh))?;
            let first = first as usize;
            for (sum, fresh) in accumulators[first..first + fresh.len()].iter_mut().zip(&fresh) {
                *sum += fresh;
            }
        }
        Ok(())
    }

    /// Brings a unit's gradients to host memory, in the format that goes to the drive, and scans them.
    fn fetch(&self, unit: usize) -> Result<Vec<(u64, HostGradient)>> {
        let gradients = std::mem::take(&mut *self.units[unit].gradients.lock());
        let mut host = Vec::with_capacity(gradients.len());
        for (first, gradient) in gradients {
            let fetched = self.fetch_one(first, &gradient)?;
            let reference = match (&fetched, self.gradient_dtype) {
                (HostGradient::Full(elements), _) => GradientRef::Fp32(elements),
                (HostGradient::Half(bits), DType::Bf16) => GradientRef::Bf16(bits),
                (HostGradient::Half(bits), _) => GradientRef::Fp16(bits),
            };
            let scan = kernels::scan_gradient(Isa::detect(), reference);
            self.watch(scan);
            self.scans.lock().insert(first, scan);
            host.push((first, fetched));
        }
        Ok(host)
    }

    fn fetch_one(&self, first: u64, gradient: &Tensor) -> Result<HostGradient> {
        let elements = gradient.numel();
        let dtype = self.gradient_dtype;
        if dtype != DType::Fp32 && self.accumulators.is_none() {
            let mut bits = vec![0_u16; elements];
            read_out(gradient, dtype, bytemuck::cast_slice_mut(&mut bits))?;
            return Ok(HostGradient::Half(bits));
        }
        let mut full = vec![0.0_f32; elements];
        read_out(gradient, DType::Fp32, bytemuck::cast_slice_mut(&mut full))?;
        if let Some(accumulators) = self.accumulators {
            let mut accumulators = accumulators.lock();
            let sums = &mut accumulators[first as usize..first as usize + elements];
            for (fresh, sum) in full.iter_mut().zip(sums) {
                *fresh += std::mem::take(sum);
            }
        }
        if dtype == DType::Fp32 {
            return Ok(HostGradient::Full(full));
        }
        let mut bits = vec![0_u16; elements];
        match dtype {
            DType::Bf16 => kernels::f32_to_bf16(&full, &mut bits),
            _ => kernels::f32_to_f16(&full, &mut bits),
        }
        Ok(HostGradient::Half(bits))
    }
}

impl ModelWork for MicroBatch<'_> {
    fn compute(&self, action: Action) -> nearfield_runtime::Result<()> {
        Ok(self.act(action)?)
    }

    fn load(
        &self,
        unit: usize,
        _: bool,
        weights: &dyn WeightSource,
    ) -> nearfield_runtime::Result<()> {
        let loaded = self.model.load(self.unit(unit), weights)?;
        *self.units[unit].weights.lock() = Some(loaded);
        Ok(())
    }

    fn save_output(&self, unit: usize, to: &mut [u8]) -> nearfield_runtime::Result<()> {
        let output = take(&self.units[unit].output, "output")?;
        *self.units[unit].sizes.lock() = output.size();
        Ok(read_out(&output, self.model.dtype(), to)?)
    }

    fn load_output(&self, unit: usize, from: &[u8]) -> nearfield_runtime::Result<()> {
        let sizes = self.units[unit].sizes.lock().clone();
        *self.units[unit].loaded.lock() = Some(self.model.upload_output(from, &sizes)?);
        Ok(())
    }

    fn offload(
        &self,
        unit: usize,
        start: u64,
        elements: u64,
        sink: &mut dyn FnMut(u64, &[u8]) -> nearfield_runtime::Result<()>,
    ) -> nearfield_runtime::Result<()> {
        let mut host = self.units[unit].host.lock();
        let width = self.gradient_dtype.bytes();
        let gradients = match &mut *host {
            Some(gradients) => gradients,
            None => {
                let tensors = self.fetch(unit)?;
                let bytes: usize = tensors.iter().map(|(_, gradient)| gradient.bytes().len()).sum();
                host.insert(HostGradients { tensors, left: bytes as u64 / width })
            }
        };
        for (first, gradient) in &gradients.tensors {
            let bytes = gradient.bytes();
            let end = first + bytes.len() as u64 / width;
            let (from, to) = ((*first).max(start), end.min(start + elements));
            if from < to {
                let range = ((from - first) * width) as usize..((to - first) * width) as usize;
                sink(from, &bytes[range])?;
                gradients.left -= to - from;
            }
        }
        if gradients.left == 0 {
            // The memory is free for the next unit's.
            *host = None;
        }
        Ok(())
    }

    fn overturned(&self) -> bool {
        self.overturned.load(Ordering::Acquire)
    }
}

fn take<T>(slot: &Mutex<Option<T>>, what: &str) -> Result<T> {
    slot.lock().take().ok_or_else(|| missing(what))
}

fn missing(what: &str) -> Error {
    Error::Invalid(format!("a unit's {what} is missing; this is a defect of the task graph"))
}

fn moved(tensor: &Tensor, device: Device) -> Result<Tensor> {
    tensor.f_to(device).map_err(|error| Error::torch("copy of an activation", &error))
}
