//! XRT, the library through which a host reaches its cards, loaded at run time: three layers over its C functions.

mod card;
mod error;
mod library;
mod run;
mod sys;

pub use card::{Buffer, Card, Placement};
pub use error::XrtError;
pub use library::Xrt;
pub use run::{Kernel, Value};
