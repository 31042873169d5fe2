//! The data of a run: its tokens, cut into sequences, with a part at the end for evaluation.

use std::fs::File;
use std::io::Read;
use std::ops::Range;

use super::batch::{Batch, BatchPlan, Pick};
use super::cache::{self, DocumentTable};
use super::files::{self, Files};
use super::options::{CorpusOptions, Format, Order, TokenWidth};
use super::records;
use super::tokens::TokenFile;
use super::vocabulary::Vocabulary;
use crate::error::{Error, Result};

/// Where tokens are.
#[derive(Debug)]
enum Source {
    /// The bytes of a text, in memory.
    Bytes(Vec<u8>),
    /// In files one after the other: each with its first token.
    Files(Vec<(u64, TokenFile)>),
}

/// How sequences lie in the tokens.
#[derive(Debug)]
enum Rows {
    /// One after the other, each with the first token of the next.
    Windows,
    /// These tokens each.
    Ranges(Vec<Range<u64>>),
}

/// What was left out of the data.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LeftOut {
    /// Documents that were longer than a sequence, and cut.
    pub cut: u64,
    /// Documents whose prompt alone fills a sequence.
    pub dropped: u64,
}

/// The data of a run.
#[derive(Debug)]
pub struct Corpus {
    source: Source,
    rows: Rows,
    documents: DocumentTable,
    tokens: u64,
    seq: u32,
    order: Order,
    /// Whether documents share sequences.
    packed: bool,
    padding: i64,
    /// Tokens, or sequences where these are listed, of the training part.
    train: u64,
    total: u64,
    files: usize,
    vocab_needed: u32,
    left_out: LeftOut,
    digest: String,
}

impl Corpus {
    /// Reads the data. `seq`: tokens of a sequence; both parts must hold at least one sequence and the token after it. `vocab`: the
    /// model's. `progress` gets bytes done and bytes in all while text is cut into tokens.
    ///
    /// # Errors
    /// Files that cannot be read or are not what they should be, and too little data, with what to do.
    pub fn load(
        options: &CorpusOptions,
        vocabulary: &Vocabulary,
        seq: u32,
        vocab: u32,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Self> {
        let fraction = options.evaluation_fraction;
        if !(0.0..1.0).contains(&fraction) {
            return Err(Error::Invalid(format!(
                "evaluation fraction {fraction} is not at least 0 and below 1; use 0.05, for example"
            )));
        }
        let files = files::find(options)?;
        let mut corpus = match (files.format, vocabulary) {
            (Format::Text | Format::Auto, Vocabulary::Bytes) => Self::of_bytes(options, &files)?,
            (Format::Text | Format::Auto | Format::Jsonl, _) => {
                Self::of_documents(options, &files, vocabulary, seq, progress)?
            }
            (Format::Bin | Format::Npy, _) => Self::of_tokens(options, &files, vocab)?,
        };
        corpus.seq = seq;
        corpus.files = files.paths.len();
        corpus.padding = vocabulary.end().map_or(0, i64::from);
        corpus.order = match (options.order, &corpus.rows) {
            (Some(Order::Random), Rows::Ranges(_)) => {
                return Err(Error::Invalid(
                    "--order random is for one long text; documents take shuffle or sequential"
                        .into(),
                ));
            }
            (Some(order), _) => order,
            (None, Rows::Windows) => Order::Random,
            (None, Rows::Ranges(_)) => Order::Shuffle,
        };
        corpus.split(options)?;
        if corpus.vocab_needed > vocab {
            return Err(Error::Data {
                path: options.path.clone(),
                what: format!(
                    "it needs a vocabulary of {}, but the model has {vocab} tokens",
                    corpus.vocab_needed
                ),
                remedy: "use the tokenizer that belongs to the model, or --vocab 256 for text and a model of your own",
            });
        }
        Ok(corpus)
    }

    fn new(source: Source, rows: Rows, tokens: u64) -> Self {
        Self {
            source,
            rows,
            documents: DocumentTable::default(),
            tokens,
            seq: 1,
            order: Order::Random,
            packed: false,
            padding: 0,
            train: 0,
            total: 0,
            files: 0,
            vocab_needed: 0,
            left_out: LeftOut::default(),
            digest: String::new(),
        }
    }

    /// The bytes of text files are the tokens of one long text.
    fn of_bytes(options: &CorpusOptions, files: &Files) -> Result<Self> {
        let bytes = read_all(options, files)?;
        let tokens = bytes.len() as u64;
        let vocab_needed = bytes.iter().max().map_or(0, |&token| u32::from(token) + 1);
        let digest = blake3::hash(&bytes).to_hex().to_string();
        let corpus = Self::new(Source::Bytes(bytes), Rows::Windows, tokens);
        Ok(Self { vocab_needed, digest, ..corpus })
    }

    /// Tokens that others have made are one long text.
    fn of_tokens(options: &CorpusOptions, files: &Files, vocab: u32) -> Result<Self> {
        let mut opened = Vec::new();
        let (mut tokens, mut largest) = (0, -1);
        let mut hasher = blake3::Hasher::new();
        for path in &files.paths {
            let file = if files.format == Format::Npy {
                TokenFile::npy(path)?
            } else {
                let width = options.token_width.unwrap_or(TokenWidth::of_vocab(vocab));
                TokenFile::raw(path, width)?
            };
            let (most, digest) = file.survey()?;
            hasher.update(digest.as_bytes());
            largest = largest.max(most);
            let first = tokens;
            tokens += file.tokens();
            opened.push((first, file));
        }
        let vocab_needed = u32::try_from(largest.saturating_add(1)).unwrap_or(u32::MAX);
        let digest = hasher.finalize().to_hex().to_string();
        let corpus = Self::new(Source::Files(opened), Rows::Windows, tokens);
        Ok(Self { vocab_needed, digest, ..corpus })
    }

    /// Text or lines of JSON, cut by a tokenizer.
    fn of_documents(
        options: &CorpusOptions,
        files: &Files,
        vocabulary: &Vocabulary,
        seq: u32,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Self> {
        let made = cache::tokenise(files, vocabulary, &options.cache, progress)?;
        let tokens = made.tokens.tokens();
        let source = Source::Files(vec![(0, made.tokens)]);
        let (rows, documents, packed, left_out) = if files.format == Format::Jsonl {
            let (rows, left_out) = rows(&made.documents, tokens, seq, options.packing);
            (rows, made.documents, options.packing, left_out)
        } else {
            // Files of text follow each other as in one long text.
            (Rows::Windows, DocumentTable::default(), false, LeftOut::default())
        };
        let vocab_needed = made.vocab_needed;
        let corpus = Self::new(source, rows, tokens);
        let digest = made.digest;
        Ok(Self { documents, packed, left_out, vocab_needed, digest, ..corpus })
    }

    /// Sets the training part aside, and checks that both parts have a sequence.
    fn split(&mut self, options: &CorpusOptions) -> Result<()> {
        let fraction = options.evaluation_fraction;
        let (total, needed, what) = match &self.rows {
            Rows::Windows => (self.tokens, u64::from(self.seq) + 1, "tokens"),
            Rows::Ranges(ranges) => (ranges.len() as u64, 1, "sequences"),
        };
        let least = u64::from(fraction > 0.0 && what == "sequences" && total > 1);
        let evaluation = ((total as f64 * fraction) as u64).max(least);
        let train = total - evaluation;
        let short = |name: &str, have: u64| Error::Data {
            path: options.path.clone(),
            what: if self.tokens == 0 {
                "it holds no text".into()
            } else if total == 0 {
                "no document of it has anything to learn from within --seq tokens".into()
            } else {
                format!("the {name} part has {have} {what} of {total}, but {needed} are needed")
            },
            remedy: "give more text with --data, use a smaller --seq, or --eval-fraction 0",
        };
        if train < needed {
            return Err(short("training", train));
        }
        if fraction > 0.0 && evaluation < needed {
            return Err(short("evaluation", evaluation));
        }
        (self.train, self.total) = (train, total);
        let mut hasher = blake3::Hasher::new();
        let cut = format!("{train} {} {} {}", self.seq, self.packed, self.order.name());
        hasher.update(cut.as_bytes());
        hasher.update(self.digest.as_bytes());
        self.digest = hasher.finalize().to_hex().to_string();
        Ok(())
    }

    /// Tokens of all data.
    pub fn tokens(&self) -> u64 {
        self.tokens
    }

    /// Number of files.
    pub fn files(&self) -> usize {
        self.files
    }

    /// Documents, where the data has them.
    pub fn documents(&self) -> u64 {
        self.documents.starts.len() as u64
    }

    /// Sequences of the training part, where each is taken once in an epoch.
    pub fn sequences(&self) -> Option<u64> {
        (self.order != Order::Random).then(|| self.training_rows())
    }

    /// In which order sequences are trained on.
    pub fn order(&self) -> Order {
        self.order
    }

    /// What was left out.
    pub fn left_out(&self) -> LeftOut {
        self.left_out
    }

    /// BLAKE3 of tokens and of how they are cut, as hexadecimal: tells on resume whether the data is the same. Of token files above
    /// 1 GiB, evenly spread pieces count.
    pub fn digest(&self) -> &str {
        &self.digest
    }

    fn training_rows(&self) -> u64 {
        match self.rows {
            Rows::Windows => self.windows(self.train),
            Rows::Ranges(_) => self.train,
        }
    }

    /// Whole sequences, each with the token after it, in `tokens` tokens.
    fn windows(&self, tokens: u64) -> u64 {
        tokens.saturating_sub(1) / u64::from(self.seq)
    }

    /// A training micro-batch.
    ///
    /// # Errors
    /// A file that cannot be read any more.
    pub fn training(&self, plan: &BatchPlan, iteration: u64, micro_step: u32) -> Result<Batch> {
        let rows = self.training_rows();
        let picks = plan.training(self.order, self.train, rows, iteration, micro_step);
        self.collect(plan, picks.into_iter())
    }

    /// Number of evaluation sequences.
    pub fn evaluation_sequences(&self) -> u64 {
        match self.rows {
            Rows::Windows => self.windows(self.total - self.train),
            Rows::Ranges(_) => self.total - self.train,
        }
    }

    /// Evaluation sequences `[first, first + plan.sequences)`, fewer at the end, none past it.
    ///
    /// # Errors
    /// A file that cannot be read any more.
    pub fn evaluation(&self, plan: &BatchPlan, first: u64) -> Result<Batch> {
        let end = self.evaluation_sequences().min(first + u64::from(plan.sequences));
        let seq = u64::from(self.seq);
        let pick = |index| match self.rows {
            Rows::Windows => Pick::Token(self.train + index * seq),
            Rows::Ranges(_) => Pick::Row(self.train + index),
        };
        self.collect(plan, (first..end).map(pick))
    }

    fn collect(&self, plan: &BatchPlan, picks: impl Iterator<Item = Pick>) -> Result<Batch> {
        let mut batch = plan.batch(self.packed);
        let mut tokens = Vec::new();
        for pick in picks {
            let range = self.range(pick);
            tokens.clear();
            self.read(range.clone(), &mut tokens)?;
            batch.add(&tokens, range, self.seq, &self.documents, self.padding);
        }
        Ok(batch)
    }

    fn range(&self, pick: Pick) -> Range<u64> {
        let seq = u64::from(self.seq);
        match (pick, &self.rows) {
            (Pick::Token(start), _) => start..start + seq + 1,
            (Pick::Row(row), Rows::Windows) => row * seq..(row + 1) * seq + 1,
            (Pick::Row(row), Rows::Ranges(ranges)) => ranges[row as usize].clone(),
        }
    }

    fn read(&self, range: Range<u64>, out: &mut Vec<i64>) -> Result<()> {
        match &self.source {
            Source::Bytes(bytes) => {
                let part = &bytes[range.start as usize..range.end as usize];
                out.extend(part.iter().map(|&byte| i64::from(byte)));
            }
            Source::Files(files) => {
                for (first, file) in files {
                    let from = range.start.max(*first);
                    let to = range.end.min(first + file.tokens());
                    if from < to {
                        file.read(from - first, to - from, out)?;
                    }
                }
            }
        }
        Ok(())
    }
}

/// Cuts documents into sequences of at most `seq` inputs and the token after the last.
///
/// Plain documents follow each other and are cut where a sequence is full. Where only a part of each is learned they are not cut: as
/// many as fit share a sequence, and one that is too long loses its end.
fn rows(table: &DocumentTable, tokens: u64, seq: u32, packing: bool) -> (Rows, LeftOut) {
    let seq = u64::from(seq);
    let paired = !table.prompts.is_empty();
    let mut left_out = LeftOut::default();
    let mut ranges: Vec<Range<u64>> = Vec::new();
    if packing && !paired {
        let starts = (0..tokens).step_by(seq as usize);
        ranges.extend(starts.map(|start| start..(start + seq + 1).min(tokens)));
        ranges.retain(|range| range.end - range.start > 1);
        return (Rows::Ranges(ranges), left_out);
    }
    let ends = table.starts.iter().skip(1).copied().chain([tokens]);
    for (index, (&start, end)) in table.starts.iter().zip(ends).enumerate() {
        let prompt = u64::from(table.prompts.get(index).copied().unwrap_or(0));
        let whole = end - start <= seq + 1;
        left_out.cut += u64::from(!whole);
        // A document without a prompt is a text like any other.
        if paired && prompt > 0 {
            if prompt > seq {
                left_out.dropped += 1;
                continue;
            }
            let end = end.min(start + seq + 1);
            match ranges.last_mut() {
                // Adjacent, because nothing between was left out or cut.
                Some(last) if packing && last.end == start && end - last.start <= seq + 1 => {
                    last.end = end;
                }
                _ => ranges.push(start..end),
            }
        } else {
            let pieces = (start..end).step_by(seq as usize);
            let pieces = pieces.map(|from| from..(from + seq + 1).min(end));
            // What remains of the last piece may be one token, which foretells nothing.
            ranges.extend(pieces.filter(|piece| piece.end - piece.start > 1));
        }
    }
    ranges.retain(|range| range.end - range.start > 1);
    (Rows::Ranges(ranges), left_out)
}

/// The bytes of all files one after the other, checked to be UTF-8, with a line feed between files where one does not end with it.
fn read_all(options: &CorpusOptions, files: &Files) -> Result<Vec<u8>> {
    let mut bytes = 0;
    for file in &files.paths {
        let metadata =
            std::fs::metadata(file).map_err(|error| Error::data_io("open it", file, &error))?;
        bytes += metadata.len() as usize + 1;
    }
    let mut text = Vec::new();
    // Reserved at once: growing would hold the text twice for a moment.
    text.try_reserve_exact(bytes).map_err(|error| Error::Data {
        path: options.path.clone(),
        what: format!("{bytes} bytes of text do not fit in memory: {error}"),
        remedy: "give less text with --data, or tokens in files (.bin, .npy)",
    })?;
    for file in &files.paths {
        let start = text.len();
        File::open(file)
            .and_then(|mut opened| opened.read_to_end(&mut text))
            .map_err(|error| Error::data_io("read it", file, &error))?;
        let own = &text[start..];
        std::str::from_utf8(own)
            .map_err(|error| records::not_utf8(file, 0, own, error.valid_up_to()))?;
        if files.paths.len() > 1 && text.last().is_some_and(|&last| last != b'\n') {
            text.push(b'\n');
        }
    }
    Ok(text)
}

#[cfg(test)]
#[path = "corpus_tests.rs"]
mod tests;
