//! Random operands, in as many copies as it takes to be larger than the caches.

use super::{Case, Work};
use crate::error::Result;
use crate::spotcheck::{self, Problem};
use half::{bf16, f16};
use tessl::{BufferKind, DType, DeviceKind, Element, Gemm, GpuRuntime, PackedWeights, Stream, Tensor};

/// Elements of the pool that operands are filled from.
const POOL: usize = 1 << 22;
/// Elements written at once.
const CHUNK: usize = 1 << 20;
/// Bytes of all copies together, at most: caches above half of this are not outrun.
const MAX_BYTES: u64 = 512 << 20;
/// Copies, at most.
const MAX_SETS: u64 = 128;
/// Results compared after each measurement.
const CHECKED: usize = 16;

/// Random numbers in [-1, 1), ready in each type.
#[derive(Debug)]
pub struct Data {
    f32: Vec<f32>,
    f16: Vec<f16>,
    bf16: Vec<bf16>,
    i8: Vec<i8>,
}

impl Default for Data {
    fn default() -> Self {
        Self::new()
    }
}

impl Data {
    /// The same numbers every time.
    pub fn new() -> Self {
        let mut rng = tessl_oracle::Rng::new(0x7e55_e11a);
        #[allow(clippy::cast_possible_truncation)]
        let f32: Vec<f32> = (0..POOL).map(|_| (2.0 * rng.unit() - 1.0) as f32).collect();
        let f16 = f32.iter().map(|&x| f16::from_f32(x)).collect();
        let bf16 = f32.iter().map(|&x| bf16::from_f32(x)).collect();
        #[allow(clippy::cast_possible_truncation)]
        let i8 = f32.iter().map(|&x| (x * 128.0) as i8).collect();
        Data { f32, f16, bf16, i8 }
    }

    /// Fills a tensor, from a place of its own for each `seed`.
    ///
    /// # Errors
    /// What the library reports.
    pub fn fill(&self, tensor: &Tensor, seed: usize) -> Result<()> {
        match tensor.dtype() {
            DType::F16 => copy(tensor, &self.f16, seed),
            DType::Bf16 => copy(tensor, &self.bf16, seed),
            DType::I8 => copy(tensor, &self.i8, seed),
            _ => copy(tensor, &self.f32, seed),
        }
    }
}

/// Repeats the pool from a place of its own for each tensor.
fn copy<T: Element>(tensor: &Tensor, pool: &[T], seed: usize) -> Result<()> {
    let flat = tensor.reshape(&[tensor.len()])?;
    let mut start = 0;
    let mut at = seed.wrapping_mul(1_000_003) % (POOL - CHUNK);
    while start < flat.len() {
        let count = CHUNK.min(flat.len() - start);
        flat.narrow(0, start, count)?.write(&pool[at..at + count])?;
        start += count;
        at = (at + 1_234_567) % (POOL - CHUNK);
    }
    Ok(())
}

/// Copies of the operands of one case, used in turn.
#[derive(Debug)]
pub struct Rotation {
    sets: Vec<[Tensor; 3]>,
    /// B of each copy, where it is packed.
    packed: Vec<PackedWeights>,
    case: Case,
    next: usize,
}

impl Rotation {
    /// Allocates and fills the copies; C is poisoned with NaN. `most` bounds their bytes.
    ///
    /// # Errors
    /// What the library reports.
    pub fn new(rt: &GpuRuntime, case: &Case, data: &Data, most: u64) -> Result<Self> {
        let wanted = cache_bytes(rt).saturating_mul(2).min(MAX_BYTES).min(most);
        let count = wanted.div_ceil(case.bytes().max(1)).clamp(2, MAX_SETS);
        let [m, n, k] = [case.shape.m, case.shape.n, case.shape.k].map(|d| usize::try_from(d).unwrap_or(usize::MAX));
        let operand = |rows, columns, turned: bool, seed| -> Result<Tensor> {
            let shape = if turned { [columns, rows] } else { [rows, columns] };
            let tensor = rt.uninit(case.input, &shape, BufferKind::Hot)?;
            data.fill(&tensor, seed)?;
            Ok(if turned { tensor.t()? } else { tensor })
        };
        let mut sets = Vec::new();
        for i in 0..usize::try_from(count).unwrap_or(2) {
            let a = operand(m, k, case.turned[0], 2 * i)?;
            let b = operand(k, n, case.turned[1], 2 * i + 1)?;
            let c = rt.uninit(case.output, &[m, n], BufferKind::Hot)?;
            sets.push([a, b, c]);
        }
        let packed = if case.packed {
            sets.iter().map(|[_, b, _]| PackedWeights::pack(b, None, case.backend)).collect::<tessl::Result<_>>()?
        } else {
            Vec::new()
        };
        let rotation = Rotation { sets, packed, case: *case, next: 0 };
        rotation.poison()?;
        rt.synchronize()?;
        Ok(rotation)
    }

    /// Number of copies.
    pub fn copies(&self) -> usize {
        self.sets.len()
    }

    /// The product on copy `i`, counted past the end from the start again.
    pub fn call(&self, i: usize) -> Gemm<'_> {
        let i = i % self.sets.len();
        let [a, b, c] = &self.sets[i];
        let gemm = match self.packed.get(i) {
            Some(packed) => Gemm::new(a, packed, c),
            None => Gemm::new(a, b, c),
        };
        gemm.backend(self.case.backend).precision(self.case.precision)
    }

    /// The copy that the latest [`turn`](Work::turn) named.
    pub fn last(&self) -> usize {
        (self.next + self.sets.len() - 1) % self.sets.len()
    }

    /// Fills every C with NaN.
    ///
    /// # Errors
    /// What the library reports.
    pub fn poison(&self) -> Result<()> {
        for [_, _, c] in &self.sets {
            poison_any(c)?;
        }
        Ok(())
    }

    /// Whether the C of copy `i` has been written everywhere, with the right numbers at a sample of places.
    ///
    /// # Errors
    /// `Failed` where not.
    pub fn check(&self, i: usize) -> Result<()> {
        let [a, b, c] = &self.sets[i % self.sets.len()];
        let left = match c.dtype() {
            DType::F16 => poisoned(c, |x: f16| x.is_nan())?,
            DType::Bf16 => poisoned(c, |x: bf16| x.is_nan())?,
            DType::I32 => poisoned(c, |x: i32| x == i32::MIN)?,
            _ => poisoned(c, f32::is_nan)?,
        };
        if left > 0 {
            let what = format!("gemm {}: {left} of {} results were never written", self.case.shape, c.len());
            return Err(crate::CliError::Failed(what));
        }
        let none = tessl::Activation::None;
        let precision = self.case.precision;
        let p = Problem { a, b, c, c_in: None, bias: None, alpha: 1.0, beta: 0.0, activation: none, precision };
        spotcheck::sample(&p, CHECKED).map(|_| ())
    }
}

impl Work for Rotation {
    fn turn(&mut self) -> usize {
        self.next = (self.next + 1) % self.sets.len();
        self.last()
    }

    fn encode(&self, i: usize, stream: Option<&mut Stream>) -> tessl::Result<()> {
        match stream {
            Some(stream) => self.call(i).run_on(stream),
            None => self.call(i).run(),
        }
    }
}

/// Fills a tensor with NaN.
pub(super) fn poison_any(c: &Tensor) -> Result<()> {
    match c.dtype() {
        DType::F16 => poison(c, f16::NAN),
        DType::Bf16 => poison(c, bf16::NAN),
        DType::I32 => poison(c, i32::MIN),
        _ => poison(c, f32::NAN),
    }
}

fn poison<T: Element>(c: &Tensor, value: T) -> Result<()> {
    let flat = c.reshape(&[c.len()])?;
    let chunk = vec![value; CHUNK.min(c.len())];
    let mut start = 0;
    while start < c.len() {
        let count = chunk.len().min(c.len() - start);
        flat.narrow(0, start, count)?.write(&chunk[..count])?;
        start += count;
    }
    Ok(())
}

fn poisoned<T: Element>(c: &Tensor, bad: impl Fn(T) -> bool) -> Result<usize> {
    Ok(c.read::<T>()?.into_iter().filter(|&x| bad(x)).count())
}

/// The largest cache that operands could stay in.
pub(super) fn cache_bytes(rt: &GpuRuntime) -> u64 {
    let own = rt.profile().l2_bytes;
    let shared = if rt.info().kind == DeviceKind::Cpu { super::limits::last_level_cache() } else { None };
    own.max(shared.unwrap_or(32 << 20))
}
