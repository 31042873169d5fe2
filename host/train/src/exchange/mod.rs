//! Optimizer state as others keep it: `torch.optim.AdamW`'s `state_dict` in a `.pt` file, and safetensors.

mod pickle;
mod read;
mod safetensors_file;
mod torch_file;
mod write;

pub use read::OptimizerState;
pub use write::{Moments, export};
