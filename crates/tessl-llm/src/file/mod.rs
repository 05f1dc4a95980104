//! Model files: what is in them, and reading one tensor at a time.

mod element;
mod gguf;
mod safetensors;
mod value;

pub use element::Element;
pub use value::Value;

use crate::error::{LlmError, Result};
use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::path::{Path, PathBuf};

/// A tensor in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    /// Its name.
    pub name: String,
    /// Axes, slowest first: a linear layer's weights are [out, in].
    pub shape: Vec<u64>,
    /// How its numbers are stored.
    pub element: Element,
    /// Byte at which it begins, counted from the beginning of the file.
    pub offset: u64,
    /// Bytes it takes.
    pub bytes: u64,
}

/// A model file whose head has been read and checked. Weights are read when they are asked for.
#[derive(Debug)]
pub struct WeightFile {
    path: PathBuf,
    file: File,
    metadata: BTreeMap<String, Value>,
    directory: Directory,
}

impl WeightFile {
    /// Opens a GGUF or safetensors file, told apart by their first bytes.
    ///
    /// # Errors
    /// `Io`; `File` for a file that is damaged, truncated or of another kind; `Unsupported`.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let file = File::open(path).map_err(|e| LlmError::io(path, e))?;
        let about = file.metadata().map_err(|e| LlmError::io(path, e))?;
        if !about.is_file() {
            return Err(LlmError::file(path, "is not a file; name a .gguf or .safetensors file"));
        }
        let mut magic = [0; 4];
        if about.len() < 8 || read_at(&file, &mut magic, 0).is_err() {
            return Err(LlmError::file(path, "is too short for a model file; fetch it again"));
        }
        if magic == gguf::MAGIC {
            gguf::open(path, file, about.len())
        } else {
            safetensors::open(path, file, about.len())
        }
    }

    /// The path it was opened with.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A value of the metadata.
    pub fn value(&self, key: &str) -> Option<&Value> {
        self.metadata.get(key)
    }

    /// All metadata, in the order of their keys.
    pub fn metadata(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.metadata.iter().map(|(key, value)| (key.as_str(), value))
    }

    /// All tensors, in the order of the file's directory.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.directory.tensors
    }

    /// Bytes of all tensors.
    pub fn bytes(&self) -> u64 {
        self.directory.tensors.iter().map(|t| t.bytes).sum()
    }

    /// The tensor of this name.
    pub fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.directory.by_name.get(name).map(|&i| &self.directory.tensors[i])
    }

    /// Reads `into.len()` bytes of a tensor, from its byte `from` on. The file's position does not move, so that threads
    /// may read at the same time.
    ///
    /// # Errors
    /// `Io`; `File` when the range lies outside the tensor.
    pub fn read(&self, tensor: &TensorInfo, from: u64, into: &mut [u8]) -> Result<()> {
        let end = from.checked_add(into.len() as u64);
        if end.is_none_or(|end| end > tensor.bytes) {
            let what = format!(
                "bytes {from}..{} of tensor `{}`, which has {}",
                end.unwrap_or(u64::MAX),
                tensor.name,
                tensor.bytes
            );
            return Err(LlmError::file(&self.path, what));
        }
        read_at(&self.file, into, tensor.offset + from).map_err(|e| LlmError::io(&self.path, e))
    }
}

/// The tensors of a file, every one inside it and none over another.
#[derive(Debug)]
struct Directory {
    tensors: Vec<TensorInfo>,
    by_name: HashMap<String, usize>,
}

impl Directory {
    /// Takes tensors whose offsets count from `start`.
    fn new(path: &Path, mut tensors: Vec<TensorInfo>, start: u64, file_bytes: u64) -> Result<Self> {
        let fail = |what: String| Err(LlmError::file(path, what));
        let mut by_name = HashMap::new();
        for (i, t) in tensors.iter_mut().enumerate() {
            let end = start.checked_add(t.offset).and_then(|o| o.checked_add(t.bytes));
            if end.is_none_or(|end| end > file_bytes) {
                return fail(format!(
                    "is truncated or damaged: tensor `{}` needs {} bytes at {start} + {}, the file has {file_bytes}; fetch it again",
                    t.name, t.bytes, t.offset
                ));
            }
            t.offset += start;
            if by_name.insert(t.name.clone(), i).is_some() {
                return fail(format!("tensor `{}` appears twice", t.name));
            }
        }
        let mut order: Vec<&TensorInfo> = tensors.iter().filter(|t| t.bytes > 0).collect();
        order.sort_by_key(|t| t.offset);
        if let Some([a, b]) = order.array_windows().find(|[a, b]| a.offset + a.bytes > b.offset) {
            return fail(format!("tensors `{}` and `{}` overlap", a.name, b.name));
        }
        Ok(Directory { tensors, by_name })
    }
}

#[cfg(unix)]
fn read_at(file: &File, into: &mut [u8], from: u64) -> std::io::Result<()> {
    std::os::unix::fs::FileExt::read_exact_at(file, into, from)
}

#[cfg(windows)]
fn read_at(file: &File, mut into: &mut [u8], mut from: u64) -> std::io::Result<()> {
    while !into.is_empty() {
        match std::os::windows::fs::FileExt::seek_read(file, into, from)? {
            0 => return Err(std::io::ErrorKind::UnexpectedEof.into()),
            n => {
                into = &mut into[n..];
                from += n as u64;
            }
        }
    }
    Ok(())
}
