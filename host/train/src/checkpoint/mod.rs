//! Models as Hugging Face keeps them: `config.json`, weights in safetensors, and the files of the tokenizer beside them.

mod config;
mod dtype;
mod rope;
mod shards;
mod write;

pub use config::{Config, to_config};
pub use shards::Checkpoint;
pub use write::{SaveOptions, Writer};
