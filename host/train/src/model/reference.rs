//! The same model as one ordinary autograd graph, written from the definition: what the streamed passes are checked against.

use tch::{Kind, Tensor};

use super::TensorList;

/// Loss and the gradient of every tensor (registration order) of loss·factor.
pub(super) fn loss_and_gradients(
    list: &TensorList,
    flat: &[f32],
    kind: Kind,
    inputs: &Tensor,
    targets: &Tensor,
    factor: f64,
) -> (f64, Vec<Tensor>) {
    let leaves: Vec<Tensor> = list
        .tensors()
        .iter()
        .map(|info| {
            let range = info.range();
            let sizes: Vec<i64> = info.shape.iter().map(|&size| size as i64).collect();
            Tensor::from_slice(&flat[range.start as usize..range.end as usize])
                .view(&sizes[..])
                .to_kind(kind)
                .set_requires_grad(true)
        })
        .collect();
    let get = |name: &str| {
        let index = list.tensors().iter().position(|info| info.name == name);
        &leaves[index.unwrap_or_else(|| panic!("tensor {name}"))]
    };
    let architecture = list.architecture();
    let heads = i64::from(architecture.heads);
    let hidden = i64::from(architecture.hidden);
    let (batch, length) = inputs.size2().unwrap();
    let norm = |x: &Tensor, name: &str| {
        let mean = x.mean_dim([-1i64].as_slice(), true, None::<Kind>);
        let centred = x - mean;
        let variance = (&centred * &centred).mean_dim([-1i64].as_slice(), true, None::<Kind>);
        centred / (variance + 1e-5).sqrt() * get(&format!("{name}.weight"))
            + get(&format!("{name}.bias"))
    };
    let linear = |x: &Tensor, name: &str| {
        x.matmul(get(&format!("{name}.weight"))) + get(&format!("{name}.bias"))
    };
    let positions = Tensor::arange(length, (Kind::Int64, inputs.device()));
    let mut x = get("transformer.wte.weight").index_select(0, &inputs.reshape([-1]));
    x = x.view([batch, length, hidden]) + get("transformer.wpe.weight").index_select(0, &positions);
    let future = Tensor::ones([length, length], (Kind::Bool, inputs.device())).triu(1);
    for layer in 0..architecture.layers {
        let name = |part: &str| format!("transformer.h.{layer}.{part}");
        let qkv = linear(&norm(&x, &name("ln_1")), &name("attn.c_attn"));
        let parts: Vec<Tensor> = qkv
            .chunk(3, -1)
            .iter()
            .map(|part| part.reshape([batch, length, heads, hidden / heads]).transpose(1, 2))
            .collect();
        let scores = parts[0].matmul(&parts[1].transpose(2, 3)) / ((hidden / heads) as f64).sqrt();
        let scores = scores.masked_fill(&future, f64::NEG_INFINITY);
        let mixed = scores.softmax(-1, None::<Kind>).matmul(&parts[2]);
        let mixed = mixed.transpose(1, 2).reshape([batch, length, hidden]);
        x = &x + linear(&mixed, &name("attn.c_proj"));
        let inner = linear(&norm(&x, &name("ln_2")), &name("mlp.c_fc"));
        // GPT-2's approximation of the Gaussian error linear unit.
        let cubic = &inner + &inner * &inner * &inner * 0.044715;
        let inner = &inner * 0.5 * ((cubic * (2.0 / std::f64::consts::PI).sqrt()).tanh() + 1.0);
        x = &x + linear(&inner, &name("mlp.c_proj"));
    }
    let head = if architecture.tied { "transformer.wte.weight" } else { "lm_head.weight" };
    let logits = norm(&x, "transformer.ln_f").matmul(&get(head).tr()).to_kind(Kind::Double);
    let chances = logits.log_softmax(-1, None::<Kind>);
    let loss = -chances.gather(-1, &targets.unsqueeze(-1), false).mean(None::<Kind>);
    let gradients = Tensor::run_backward(&[&loss * factor], &leaves, false, false);
    (loss.double_value(&[]), gradients)
}
