//! Memory for transfers: arenas of fixed size, taken before the first step.

mod arena;
mod host_vector;

pub(crate) use arena::Mapping;
pub use arena::{Arena, Region, arena_bytes};
pub use host_vector::HostVector;
