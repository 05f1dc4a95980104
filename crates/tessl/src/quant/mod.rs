//! Quantised weights: formats, how their bytes are read and written, and the codes' layouts.
//!
//! Every format codes a weight as `w = scale * q + bias` with a whole number q. What the scale and the bias of a weight are,
//! and where its bits lie, is one file of `formats/` each; docs/numerics.md shows a block of each worked out by hand.

mod code;
mod format;
pub(crate) mod formats;
pub(crate) mod host;
pub(crate) mod rows16;

pub(crate) use code::{Code, with_code};
pub use format::{QFormat, QLayout};
