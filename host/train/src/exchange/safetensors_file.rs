//! Optimizer state in safetensors: `step`, and `exp_avg.NAME` and `exp_avg_sq.NAME` for each parameter.

/// Name of the tensor with the number of steps.
pub(super) const STEP: &str = "step";

/// Name of a moment of a parameter.
pub(super) fn name(variable: &str, parameter: &str) -> String {
    format!("{variable}.{parameter}")
}
