//! Tokens in files: raw little-endian numbers, or NumPy arrays. Only what a batch needs is read.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::options::TokenWidth;
use crate::error::{Error, Result};

/// Bytes read at a time when all are looked at.
const PIECE: u64 = 1 << 20;
/// Bytes that are looked at of files with more than that.
const SAMPLED: u64 = 1 << 30;
/// Longest header of a NumPy file that is believed.
const NPY_HEADER_MAX: usize = 1 << 16;

/// One token in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Number {
    U8,
    U16,
    U32,
    I32,
    I64,
}

impl Number {
    const fn bytes(self) -> u64 {
        match self {
            Self::U8 => 1,
            Self::U16 => 2,
            Self::U32 | Self::I32 => 4,
            Self::I64 => 8,
        }
    }

    fn decode(self, raw: &[u8], out: &mut Vec<i64>) {
        match self {
            Self::U8 => out.extend(raw.iter().map(|&byte| i64::from(byte))),
            Self::U16 => {
                out.extend(raw.as_chunks().0.iter().map(|&b| i64::from(u16::from_le_bytes(b))))
            }
            Self::U32 => {
                out.extend(raw.as_chunks().0.iter().map(|&b| i64::from(u32::from_le_bytes(b))))
            }
            Self::I32 => {
                out.extend(raw.as_chunks().0.iter().map(|&b| i64::from(i32::from_le_bytes(b))))
            }
            Self::I64 => out.extend(raw.as_chunks().0.iter().map(|&b| i64::from_le_bytes(b))),
        }
    }
}

/// A file of tokens.
#[derive(Debug)]
pub(super) struct TokenFile {
    path: PathBuf,
    file: File,
    start: u64,
    number: Number,
    tokens: u64,
}

impl TokenFile {
    /// Raw numbers of a width.
    pub fn raw(path: &Path, width: TokenWidth) -> Result<Self> {
        let number = match width {
            TokenWidth::U16 => Number::U16,
            TokenWidth::U32 => Number::U32,
        };
        let file = File::open(path).map_err(|error| Error::data_io("open it", path, &error))?;
        let length = length(&file, path)?;
        if !length.is_multiple_of(number.bytes()) {
            return Err(Error::Data {
                path: path.to_path_buf(),
                what: format!(
                    "it has {length} bytes, which are no whole number of {} tokens",
                    width.name()
                ),
                remedy: "give the width of its tokens with --token-width, or make the file again",
            });
        }
        let tokens = length / number.bytes();
        Ok(Self { path: path.to_path_buf(), file, start: 0, number, tokens })
    }

    /// A NumPy array (format 1 to 3).
    pub fn npy(path: &Path) -> Result<Self> {
        let wrong = |what: String| Error::Data {
            path: path.to_path_buf(),
            what,
            remedy: "save a one-dimensional array of uint16, uint32, int32 or int64 with numpy.save",
        };
        let mut file = File::open(path).map_err(|error| Error::data_io("open it", path, &error))?;
        let length = length(&file, path)?;
        let (header, start) = npy_header(&mut file).map_err(|what| wrong(what.to_owned()))?;
        let value = |key: &str| {
            let rest = header.split_once(&format!("'{key}':"))?.1.trim_start();
            Some(rest.to_owned())
        };
        let descr = value("descr").unwrap_or_default();
        let number = match descr.trim_start_matches('\'').get(..3) {
            Some("|u1") => Number::U8,
            Some("<u2") => Number::U16,
            Some("<u4") => Number::U32,
            Some("<i4") => Number::I32,
            Some("<i8") => Number::I64,
            _ => {
                let kind: String = descr.chars().take_while(|&c| c != ',').collect();
                return Err(wrong(format!(
                    "its numbers are {kind}, not whole numbers of this kind"
                )));
            }
        };
        let shape = value("shape").unwrap_or_default();
        let sizes: Vec<&str> = shape
            .trim_start_matches('(')
            .split(')')
            .next()
            .unwrap_or_default()
            .split(',')
            .map(str::trim)
            .filter(|size| !size.is_empty())
            .collect();
        let [size] = sizes[..] else {
            return Err(wrong(format!("its array has {} dimensions", sizes.len())));
        };
        let tokens: u64 =
            size.parse().map_err(|_| wrong(format!("its size {size:?} is no number")))?;
        let needed = tokens.checked_mul(number.bytes()).and_then(|bytes| bytes.checked_add(start));
        if needed != Some(length) {
            return Err(wrong(format!(
                "it has {length} bytes, but an array of {tokens} tokens was promised; it is cut off"
            )));
        }
        Ok(Self { path: path.to_path_buf(), file, start, number, tokens })
    }

    /// Number of tokens.
    pub fn tokens(&self) -> u64 {
        self.tokens
    }

    /// Appends tokens `[first, first + count)` to `out`.
    pub fn read(&self, first: u64, count: u64, out: &mut Vec<i64>) -> Result<()> {
        let mut raw = vec![0; (count * self.number.bytes()) as usize];
        self.file
            .read_exact_at(&mut raw, self.start + first * self.number.bytes())
            .map_err(|error| Error::data_io("read it", &self.path, &error))?;
        self.number.decode(&raw, out);
        Ok(())
    }

    /// Looks through the file, or evenly spread pieces of a large one: the largest token, and a digest of what was seen.
    pub fn survey(&self) -> Result<(i64, blake3::Hash)> {
        let width = self.number.bytes();
        let per_piece = PIECE / width;
        let pieces = self.tokens.div_ceil(per_piece);
        let wanted = (SAMPLED / PIECE).min(pieces);
        let mut hasher = blake3::Hasher::new();
        hasher.update(&self.tokens.to_le_bytes());
        let mut largest = -1;
        let mut tokens = Vec::new();
        for number in 0..wanted {
            // The first and the last are among them.
            let piece =
                if wanted == pieces { number } else { number * (pieces - 1) / (wanted - 1) };
            let first = piece * per_piece;
            tokens.clear();
            self.read(first, per_piece.min(self.tokens - first), &mut tokens)?;
            for token in &tokens {
                if *token < 0 {
                    return Err(Error::Data {
                        path: self.path.clone(),
                        what: format!("it holds the negative token {token}"),
                        remedy: "a token is the number of an entry of the vocabulary: make the file again",
                    });
                }
                largest = largest.max(*token);
            }
            hasher.update(bytemuck::cast_slice(&tokens));
        }
        Ok((largest, hasher.finalize()))
    }
}

fn length(file: &File, path: &Path) -> Result<u64> {
    let metadata = file.metadata().map_err(|error| Error::data_io("read it", path, &error))?;
    Ok(metadata.len())
}

/// The header's text, and where the data begins.
fn npy_header(file: &mut File) -> std::result::Result<(String, u64), &'static str> {
    let mut start = [0; 8];
    file.read_exact(&mut start).map_err(|_| "it is too short for a NumPy array")?;
    if &start[..6] != b"\x93NUMPY" {
        return Err("it does not begin as a NumPy array does");
    }
    let mut size = [0; 4];
    let width = if start[6] == 1 { 2 } else { 4 };
    file.read_exact(&mut size[..width]).map_err(|_| "its header is cut off")?;
    let size = u32::from_le_bytes(size) as usize;
    if size > NPY_HEADER_MAX {
        return Err("its header is longer than any that is known");
    }
    let mut text = vec![0; size];
    file.read_exact(&mut text).map_err(|_| "its header is cut off")?;
    let text = String::from_utf8(text).map_err(|_| "its header is no text")?;
    Ok((text, (8 + width + size) as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn npy(descr: &str, shape: &str, data: &[u8]) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().unwrap();
        let header =
            format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}\n");
        let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
        bytes.extend((header.len() as u16).to_le_bytes());
        bytes.extend(header.bytes());
        bytes.extend(data);
        std::fs::write(file.path(), bytes).unwrap();
        file
    }

    #[test]
    fn raw_and_numpy_tokens_are_read_anywhere() {
        let data: Vec<u8> = (0..100_u16).flat_map(|n| (n * 300).to_le_bytes()).collect();
        let raw = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(raw.path(), &data).unwrap();
        let array = npy("<u2", "(100,)", &data);
        for file in [
            TokenFile::raw(raw.path(), TokenWidth::U16).unwrap(),
            TokenFile::npy(array.path()).unwrap(),
        ] {
            let mut tokens = vec![7];
            file.read(98, 2, &mut tokens).unwrap();
            assert_eq!((file.tokens(), &tokens[..]), (100, &[7, 29_400, 29_700][..]));
            assert_eq!(file.survey().unwrap().0, 29_700);
            assert!(file.read(99, 2, &mut tokens).is_err());
        }
        let wide: Vec<u8> = [5_i64, -1].iter().flat_map(|n| n.to_le_bytes()).collect();
        let file = npy("<i8", "(2,)", &wide);
        let text = TokenFile::npy(file.path()).unwrap().survey().unwrap_err().to_string();
        assert!(text.contains("negative token -1"), "{text}");
    }

    #[test]
    fn files_that_are_no_tokens_say_what_they_are() {
        let text =
            |file: tempfile::NamedTempFile| TokenFile::npy(file.path()).unwrap_err().to_string();
        assert!(text(npy("<f4", "(2,)", &[0; 8])).contains("<f4"));
        assert!(text(npy("<u2", "(2, 2)", &[0; 8])).contains("2 dimensions"));
        assert!(text(npy("<u2", "()", &[0; 2])).contains("0 dimensions"));
        assert!(text(npy("<u2", "(9,)", &[0; 8])).contains("cut off"));
        assert!(text(npy("<u2", "(99999999999999999999,)", &[0; 8])).contains("no number"));
        let plain = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(plain.path(), "odd").unwrap();
        let error = TokenFile::raw(plain.path(), TokenWidth::U16).unwrap_err().to_string();
        assert!(error.contains("3 bytes") && error.contains("--token-width"), "{error}");
        assert!(text(plain).contains("too short"));
    }
}
