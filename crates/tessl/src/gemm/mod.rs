//! Matrix products with fused epilogues.

mod batched;
mod check;
mod desc;
mod encode;
mod epilogue;
mod fused;
mod groups;
mod int8;
mod packed;
mod setters;

pub use batched::{BatchStrides, gemm_batched};
pub use desc::{Bias, Factor, GemmDesc, GemmExtras, Layout};
pub use epilogue::{Activation, Epilogue};
pub(crate) use fused::BLOCK;
pub use groups::Offsets;
pub use int8::max_k_i32;
pub use packed::{PackDesc, PackedWeights, Weights};

use crate::error::Result;
use crate::plan::Plan;
use crate::stream::Stream;
use crate::tensor::Tensor;
use serde::Serialize;

/// Which family of kernels computes a product.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum GemmBackend {
    /// The device's best matrix path: MPP TensorOps, wgmma, AMX. Where the device or the dtypes have none, the plan
    /// names what runs instead.
    #[default]
    TensorOps,
    /// The portable path: `simdgroup_matrix`, `mma.sync`, plain vectorised Rust.
    Simdgroup,
}

/// How exact f32 products are. Other dtypes ignore it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Precision {
    /// IEEE f32 products and sums.
    #[default]
    Exact,
    /// f32-accurate results from matrix units.
    Split,
    /// Products of inputs rounded to TF32, on devices that have it.
    Relaxed,
}

macro_rules! names {
    ($type:ty, $what:literal, $expected:literal, { $($name:literal => $value:expr),* $(,)? }) => {
        impl std::str::FromStr for $type {
            type Err = crate::error::Error;

            fn from_str(s: &str) -> Result<Self> {
                match s {
                    $($name => Ok($value),)*
                    _ => Err(crate::error::Error::parse($what, s, $expected)),
                }
            }
        }
    };
}
pub(crate) use names;

names!(GemmBackend, "backend", "tensorops or simdgroup", {
    "tensorops" => GemmBackend::TensorOps,
    "simdgroup" => GemmBackend::Simdgroup,
});
names!(Precision, "precision", "exact, split or relaxed", {
    "exact" => Precision::Exact,
    "split" => Precision::Split,
    "relaxed" => Precision::Relaxed,
});

/// `C = A B` on the default stream: A `[m, k]`, B `[k, n]`, C `[m, n]`, f32 accumulation.
///
/// Operands may be any views with one unit stride; pass `b.t()?` for a transposed product. The dtypes are those of
/// [`Gemm`].
///
/// # Errors
/// As [`Gemm::run`].
///
/// ```
/// use tessl::{gemm, Device, GemmBackend, GpuRuntime};
/// let rt = GpuRuntime::with_device(&Device::cpu())?;
/// let a = rt.from_slice(&[1.0f32, 2.0, 3.0, 4.0], &[2, 2])?;
/// let c = rt.alloc_tensor_f32(&[2, 2])?;
/// gemm(&a, &a.t()?, &c, GemmBackend::TensorOps)?;
/// assert_eq!(c.read::<f32>()?, [5.0, 11.0, 11.0, 25.0]);
/// # Ok::<(), tessl::Error>(())
/// ```
pub fn gemm(a: &Tensor, b: &Tensor, c: &Tensor, backend: GemmBackend) -> Result<()> {
    Gemm::new(a, b, c).backend(backend).run()
}

/// `C = activation(alpha * A B + beta * C + bias)` in one pass over C, on the default stream.
///
/// # Errors
/// As [`Gemm::run`].
///
/// ```
/// use tessl::{gemm_epilogue, Activation, Device, Epilogue, GemmBackend, GpuRuntime};
/// let rt = GpuRuntime::with_device(&Device::cpu())?;
/// let a = rt.from_slice(&[1.0f32, -2.0], &[2, 1])?;
/// let b = rt.from_slice(&[1.0f32, 3.0], &[1, 2])?;
/// let bias = rt.from_slice(&[0.5f32, -0.5], &[2])?;
/// let c = rt.alloc_tensor_f32(&[2, 2])?;
/// gemm_epilogue(&a, &b, &c, GemmBackend::TensorOps, Epilogue {
///     alpha: 1.0,
///     beta: 0.0,
///     bias: Some(&bias),
///     activation: Activation::Relu,
/// })?;
/// assert_eq!(c.read::<f32>()?, [1.5, 2.5, 0.0, 0.0]);
/// # Ok::<(), tessl::Error>(())
/// ```
pub fn gemm_epilogue(a: &Tensor, b: &Tensor, c: &Tensor, backend: GemmBackend, epilogue: Epilogue<'_>) -> Result<()> {
    Gemm::new(a, b, c).backend(backend).epilogue(epilogue).run()
}

/// A matrix product with everything that can be done to it before C is stored, one matrix, a batch or groups of rows.
///
/// ```text
/// t = alpha * (row_scale[i] * col_scale[j] * (A B)[i, j]) + beta * C[i, j] + bias[j]
/// C[i, j] = activation(t) + residual[i, j]                 or, gated, activation(t of the gate) * (t of up) + residual[i, j]
/// ```
///
/// | operand | shape | dtypes |
/// | --- | --- | --- |
/// | A | `[m, k]` or `[batch, m, k]` | f32, bf16, f16; i8, u8; f8e4m3, f8e5m2 |
/// | B | `[k, n]` or `[batch, k, n]`, or [`PackedWeights`] of it | A's; types of 8 bits mix: i8 and u8, e4m3 and e5m2 |
/// | C | `[m, n]` or `[batch, m, n]` | f32, bf16, f16; of i8 and u8 also i32; of fp8 also fp8 |
/// | bias | `[n]`, one value per column, or `[m]` per row | f32 or C's |
/// | scales | `[m]` and `[n]` | f32 or C's |
/// | residual | that of C | C's |
///
/// Floats accumulate in f32; i8 and u8 exactly in i32, which bounds k ([`max_k_i32`]). An i32 result takes no epilogue.
/// An operand with two axes, or a batch axis of 1 or of stride 0, serves the whole batch. Each operand needs one unit
/// stride among its last two axes. `beta = 0` does not read C, so old NaNs vanish; `k = 0` gives
/// `activation(beta * C + bias) + residual`. NaN in, NaN out. A result in fp8 saturates: what lies past the range, infinity too,
/// becomes the largest number of its sign. What a device has no kernel for is `Unsupported`: the GPUs take
/// floats of 16 and 32 bits with alpha, beta, bias and activation.
///
/// ```
/// use tessl::{Activation, Device, Gemm, GpuRuntime};
/// let rt = GpuRuntime::with_device(&Device::cpu())?;
/// let x = rt.from_slice(&[1.0f32, 2.0], &[1, 2])?;
/// let w = rt.from_slice(&[1.0f32, 1.0, -1.0, -1.0], &[2, 2])?; // [out, in]
/// let y = rt.alloc_tensor_f32(&[1, 2])?;
/// Gemm::new(&x, &w.t()?, &y).activation(Activation::Relu).run()?;
/// assert_eq!(y.read::<f32>()?, [3.0, 0.0]);
/// # Ok::<(), tessl::Error>(())
/// ```
#[derive(Clone, Debug)]
#[must_use = "a Gemm does nothing until run() or run_on()"]
pub struct Gemm<'a> {
    a: &'a Tensor,
    b: Weights<'a>,
    c: &'a Tensor,
    backend: GemmBackend,
    precision: Precision,
    epilogue: Epilogue<'a>,
    row_bias: Option<&'a Tensor>,
    row_scale: Option<&'a Tensor>,
    col_scale: Option<&'a Tensor>,
    residual: Option<&'a Tensor>,
    up: Up<'a>,
    block_scales: Option<(&'a Tensor, &'a Tensor)>,
    offsets: Option<Offsets<'a>>,
    plan: Option<&'a Plan>,
}

/// Where the second matrix of a gated product is.
#[derive(Clone, Copy, Debug)]
enum Up<'a> {
    /// The product is not gated.
    None,
    /// The second half of B's columns.
    Half,
    /// A tensor of its own.
    Tensor(&'a Tensor),
}

impl<'a> Gemm<'a> {
    /// `C = A B`, where B is a tensor or [`PackedWeights`].
    pub fn new(a: &'a Tensor, b: impl Into<Weights<'a>>, c: &'a Tensor) -> Self {
        Gemm {
            a,
            b: b.into(),
            c,
            backend: GemmBackend::default(),
            precision: Precision::default(),
            epilogue: Epilogue::default(),
            row_bias: None,
            row_scale: None,
            col_scale: None,
            residual: None,
            up: Up::None,
            block_scales: None,
            offsets: None,
            plan: None,
        }
    }

    /// Which kernels compute the product.
    pub fn backend(mut self, backend: GemmBackend) -> Self {
        self.backend = backend;
        self
    }

    /// How exact f32 products are.
    pub fn precision(mut self, precision: Precision) -> Self {
        self.precision = precision;
        self
    }

    /// All four epilogue fields at once.
    pub fn epilogue(mut self, epilogue: Epilogue<'a>) -> Self {
        self.epilogue = epilogue;
        self
    }

    /// Factor of the product.
    pub fn alpha(mut self, alpha: f32) -> Self {
        self.epilogue.alpha = alpha;
        self
    }

    /// Factor of the old C.
    pub fn beta(mut self, beta: f32) -> Self {
        self.epilogue.beta = beta;
        self
    }

    /// One value per column, added before the activation.
    pub fn bias(mut self, bias: &'a Tensor) -> Self {
        self.epilogue.bias = Some(bias);
        self
    }

    /// Applied before the residual is added.
    pub fn activation(mut self, activation: Activation) -> Self {
        self.epilogue.activation = activation;
        self
    }

    /// Runs this plan in place of the table's choice: for tuners and tests. It is one of
    /// [`candidates`](crate::plan::candidates) for this problem on this device, or the call is refused.
    pub fn with_plan(mut self, plan: &'a Plan) -> Self {
        self.plan = Some(plan);
        self
    }

    /// Encodes the product on the default stream.
    ///
    /// # Errors
    /// `Shape`, `Layout`, `DType`, `Overlap`, `WrongRuntime`, `Expired`, `Scalar` or `TooLarge` for arguments that do not
    /// fit; nothing is encoded then. `Unsupported` when the device has no kernel for the problem. Bounds of groups that
    /// are read on the device are checked there: a wait reports `Fault` when they are not valid.
    pub fn run(&self) -> Result<()> {
        self.encode(None)
    }

    /// Encodes the product on `stream`.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub fn run_on(&self, stream: &mut Stream) -> Result<()> {
        self.encode(Some(stream))
    }

    /// The problem as data, for [`plan`](crate::plan::plan) and [`warm_up`](crate::GpuRuntime::warm_up).
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub fn desc(&self) -> Result<GemmDesc> {
        Ok(self.check()?.desc)
    }
}
