//! References in f64: simple loops, written to be checked by reading, without any dependency on tessl.
//!
//! Everything here is deterministic. Bounds are derived in [`bound`]; nothing is tuned to what a device returns.

mod activation;
pub mod bound;
mod format;
mod freivalds;
mod gemm;
mod norm;
pub mod pattern;
mod rng;
mod sample;

pub use activation::{Activation, erf, erfc};
pub use format::Format;
pub use freivalds::freivalds;
pub use gemm::{Epilogue, Product, gemm};
pub use norm::rms_norm;
pub use rng::Rng;
pub use sample::{SAMPLE_ABOVE_FLOP, SAMPLES, positions};
