//! Documents from text files and from lines of JSON.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

use serde_json::Value;

use crate::error::{Error, Result};

/// Longest line of JSON.
const LINE_MAX: usize = 256 << 20;
/// Text is cut in pieces of about this size, at ends of lines.
const PIECE: usize = 1 << 20;

/// What was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Record {
    /// A part of a document's text.
    Text(String),
    /// A whole document of two parts; only the second is learned.
    Pair { prompt: String, completion: String },
    /// The document ends here.
    End,
}

/// Reads a text file as one document.
pub(super) fn text(path: &Path, sink: &mut dyn FnMut(Record) -> Result<()>) -> Result<()> {
    let file = File::open(path).map_err(|error| Error::data_io("open it", path, &error))?;
    let mut reader = BufReader::new(file);
    let (mut bytes, mut offset) = (Vec::new(), 0_u64);
    loop {
        let read = reader
            .read_until(b'\n', &mut bytes)
            .map_err(|error| Error::data_io("read it", path, &error))?;
        let next = reader.fill_buf().map_err(|error| Error::data_io("read it", path, &error))?;
        // White space after the end of a line belongs to it: tokens go over both.
        let joined = next.first().is_some_and(u8::is_ascii_whitespace);
        if read == 0 || (bytes.len() >= PIECE && !joined) {
            let piece = String::from_utf8(std::mem::take(&mut bytes)).map_err(|error| {
                not_utf8(path, offset, error.as_bytes(), error.utf8_error().valid_up_to())
            })?;
            offset += piece.len() as u64;
            if !piece.is_empty() {
                sink(Record::Text(piece))?;
            }
        }
        if read == 0 {
            return sink(Record::End);
        }
    }
}

/// `bytes`, which begin at `start` of a file, are no UTF-8 from `valid` on.
pub(super) fn not_utf8(path: &Path, start: u64, bytes: &[u8], valid: usize) -> Error {
    Error::Data {
        path: path.to_path_buf(),
        what: format!(
            "byte {} (value {:#04x}) does not continue UTF-8 text",
            start + valid as u64,
            bytes.get(valid).copied().unwrap_or_default()
        ),
        remedy: "convert the file (iconv -t UTF-8) or leave it out of --data",
    }
}

/// Reads a file with one JSON object a line. Empty lines do not count.
pub(super) fn json_lines(path: &Path, sink: &mut dyn FnMut(Record) -> Result<()>) -> Result<()> {
    let file = File::open(path).map_err(|error| Error::data_io("open it", path, &error))?;
    let mut reader = BufReader::new(file);
    let mut line = Vec::new();
    for number in 1_u64.. {
        line.clear();
        let read = (&mut reader)
            .take(LINE_MAX as u64 + 1)
            .read_until(b'\n', &mut line)
            .map_err(|error| Error::data_io("read it", path, &error))?;
        if read == 0 {
            break;
        }
        let wrong = |what: String| Error::Data {
            path: path.to_path_buf(),
            what: format!("line {number}: {what}"),
            remedy: "each line is one JSON object with the key text, or with prompt and completion",
        };
        if read > LINE_MAX {
            return Err(wrong(format!("it is longer than {LINE_MAX} bytes")));
        }
        if line.iter().all(u8::is_ascii_whitespace) {
            continue;
        }
        for record in parse(&line).map_err(wrong)? {
            sink(record)?;
        }
    }
    Ok(())
}

/// The records of one line.
fn parse(line: &[u8]) -> std::result::Result<Vec<Record>, String> {
    let value: Value = serde_json::from_slice(line).map_err(|error| {
        // The line's own number is said already.
        let text = error.to_string();
        let what = text.split(" at line ").next().unwrap_or_default();
        format!("it is no JSON: {what} at column {}", error.column())
    })?;
    let Value::Object(keys) = value else {
        return Err("it is no JSON object".to_owned());
    };
    let string = |key: &str| match keys.get(key) {
        None => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.clone())),
        Some(other) => Err(format!("{key} is {}, not a text", kind(other))),
    };
    match (string("text")?, string("prompt")?, string("completion")?) {
        (Some(text), None, None) => Ok(vec![Record::Text(text), Record::End]),
        (None, Some(prompt), Some(completion)) => Ok(vec![Record::Pair { prompt, completion }]),
        (None, Some(_), None) => Err("there is a prompt but no completion".to_owned()),
        (None, None, Some(_)) => Err("there is a completion but no prompt".to_owned()),
        (Some(_), ..) => Err("there is a text and a prompt or completion as well".to_owned()),
        (None, None, None) if keys.contains_key("messages") => Err(
            "there are messages of a conversation: write them as prompt and completion, in the model's chat template".to_owned(),
        ),
        (None, None, None) => {
            let have: Vec<&str> = keys.keys().take(5).map(String::as_str).collect();
            Err(format!("there is no text; its keys are {}", have.join(", ")))
        }
    }
}

const fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "a number",
        Value::String(_) => "a text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(content: &[u8], json: bool) -> Result<Vec<Record>> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), content).unwrap();
        let mut records = Vec::new();
        let mut sink = |record| {
            records.push(record);
            Ok(())
        };
        if json {
            json_lines(file.path(), &mut sink)?;
        } else {
            text(file.path(), &mut sink)?;
        }
        Ok(records)
    }

    #[test]
    fn lines_are_texts_or_pairs() {
        let lines =
            b"{\"text\": \"a\\nb\"}\n\n{\"prompt\": \"p\", \"completion\": \"c\", \"id\": 3}";
        let pair = Record::Pair { prompt: "p".into(), completion: "c".into() };
        assert_eq!(read(lines, true).unwrap(), [Record::Text("a\nb".into()), Record::End, pair]);
    }

    #[test]
    fn a_broken_line_is_named_by_its_number() {
        let text = |lines: &str| read(lines.as_bytes(), true).unwrap_err().to_string();
        let broken = text("{\"text\": \"a\"}\n\n{\"text\": \"b\"\n");
        assert!(broken.contains("line 3: it is no JSON") && broken.contains("column"), "{broken}");
        assert!(text("[1]").contains("line 1: it is no JSON object"));
        assert!(text("{\"text\": 3}").contains("text is a number"));
        assert!(text("{\"prompt\": \"a\"}").contains("no completion"));
        assert!(text("{\"body\": \"a\"}").contains("its keys are body"));
        assert!(text("{\"messages\": []}").contains("chat template"));
        let bad = read(b"{\"text\": \"\xff\"}", true).unwrap_err().to_string();
        assert!(bad.contains("line 1"), "{bad}");
    }

    #[test]
    fn long_text_is_cut_at_ends_of_lines_and_stays_whole() {
        let line = "word ".repeat(20) + "\n";
        let content = line.repeat(30_000) + "  indented\nlast";
        let records = read(content.as_bytes(), false).unwrap();
        let pieces: Vec<&str> = records
            .iter()
            .filter_map(|record| match record {
                Record::Text(text) => Some(text.as_str()),
                _ => None,
            })
            .collect();
        assert!(pieces.len() > 2 && pieces.concat() == content);
        assert!(pieces[..pieces.len() - 1].iter().all(|piece| piece.ends_with('\n')));
        assert_eq!(records.last(), Some(&Record::End));
        let bad = read(b"good\n\xc3\x28", false).unwrap_err().to_string();
        assert!(bad.contains("byte 5 (value 0xc3)") && bad.contains("iconv"), "{bad}");
    }
}
