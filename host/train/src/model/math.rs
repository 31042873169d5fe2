//! The forward arithmetic of each unit. Whether a tape is recorded depends on the caller.

use tch::{Device, Kind, Reduction, TchError, Tensor};

type Result<T> = std::result::Result<T, TchError>;

/// Added to the variance in layer norms (GPT-2).
const NORM_EPS: f64 = 1e-5;

/// Sizes and choices that the arithmetic needs.
#[derive(Debug, Clone, Copy)]
pub(super) struct Math {
    pub heads: i64,
    pub hidden: i64,
    /// Attention from its definition, with the whole score matrix. libtorch's fused backward pass adds with atomics on CUDA, in an
    /// order that changes from run to run; on the CPU it is fixed.
    pub explicit_attention: bool,
}

impl Math {
    /// `[batch, tokens]` of i64 to `[batch, tokens, hidden]`. `weights`: table, positions.
    pub fn embed(&self, weights: &[Tensor], tokens: &Tensor) -> Result<Tensor> {
        let (_, length) = tokens.size2()?;
        let positions = weights[1].f_narrow(0, 0, length)?;
        Tensor::f_embedding(&weights[0], tokens, -1, false, false)?.f_add(&positions)
    }

    /// A transformer block, `[batch, tokens, hidden]` to the same. `weights` in flat order: the four matrices, then norms and biases.
    pub fn block(&self, weights: &[Tensor], input: &Tensor) -> Result<Tensor> {
        let [qkv, out, up, down, norm1, shift1, qkv_b, out_b, norm2, shift2, up_b, down_b] =
            weights
        else {
            return Err(TchError::Shape("a block has twelve tensors".into()));
        };
        let shape = input.size();
        let input = input.f_view([-1, self.hidden])?;
        let normed = self.norm(&input, norm1, shift1)?;
        let attended = self.attention(&qkv_b.f_addmm(&normed, qkv)?, &shape)?;
        let middle = input.f_add(&out_b.f_addmm(&attended, out)?)?;
        let normed = self.norm(&middle, norm2, shift2)?;
        let inner = up_b.f_addmm(&normed, up)?.f_gelu("tanh")?;
        middle.f_add(&down_b.f_addmm(&inner, down)?)?.f_view(&shape[..])
    }

    /// Layer norm over the last dimension.
    pub fn norm(&self, input: &Tensor, gain: &Tensor, shift: &Tensor) -> Result<Tensor> {
        input.f_layer_norm([self.hidden], Some(gain), Some(shift), NORM_EPS, false)
    }

    /// Causal self-attention of `[batch·tokens, 3·hidden]` (queries, keys, values side by side) to `[batch·tokens, hidden]`.
    fn attention(&self, qkv: &Tensor, shape: &[i64]) -> Result<Tensor> {
        let (batch, length) = (shape[0], shape[1]);
        let width = self.hidden / self.heads;
        let part = |index: i64| {
            qkv.f_narrow(1, index * self.hidden, self.hidden)?
                .f_view([batch, length, self.heads, width])?
                .f_transpose(1, 2)
        };
        let (query, key, value) = (part(0)?, part(1)?, part(2)?);
        let mixed = if self.explicit_attention {
            // Scaled before the product, so that fp16 scores do not overflow.
            let query = query.f_mul_scalar(1.0 / (width as f64).sqrt())?;
            let scores = query.f_matmul(&key.f_transpose(2, 3)?)?;
            let future = Tensor::f_ones([length, length], (Kind::Bool, qkv.device()))?.f_triu(1)?;
            scores
                .f_masked_fill(&future, f64::NEG_INFINITY)?
                .f_softmax(-1, None::<Kind>)?
                .f_matmul(&value)?
        } else {
            Tensor::f_scaled_dot_product_attention::<Tensor>(
                &query, &key, &value, None, 0.0, true, None, false,
            )?
        };
        mixed.f_transpose(1, 2)?.f_contiguous()?.f_view([batch * length, self.hidden])
    }

    /// Sum of the cross entropies of `[n, hidden]` normed rows against `[n]` targets, in fp32.
    pub fn loss_sum(&self, table: &Tensor, normed: &Tensor, targets: &Tensor) -> Result<Tensor> {
        self.logits(table, normed)?.f_cross_entropy_loss::<Tensor>(
            targets,
            None,
            Reduction::Sum,
            -100,
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
