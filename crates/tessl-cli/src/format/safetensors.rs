//! safetensors files. The crate of the same name reads and validates the header.

use super::Source;
use crate::error::{CliError, Result};
use safetensors::Dtype;
use safetensors::tensor::{Metadata, TensorInfo};
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;
use tessl::DType;

/// The format's own limit.
const MAX_HEADER: u64 = 100_000_000;
/// Names shown when one has to be chosen.
const SHOWN: usize = 6;

pub(super) fn open(path: &Path, mut file: File, file_bytes: u64, name: Option<&str>) -> Result<Source> {
    let fail = |what: String| CliError::file(path, what);
    let foreign = |_| fail("not a safetensors file".to_owned());
    let mut size = [0u8; 8];
    file.read_exact(&mut size).map_err(foreign)?;
    let size = u64::from_le_bytes(size);
    let data_start = size.checked_add(8).filter(|&end| size <= MAX_HEADER && end <= file_bytes);
    let data_start = data_start.ok_or_else(|| {
        fail(format!("not a safetensors file, or truncated: its header would have {size} bytes of {file_bytes}"))
    })?;
    let mut text = Vec::new();
    file.by_ref().take(size).read_to_end(&mut text).map_err(foreign)?;
    let metadata: Metadata = serde_json::from_slice(&text).map_err(|e| {
        // serde_json knows line and column, which mean nothing in a one-line header.
        let e = e.to_string();
        fail(format!("has a damaged header: {}", e.split(" at line").next().unwrap_or(&e)))
    })?;
    let (wanted, have) = (metadata.data_len() as u64, file_bytes - data_start);
    if wanted > have {
        return Err(fail(format!(
            "is truncated: its tensors need {wanted} bytes, the file has {have}; fetch it again"
        )));
    }
    if wanted < have {
        return Err(fail(format!("has {} bytes after its last tensor; it is damaged", have - wanted)));
    }
    let (name, info) = choose(&metadata, name).map_err(fail)?;
    let dtype = match info.dtype {
        Dtype::F32 => DType::F32,
        Dtype::F16 => DType::F16,
        Dtype::BF16 => DType::Bf16,
        other => return Err(fail(format!("tensor `{name}` is {other}; F32, F16 and BF16 can be used"))),
    };
    file.seek(SeekFrom::Start(data_start + info.data_offsets.0 as u64)).map_err(foreign)?;
    let shape = info.shape.clone();
    Ok(Source { path: path.to_owned(), file, dtype, shape, fortran: false, swapped: cfg!(target_endian = "big") })
}

fn choose<'m>(metadata: &'m Metadata, name: Option<&str>) -> Result<(String, &'m TensorInfo), String> {
    let names = metadata.offset_keys();
    let list = || {
        let shown: Vec<&str> = names.iter().take(SHOWN).map(String::as_str).collect();
        let more = names.len().saturating_sub(SHOWN);
        format!("{}{}", shown.join(", "), if more > 0 { format!(" and {more} more") } else { String::new() })
    };
    let chosen = match (name, names.as_slice()) {
        (_, []) => return Err("holds no tensors".to_owned()),
        (Some(name), _) => name.to_owned(),
        (None, [only]) => only.clone(),
        (None, all) => {
            return Err(format!("holds {} tensors; choose one with FILE:NAME from {}", all.len(), list()));
        }
    };
    let info = metadata.info(&chosen);
    info.map(|info| (chosen.clone(), info)).ok_or_else(|| format!("has no tensor `{chosen}`; it has {}", list()))
}

/// The bytes in front of the data of a new file with one tensor.
///
/// # Errors
/// A text for element types that are not written.
pub fn header(name: &str, dtype: DType, shape: &[usize], bytes: u64) -> Result<Vec<u8>, String> {
    let dtype = match dtype {
        DType::F32 => Dtype::F32,
        DType::F16 => Dtype::F16,
        DType::Bf16 => Dtype::BF16,
        other => return Err(format!("{other} cannot be written; give --out-dtype f32")),
    };
    let end = usize::try_from(bytes).map_err(|e| e.to_string())?;
    let info = TensorInfo { dtype, shape: shape.to_vec(), data_offsets: (0, end) };
    let metadata = Metadata::new(None, vec![(name.to_owned(), info)]).map_err(|e| e.to_string())?;
    let mut text = serde_json::to_vec(&metadata).map_err(|e| e.to_string())?;
    text.resize(text.len().next_multiple_of(8), b' ');
    let mut head = (text.len() as u64).to_le_bytes().to_vec();
    head.extend(text);
    Ok(head)
}
