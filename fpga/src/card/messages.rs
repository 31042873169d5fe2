//! Messages of XRT's software emulation between a host and the process that plays a card.

use prost::Message;

/// A request: its number, then the body.
pub const HEADER_BYTES: usize = 14;

/// Numbers of requests.
pub mod api {
    pub const CLOSE: u32 = 1;
    pub const LOAD: u32 = 3;
    pub const ALLOCATE: u32 = 4;
    pub const FREE: u32 = 5;
    pub const TO_CARD: u32 = 6;
    pub const FROM_CARD: u32 = 7;
    pub const WRITE_REGISTERS: u32 = 9;
    pub const READ_REGISTERS: u32 = 11;
    pub const SET_UP: u32 = 28;
}

#[derive(Clone, PartialEq, Message)]
pub struct Close {
    #[prost(bool, optional, tag = "3")]
    pub all: Option<bool>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Load {
    /// Where the host looks for what belongs to this card.
    #[prost(bytes = "vec", optional, tag = "5")]
    pub directory: Option<Vec<u8>>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Allocate {
    #[prost(uint64, optional, tag = "1")]
    pub address: Option<u64>,
    #[prost(uint64, optional, tag = "2")]
    pub bytes: Option<u64>,
    #[prost(bool, optional, tag = "3")]
    pub shared: Option<bool>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Allocated {
    #[prost(bool, required, tag = "1")]
    pub done: bool,
    /// A file that is the buffer's memory; without one the host keeps a copy of its own.
    #[prost(string, optional, tag = "2")]
    pub file: Option<String>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Free {
    #[prost(uint64, optional, tag = "1")]
    pub address: Option<u64>,
}

#[derive(Clone, PartialEq, Message)]
pub struct ToCard {
    #[prost(uint64, optional, tag = "3")]
    pub address: Option<u64>,
    #[prost(bytes = "vec", optional, tag = "4")]
    pub content: Option<Vec<u8>>,
}

#[derive(Clone, PartialEq, Message)]
pub struct FromCard {
    #[prost(uint64, optional, tag = "4")]
    pub address: Option<u64>,
    #[prost(uint64, optional, tag = "5")]
    pub bytes: Option<u64>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Copied {
    #[prost(uint64, required, tag = "1")]
    pub bytes: u64,
    #[prost(bytes = "vec", optional, tag = "2")]
    pub content: Option<Vec<u8>>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Registers {
    #[prost(uint64, optional, tag = "2")]
    pub address: Option<u64>,
    #[prost(bytes = "vec", optional, tag = "4")]
    pub content: Option<Vec<u8>>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Answer {
    #[prost(bool, required, tag = "1")]
    pub done: bool,
    #[prost(bytes = "vec", optional, tag = "2")]
    pub content: Option<Vec<u8>>,
}
