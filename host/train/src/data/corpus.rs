//! Text files as one sequence of byte tokens, with an evaluation part at the end.

use std::fs::{self, File};
use std::io::Read;
use std::ops::Range;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// Where text comes from and how it is split.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CorpusOptions {
    /// A text file, or a directory whose files are taken in the order of their paths.
    pub path: PathBuf,
    /// Extensions of the files taken from a directory, without the dot.
    #[serde(default = "default_extensions")]
    pub extensions: Vec<String>,
    /// Part of the tokens, from the end, that is kept for evaluation; 0 for none.
    #[serde(default = "default_evaluation_fraction")]
    pub evaluation_fraction: f64,
}

fn default_extensions() -> Vec<String> {
    ["txt", "md", "rst", "py", "rs"].map(String::from).to_vec()
}

const fn default_evaluation_fraction() -> f64 {
    0.05
}

impl CorpusOptions {
    /// Text at `path` with the default extensions (txt, md, rst, py, rs) and evaluation fraction (0.05).
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            extensions: default_extensions(),
            evaluation_fraction: default_evaluation_fraction(),
        }
    }
}

/// The tokens of a run; the only copy in memory, one byte a token.
#[derive(Debug)]
pub struct Corpus {
    tokens: Vec<u8>,
    train: usize,
    files: usize,
}

impl Corpus {
    /// Reads the text. `seq`: tokens of a sequence; both parts must hold at least one sequence and the token after it.
    ///
    /// Files of a directory are separated by a line feed where one does not end with it. Symbolic links to files are followed, those to
    /// directories inside the tree are not.
    pub fn load(options: &CorpusOptions, seq: u32) -> Result<Self> {
        let path = &options.path;
        let metadata =
            fs::metadata(path).map_err(|error| Error::data_io("open it", path, &error))?;
        let files = if metadata.is_dir() {
            let mut files = Vec::new();
            list(path, &options.extensions, &mut files)?;
            // Comparing whole paths keeps the order independent of the file system's.
            files.sort();
            files
        } else if metadata.is_file() {
            vec![path.clone()]
        } else {
            return Err(Error::Data {
                path: path.clone(),
                what: "it is neither a file nor a directory".into(),
                remedy: "give a text file or a directory with --data",
            });
        };
        if files.is_empty() {
            return Err(Error::Data {
                path: path.clone(),
                what: format!(
                    "there is no file with one of the extensions {} in it",
                    options.extensions.join(", ")
                ),
                remedy: "give another directory with --data",
            });
        }
        let tokens = read_all(&files, path)?;
        Self::split(tokens, files.len(), options, seq)
    }

    fn split(tokens: Vec<u8>, files: usize, options: &CorpusOptions, seq: u32) -> Result<Self> {
        let fraction = options.evaluation_fraction;
        if !(0.0..1.0).contains(&fraction) {
            return Err(Error::Invalid(format!(
                "evaluation fraction {fraction} is not at least 0 and below 1; use 0.05, for example"
            )));
        }
        let evaluation = (tokens.len() as f64 * fraction) as usize;
        let train = tokens.len() - evaluation;
        let needed = seq as usize + 1;
        let short = |name: &str, have: usize| Error::Data {
            path: options.path.clone(),
            what: if tokens.is_empty() {
                "it holds no text".into()
            } else {
                format!(
                    "the {name} part has {have} tokens of {}, but a sequence needs {needed}",
                    tokens.len()
                )
            },
            remedy: "give more text with --data or use a smaller --seq",
        };
        if train < needed {
            return Err(short("training", train));
        }
        if fraction > 0.0 && evaluation < needed {
            return Err(short("evaluation", evaluation));
        }
        Ok(Self { tokens, train, files })
    }

    /// Tokens of the training part.
    pub fn train(&self) -> &[u8] {
        &self.tokens[..self.train]
    }

    /// Tokens of the evaluation part; empty when the fraction is 0.
    pub fn evaluation(&self) -> &[u8] {
        &self.tokens[self.train..]
    }

    /// Number of files read.
    pub fn files(&self) -> usize {
        self.files
    }

    /// Smallest vocabulary that holds every token.
    pub fn vocab_needed(&self) -> u32 {
        self.tokens.iter().max().map_or(0, |&token| u32::from(token) + 1)
    }

    /// BLAKE3 of tokens and split, as hexadecimal: tells on resume whether the data is the same.
    pub fn digest(&self) -> String {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&(self.train as u64).to_le_bytes());
        hasher.update(&self.tokens);
        hasher.finalize().to_hex().to_string()
    }
}

/// Appends the files below `directory` that have one of `extensions`.
fn list(directory: &Path, extensions: &[String], files: &mut Vec<PathBuf>) -> Result<()> {
    let fail = |path: &Path, error: &std::io::Error| Error::data_io("list it", path, error);
    let entries = fs::read_dir(directory).map_err(|error| fail(directory, &error))?;
    for entry in entries {
        let entry = entry.map_err(|error| fail(directory, &error))?;
        let path = entry.path();
        let kind = entry.file_type().map_err(|error| fail(&path, &error))?;
        if kind.is_dir() {
            list(&path, extensions, files)?;
        } else if has_extension(&path, extensions) && path.is_file() {
            files.push(path);
        }
    }
    Ok(())
}

fn has_extension(path: &Path, extensions: &[String]) -> bool {
    path.extension().is_some_and(|extension| {
        extensions
            .iter()
            .any(|wanted| extension.eq_ignore_ascii_case(wanted.trim_start_matches('.')))
    })
}

/// The bytes of all files one after the other, checked to be UTF-8.
fn read_all(files: &[PathBuf], root: &Path) -> Result<Vec<u8>> {
    let mut bytes = 0;
    for file in files {
        let metadata =
            fs::metadata(file).map_err(|error| Error::data_io("open it", file, &error))?;
        bytes += metadata.len() as usize + 1;
    }
    let mut tokens = Vec::new();
    // Reserved at once: growing would hold the text twice for a moment.
    tokens.try_reserve_exact(bytes).map_err(|error| Error::Data {
        path: root.to_path_buf(),
        what: format!("{bytes} bytes of text do not fit in memory: {error}"),
        remedy: "give less text with --data",
    })?;
    for file in files {
        let range = append(file, &mut tokens)?;
        check_utf8(file, &tokens[range])?;
        if files.len() > 1 && tokens.last().is_some_and(|&last| last != b'\n') {
            tokens.push(b'\n');
        }
    }
    Ok(tokens)
}

fn append(file: &Path, tokens: &mut Vec<u8>) -> Result<Range<usize>> {
    let start = tokens.len();
    File::open(file)
        .and_then(|mut opened| opened.read_to_end(tokens))
        .map_err(|error| Error::data_io("read it", file, &error))?;
    Ok(start..tokens.len())
}

fn check_utf8(file: &Path, text: &[u8]) -> Result<()> {
    std::str::from_utf8(text).map(drop).map_err(|error| {
        let offset = error.valid_up_to();
        Error::Data {
            path: file.to_path_buf(),
            what: format!(
                "byte {offset} (value {:#04x}) does not continue UTF-8 text",
                text[offset]
            ),
            remedy: "convert the file (iconv -t UTF-8) or leave it out of --data",
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(path: &Path) -> CorpusOptions {
        CorpusOptions::new(path)
    }

    fn file(text: &[u8]) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), text).unwrap();
        file
    }

    #[test]
    fn evaluation_part_comes_from_the_end() {
        let text: Vec<u8> = (0..200u8).map(|i| i % 100).collect();
        let file = file(&text);
        let corpus = Corpus::load(&options(file.path()), 8).unwrap();
        assert_eq!(corpus.train(), &text[..190]);
        assert_eq!(corpus.evaluation(), &text[190..]);
        assert_eq!(corpus.vocab_needed(), 100);
        let mut none = options(file.path());
        none.evaluation_fraction = 0.0;
        let corpus_all = Corpus::load(&none, 8).unwrap();
        assert_eq!(corpus_all.train().len(), 200);
        assert_eq!(corpus_all.evaluation(), b"");
        assert_ne!(corpus.digest(), corpus_all.digest());
    }

    #[test]
    fn directory_is_read_by_extension_in_path_order() {
        let root = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let path = root.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("b/2.txt", "two");
        write("b/1.TXT", "one\n");
        write("a.md", "first");
        write("c.bin", "\u{0}ignored");
        write("b/empty.txt", "");
        write("z/deep/er/3.rs", "three");
        std::os::unix::fs::symlink(root.path(), root.path().join("loop")).unwrap();
        std::os::unix::fs::symlink(root.path().join("a.md"), root.path().join("zz.md")).unwrap();
        let mut options = options(root.path());
        options.evaluation_fraction = 0.0;
        let corpus = Corpus::load(&options, 4).unwrap();
        assert_eq!(
            corpus.train(),
            b"first\none\ntwo\nthree\nfirst\n",
            "{:?}",
            String::from_utf8_lossy(corpus.train())
        );
        assert_eq!(corpus.files(), 6);
    }

    #[test]
    fn bad_utf8_is_named_with_file_and_offset() {
        let file = file(b"good \xff bad");
        let text = Corpus::load(&options(file.path()), 2).unwrap_err().to_string();
        assert!(text.contains("byte 5") && text.contains("0xff"), "{text}");
        assert!(text.contains(file.path().to_str().unwrap()), "{text}");
    }

    #[test]
    fn text_cut_inside_a_character_is_bad_utf8() {
        let file = file(&"abcdé".as_bytes()[..5]);
        let text = Corpus::load(&options(file.path()), 2).unwrap_err().to_string();
        assert!(text.contains("byte 4"), "{text}");
    }

    #[test]
    fn empty_missing_and_short_data_are_named_with_a_remedy() {
        let text = |path: &Path, seq| {
            Corpus::load(&options(path), seq)
                .err()
                .map(|error| error.to_string())
                .unwrap_or_default()
        };
        let empty = file(b"");
        assert!(text(empty.path(), 4).contains("holds no text"));
        let short = file(&[b'x'; 100]);
        assert!(text(short.path(), 95).contains("training part has 95 tokens of 100"));
        assert!(text(short.path(), 5).contains("evaluation part has 5 tokens"));
        assert_eq!(text(short.path(), 4), "");
        assert!(text(Path::new("/nowhere/x"), 4).contains("--data"));
        let directory = tempfile::tempdir().unwrap();
        assert!(text(directory.path(), 4).contains("txt, md"));
        assert!(text(Path::new("/dev/null"), 4).contains("neither a file nor a directory"));
    }

    #[test]
    fn fraction_out_of_range_is_refused() {
        let file = file(&[b'x'; 100]);
        let mut options = options(file.path());
        for fraction in [-0.1, 1.0, f64::NAN] {
            options.evaluation_fraction = fraction;
            assert!(Corpus::load(&options, 4).is_err());
        }
    }
}
