//! Optimizer kernels on the CPU (Smart-Infinity, section 5).
//!
//! The order of every operation is fixed, in fp32 and without fused multiply-add, so that scalar code, AVX2,
//! AVX-512 and any other device give the same bits. Each rule is written once, over lanes of any width;
//! it is compiled for each instruction set, and the one to run is chosen at run time.

pub mod bandwidth;
mod checksum;
mod convert;
mod dither;
mod isa;
mod lanes;
mod moment;
mod pass;
mod rules;
mod run;
mod scalars;
mod scan;
mod update;

pub use checksum::checksum;
pub use convert::{bf16_to_f32, f16_to_f32, f32_to_bf16, f32_to_f16};
pub use dither::Dither;
pub use isa::Isa;
pub use run::{Gradient, GradientRef, Moments, PairsRef, WeightsOut};
pub use scalars::{Scalars, Segment};
pub use scan::{GradientScan, scan_gradient};
pub use update::{UpdateSums, update};
