//! Tokens of text and documents, made once and kept in files.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use serde::{Deserialize, Serialize};

use super::files::Files;
use super::options::{Format, TokenWidth};
use super::records::{self, Record};
use super::tokens::TokenFile;
use super::vocabulary::Vocabulary;
use crate::error::{Error, Result};

/// Raised when the same text would give other files.
const VERSION: u32 = 2;
/// Text that is cut into tokens at a time, by all threads.
const BATCH_BYTES: usize = 8 << 20;

/// Where documents begin and what of them is only context.
#[derive(Debug, Default)]
pub(super) struct DocumentTable {
    /// First token of each.
    pub starts: Vec<u64>,
    /// Tokens at its begin that are no targets; empty where no document has any.
    pub prompts: Vec<u32>,
}

/// Tokens with their documents.
#[derive(Debug)]
pub(super) struct Tokenised {
    pub tokens: TokenFile,
    pub documents: DocumentTable,
    /// One more than the largest token.
    pub vocab_needed: u32,
    /// Tells on resume whether the data is the same.
    pub digest: String,
}

#[derive(Debug, Serialize, Deserialize)]
struct Summary {
    tokens: u64,
    documents: u64,
    prompts: bool,
    vocab_needed: u32,
    width: TokenWidth,
    digest: String,
}

/// Makes the tokens of `files`, or finds those that were made before from the same files with the same tokenizer. `progress` gets bytes
/// done and bytes in all.
pub(super) fn tokenise(
    files: &Files,
    vocabulary: &Vocabulary,
    directory: &Path,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Tokenised> {
    let (key, bytes) = key(files, vocabulary)?;
    let place = |ending: &str| directory.join(format!("{key}.{ending}"));
    let io = |operation: &'static str| {
        move |path: PathBuf| {
            move |error: std::io::Error| Error::Data {
                path,
                what: format!("cannot {operation} tokens: {error}"),
                remedy: "check the disk that holds --out, where tokens are kept",
            }
        }
    };
    let summary = place("json");
    if !summary.exists() {
        std::fs::create_dir_all(directory).map_err(io("keep")(directory.to_path_buf()))?;
        // Another run may be making the same.
        let own = std::process::id();
        let partial = |ending: &str| directory.join(format!("{key}.{own}.{ending}.partial"));
        let mut maker = Maker::new(vocabulary, &partial("tokens"), &partial("documents"))?;
        let mut done = 0;
        for path in &files.paths {
            let length = std::fs::metadata(path).map_or(0, |metadata| metadata.len());
            let mut seen = 0;
            let mut sink = |record: Record| {
                seen += record.bytes();
                progress((done + seen).min(bytes), bytes);
                maker.take(record)
            };
            match files.format {
                Format::Jsonl => records::json_lines(path, &mut sink)?,
                _ => records::text(path, &mut sink)?,
            }
            done += length;
        }
        progress(bytes, bytes);
        let made = maker.finish()?;
        for ending in ["tokens", "documents"] {
            let path = partial(ending);
            std::fs::rename(&path, place(ending)).map_err(io("keep")(path))?;
        }
        // The summary comes last: with it the files are whole.
        let text = serde_json::to_vec_pretty(&made).unwrap_or_default();
        let path = partial("json");
        std::fs::write(&path, text).map_err(io("keep")(path.clone()))?;
        std::fs::rename(&path, &summary).map_err(io("keep")(path))?;
    }
    let damaged = |what: String| Error::Data {
        path: summary.clone(),
        what,
        remedy: "remove the file: tokens are made anew then",
    };
    let text = std::fs::read(&summary).map_err(io("read")(summary.clone()))?;
    let made: Summary = serde_json::from_slice(&text)
        .map_err(|error| damaged(format!("it does not describe tokens: {error}")))?;
    let tokens = TokenFile::raw(&place("tokens"), made.width)?;
    let raw = std::fs::read(place("documents")).map_err(io("read")(place("documents")))?;
    let documents = DocumentTable::parse(&raw, made.prompts);
    let ascending = documents.starts.is_sorted()
        && documents.starts.last().is_none_or(|&start| start < made.tokens);
    if tokens.tokens() != made.tokens
        || documents.starts.len() as u64 != made.documents
        || !ascending
    {
        return Err(damaged("the files beside it do not have what it says".into()));
    }
    Ok(Tokenised { tokens, documents, vocab_needed: made.vocab_needed, digest: made.digest })
}

/// What the tokens depend on, as a name; and the bytes of the files.
fn key(files: &Files, vocabulary: &Vocabulary) -> Result<(String, u64)> {
    let mut hasher = blake3::Hasher::new();
    let head = format!("{VERSION} {} {}\n", files.format.name(), vocabulary.digest());
    hasher.update(head.as_bytes());
    let around = format!("{:?} {:?}\n", vocabulary.begin(), vocabulary.end());
    hasher.update(around.as_bytes());
    let mut bytes = 0;
    for path in &files.paths {
        let failed = |error: std::io::Error| Error::data_io("open it", path, &error);
        let whole = path.canonicalize().map_err(failed)?;
        let metadata = whole.metadata().map_err(failed)?;
        let changed = metadata.modified().ok().and_then(|at| at.duration_since(UNIX_EPOCH).ok());
        let nanoseconds = changed.map_or(0, |time| time.as_nanos());
        let line = format!("{} {} {nanoseconds}\n", whole.display(), metadata.len());
        hasher.update(line.as_bytes());
        bytes += metadata.len();
    }
    let hex = hasher.finalize().to_hex();
    Ok((hex[..16].to_owned(), bytes))
}

impl Record {
    fn bytes(&self) -> u64 {
        match self {
            Self::Text(text) => text.len() as u64,
            Self::Pair { prompt, completion } => (prompt.len() + completion.len()) as u64,
            Self::End => 0,
        }
    }
}

impl DocumentTable {
    /// Bytes of one document in a file.
    const ENTRY: usize = 12;

    fn parse(raw: &[u8], prompts: bool) -> Self {
        let (entries, _) = raw.as_chunks::<{ Self::ENTRY }>();
        let start = |entry: &[u8; Self::ENTRY]| {
            entry.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
        };
        let prompt = |entry: &[u8; Self::ENTRY]| {
            entry.last_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes))
        };
        Self {
            starts: entries.iter().map(start).collect(),
            prompts: if prompts { entries.iter().map(prompt).collect() } else { Vec::new() },
        }
    }
}

/// Cuts records into tokens, many at a time.
struct Maker<'a> {
    vocabulary: &'a Vocabulary,
    tokens: Output,
    documents: Output,
    width: TokenWidth,
    waiting: Vec<Record>,
    waiting_bytes: usize,
    hasher: blake3::Hasher,
    summary: Summary,
    /// Tokens of the document that has begun.
    open: u64,
    raw: Vec<u8>,
}

struct Output {
    path: PathBuf,
    file: BufWriter<File>,
}

impl Output {
    fn create(path: &Path) -> Result<Self> {
        let file = File::create(path).map_err(|error| Self::failed(path, &error))?;
        Ok(Self { path: path.to_path_buf(), file: BufWriter::with_capacity(1 << 20, file) })
    }

    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.file.write_all(bytes).map_err(|error| Self::failed(&self.path, &error))
    }

    fn finish(mut self) -> Result<()> {
        let flushed = self.file.flush().and_then(|()| self.file.get_ref().sync_all());
        flushed.map_err(|error| Self::failed(&self.path, &error))
    }

    fn failed(path: &Path, error: &std::io::Error) -> Error {
        Error::Data {
            path: path.to_path_buf(),
            what: format!("cannot write tokens: {error}"),
            remedy: "make room on the disk that holds --out, where tokens are kept",
        }
    }
}

impl<'a> Maker<'a> {
    fn new(vocabulary: &'a Vocabulary, tokens: &Path, documents: &Path) -> Result<Self> {
        let around = vocabulary.begin().iter().copied().chain(vocabulary.end());
        let largest = around.fold(vocabulary.size().saturating_sub(1), u32::max);
        let width = TokenWidth::of_vocab(largest.saturating_add(1));
        Ok(Self {
            vocabulary,
            tokens: Output::create(tokens)?,
            documents: Output::create(documents)?,
            width,
            waiting: Vec::new(),
            waiting_bytes: 0,
            hasher: blake3::Hasher::new(),
            summary: Summary {
                tokens: 0,
                documents: 0,
                prompts: false,
                vocab_needed: 0,
                width,
                digest: String::new(),
            },
            open: 0,
            raw: Vec::new(),
        })
    }

    fn take(&mut self, record: Record) -> Result<()> {
        self.waiting_bytes += record.bytes() as usize + 16;
        self.waiting.push(record);
        if self.waiting_bytes >= BATCH_BYTES { self.drain() } else { Ok(()) }
    }

    fn drain(&mut self) -> Result<()> {
        let waiting = std::mem::take(&mut self.waiting);
        self.waiting_bytes = 0;
        let mut texts: Vec<&str> = Vec::new();
        for record in &waiting {
            match record {
                Record::Text(text) => texts.push(text),
                Record::Pair { prompt, completion } => texts.extend([&**prompt, &**completion]),
                Record::End => {}
            }
        }
        let mut encoded = self.vocabulary.encode_all(texts)?.into_iter();
        let mut next = || encoded.next().unwrap_or_default();
        for record in &waiting {
            match record {
                Record::Text(_) => self.append(&next())?,
                Record::Pair { .. } => self.pair(&next(), &next())?,
                Record::End => self.close(0)?,
            }
        }
        Ok(())
    }

    /// More of the open document.
    fn append(&mut self, tokens: &[u32]) -> Result<()> {
        if tokens.is_empty() {
            return Ok(());
        }
        if self.open == 0 {
            self.write(self.vocabulary.begin())?;
        }
        self.write(tokens)
    }

    /// A whole document; one that has nothing to learn from is left out.
    fn pair(&mut self, prompt: &[u32], completion: &[u32]) -> Result<()> {
        let vocabulary = self.vocabulary;
        if completion.is_empty() && vocabulary.end().is_none() {
            return Ok(());
        }
        self.write(vocabulary.begin())?;
        self.write(prompt)?;
        let prompt = self.open;
        self.write(completion)?;
        self.close(prompt)
    }

    /// Ends the open document, of which `prompt` tokens are no targets.
    fn close(&mut self, prompt: u64) -> Result<()> {
        if self.open == 0 {
            return Ok(());
        }
        self.write(self.vocabulary.end().as_slice())?;
        let length = std::mem::take(&mut self.open);
        let mut entry = self.summary.tokens.to_le_bytes().to_vec();
        entry.extend((prompt as u32).to_le_bytes());
        self.documents.write(&entry)?;
        self.hasher.update(&entry);
        self.summary.tokens += length;
        self.summary.documents += 1;
        self.summary.prompts |= prompt > 0;
        Ok(())
    }

    fn write(&mut self, tokens: &[u32]) -> Result<()> {
        self.raw.clear();
        for token in tokens {
            match self.width {
                TokenWidth::U16 => self.raw.extend((*token as u16).to_le_bytes()),
                TokenWidth::U32 => self.raw.extend(token.to_le_bytes()),
            }
        }
        self.open += tokens.len() as u64;
        let largest = tokens.iter().max().map_or(0, |&token| token.saturating_add(1));
        self.summary.vocab_needed = self.summary.vocab_needed.max(largest);
        self.hasher.update(&self.raw);
        self.tokens.write(&self.raw)
    }

    fn finish(mut self) -> Result<Summary> {
        self.drain()?;
        self.tokens.finish()?;
        self.documents.finish()?;
        self.summary.digest = self.hasher.finalize().to_hex().to_string();
        Ok(self.summary)
    }
}
