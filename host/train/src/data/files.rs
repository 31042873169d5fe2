//! Which files hold the data, and what is in them.

use std::fs;
use std::path::{Path, PathBuf};

use super::options::{CorpusOptions, Format};
use crate::error::{Error, Result};

/// Ends of the names of text files.
const TEXT: &[&str] = &["txt", "md", "rst", "py", "rs"];
const JSONL: &[&str] = &["jsonl", "ndjson"];
const BIN: &[&str] = &["bin"];
const NPY: &[&str] = &["npy"];

/// The files of one kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Files {
    pub format: Format,
    /// In the order of their paths.
    pub paths: Vec<PathBuf>,
}

fn extensions(format: Format) -> &'static [&'static str] {
    match format {
        Format::Auto | Format::Text => TEXT,
        Format::Jsonl => JSONL,
        Format::Bin => BIN,
        Format::Npy => NPY,
    }
}

/// Finds the files of `options`. Symbolic links to files are followed, those to directories inside the tree are not.
///
/// A file is what its name says, else text. Of a directory the first kind is taken that is there: text, JSON lines, `.bin`, `.npy`.
pub(super) fn find(options: &CorpusOptions) -> Result<Files> {
    let path = &options.path;
    let metadata = fs::metadata(path).map_err(|error| Error::data_io("open it", path, &error))?;
    if metadata.is_file() {
        let known = [Format::Jsonl, Format::Bin, Format::Npy];
        let named = known.into_iter().find(|&format| has_extension(path, extensions(format)));
        let json = has_extension(path, &["json"]).then_some(Format::Jsonl);
        let format = match options.format {
            Format::Auto => named.or(json).unwrap_or(Format::Text),
            given => given,
        };
        return Ok(Files { format, paths: vec![path.clone()] });
    }
    if !metadata.is_dir() {
        return Err(Error::Data {
            path: path.clone(),
            what: "it is neither a file nor a directory".into(),
            remedy: "give a file or a directory with --data",
        });
    }
    let wanted = match options.format {
        Format::Auto => vec![Format::Text, Format::Jsonl, Format::Bin, Format::Npy],
        given => vec![given],
    };
    for &format in &wanted {
        let mut paths = Vec::new();
        list(path, extensions(format), &mut paths)?;
        if !paths.is_empty() {
            // Comparing whole paths keeps the order independent of the file system's.
            paths.sort();
            return Ok(Files { format, paths });
        }
    }
    let all: Vec<&str> = wanted.iter().flat_map(|&format| extensions(format)).copied().collect();
    Err(Error::Data {
        path: path.clone(),
        what: format!("there is no file with one of the extensions {} in it", all.join(", ")),
        remedy: "give another directory with --data",
    })
}

/// Appends the files below `directory` that have one of `extensions`.
fn list(directory: &Path, extensions: &[&str], files: &mut Vec<PathBuf>) -> Result<()> {
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

fn has_extension(path: &Path, extensions: &[&str]) -> bool {
    path.extension().is_some_and(|extension| {
        extensions.iter().any(|wanted| extension.eq_ignore_ascii_case(wanted))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_kind_that_is_there_is_taken_in_path_order() {
        let root = tempfile::tempdir().unwrap();
        let write = |name: &str| {
            let path = root.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "x").unwrap();
        };
        let mut options = CorpusOptions::new(root.path());
        let text = find(&options).unwrap_err().to_string();
        assert!(text.contains("txt") && text.contains("npy"), "{text}");
        write("c.bin");
        assert_eq!(find(&options).unwrap().format, Format::Bin);
        write("sub/b.jsonl");
        assert_eq!(find(&options).unwrap().format, Format::Jsonl);
        write("b.TXT");
        write("a/z.md");
        std::os::unix::fs::symlink(root.path(), root.path().join("loop")).unwrap();
        let found = find(&options).unwrap();
        let names: Vec<_> = found.paths.iter().map(|p| p.file_name().unwrap()).collect();
        assert_eq!(
            (found.format, &names[..]),
            (Format::Text, &["z.md".as_ref(), "b.TXT".as_ref()][..])
        );
        options.format = Format::Npy;
        assert!(find(&options).unwrap_err().to_string().contains("extensions npy in it"));
    }

    #[test]
    fn a_file_is_what_its_name_or_the_option_says() {
        let root = tempfile::tempdir().unwrap();
        let format = |name: &str, given| {
            let path = root.path().join(name);
            fs::write(&path, "x").unwrap();
            let options = CorpusOptions { format: given, ..CorpusOptions::new(path) };
            find(&options).unwrap().format
        };
        assert_eq!(format("a.json", Format::Auto), Format::Jsonl);
        assert_eq!(format("a", Format::Auto), Format::Text);
        assert_eq!(format("a.npy", Format::Auto), Format::Npy);
        assert_eq!(format("a.npy", Format::Bin), Format::Bin);
    }
}
