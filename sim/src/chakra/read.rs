//! Reads the files of all ranks.

use std::path::{Path, PathBuf};

use nearfield_runtime::graph::Graph;
use nearfield_runtime::{Error, Result};

use super::attributes::Attributes;
use super::header::Header;
use super::trace::Trace;
use super::{foreign, own};

/// Reads the graph whose ranks have these files, in any order.
///
/// # Errors
/// [`Error::Io`] when a file cannot be read; [`Error::Format`] that names the file and, where there is one, the node,
/// for a file that is not whole or has what a graph does not; [`Error::Graph`] where the ranks do not fit together,
/// such as a send without its receive; [`Error::Invalid`] without any file.
pub fn read(paths: &[PathBuf]) -> Result<Graph> {
    let mut files = Vec::with_capacity(paths.len());
    for path in paths {
        let bytes = std::fs::read(path).map_err(|source| Error::io("read", path, 0, 0, source))?;
        files.push((path.clone(), bytes));
    }
    decode(files)
}

/// The graph of the bytes of files.
pub(super) fn decode(files: Vec<(PathBuf, Vec<u8>)>) -> Result<Graph> {
    let (mut own, mut foreign) = (Vec::new(), Vec::new());
    for (path, bytes) in files {
        let trace = Trace::new(path, bytes)?;
        match Header::read(&Attributes::of_metadata(&trace.path, &trace.metadata.attr))? {
            Some(header) => own.push((trace, header)),
            None => foreign.push(trace),
        }
    }
    match (own.as_mut_slice(), foreign.first()) {
        ([], None) => Err(Error::Invalid(
            "no file of a Chakra trace is given; name the file of each rank, STEM.RANK.et".into(),
        )),
        ([], Some(_)) => foreign::graph(foreign),
        (own, None) => own::graph(own),
        ([(own, _), ..], Some(other)) => {
            let what = format!("is not of Nearfield, but {} is", own.path.display());
            Err(other.error(what, "give the files of one graph"))
        }
    }
}

/// That no two files, in the order of ranks, are of one rank.
pub(super) fn no_rank_twice<'a>(mut files: impl Iterator<Item = (u32, &'a Trace)>) -> Result<()> {
    let mut last = files.next();
    for (rank, trace) in files {
        if let Some((_, other)) = last.filter(|(other, _)| *other == rank) {
            let what = format!("is of rank {rank}, as is {}", other.path.display());
            return Err(trace.error(what, "give each rank's file once, named STEM.RANK.et"));
        }
        last = Some((rank, trace));
    }
    Ok(())
}

/// Adds to the error of a graph which files it is from.
pub(super) fn invalid<'a>(mut paths: impl Iterator<Item = &'a Path>, error: Error) -> Error {
    let (first, more) = (paths.next().unwrap_or(Path::new("")).display(), paths.count());
    match error {
        Error::Graph(what) if more == 0 => Error::Graph(format!("{what} (from {first})")),
        Error::Graph(what) => Error::Graph(format!("{what} (from {first} and {more} others)")),
        other => other,
    }
}
