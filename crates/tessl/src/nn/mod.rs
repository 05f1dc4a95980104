//! Neural-network operations, one file per family.

mod desc;
mod norm;

pub use desc::RmsNormDesc;
pub use norm::RmsNorm;
