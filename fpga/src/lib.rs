//! SmartSSDs: FPGA cards with a drive behind the same switch.
//!
//! [`bitstream`] builds what a card is loaded with. [`xclbin`] reads and writes the containers that bitstreams come in.

pub mod bitstream;
pub mod xclbin;
