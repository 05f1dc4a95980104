//! NVIDIA devices: the driver and NVRTC at run time, nothing at build time.
//!
//! Plans and profiles are pure and always present; everything else is behind the `cuda` feature.

mod attention;
mod nn;
mod plan;
#[cfg(test)]
mod plan_tests;
mod profiles;
pub mod tables;
mod wgmma;

#[cfg(all(test, feature = "cuda"))]
mod attention_tests;
#[cfg(feature = "cuda")]
mod backend;
#[cfg(all(test, feature = "cuda"))]
mod compile_tests;
#[cfg(feature = "cuda")]
mod context;
#[cfg(all(test, feature = "cuda"))]
mod device_tests;
#[cfg(not(feature = "cuda"))]
mod disabled;
#[cfg(feature = "cuda")]
mod driver;
#[cfg(feature = "cuda")]
mod elf;
#[cfg(feature = "cuda")]
mod graph;
#[cfg(feature = "cuda")]
mod launch;
#[cfg(feature = "cuda")]
mod loader;
#[cfg(feature = "cuda")]
mod nvrtc;
#[cfg(feature = "cuda")]
mod paths;
#[cfg(feature = "cuda")]
mod pieces;
#[cfg(feature = "cuda")]
mod probe;
#[cfg(feature = "cuda")]
mod queue;
#[cfg(feature = "cuda")]
mod registry;
#[cfg(feature = "cuda")]
mod source;
#[cfg(feature = "cuda")]
mod status;
#[cfg(feature = "cuda")]
mod tensor_map;
#[cfg(all(test, feature = "cuda"))]
mod wgmma_tests;

#[cfg(not(feature = "cuda"))]
pub(crate) use disabled::{enumerate, info, open, remember};
#[cfg(feature = "cuda")]
pub(crate) use paths::remember;
pub use plan::{candidates, plan};
#[cfg(feature = "cuda")]
pub(crate) use probe::{enumerate, info, open};
pub use profiles::PROFILES;
