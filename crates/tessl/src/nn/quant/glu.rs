//! The gated half of an MLP with two quantised matrices, in one launch.

use super::check::Product;
use super::{QuantDesc, QuantOp};
use crate::error::Result;
use crate::gemm::Activation;
use crate::qtensor::QTensor;
use crate::stream::Stream;
use crate::tensor::Tensor;

/// `out = act(x G^T + gate_bias) * (x U^T + up_bias)`, biases being optional: SwiGLU with [`Activation::Silu`], GeGLU with one of the GELUs, G and U quantised.
///
/// | operand | shape | dtypes |
/// | --- | --- | --- |
/// | x | `[.., K]` | f32, f16, bf16 |
/// | gate, up | `[N, K]` | every [`QFormat`](crate::QFormat), both the same |
/// | biases | `[N]` each | f32, out's (both the same) |
/// | out | `[.., N]` | f32, f16, bf16 |
///
/// Both products, the function and the last product are f32, rounded once. Otherwise as
/// [`QuantizedMatmul`](super::QuantizedMatmul); NaN in a row of x gives NaN in that row of out.
///
/// ```
/// use tessl::{nn::QuantizedGlu, Activation, Device, GpuRuntime, QFormat, QTensor};
/// let rt = GpuRuntime::with_device(&Device::cpu())?;
/// let ones = QTensor::quantize(&rt.from_slice(&[1.0f32; 32], &[1, 32])?, QFormat::Q8 { group: 32 })?;
/// let x = rt.from_slice(&[0.25f32; 32], &[1, 32])?;
/// let out = rt.alloc_tensor_f32(&[1, 1])?;
/// QuantizedGlu::new(&x, &ones, &ones, &out, Activation::Relu).run()?;
/// assert!((out.read::<f32>()?[0] - 64.0).abs() < 1e-4);
/// # Ok::<(), tessl::Error>(())
/// ```
#[derive(Clone, Debug)]
#[must_use = "a QuantizedGlu does nothing until run() or run_on()"]
pub struct QuantizedGlu<'a>(Product<'a, 2, 1>);

impl<'a> QuantizedGlu<'a> {
    /// `out = activation(x gate^T) * (x up^T)`.
    pub fn new(x: &'a Tensor, gate: &'a QTensor, up: &'a QTensor, out: &'a Tensor, activation: Activation) -> Self {
        QuantizedGlu(Product {
            op: QuantOp::Glu,
            x,
            weights: [("gate", gate), ("up", up)],
            outputs: [("out", out)],
            biases: [None; 2],
            residual: None,
            activation,
        })
    }

    /// Adds one value per column to each product.
    pub fn biases(mut self, [gate, up]: [&'a Tensor; 2]) -> Self {
        self.0.biases = [Some(("bias of gate", gate)), Some(("bias of up", up))];
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
