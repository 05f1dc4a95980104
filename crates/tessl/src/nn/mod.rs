//! Neural-network operations, one file per family.

mod attention;
mod cache;
mod check;
mod desc;
mod elementwise;
mod embed;
mod mlp;
mod norm;
mod quant;
mod reduce;
mod rope;

pub use attention::{Attention, AttentionDesc, CombineDesc};
pub use cache::{CacheDesc, CacheOp, KvStore, RingDensify, Start};
pub use desc::{
    ElementwiseDesc, ElementwiseOp, EmbedDesc, MlpDesc, MlpOp, ReduceDesc, ReduceOp, RmsNormDesc, RopeDesc, RopeStyle,
};
pub use elementwise::{Add, Cast, Mul, Scale};
pub use embed::{Embedding, QuantizedEmbedding};
pub use mlp::{Activate, Glu};
pub use norm::RmsNorm;
pub use quant::{QuantDesc, QuantEmbedDesc, QuantOp, QuantizedGlu, QuantizedMatmul, QuantizedQkv};
pub use reduce::{ArgMax, LogSoftmax, Reduce, Reduction, Softmax};
pub use rope::{Positions, Rope, RopeFrequencies, RopeScaling};
