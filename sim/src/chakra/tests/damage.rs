//! Files that are not whole or not right give errors that name file and node.

use nearfield_runtime::Error;
use nearfield_runtime::graph::{Graph, GraphBuilder, Op, Place};
use proptest::prelude::*;

use super::super::attributes::attribute;
use super::super::names;
use super::super::proto::{GlobalMetadata, Node, NodeType, Value};
use super::graphs::{everything, graphs};
use super::{decode, encode, file, parts, refusal};

#[test]
fn a_file_cut_at_any_byte_is_noticed() {
    let files = encode(&everything());
    for rank in 0..files.len() {
        for length in 0..files[rank].len() {
            let mut files = files.clone();
            files[rank].truncate(length);
            let error = decode(files).unwrap_err();
            let named = matches!(&error, Error::Format { path, .. }
                if path.to_str() == Some(&format!("g.{rank}.et")));
            assert!(named, "rank {rank} cut to {length}: {error}");
        }
    }
}

/// Three nodes in a row.
fn row() -> Vec<Node> {
    let node = |id: u64| Node {
        id,
        name: format!("n{id}"),
        r#type: NodeType::Comp as i32,
        data_deps: (1..id).collect(),
        ..Node::default()
    };
    vec![node(1), node(2), node(3)]
}

#[test]
fn a_foreign_file_cut_between_nodes_reads_as_its_first_nodes_and_anywhere_else_is_noticed() {
    let ends = (0..=3).map(|count| file(&GlobalMetadata::default(), &row()[..count]).len());
    let ends: Vec<usize> = ends.collect();
    let whole = file(&GlobalMetadata::default(), &row());
    for length in 0..=whole.len() {
        let read = decode(vec![whole[..length].to_vec()]);
        match ends.iter().position(|&end| end == length) {
            Some(count) => assert_eq!(read.unwrap().tasks().len(), count),
            None => assert!(read.unwrap_err().to_string().contains("g.0.et"), "{length}"),
        }
    }
    // A node that comes before others is missed.
    let error = refusal(vec![file(&GlobalMetadata::default(), &row()[1..])]);
    assert!(error.contains("node 2 (n2) waits for node 1"), "{error}");
}

#[test]
fn a_length_beyond_the_file_is_refused_without_reserving_it() {
    let whole = file(&GlobalMetadata::default(), &row());
    for (length, what) in [
        (vec![0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01], "are left"),
        (vec![0xff, 0xff, 0xff, 0xff, 0x0f], "0 are left"),
        (vec![0xff; 11], "no valid length"),
        (vec![0x80], "no valid length"),
    ] {
        let mut bytes = whole.clone();
        bytes.extend(length);
        let error = refusal(vec![bytes]);
        assert!(error.contains("g.0.et") && error.contains(what), "{error}");
        assert!(error.contains("node number 3, after 3 (n3)"), "{error}");
    }
}

#[test]
fn a_message_of_unreasonable_length_is_refused() {
    let length = 1 << 25;
    let mut bytes = Vec::new();
    prost::encode_length_delimiter(length, &mut bytes).unwrap();
    bytes.resize(bytes.len() + length, 0);
    assert!(refusal(vec![bytes]).contains("is longer than"));
}

/// The error for nodes that were changed.
fn changed(change: impl Fn(&mut Vec<Node>)) -> String {
    let mut nodes = row();
    change(&mut nodes);
    let error = refusal(vec![file(&GlobalMetadata::default(), &nodes)]);
    assert!(error.contains("g.0.et"), "{error}");
    error
}

#[test]
fn ids_edges_and_cycles_are_checked() {
    let error = changed(|nodes| nodes[2].id = 1);
    assert!(error.contains("node 1 (n3) has the id of another node (n1)"), "{error}");
    let error = changed(|nodes| nodes[1].ctrl_deps = vec![u64::MAX]);
    assert!(error.contains(&format!("node 2 (n2) waits for node {}", u64::MAX)), "{error}");
    let error = changed(|nodes| nodes[0].data_deps = vec![1]);
    assert!(error.contains("node 1 (n1)") && error.contains("cycle"), "{error}");
    // The first node only follows the cycle of the two others.
    let error = changed(|nodes| {
        nodes[0].data_deps = vec![2];
        nodes[1].data_deps = vec![3];
        nodes[2].data_deps = vec![2];
    });
    assert!(!error.contains("node 1") && error.contains("cycle"), "{error}");
}

#[test]
fn what_is_no_trace_is_refused() {
    assert!(refusal(vec![vec![]]).contains("g.0.et: is empty"));
    assert!(refusal(vec![vec![0x1f, 0x8b, 8, 0]]).contains("gunzip"));
    assert!(refusal(vec![b"{\"schema\": 1}".to_vec()]).contains("GlobalMetadata"));
}

#[test]
fn files_of_a_graph_are_needed_each_once_and_only_they() {
    let files = encode(&everything());
    let error = refusal(files[..2].to_vec());
    assert!(error.contains("has a rank 7, whose file is not given"), "{error}");
    let mut twice = files.clone();
    twice[1] = files[0].clone();
    assert!(refusal(twice).contains("g.1.et: is of rank 0, as is g.0.et"));
    let mut mixed = files.clone();
    mixed[1] = encode(&kernel("update"))[0].clone();
    assert!(refusal(mixed).contains("not of the same graph"));
    let mut mixed = files;
    mixed[1] = file(&GlobalMetadata::default(), &row());
    assert!(refusal(mixed).contains("g.1.et: is not of Nearfield"));
}

fn kernel(name: &'static str) -> Graph {
    let mut builder = GraphBuilder::new();
    let cpu = builder.resource("cpu", Place::HOST, 1);
    builder.task(cpu, Op::Kernel { name, elements: 1, bytes: 1 }, "run", &[]);
    builder.build().unwrap()
}

#[test]
fn a_kernel_that_is_not_known_is_named() {
    let error = refusal(encode(&kernel("sort")));
    for part in ["g.0.et", "node 0 (run)", "kernel sort", "decompress"] {
        assert!(error.contains(part), "{error}");
    }
}

/// The error for a kernel's file of which an attribute was changed.
fn attribute_changed(of_node: bool, name: &str, value: Option<Value>) -> String {
    let bytes = encode(&kernel("update"));
    let (mut metadata, mut nodes) = parts(&bytes[0]);
    let list = if of_node { &mut nodes[0].attr } else { &mut metadata.attr };
    list.retain(|attribute| attribute.name != name);
    list.extend(value.map(|value| attribute(name, value)));
    let error = refusal(vec![file(&metadata, &nodes)]);
    assert!(error.contains("g.0.et"), "{error}");
    assert!(!of_node || error.contains("node 0 (run)"), "{error}");
    error
}

#[test]
fn attributes_of_nodes_are_checked() {
    let text = |text: &str| Some(Value::String(text.into()));
    for name in [names::OP, names::TASK, names::RESOURCE, names::PHASE, names::KERNEL] {
        assert!(attribute_changed(true, name, None).contains(name));
        assert!(attribute_changed(true, name, Some(Value::Bool(true))).contains(name));
    }
    assert!(attribute_changed(true, names::OP, text("jump")).contains("jump"));
    assert!(attribute_changed(true, names::OP, text("storage")).contains(names::DRIVE));
    for name in [names::TASK, names::RESOURCE, names::PHASE] {
        assert!(attribute_changed(true, name, Some(Value::Uint32(77))).contains("77"), "{name}");
    }
    let error = attribute_changed(true, names::TASK, Some(Value::Uint64(1 << 32)));
    assert!(error.contains("32 bits"), "{error}");
}

#[test]
fn metadata_are_checked() {
    use super::super::attributes::{numbers32, numbers64, signed64, texts};
    let changed = |name, value| attribute_changed(false, name, Some(value));
    assert!(changed(names::FORMAT, Value::Uint64(2)).contains("this build reads 1"));
    assert!(changed(names::NODES, Value::Uint64(2)).contains("has 1 nodes of 2"));
    assert!(changed(names::TASKS, Value::Uint64(u64::MAX)).contains("tasks, not 1"));
    assert!(changed(names::RESOURCES, texts(["a", "a"])).contains("a twice"));
    assert!(changed(names::RESOURCES, texts(["a", "b"])).contains("differ in length"));
    assert!(changed(names::PLACES, texts(["moon"])).contains("moon"));
    assert!(changed(names::PHASES, texts(["a", "a"])).contains("a twice"));
    assert!(changed(names::LANES, numbers64([1])).contains(names::LANES));
    for name in [names::RANK, names::RANKS, names::TASKS, names::PHASES, names::LANES] {
        assert!(attribute_changed(false, name, None).contains(name));
    }
    let mut builder = GraphBuilder::new();
    let cpu = builder.resource("cpu", Place::HOST, 1);
    builder.task(cpu, Op::Mark, "mark", &[]);
    let (mut metadata, nodes) = parts(&encode(&builder.build().unwrap())[0]);
    metadata.attr.extend([
        attribute(names::CLAIM_PLACES, texts(["host"])),
        attribute(names::CLAIM_BYTES, numbers64([1])),
        attribute(names::CLAIM_FROM, signed64([-1])),
        attribute(names::CLAIM_TO, signed64([1])),
    ]);
    assert!(refusal(vec![file(&metadata, &nodes)]).contains("memory for task 1 of 1"));
    metadata.attr.retain(|attribute| attribute.name != names::RANKS);
    metadata.attr.push(attribute(names::RANKS, numbers32([0, 1])));
    assert!(decode(vec![file(&metadata, &nodes)]).is_err());
}

#[test]
fn a_kind_that_does_not_fit_the_operation_is_refused() {
    let (metadata, mut nodes) = parts(&encode(&kernel("update"))[0]);
    nodes[0].r#type = NodeType::MemLoad as i32;
    let error = refusal(vec![file(&metadata, &nodes)]);
    assert!(error.contains("node 0 (run) is of kind 2") && error.contains("COMP_NODE"), "{error}");
}

proptest! {
    #[test]
    fn any_bytes_give_a_graph_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        decode(vec![bytes]).ok();
    }

    #[test]
    fn changed_bytes_give_a_graph_or_an_error(
        graph in graphs(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let mut files = encode(&graph);
        let count = files.len();
        for (place, byte) in changes {
            let file = &mut files[place.index(count)];
            let at = place.index(file.len());
            file[at] = byte;
        }
        decode(files).ok();
    }
}
