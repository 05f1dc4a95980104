//! The three projections of attention with quantised matrices, in one launch.

use super::check::Product;
use super::{QuantDesc, QuantOp};
use crate::error::Result;
use crate::gemm::Activation;
use crate::qtensor::QTensor;
use crate::stream::Stream;
use crate::tensor::Tensor;

/// `q = x Wq^T, k = x Wk^T, v = x Wv^T`, plus a bias each where one is given.
///
/// | operand | shape | dtypes |
/// | --- | --- | --- |
/// | x | `[.., K]` | f32, f16, bf16 |
/// | weights | `[Nq, K]`, `[Nk, K]`, `[Nv, K]` | every [`QFormat`](crate::QFormat), all the same |
/// | outputs | `[.., Nq]`, `[.., Nk]`, `[.., Nv]` | f32, f16, bf16, all the same |
/// | biases | `[Nq]`, `[Nk]`, `[Nv]` | f32, the outputs' |
///
/// Each is a [`QuantizedMatmul`](super::QuantizedMatmul). The outputs may be views of one fused buffer, side by side.
///
/// ```
/// use tessl::{nn::QuantizedQkv, Device, GpuRuntime, QFormat, QTensor};
/// let rt = GpuRuntime::with_device(&Device::cpu())?;
/// let w = rt.from_slice(&(0..96).map(|i| (i / 32) as f32).collect::<Vec<_>>(), &[3, 32])?;
/// let w = QTensor::quantize(&w, QFormat::Q4_0)?;
/// let [wq, wk, wv] = [w.narrow(0, 0, 1)?, w.narrow(0, 1, 1)?, w.narrow(0, 2, 1)?];
/// let x = rt.from_slice(&[1.0f32; 32], &[1, 32])?;
/// let y = rt.alloc_tensor_f32(&[1, 3])?;
/// let [q, k, v] = [y.narrow(1, 0, 1)?, y.narrow(1, 1, 1)?, y.narrow(1, 2, 1)?];
/// QuantizedQkv::new(&x, [&wq, &wk, &wv], [&q, &k, &v]).run()?;
/// assert_eq!(y.read::<f32>()?, [0.0, 32.0, 64.0]);
/// # Ok::<(), tessl::Error>(())
/// ```
#[derive(Clone, Debug)]
#[must_use = "a QuantizedQkv does nothing until run() or run_on()"]
pub struct QuantizedQkv<'a>(Product<'a, 3, 3>);

impl<'a> QuantizedQkv<'a> {
    /// The products of x with three matrices, in the order q, k, v.
    pub fn new(x: &'a Tensor, [wq, wk, wv]: [&'a QTensor; 3], [q, k, v]: [&'a Tensor; 3]) -> Self {
        QuantizedQkv(Product {
            op: QuantOp::Qkv,
            x,
            weights: [("wq", wq), ("wk", wk), ("wv", wv)],
            outputs: [("q", q), ("k", k), ("v", v)],
            biases: [None; 3],
            residual: None,
            activation: Activation::None,
        })
    }

    /// Adds one value per column of each output.
    pub fn biases(mut self, [q, k, v]: [&'a Tensor; 3]) -> Self {
        self.0.biases = [Some(("bias of q", q)), Some(("bias of k", k)), Some(("bias of v", v))];
        self
    }

    /// Encodes the operation on the default stream.
    ///
    /// # Errors
    /// `Shape`, `Layout`, `DType`, `Overlap`, `WrongRuntime`, `Expired`, `TooLarge` or `Unsupported` for arguments that do
    /// not fit; nothing is encoded then.
    pub fn run(&self) -> Result<()> {
        self.0.encode(None)
    }

    /// Encodes the operation on `stream`.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub fn run_on(&self, stream: &mut Stream) -> Result<()> {
        self.0.encode(Some(stream))
    }

    /// The problem as data.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub fn desc(&self) -> Result<QuantDesc> {
        self.0.desc()
    }
}
