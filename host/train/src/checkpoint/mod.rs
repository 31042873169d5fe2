//! Models as Hugging Face keeps them: `config.json`, weights in safetensors, and the files of the tokenizer beside them.

mod config;
mod dtype;
mod rope;
mod shards;
mod table;
mod write;

pub use config::{Config, to_config};
pub(crate) use dtype::{Numbers, Stored, encode};
pub use shards::Checkpoint;
pub(crate) use shards::open_file as open_safetensors;
pub(crate) use table::Table;
pub use write::{SaveOptions, Writer};
