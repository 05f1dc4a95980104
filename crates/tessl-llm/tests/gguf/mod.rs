//! GGUF files made by hand.
#![allow(dead_code, unreachable_pub)]

use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Builds a GGUF file, field by field, so that each can be wrong.
#[derive(Clone)]
pub struct Gguf {
    pub magic: [u8; 4],
    pub version: u32,
    pub pairs: Vec<Vec<u8>>,
    pub tensors: Vec<(String, Vec<u64>, u32, u64)>,
    pub pair_count: Option<u64>,
    pub tensor_count: Option<u64>,
    pub data: Vec<u8>,
}

pub fn text(s: &[u8]) -> Vec<u8> {
    [&(s.len() as u64).to_le_bytes()[..], s].concat()
}

pub fn pair(key: &str, kind: u32, value: &[u8]) -> Vec<u8> {
    [&text(key.as_bytes())[..], &kind.to_le_bytes(), value].concat()
}

pub fn list(kind: u32, count: u64, items: &[u8]) -> Vec<u8> {
    [&kind.to_le_bytes()[..], &count.to_le_bytes(), items].concat()
}

impl Gguf {
    /// A file without a fault.
    pub fn sound() -> Self {
        let numbers = [1.5f32, -2.0, 0.25, 8.0].map(f32::to_le_bytes).concat();
        let mut data = numbers;
        data.resize(32, 0);
        data.extend(0u8..34);
        Gguf {
            magic: *b"GGUF",
            version: 3,
            pairs: vec![
                pair("general.architecture", 8, &text(b"llama")),
                pair("a.u8", 0, &[200]),
                pair("a.i16", 3, &(-7i16).to_le_bytes()),
                pair("a.f64", 12, &0.5f64.to_le_bytes()),
                pair("a.bool", 7, &[1]),
                pair("a.words", 9, &list(8, 2, &[text("Zürich".as_bytes()), text(b"")].concat())),
                pair("a.ints", 9, &list(5, 2, &[1, 0, 0, 0, 255, 255, 255, 255])),
            ],
            tensors: vec![("w".into(), vec![2, 2], 0, 0), ("q".into(), vec![32, 1], 8, 32)],
            pair_count: None,
            tensor_count: None,
            data,
        }
    }

    /// The bytes of the file.
    pub fn bytes(&self) -> Vec<u8> {
        let mut out = self.magic.to_vec();
        out.extend(self.version.to_le_bytes());
        out.extend(self.tensor_count.unwrap_or(self.tensors.len() as u64).to_le_bytes());
        out.extend(self.pair_count.unwrap_or(self.pairs.len() as u64).to_le_bytes());
        out.extend(self.pairs.concat());
        for (name, axes, kind, offset) in &self.tensors {
            out.extend(text(name.as_bytes()));
            out.extend(u32::try_from(axes.len()).unwrap().to_le_bytes());
            out.extend(axes.iter().flat_map(|a| a.to_le_bytes()));
            out.extend(kind.to_le_bytes());
            out.extend(offset.to_le_bytes());
        }
        out.resize(out.len().next_multiple_of(32), 0);
        out.extend(&self.data);
        out
    }
}

/// A file that goes away with its test.
pub struct Scratch(pub PathBuf);

impl Scratch {
    pub fn new(name: &str, bytes: &[u8]) -> Self {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let unique = format!("{}-{}-{name}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(unique);
        std::fs::write(&path, bytes).unwrap();
        Scratch(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}
