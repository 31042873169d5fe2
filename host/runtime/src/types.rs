//! Words shared by every part of the runtime: number formats, optimizers, stored variables.

use serde::{Deserialize, Serialize};

/// Most threads that a user may ask for: beyond it, a system refuses them in the middle of the work.
pub const THREADS_MAX: usize = 1024;

/// Number format of weights or gradients.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DType {
    /// IEEE 754 binary32.
    Fp32,
    /// IEEE 754 binary16.
    Fp16,
    /// bfloat16: binary32 cut to 8 significand bits.
    Bf16,
}

impl DType {
    /// Bytes of one element.
    pub const fn bytes(self) -> u64 {
        match self {
            Self::Fp32 => 4,
            Self::Fp16 | Self::Bf16 => 2,
        }
    }

    /// `fp32`, `fp16` or `bf16`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Fp32 => "fp32",
            Self::Fp16 => "fp16",
            Self::Bf16 => "bf16",
        }
    }
}

/// The update rules that the kernels implement (Smart-Infinity, section 5).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Optimizer {
    /// Adam with weight decay added to the gradient (L2).
    Adam,
    /// Adam with decoupled weight decay.
    Adamw,
    /// AdaGrad; the decay term enters the accumulator only.
    Adagrad,
    /// SGD with dampened momentum.
    SgdMomentum,
}

impl Optimizer {
    /// The variables kept on the drives, in stored order; the first is always the master weight.
    pub const fn variables(self) -> &'static [Variable] {
        match self {
            Self::Adam | Self::Adamw => &[Variable::Param, Variable::ExpAvg, Variable::ExpAvgSq],
            Self::Adagrad => &[Variable::Param, Variable::ExpAvgSq],
            Self::SgdMomentum => &[Variable::Param, Variable::ExpAvg],
        }
    }

    /// The name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Adam => "adam",
            Self::Adamw => "adamw",
            Self::Adagrad => "adagrad",
            Self::SgdMomentum => "sgd-momentum",
        }
    }
}

/// One array of a subgroup.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Variable {
    /// Master weight `p`, fp32.
    Param,
    /// First moment `m` (SGD: the momentum buffer), fp32 or bf16.
    ExpAvg,
    /// Second moment `v` (AdaGrad: the sum of squares), fp32 or bf16.
    ExpAvgSq,
    /// Dense gradient `g`.
    Gradient,
    /// Indices of kept gradient elements, u32, ascending, relative to the subgroup.
    GradientIndex,
    /// Values of kept gradient elements.
    GradientValue,
    /// What compression dropped (error feedback), fp32.
    Residual,
}

impl Variable {
    /// The name used in files, reports and errors.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Param => "param",
            Self::ExpAvg => "exp_avg",
            Self::ExpAvgSq => "exp_avg_sq",
            Self::Gradient => "gradient",
            Self::GradientIndex => "gradient_index",
            Self::GradientValue => "gradient_value",
            Self::Residual => "residual",
        }
    }
}

/// Hyper-parameters of one parameter group in one step, as the user gives them.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct HyperParameters {
    /// Learning rate of this step.
    pub lr: f64,
    /// Decay of the first moment (SGD: the momentum).
    pub beta1: f64,
    /// Decay of the second moment.
    pub beta2: f64,
    /// Added to the denominator.
    pub eps: f64,
    /// Weight decay λ.
    pub weight_decay: f64,
}

impl Default for HyperParameters {
    fn default() -> Self {
        Self { lr: 1e-3, beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.0 }
    }
}
