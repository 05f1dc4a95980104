//! The CPU device.

mod call;
mod pool;

pub use call::{Bound, FaultCell, KernelCall, KernelFn};
pub use pool::Pool;
