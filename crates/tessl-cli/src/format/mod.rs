//! Array files: npy and safetensors, read in chunks and never trusted.
//!
//! A header is a claim. Its sizes are checked against the size of the file before anything is allocated for them.

pub mod npy;
pub mod safetensors;
mod transfer;

use crate::error::{CliError, Result};
use std::fs::{File, OpenOptions};
use std::io::{BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use tessl::DType;
pub use transfer::{load, store};

/// Says early whether `spec`'s format has the element type.
///
/// # Errors
/// `File` with what to do.
pub fn preflight(spec: &Spec, dtype: DType) -> Result<()> {
    transfer::header(spec, dtype, &[0], 0).map(|_| ())
}

/// Where an array is: a file and, in safetensors, a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spec {
    /// The file.
    pub path: PathBuf,
    /// The tensor in it.
    pub name: Option<String>,
    /// What the file is.
    pub kind: Kind,
}

/// A file format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// NumPy's format for one array.
    Npy,
    /// Named tensors.
    Safetensors,
}

impl std::str::FromStr for Spec {
    type Err = String;

    /// `file.npy`, `file.safetensors` or `file.safetensors:name`.
    fn from_str(text: &str) -> Result<Self, String> {
        const MARK: &str = ".safetensors:";
        let (path, name) = match text.find(MARK) {
            Some(at) => (&text[..at + MARK.len() - 1], Some(text[at + MARK.len()..].to_owned())),
            None => (text, None),
        };
        if name.as_deref() == Some("") {
            return Err(format!("`{text}` names no tensor after the colon"));
        }
        let kind = match Path::new(path).extension().and_then(|e| e.to_str()) {
            Some("npy") => Kind::Npy,
            Some("safetensors") => Kind::Safetensors,
            _ => return Err(format!("`{text}` must end in .npy, .safetensors or .safetensors:NAME")),
        };
        Ok(Spec { path: path.into(), name, kind })
    }
}

/// An array in a file whose header has been read and checked; its data starts at the file's current position.
#[derive(Debug)]
pub struct Source {
    pub(crate) path: PathBuf,
    pub(crate) file: File,
    /// Element type.
    pub dtype: DType,
    /// Extents.
    pub shape: Vec<usize>,
    /// The first index runs fastest.
    pub fortran: bool,
    /// The bytes of each element are reversed.
    pub(crate) swapped: bool,
}

impl Source {
    /// Opens the file and checks its header.
    ///
    /// # Errors
    /// `File` with what is wrong and what to do.
    pub fn open(spec: &Spec) -> Result<Self> {
        let fail = |e: std::io::Error| CliError::file(&spec.path, e.to_string());
        let file = File::open(&spec.path).map_err(fail)?;
        let meta = file.metadata().map_err(fail)?;
        if !meta.is_file() {
            return Err(CliError::file(&spec.path, "not a regular file; save the array to a file first"));
        }
        match spec.kind {
            Kind::Npy => npy::open(&spec.path, file, meta.len()),
            Kind::Safetensors => safetensors::open(&spec.path, file, meta.len(), spec.name.as_deref()),
        }
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.shape.iter().product()
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of the data in the file.
    pub fn bytes(&self) -> u64 {
        self.len() as u64 * self.dtype.size() as u64
    }

    /// Fills `out` with the next bytes.
    pub(crate) fn read(&mut self, out: &mut [u8]) -> Result<()> {
        self.file.read_exact(out).map_err(|e| CliError::file(&self.path, format!("reading the data: {e}")))
    }
}

/// Bytes of an array with this shape, or nothing where they do not fit.
pub(crate) fn data_bytes(shape: &[usize], dtype: DType) -> Option<u64> {
    shape.iter().try_fold(dtype.size() as u64, |n, &d| n.checked_mul(u64::try_from(d).ok()?))
}

/// A file that appears under its name only when it is complete.
#[derive(Debug)]
pub struct Output {
    path: PathBuf,
    temporary: PathBuf,
    writer: Option<BufWriter<File>>,
}

impl Output {
    /// Starts a file beside `path`.
    ///
    /// # Errors
    /// `File` when `path` exists and `force` is not given, or cannot be written.
    pub fn create(path: &Path, force: bool) -> Result<Self> {
        if path.is_dir() {
            return Err(CliError::file(path, "is a folder; give a file name"));
        }
        if !force && path.exists() {
            return Err(CliError::file(path, "exists already; give --force to replace it"));
        }
        let name = path.file_name().ok_or_else(|| CliError::file(path, "is not a file name"))?;
        let temporary = path.with_file_name(format!(".{}.{}.part", name.to_string_lossy(), std::process::id()));
        let file = OpenOptions::new().write(true).create_new(true).open(&temporary);
        let file = file.map_err(|e| CliError::file(path, format!("cannot be written: {e}")))?;
        Ok(Output { path: path.to_owned(), temporary, writer: Some(BufWriter::new(file)) })
    }

    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result<()> {
        let Some(writer) = &mut self.writer else { return Ok(()) };
        writer.write_all(bytes).map_err(|e| CliError::file(&self.path, format!("cannot be written: {e}")))
    }

    /// Gives the file its name.
    ///
    /// # Errors
    /// `File` when the disk is full or the like.
    pub fn finish(mut self) -> Result<()> {
        let fail = |path: &Path, e: std::io::Error| CliError::file(path, format!("cannot be written: {e}"));
        let Some(writer) = self.writer.take() else { return Ok(()) };
        let flushed = writer.into_inner().map_err(std::io::IntoInnerError::into_error);
        let closed = flushed.and_then(|file| file.sync_all());
        let renamed = closed.and_then(|()| std::fs::rename(&self.temporary, &self.path));
        renamed.map_err(|e| {
            let _ = std::fs::remove_file(&self.temporary);
            fail(&self.path, e)
        })
    }
}

impl Drop for Output {
    /// An unfinished file goes away.
    fn drop(&mut self) {
        if self.writer.take().is_some() {
            let _ = std::fs::remove_file(&self.temporary);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn specs() {
        let spec: Spec = "dir/w.safetensors:model.w:0".parse().unwrap();
        assert_eq!((spec.path, spec.name.as_deref()), ("dir/w.safetensors".into(), Some("model.w:0")));
        assert_eq!("a.npy".parse::<Spec>().unwrap().kind, Kind::Npy);
        for bad in ["a.txt", "a", "", "a.safetensors:", "a.npy:x"] {
            assert!(bad.parse::<Spec>().is_err(), "{bad}");
        }
    }

    #[test]
    fn sizes_that_do_not_fit_are_found() {
        assert_eq!(data_bytes(&[usize::MAX, 2], DType::F32), None);
        assert_eq!(data_bytes(&[3, 0], DType::F16), Some(0));
    }
}
