//! Optimizer kernels.
