//! The part of Python's pickle format (protocol 2) that tensors in dictionaries need. Nothing is ever executed: what names code other
//! than the making of a tensor is refused.

/// Values deep in each other that are followed.
const DEPTH_MAX: usize = 64;
/// Values of a pickle, copies included.
const VALUES_MAX: usize = 1 << 22;
/// Bytes of a pickle that are read.
pub(super) const BYTES_MAX: u64 = 1 << 28;

/// A value.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Value {
    None,
    Bool(bool),
    Int(i64),
    Float(f64),
    Text(String),
    Tuple(Vec<Value>),
    List(Vec<Value>),
    Dict(Vec<(Value, Value)>),
    /// `module name`.
    Global(String),
    /// Kind of its numbers, and the name of its file.
    Storage {
        kind: String,
        key: String,
    },
    Tensor(Tensor),
}

/// A tensor whose numbers are in a file beside the pickle.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Tensor {
    /// Storage class of torch, `FloatStorage` for example.
    pub kind: String,
    pub key: String,
    /// First element in the storage.
    pub offset: u64,
    pub shape: Vec<u64>,
    pub stride: Vec<u64>,
}

impl Value {
    /// What a dictionary has under a text.
    pub fn get(&self, key: &str) -> Option<&Self> {
        let Self::Dict(entries) = self else { return None };
        let found =
            entries.iter().find(|(name, _)| matches!(name, Self::Text(text) if text == key));
        found.map(|(_, value)| value)
    }

    fn integer(&self) -> Result<u64, String> {
        match self {
            Self::Int(number) => u64::try_from(*number).map_err(|_| format!("a size is {number}")),
            other => Err(format!("a size is {other:?}")),
        }
    }

    fn sizes(&self) -> Result<Vec<u64>, String> {
        match self {
            Self::Tuple(items) | Self::List(items) => items.iter().map(Self::integer).collect(),
            other => Err(format!("sizes are {other:?}")),
        }
    }
}

/// Reads a pickle.
pub(super) fn parse(bytes: &[u8]) -> Result<Value, String> {
    let mut machine =
        Machine { bytes, at: 0, stack: Vec::new(), marks: Vec::new(), memo: Vec::new(), copied: 0 };
    machine.run()
}

struct Machine<'a> {
    bytes: &'a [u8],
    at: usize,
    stack: Vec<Entry>,
    marks: Vec<usize>,
    memo: Vec<Option<Entry>>,
    /// Values that were copied so far.
    copied: usize,
}

/// A value, with what keeps it small.
#[derive(Debug, Clone)]
struct Entry {
    value: Value,
    /// Levels of values in it, itself included.
    depth: usize,
    /// Values in it, itself included.
    count: usize,
}

impl Entry {
    /// A value that holds no others.
    fn plain(value: Value) -> Self {
        Self { value, depth: 1, count: 1 }
    }

    /// Takes in what `items` have; fails where that is too deep.
    fn holds(&mut self, items: &[Self]) -> Result<(), String> {
        let depth = items.iter().map(|item| item.depth).max().unwrap_or(0);
        self.depth = self.depth.max(depth + 1);
        self.count += items.iter().map(|item| item.count).sum::<usize>();
        if self.depth > DEPTH_MAX {
            return Err("it is nested too deeply".to_owned());
        }
        Ok(())
    }
}

fn values(items: Vec<Entry>) -> Vec<Value> {
    items.into_iter().map(|item| item.value).collect()
}

impl Machine<'_> {
    fn take(&mut self, count: usize) -> Result<&[u8], String> {
        let end = self.at.checked_add(count).filter(|&end| end <= self.bytes.len());
        let end = end.ok_or("it is cut off")?;
        let piece = &self.bytes[self.at..end];
        self.at = end;
        Ok(piece)
    }

    fn number(&mut self, bytes: usize) -> Result<u64, String> {
        let piece = self.take(bytes)?;
        Ok(piece.iter().rev().fold(0, |value, &byte| value << 8 | u64::from(byte)))
    }

    fn line(&mut self) -> Result<String, String> {
        let rest = &self.bytes[self.at..];
        let length = rest.iter().position(|&byte| byte == b'\n').ok_or("it is cut off")?;
        let text = String::from_utf8_lossy(&rest[..length]).into_owned();
        self.at += length + 1;
        Ok(text)
    }

    fn text(&mut self, length: usize) -> Result<Value, String> {
        let piece = self.take(length)?.to_vec();
        String::from_utf8(piece).map(Value::Text).map_err(|_| "a text is no UTF-8".to_owned())
    }

    fn push(&mut self, value: Value) {
        self.stack.push(Entry::plain(value));
    }

    fn pop_entry(&mut self) -> Result<Entry, String> {
        self.stack.pop().ok_or_else(|| "a value is missing".to_owned())
    }

    fn pop(&mut self) -> Result<Value, String> {
        Ok(self.pop_entry()?.value)
    }

    fn top(&mut self) -> Result<&mut Entry, String> {
        self.stack.last_mut().ok_or_else(|| "a value is missing".to_owned())
    }

    fn since_mark(&mut self) -> Result<Vec<Entry>, String> {
        let mark = self.marks.pop().filter(|&mark| mark <= self.stack.len());
        Ok(self.stack.split_off(mark.ok_or("a mark is missing")?))
    }

    fn push_tuple(&mut self, items: Vec<Entry>) -> Result<(), String> {
        let mut tuple = Entry::plain(Value::None);
        tuple.holds(&items)?;
        tuple.value = Value::Tuple(values(items));
        self.stack.push(tuple);
        Ok(())
    }

    fn tuple(&mut self, count: usize) -> Result<(), String> {
        let start = self.stack.len().checked_sub(count).ok_or("a value is missing")?;
        let items = self.stack.split_off(start);
        self.push_tuple(items)
    }

    /// Counts values that are copied, so that few bytes cannot become many of them.
    fn count(&mut self, values: usize) -> Result<(), String> {
        self.copied = self.copied.saturating_add(values);
        if self.copied > VALUES_MAX {
            return Err("it has too many values".to_owned());
        }
        Ok(())
    }

    fn remember(&mut self, index: u64) -> Result<(), String> {
        // Numbers come in order; a gap would only take memory.
        let index = usize::try_from(index).ok().filter(|&index| index <= self.memo.len() + 256);
        let index = index.ok_or("a reference is out of range")?;
        // Containers are remembered before they are filled, so this is cheap for what torch writes.
        let count = self.top()?.count;
        self.count(count)?;
        let entry = self.top()?.clone();
        if self.memo.len() <= index {
            self.memo.resize(index + 1, None);
        }
        self.memo[index] = Some(entry);
        Ok(())
    }

    fn recall(&mut self, index: u64) -> Result<(), String> {
        let known = self.memo.get(index as usize).and_then(Option::as_ref);
        let count = known.map(|entry| entry.count).ok_or("a reference leads nowhere")?;
        self.count(count)?;
        let entry = self.memo.get(index as usize).cloned().flatten();
        self.stack.push(entry.ok_or("a reference leads nowhere")?);
        Ok(())
    }

    fn set_items(&mut self, items: Vec<Entry>) -> Result<(), String> {
        let top = self.top()?;
        top.holds(&items)?;
        let Value::Dict(entries) = &mut top.value else {
            return Err("entries belong to no dictionary".to_owned());
        };
        let mut items = values(items).into_iter();
        while let (Some(key), Some(value)) = (items.next(), items.next()) {
            entries.push((key, value));
        }
        Ok(())
    }

    fn append(&mut self, items: Vec<Entry>) -> Result<(), String> {
        let top = self.top()?;
        top.holds(&items)?;
        let Value::List(list) = &mut top.value else {
            return Err("items belong to no list".to_owned());
        };
        list.extend(values(items));
        Ok(())
    }

    fn persistent(&mut self) -> Result<(), String> {
        let Value::Tuple(items) = self.pop()? else {
            return Err("a storage is not described".to_owned());
        };
        match &items[..] {
            [Value::Text(what), Value::Global(kind), Value::Text(key), ..] if what == "storage" => {
                let kind = kind.strip_prefix("torch ").unwrap_or(kind).to_owned();
                self.push(Value::Storage { kind, key: key.clone() });
                Ok(())
            }
            _ => Err("a storage is described in a way that is not known".to_owned()),
        }
    }

    fn reduce(&mut self) -> Result<(), String> {
        let arguments = self.pop()?;
        let (Value::Global(name), Value::Tuple(arguments)) = (self.pop()?, arguments) else {
            return Err("something is made in a way that is not known".to_owned());
        };
        let made = match (name.as_str(), &arguments[..]) {
            ("collections OrderedDict", []) => Value::Dict(Vec::new()),
            (
                "torch._utils _rebuild_tensor_v2",
                [Value::Storage { kind, key }, offset, shape, stride, ..],
            ) => Value::Tensor(Tensor {
                kind: kind.clone(),
                key: key.clone(),
                offset: offset.integer()?,
                shape: shape.sizes()?,
                stride: stride.sizes()?,
            }),
            _ => return Err(format!("it asks for {name:?}, which is not read")),
        };
        self.push(made);
        Ok(())
    }

    fn run(&mut self) -> Result<Value, String> {
        loop {
            let operation = self.take(1)?[0];
            match operation {
                0x80 => drop(self.take(1)?),
                0x95 => drop(self.take(8)?),
                b'(' => self.marks.push(self.stack.len()),
                b'}' => self.push(Value::Dict(Vec::new())),
                b']' => self.push(Value::List(Vec::new())),
                b')' => self.push(Value::Tuple(Vec::new())),
                b'N' => self.push(Value::None),
                0x88 => self.push(Value::Bool(true)),
                0x89 => self.push(Value::Bool(false)),
                b'K' => {
                    let number = self.number(1)?;
                    self.push(Value::Int(number as i64));
                }
                b'M' => {
                    let number = self.number(2)?;
                    self.push(Value::Int(number as i64));
                }
                b'J' => {
                    let number = self.number(4)? as u32 as i32;
                    self.push(Value::Int(i64::from(number)));
                }
                0x8a => {
                    let length = self.number(1)? as usize;
                    let negative = {
                        let piece = self.take(length)?;
                        piece.last().is_some_and(|&byte| byte >= 0x80)
                    };
                    if length > 8 || negative {
                        return Err("a number is too large".to_owned());
                    }
                    self.at -= length;
                    let number = self.number(length)?;
                    self.push(Value::Int(number as i64));
                }
                b'G' => {
                    let piece = self.take(8)?;
                    let mut raw = [0; 8];
                    raw.copy_from_slice(piece);
                    self.push(Value::Float(f64::from_be_bytes(raw)));
                }
                b'X' => {
                    let length = self.number(4)? as usize;
                    let text = self.text(length)?;
                    self.push(text);
                }
                0x8c => {
                    let length = self.number(1)? as usize;
                    let text = self.text(length)?;
                    self.push(text);
                }
                b'c' => {
                    let (module, name) = (self.line()?, self.line()?);
                    self.push(Value::Global(format!("{module} {name}")));
                }
                0x93 => match (self.pop()?, self.pop()?) {
                    (Value::Text(name), Value::Text(module)) => {
                        self.push(Value::Global(format!("{module} {name}")));
                    }
                    _ => return Err("a name is no text".to_owned()),
                },
                b'q' => {
                    let index = self.number(1)?;
                    self.remember(index)?;
                }
                b'r' => {
                    let index = self.number(4)?;
                    self.remember(index)?;
                }
                0x94 => self.remember(self.memo.len() as u64)?,
                b'h' => {
                    let index = self.number(1)?;
                    self.recall(index)?;
                }
                b'j' => {
                    let index = self.number(4)?;
                    self.recall(index)?;
                }
                b't' => {
                    let items = self.since_mark()?;
                    self.push_tuple(items)?;
                }
                0x85 => self.tuple(1)?,
                0x86 => self.tuple(2)?,
                0x87 => self.tuple(3)?,
                b's' => {
                    let value = self.pop_entry()?;
                    let key = self.pop_entry()?;
                    self.set_items(vec![key, value])?;
                }
                b'u' => {
                    let items = self.since_mark()?;
                    self.set_items(items)?;
                }
                b'a' => {
                    let item = self.pop_entry()?;
                    self.append(vec![item])?;
                }
                b'e' => {
                    let items = self.since_mark()?;
                    self.append(items)?;
                }
                b'Q' => self.persistent()?,
                b'R' => self.reduce()?,
                b'.' => return self.pop(),
                other => {
                    return Err(format!("it has the operation {other:#04x}, which is not read"));
                }
            }
            if self.marks.len() > DEPTH_MAX {
                return Err("it is nested too deeply".to_owned());
            }
        }
    }
}

/// Writes a value that [`parse`] reads and Python as well.
pub(super) fn write(value: &Value) -> Vec<u8> {
    let mut out = vec![0x80, 2];
    put(value, &mut out);
    out.push(b'.');
    out
}

fn put_all<'a>(values: impl IntoIterator<Item = &'a Value>, out: &mut Vec<u8>) {
    out.push(b'(');
    for value in values {
        put(value, out);
    }
}

fn put_integers(numbers: &[u64], out: &mut Vec<u8>) {
    out.push(b'(');
    for &number in numbers {
        put(&Value::Int(number as i64), out);
    }
    out.push(b't');
}

fn put(value: &Value, out: &mut Vec<u8>) {
    match value {
        Value::None => out.push(b'N'),
        Value::Bool(flag) => out.push(if *flag { 0x88 } else { 0x89 }),
        Value::Int(number) => match i32::try_from(*number) {
            Ok(number) => {
                out.push(b'J');
                out.extend(number.to_le_bytes());
            }
            Err(_) => {
                out.extend([0x8a, 8]);
                out.extend(number.to_le_bytes());
            }
        },
        Value::Float(number) => {
            out.push(b'G');
            out.extend(number.to_be_bytes());
        }
        Value::Text(text) => {
            out.push(b'X');
            out.extend((text.len() as u32).to_le_bytes());
            out.extend(text.bytes());
        }
        Value::Tuple(items) => {
            put_all(items, out);
            out.push(b't');
        }
        Value::List(items) => {
            out.push(b']');
            put_all(items, out);
            out.push(b'e');
        }
        Value::Dict(entries) => {
            out.push(b'}');
            put_all(entries.iter().flat_map(|(key, value)| [key, value]), out);
            out.push(b'u');
        }
        Value::Global(name) => {
            out.push(b'c');
            out.extend(name.replacen(' ', "\n", 1).bytes());
            out.push(b'\n');
        }
        Value::Storage { kind, key } => {
            // Its number of elements is known from the file; torch ignores this one.
            let described = [
                Value::Text("storage".into()),
                Value::Global(format!("torch {kind}")),
                Value::Text(key.clone()),
                Value::Text("cpu".into()),
                Value::Int(0),
            ];
            put_all(&described, out);
            out.extend(b"tQ");
        }
        Value::Tensor(tensor) => {
            let elements: u64 = tensor.shape.iter().product();
            put(&Value::Global("torch._utils _rebuild_tensor_v2".into()), out);
            out.push(b'(');
            let described = [
                Value::Text("storage".into()),
                Value::Global(format!("torch {}", tensor.kind)),
                Value::Text(tensor.key.clone()),
                Value::Text("cpu".into()),
                Value::Int((tensor.offset + elements) as i64),
            ];
            put_all(&described, out);
            out.extend(b"tQ");
            put(&Value::Int(tensor.offset as i64), out);
            put_integers(&tensor.shape, out);
            put_integers(&tensor.stride, out);
            put(&Value::Bool(false), out);
            put(&Value::Global("collections OrderedDict".into()), out);
            out.extend(b")Rt");
            out.push(b'R');
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn text(text: &str) -> Value {
        Value::Text(text.into())
    }

    #[test]
    fn what_is_written_reads_back() {
        let tensor = Tensor {
            kind: "FloatStorage".into(),
            key: "3".into(),
            offset: 0,
            shape: vec![2, 5_000_000_000],
            stride: vec![5_000_000_000, 1],
        };
        let value = Value::Dict(vec![
            (text("a"), Value::List(vec![Value::Int(-3), Value::Float(0.25), Value::None])),
            (Value::Int(7), Value::Tuple(vec![Value::Bool(true), Value::Int(1 << 40)])),
            (text("t"), Value::Tensor(tensor)),
        ]);
        assert_eq!(parse(&write(&value)).unwrap(), value);
        assert_eq!(
            value.get("t"),
            Some(&match &value {
                Value::Dict(entries) => entries[2].1.clone(),
                _ => unreachable!(),
            })
        );
    }

    #[test]
    fn few_bytes_cannot_become_much() {
        // A tuple of itself twice, again and again.
        let mut doubling = b"\x80\x02)".to_vec();
        for _ in 0..60 {
            doubling.extend(b"q\x00h\x00\x86");
        }
        assert!(parse(&doubling).is_err());
        let mut nested = b"\x80\x02)".to_vec();
        nested.resize(500_000, 0x85);
        assert!(parse(&nested).unwrap_err().contains("nested"));
        let gap = b"\x80\x02)r\xff\xff\xff\x0f.";
        assert!(parse(gap).unwrap_err().contains("out of range"));
    }

    #[test]
    fn code_is_refused_by_name() {
        let system = b"\x80\x02cos\nsystem\n(X\x02\x00\x00\x00lstR.";
        let error = parse(system).unwrap_err();
        assert!(error.contains("os system"), "{error}");
        assert!(parse(b"\x80\x02").unwrap_err().contains("cut off"));
        assert!(parse(b"\x80\x02i").unwrap_err().contains("0x69"));
        assert!(parse(b"\x80\x02h\x07.").unwrap_err().contains("nowhere"));
    }

    proptest! {
        #[test]
        fn no_bytes_are_a_panic(bytes: Vec<u8>) {
            let _ = parse(&bytes);
        }

        #[test]
        fn no_damage_is_a_panic(at in 0usize..200, byte: u8) {
            let value = Value::Dict(vec![(text("state"), Value::Dict(vec![
                (Value::Int(0), Value::Tensor(Tensor {
                    kind: "FloatStorage".into(),
                    key: "0".into(),
                    offset: 0,
                    shape: vec![3],
                    stride: vec![1],
                })),
            ]))]);
            let mut bytes = write(&value);
            let at = at % bytes.len();
            bytes[at] = byte;
            let _ = parse(&bytes);
        }
    }
}
