//! XRT, the library through which a host reaches its cards, loaded at run time: three layers over its C functions (`sys`: the
//! functions; results with reasons; values that close and free themselves).

mod buffer;
mod card;
mod error;
mod library;
mod name;
mod run;
mod signals;
mod sys;
mod worker;

pub use buffer::{Buffer, Placement};
pub use card::{Card, any_lost};
pub use error::XrtError;
pub use library::Xrt;
pub use name::{CardName, NoCardName};
pub use run::{Kernel, Value};
