//! Strided batches.

use super::{Epilogue, Gemm, GemmBackend};
use crate::error::{Error, Result};
use crate::tensor::Tensor;
use smallvec::SmallVec;

/// Distances between the matrices of a batch, in elements. 0 uses one matrix for the whole batch (not for C).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchStrides {
    /// Between matrices of A.
    pub a: usize,
    /// Between matrices of B.
    pub b: usize,
    /// Between matrices of C.
    pub c: usize,
}

impl BatchStrides {
    /// Matrices side by side: A is m x k, B is k x n, C is m x n.
    pub const fn contiguous(m: usize, n: usize, k: usize) -> Self {
        BatchStrides { a: m.saturating_mul(k), b: k.saturating_mul(n), c: m.saturating_mul(n) }
    }

    /// As [`contiguous`](Self::contiguous), with one B for the whole batch.
    pub const fn shared_b(m: usize, n: usize, k: usize) -> Self {
        BatchStrides { b: 0, ..Self::contiguous(m, n, k) }
    }
}

/// `batch` products on the default stream. `a`, `b` and `c` are views `[rows, columns]` of the first matrices; the others
/// follow at `strides` in the same memory.
///
/// # Errors
/// `Layout` when the last matrix would pass the end of the memory, and as [`Gemm::run`].
///
/// ```
/// use tessl::{gemm_batched, BatchStrides, Device, Epilogue, GemmBackend, GpuRuntime};
/// let rt = GpuRuntime::with_device(&Device::cpu())?;
/// let a = rt.from_slice(&[1.0f32, 2.0, 3.0], &[3, 1])?; // three 1x1 matrices
/// let b = rt.from_slice(&[10.0f32], &[1, 1])?;
/// let c = rt.alloc_tensor_f32(&[3, 1])?;
/// let first = (a.narrow(0, 0, 1)?, c.narrow(0, 0, 1)?);
/// gemm_batched(&first.0, &b, &first.1, 3, BatchStrides::shared_b(1, 1, 1), GemmBackend::TensorOps, Epilogue::default())?;
/// assert_eq!(c.read::<f32>()?, [10.0, 20.0, 30.0]);
/// # Ok::<(), tessl::Error>(())
/// ```
pub fn gemm_batched(
    a: &Tensor,
    b: &Tensor,
    c: &Tensor,
    batch: usize,
    strides: BatchStrides,
    backend: GemmBackend,
    epilogue: Epilogue<'_>,
) -> Result<()> {
    let a = stack("a", a, batch, strides.a)?;
    let b = stack("b", b, batch, strides.b)?;
    let c = stack("c", c, batch, strides.c)?;
    Gemm::new(&a, &b, &c).backend(backend).epilogue(epilogue).run()
}

/// `batch` matrices like `first`, `stride` elements apart.
fn stack(operand: &'static str, first: &Tensor, batch: usize, stride: usize) -> Result<Tensor> {
    let op = "gemm_batched";
    let &[rows, columns] = first.shape() else {
        return Err(Error::shape(op, operand, format_args!("{:?}", first.shape()), "it must have two axes"));
    };
    let strides: SmallVec<[usize; 3]> = [stride].into_iter().chain(first.strides().iter().copied()).collect();
    first.view(&[batch, rows, columns], &strides, 0).map_err(|_| {
        let actual = format!("a view of {rows} x {columns}");
        Error::layout(
            op,
            operand,
            actual,
            format!("{batch} matrices at a stride of {stride} pass the end of its memory"),
        )
    })
}
