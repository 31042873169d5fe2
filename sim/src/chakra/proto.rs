//! The messages of Chakra's schema, as far as tasks need them.
//!
//! They follow `schema/protobuf/et_def.proto` of mlcommons/chakra (package `ChakraProtoMsg`), schema version
//! [`SCHEMA_VERSION`]. Another revision keeps these fields, and adds kinds of nodes with a message for storage;
//! decoding skips fields that are not listed here.

use prost::{Enumeration, Message, Oneof};

/// What `GlobalMetadata.version` says.
pub(super) const SCHEMA_VERSION: &str = "0.0.4";

/// The first message of a file.
#[derive(Clone, PartialEq, Message)]
pub(super) struct GlobalMetadata {
    #[prost(string, tag = "1")]
    pub version: String,
    #[prost(message, repeated, tag = "2")]
    pub attr: Vec<AttributeProto>,
}

/// A task.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Node {
    #[prost(uint64, tag = "1")]
    pub id: u64,
    #[prost(string, tag = "2")]
    pub name: String,
    #[prost(enumeration = "NodeType", tag = "3")]
    pub r#type: i32,
    #[prost(uint64, repeated, tag = "4")]
    pub ctrl_deps: Vec<u64>,
    #[prost(uint64, repeated, tag = "5")]
    pub data_deps: Vec<u64>,
    #[prost(uint64, tag = "6")]
    pub start_time_micros: u64,
    #[prost(uint64, tag = "7")]
    pub duration_micros: u64,
    #[prost(message, optional, tag = "8")]
    pub inputs: Option<IoInfo>,
    #[prost(message, optional, tag = "9")]
    pub outputs: Option<IoInfo>,
    #[prost(message, repeated, tag = "10")]
    pub attr: Vec<AttributeProto>,
}

/// Tensors that a node takes or gives, as text. Not every revision of the schema has `strides`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct IoInfo {
    #[prost(string, tag = "1")]
    pub values: String,
    #[prost(string, tag = "2")]
    pub shapes: String,
    #[prost(string, tag = "3")]
    pub types: String,
    #[prost(string, tag = "4")]
    pub strides: String,
}

/// A named value.
#[derive(Clone, PartialEq, Message)]
pub(super) struct AttributeProto {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(string, tag = "2")]
    pub doc_string: String,
    #[prost(
        oneof = "Value",
        tags = "3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31, 32"
    )]
    pub value: Option<Value>,
}

/// The value of an attribute.
#[derive(Clone, PartialEq, Oneof)]
pub(super) enum Value {
    #[prost(double, tag = "3")]
    Double(f64),
    #[prost(message, tag = "4")]
    DoubleList(DoubleList),
    #[prost(float, tag = "5")]
    Float(f32),
    #[prost(message, tag = "6")]
    FloatList(FloatList),
    #[prost(int32, tag = "7")]
    Int32(i32),
    #[prost(message, tag = "8")]
    Int32List(Int32List),
    #[prost(int64, tag = "9")]
    Int64(i64),
    #[prost(message, tag = "10")]
    Int64List(Int64List),
    #[prost(uint32, tag = "11")]
    Uint32(u32),
    #[prost(message, tag = "12")]
    Uint32List(Uint32List),
    #[prost(uint64, tag = "13")]
    Uint64(u64),
    #[prost(message, tag = "14")]
    Uint64List(Uint64List),
    #[prost(sint32, tag = "15")]
    Sint32(i32),
    #[prost(message, tag = "16")]
    Sint32List(Sint32List),
    #[prost(sint64, tag = "17")]
    Sint64(i64),
    #[prost(message, tag = "18")]
    Sint64List(Sint64List),
    #[prost(fixed32, tag = "19")]
    Fixed32(u32),
    #[prost(message, tag = "20")]
    Fixed32List(Fixed32List),
    #[prost(fixed64, tag = "21")]
    Fixed64(u64),
    #[prost(message, tag = "22")]
    Fixed64List(Fixed64List),
    #[prost(sfixed32, tag = "23")]
    Sfixed32(i32),
    #[prost(message, tag = "24")]
    Sfixed32List(Sfixed32List),
    #[prost(sfixed64, tag = "25")]
    Sfixed64(i64),
    #[prost(message, tag = "26")]
    Sfixed64List(Sfixed64List),
    #[prost(bool, tag = "27")]
    Bool(bool),
    #[prost(message, tag = "28")]
    BoolList(BoolList),
    #[prost(string, tag = "29")]
    String(String),
    #[prost(message, tag = "30")]
    StringList(StringList),
    #[prost(bytes = "vec", tag = "31")]
    Bytes(Vec<u8>),
    #[prost(message, tag = "32")]
    BytesList(BytesList),
}

/// A message that is a list of values.
macro_rules! lists {
    ($($name:ident of $kind:meta, $item:ty;)*) => {$(
        #[derive(Clone, PartialEq, Message)]
        pub(super) struct $name {
            #[prost($kind, repeated, tag = "1")]
            pub values: Vec<$item>,
        }
    )*};
}

lists! {
    DoubleList of double, f64;
    FloatList of float, f32;
    Int32List of int32, i32;
    Int64List of int64, i64;
    Uint32List of uint32, u32;
    Uint64List of uint64, u64;
    Sint32List of sint32, i32;
    Sint64List of sint64, i64;
    Fixed32List of fixed32, u32;
    Fixed64List of fixed64, u64;
    Sfixed32List of sfixed32, i32;
    Sfixed64List of sfixed64, i64;
    BoolList of bool, bool;
    StringList of string, String;
    BytesList of bytes = "vec", Vec<u8>;
}

/// Kinds of nodes. Revisions that describe storage have more, which simulators do not take.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Enumeration)]
#[repr(i32)]
pub(super) enum NodeType {
    Invalid = 0,
    Metadata = 1,
    MemLoad = 2,
    MemStore = 3,
    Comp = 4,
    CommSend = 5,
    CommRecv = 6,
    CommColl = 7,
}

impl NodeType {
    /// Its name in the schema.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Invalid => "INVALID_NODE",
            Self::Metadata => "METADATA_NODE",
            Self::MemLoad => "MEM_LOAD_NODE",
            Self::MemStore => "MEM_STORE_NODE",
            Self::Comp => "COMP_NODE",
            Self::CommSend => "COMM_SEND_NODE",
            Self::CommRecv => "COMM_RECV_NODE",
            Self::CommColl => "COMM_COLL_NODE",
        }
    }
}

/// Kinds of collective operations, the value of `comm_type`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Enumeration)]
#[repr(i32)]
pub(super) enum CollectiveCommType {
    AllReduce = 0,
    Reduce = 1,
    AllGather = 2,
    Gather = 3,
    Scatter = 4,
    Broadcast = 5,
    AllToAll = 6,
    ReduceScatter = 7,
    ReduceScatterBlock = 8,
    Barrier = 9,
}
