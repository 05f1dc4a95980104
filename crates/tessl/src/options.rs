//! Runtime options, and the one place that reads the environment.

use crate::device::{Device, Isa};
use crate::error::{Error, Result};
use std::path::PathBuf;

/// Bytes of Cold memory kept for reuse, by default.
pub const DEFAULT_POOL_CACHE_BYTES: u64 = 2 << 30;
/// Pieces of Cold memory kept for reuse, by default.
const DEFAULT_POOL_CACHE_COUNT: u64 = 4096;
/// Commands packed before a stream submits them by itself, by default.
const DEFAULT_FLUSH_EVERY: usize = 256;
/// A batch's arenas are indexed with 32 bits; this many commands stay far below.
const MAX_FLUSH_EVERY: usize = 16_384;

/// How a runtime is made. Options given here win over the environment.
///
/// ```
/// let options = tessl::RuntimeOptions::new().device("cpu".parse()?).threads(2).memory_limit(1 << 30);
/// let rt = tessl::GpuRuntime::with_options(&options)?;
/// # Ok::<(), tessl::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct RuntimeOptions {
    pub(crate) device: Option<Device>,
    pub(crate) gpu_only: bool,
    pub(crate) flush_every: Option<usize>,
    pub(crate) memory_limit: Option<u64>,
    pub(crate) cache_bytes: Option<u64>,
    pub(crate) cache_count: Option<u64>,
    pub(crate) threads: Option<usize>,
    pub(crate) isa: Option<Isa>,
    pub(crate) cuda_lib: Option<PathBuf>,
    pub(crate) cache_dir: Option<PathBuf>,
    pub(crate) dependent_launch: Option<bool>,
    pub(crate) graphs: GraphOptions,
}

/// How captured graphs are kept on Metal. Other devices have one form of their own.
///
/// By default a replay encodes its commands again, with the arguments in place. In an indirect command buffer they are
/// encoded once; results are the same, bit for bit. Commands that cannot be in one are encoded at each replay
/// ([`Graph::prebuilt`](crate::Graph::prebuilt) counts the others), and so are all where a check when the runtime is
/// made finds that the system does not run such buffers as it should; a warning then says so.
///
/// ```
/// use tessl::{GraphOptions, RuntimeOptions};
/// let graphs = GraphOptions::new().indirect(true).freeze_binds(true).range_batch(true);
/// let options = RuntimeOptions::new().graphs(graphs);
/// # let _ = options;
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GraphOptions {
    pub(crate) indirect: Option<bool>,
    pub(crate) freeze_binds: Option<bool>,
    pub(crate) range_batch: Option<bool>,
}

impl GraphOptions {
    /// The defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// Keeps commands in indirect command buffers (`TESSL_DECODE_ICB`; no by default).
    pub fn indirect(mut self, on: bool) -> Self {
        self.indirect = Some(on);
        self
    }

    /// Writes bindings into the commands of an indirect command buffer, so that a replay binds nothing
    /// (`TESSL_ICB_FREEZE_BINDS`; no by default: each command runs by itself with a bound table).
    pub fn freeze_binds(mut self, on: bool) -> Self {
        self.freeze_binds = Some(on);
        self
    }

    /// Runs as many commands as possible at once, with the barriers inside the buffer (`TESSL_ICB_RANGE_BATCH`; no by
    /// default: a run ends at each barrier). Needs frozen bindings.
    pub fn range_batch(mut self, on: bool) -> Self {
        self.range_batch = Some(on);
        self
    }
}

impl RuntimeOptions {
    /// The defaults: the best device, memory limited by the device alone.
    pub fn new() -> Self {
        Self::default()
    }

    /// Uses this device (`TESSL_DEVICE`).
    pub fn device(mut self, device: Device) -> Self {
        self.device = Some(device);
        self
    }

    /// Fails where there is no GPU, instead of taking the CPU (`TESSL_DEVICE=gpu`).
    pub fn gpu_only(mut self) -> Self {
        self.gpu_only = true;
        self
    }

    /// Commands packed before a stream submits them by itself, 1 to 16384 (`TESSL_FLUSH_EVERY`; 256 by default).
    pub fn flush_every(mut self, commands: usize) -> Self {
        self.flush_every = Some(commands);
        self
    }

    /// Bytes this runtime may hold, its cache included (`TESSL_MEMORY_LIMIT`).
    pub fn memory_limit(mut self, bytes: u64) -> Self {
        self.memory_limit = Some(bytes);
        self
    }

    /// Bytes of Cold memory kept for reuse (`TESSL_CACHE_LIMIT`; 2 GiB by default).
    pub fn cache_limit(mut self, bytes: u64) -> Self {
        self.cache_bytes = Some(bytes);
        self
    }

    /// Pieces of Cold memory kept for reuse (4096 by default).
    pub fn cache_count(mut self, count: u64) -> Self {
        self.cache_count = Some(count);
        self
    }

    /// Threads of the CPU device, the caller included (`TESSL_THREADS`; all by default).
    pub fn threads(mut self, threads: usize) -> Self {
        self.threads = Some(threads);
        self
    }

    /// The newest instruction set the CPU device may use (`TESSL_ISA`).
    pub fn isa(mut self, isa: Isa) -> Self {
        self.isa = Some(isa);
        self
    }

    /// Where the CUDA driver and NVRTC are (`TESSL_CUDA_LIB`): a folder or a library file.
    pub fn cuda_lib(mut self, path: impl Into<PathBuf>) -> Self {
        self.cuda_lib = Some(path.into());
        self
    }

    /// Where compiled kernels are kept (`TESSL_CACHE_DIR`).
    pub fn cache_dir(mut self, path: impl Into<PathBuf>) -> Self {
        self.cache_dir = Some(path.into());
        self
    }

    /// Whether CUDA kernels may start while those before them end, on GPUs that can (`TESSL_DEPENDENT_LAUNCH`; on by
    /// default). Kernels wait for the data of their predecessors in either case; results are the same, bit for bit.
    pub fn dependent_launch(mut self, on: bool) -> Self {
        self.dependent_launch = Some(on);
        self
    }

    /// How graphs are kept on Metal.
    pub fn graphs(mut self, graphs: GraphOptions) -> Self {
        self.graphs = graphs;
        self
    }

    /// Fills what was not set from the process's environment, warning about names it does not know.
    ///
    /// # Errors
    /// `Parse` for a value that cannot be understood; also for a switch that would remove needed barriers.
    pub fn from_env(self) -> Result<Self> {
        // Variables that are not Unicode cannot be ours.
        let unicode = |text: std::ffi::OsString| text.into_string().ok();
        self.from_vars(std::env::vars_os().filter_map(|(name, value)| Some((unicode(name)?, unicode(value)?))))
    }

    /// As [`from_env`](Self::from_env), from the given variables.
    ///
    /// # Errors
    /// As `from_env`.
    pub fn from_vars(mut self, vars: impl IntoIterator<Item = (String, String)>) -> Result<Self> {
        for (name, value) in vars {
            if let Some(key) = canonical(&name) {
                self.set(key, &name, &value)?;
            }
        }
        Ok(self)
    }

    fn set(&mut self, key: &str, name: &str, value: &str) -> Result<()> {
        match key {
            // A device chosen by the program wins over the environment, as every other option does.
            "DEVICE" if value == "gpu" => self.gpu_only |= self.device.is_none(),
            "DEVICE" => {
                let expected = "cpu, cuda, cuda:N, metal, metal:N, null:PROFILE or gpu";
                let device = value.parse().map_err(|_| Error::parse("TESSL_DEVICE", value, expected))?;
                or_set(&mut self.device, device);
            }
            "FLUSH_EVERY" | "MID_COMMIT" => {
                let n = number("TESSL_FLUSH_EVERY", value)?;
                // 0 was the description's way to say "no bound of my own".
                if n > 0 {
                    or_set(&mut self.flush_every, usize::try_from(n).unwrap_or(MAX_FLUSH_EVERY));
                }
            }
            "MEMORY_LIMIT" => or_set(&mut self.memory_limit, number("TESSL_MEMORY_LIMIT", value)?),
            "CACHE_LIMIT" => or_set(&mut self.cache_bytes, number("TESSL_CACHE_LIMIT", value)?),
            "THREADS" => {
                let n = number("TESSL_THREADS", value)?;
                or_set(&mut self.threads, usize::try_from(n).unwrap_or(usize::MAX));
            }
            "ISA" => or_set(&mut self.isa, value.parse()?),
            "CUDA_LIB" => or_set(&mut self.cuda_lib, PathBuf::from(value)),
            "CACHE_DIR" => or_set(&mut self.cache_dir, PathBuf::from(value)),
            "HAZARD_BARRIERS" | "COARSE_BARRIERS" if matches!(value, "" | "0") => {}
            "HAZARD_BARRIERS" | "COARSE_BARRIERS" => {
                let expected = "0: barriers are placed where data needs them and cannot be left out";
                return Err(Error::parse("TESSL_HAZARD_BARRIERS", value, expected));
            }
            "GEMM_ACCUM" | "GEMM_ACCUM_DX" | "GEMM_INTERIOR" => {
                tracing::warn!("{name} has no effect: accumulation into C is always done in the same kernel");
            }
            // Read elsewhere: by the test runner, the command line, the benchmarks and the build script.
            "LOG" | "REQUIRE" | "SKIP_LOG" | "SIM_SEED" | "SIM_SANITIZE" | "SKIP_AOT" | "GEMM_TUNE" | "WRITE_ARGS"
            | "SIM_CXX" | "BLESS" => {}
            "DEPENDENT_LAUNCH" => or_set(&mut self.dependent_launch, switch("TESSL_DEPENDENT_LAUNCH", value)?),
            "DECODE_ICB" => or_set(&mut self.graphs.indirect, switch("TESSL_DECODE_ICB", value)?),
            "ICB_FREEZE_BINDS" => or_set(&mut self.graphs.freeze_binds, switch("TESSL_ICB_FREEZE_BINDS", value)?),
            "ICB_RANGE_BATCH" => or_set(&mut self.graphs.range_batch, switch("TESSL_ICB_RANGE_BATCH", value)?),
            _ => tracing::warn!("the environment variable {name} is not known"),
        }
        Ok(())
    }

    pub(crate) fn flush_bound(&self) -> Result<usize> {
        let n = self.flush_every.unwrap_or(DEFAULT_FLUSH_EVERY);
        if n == 0 || n > MAX_FLUSH_EVERY {
            let expected = "between 1 and 16384";
            return Err(Error::Scalar { op: "RuntimeOptions", name: "flush_every", value: n as f64, expected });
        }
        Ok(n)
    }

    pub(crate) fn pool_limits(&self) -> (u64, u64) {
        let bytes = self.cache_bytes.unwrap_or(DEFAULT_POOL_CACHE_BYTES);
        (bytes, self.cache_count.unwrap_or(DEFAULT_POOL_CACHE_COUNT))
    }
}

fn or_set<T>(slot: &mut Option<T>, value: T) {
    slot.get_or_insert(value);
}

/// The name without its prefix; legacy prefixes work and warn.
fn canonical(name: &str) -> Option<&str> {
    if let Some(key) = name.strip_prefix("TESSL_") {
        return Some(key);
    }
    let key = ["METAL_RUNTIME_", "METAL_NATIVE_"].iter().find_map(|p| name.strip_prefix(p))?;
    tracing::warn!("{name}: this prefix is deprecated, use TESSL_{key}");
    Some(key)
}

fn switch(what: &'static str, value: &str) -> Result<bool> {
    match value.trim() {
        "" | "0" => Ok(false),
        "1" => Ok(true),
        _ => Err(Error::parse(what, value, "0 or 1")),
    }
}

fn number(what: &'static str, value: &str) -> Result<u64> {
    let digits = value.trim();
    let scale = match digits.chars().last() {
        Some('K' | 'k') => 10,
        Some('M' | 'm') => 20,
        Some('G' | 'g') => 30,
        _ => 0,
    };
    let body = if scale == 0 { digits } else { &digits[..digits.len() - 1] };
    let parsed = body.parse::<u64>().ok().and_then(|n| n.checked_mul(1 << scale));
    parsed.ok_or_else(|| Error::parse(what, value, "a whole number, optionally with K, M or G (1024-based)"))
}

impl std::str::FromStr for Isa {
    type Err = Error;

    fn from_str(s: &str) -> Result<Self> {
        match s {
            "scalar" => Ok(Isa::Scalar),
            "neon" => Ok(Isa::Neon),
            "avx2" => Ok(Isa::Avx2),
            "avx512" => Ok(Isa::Avx512),
            "amx" => Ok(Isa::Amx),
            _ => Err(Error::parse("TESSL_ISA", s, "scalar, neon, avx2, avx512 or amx")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(vars: &[(&str, &str)]) -> Result<RuntimeOptions> {
        RuntimeOptions::new().from_vars(vars.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())))
    }

    #[test]
    fn environment_is_typed_and_options_win() {
        let o = parse(&[("TESSL_DEVICE", "cpu"), ("TESSL_MEMORY_LIMIT", "3M"), ("PATH", "x")]).unwrap();
        assert_eq!((o.device, o.memory_limit), (Some(Device::cpu()), Some(3 << 20)));
        let set = RuntimeOptions::new().memory_limit(7);
        let o = set.from_vars([("TESSL_MEMORY_LIMIT".to_owned(), "9".to_owned())]).unwrap();
        assert_eq!(o.memory_limit, Some(7));
        assert_eq!(parse(&[("METAL_RUNTIME_MID_COMMIT", "8")]).unwrap().flush_every, Some(8));
        assert!(parse(&[("TESSL_DEVICE", "gpu")]).unwrap().gpu_only);
        let chosen = RuntimeOptions::new().device(Device::cpu());
        let o = chosen.from_vars([("TESSL_DEVICE".to_owned(), "gpu".to_owned())]).unwrap();
        assert!(!o.gpu_only, "a device chosen by the program wins");
    }

    #[test]
    fn graphs_are_set_by_switches() {
        let set = parse(&[("TESSL_DECODE_ICB", "1"), ("METAL_RUNTIME_ICB_FREEZE_BINDS", "0")]).unwrap().graphs;
        assert_eq!(set, GraphOptions::new().indirect(true).freeze_binds(false));
        let chosen = RuntimeOptions::new().graphs(GraphOptions::new().range_batch(false));
        let chosen = chosen.from_vars([("TESSL_ICB_RANGE_BATCH".to_owned(), "1".to_owned())]).unwrap();
        assert_eq!(chosen.graphs.range_batch, Some(false), "the program wins");
    }

    #[test]
    fn bad_values_are_errors() {
        let switches = ["DECODE_ICB", "ICB_FREEZE_BINDS", "ICB_RANGE_BATCH"].map(|s| format!("TESSL_{s}"));
        for name in &switches {
            let error = parse(&[(name, "yes")]).unwrap_err().to_string();
            assert!(error.starts_with(name) && error.contains("0 or 1"), "{error}");
        }
        for (name, value) in [("TESSL_DEVICE", "tpu"), ("TESSL_THREADS", "-1"), ("TESSL_MEMORY_LIMIT", "12Q")] {
            assert!(parse(&[(name, value)]).is_err(), "{name}={value}");
        }
        assert!(parse(&[("TESSL_DEVICE", "tpu")]).unwrap_err().to_string().starts_with("TESSL_DEVICE: `tpu` is not"));
        assert!(parse(&[("TESSL_HAZARD_BARRIERS", "1")]).unwrap_err().to_string().contains("barriers"));
        assert!(RuntimeOptions::new().flush_every(0).flush_bound().is_err());
    }
}
