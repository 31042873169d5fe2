//! Bytes that were worked out by hand, or written by Python's protobuf from Chakra's schema.

use prost::Message;

use super::super::attributes::attribute;
use super::super::framing;
use super::super::proto::*;
use super::hex;

#[test]
fn a_node_has_the_bytes_of_the_schema() {
    let node = Node {
        id: 1,
        name: "a".into(),
        r#type: NodeType::Comp as i32,
        data_deps: vec![0],
        start_time_micros: 3,
        duration_micros: 300,
        attr: vec![attribute("is_cpu_op", Value::Bool(true))],
        ..Node::default()
    };
    let mut bytes = Vec::new();
    framing::put(&mut bytes, &node).unwrap();
    let by_hand = [
        "1f",       // 31 bytes follow
        "08 01",    // field 1, varint: id
        "12 01 61", // field 2, 1 byte: name
        "18 04",    // field 3, varint: type
        "2a 01 00", // field 5, packed in 1 byte: data_deps
        "30 03",    // field 6, varint: start_time_micros
        "38 ac 02", // field 7, varint: duration_micros, 2 * 128 + 44
        "52 0e",    // field 10, 14 bytes: attr
        "0a 09",    //   field 1, 9 bytes: name
        "69 73 5f 63 70 75 5f 6f 70",
        "d8 01 01", //   field 27, varint: bool_val
    ];
    assert_eq!(bytes, hex(&by_hand.concat()));
}

/// A node with every field and every type of attribute, written by Python's protobuf.
const ALL: &str = "
    08ac021203616c6c1801220301c8012a0107300238f0a204420c0a01761201731a01742201724a031a0175520f0a0161
    12016419000000000000f83f521422120a10000000000000f83f00000000000000c052052d0000003f520832060a0400
    00003f520b38ffffffffffffffffff01520f420d0a0bffffffffffffffffff0102520b48feffffffffffffffff01520f
    520d0a0b03fcffffffffffffffff0152065880d0acf30e520762050a0305ac02520b6880808080808080808001520572
    030a01065202780552078201040a020506520388010952079201040a02010052069d01080000005209a201060a040900
    0000520aa9010a00000000000000520db2010a0a080b000000000000005206bd01f4ffffff5209c201060a04f3ffffff
    520ac901f2ffffffffffffff520dd2010a0a08f1ffffffffffffff5203d801015207e201040a0201005204ea01017852
    09f201060a01790a017a5205fa010200ff52088202050a01010a00";

fn all() -> Node {
    let values = vec![
        Value::Double(1.5),
        Value::DoubleList(DoubleList { values: vec![1.5, -2.0] }),
        Value::Float(0.5),
        Value::FloatList(FloatList { values: vec![0.5] }),
        Value::Int32(-1),
        Value::Int32List(Int32List { values: vec![-1, 2] }),
        Value::Int64(-2),
        Value::Int64List(Int64List { values: vec![3, -4] }),
        Value::Uint32(4_000_000_000),
        Value::Uint32List(Uint32List { values: vec![5, 300] }),
        Value::Uint64(1 << 63),
        Value::Uint64List(Uint64List { values: vec![6] }),
        Value::Sint32(-3),
        Value::Sint32List(Sint32List { values: vec![-3, 3] }),
        Value::Sint64(-5),
        Value::Sint64List(Sint64List { values: vec![-1, 0] }),
        Value::Fixed32(8),
        Value::Fixed32List(Fixed32List { values: vec![9] }),
        Value::Fixed64(10),
        Value::Fixed64List(Fixed64List { values: vec![11] }),
        Value::Sfixed32(-12),
        Value::Sfixed32List(Sfixed32List { values: vec![-13] }),
        Value::Sfixed64(-14),
        Value::Sfixed64List(Sfixed64List { values: vec![-15] }),
        Value::Bool(true),
        Value::BoolList(BoolList { values: vec![true, false] }),
        Value::String("x".into()),
        Value::StringList(StringList { values: vec!["y".into(), "z".into()] }),
        Value::Bytes(vec![0, 255]),
        Value::BytesList(BytesList { values: vec![vec![1], vec![]] }),
    ];
    let mut attr: Vec<_> = values.into_iter().map(|value| attribute("", value)).collect();
    attr[0].name = "a".into();
    attr[0].doc_string = "d".into();
    let text = |text: &str| text.to_owned();
    Node {
        id: 300,
        name: text("all"),
        r#type: NodeType::Metadata as i32,
        ctrl_deps: vec![1, 200],
        data_deps: vec![7],
        start_time_micros: 2,
        duration_micros: 70_000,
        inputs: Some(IoInfo {
            values: text("v"),
            shapes: text("s"),
            types: text("t"),
            strides: text("r"),
        }),
        outputs: Some(IoInfo { types: text("u"), ..IoInfo::default() }),
        attr,
    }
}

#[test]
fn every_field_and_type_of_attribute_is_as_python_writes_it() {
    let bytes = hex(ALL);
    assert_eq!(Node::decode(bytes.as_slice()).unwrap(), all());
    assert_eq!(all().encode_to_vec(), bytes);
}

#[test]
fn fields_of_newer_schemas_are_skipped() {
    let mut bytes = hex(ALL);
    bytes.extend(hex("5a 02 08 01")); // field 11: storage
    assert_eq!(Node::decode(bytes.as_slice()).unwrap(), all());
}
