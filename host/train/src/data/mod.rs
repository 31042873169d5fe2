//! Data to train on: files to tokens, tokens to batches.

mod batch;
mod cache;
mod corpus;
mod files;
mod options;
mod records;
mod shuffle;
mod tokens;
mod vocabulary;

pub use batch::{Batch, BatchPlan};
pub use corpus::{Corpus, LeftOut};
pub use options::{CorpusOptions, Format, Order, TokenWidth};
pub use vocabulary::Vocabulary;
