//! The Vitis HLS kernels of Nearfield.
//!
//! `kernels/` has the sources from which `v++` makes a bitstream. This crate has their interface ([`interface`]), the way from
//! a call of the runtime to launches ([`launch`]), the same sources compiled for the CPU ([`native`]), which the emulated
//! device and the emulated card run, and what they cost on an FPGA ([`account`]).

pub mod account;
pub mod interface;
pub mod launch;
pub mod native;
mod random;

pub use native::NativeKernels;
pub use random::Random;
