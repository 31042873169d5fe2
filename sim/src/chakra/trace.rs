//! A file as its nodes: every one has an id of its own, and what it waits for is in the file.

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;

use nearfield_runtime::{Error, Result};

use super::attributes::Attributes;
use super::framing::{self, COPY_AGAIN};
use super::proto::{GlobalMetadata, Node};

/// The bytes of a file, with its metadata decoded.
pub(super) struct Trace {
    pub path: PathBuf,
    pub metadata: GlobalMetadata,
    bytes: Vec<u8>,
    /// Where the first node is.
    nodes_at: usize,
}

/// What was understood of a node.
pub(super) struct Entry<T> {
    pub id: u64,
    pub name: String,
    /// Places in the file of the nodes that come first.
    pub after: Vec<usize>,
    pub content: T,
}

impl<T> Entry<T> {
    /// A sentence about the node.
    fn named(&self, what: &str) -> String {
        format!("node {} ({}) {what}", self.id, self.name)
    }
}

impl Trace {
    /// Decodes the metadata.
    ///
    /// # Errors
    /// [`Error::Format`] that names the file.
    pub fn new(path: PathBuf, bytes: Vec<u8>) -> Result<Self> {
        let mut trace = Self { path, metadata: GlobalMetadata::default(), bytes, nodes_at: 0 };
        if trace.bytes.starts_with(&[0x1f, 0x8b]) {
            return Err(trace.error("is compressed", "unpack it with gunzip first"));
        }
        let what = || "the GlobalMetadata that a Chakra trace begins with".to_owned();
        match framing::next(&trace.path, &trace.bytes, &mut trace.nodes_at, what)? {
            Some(metadata) => trace.metadata = metadata,
            None => return Err(trace.error("is empty", COPY_AGAIN)),
        }
        Ok(trace)
    }

    /// An error that names the file.
    pub fn error(&self, what: impl Into<String>, remedy: &str) -> Error {
        Error::Format { path: self.path.clone(), what: what.into(), remedy: remedy.to_owned() }
    }

    /// All nodes, in the order of the file.
    ///
    /// # Errors
    /// [`Error::Format`] that names file and node: bytes that are no node, an id twice, a node that waits for one that
    /// is not there or for itself, and what `understand` does not take.
    pub fn entries<T>(
        &self,
        mut understand: impl FnMut(&Node, &Attributes) -> Result<T>,
    ) -> Result<Vec<Entry<T>>> {
        let mut entries: Vec<Entry<T>> = Vec::new();
        let mut ids: HashMap<u64, usize> = HashMap::new();
        let mut waits: Vec<Vec<u64>> = Vec::new();
        let mut at = self.nodes_at;
        loop {
            let count = entries.len();
            let what = || match entries.last() {
                Some(last) => format!("node number {count}, after {} ({}),", last.id, last.name),
                None => format!("node number {count}"),
            };
            let Some(node) = framing::next::<Node>(&self.path, &self.bytes, &mut at, what)? else {
                break;
            };
            let attributes = Attributes::of_node(&self.path, &node);
            if let Some(first) = ids.insert(node.id, count) {
                let first = &entries[first].name;
                let what = format!("has the id of another node ({first})");
                return Err(attributes.error(what, "give each node of a file an id of its own"));
            }
            let content = understand(&node, &attributes)?;
            let mut deps = node.data_deps;
            deps.extend(&node.ctrl_deps);
            waits.push(deps);
            entries.push(Entry { id: node.id, name: node.name, after: Vec::new(), content });
        }
        self.connect(&mut entries, waits, &ids)?;
        Ok(entries)
    }

    /// Finds the nodes that each one waits for.
    fn connect<T>(
        &self,
        entries: &mut [Entry<T>],
        waits: Vec<Vec<u64>>,
        ids: &HashMap<u64, usize>,
    ) -> Result<()> {
        for (entry, deps) in entries.iter_mut().zip(waits) {
            let mut seen = HashSet::new();
            for id in deps.into_iter().filter(|&id| seen.insert(id)) {
                let Some(&place) = ids.get(&id) else {
                    let what = format!("waits for node {id}, which is not in the file");
                    return Err(self.error(entry.named(&what), COPY_AGAIN));
                };
                entry.after.push(place);
            }
        }
        match in_cycle(entries) {
            Some(entry) => {
                let what = "waits for itself through the nodes that come before it (cycle)";
                Err(self.error(entry.named(what), "take out the edge that closes the cycle"))
            }
            None => Ok(()),
        }
    }
}

/// A node that waits for itself.
fn in_cycle<T>(entries: &[Entry<T>]) -> Option<&Entry<T>> {
    let mut waiting: Vec<usize> = entries.iter().map(|entry| entry.after.len()).collect();
    let mut followers = vec![Vec::new(); entries.len()];
    for (place, entry) in entries.iter().enumerate() {
        for &before in &entry.after {
            followers[before].push(place);
        }
    }
    let mut ready: Vec<usize> = (0..entries.len()).filter(|&place| waiting[place] == 0).collect();
    while let Some(place) = ready.pop() {
        for &next in &followers[place] {
            waiting[next] -= 1;
            if waiting[next] == 0 {
                ready.push(next);
            }
        }
    }
    // A node that never starts may only follow a cycle. As many steps back as there are nodes end in one.
    let stuck = |place: &usize| waiting[*place] > 0;
    let mut place = (0..entries.len()).find(stuck)?;
    for _ in 0..entries.len() {
        place = entries[place].after.iter().copied().find(stuck)?;
    }
    Some(&entries[place])
}
