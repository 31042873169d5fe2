//! Files of other programs.

use nearfield_runtime::graph::{Collective, Direction, Graph, Op, Place, Task};

use super::super::attributes::attribute;
use super::super::proto::{GlobalMetadata, Node, NodeType, Value};
use super::super::read::decode as decode_named;
use super::{decode, encode, file, graphs, hex, parts, refusal};

/// Written by Python's protobuf from Chakra's schema, with the attributes of Chakra's converter and generator.
const RANKS: [&str; 2] = [
    "260a05302e302e34121d0a06736368656d61ea0112312e312e312d6368616b72612e302e302e34
     2c080a12046c6f61641802520e0a0969735f6370755f6f70d8010052100a0b74656e736f725f73697a656880203c080b
     12026d6d18042a010a3805520e0a0969735f6370755f6f70d80100520c0a076e756d5f6f707348e807520f0a0b74656e
     736f725f73697a6568402e080c120373756d180722010a2a010b520d0a09636f6d6d5f747970654800520e0a09636f6d
     6d5f73697a6548800446080d1204746f203118052a010c520c0a08636f6d6d5f7372633800520c0a08636f6d6d5f6473
     743801520c0a08636f6d6d5f7461673803520d0a09636f6d6d5f73697a654820",
    "260a05302e302e34121d0a06736368656d61ea0112312e312e312d6368616b72612e302e302e34
     280814120373756d1807520d0a09636f6d6d5f747970654800520e0a09636f6d6d5f73697a6568800448081512066672
     6f6d203018062a0114520c0a08636f6d6d5f7372633800520c0a08636f6d6d5f6473743801520c0a08636f6d6d5f7461
     673803520d0a09636f6d6d5f73697a6548201d08161204686f737418042a0115520e0a0969735f6370755f6f70d80101
     200817120573746f726518032a011652100a0b74656e736f725f73697a65688010080818120270671801",
];

/// A task, its rank, its resource, and the labels of what it waits for.
fn told<'a>(graph: &'a Graph, task: &'a Task) -> (u32, &'a str, &'a str, &'a Op, Vec<&'a str>) {
    let resource = &graph.resources()[task.resource.0 as usize].name;
    let before = graph.predecessors(task.id).iter().map(|&id| graph.task(id).label.as_str());
    (task.rank, &task.label, resource, &task.op, before.collect())
}

#[test]
fn nodes_of_other_programs_are_read_by_the_documented_rules() {
    let graph = decode(RANKS.map(hex).to_vec()).unwrap();
    let storage = |direction, rank, bytes| Op::Storage {
        direction,
        drive: rank,
        other: Place::Host(rank),
        bytes,
    };
    let sum = Op::Collective { kind: Collective::AllReduce, group: 0, bytes: 512 };
    let send = Op::Send { to_rank: 1, tag: 3, bytes: 32 };
    let receive = Op::Receive { from_rank: 0, tag: 3, bytes: 32 };
    let expected = [
        (0, "load", "rank0.memory", storage(Direction::Read, 0, 4096), vec![]),
        (0, "mm", "rank0.compute", Op::Compute { flops: 1000, bytes: 64 }, vec!["load"]),
        (0, "sum", "rank0.collective", sum.clone(), vec!["load", "mm"]),
        (0, "to 1", "rank0.send", send, vec!["sum"]),
        (1, "sum", "rank1.collective", sum, vec![]),
        (1, "from 0", "rank1.receive", receive, vec!["sum"]),
        (1, "host", "rank1.cpu", Op::Compute { flops: 0, bytes: 0 }, vec!["from 0"]),
        (1, "store", "rank1.memory", storage(Direction::Write, 1, 2048), vec!["host"]),
        (1, "pg", "rank1.cpu", Op::Mark, vec![]),
    ];
    let read: Vec<_> = graph.tasks().iter().map(|task| told(&graph, task)).collect();
    let expected: Vec<_> = expected
        .iter()
        .map(|(rank, label, resource, op, before)| (*rank, *label, *resource, op, before.clone()))
        .collect();
    assert_eq!(read, expected);
}

#[test]
fn a_graph_of_another_program_comes_back_once_it_is_written() {
    let graph = decode(RANKS.map(hex).to_vec()).unwrap();
    super::assert_same(&decode(encode(&graph)).unwrap(), &graph);
}

#[test]
fn ranks_are_in_names_or_else_in_the_order_of_files() {
    let rank = |paths: [&str; 2]| {
        let files = paths.iter().zip(RANKS).map(|(path, bytes)| (path.into(), hex(bytes)));
        decode_named(files.collect()).map(|graph| graph.tasks()[0].rank)
    };
    assert_eq!(rank(["a.0.et", "b.1.et"]).unwrap(), 0);
    assert_eq!(rank(["first", "second.et"]).unwrap(), 0);
    let error = rank(["a.1.et", "b.1.et"]).unwrap_err().to_string();
    assert!(error.contains("b.1.et") && error.contains("rank 1, as is a.1.et"), "{error}");
    // The messages of the wrong rank.
    let error = rank(["a.1.et", "b.0.et"]).unwrap_err().to_string();
    assert!(error.contains("node 21 (from 0)") && error.contains("comm_dst is 1"), "{error}");
}

#[test]
fn written_files_without_our_attributes_keep_their_order_and_work() {
    let graph = graphs::everything();
    let strip = |bytes: Vec<u8>| {
        let (mut metadata, mut nodes) = parts(&bytes);
        metadata.attr.clear();
        for node in &mut nodes {
            node.attr.retain(|attribute| !attribute.name.starts_with("nearfield."));
        }
        file(&metadata, &nodes)
    };
    let files = encode(&graph).into_iter().map(strip).zip([0, 2, 7]);
    let files = files.map(|(bytes, rank)| (format!("g.{rank}.et").into(), bytes)).collect();
    let read = decode_named(files).unwrap();
    assert_eq!(read.tasks().len(), graph.tasks().len());
    let edges = |graph: &Graph| -> usize {
        graph.tasks().iter().map(|task| graph.predecessors(task.id).len()).sum()
    };
    assert_eq!(edges(&read), edges(&graph));
    let groups = |graph: &Graph| {
        let group = |task: &Task| match task.op {
            Op::Collective { group, .. } => Some(group),
            _ => None,
        };
        graph.tasks().iter().filter_map(group).collect::<std::collections::BTreeSet<_>>().len()
    };
    assert_eq!(groups(&read), groups(&graph));
}

#[test]
fn nodes_without_a_meaning_are_refused_by_name() {
    let refused = |kind: i32, list: &[(&str, i64)]| {
        let attr = list.iter().map(|&(name, value)| attribute(name, Value::Int64(value)));
        let node = Node {
            id: 6,
            name: "odd".into(),
            r#type: kind,
            attr: attr.collect(),
            ..Node::default()
        };
        let error = refusal(vec![file(&GlobalMetadata::default(), &[node])]);
        assert!(error.contains("g.0.et") && error.contains("node 6 (odd)"), "{error}");
        error
    };
    assert!(refused(0, &[]).contains("kind 0"));
    assert!(refused(8, &[]).contains("kind 8"));
    let (load, coll) = (NodeType::MemLoad as i32, NodeType::CommColl as i32);
    assert!(refused(load, &[]).contains("no tensor_size"));
    assert!(refused(load, &[("tensor_size", 0)]).contains("no bytes"));
    assert!(refused(load, &[("tensor_size", -1)]).contains("tensor_size"));
    assert!(refused(coll, &[("comm_type", 9), ("comm_size", 1)]).contains("kind 9"));
    assert!(refused(coll, &[("comm_type", 0)]).contains("no comm_size"));
    assert!(refused(NodeType::CommSend as i32, &[("comm_size", 1)]).contains("no comm_dst"));
}

#[test]
fn ranks_that_do_not_fit_together_are_refused_with_their_files() {
    let error = refusal(vec![hex(RANKS[0])]);
    assert!(error.contains("g.0.et") && error.contains("without its counterpart"), "{error}");
}
