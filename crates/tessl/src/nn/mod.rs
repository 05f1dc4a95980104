//! Neural-network operations, one file per family.

mod check;
mod desc;
mod elementwise;
mod mlp;
mod norm;
mod reduce;

pub use desc::{ElementwiseDesc, ElementwiseOp, MlpDesc, MlpOp, ReduceDesc, ReduceOp, RmsNormDesc};
pub use elementwise::{Add, Cast, Mul, Scale};
pub use mlp::{Activate, Glu};
pub use norm::RmsNorm;
pub use reduce::{ArgMax, LogSoftmax, Reduce, Reduction, Softmax};
