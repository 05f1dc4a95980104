//! Products with quantised weights.

mod check;
mod desc;
mod glu;
mod matmul;
mod qkv;

pub use desc::{QuantDesc, QuantEmbedDesc, QuantOp};
pub use glu::QuantizedGlu;
pub use matmul::QuantizedMatmul;
pub use qkv::QuantizedQkv;

pub(super) use check::{dtype_code, factors_code};
