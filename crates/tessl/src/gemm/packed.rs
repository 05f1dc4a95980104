//! Weights in the order that the device's kernels read them.

use super::GemmBackend;
use super::check::Matrix;
use crate::args::PackArgs;
use crate::device::{self, DeviceKind};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::memory::BufferKind;
use crate::nn::Cast;
use crate::plan::Desc;
use crate::stream::{Access, Encoded, Work};
use crate::tensor::Tensor;
use serde::Serialize;
use smallvec::SmallVec;

const OP: &str = "pack_weights";

/// What a product takes as B: a tensor, or weights packed beforehand.
#[derive(Clone, Copy, Debug)]
pub enum Weights<'a> {
    /// Any view with one unit stride.
    Tensor(&'a Tensor),
    /// Packed at load time.
    Packed(&'a PackedWeights),
}

impl<'a> From<&'a Tensor> for Weights<'a> {
    fn from(tensor: &'a Tensor) -> Self {
        Weights::Tensor(tensor)
    }
}

impl<'a> From<&'a PackedWeights> for Weights<'a> {
    fn from(packed: &'a PackedWeights) -> Self {
        Weights::Packed(packed)
    }
}

/// Packing as data.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct PackDesc {
    /// Columns.
    pub n: u32,
    /// Length of the sums.
    pub k: u32,
    /// Matrices.
    pub batch: u32,
    /// Element type.
    pub dtype: DType,
    /// Gate and up are packed together.
    pub gated: bool,
    /// Kernels that will read them.
    pub backend: GemmBackend,
}

/// B of many products, copied once, at load time, to the order that kernels read. A product with them skips that copy,
/// and reads less when it has few rows.
///
/// The CPU has such an order for every type: 16-bit floats stay as they are where AMX multiplies them and become f32
/// elsewhere. A GPU reads tensors as they lie; there this is a plain copy, so that the same program runs. Later changes of
/// the tensors do not show.
///
/// ```
/// use tessl::{Device, Gemm, GpuRuntime, PackedWeights};
/// let rt = GpuRuntime::with_device(&Device::cpu())?;
/// let w = rt.from_slice(&[1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0], &[3, 2])?; // [out, in]
/// let packed = PackedWeights::new(&w.t()?)?;
/// let x = rt.from_slice(&[1.0f32, -1.0], &[1, 2])?;
/// let y = rt.alloc_tensor_f32(&[1, 3])?;
/// Gemm::new(&x, &packed, &y).run()?;
/// assert_eq!(y.read::<f32>()?, [-1.0, -1.0, -1.0]);
/// # Ok::<(), tessl::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct PackedWeights {
    form: Form,
    n: usize,
    k: usize,
    batch: Option<usize>,
    dtype: DType,
    gated: bool,
    backend: GemmBackend,
}

/// Where the elements are.
#[derive(Clone, Debug)]
pub(super) enum Form {
    /// In the device's order: bytes, `[matrices, bytes of one]`.
    Packed(Tensor),
    /// As they were: B, or gate and up.
    Plain(Tensor, Option<Tensor>),
}

impl PackedWeights {
    /// Packs B `[k, n]` or `[batch, k, n]`, any view with one unit stride, on the default stream.
    ///
    /// # Errors
    /// `Shape`, `Layout`, `DType`, `WrongRuntime`, `Expired` or `TooLarge` for a tensor that cannot be B; `OutOfMemory`.
    pub fn new(b: &Tensor) -> Result<Self> {
        Self::pack(b, None, GemmBackend::default())
    }

    /// Packs both matrices of a gated product, which have one shape and type.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    ///
    /// ```
    /// use tessl::{Activation, Device, Gemm, GpuRuntime, PackedWeights};
    /// let rt = GpuRuntime::with_device(&Device::cpu())?;
    /// let (gate, up) = (rt.from_slice(&[3.0f32], &[1, 1])?, rt.from_slice(&[-5.0f32], &[1, 1])?);
    /// let packed = PackedWeights::gated(&gate, &up)?;
    /// let x = rt.from_slice(&[2.0f32], &[1, 1])?;
    /// let y = rt.alloc_tensor_f32(&[1, 1])?;
    /// Gemm::new(&x, &packed, &y).activation(Activation::Relu).run()?;
    /// assert_eq!(y.read::<f32>()?, [6.0 * -10.0]);
    /// # Ok::<(), tessl::Error>(())
    /// ```
    pub fn gated(gate: &Tensor, up: &Tensor) -> Result<Self> {
        Self::pack(gate, Some(up), GemmBackend::default())
    }

    /// As [`new`](Self::new) or, with `up`, as [`gated`](Self::gated), for products on one of the two paths: each has an
    /// order of its own, and takes no other.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn pack(b: &Tensor, up: Option<&Tensor>, backend: GemmBackend) -> Result<Self> {
        let rt = b.runtime();
        b.check_usable(OP, "b", rt)?;
        let dtype = b.dtype();
        if matches!(dtype, DType::I32 | DType::U32) {
            let expected = "f32, bf16, f16, i8, u8, f8e4m3 or f8e5m2";
            return Err(Error::DType { op: OP, operand: "b", actual: dtype, expected });
        }
        let matrix = Matrix::of(OP, "b", b)?;
        if let Some(up) = up {
            up.check_usable(OP, "up", rt)?;
            if up.dtype() != dtype {
                return Err(Error::DType { op: OP, operand: "up", actual: up.dtype(), expected: "the dtype of `b`" });
            }
            if up.shape() != b.shape() {
                let expected = format!("`b` is {:?}", b.shape());
                return Err(Error::shape(OP, "up", format_args!("{:?}", up.shape()), expected));
            }
        }
        let up = up.map(|up| Ok::<_, Error>((up, Matrix::of(OP, "up", up)?))).transpose()?;
        let form = match rt.profile().kind {
            DeviceKind::Cpu => Form::Packed(packed((b, matrix), up, backend)?),
            _ => Form::Plain(copied(b)?, up.map(|(up, _)| copied(up)).transpose()?),
        };
        let (n, k, batch, gated) = (matrix.columns, matrix.rows, matrix.batch, up.is_some());
        Ok(PackedWeights { form, n, k, batch, dtype, gated, backend })
    }

    /// Element type of what was packed.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// `[k, n]` or `[batch, k, n]`, as it was (of the gate alone).
    pub fn shape(&self) -> Vec<usize> {
        self.batch.into_iter().chain([self.k, self.n]).collect()
    }

    /// Whether two matrices are packed together.
    pub fn is_gated(&self) -> bool {
        self.gated
    }

    /// The path whose products take them.
    pub fn backend(&self) -> GemmBackend {
        self.backend
    }

    /// Bytes of memory held.
    pub fn bytes(&self) -> usize {
        let of = |t: &Tensor| t.len() * t.dtype().size();
        match &self.form {
            Form::Packed(t) => of(t),
            Form::Plain(b, up) => of(b) + up.as_ref().map_or(0, of),
        }
    }

    pub(super) fn form(&self) -> &Form {
        &self.form
    }

    /// The packed matrix as an operand: its strides say nothing but whether one serves all.
    pub(super) fn matrix(&self) -> Matrix {
        let several = matches!(&self.form, Form::Packed(t) if t.shape()[0] > 1);
        let batch_stride = usize::from(several);
        Matrix { rows: self.k, columns: self.n, row_stride: self.n, column_stride: 1, batch: self.batch, batch_stride }
    }

    /// Matrix `i` of a batch.
    pub(super) fn select(&self, i: usize) -> Result<Self> {
        let form = match &self.form {
            Form::Packed(t) => Form::Packed(t.narrow(0, if t.shape()[0] > 1 { i } else { 0 }, 1)?),
            Form::Plain(b, up) => Form::Plain(b.select(0, i)?, up.as_ref().map(|up| up.select(0, i)).transpose()?),
        };
        Ok(PackedWeights { form, batch: None, ..self.clone() })
    }
}

/// A copy with the same contiguous axis.
fn copied(t: &Tensor) -> Result<Tensor> {
    let rank = t.rank();
    let turned = t.strides()[rank - 1] != 1 && t.strides()[rank - 2] == 1;
    let source = if turned { t.t()? } else { t.clone() };
    let copy = t.runtime().uninit(t.dtype(), source.shape(), BufferKind::Cold)?;
    Cast::new(&source, &copy).run()?;
    if turned { copy.t() } else { Ok(copy) }
}

/// Packs on the CPU.
fn packed((b, matrix): (&Tensor, Matrix), up: Option<(&Tensor, Matrix)>, backend: GemmBackend) -> Result<Tensor> {
    let rt = b.runtime();
    let dim = |n: usize| u32::try_from(n).expect("INVARIANT: bounded by Matrix::of");
    let batch = if matrix.batch_stride == 0 { 1 } else { matrix.batch.unwrap_or(1) };
    let Ok(batch32) = u32::try_from(batch) else {
        return Err(Error::TooLarge { op: OP, what: "the batch", value: batch as u64, limit: u32::MAX.into() });
    };
    let (n, k, dtype) = (dim(matrix.columns), dim(matrix.rows), b.dtype());
    let desc = PackDesc { n, k, batch: batch32, dtype, gated: up.is_some(), backend };
    let bytes = device::cpu::packed_bytes(&desc, rt.profile().isa);
    let bytes = usize::try_from(bytes).unwrap_or(usize::MAX).max(1);
    let memory = rt.uninit(DType::U8, &[batch, bytes], BufferKind::Cold)?;
    if memory.is_empty() || n == 0 {
        return Ok(memory);
    }
    let prepared = rt.prepare(&Desc::Pack(desc))?;
    let plan = &prepared.plan;
    let (second, turned) = up.unwrap_or((b, matrix));
    let args = PackArgs {
        b_rs: matrix.row_stride as u64,
        b_cs: matrix.column_stride as u64,
        b_bs: matrix.batch_stride as u64,
        u_rs: turned.row_stride as u64,
        u_cs: turned.column_stride as u64,
        u_bs: turned.batch_stride as u64,
        n,
        k,
        batch: batch32,
        gated: u32::from(up.is_some()),
        b_type: super::encode::short_type(dtype),
        unused: 0,
    };
    let bindings: SmallVec<_> =
        [b.binding(Access::Read), second.binding(Access::Read), memory.binding(Access::Write)].into_iter().collect();
    let work = Work::Kernel { pipeline: prepared.pipeline, grid: plan.grid, threads: plan.threads, shared_bytes: 0 };
    rt.encode_on(None, Encoded { label: OP, work, args: bytemuck::bytes_of(&args), bindings })?;
    Ok(memory)
}
