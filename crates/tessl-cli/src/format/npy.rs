//! NumPy's npy files, versions 1 to 3.
//!
//! The header is the text of a Python dict with three keys. The general parsers for such text recurse into nested
//! lists, so a file of brackets can exhaust the stack; this one knows only the flat text that arrays of numbers have.

use super::{Source, data_bytes};
use crate::error::{CliError, Result};
use std::fs::File;
use std::io::Read;
use std::path::Path;
use tessl::DType;

const MAGIC: &[u8; 6] = b"\x93NUMPY";
/// NumPy itself refuses longer headers.
const MAX_HEADER: u64 = 64 << 10;

/// What a header says.
#[derive(Debug, PartialEq, Eq)]
struct Header {
    descr: String,
    fortran: bool,
    shape: Vec<usize>,
}

pub(super) fn open(path: &Path, mut file: File, file_bytes: u64) -> Result<Source> {
    let fail = |what: String| CliError::file(path, what);
    let mut start = [0u8; 8];
    if file_bytes < 10 || file.read_exact(&mut start).is_err() || !start.starts_with(MAGIC) {
        return Err(fail("not a npy file; write it with numpy.save".to_owned()));
    }
    let wide = match start[6] {
        1 => false,
        2 | 3 => true,
        v => return Err(fail(format!("npy version {v} is not known; write it again with numpy.save"))),
    };
    let truncated = |e: std::io::Error| fail(format!("ends inside its header ({e}); it was not written completely"));
    let mut size = [0u8; 4];
    file.read_exact(if wide { &mut size } else { &mut size[..2] }).map_err(truncated)?;
    let size = u64::from(u32::from_le_bytes(size));
    let data_start = size + if wide { 12 } else { 10 };
    if size > MAX_HEADER || data_start > file_bytes {
        return Err(fail(format!("has a header of {size} bytes, which does not fit; it is truncated or damaged")));
    }
    let mut text = String::new();
    file.by_ref().take(size).read_to_string(&mut text).map_err(truncated)?;
    let Header { descr, fortran, shape } = parse(&text).ok_or_else(|| {
        fail("has a header that does not describe an array of numbers; save a plain array".to_owned())
    })?;
    let (dtype, swapped) = dtype(&descr).map_err(fail)?;
    let wanted = data_bytes(&shape, dtype);
    let have = file_bytes - data_start;
    match wanted {
        Some(wanted) if wanted == have => Ok(Source { path: path.to_owned(), file, dtype, shape, fortran, swapped }),
        Some(wanted) if wanted < have => {
            Err(fail(format!("has {have} bytes of data where {shape:?} of {dtype} needs {wanted}; it is damaged")))
        }
        _ => Err(fail(format!(
            "is truncated: {shape:?} of {dtype} needs {} bytes of data, the file has {have}; write it again",
            wanted.map_or_else(|| "more than 2^64".to_owned(), |w| w.to_string())
        ))),
    }
}

/// The element type, and whether its bytes are reversed on this machine.
fn dtype(descr: &str) -> Result<(DType, bool), String> {
    let (order, code) = descr.split_at_checked(1).unwrap_or_default();
    let swapped = match order {
        "<" | "=" | "|" => cfg!(target_endian = "big") && order == "<",
        ">" => cfg!(target_endian = "little"),
        _ => return Err(format!("has element type `{descr}`, which is not a number; convert it to float32")),
    };
    match code {
        "f4" => Ok((DType::F32, swapped)),
        "f2" => Ok((DType::F16, swapped)),
        "f8" => Err("is float64, which no device multiplies; convert it with a.astype(numpy.float32)".to_owned()),
        _ => Err(format!("has element type `{descr}`; convert it with a.astype(numpy.float32) or numpy.float16")),
    }
}

/// Reads `{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }`, keys in any order, each exactly once.
fn parse(text: &str) -> Option<Header> {
    let (mut descr, mut fortran, mut shape) = (None, None, None);
    let mut rest = text.trim_matches(['\0', ' ', '\n', '\t', '\r']).strip_prefix('{')?.strip_suffix('}')?.trim();
    while !rest.is_empty() {
        let (key, after) = quoted(rest)?;
        let value = after.trim_start().strip_prefix(':')?.trim_start();
        let after = match key {
            "descr" if descr.is_none() => {
                let (value, after) = quoted(value)?;
                descr = Some(value.to_owned());
                after
            }
            "fortran_order" if fortran.is_none() => {
                fortran = Some(value.starts_with("True"));
                value.strip_prefix("True").or_else(|| value.strip_prefix("False"))?
            }
            "shape" if shape.is_none() => {
                let (inner, after) = value.strip_prefix('(')?.split_once(')')?;
                shape = Some(extents(inner)?);
                after
            }
            _ => return None,
        };
        let after = after.trim_start();
        rest = match after.strip_prefix(',') {
            Some(next) => next.trim_start(),
            None if after.is_empty() => after,
            None => return None,
        };
    }
    Some(Header { descr: descr?, fortran: fortran?, shape: shape? })
}

/// A string without escapes, and what follows it.
fn quoted(text: &str) -> Option<(&str, &str)> {
    let quote = text.chars().next().filter(|q| matches!(q, '\'' | '"'))?;
    text[1..].split_once(quote)
}

/// `3, 4` or `3,` or nothing; Python 2 wrote `3L`.
fn extents(text: &str) -> Option<Vec<usize>> {
    let text = text.trim();
    let text = text.strip_suffix(',').unwrap_or(text);
    if text.trim().is_empty() {
        return Some(Vec::new());
    }
    text.split(',').map(|part| part.trim().trim_end_matches('L').parse().ok()).collect()
}

/// The bytes in front of the data of a new file, a multiple of 64 as numpy makes them.
///
/// # Errors
/// `DType` for element types that npy does not have.
pub fn header(dtype: DType, shape: &[usize]) -> Result<Vec<u8>, String> {
    let descr = match dtype {
        DType::F32 => "<f4",
        DType::F16 => "<f2",
        other => return Err(format!("npy has no {other}; give --out-dtype f32, or write to a .safetensors file")),
    };
    let extents: String = shape.iter().map(|d| format!("{d}, ")).collect();
    let extents = if shape.len() > 1 { extents.trim_end_matches(", ") } else { extents.trim_end() };
    let text = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': ({extents}), }}");
    let padded = (10 + text.len() + 1).next_multiple_of(64);
    let size = u16::try_from(padded - 10).map_err(|_| "has too many axes for npy".to_owned())?;
    let mut bytes = MAGIC.to_vec();
    bytes.extend([1, 0]);
    bytes.extend(size.to_le_bytes());
    bytes.extend(text.bytes());
    bytes.resize(padded - 1, b' ');
    bytes.push(b'\n');
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header_text(shape: &[usize]) -> String {
        let bytes = header(DType::F32, shape).unwrap();
        assert_eq!(bytes.len() % 64, 0);
        String::from_utf8(bytes[10..].to_vec()).unwrap()
    }

    #[test]
    fn own_headers_read_back() {
        for shape in [&[3usize, 4][..], &[5], &[], &[1, 0, 2]] {
            let read = parse(&header_text(shape)).unwrap();
            assert_eq!((read.descr.as_str(), read.fortran, read.shape.as_slice()), ("<f4", false, shape));
        }
        assert!(header(DType::Bf16, &[1]).is_err());
    }

    #[test]
    fn headers_of_other_writers() {
        let read = parse("{\"shape\": (2L, 3L), 'fortran_order': True, 'descr': '>f2'}  \n").unwrap();
        assert_eq!(read, Header { descr: ">f2".into(), fortran: true, shape: vec![2, 3] });
        assert_eq!(dtype(">f4").unwrap().1, cfg!(target_endian = "little"));
        for (descr, hint) in [("<f8", "astype"), ("<i4", "astype"), ("|O", "astype"), ("", "number"), ("é", "number")]
        {
            assert!(dtype(descr).unwrap_err().contains(hint), "{descr}");
        }
    }

    /// Every truncation and every single-character change of a header is read or refused, never a panic.
    #[test]
    fn damaged_headers_do_not_panic() {
        let good = header_text(&[12, 34]);
        let alphabet = ["{", "}", "'", "(", ")", ",", ":", "9", "-", "\0", "é", "[", "L", " "];
        for (at, _) in good.char_indices() {
            let _ = parse(&good[..at]);
            for other in alphabet {
                let changed = format!("{}{other}{}", &good[..at], &good[at + 1..]);
                if let Some(header) = parse(&changed) {
                    let _ = dtype(&header.descr);
                    let _ = data_bytes(&header.shape, DType::F32);
                }
            }
        }
        for hostile in ["{'shape': (((((((", "{'descr': [[[[", "{,}", "{'shape': (1,,2)}", "{'shape': (-1,)}", "{:}"] {
            assert_eq!(parse(hostile), None, "{hostile}");
        }
        assert_eq!(parse(&"[".repeat(60_000)), None);
    }
}
