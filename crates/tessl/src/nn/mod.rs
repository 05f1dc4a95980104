//! Neural-network operations, one file per family.

/// What every operation offers beside its own setters. `$name` has `check()`, whose answer holds the problem as data at
/// `$desc`, and `encode()`.
macro_rules! operation {
    ($name:ident, $output:ty, |$checked:ident| $desc:expr) => {
        impl $name<'_> {
            /// Encodes the operation on the default stream.
            ///
            /// # Errors
            /// `Shape`, `Layout`, `DType`, `Scalar`, `Overlap`, `WrongRuntime`, `Expired` or `TooLarge` for arguments that
            /// do not fit; nothing is encoded then.
            pub fn run(&self) -> $crate::error::Result<()> {
                self.encode(None)
            }

            /// Encodes the operation on `stream`.
            ///
            /// # Errors
            /// As [`run`](Self::run).
            pub fn run_on(&self, stream: &mut $crate::stream::Stream) -> $crate::error::Result<()> {
                self.encode(Some(stream))
            }

            /// The problem as data.
            ///
            /// # Errors
            /// As [`run`](Self::run).
            pub fn desc(&self) -> $crate::error::Result<$output> {
                let $checked = self.check()?;
                Ok($desc)
            }
        }
    };
}

mod attention;
mod cache;
mod check;
mod desc;
mod elementwise;
mod embed;
mod experts;
mod mlp;
mod movement;
mod norm;
mod qkv;
mod quant;
mod reduce;
mod rope;
mod sample;

pub use attention::{Attention, AttentionDesc, CombineDesc};
pub use cache::{CacheDesc, CacheOp, KvStore, RingDensify, Start};
pub(crate) use desc::norm_types;
pub use desc::{
    ElementwiseDesc, ElementwiseOp, EmbedDesc, ExpertsDesc, ExpertsOp, LayerNormDesc, MlpDesc, MlpOp, MovementDesc,
    MovementOp, NormResidual, QkNormDesc, ReduceDesc, ReduceOp, RmsNormDesc, RopeDesc, RopeStyle, SampleDesc, TopKDesc,
};
pub use elementwise::{Add, Cast, Mul, Scale};
pub use embed::{Embedding, QuantizedEmbedding};
pub use experts::{CombineExperts, SortByExpert};
pub use mlp::{Activate, Glu};
pub use movement::{Concat, Copy, GatherRows, ScatterAdd, ScatterRows, Transpose};
pub use norm::{LayerNorm, QkNorm, RmsNorm};
pub use qkv::{KvPlaces, NormQkvRope, NormQkvRopeDesc, Weights, WeightsDesc};
pub use quant::{QuantDesc, QuantEmbedDesc, QuantOp, QuantizedGlu, QuantizedMatmul, QuantizedQkv};
pub use reduce::{ArgMax, LogSoftmax, Reduce, Reduction, Softmax};
pub use rope::{Positions, Rope, RopeFrequencies, RopeScaling};
pub use sample::{Sample, TopK};
