//! A product with one quantised matrix.

use super::check::Product;
use super::{QuantDesc, QuantOp};
use crate::error::Result;
use crate::gemm::Activation;
use crate::qtensor::QTensor;
use crate::stream::Stream;
use crate::tensor::Tensor;

/// `y = act(x W^T + bias) + residual`, with W quantised.
///
/// | operand | shape | dtypes |
/// | --- | --- | --- |
/// | x | `[.., K]` | f32, f16, bf16 |
/// | w | `[N, K]` | every [`QFormat`](crate::QFormat) |
/// | y | `[.., N]` | f32, f16, bf16 |
/// | bias | `[N]` | f32, y's |
/// | residual | y's | y's |
///
/// Products and sums are f32, and y is rounded once. A few rows read the weights in place; on a CPU with AVX-512 VNNI x is then
/// held in fixed point, 24 bits below the largest of each 32 elements (16 bits for f16 and bf16), so that sums of 32 are exact
/// (docs/numerics.md has the bound). For more rows the weights are decoded into the type of x first, so that with f16 and bf16 rows each weight is rounded to that type,
/// as a dense layer of that type would hold it (the plan's reason says which of these runs).
///
/// The last stride of x, y and residual is 1, and their other axes make evenly spaced rows. residual may be exactly y. NaN
/// in a row of x gives NaN in that row of y; K = 0 gives `act(bias) + residual`.
///
/// ```
/// use tessl::{nn::QuantizedMatmul, Activation, Device, GpuRuntime, QFormat, QTensor};
/// let rt = GpuRuntime::with_device(&Device::cpu())?;
/// let w: Vec<f32> = (0..64).map(|i| if i < 32 { 1.0 } else { -1.0 }).collect();
/// let w = QTensor::quantize(&rt.from_slice(&w, &[2, 32])?, QFormat::Q4_0)?;
/// let x = rt.from_slice(&[0.5f32; 32], &[1, 32])?;
/// let y = rt.alloc_tensor_f32(&[1, 2])?;
/// QuantizedMatmul::new(&x, &w, &y).activation(Activation::Relu).run()?;
/// assert_eq!(y.read::<f32>()?, [16.0, 0.0]);
/// # Ok::<(), tessl::Error>(())
/// ```
#[derive(Clone, Debug)]
#[must_use = "a QuantizedMatmul does nothing until run() or run_on()"]
pub struct QuantizedMatmul<'a>(Product<'a, 1, 1>);

impl<'a> QuantizedMatmul<'a> {
    /// `y = x W^T`.
    pub fn new(x: &'a Tensor, w: &'a QTensor, y: &'a Tensor) -> Self {
        QuantizedMatmul(Product {
            op: QuantOp::Matmul,
            x,
            weights: [("w", w)],
            outputs: [("y", y)],
            biases: [None],
            residual: None,
            activation: Activation::None,
        })
    }

    /// Adds one value per column, before the activation.
    pub fn bias(mut self, bias: &'a Tensor) -> Self {
        self.0.biases = [Some(("bias", bias))];
        self
    }

    /// Applies a function.
    pub fn activation(mut self, activation: Activation) -> Self {
        self.0.activation = activation;
        self
    }

    /// Adds a tensor of y's shape, after the activation.
    pub fn residual(mut self, residual: &'a Tensor) -> Self {
        self.0.residual = Some(residual);
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
