//! Measuring, shared by the `tessl` command and the benchmark binaries. docs/benchmarking.md tells the protocol.

mod args;
mod attention;
mod data;
mod limits;
mod llm;
mod norm;
mod quant;
mod report;
mod serve;
mod serve_attention;
mod serve_rows;
mod shapes;
mod sweep;
mod timing;

pub use args::GemmArgs;
pub use attention::attention_sweep;
pub use data::{Data, Rotation};
pub use llm::{LlmArgs, LlmReport, LlmSuite, llm};
pub use norm::{Family, NormArgs, norm_sweep};
pub use quant::quant_sweep;
pub use report::{Report, Row};
pub use serve::serve;
pub use serve_attention::serve_attention;
pub use serve_rows::serve_rows;
pub use shapes::{Shape, parse_shapes};
pub use sweep::sweep;
pub use timing::{Mode, Samples, Work, measure, quick};

use tessl::{DType, GemmBackend, Precision};

/// One product to measure.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// Sizes.
    pub shape: Shape,
    /// Type of A and B.
    pub input: DType,
    /// Type of C.
    pub output: DType,
    /// Whether A and B are transposed views.
    pub turned: [bool; 2],
    /// How exact f32 products are.
    pub precision: Precision,
    /// Which kernels.
    pub backend: GemmBackend,
    /// B is packed beforehand.
    pub packed: bool,
}

/// The type of C that goes with an input.
fn result_of(input: DType) -> DType {
    if matches!(input, DType::I8 | DType::U8) { DType::I32 } else { input }
}

impl Default for Case {
    fn default() -> Self {
        Case {
            shape: Shape { m: 1, n: 1, k: 1 },
            input: DType::F32,
            output: DType::F32,
            turned: [false; 2],
            precision: Precision::Exact,
            backend: GemmBackend::TensorOps,
            packed: false,
        }
    }
}

impl Case {
    /// `NN`, `NT`, `TN` or `TT`.
    pub fn layout(&self) -> String {
        self.turned.map(|t| if t { 'T' } else { 'N' }).iter().collect()
    }

    /// Bytes read and written once.
    pub fn bytes(&self) -> u64 {
        let Shape { m, n, k } = self.shape;
        let [m, n, k] = [m, n, k].map(u64::from);
        (m * k + k * n) * self.input.size() as u64 + m * n * self.output.size() as u64
    }
}
