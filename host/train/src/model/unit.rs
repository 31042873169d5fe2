//! Forward and backward passes of one unit at a time on the compute device.
//!
//! Forward passes record no tape and keep nothing. A backward pass gets the unit's input again, recomputes the unit with a tape and
//! gives the gradient of the input and those of the unit's tensors; so the device holds one unit, whatever the model's depth.

use nearfield_runtime::types::DType;
use nearfield_techniques::offload::WeightSource;
use tch::{Device, Kind, TchError, Tensor};

use super::architecture::{Architecture, RopeScaling};
use super::device::kind;
use super::documents::Documents;
use super::math::{IGNORED, Math, Weights, leaf, needs_explicit_attention, pull_back};
use super::plan::{Unit, UnitPlan};
use super::rope::Rotation;
use super::tensors::{Role, TensorList};
use crate::data::Batch;
use crate::error::{Error, Result};

/// Most logits that are computed at once; more tokens are taken in pieces. 2^25 fp32 logits are 128 MiB.
const LOGITS_MAX: u64 = 1 << 25;

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

/// A micro-batch on the compute device.
#[derive(Debug)]
pub struct Tokens {
    /// `[sequences, tokens]` of i64.
    pub inputs: Tensor,
    /// The token after each, `[sequences, tokens]` of i64; -100 where it does not count.
    pub targets: Tensor,
    /// Documents that share sequences, where there are any.
    pub documents: Option<Documents>,
    /// Targets that count.
    pub counted: u64,
}

impl Tokens {
    /// The same tensors again.
    pub fn shallow_clone(&self) -> Self {
        Self {
            inputs: self.inputs.shallow_clone(),
            targets: self.targets.shallow_clone(),
            documents: self.documents.as_ref().map(Documents::shallow_clone),
            counted: self.counted,
        }
    }
}

/// A model's arithmetic; holds no weights.
#[derive(Debug)]
pub struct Model {
    list: TensorList,
    seq: u32,
    plans: Vec<UnitPlan>,
    dtype: DType,
    device: Device,
    math: Math,
    logits_max: u64,
}

impl Model {
    /// The model, computing on `device` with sequences of up to `seq` tokens, weights and activations in `dtype`.
    ///
    /// # Errors
    /// Sizes that form no model, and more tokens than it has positions.
    pub fn new(
        architecture: impl Into<Architecture>,
        seq: u32,
        dtype: DType,
        device: Device,
    ) -> Result<Self> {
        let list = TensorList::new(architecture)?;
        let architecture = list.architecture().clone();
        let stretches = architecture
            .rope
            .is_some_and(|rope| matches!(rope.scaling, RopeScaling::Dynamic { .. }));
        if seq == 0 || (seq > architecture.positions && !stretches) {
            return Err(Error::Invalid(format!(
                "--seq {seq} is not between 1 and the model's {} positions",
                architecture.positions
            )));
        }
        let rotation = architecture.rope.as_ref().map(|rope| {
            let trained = architecture.positions;
            Rotation::new(rope, architecture.head_width, seq, trained, kind(dtype), device)
        });
        let rotation =
            rotation.transpose().map_err(|error| Error::torch("rotary positions", &error))?;
        Ok(Self {
            plans: UnitPlan::all(&list),
            list,
            seq,
            dtype,
            device,
            math: Math {
                architecture,
                rotation,
                explicit_attention: needs_explicit_attention(device),
            },
            logits_max: LOGITS_MAX,
        })
    }

    /// Its architecture.
    pub fn architecture(&self) -> &Architecture {
        self.list.architecture()
    }

    /// Most tokens of a sequence.
    pub fn seq(&self) -> u32 {
        self.seq
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
        let torch = |error| failed("load", unit, &error);
        let load = || -> Result<Vec<Tensor>> {
            let plan = self.plan(unit);
            let mut tensors = Vec::with_capacity(plan.tensors.len());
            let mut indices = plan.tensors.iter().peekable();
            for range in &plan.reads {
                let elements = range.end - range.start;
                let flat = self.upload(unit, source, range.start, elements)?;
                while let Some(&&index) = indices.peek() {
                    let info = &self.list.tensors()[index];
                    if info.flat_start >= range.end {
                        break;
                    }
                    let start = (info.flat_start - range.start) as i64;
                    let sizes: Vec<i64> = info.shape.iter().map(|&size| size as i64).collect();
                    let part = flat.f_narrow(0, start, info.elements() as i64);
                    tensors.push(part.and_then(|part| part.f_view(&sizes[..])).map_err(torch)?);
                    indices.next();
                }
            }
            Ok(tensors)
        };
        Ok(UnitWeights { unit, tensors: load()? })
    }

    /// `elements` of the flat vector on the compute device.
    fn upload(
        &self,
        unit: Unit,
        source: &dyn WeightSource,
        first: u64,
        elements: u64,
    ) -> Result<Tensor> {
        let torch = |error| failed("load", unit, &error);
        let host = Tensor::f_zeros([elements as i64], (kind(self.dtype), Device::Cpu));
        let host = host.map_err(torch)?;
        let bytes = (elements * self.dtype.bytes()) as usize;
        // SAFETY: `host` was just made: its storage is `bytes` initialised bytes, contiguous, owned by this tensor alone, and it outlives
        // the slice. Every bit pattern is a valid element.
        let out = unsafe { std::slice::from_raw_parts_mut(host.data_ptr().cast::<u8>(), bytes) };
        source.copy_out(first, out)?;
        host.f_to_device(self.device).map_err(torch)
    }

    /// A unit's output on the compute device again, from its bytes in the working format.
    pub(crate) fn upload_output(&self, bytes: &[u8], sizes: &[i64]) -> Result<Tensor> {
        let torch = |error| Error::torch("copy of an activation", &error);
        Tensor::f_from_data_size(bytes, sizes, kind(self.dtype))
            .and_then(|tensor| tensor.f_to_device(self.device))
            .map_err(torch)
    }

    /// A batch on the compute device.
    ///
    /// # Errors
    /// Tokens that are not in the vocabulary.
    pub fn batch(&self, batch: &Batch) -> Result<Tokens> {
        let torch = |error| Error::torch("batch", &error);
        let inputs = self.tokens(&batch.inputs, batch.sequences)?;
        let counted = batch.targets.iter().filter(|&&target| target != IGNORED);
        self.check(counted.clone())?;
        let length = inputs.size()[1];
        let targets = Tensor::f_from_slice(&batch.targets)
            .and_then(|flat| flat.f_view([-1, length])?.f_to(self.device))
            .map_err(torch)?;
        let documents = batch.documents.as_ref();
        let documents = documents
            .map(|numbers| Documents::new(numbers, length as usize, self.device))
            .transpose()
            .map_err(torch)?;
        Ok(Tokens { inputs, targets, documents, counted: counted.count() as u64 })
    }

    fn check<'a>(&self, mut tokens: impl Iterator<Item = &'a i64>) -> Result<()> {
        let vocab = i64::from(self.architecture().vocab);
        match tokens.find(|token| !(0..vocab).contains(*token)) {
            Some(token) => Err(Error::Invalid(format!(
                "token {token} is not in the model's vocabulary of {vocab}; text needs --vocab 256, and a model of your own the \
                 tokenizer that belongs to it"
            ))),
            None => Ok(()),
        }
    }

    /// `[sequences, tokens.len() / sequences]` tokens on the compute device.
    pub(crate) fn tokens(&self, tokens: &[i64], sequences: u32) -> Result<Tensor> {
        self.check(tokens.iter())?;
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
        documents: Option<&Documents>,
    ) -> Result<(UnitWeights, Tensor)> {
        let mut hidden = input;
        for plan in &self.plans[..self.plans.len() - 1] {
            hidden = self.forward(&self.load(plan.unit, source)?, &hidden, documents)?;
        }
        Ok((self.load(Unit::Head, source)?, hidden))
    }

    /// Output of the embedding (`input`: `[batch, tokens]` of i64) or of a block (`input`: `[batch, tokens, hidden]`), without a tape.
    pub fn forward(
        &self,
        weights: &UnitWeights,
        input: &Tensor,
        documents: Option<&Documents>,
    ) -> Result<Tensor> {
        let _guard = tch::no_grad_guard();
        let view = self.view(weights.unit, &weights.tensors);
        let output = match weights.unit {
            Unit::Embed => self.math.embed(view, input, documents),
            Unit::Block(layer) => self.math.block(view, input, layer, documents),
            Unit::Head => return Err(misuse("the head has a loss or logits, no output")),
        };
        output.map_err(|error| failed("forward pass", weights.unit, &error))
    }

    fn view<'a>(&'a self, unit: Unit, tensors: &'a [Tensor]) -> Weights<'a> {
        Weights { tensors, roles: &self.plan(unit).roles }
    }

    /// Mean cross entropy over all targets that count, without a tape. `hidden`: output of the last block; `targets`: `[batch, tokens]`.
    pub fn loss(&self, head: &UnitWeights, hidden: &Tensor, targets: &Tensor) -> Result<f64> {
        let (table, norm) = head_tensors(head)?;
        let _guard = tch::no_grad_guard();
        let compute = || {
            let normed = self.math.norm(hidden, &norm[0], norm.get(1))?;
            let (normed, targets) = self.rows(&normed, targets)?;
            let mut sum = 0.0;
            for (start, count) in self.pieces(targets.size1()?) {
                let rows = normed.f_narrow(0, start, count)?;
                let piece =
                    self.math.loss_sum(table, &rows, &targets.f_narrow(0, start, count)?)?;
                sum += piece.f_double_value(&[])?;
            }
            Ok(sum / counted(&targets)?)
        };
        compute().map_err(|error| failed("loss", Unit::Head, &error))
    }

    /// fp32 logits `[batch, vocab]` of the token after the last one, without a tape.
    pub fn next_token_logits(&self, head: &UnitWeights, hidden: &Tensor) -> Result<Tensor> {
        let last = hidden.f_select(1, -1);
        self.logits(head, &last.map_err(|error| failed("logits", Unit::Head, &error))?)
    }

    /// fp32 logits `[…, vocab]` of what follows each of `hidden` (`[…, hidden]`), without a tape.
    ///
    /// # Errors
    /// What libtorch reports.
    pub fn logits(&self, head: &UnitWeights, hidden: &Tensor) -> Result<Tensor> {
        let (table, norm) = head_tensors(head)?;
        let _guard = tch::no_grad_guard();
        self.math
            .norm(hidden, &norm[0], norm.get(1))
            .and_then(|normed| self.math.logits(table, &normed))
            .map_err(|error| failed("logits", Unit::Head, &error))
    }

    /// fp32 logits `[sequences, tokens, vocab]` of a whole forward pass, unit by unit.
    ///
    /// # Errors
    /// Tokens that are not in the vocabulary, and what libtorch reports.
    pub fn forward_logits(
        &self,
        source: &dyn WeightSource,
        tokens: &[i64],
        sequences: u32,
    ) -> Result<Tensor> {
        let tokens = self.tokens(tokens, sequences)?;
        let (head, hidden) = self.forward_to_head(source, tokens, None)?;
        self.logits(&head, &hidden)
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
        let (table, norm) = head_tensors(head)?;
        let (loss, grad_table, mut rest) =
            tch::with_grad(|| self.head_gradients(table, norm, hidden, targets, factor))
                .map_err(|error| failed("backward pass", Unit::Head, &error))?;
        let grad_hidden = rest.remove(0);
        let mut gradients = Vec::with_capacity(3);
        if self.architecture().tied {
            tied.0 = Some(grad_table);
        } else {
            gradients.push(self.rounded(&grad_table, Unit::Head)?);
        }
        gradients.extend(rest);
        let skipped = head.tensors.len() - gradients.len();
        self.deliver(Unit::Head, skipped, &gradients, sink)?;
        Ok((loss, grad_hidden))
    }

    /// Loss, gradient of the table in fp32, gradients of hidden and the norm's tensors.
    fn head_gradients(
        &self,
        table: &Tensor,
        norm: &[Tensor],
        hidden: &Tensor,
        targets: &Tensor,
        factor: f64,
    ) -> Result<(f64, Tensor, Vec<Tensor>), TchError> {
        let mut leaves = vec![leaf(hidden)?];
        leaves.extend(norm.iter().map(leaf).collect::<Result<Vec<_>, _>>()?);
        let normed = self.math.norm(&leaves[0], &leaves[1], leaves.get(2))?;
        let (rows, targets) = self.rows(&normed.f_detach()?, targets)?;
        let count_all = counted(&targets)?;
        let mut sum = 0.0;
        let mut grad_table: Option<Tensor> = None;
        let mut grad_rows = Vec::new();
        for (start, count) in self.pieces(targets.size1()?) {
            let inputs = [leaf(&rows.f_narrow(0, start, count)?)?, leaf(table)?];
            let targets = targets.f_narrow(0, start, count)?;
            let piece = self.math.loss_sum(&inputs[1], &inputs[0], &targets)?;
            let scaled = piece.f_mul_scalar(factor / count_all)?;
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
        Ok((sum / count_all, grad_table, rest))
    }

    /// Backward pass of a block: recomputes it from `input`, gives its tensors' gradients to `sink` and returns that of `input`.
    pub fn backward_block(
        &self,
        weights: &UnitWeights,
        input: &Tensor,
        grad_output: &Tensor,
        documents: Option<&Documents>,
        sink: &mut GradientSink<'_>,
    ) -> Result<Tensor> {
        let unit = weights.unit;
        let Unit::Block(layer) = unit else {
            return Err(misuse("backward_block is for blocks"));
        };
        let mut gradients = tch::with_grad(|| {
            let mut leaves = weights.tensors.iter().map(leaf).collect::<Result<Vec<_>, _>>()?;
            leaves.push(leaf(input)?);
            let (tensors, input) = leaves.split_at(weights.tensors.len());
            let output = self.math.block(self.view(unit, tensors), &input[0], layer, documents)?;
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
        tokens: &Tokens,
        grad_output: &Tensor,
        tied: &mut TiedGradient,
        sink: &mut GradientSink<'_>,
    ) -> Result<()> {
        let architecture = self.architecture();
        let head_share = tied.0.take();
        if head_share.is_some() != architecture.tied {
            return Err(misuse("the head's share of a tied embedding must be there exactly once"));
        }
        let _guard = tch::no_grad_guard();
        let compute = || {
            // In fp32: a frequent token sums thousands of rows, which a 16-bit sum would not follow.
            let grad = grad_output.f_to_kind(Kind::Float)?;
            let vocab = i64::from(architecture.vocab);
            let inputs = &tokens.inputs;
            let table = Tensor::f_embedding_dense_backward(&grad, inputs, vocab, -1, false)?;
            let table = match head_share {
                Some(mut share) => share.f_add_(&table)?,
                None => table,
            };
            let learned = self.plan(Unit::Embed).roles.contains(&Role::Positions);
            let positions = learned.then(|| self.position_gradient(&grad, tokens)).transpose()?;
            Ok((table, positions))
        };
        let (table, positions) =
            compute().map_err(|error| failed("backward pass", Unit::Embed, &error))?;
        let mut gradients = vec![self.rounded(&table, Unit::Embed)?];
        if let Some(positions) = positions {
            gradients.push(self.rounded(&positions, Unit::Embed)?);
        }
        self.deliver(Unit::Embed, 0, &gradients, sink)
    }

    /// Gradient of the table of positions, in fp32.
    fn position_gradient(&self, grad: &Tensor, tokens: &Tokens) -> Result<Tensor, TchError> {
        let positions = i64::from(self.architecture().positions);
        if let Some(documents) = &tokens.documents {
            let places = &documents.positions;
            return Tensor::f_embedding_dense_backward(grad, places, positions, -1, false);
        }
        let used = grad.f_sum_dim_intlist([0i64].as_slice(), false, None::<Kind>)?;
        let unused = positions - used.size()[0];
        if unused == 0 {
            return Ok(used);
        }
        let sizes = [unused, i64::from(self.architecture().hidden)];
        let zeros = Tensor::f_zeros(sizes, (Kind::Float, self.device))?;
        Tensor::f_cat(&[used, zeros], 0)
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
        Ok((normed.f_view([-1, i64::from(self.architecture().hidden)])?, targets.f_reshape([-1])?))
    }

    /// (start, count) of pieces of `rows` rows whose logits are at most `logits_max`.
    fn pieces(&self, rows: i64) -> impl Iterator<Item = (i64, i64)> + use<> {
        let most = (self.logits_max / u64::from(self.architecture().vocab)).max(1) as i64;
        (0..rows).step_by(most as usize).map(move |start| (start, most.min(rows - start)))
    }
}

/// Table and norm (gain, and shift where it has one) of the head.
fn head_tensors(weights: &UnitWeights) -> Result<(&Tensor, &[Tensor])> {
    match (&weights.unit, weights.tensors.split_first()) {
        (Unit::Head, Some((table, norm))) if !norm.is_empty() => Ok((table, norm)),
        _ => Err(misuse("the head's weights are needed")),
    }
}

/// Number of targets that count, at least 1.
fn counted(targets: &Tensor) -> Result<f64, TchError> {
    Ok(targets.f_ne(IGNORED)?.f_sum(None::<Kind>)?.f_double_value(&[])?.max(1.0))
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
