//! The update kernels beside libtorch's own optimizers: the same numbers up to the order of operations.
#![allow(clippy::unwrap_used)] // A test fails by panicking.

use nearfield_runtime::kernels::{GradientRef, Isa, Moments, Scalars, Segment, WeightsOut, update};
use nearfield_runtime::types::{HyperParameters, Optimizer};
use tch::nn::{self, OptimizerConfig};
use tch::{Device, Kind, Tensor};

const ELEMENTS: usize = 10_000;

/// Numbers of many magnitudes.
fn numbers(salt: u64, scale: f32) -> Vec<f32> {
    (0..ELEMENTS as u64)
        .map(|index| {
            let bits = (index + salt * 1_000_003).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let magnitude = 2.0_f32.powi(-((bits >> 20) as i32 & 7));
            ((bits >> 40) as f32 / 2.0_f32.powi(23) - 1.0) * magnitude * scale
        })
        .collect()
}

/// The largest difference, relative to the size of the weight and of what the steps may change of it.
fn worst(kind: Optimizer, weight_decay: f64, steps: u64) -> f64 {
    let hyper = HyperParameters { lr: 1e-3, weight_decay, ..HyperParameters::default() };
    let store = nn::VarStore::new(Device::Cpu);
    let mut p = numbers(1, 1.0);
    let mut theirs = store.root().var_copy("p", &Tensor::from_slice(&p));
    let HyperParameters { lr, beta1, beta2, eps, .. } = hyper;
    let mut optimizer = match kind {
        Optimizer::Adamw => nn::AdamW { beta1, beta2, wd: weight_decay, eps, amsgrad: false }
            .build(&store, lr)
            .unwrap(),
        _ => nn::Adam { beta1, beta2, wd: weight_decay, eps, amsgrad: false }
            .build(&store, lr)
            .unwrap(),
    };
    let (mut m, mut v) = (vec![0.0; ELEMENTS], vec![0.0; ELEMENTS]);
    for step in 1..=steps {
        let g = numbers(step + 1, 0.1);
        // The gradient of Σ p·g is g.
        optimizer.zero_grad();
        (&theirs * Tensor::from_slice(&g)).sum(Kind::Float).backward();
        optimizer.step();
        let scalars = Scalars::new(kind, &hyper, step, 1.0);
        let segments = [Segment { elements: ELEMENTS, scalars }];
        let moments = Moments::Fp32 { m: Some(&mut m), v: Some(&mut v) };
        let (g, out) = (GradientRef::Fp32(&g), WeightsOut::None);
        update(None, Isa::detect(), kind, &segments, g, &mut p, moments, out, 0).unwrap();
    }
    let theirs = Vec::<f32>::try_from(theirs.detach_()).unwrap();
    assert!(p != numbers(1, 1.0));
    let floor = lr * steps as f64;
    p.iter()
        .zip(&theirs)
        .map(|(&own, &other)| f64::from((own - other).abs()) / f64::from(other.abs()).max(floor))
        .fold(0.0, f64::max)
}

#[test]
fn one_step_is_within_a_millionth_of_torch_and_twenty_stay_close() {
    for kind in [Optimizer::Adamw, Optimizer::Adam] {
        for weight_decay in [0.0, 0.1] {
            let one = worst(kind, weight_decay, 1);
            assert!(one <= 1e-6, "{kind:?}, decay {weight_decay}: {one:e} after one step");
            let twenty = worst(kind, weight_decay, 20);
            assert!(twenty <= 20.0 * 1e-5, "{kind:?}, decay {weight_decay}: {twenty:e} after 20");
        }
    }
}
