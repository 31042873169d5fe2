//! Files as a whole: bytes, graphs that come back, files of other programs, and files that are damaged.

mod damage;
mod foreign;
mod golden;
mod graphs;
mod round_trip;

use std::path::PathBuf;

use nearfield_runtime::Result;
use nearfield_runtime::graph::Graph;

use super::framing;
use super::proto::{AttributeProto, GlobalMetadata, Node, Value};

/// The bytes of a file with these nodes.
fn file(metadata: &GlobalMetadata, nodes: &[Node]) -> Vec<u8> {
    let mut bytes = Vec::new();
    framing::put(&mut bytes, metadata).unwrap();
    for node in nodes {
        framing::put(&mut bytes, node).unwrap();
    }
    bytes
}

/// Metadata and nodes of a file.
fn parts(bytes: &[u8]) -> (GlobalMetadata, Vec<Node>) {
    let (path, mut at, mut nodes) = (PathBuf::from("parts.et"), 0, Vec::new());
    let metadata = framing::next(&path, bytes, &mut at, String::new).unwrap().unwrap();
    while let Some(node) = framing::next(&path, bytes, &mut at, String::new).unwrap() {
        nodes.push(node);
    }
    (metadata, nodes)
}

/// An attribute's value.
fn value<'a>(list: &'a [AttributeProto], name: &str) -> Option<&'a Value> {
    list.iter().find(|attribute| attribute.name == name)?.value.as_ref()
}

/// Reads files that are called `g.0.et`, `g.1.et` and so on.
fn decode(files: Vec<Vec<u8>>) -> Result<Graph> {
    let named = |(rank, bytes)| (PathBuf::from(format!("g.{rank}.et")), bytes);
    super::read::decode(files.into_iter().enumerate().map(named).collect())
}

/// The bytes of the file of each rank.
fn encode(graph: &Graph) -> Vec<Vec<u8>> {
    super::write::encode(graph, None).unwrap().into_iter().map(|(_, bytes)| bytes).collect()
}

/// The error of reading files.
fn refusal(files: Vec<Vec<u8>>) -> String {
    decode(files).unwrap_err().to_string()
}

/// Bytes from hexadecimal digits; spaces do not count.
fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> =
        text.bytes().filter_map(|digit| (digit as char).to_digit(16)).map(|d| d as u8).collect();
    digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect()
}

/// All that is equal in equal graphs.
fn assert_same(read: &Graph, written: &Graph) {
    assert_eq!(format!("{read:#?}"), format!("{written:#?}"));
}
