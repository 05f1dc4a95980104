//! The parts of a product beyond its first formula.

use super::{Gemm, Offsets, Up};
use crate::tensor::Tensor;

impl<'a> Gemm<'a> {
    /// One value per row, `[m]`, added before the activation; in place of a bias per column.
    pub fn row_bias(mut self, bias: &'a Tensor) -> Self {
        self.row_bias = Some(bias);
        self
    }

    /// One factor per row, `[m]`: with i8 or u8 the scale of the row's quantised values.
    ///
    /// ```
    /// use tessl::{DType, Device, BufferKind, Gemm, GpuRuntime};
    /// let rt = GpuRuntime::with_device(&Device::cpu())?;
    /// let x = rt.from_slice(&[100i8, -50], &[1, 2])?; // 0.5 * [200, -100] ..
    /// let w = rt.from_slice(&[3i8, 4], &[2, 1])?;
    /// let (sx, sw) = (rt.from_slice(&[0.5f32], &[1])?, rt.from_slice(&[0.25f32], &[1])?);
    /// let y = rt.zeros(DType::F32, &[1, 1], BufferKind::Cold)?;
    /// Gemm::new(&x, &w, &y).row_scale(&sx).col_scale(&sw).run()?;
    /// assert_eq!(y.read::<f32>()?, [0.5 * 0.25 * (300.0 - 200.0)]);
    /// # Ok::<(), tessl::Error>(())
    /// ```
    pub fn row_scale(mut self, scale: &'a Tensor) -> Self {
        self.row_scale = Some(scale);
        self
    }

    /// One factor per column, `[n]` (`[2 n]` where the product is gated: the gate's first).
    pub fn col_scale(mut self, scale: &'a Tensor) -> Self {
        self.col_scale = Some(scale);
        self
    }

    /// A matrix of C's shape and type that is added last. It may be exactly C's view.
    pub fn residual(mut self, residual: &'a Tensor) -> Self {
        self.residual = Some(residual);
        self
    }

    /// `C = activation(A B) * (A up)`: B is the gate, and `up` has its shape and type. Bias and scales of columns have `2 n`
    /// values, the gate's first. beta must be 0.
    ///
    /// ```
    /// use tessl::{Activation, Device, Gemm, GpuRuntime};
    /// let rt = GpuRuntime::with_device(&Device::cpu())?;
    /// let x = rt.from_slice(&[1.0f32, 2.0], &[2, 1])?;
    /// let (gate, up) = (rt.from_slice(&[3.0f32], &[1, 1])?, rt.from_slice(&[-5.0f32], &[1, 1])?);
    /// let y = rt.alloc_tensor_f32(&[2, 1])?;
    /// Gemm::new(&x, &gate, &y).up(&up).activation(Activation::Relu).run()?;
    /// assert_eq!(y.read::<f32>()?, [3.0 * -5.0, 6.0 * -10.0]);
    /// # Ok::<(), tessl::Error>(())
    /// ```
    pub fn up(mut self, up: &'a Tensor) -> Self {
        self.up = Up::Tensor(up);
        self
    }

    /// As [`up`](Self::up), with both matrices in B: its first n columns are the gate, the others up. Packed weights say
    /// themselves whether they are gated.
    pub fn gated(mut self) -> Self {
        self.up = Up::Half;
        self
    }

    /// Rows of A and C in groups, each with a matrix of B: A `[rows, k]`, B `[groups, k, n]`, C `[rows, n]`, and `groups + 1`
    /// offsets; group g has the rows `offsets[g]..offsets[g + 1]`. Rows outside of every group are not written.
    ///
    /// The offsets are numbers of the host, or a u32 tensor that the device reads when the command runs. Offsets that
    /// decrease or pass the last row are an error, of this call or of a later wait; nothing is written then.
    ///
    /// ```
    /// use tessl::{Device, Gemm, GpuRuntime};
    /// let rt = GpuRuntime::with_device(&Device::cpu())?;
    /// let x = rt.from_slice(&[1.0f32, 2.0, 3.0], &[3, 1])?;
    /// let experts = rt.from_slice(&[10.0f32, 100.0], &[2, 1, 1])?;
    /// let y = rt.alloc_tensor_f32(&[3, 1])?;
    /// Gemm::new(&x, &experts, &y).grouped(&[0, 1, 3]).run()?;
    /// assert_eq!(y.read::<f32>()?, [10.0, 200.0, 300.0]);
    /// # Ok::<(), tessl::Error>(())
    /// ```
    pub fn grouped(mut self, offsets: impl Into<Offsets<'a>>) -> Self {
        self.offsets = Some(offsets.into());
        self
    }

    /// f32 scales of blocks for fp8: `a` is `[m, ceil(k / 128)]`, one for each 128 steps of a row of A, `b` is
    /// `[ceil(k / 128), ceil(n / 128)]`. Not with a batch, groups, a gate or packed weights.
    pub fn block_scales(mut self, a: &'a Tensor, b: &'a Tensor) -> Self {
        self.block_scales = Some((a, b));
        self
    }
}
