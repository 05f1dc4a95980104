//! NVIDIA devices: the driver and NVRTC at run time, nothing at build time.
//!
//! Plans and profiles are pure and always present; everything else is behind the `cuda` feature.

mod plan;
#[cfg(test)]
mod plan_tests;
mod profiles;
pub mod tables;

#[cfg(feature = "cuda")]
mod backend;
#[cfg(feature = "cuda")]
mod cache;
#[cfg(feature = "cuda")]
mod context;
#[cfg(all(test, feature = "cuda"))]
mod compile_tests;
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

#[cfg(not(feature = "cuda"))]
pub(crate) use disabled::{enumerate, info, open};
pub use plan::plan;
#[cfg(feature = "cuda")]
pub(crate) use probe::{enumerate, info, open};
pub use profiles::PROFILES;

use std::path::PathBuf;
use std::sync::OnceLock;

/// Where this device looks for libraries and keeps compiled kernels. The options module fills it from the environment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Paths {
    /// `TESSL_CUDA_LIB`: a folder with the driver's or NVRTC's library, or one such file; absolute. The system loader
    /// is asked after it.
    pub library: Option<PathBuf>,
    /// Folder of the kernel cache; none keeps nothing on disk.
    pub cache: Option<PathBuf>,
}

static PATHS: OnceLock<Paths> = OnceLock::new();

impl Paths {
    /// Sets the paths of this process. The first call counts, and comes before the first use of the device; `false`
    /// says that it came too late.
    pub fn configure(self) -> bool {
        PATHS.set(self).is_ok()
    }

    /// The folder of the kernel cache for a user with these variables: `$XDG_CACHE_HOME/tessl`, else `~/.cache/tessl`.
    pub fn default_cache(xdg_cache_home: Option<PathBuf>, home: Option<PathBuf>) -> Option<PathBuf> {
        let base = xdg_cache_home.filter(|p| p.is_absolute()).or_else(|| Some(home?.join(".cache")));
        base.filter(|p| p.is_absolute()).map(|p| p.join("tessl"))
    }

    /// The paths set, or none.
    #[cfg(feature = "cuda")]
    fn configured() -> &'static Self {
        PATHS.get_or_init(Paths::default)
    }
}
