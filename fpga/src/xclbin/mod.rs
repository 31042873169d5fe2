//! Containers that bitstreams come in (`.xclbin`): what XRT loads onto a card.
//!
//! [`mod@write`] makes one for an emulated card, [`read`] takes apart any, and [`check`] says whether it holds this version's
//! kernels. [`digest`] names a version of the kernels.

pub mod check;
pub mod digest;
mod error;
mod layout;
pub mod metadata;
pub mod read;
mod section;
pub mod write;

pub use digest::kernels_digest;
pub use error::XclbinError;
pub use layout::{FIRST_ARGUMENT, argument_step};
pub use metadata::{UNIT_RANGE, unit_base};
pub use read::Xclbin;
