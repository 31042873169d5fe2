//! Building a bitstream with Vitis: which commands, which of them are needed still, and what is missing.

mod build;
mod error;
mod plan;
mod tools;

pub use build::{Outcome, build};
pub use error::BitstreamError;
pub use plan::{Command, Plan, Request, Target};
pub use tools::{Places, Tools, Version};
