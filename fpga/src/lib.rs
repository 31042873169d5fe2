//! SmartSSDs: FPGA cards with a drive behind the same switch.
//!
//! [`xrt`] loads XRT's C library at run time. [`bitstream`] builds what a card is loaded with, [`mod@xclbin`] reads and writes the
//! containers that bitstreams come in. [`card`] is the process that plays an emulated card, and [`emulation`] sets up XRT's own
//! software emulation around it. [`mod@check`] compares what a card computes with the CPU, and [`topology`] finds cards in sysfs, and
//! the drive beside each.

pub mod bitstream;
pub mod card;
pub mod check;
pub mod device;
pub mod emulation;
pub mod topology;
pub mod xclbin;
pub mod xrt;
