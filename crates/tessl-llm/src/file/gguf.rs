//! GGUF files, versions 2 and 3, little endian: header, metadata and the directory of tensors.
//!
//! Nothing in the file is believed: a length is compared with the bytes that are left before memory is taken for it, so
//! that a damaged file costs no more memory than its own size.

use super::element::Element;
use super::value::Value;
use super::{Directory, TensorInfo, WeightFile};
use crate::error::{LlmError, Result};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufReader, Read};
use std::path::Path;

pub(super) const MAGIC: [u8; 4] = *b"GGUF";
/// The most axes that a tensor has in this format.
const MAX_AXES: u32 = 4;
/// Texts of names; the format itself says 64, writers go beyond.
const MAX_NAME: u64 = 65_535;
const DEFAULT_ALIGNMENT: u64 = 32;

/// Reads the head of the file; the weights stay on disk.
///
/// # Errors
/// `Io`, `File` for damage, `Unsupported` for a version, type or form that is unknown.
pub(super) fn open(path: &Path, file: File, file_bytes: u64) -> Result<WeightFile> {
    let mut head = Head { from: BufReader::with_capacity(1 << 16, &file), at: 0, file_bytes, path };
    let magic: [u8; 4] = head.bytes()?;
    if magic != MAGIC {
        return Err(head.damaged("it does not begin with GGUF"));
    }
    let version = head.u32()?;
    if version.swap_bytes() < 16 {
        return Err(LlmError::unsupported("a big-endian GGUF file", "convert it to little endian"));
    }
    if !(2..=3).contains(&version) {
        return Err(LlmError::unsupported(format!("GGUF version {version}"), "versions 2 and 3 are"));
    }
    let (tensors, pairs) = (head.u64()?, head.u64()?);
    let mut metadata = BTreeMap::new();
    // A pair has at least the length of its key, a type and a byte; a tensor a length, axes, a type and an offset.
    head.plausible(pairs, 13, "metadata pairs")?;
    for _ in 0..pairs {
        let key = head.name("metadata key")?;
        let kind = head.u32()?;
        let value = head.value(kind, &key)?;
        if metadata.contains_key(&key) {
            return Err(head.damaged(format!("metadata key `{key}` appears twice")));
        }
        metadata.insert(key, value);
    }
    let alignment = match metadata.get("general.alignment") {
        None => DEFAULT_ALIGNMENT,
        Some(value) => value
            .as_u64()
            .filter(|a| a.is_power_of_two() && *a <= 1 << 20)
            .ok_or_else(|| head.damaged("general.alignment is not a power of two"))?,
    };
    head.plausible(tensors, 8 + 4 + 4 + 8, "tensors")?;
    let mut listed = Vec::new();
    for _ in 0..tensors {
        let tensor = head.tensor()?;
        if !tensor.offset.is_multiple_of(alignment) {
            return Err(head.damaged(format!("tensor `{}` is not aligned to {alignment} bytes", tensor.name)));
        }
        listed.push(tensor);
    }
    let start = head.at.next_multiple_of(alignment);
    let directory = Directory::new(path, listed, start, file_bytes)?;
    Ok(WeightFile { path: path.to_owned(), file, metadata, directory })
}

/// The part of the file before the weights.
struct Head<'a> {
    from: BufReader<&'a File>,
    at: u64,
    file_bytes: u64,
    path: &'a Path,
}

impl Head<'_> {
    fn damaged(&self, what: impl AsRef<str>) -> LlmError {
        LlmError::file(self.path, format!("not a sound GGUF file: {} (near byte {})", what.as_ref(), self.at))
    }

    /// Takes `n` bytes of what is left, without reading them yet.
    fn claim(&mut self, n: u64, what: &str) -> Result<()> {
        let end = self.at.checked_add(n).filter(|&end| end <= self.file_bytes);
        let Some(end) = end else {
            let left = self.file_bytes - self.at;
            return Err(self.damaged(format!("{what} needs {n} bytes, the file has {left} left; fetch it again")));
        };
        self.at = end;
        Ok(())
    }

    /// An error when `count` things of at least `least` bytes each cannot be in the rest of the file.
    fn plausible(&self, count: u64, least: u64, what: &str) -> Result<()> {
        if count.checked_mul(least).is_none_or(|bytes| bytes > self.file_bytes - self.at) {
            return Err(self.damaged(format!("{count} {what} do not fit into {} bytes", self.file_bytes)));
        }
        Ok(())
    }

    fn bytes<const N: usize>(&mut self) -> Result<[u8; N]> {
        self.claim(N as u64, "a number")?;
        let mut bytes = [0; N];
        self.from.read_exact(&mut bytes).map_err(|e| LlmError::io(self.path, e))?;
        Ok(bytes)
    }

    fn u32(&mut self) -> Result<u32> {
        Ok(u32::from_le_bytes(self.bytes()?))
    }

    fn u64(&mut self) -> Result<u64> {
        Ok(u64::from_le_bytes(self.bytes()?))
    }

    fn text(&mut self, most: u64, what: &str) -> Result<String> {
        let length = self.u64()?;
        if length > most {
            return Err(self.damaged(format!("{what} has {length} bytes")));
        }
        self.claim(length, what)?;
        let length = usize::try_from(length).map_err(|_| self.damaged(format!("{what} is too long")))?;
        let mut bytes = vec![0; length];
        self.from.read_exact(&mut bytes).map_err(|e| LlmError::io(self.path, e))?;
        String::from_utf8(bytes).map_err(|_| self.damaged(format!("{what} is not UTF-8")))
    }

    fn name(&mut self, what: &str) -> Result<String> {
        self.text(MAX_NAME, what)
    }

    /// A value of one of the numbered types.
    fn value(&mut self, kind: u32, key: &str) -> Result<Value> {
        Ok(match kind {
            0 => Value::Unsigned(u64::from(self.bytes::<1>()?[0])),
            1 => Value::Signed(i64::from(i8::from_le_bytes(self.bytes()?))),
            2 => Value::Unsigned(u64::from(u16::from_le_bytes(self.bytes()?))),
            3 => Value::Signed(i64::from(i16::from_le_bytes(self.bytes()?))),
            4 => Value::Unsigned(u64::from(self.u32()?)),
            5 => Value::Signed(i64::from(i32::from_le_bytes(self.bytes()?))),
            6 => Value::Float(f64::from(f32::from_le_bytes(self.bytes()?))),
            7 => Value::Bool(self.boolean(key)?),
            8 => Value::Text(self.text(u64::MAX, key)?),
            9 => self.array(key)?,
            10 => Value::Unsigned(self.u64()?),
            11 => Value::Signed(i64::from_le_bytes(self.bytes()?)),
            12 => Value::Float(f64::from_le_bytes(self.bytes()?)),
            _ => return Err(self.damaged(format!("`{key}` has the unknown type {kind}"))),
        })
    }

    fn boolean(&mut self, key: &str) -> Result<bool> {
        match self.bytes::<1>()?[0] {
            0 => Ok(false),
            1 => Ok(true),
            other => Err(self.damaged(format!("`{key}` is {other}, which is no truth value"))),
        }
    }

    fn array(&mut self, key: &str) -> Result<Value> {
        let (kind, count) = (self.u32()?, self.u64()?);
        let least = match kind {
            0 | 1 | 7 => 1,
            2 | 3 => 2,
            4..=6 => 4,
            8 | 10..=12 => 8,
            9 => return Err(LlmError::unsupported(format!("`{key}`, an array of arrays"), "flat arrays are")),
            _ => return Err(self.damaged(format!("`{key}` has the unknown element type {kind}"))),
        };
        self.plausible(count, least, key)?;
        let mut list = match kind {
            6 | 12 => Value::Floats(Vec::new()),
            7 => Value::Bools(Vec::new()),
            8 => Value::Texts(Vec::new()),
            _ => Value::Integers(Vec::new()),
        };
        for _ in 0..count {
            match (&mut list, self.value(kind, key)?) {
                (Value::Floats(v), Value::Float(x)) => v.push(x),
                (Value::Bools(v), Value::Bool(x)) => v.push(x),
                (Value::Texts(v), Value::Text(x)) => v.push(x),
                (Value::Integers(v), Value::Signed(x)) => v.push(x),
                (Value::Integers(v), Value::Unsigned(x)) => {
                    let x = i64::try_from(x).map_err(|_| self.damaged(format!("`{key}` holds {x}")))?;
                    v.push(x);
                }
                _ => unreachable!("INVARIANT: an array has one element type"),
            }
        }
        Ok(list)
    }

    /// One entry of the directory; its offset still counts from the end of the head.
    fn tensor(&mut self) -> Result<TensorInfo> {
        let name = self.name("tensor name")?;
        let axes = self.u32()?;
        if axes > MAX_AXES {
            return Err(self.damaged(format!("tensor `{name}` has {axes} axes")));
        }
        // The file names the axis of the rows' elements first.
        let mut shape = Vec::new();
        for _ in 0..axes {
            shape.insert(0, self.u64()?);
        }
        let number = self.u32()?;
        let element = Element::from_gguf(number).ok_or_else(|| {
            LlmError::unsupported(
                format!("{}: tensor `{name}` of storage form {number}", self.path.display()),
                "F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K and Q6_K are",
            )
        })?;
        let bytes = element.bytes(&shape).ok_or_else(|| {
            self.damaged(format!(
                "tensor `{name}` cannot be {shape:?} in blocks of {} {}",
                element.block(),
                element.name()
            ))
        })?;
        Ok(TensorInfo { name, shape, element, offset: self.u64()?, bytes })
    }
}
