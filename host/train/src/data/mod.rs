//! Text to train on: files to tokens, tokens to batches.

mod batch;
mod corpus;

pub use batch::{Batch, BatchPlan};
pub use corpus::{Corpus, CorpusOptions};
