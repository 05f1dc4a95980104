//! Operands inside larger buffers: where each element is, what the slack holds, and how it is checked.

use crate::env::Env;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use tessl::float8::{F8E4M3, F8E5M2};
use tessl::{BufferKind, DType, Gemm, Stream, Tensor, bf16, f16};
use tessl_oracle::Format;

/// Bytes around outputs hold this; no kernel may change them.
const CANARY: u8 = 0xA5;
/// Elements before the first one: keeps 128-byte alignment for every type at offset 0.
const FRONT: usize = 64;
/// Elements after the last one.
const BACK: usize = 37;

/// The oracle's view of a float type.
///
/// # Panics
/// For types that are not floats.
pub fn format_of(dtype: DType) -> Format {
    match dtype {
        DType::F32 => Format::F32,
        DType::F16 => Format::F16,
        DType::Bf16 => Format::BF16,
        DType::F8E4M3 => Format::F8E4M3,
        DType::F8E5M2 => Format::F8E5M2,
        other => panic!("{other} is not a float type of the suite"),
    }
}

/// Values as bytes. They must be representable; the oracle's formats round. NaN becomes the largest integer.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // Exact for representable values.
pub(crate) fn encode(dtype: DType, values: impl Iterator<Item = f64>) -> Vec<u8> {
    let whole = |v: f64, largest: f64| if v.is_nan() { largest } else { v };
    match dtype {
        DType::F32 => values.flat_map(|v| (v as f32).to_ne_bytes()).collect(),
        DType::F16 => values.flat_map(|v| f16::from_f64(v).to_ne_bytes()).collect(),
        DType::Bf16 => values.flat_map(|v| bf16::from_f64(v).to_ne_bytes()).collect(),
        DType::U8 => values.map(|v| whole(v, 255.0) as u8).collect(),
        DType::I8 => values.map(|v| (whole(v, 127.0) as i8).cast_unsigned()).collect(),
        DType::F8E4M3 => values.map(|v| if v.is_nan() { 0x7f } else { F8E4M3::from_f64(v).to_bits() }).collect(),
        DType::F8E5M2 => values.map(|v| if v.is_nan() { 0x7f } else { F8E5M2::from_f64(v).to_bits() }).collect(),
        DType::U32 => values.flat_map(|v| (whole(v, f64::from(u32::MAX)) as u32).to_ne_bytes()).collect(),
        DType::I32 => values.flat_map(|v| (whole(v, f64::from(i32::MAX)) as i32).to_ne_bytes()).collect(),
        other => panic!("{other} is not a type of the suite"),
    }
}

/// The element at index `at` of `bytes`.
pub(crate) fn decode(dtype: DType, bytes: &[u8], at: usize) -> f64 {
    let size = dtype.size();
    let b = &bytes[at * size..][..size];
    match dtype {
        DType::F32 => f64::from(f32::from_ne_bytes([b[0], b[1], b[2], b[3]])),
        DType::F16 => f16::from_ne_bytes([b[0], b[1]]).to_f64(),
        DType::Bf16 => bf16::from_ne_bytes([b[0], b[1]]).to_f64(),
        DType::F8E4M3 => F8E4M3::from_bits(b[0]).to_f64(),
        DType::F8E5M2 => F8E5M2::from_bits(b[0]).to_f64(),
        DType::U8 => f64::from(b[0]),
        DType::I8 => f64::from(b[0].cast_signed()),
        DType::U32 => f64::from(u32::from_ne_bytes([b[0], b[1], b[2], b[3]])),
        DType::I32 => f64::from(i32::from_ne_bytes([b[0], b[1], b[2], b[3]])),
        other => panic!("{other} is not a type of the suite"),
    }
}

/// `x` as the nearest value of `dtype`; whole numbers of integer types stay.
pub(crate) fn representable(dtype: DType, x: f64) -> f64 {
    if matches!(dtype, DType::I32 | DType::U32 | DType::I8 | DType::U8) { x } else { format_of(dtype).round(x) }
}

fn text(error: tessl::Error) -> String {
    error.to_string()
}

/// Writes raw bytes to a tensor of any type of the suite.
pub(crate) fn write_bytes(tensor: &Tensor, bytes: &[u8], stream: Option<&mut Stream>) -> Result<(), String> {
    macro_rules! write {
        ($t:ty) => {{
            let mut data = vec![<$t as bytemuck::Zeroable>::zeroed(); bytes.len() / size_of::<$t>()];
            bytemuck::cast_slice_mut(&mut data).copy_from_slice(bytes);
            match stream {
                Some(stream) => tensor.write_on(&data, stream),
                None => tensor.write(&data),
            }
        }};
    }
    let outcome = match tensor.dtype() {
        DType::F32 => write!(f32),
        DType::F16 => write!(f16),
        DType::Bf16 => write!(bf16),
        DType::U8 => write!(u8),
        DType::I8 => write!(i8),
        DType::F8E4M3 => write!(F8E4M3),
        DType::F8E5M2 => write!(F8E5M2),
        DType::U32 => write!(u32),
        DType::I32 => write!(i32),
        other => return Err(format!("{other} is not a type of the suite")),
    };
    outcome.map_err(text)
}

/// The tensor's elements as bytes, in row-major order.
pub(crate) fn read_bytes(tensor: &Tensor) -> Result<Vec<u8>, String> {
    macro_rules! read {
        ($t:ty) => {
            tensor.read::<$t>().map(|v| bytemuck::cast_slice(&v).to_vec())
        };
    }
    match tensor.dtype() {
        DType::F32 => read!(f32).map_err(text),
        DType::F16 => read!(f16).map_err(text),
        DType::Bf16 => read!(bf16).map_err(text),
        DType::F8E4M3 => read!(F8E4M3).map_err(text),
        DType::F8E5M2 => read!(F8E5M2).map_err(text),
        DType::U8 => read!(u8).map_err(text),
        DType::I8 => read!(i8).map_err(text),
        DType::U32 => read!(u32).map_err(text),
        DType::I32 => read!(i32).map_err(text),
        other => Err(format!("{other} is not a type of the suite")),
    }
}

/// Where a case's memory comes from and which stream it runs on.
pub(crate) struct Mem<'a> {
    pub(crate) env: &'a Env,
    kind: BufferKind,
    pub(crate) stream: Option<&'a mut Stream>,
}

impl<'a> Mem<'a> {
    /// Runs `body` with memory of one kind: inside a step for `Bump`, on the default stream otherwise.
    pub(crate) fn with<T>(
        env: &Env,
        kind: BufferKind,
        body: impl FnOnce(&mut Mem<'_>) -> Result<T, String>,
    ) -> Result<T, String> {
        if kind != BufferKind::Bump {
            return body(&mut Mem { env, kind, stream: None });
        }
        let mut stream = env.rt.stream().map_err(text)?;
        stream.step(|s| Ok(body(&mut Mem { env, kind, stream: Some(s) }))).map_err(text)?
    }

    /// Whether this device has memory of `kind`.
    pub(crate) fn available(env: &Env, kind: BufferKind) -> bool {
        kind != BufferKind::External || env.rt.info().unified_memory
    }

    /// `len` elements of unspecified content.
    pub(crate) fn alloc(&mut self, dtype: DType, len: usize) -> Result<Tensor, String> {
        match (self.kind, &mut self.stream) {
            (BufferKind::Bump, Some(stream)) => stream.bump(dtype, &[len]).map_err(text),
            (BufferKind::External, _) => {
                let bytes = len * dtype.size();
                // Atomics, because the device writes behind a shared reference.
                let words: Arc<[AtomicU64]> = (0..bytes.div_ceil(8) + 16).map(|_| AtomicU64::new(0)).collect();
                // On a 128-byte boundary, so that alignment is the view's choice.
                let start = words.as_ptr().cast::<u8>().cast_mut();
                let start = start.wrapping_add(start.align_offset(128));
                // SAFETY: the words live as long as `keep_alive`, are writable through atomics, and nobody else knows them.
                let tensor = unsafe { self.env.rt.from_external(start, bytes, words) }.map_err(text)?;
                tensor.bitcast(dtype).map_err(text)
            }
            (kind, _) => self.env.rt.uninit(dtype, &[len], kind).map_err(text),
        }
    }

    pub(crate) fn write(&mut self, tensor: &Tensor, bytes: &[u8]) -> Result<(), String> {
        write_bytes(tensor, bytes, self.stream.as_deref_mut())
    }

    /// Runs a product and counts its plan row.
    pub(crate) fn gemm(&mut self, op: &Gemm<'_>) -> Result<(), String> {
        let desc = op.desc().map_err(text)?;
        if desc.m > 0 && desc.n > 0 && desc.batch > 0 {
            self.env.cover(&tessl::plan::Desc::Gemm(desc))?;
        }
        self.gemm_again(op)
    }

    /// Runs a product that has been counted.
    pub(crate) fn gemm_again(&mut self, op: &Gemm<'_>) -> Result<(), String> {
        match self.stream.as_deref_mut() {
            Some(stream) => op.run_on(stream).map_err(text),
            None => op.run().map_err(text),
        }
    }

    /// Runs a normalisation and counts its plan row.
    pub(crate) fn rms_norm(&mut self, op: &tessl::nn::RmsNorm<'_>) -> Result<(), String> {
        let desc = op.desc().map_err(text)?;
        if desc.rows > 0 && desc.n > 0 {
            self.env.cover(&tessl::plan::Desc::RmsNorm(desc))?;
        }
        self.rms_norm_again(op)
    }

    /// Runs a normalisation that has been counted.
    pub(crate) fn rms_norm_again(&mut self, op: &tessl::nn::RmsNorm<'_>) -> Result<(), String> {
        match self.stream.as_deref_mut() {
            Some(stream) => op.run_on(stream).map_err(text),
            None => op.run().map_err(text),
        }
    }
}

/// A strided array inside a buffer with slack before, between and after.
#[derive(Clone, Debug)]
pub(crate) struct Placed {
    dtype: DType,
    shape: Vec<usize>,
    strides: Vec<usize>,
    base: usize,
    total: usize,
    whole: Option<Tensor>,
}

impl Placed {
    /// An array of this shape and these strides whose first element is `offset` elements past an aligned place.
    pub(crate) fn new(dtype: DType, shape: &[usize], strides: &[usize], offset: usize) -> Self {
        let reach: usize = shape.iter().zip(strides).map(|(&d, &s)| d.saturating_sub(1) * s).sum();
        let base = FRONT + offset;
        Placed {
            dtype,
            shape: shape.to_vec(),
            strides: strides.to_vec(),
            base,
            total: base + reach + 1 + BACK,
            whole: None,
        }
    }

    /// Elements of the array.
    pub(crate) fn len(&self) -> usize {
        self.shape.iter().product()
    }

    /// Place in the buffer of the `at`-th element in row-major order.
    fn place(&self, at: usize) -> usize {
        let mut rest = at;
        let mut place = self.base;
        for (&extent, &stride) in self.shape.iter().zip(&self.strides).rev() {
            place += rest % extent * stride;
            rest /= extent;
        }
        place
    }

    /// Allocates the buffer.
    pub(crate) fn allocate(&mut self, mem: &mut Mem<'_>) -> Result<(), String> {
        self.whole = Some(mem.alloc(self.dtype, self.total)?);
        Ok(())
    }

    /// Writes an input: `value(row-major index)`, NaN in the slack.
    pub(crate) fn fill_input(&self, mem: &mut Mem<'_>, value: impl Fn(usize) -> f64) -> Result<(), String> {
        let mut all = vec![f64::NAN; self.total];
        for at in 0..self.len() {
            all[self.place(at)] = value(at);
        }
        self.put(mem, &encode(self.dtype, all.into_iter()))
    }

    /// Writes an output before its kernel: `value`, canaries in the slack.
    pub(crate) fn fill_output(&self, mem: &mut Mem<'_>, value: impl Fn(usize) -> f64) -> Result<(), String> {
        let size = self.dtype.size();
        let mut bytes = vec![CANARY; self.total * size];
        let values = encode(self.dtype, (0..self.len()).map(value));
        for (at, element) in values.chunks_exact(size).enumerate() {
            bytes[self.place(at) * size..][..size].copy_from_slice(element);
        }
        self.put(mem, &bytes)
    }

    fn put(&self, mem: &mut Mem<'_>, bytes: &[u8]) -> Result<(), String> {
        mem.write(self.whole.as_ref().ok_or("not allocated")?, bytes)
    }

    /// The view that ops receive.
    pub(crate) fn view(&self) -> Result<Tensor, String> {
        let whole = self.whole.as_ref().ok_or("not allocated")?;
        whole.view(&self.shape, &self.strides, self.base).map_err(text)
    }

    /// The array's bytes in row-major order, after checking that the slack is untouched.
    pub(crate) fn fetch_output(&self) -> Result<Vec<u8>, String> {
        let whole = read_bytes(self.whole.as_ref().ok_or("not allocated")?)?;
        let size = self.dtype.size();
        let mut out = vec![0u8; self.len() * size];
        let mut mine = vec![false; self.total];
        for (at, element) in out.chunks_exact_mut(size).enumerate() {
            let place = self.place(at);
            mine[place] = true;
            element.copy_from_slice(&whole[place * size..][..size]);
        }
        for (place, _) in mine.iter().enumerate().filter(|(_, mine)| !**mine) {
            let found = &whole[place * size..][..size];
            if found.iter().any(|&b| b != CANARY) {
                return Err(format!(
                    "wrote outside the output: element {} from its start became {found:02x?}",
                    place as i64 - self.base as i64
                ));
            }
        }
        Ok(out)
    }
}

/// Compares an output with `want(at) -> (exact value, error allowed before the store)`.
pub(crate) fn compare(
    dtype: DType,
    bytes: &[u8],
    shape: &[usize],
    want: impl Fn(usize) -> (f64, f64),
) -> Result<(), String> {
    let len: usize = shape.iter().product();
    let (mut wrong, mut first) = (0usize, None);
    for at in 0..len {
        let got = decode(dtype, bytes, at);
        let (exact, error) = want(at);
        let right = if exact.is_nan() {
            got.is_nan()
        } else if error == 0.0 {
            got == representable(dtype, exact)
        } else {
            let exact = format_of(dtype).saturated(exact);
            (got - exact).abs() <= tessl_oracle::bound::stored(error, exact, format_of(dtype))
        };
        if !right {
            wrong += 1;
            first.get_or_insert((at, got, exact, error));
        }
    }
    let Some((at, got, exact, error)) = first else { return Ok(()) };
    let mut index = vec![0; shape.len()];
    let mut rest = at;
    for (i, &extent) in index.iter_mut().zip(shape).rev() {
        *i = rest % extent;
        rest /= extent;
    }
    Err(format!("{wrong} of {len} wrong; first at {index:?}: {got} instead of {exact} (error allowed: {error:e})"))
}
