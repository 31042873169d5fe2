//! Attributes of nodes and of a file's metadata: built from values, and read with errors that name where they are.

use std::path::Path;

use nearfield_runtime::{Error, Result};

use super::proto::{AttributeProto, Node, Sint64List, StringList, Uint32List, Uint64List, Value};
use super::values;

/// An attribute with a value.
pub(super) fn attribute(name: &str, value: Value) -> AttributeProto {
    AttributeProto { name: name.to_owned(), doc_string: String::new(), value: Some(value) }
}

/// A list of texts.
pub(super) fn texts<T: ToString>(values: impl IntoIterator<Item = T>) -> Value {
    let values = values.into_iter().map(|value| value.to_string()).collect();
    Value::StringList(StringList { values })
}

/// A list of small numbers.
pub(super) fn numbers32(values: impl IntoIterator<Item = u32>) -> Value {
    Value::Uint32List(Uint32List { values: values.into_iter().collect() })
}

/// A list of numbers.
pub(super) fn numbers64(values: impl IntoIterator<Item = u64>) -> Value {
    Value::Uint64List(Uint64List { values: values.into_iter().collect() })
}

/// A list of numbers with a sign.
pub(super) fn signed64(values: impl IntoIterator<Item = i64>) -> Value {
    Value::Sint64List(Sint64List { values: values.into_iter().collect() })
}

/// The attributes of one node, or of a file's metadata.
#[derive(Clone, Copy)]
pub(super) struct Attributes<'a> {
    path: &'a Path,
    /// `None` for the metadata.
    node: Option<&'a Node>,
    list: &'a [AttributeProto],
}

impl<'a> Attributes<'a> {
    pub fn of_node(path: &'a Path, node: &'a Node) -> Self {
        Self { path, node: Some(node), list: &node.attr }
    }

    pub fn of_metadata(path: &'a Path, list: &'a [AttributeProto]) -> Self {
        Self { path, node: None, list }
    }

    /// An error that names file and node.
    pub fn error(&self, what: impl std::fmt::Display, remedy: &str) -> Error {
        let of = match self.node {
            Some(node) => format!("node {} ({})", node.id, node.name),
            None => "its metadata".to_owned(),
        };
        Error::Format {
            path: self.path.to_path_buf(),
            what: format!("{of} {what}"),
            remedy: remedy.to_owned(),
        }
    }

    fn wrong(&self, name: &str, what: &str) -> Error {
        self.error(format!("{what} {name}"), "write the file again with the program that made it")
    }

    /// The value of an attribute, if there is one. Of several with one name the first counts, as for ASTRA-sim.
    fn value(&self, name: &str) -> Option<&'a Value> {
        self.list.iter().find(|attribute| attribute.name == name)?.value.as_ref()
    }

    fn required(&self, name: &str) -> Result<&'a Value> {
        self.value(name).ok_or_else(|| self.wrong(name, "has no"))
    }

    /// Whether the attribute is there.
    pub fn has(&self, name: &str) -> bool {
        self.value(name).is_some()
    }

    /// A whole number of any of the schema's types, not negative.
    pub fn number(&self, name: &str) -> Result<u64> {
        let number = match *self.required(name)? {
            Value::Uint32(value) | Value::Fixed32(value) => Some(u64::from(value)),
            Value::Uint64(value) | Value::Fixed64(value) => Some(value),
            Value::Int32(value) | Value::Sint32(value) | Value::Sfixed32(value) => {
                u64::try_from(value).ok()
            }
            Value::Int64(value) | Value::Sint64(value) | Value::Sfixed64(value) => {
                u64::try_from(value).ok()
            }
            _ => None,
        };
        number.ok_or_else(|| self.wrong(name, "has no whole number from 0 on in"))
    }

    /// Like [`Attributes::number`], `default` where there is none.
    pub fn number_or(&self, name: &str, default: u64) -> Result<u64> {
        if self.has(name) { self.number(name) } else { Ok(default) }
    }

    /// A number that fits 32 bits.
    pub fn number32(&self, name: &str) -> Result<u32> {
        u32::try_from(self.number(name)?)
            .map_err(|_| self.wrong(name, "has a number of more than 32 bits in"))
    }

    /// A number of bytes that an operation moves, more than 0.
    pub fn payload(&self, name: &str) -> Result<u64> {
        match self.number(name)? {
            0 => Err(self.error(
                format!("moves no bytes: {name} is 0"),
                "leave it out, or give it the number of its bytes",
            )),
            bytes => Ok(bytes),
        }
    }

    /// A truth value, false where there is none.
    pub fn flag(&self, name: &str) -> Result<bool> {
        match self.value(name) {
            None => Ok(false),
            Some(Value::Bool(value)) => Ok(*value),
            Some(_) => Err(self.wrong(name, "has no truth value in")),
        }
    }

    /// A text.
    pub fn text(&self, name: &str) -> Result<&'a str> {
        match self.required(name)? {
            Value::String(value) => Ok(value),
            _ => Err(self.wrong(name, "has no text in")),
        }
    }

    /// A place.
    pub fn place(&self, name: &str) -> Result<nearfield_runtime::graph::Place> {
        values::place(self.text(name)?).ok_or_else(|| self.wrong(name, "has no place in"))
    }

    /// A list of texts.
    pub fn texts(&self, name: &str) -> Result<&'a [String]> {
        match self.required(name)? {
            Value::StringList(list) => Ok(&list.values),
            _ => Err(self.wrong(name, "has no list of texts in")),
        }
    }

    /// A list of small numbers.
    pub fn numbers32(&self, name: &str) -> Result<&'a [u32]> {
        match self.required(name)? {
            Value::Uint32List(list) => Ok(&list.values),
            _ => Err(self.wrong(name, "has no list of 32-bit numbers in")),
        }
    }

    /// A list of numbers.
    pub fn numbers64(&self, name: &str) -> Result<&'a [u64]> {
        match self.required(name)? {
            Value::Uint64List(list) => Ok(&list.values),
            _ => Err(self.wrong(name, "has no list of numbers in")),
        }
    }

    /// A list of numbers with a sign.
    pub fn signed64(&self, name: &str) -> Result<&'a [i64]> {
        match self.required(name)? {
            Value::Sint64List(list) => Ok(&list.values),
            _ => Err(self.wrong(name, "has no list of signed numbers in")),
        }
    }
}
