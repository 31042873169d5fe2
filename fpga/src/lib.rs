//! SmartSSDs: FPGA cards with a drive behind the same switch, driven through XRT.
//!
//! [`xrt`] loads XRT's C library at run time. [`xclbin`] reads and writes the containers that bitstreams come in. [`card`] is the
//! device process of an emulated card, and [`emulation`] sets up XRT's own software emulation around it.

pub mod card;
pub mod emulation;
pub mod xclbin;
pub mod xrt;
