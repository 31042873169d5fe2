//! Graphs that were written come back, and what other programs see of them.

use nearfield_runtime::graph::{Graph, GraphBuilder, Op, Place};
use nearfield_runtime::timeline::{Span, Timeline};
use proptest::prelude::*;

use super::super::proto::{Node, NodeType, Value};
use super::super::{names, read, write};
use super::graphs::{everything, graphs};
use super::{assert_same, decode, encode, parts, value};

fn node<'a>(files: &'a [Vec<Node>], name: &str) -> &'a Node {
    files.iter().flatten().find(|node| node.name == name).unwrap()
}

fn nodes(graph: &Graph) -> Vec<Vec<Node>> {
    encode(graph).iter().map(|bytes| parts(bytes).1).collect()
}

#[test]
fn a_graph_with_everything_comes_back_through_files() {
    let folder = tempfile::tempdir().unwrap();
    let graph = everything();
    let mut paths = write(&graph, None, &folder.path().join("a.step")).unwrap();
    let names: Vec<_> = paths.iter().map(|path| path.file_name().unwrap()).collect();
    assert_eq!(names, ["a.step.0.et", "a.step.2.et", "a.step.7.et"]);
    paths.rotate_left(1);
    assert_same(&read(&paths).unwrap(), &graph);
}

proptest! {
    #[test]
    fn graphs_come_back(graph in graphs()) {
        assert_same(&decode(encode(&graph)).unwrap(), &graph);
    }

    #[test]
    fn nodes_wait_only_for_nodes_of_their_file(graph in graphs()) {
        for nodes in nodes(&graph) {
            let ids: Vec<u64> = nodes.iter().map(|node| node.id).collect();
            prop_assert!(ids.is_sorted_by(|a, b| a < b));
            for node in &nodes {
                prop_assert!(node.data_deps.iter().all(|id| ids.contains(id)));
                prop_assert!(node.ctrl_deps.is_empty());
                prop_assert!(value(&node.attr, names::IS_CPU_OP).is_some());
            }
        }
    }
}

#[test]
fn other_programs_see_kinds_sizes_and_peers() {
    let files = nodes(&everything());
    let kind = |name| node(&files, name).r#type();
    assert_eq!(kind("load"), NodeType::MemLoad);
    assert_eq!(kind("store"), NodeType::MemStore);
    assert_eq!(kind(""), NodeType::MemStore);
    assert_eq!(kind("down"), NodeType::MemLoad);
    for name in ["matmul", "seal", "begin", "update \"π\"\n"] {
        assert_eq!(kind(name), NodeType::Comp, "{name}");
    }
    assert_eq!(kind("send"), NodeType::CommSend);
    assert_eq!(kind("receive"), NodeType::CommRecv);
    assert_eq!(kind("collective 0"), NodeType::CommColl);
    let of = |name, attribute| value(&node(&files, name).attr, attribute).cloned();
    assert_eq!(of("load", names::TENSOR_SIZE), Some(Value::Uint64(4096)));
    assert_eq!(of("matmul", names::NUM_OPS), Some(Value::Int64(1 << 60)));
    assert_eq!(of("matmul", names::IS_CPU_OP), Some(Value::Bool(false)));
    assert_eq!(of("seal", names::IS_CPU_OP), Some(Value::Bool(true)));
    assert_eq!(of("send", names::COMM_DST), Some(Value::Int32(7)));
    assert_eq!(of("receive", names::COMM_SRC), Some(Value::Int32(0)));
    assert_eq!(of("receive", names::COMM_SIZE), Some(Value::Int64(5)));
    assert_eq!(of("collective 3", names::COMM_TYPE), Some(Value::Int64(5)));
    assert_eq!(of("collective 3", names::PG_NAME), None);
    assert_eq!(of("collective 1", names::PG_NAME), Some(Value::String("1".into())));
}

#[test]
fn tags_beyond_31_bits_are_numbered_alike_on_both_ranks() {
    for (tags, seen) in [([5, 9], [5, 9]), ([5 << 40, 1 << 31], [1, 0])] {
        let mut builder = GraphBuilder::new();
        let link = builder.resource("link", Place::HOST, 1);
        for tag in tags {
            builder.rank(0);
            builder.task(link, Op::Send { to_rank: 1, tag, bytes: 1 }, "send", &[]);
            builder.rank(1);
            builder.task(link, Op::Receive { from_rank: 0, tag, bytes: 1 }, "receive", &[]);
        }
        let graph = builder.build().unwrap();
        for nodes in nodes(&graph) {
            for (node, tag) in nodes.iter().zip(seen) {
                assert_eq!(value(&node.attr, names::COMM_TAG), Some(&Value::Int32(tag)));
            }
        }
        assert_same(&decode(encode(&graph)).unwrap(), &graph);
    }
}

fn marks(count: u32) -> Graph {
    let mut builder = GraphBuilder::new();
    let cpu = builder.resource("cpu", Place::HOST, 1);
    for index in 0..count {
        builder.rank(index % 2);
        builder.task(cpu, Op::Mark, format!("mark {index}"), &[]);
    }
    builder.build().unwrap()
}

#[test]
fn times_are_whole_microseconds_without_gaps() {
    let span = Span::new;
    let timeline =
        Timeline { spans: vec![span(0.0, 1.4e-6), span(1.4e-6, 2.8e-6), span(1.0, 2.0)] };
    let files = super::super::write::encode(&marks(3), Some(&timeline)).unwrap();
    let files: Vec<_> = files.iter().map(|(_, bytes)| parts(bytes).1).collect();
    let times = |name: &str| {
        let node = node(&files, name);
        (node.start_time_micros, node.duration_micros)
    };
    assert_eq!(times("mark 0"), (0, 1));
    assert_eq!(times("mark 1"), (1, 2));
    assert_eq!(times("mark 2"), (1_000_000, 1_000_000));
}

#[test]
fn what_does_not_fit_is_refused_before_anything_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let refusal = |graph: &Graph, timeline: Option<&Timeline>| {
        let error = write(graph, timeline, &folder.path().join("g")).unwrap_err().to_string();
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
        error
    };
    assert!(refusal(&GraphBuilder::new().build().unwrap(), None).contains("without tasks"));
    let timeline = Timeline { spans: vec![Span::default(); 3] };
    assert!(refusal(&marks(2), Some(&timeline)).contains("timeline of 3 tasks"));

    let mut builder = GraphBuilder::new();
    let cpu = builder.resource("cpu", Place::HOST, 1);
    let first = builder.task(cpu, Op::Mark, "here", &[]);
    builder.rank(4);
    builder.task(cpu, Op::Mark, "there", &[first]);
    let error = refusal(&builder.build().unwrap(), None);
    for part in ["task 1 (there) of rank 4", "task 0 (here) of rank 0", "send and a receive"] {
        assert!(error.contains(part), "{error}");
    }

    let mut builder = GraphBuilder::new();
    let cpu = builder.resource("cpu", Place::HOST, 1);
    builder.task(cpu, Op::Compute { flops: 1 << 63, bytes: 0 }, "much", &[]);
    let error = refusal(&builder.build().unwrap(), None);
    assert!(error.contains("task 0 (much)") && error.contains("num_ops"), "{error}");
}

#[test]
fn a_file_that_cannot_be_written_or_read_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let stem = folder.path().join("missing/g");
    assert!(write(&marks(1), None, &stem).unwrap_err().to_string().contains("g.0.et"));
    assert!(read(&[stem.with_extension("0.et")]).unwrap_err().to_string().contains("g.0.et"));
    assert!(read(&[]).unwrap_err().to_string().contains("no file"));
}
