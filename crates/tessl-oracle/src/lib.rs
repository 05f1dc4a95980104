//! References in f64: simple loops, written to be checked by reading, without any dependency on tessl.
//!
//! Everything here is deterministic. Bounds are derived in [`bound`]; nothing is tuned to what a device returns.

mod activation;
mod attention;
pub mod bound;
mod cache;
mod elementwise;
mod embed;
mod experts;
mod format;
mod freivalds;
mod gemm;
mod mlp;
mod movement;
mod norm;
pub mod pattern;
mod qkv;
mod quant;
mod reduce;
mod rng;
mod rope;
mod sample;
mod spotcheck;

pub use activation::{Activation, erf, erfc};
pub use attention::{Key, Scores, attention};
pub use cache::{codes, paged_row, slot};
pub use elementwise::{add, mul};
pub use embed::embedding;
pub use experts::{ByExpert, by_expert, combine};
pub use format::Format;
pub use freivalds::freivalds;
pub use gemm::{Epilogue, Product, gemm};
pub use mlp::glu;
pub use movement::{gather_rows, scatter_rows};
pub use norm::{layer_norm, rms_norm};
pub use qkv::Head;
pub use quant::{QuantFormat, QuantWeight, binary16, quant_weight};
pub use reduce::{log_softmax, row_argmax, row_max, score, softmax};
pub use rng::Rng;
pub use rope::{rope, rope_frequency, rope_ntk, rope_pair, rope_yarn};
pub use sample::{Kept, Sampling, philox, top_k};
pub use spotcheck::{SAMPLE_ABOVE_FLOP, SAMPLES, positions};
