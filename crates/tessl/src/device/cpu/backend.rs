//! The CPU device: memory, kernels and queues.

use super::call::KernelFn;
use super::pool::Pool;
use super::queue::CpuQueue;
use super::registry::builtins;
use super::tables::PROFILES;
use super::{isa, memory};
use crate::device::{Backend, DeviceInfo, DeviceKind, DeviceProfile, Isa, MemoryUse, PipelineId, Queue, RawMemory};
use crate::error::{Error, Result, Scope};
use crate::library::Library;
use crate::plan::KernelKey;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

/// A kernel that can be launched.
#[derive(Clone)]
struct Kernel {
    module: String,
    name: String,
    function: KernelFn,
}

/// Kernels by pipeline number; they are only ever added.
pub(super) struct Kernels(RwLock<Vec<Kernel>>);

impl Kernels {
    /// Everything that runs on `isa`.
    fn builtin(isa: Isa) -> Self {
        let usable = builtins().filter(|b| b.isa <= isa && isa::usable(b.isa));
        let kernel = |b: &super::registry::Builtin| Kernel {
            module: b.module.to_owned(),
            name: b.name.to_owned(),
            function: b.function,
        };
        Kernels(RwLock::new(usable.map(kernel).collect()))
    }

    fn find(&self, key: &KernelKey) -> Option<PipelineId> {
        let kernels = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let index = kernels.iter().position(|k| k.module == key.module && k.name == key.name)?;
        u32::try_from(index).ok().map(PipelineId)
    }

    /// The code of a pipeline that `find` returned.
    pub(super) fn function(&self, id: PipelineId) -> Option<KernelFn> {
        let kernels = self.0.read().unwrap_or_else(PoisonError::into_inner);
        kernels.get(id.0 as usize).map(|k| k.function)
    }

    /// Adds all kernels of a library, or none.
    fn add(&self, library: &str, added: Vec<(String, KernelFn)>) -> Result<()> {
        let mut kernels = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let taken = |name: &str, before: &[(String, KernelFn)]| {
            kernels.iter().any(|k| k.name == name) || before.iter().any(|(n, _)| n == name)
        };
        if let Some((i, (name, _))) = added.iter().enumerate().find(|(i, (name, _))| taken(name, &added[..*i])) {
            debug_assert!(i < added.len());
            let name = name.as_str().into();
            return Err(Error::Name { op: "add_library", what: "kernel", name, taken: true });
        }
        kernels.extend(added.into_iter().map(|(name, function)| Kernel { module: library.to_owned(), name, function }));
        Ok(())
    }
}

struct CpuBackend {
    info: DeviceInfo,
    profile: DeviceProfile,
    pool: Arc<Pool>,
    kernels: Arc<Kernels>,
    in_use: AtomicU64,
}

/// What this processor is.
pub(crate) fn info() -> DeviceInfo {
    describe(isa::detect())
}

/// The CPU held to an instruction set, a number of threads, or both.
///
/// # Errors
/// `Unavailable` when the processor lacks the instruction set.
pub(crate) fn open_with(isa_limit: Option<Isa>, threads: Option<usize>) -> Result<Arc<dyn Backend>> {
    let isa = isa_limit.unwrap_or_else(isa::detect);
    if !isa::usable(isa) {
        let best = profile_of(isa::detect()).name;
        let reason = format!("the processor has no {}", profile_of(isa).name);
        return Err(Error::unavailable("cpu", reason, Some(format!("its best instruction set is {best}"))));
    }
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let profile = DeviceProfile { cores: u32::try_from(cores).unwrap_or(u32::MAX), ..profile_of(isa).clone() };
    Ok(Arc::new(CpuBackend {
        info: describe(isa),
        profile,
        pool: Arc::new(Pool::new(threads.unwrap_or(cores))),
        kernels: Arc::new(Kernels::builtin(isa)),
        in_use: AtomicU64::new(0),
    }))
}

fn profile_of(isa: Isa) -> &'static DeviceProfile {
    PROFILES.iter().find(|p| p.isa == isa).expect("INVARIANT: every instruction set has a profile (tested)")
}

fn describe(isa: Isa) -> DeviceInfo {
    let instructions = match isa {
        Isa::Scalar => "portable Rust",
        Isa::Neon => "NEON",
        Isa::Avx2 => "AVX2, FMA, F16C",
        Isa::Avx512 => "AVX-512 F, BW, DQ, VL",
        Isa::Amx => "AVX-512 F, BW, DQ, VL; AMX bf16, int8",
    };
    DeviceInfo {
        id: "cpu".to_owned(),
        kind: DeviceKind::Cpu,
        name: processor_name().unwrap_or_else(|| std::env::consts::ARCH.to_owned()),
        profile: profile_of(isa).name.to_owned(),
        memory_bytes: physical_memory(),
        unified_memory: true,
        driver: instructions.to_owned(),
        missing: None,
        help: None,
    }
}

fn processor_name() -> Option<String> {
    let text = std::fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = text.lines().find(|l| l.starts_with("model name"))?;
    line.split_once(':').map(|(_, name)| name.trim().to_owned())
}

/// 0 when unknown.
fn physical_memory() -> u64 {
    #[cfg(unix)]
    {
        // SAFETY: only asks the system for two numbers.
        let (pages, size) = unsafe { (libc::sysconf(libc::_SC_PHYS_PAGES), libc::sysconf(libc::_SC_PAGESIZE)) };
        u64::try_from(pages).unwrap_or(0).saturating_mul(u64::try_from(size).unwrap_or(0))
    }
    #[cfg(not(unix))]
    0
}

impl Backend for CpuBackend {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn profile(&self) -> &DeviceProfile {
        &self.profile
    }

    fn allocate(&self, bytes: u64, _usage: MemoryUse) -> Result<RawMemory> {
        // A request beyond the machine's memory would succeed here and kill the process when it is touched.
        let limit = if self.info.memory_bytes == 0 { u64::MAX } else { self.info.memory_bytes };
        let in_use = self.in_use.fetch_add(bytes, Ordering::Relaxed);
        let fits = in_use.checked_add(bytes).is_some_and(|all| all <= limit);
        let host = fits.then(|| usize::try_from(bytes).ok().and_then(memory::map)).flatten();
        let Some(host) = host else {
            self.in_use.fetch_sub(bytes, Ordering::Relaxed);
            return Err(Error::OutOfMemory { requested: bytes, in_use, limit });
        };
        Ok(RawMemory { device: host.addr() as u64, host, bytes, token: 0 })
    }

    unsafe fn free(&self, raw: RawMemory) {
        self.in_use.fetch_sub(raw.bytes, Ordering::Relaxed);
        let bytes = usize::try_from(raw.bytes).expect("INVARIANT: allocated here");
        // SAFETY: reason 4 of the contract; `allocate` mapped this many bytes.
        unsafe { memory::unmap(raw.host, bytes) };
    }

    fn pipeline(&self, key: &KernelKey) -> Result<PipelineId> {
        let name = || format!("{}/{}", key.module, key.name).into_boxed_str();
        self.kernels.find(key).ok_or_else(|| Error::Name { op: "pipeline", what: "kernel", name: name(), taken: false })
    }

    fn add_library(&self, library: Library) -> Result<()> {
        match library {
            Library::Cpu { name, kernels } => self.kernels.add(&name, kernels),
            Library::CudaSource { .. } => Err(Error::unsupported("add_library", "a library of CUDA source", "cpu")),
            Library::MetalSource { .. } => Err(Error::unsupported("add_library", "a library of Metal source", "cpu")),
            Library::Metallib { .. } => Err(Error::unsupported("add_library", "a compiled Metal library", "cpu")),
        }
    }

    fn queue(&self) -> Result<Arc<dyn Queue>> {
        Ok(Arc::new(CpuQueue::new(Arc::clone(&self.pool), Arc::clone(&self.kernels))))
    }
}

/// A pipeline number that this device never gave out.
pub(super) fn unknown_pipeline(op: &'static str, id: PipelineId) -> Error {
    Error::device(op, i64::from(id.0), "no such pipeline", Scope::Stream)
}

#[cfg(test)]
mod tests;
