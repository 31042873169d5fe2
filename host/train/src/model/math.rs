//! The forward arithmetic of each unit. Whether a tape is recorded depends on the caller.

use tch::{Device, Kind, Reduction, TchError, Tensor};

use super::architecture::{Activation, Architecture, Family};
use super::documents::{Documents, mask};
use super::rope::Rotation;
use super::tensors::Role;

type Result<T> = std::result::Result<T, TchError>;

/// Targets that do not count in the loss.
pub(crate) const IGNORED: i64 = -100;

/// Sizes and choices that the arithmetic needs.
#[derive(Debug)]
pub(super) struct Math {
    pub architecture: Architecture,
    /// Tables of rotary positions, where the model has them.
    pub rotation: Option<Rotation>,
    /// Attention from its definition, with the whole score matrix. libtorch's fused backward pass adds with atomics on CUDA, in an
    /// order that changes from run to run; on the CPU it is fixed.
    pub explicit_attention: bool,
}

/// The tensors of one unit, by what they are for.
#[derive(Clone, Copy)]
pub(super) struct Weights<'a> {
    pub tensors: &'a [Tensor],
    pub roles: &'a [Role],
}

impl<'a> Weights<'a> {
    fn find(&self, role: Role) -> Option<&'a Tensor> {
        let index = self.roles.iter().position(|&other| other == role)?;
        self.tensors.get(index)
    }

    fn get(&self, role: Role) -> Result<&'a Tensor> {
        self.find(role).ok_or_else(|| TchError::Shape(format!("a unit has no {role:?}")))
    }
}

impl Math {
    fn hidden(&self) -> i64 {
        i64::from(self.architecture.hidden)
    }

    /// `[batch, tokens]` of i64 to `[batch, tokens, hidden]`.
    pub fn embed(
        &self,
        weights: Weights<'_>,
        tokens: &Tensor,
        documents: Option<&Documents>,
    ) -> Result<Tensor> {
        let embedded = Tensor::f_embedding(weights.get(Role::Table)?, tokens, -1, false, false)?;
        let Some(table) = weights.find(Role::Positions) else { return Ok(embedded) };
        let positions = match documents {
            Some(documents) => Tensor::f_embedding(table, &documents.positions, -1, false, false)?,
            None => table.f_narrow(0, 0, tokens.size2()?.1)?,
        };
        embedded.f_add(&positions)
    }

    /// A transformer block, `[batch, tokens, hidden]` to the same.
    pub fn block(
        &self,
        weights: Weights<'_>,
        input: &Tensor,
        layer: u32,
        documents: Option<&Documents>,
    ) -> Result<Tensor> {
        let shape = input.size();
        let input = input.f_view([-1, self.hidden()])?;
        let normed = self.norm(
            &input,
            weights.get(Role::AttentionNorm)?,
            weights.find(Role::AttentionShift),
        )?;
        let heads = match self.architecture.family {
            Family::Gpt2 => self.heads_of_one(weights, &normed, &shape)?,
            _ => self.heads_of_three(weights, &normed, &shape)?,
        };
        let window = self.architecture.window(layer);
        let mask = mask(shape[1], window, documents, input.device())?;
        let attended = self.attention(heads, mask.as_ref())?;
        let attended = self.linear(&attended, weights, Role::Out, Role::OutBias)?;
        let middle = input.f_add(&attended)?;
        let normed = self.norm(
            &middle,
            weights.get(Role::FeedForwardNorm)?,
            weights.find(Role::FeedForwardShift),
        )?;
        let inner = if weights.find(Role::Gate).is_some() {
            let gate = self.linear(&normed, weights, Role::Gate, Role::GateBias)?;
            self.activate(&gate)?.f_mul(&self.linear(
                &normed,
                weights,
                Role::Up,
                Role::UpBias,
            )?)?
        } else {
            self.activate(&self.linear(&normed, weights, Role::Up, Role::UpBias)?)?
        };
        let out = self.linear(&inner, weights, Role::Down, Role::DownBias)?;
        middle.f_add(&out)?.f_view(&shape[..])
    }

    /// Layer norm (GPT-2) or RMS norm over the last dimension.
    pub fn norm(&self, input: &Tensor, gain: &Tensor, shift: Option<&Tensor>) -> Result<Tensor> {
        let eps = self.architecture.norm_eps;
        let width = gain.size1()?;
        match self.architecture.family {
            Family::Gpt2 => input.f_layer_norm([width], Some(gain), shift, eps, false),
            _ => input.f_rms_norm([width], Some(gain), eps),
        }
    }

    /// `[n, in]` to `[n, out]` with a matrix and, where it is there, a bias.
    fn linear(
        &self,
        input: &Tensor,
        weights: Weights<'_>,
        matrix: Role,
        bias: Role,
    ) -> Result<Tensor> {
        let (matrix, bias) = (weights.get(matrix)?, weights.find(bias));
        match (self.architecture.family, bias) {
            // Stored input-major.
            (Family::Gpt2, Some(bias)) => bias.f_addmm(input, matrix),
            (Family::Gpt2, None) => input.f_matmul(matrix),
            _ => input.f_linear(matrix, bias),
        }
    }

    fn activate(&self, input: &Tensor) -> Result<Tensor> {
        match self.architecture.activation {
            Activation::Gelu => input.f_gelu("none"),
            Activation::GeluTanh => input.f_gelu("tanh"),
            Activation::Silu => input.f_silu(),
            Activation::Relu => input.f_relu(),
        }
    }

    /// Queries, keys and values, `[batch, heads, tokens, width]` each, from one matrix.
    fn heads_of_one(
        &self,
        weights: Weights<'_>,
        normed: &Tensor,
        shape: &[i64],
    ) -> Result<[Tensor; 3]> {
        let all = self.linear(normed, weights, Role::Qkv, Role::QkvBias)?;
        let part = |index: i64| {
            let part = all.f_narrow(1, index * self.hidden(), self.hidden())?;
            self.split(&part, shape, self.architecture.heads)?.f_transpose(1, 2)
        };
        Ok([part(0)?, part(1)?, part(2)?])
    }

    /// The same from three matrices, rotated by their positions.
    fn heads_of_three(
        &self,
        weights: Weights<'_>,
        normed: &Tensor,
        shape: &[i64],
    ) -> Result<[Tensor; 3]> {
        let part = |matrix, bias, heads, norm: Option<Role>| {
            let part = self.linear(normed, weights, matrix, bias)?;
            let part = self.split(&part, shape, heads)?;
            let part = match norm.and_then(|norm| weights.find(norm)) {
                Some(gain) => self.norm(&part, gain, None)?,
                None => part,
            };
            part.f_transpose(1, 2)
        };
        let rotated = |part: Tensor| match &self.rotation {
            Some(rotation) => rotation.apply(&part),
            None => Ok(part),
        };
        let (heads, shared) = (self.architecture.heads, self.architecture.key_value_heads);
        let query = rotated(part(Role::Query, Role::QueryBias, heads, Some(Role::QueryNorm))?)?;
        let key = rotated(part(Role::Key, Role::KeyBias, shared, Some(Role::KeyNorm))?)?;
        let value = part(Role::Value, Role::ValueBias, shared, None)?;
        let each = i64::from(heads / shared);
        if each == 1 {
            return Ok([query, key, value]);
        }
        let repeated = |part: Tensor| part.f_repeat_interleave_self_int(each, 1, None);
        Ok([query, repeated(key)?, repeated(value)?])
    }

    /// `[batch · tokens, heads · width]` to `[batch, tokens, heads, width]`.
    fn split(&self, part: &Tensor, shape: &[i64], heads: u32) -> Result<Tensor> {
        let width = i64::from(self.architecture.head_width);
        part.f_view([shape[0], shape[1], i64::from(heads), width])
    }

    /// Causal self-attention of `[batch, heads, tokens, width]` to `[batch · tokens, heads · width]`. `mask` says which tokens see which,
    /// where that is not every earlier one.
    fn attention(&self, [query, key, value]: [Tensor; 3], mask: Option<&Tensor>) -> Result<Tensor> {
        let sizes = query.size();
        let (batch, heads, length, width) = (sizes[0], sizes[1], sizes[2], sizes[3]);
        let mixed = if self.explicit_attention {
            // Scaled before the product, so that fp16 scores do not overflow.
            let query = query.f_mul_scalar(1.0 / (width as f64).sqrt())?;
            let scores = query.f_matmul(&key.f_transpose(2, 3)?)?;
            let hidden = match mask {
                Some(mask) => mask.f_logical_not()?,
                None => {
                    let all = (Kind::Bool, query.device());
                    Tensor::f_ones([length, length], all)?.f_triu(1)?
                }
            };
            scores
                .f_masked_fill(&hidden, f64::NEG_INFINITY)?
                .f_softmax(-1, None::<Kind>)?
                .f_matmul(&value)?
        } else {
            Tensor::f_scaled_dot_product_attention(
                &query,
                &key,
                &value,
                mask,
                0.0,
                mask.is_none(),
                None,
                false,
            )?
        };
        mixed.f_transpose(1, 2)?.f_contiguous()?.f_view([batch * length, heads * width])
    }

    /// Sum of the cross entropies of `[n, hidden]` normed rows against `[n]` targets, in fp32. Targets of -100 do not count.
    pub fn loss_sum(&self, table: &Tensor, normed: &Tensor, targets: &Tensor) -> Result<Tensor> {
        self.logits(table, normed)?.f_cross_entropy_loss::<Tensor>(
            targets,
            None,
            Reduction::Sum,
            IGNORED,
            0.0,
        )
    }

    /// `[n, hidden]` normed rows to `[n, vocab]` logits in fp32.
    pub fn logits(&self, table: &Tensor, normed: &Tensor) -> Result<Tensor> {
        normed.f_matmul(&table.f_tr()?)?.f_to_kind(Kind::Float)
    }
}

/// A tensor with the same elements whose gradient is asked for.
pub(super) fn leaf(tensor: &Tensor) -> Result<Tensor> {
    tensor.f_detach()?.f_set_requires_grad(true)
}

/// Gradients of Σ output·grad_output with respect to `inputs`: the vector-Jacobian product. The sum's value is not used, so it may
/// overflow; each factor that flows back is `grad_output` exactly.
pub(super) fn pull_back(
    output: &Tensor,
    grad_output: &Tensor,
    inputs: &[Tensor],
) -> Result<Vec<Tensor>> {
    let scalar = output.f_mul(grad_output)?.f_sum(None::<Kind>)?;
    Tensor::f_run_backward(&[scalar], inputs, false, false)
}

/// Whether attention must be computed from its definition to be reproducible on `device`.
pub(super) fn needs_explicit_attention(device: Device) -> bool {
    !matches!(device, Device::Cpu)
}
