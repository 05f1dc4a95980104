//! safetensors files. The crate of the same name reads and checks the head.

use super::element::Element;
use super::value::Value;
use super::{Directory, TensorInfo, WeightFile, read_at};
use crate::error::{LlmError, Result};
use ::safetensors::Dtype;
use ::safetensors::tensor::Metadata;
use std::fs::File;
use std::path::Path;

/// The format's own limit.
const MAX_HEADER: u64 = 100_000_000;

pub(super) fn open(path: &Path, file: File, file_bytes: u64) -> Result<WeightFile> {
    let fail = |what: String| LlmError::file(path, what);
    let mut size = [0; 8];
    read_at(&file, &mut size, 0).map_err(|e| LlmError::io(path, e))?;
    let size = u64::from_le_bytes(size);
    let start = size.checked_add(8).filter(|&end| size <= MAX_HEADER && end <= file_bytes);
    let start = start.ok_or_else(|| fail("neither a GGUF nor a safetensors file, or truncated".to_owned()))?;
    let length = usize::try_from(size).map_err(|_| fail("its head does not fit into memory".to_owned()))?;
    let mut text = vec![0; length];
    read_at(&file, &mut text, 8).map_err(|e| LlmError::io(path, e))?;
    let head: Metadata =
        serde_json::from_slice(&text).map_err(|e| fail(format!("not a sound safetensors file: {e}")))?;
    let mut listed = Vec::new();
    for name in head.offset_keys() {
        let Some(info) = head.info(&name) else { continue };
        let (first, last) = info.data_offsets;
        let element = match info.dtype {
            Dtype::F32 => Element::F32,
            Dtype::F16 => Element::F16,
            Dtype::BF16 => Element::Bf16,
            // The size is the format's to check; what the numbers mean is asked when the tensor is used.
            _ => Element::Other { name: "an integer or 8-bit form", block: 1, bytes: 1 },
        };
        let shape = info.shape.iter().map(|&d| d as u64).collect();
        listed.push(TensorInfo { name, shape, element, offset: first as u64, bytes: (last - first) as u64 });
    }
    let directory = Directory::new(path, listed, start, file_bytes)?;
    let pairs = head.metadata().as_ref().into_iter().flatten();
    let metadata = pairs.map(|(key, value)| (key.clone(), Value::Text(value.clone()))).collect();
    Ok(WeightFile { path: path.to_owned(), file, metadata, directory })
}
