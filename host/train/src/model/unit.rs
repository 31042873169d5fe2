//! Forward and backward passes of one unit at a time on the compute device.
//!
//! Forward passes record no tape and keep nothing. A backward pass gets the unit's input again, recomputes the unit with a tape and
//! gives the gradient of the input and those of the unit's tensors; so the device holds one unit, whatever the model's depth.

use nearfield_runtime::types::DType;
use tch::{Device, Kind, TchError, Tensor};

use super::device::kind;
use super::math::{Math, leaf, needs_explicit_attention, pull_back};
use super::plan::{Unit, UnitPlan};
use super::shape::Shape;
use super::tensors::TensorList;
use crate::data::Batch;
use crate::error::{Error, Result};

/// Most logits that are computed at once; more tokens are taken in pieces. 2^25 fp32 logits are 128 MiB.
const LOGITS_MAX: u64 = 1 << 25;

/// The flat vector of working weights in host memory.
pub trait WeightSource {
    /// Copies the elements from `first_element` on, in the working number format, until `out` is full. The range lies in the vector.
    fn copy_out(&self, first_element: u64, out: &mut [u8]);
}

/// Receives gradients as they become complete: first element in the flat vector, and the gradient in the working number format, with
/// the tensor's shape, contiguous, on the compute device. The order is fixed: within a unit ascending.
pub type GradientSink<'a> = dyn FnMut(u64, &Tensor) -> Result<()> + 'a;

/// Weights of one unit on the compute device.
#[derive(Debug)]
pub struct UnitWeights {
    unit: Unit,
    /// In the order of [`UnitPlan::tensors`].
    tensors: Vec<Tensor>,
}

impl UnitWeights {
    /// The unit.
    pub fn unit(&self) -> Unit {
        self.unit
    }
}

/// The head's share of the gradient of a tied embedding: it stays on the compute device, in fp32, from the head's backward pass to the
/// embedding's. One for each micro-batch in flight.
#[derive(Debug, Default)]
pub struct TiedGradient(Option<Tensor>);

/// A model's arithmetic; holds no weights.
#[derive(Debug)]
pub struct Model {
    list: TensorList,
    plans: Vec<UnitPlan>,
    dtype: DType,
    device: Device,
    math: Math,
    logits_max: u64,
}

impl Model {
    /// The model of `shape`, computing on `device` with weights and activations in `dtype`.
    pub fn new(shape: Shape, dtype: DType, device: Device) -> Result<Self> {
        let list = TensorList::new(shape)?;
        Ok(Self {
            plans: UnitPlan::all(&list),
            list,
            dtype,
            device,
            math: Math {
                heads: i64::from(shape.heads),
                hidden: i64::from(shape.hidden),
                explicit_attention: needs_explicit_attention(device),
            },
            logits_max: LOGITS_MAX,
        })
    }

    /// Its tensors and their places in the flat vector.
    pub fn tensors(&self) -> &TensorList {
        &self.list
    }

    /// Its units in forward order.
    pub fn plans(&self) -> &[UnitPlan] {
        &self.plans
    }

    /// The working number format.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The compute device.
    pub fn device(&self) -> Device {
        self.device
    }

    /// The plan of `unit`.
    fn plan(&self, unit: Unit) -> &UnitPlan {
        let index = match unit {
            Unit::Embed => 0,
            Unit::Block(layer) => 1 + layer as usize,
            Unit::Head => self.plans.len() - 1,
        };
        &self.plans[index]
    }

    /// Copies a unit's weights to the compute device, one transfer for each range of [`UnitPlan::reads`].
    ///
    /// # Panics
    /// When the model has no such block.
    pub fn load(&self, unit: Unit, source: &dyn WeightSource) -> Result<UnitWeights> {
        let load = || {
            let plan = self.plan(unit);
            let mut tensors = Vec::with_capacity(plan.tensors.len());
            let mut indices = plan.tensors.iter().peekable();
            for range in &plan.reads {
                let elements = range.end - range.start;
                let flat = self.upload(source, range.start, elements)?;
                while let Some(&&index) = indices.peek() {
                    let info = &self.list.tensors()[index];
                    if info.flat_start >= range.end {
                        break;
                    }
                    let start = (info.flat_start - range.start) as i64;
                    let sizes: Vec<i64> = info.shape.iter().map(|&size| size as i64).collect();
                    let part = flat.f_narrow(0, start, info.elements() as i64)?;
                    tensors.push(part.f_view(&sizes[..])?);
                    indices.next();
                }
            }
            Ok(tensors)
        };
        let tensors = load().map_err(|error| failed("load", unit, &error))?;
        Ok(UnitWeights { unit, tensors })
    }

    /// `elements` of the flat vector on the compute device.
    fn upload(
        &self,
        source: &dyn WeightSource,
        first: u64,
        elements: u64,
    ) -> Result<Tensor, TchError> {
        let host = Tensor::f_zeros([elements as i64], (kind(self.dtype), Device::Cpu))?;
        let bytes = (elements * self.dtype.bytes()) as usize;
        // SAFETY: `host` was just made: its storage is `bytes` initialised bytes, contiguous, owned by this tensor alone, and it outlives
        // the slice. Every bit pattern is a valid element.
        let out = unsafe { std::slice::from_raw_parts_mut(host.data_ptr().cast::<u8>(), bytes) };
        source.copy_out(first, out);
        host.f_to_device(self.device)
    }

    /// Inputs and targets of a batch, `[sequences, seq]` of i64 each, on the compute device.
    pub fn batch(&self, batch: &Batch) -> Result<(Tensor, Tensor)> {
        let tokens = self.tokens(&batch.tokens, batch.sequences)?;
        let length = tokens.size()[1] - 1;
        let part = |start| tokens.f_narrow(1, start, length)?.f_contiguous();
        part(0)
            .and_then(|inputs| Ok((inputs, part(1)?)))
            .map_err(|error| Error::torch("batch", &error))
    }

    /// `[sequences, tokens.len() / sequences]` tokens on the compute device.
    pub(crate) fn tokens(&self, tokens: &[i64], sequences: u32) -> Result<Tensor> {
        let vocab = i64::from(self.list.shape().vocab);
        if let Some(token) = tokens.iter().find(|token| !(0..vocab).contains(*token)) {
            return Err(Error::Invalid(format!(
                "token {token} is not in the vocabulary of {vocab}; use --vocab 256 or more for text"
            )));
        }
        Tensor::f_from_slice(tokens)
            .and_then(|flat| flat.f_view([i64::from(sequences), -1])?.f_to(self.device))
            .map_err(|error| Error::torch("batch", &error))
    }

    /// Runs `input` (as for the embedding) through every unit but the head, without a tape; returns the head's weights
    /// and its input.
    pub(crate) fn forward_to_head(
        &self,
        source: &dyn WeightSource,
        input: Tensor,
    ) -> Result<(UnitWeights, Tensor)> {
        let mut hidden = input;
        for plan in &self.plans[..self.plans.len() - 1] {
            hidden = self.forward(&self.load(plan.unit, source)?, &hidden)?;
        }
        Ok((self.load(Unit::Head, source)?, hidden))
    }

    /// Output of the embedding (`input`: `[batch, tokens]` of i64) or of a block (`input`: `[batch, tokens, hidden]`), without a tape.
    pub fn forward(&self, weights: &UnitWeights, input: &Tensor) -> Result<Tensor> {
        let _guard = tch::no_grad_guard();
        let output = match weights.unit {
            Unit::Embed => self.math.embed(&weights.tensors, input),
            Unit::Block(_) => self.math.block(&weights.tensors, input),
            Unit::Head => return Err(misuse("the head has a loss or logits, no output")),
        };
        output.map_err(|error| failed("forward pass", weights.unit, &error))
    }

    /// Mean cross entropy over all tokens, without a tape. `hidden`: output of the last block; `targets`: `[batch, tokens]`.
    pub fn loss(&self, head: &UnitWeights, hidden: &Tensor, targets: &Tensor) -> Result<f64> {
        let (table, gain, shift) = head_tensors(head)?;
        let _guard = tch::no_grad_guard();
        let compute = || {
            let normed = self.math.norm(hidden, gain, shift)?;
            let (normed, targets) = self.rows(&normed, targets)?;
            let mut sum = 0.0;
            for (start, count) in self.pieces(targets.size1()?) {
                let rows = normed.f_narrow(0, start, count)?;
                let piece =
                    self.math.loss_sum(table, &rows, &targets.f_narrow(0, start, count)?)?;
                sum += piece.f_double_value(&[])?;
            }
            Ok(sum / targets.size1()? as f64)
        };
        compute().map_err(|error| failed("loss", Unit::Head, &error))
    }

    /// fp32 logits `[batch, vocab]` of the token after the last one, without a tape.
    pub fn next_token_logits(&self, head: &UnitWeights, hidden: &Tensor) -> Result<Tensor> {
        let (table, gain, shift) = head_tensors(head)?;
        let _guard = tch::no_grad_guard();
        hidden
            .f_select(1, -1)
            .and_then(|last| self.math.norm(&last, gain, shift))
            .and_then(|normed| self.math.logits(table, &normed))
            .map_err(|error| failed("logits", Unit::Head, &error))
    }

    /// Loss and backward pass of the head: the mean cross entropy, multiplied by `factor` (loss scale / micro-batches in a step) before
    /// it is differentiated.
    ///
    /// Returns the loss itself and the gradient of `hidden`. A tied table's gradient goes to `tied`, all others to `sink`.
    pub fn backward_head(
        &self,
        head: &UnitWeights,
        hidden: &Tensor,
        targets: &Tensor,
        factor: f64,
        tied: &mut TiedGradient,
        sink: &mut GradientSink<'_>,
    ) -> Result<(f64, Tensor)> {
        let (table, gain, shift) = head_tensors(head)?;
        let (loss, grad_table, mut rest) =
            tch::with_grad(|| self.head_gradients(table, gain, shift, hidden, targets, factor))
                .map_err(|error| failed("backward pass", Unit::Head, &error))?;
        let grad_hidden = rest.remove(0);
        let mut gradients = Vec::with_capacity(3);
        if self.list.shape().tied {
            tied.0 = Some(grad_table);
        } else {
            gradients.push(self.rounded(&grad_table, Unit::Head)?);
        }
        gradients.extend(rest);
        let skipped = 3 - gradients.len();
        self.deliver(Unit::Head, skipped, &gradients, sink)?;
        Ok((loss, grad_hidden))
    }

    /// Loss, gradient of the table in fp32, gradients of hidden, gain and shift.
    fn head_gradients(
        &self,
        table: &Tensor,
        gain: &Tensor,
        shift: &Tensor,
        hidden: &Tensor,
        targets: &Tensor,
        factor: f64,
    ) -> Result<(f64, Tensor, Vec<Tensor>), TchError> {
        let leaves = [leaf(hidden)?, leaf(gain)?, leaf(shift)?];
        let normed = self.math.norm(&leaves[0], &leaves[1], &leaves[2])?;
        let (rows, targets) = self.rows(&normed.f_detach()?, targets)?;
        let count_all = targets.size1()?;
        let mut sum = 0.0;
        let mut grad_table: Option<Tensor> = None;
        let mut grad_rows = Vec::new();
        for (start, count) in self.pieces(count_all) {
            let inputs = [leaf(&rows.f_narrow(0, start, count)?)?, leaf(table)?];
            let targets = targets.f_narrow(0, start, count)?;
            let piece = self.math.loss_sum(&inputs[1], &inputs[0], &targets)?;
            let scaled = piece.f_mul_scalar(factor / count_all as f64)?;
            let mut gradients = Tensor::f_run_backward(&[scaled], &inputs, false, false)?;
            sum += piece.f_double_value(&[])?;
            // Summed in fp32: a 16-bit sum over pieces, or with the embedding's share, would round more than one product does.
            let share = gradients.remove(1).f_to_kind(Kind::Float)?;
            match &mut grad_table {
                Some(total) => drop(total.f_add_(&share)?),
                None => grad_table = Some(share),
            }
            grad_rows.append(&mut gradients);
        }
        let grad_table = grad_table.ok_or_else(|| TchError::Shape("an empty batch".into()))?;
        let grad_normed = Tensor::f_cat(&grad_rows, 0)?.f_view(&normed.size()[..])?;
        let rest = pull_back(&normed, &grad_normed, &leaves)?;
        Ok((sum / count_all as f64, grad_table, rest))
    }

    /// Backward pass of a block: recomputes it from `input`, gives its tensors' gradients to `sink` and returns that of `input`.
    pub fn backward_block(
        &self,
        weights: &UnitWeights,
        input: &Tensor,
        grad_output: &Tensor,
        sink: &mut GradientSink<'_>,
    ) -> Result<Tensor> {
        let unit = weights.unit;
        if !matches!(unit, Unit::Block(_)) {
            return Err(misuse("backward_block is for blocks"));
        }
        let mut gradients = tch::with_grad(|| {
            let mut leaves = weights.tensors.iter().map(leaf).collect::<Result<Vec<_>, _>>()?;
            leaves.push(leaf(input)?);
            let (tensors, input) = leaves.split_at(weights.tensors.len());
            let output = self.math.block(tensors, &input[0])?;
            pull_back(&output, grad_output, &leaves)
        })
        .map_err(|error| failed("backward pass", unit, &error))?;
        let grad_input = gradients.pop().ok_or_else(|| misuse("no gradient"))?;
        self.deliver(unit, 0, &gradients, sink)?;
        Ok(grad_input)
    }

    /// Backward pass of the embedding; it needs no weights. With tied embeddings `tied` holds the head's share, and is emptied.
    pub fn backward_embed(
        &self,
        inputs: &Tensor,
        grad_output: &Tensor,
        tied: &mut TiedGradient,
        sink: &mut GradientSink<'_>,
    ) -> Result<()> {
        let shape = self.list.shape();
        let head_share = tied.0.take();
        if head_share.is_some() != shape.tied {
            return Err(misuse("the head's share of a tied embedding must be there exactly once"));
        }
        let _guard = tch::no_grad_guard();
        let compute = || {
            // In fp32: a frequent token sums thousands of rows, which a 16-bit sum would not follow.
            let grad = grad_output.f_to_kind(Kind::Float)?;
            let vocab = i64::from(shape.vocab);
            let table = Tensor::f_embedding_dense_backward(&grad, inputs, vocab, -1, false)?;
            let table = match head_share {
                Some(mut share) => share.f_add_(&table)?,
                None => table,
            };
            let used = grad.f_sum_dim_intlist([0i64].as_slice(), false, None::<Kind>)?;
            let unused = i64::from(shape.seq) - used.size()[0];
            let positions = if unused == 0 {
                used
            } else {
                let sizes = [unused, i64::from(shape.hidden)];
                let zeros = Tensor::f_zeros(sizes, (Kind::Float, self.device))?;
                Tensor::f_cat(&[used, zeros], 0)?
            };
            Ok((table, positions))
        };
        let (table, positions) =
            compute().map_err(|error| failed("backward pass", Unit::Embed, &error))?;
        let gradients =
            [self.rounded(&table, Unit::Embed)?, self.rounded(&positions, Unit::Embed)?];
        self.deliver(Unit::Embed, 0, &gradients, sink)
    }

    /// Hands the gradients of a unit's tensors, without the first `skipped` ones, to `sink` in flat order.
    fn deliver(
        &self,
        unit: Unit,
        skipped: usize,
        gradients: &[Tensor],
        sink: &mut GradientSink<'_>,
    ) -> Result<()> {
        for (&index, gradient) in self.plan(unit).tensors[skipped..].iter().zip(gradients) {
            let gradient =
                gradient.f_contiguous().map_err(|error| failed("backward pass", unit, &error))?;
            sink(self.list.tensors()[index].flat_start, &gradient)?;
        }
        Ok(())
    }

    /// In the working number format.
    fn rounded(&self, tensor: &Tensor, unit: Unit) -> Result<Tensor> {
        tensor.f_to_kind(kind(self.dtype)).map_err(|error| failed("backward pass", unit, &error))
    }

    /// `[batch, tokens, hidden]` and `[batch, tokens]` as rows.
    fn rows(&self, normed: &Tensor, targets: &Tensor) -> Result<(Tensor, Tensor), TchError> {
        Ok((normed.f_view([-1, self.math.hidden])?, targets.f_reshape([-1])?))
    }

    /// (start, count) of pieces of `rows` rows whose logits are at most `logits_max`.
    fn pieces(&self, rows: i64) -> impl Iterator<Item = (i64, i64)> + use<> {
        let most = (self.logits_max / u64::from(self.list.shape().vocab)).max(1) as i64;
        (0..rows).step_by(most as usize).map(move |start| (start, most.min(rows - start)))
    }
}

/// Table, gain and shift of the head.
fn head_tensors(weights: &UnitWeights) -> Result<(&Tensor, &Tensor, &Tensor)> {
    match (&weights.unit, &weights.tensors[..]) {
        (Unit::Head, [table, gain, shift]) => Ok((table, gain, shift)),
        _ => Err(misuse("the head's weights are needed")),
    }
}

fn failed(what: &str, unit: Unit, error: &TchError) -> Error {
    Error::torch(format!("{what} of {unit}"), error)
}

/// A call that does not fit the model.
fn misuse(what: &str) -> Error {
    Error::Invalid(format!("{what}; this is a defect of the program"))
}

#[cfg(test)]
#[path = "unit_tests.rs"]
mod tests;
