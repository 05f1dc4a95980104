//! The runtime: one device, its memory, its streams, its compiled kernels.

use crate::device::{Backend, Device, DeviceInfo, DeviceKind, DeviceProfile, PipelineId};
use crate::dtype::{DType, Element};
use crate::error::{Error, Result};
use crate::library::Library;
use crate::memory::{BufferKind, Memory, MemoryStats};
use crate::options::RuntimeOptions;
use crate::plan::{Desc, KernelKey, Plan};
use crate::process;
use crate::stream::{
    Access, Binding, Encoded, Hazards, Rect, Stream, StreamCore, StreamLimits, Work, refuse_bump, refuse_default,
};
use crate::tensor::{Tensor, bytes_of};
use rustc_hash::FxHashMap as HashMap;
use smallvec::smallvec;
use std::any::Any;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, RwLock, Weak};

/// A device in use. Clones share everything; all methods may be called from any thread.
///
/// ```
/// use tessl::{gemm, GemmBackend, GpuRuntime};
/// let rt = GpuRuntime::new()?;
/// let a = rt.alloc_tensor_f32(&[64, 32])?;
/// let b = rt.alloc_tensor_f32(&[32, 16])?;
/// let c = rt.alloc_tensor_f32(&[64, 16])?;
/// gemm(&a, &b, &c, GemmBackend::TensorOps)?;
/// rt.synchronize()?;
/// # Ok::<(), tessl::Error>(())
/// ```
#[derive(Clone)]
pub struct GpuRuntime {
    inner: Arc<Inner>,
}

struct Inner {
    device: Option<Device>,
    backend: Arc<dyn Backend>,
    memory: Arc<Memory>,
    default_stream: Arc<StreamCore>,
    streams: Mutex<Vec<Weak<StreamCore>>>,
    order: Arc<Mutex<()>>,
    dispatches: Arc<AtomicU64>,
    limits: StreamLimits,
    plans: Mutex<PlanCache>,
    pipelines: RwLock<HashMap<KernelKey, PipelineId>>,
    born: process::Generation,
}

/// A plan with its kernel compiled.
#[derive(Debug)]
pub(crate) struct Prepared {
    pub(crate) plan: Plan,
    pub(crate) pipeline: PipelineId,
}

/// Plans by problem, bounded; the least recently used quarter goes when it is full.
#[derive(Default)]
struct PlanCache {
    map: HashMap<Desc, (Arc<Prepared>, u64)>,
    clock: u64,
}

/// Plans kept.
const PLAN_CACHE: usize = 4096;

/// One of the caller's own kernels. See [`GpuRuntime::kernel`].
#[derive(Clone)]
pub struct Kernel {
    rt: GpuRuntime,
    pipeline: PipelineId,
    label: &'static str,
}

impl std::fmt::Debug for Kernel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Kernel").field("name", &self.label).finish_non_exhaustive()
    }
}

impl Kernel {
    pub(crate) fn runtime(&self) -> &GpuRuntime {
        &self.rt
    }

    pub(crate) fn pipeline(&self) -> PipelineId {
        self.pipeline
    }

    pub(crate) fn label(&self) -> &'static str {
        self.label
    }
}

impl std::fmt::Debug for GpuRuntime {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "GpuRuntime({})", self.device())
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|e| e.into_inner())
}

impl GpuRuntime {
    /// The best device of this machine (metal, cuda, cpu), or the one named by `TESSL_DEVICE`. A default that lands on
    /// the CPU logs one warning.
    ///
    /// # Errors
    /// `Unavailable` when the device named cannot be used, `Parse` for a bad environment variable.
    pub fn new() -> Result<Self> {
        Self::with_options(&RuntimeOptions::new().from_env()?)
    }

    /// This device, with default options. The environment is not read.
    ///
    /// # Errors
    /// `Unavailable`.
    pub fn with_device(device: &Device) -> Result<Self> {
        Self::with_options(&RuntimeOptions::new().device(device.clone()))
    }

    /// A runtime made to order. The environment is read only by [`RuntimeOptions::from_env`].
    ///
    /// # Errors
    /// `Unavailable`, `Scalar` for an option outside its range.
    pub fn with_options(options: &RuntimeOptions) -> Result<Self> {
        let device = match &options.device {
            Some(device) => device.clone(),
            None => {
                let best = Device::best_for(options);
                if !best.is_gpu() && !options.gpu_only {
                    tracing::warn!(
                        "no GPU was found: running on the CPU (set TESSL_DEVICE=cpu to say that this is meant)"
                    );
                }
                best
            }
        };
        if options.gpu_only && !device.is_gpu() {
            let gpus = Device::enumerate().into_iter().filter(|d| d.kind != DeviceKind::Cpu);
            let why: Vec<String> =
                gpus.map(|d| format!("{}: {}", d.id, d.missing.unwrap_or_else(|| "not chosen".into()))).collect();
            return Err(Error::unavailable("gpu", why.join("; "), None));
        }
        let backend = device.open(options)?;
        Self::build(Some(device), backend, options)
    }

    /// A runtime on a device made by the caller: simulators and mocks of the contract in [`crate::device`].
    ///
    /// # Errors
    /// `Scalar` for an option outside its range, and what the device reports.
    pub fn with_backend(backend: Arc<dyn Backend>, options: &RuntimeOptions) -> Result<Self> {
        Self::build(None, backend, options)
    }

    fn build(device: Option<Device>, backend: Arc<dyn Backend>, options: &RuntimeOptions) -> Result<Self> {
        let limits = StreamLimits { flush_every: options.flush_bound()? };
        let (cache_bytes, cache_count) = options.pool_limits();
        let memory = Memory::new(backend.clone(), options.memory_limit, cache_bytes, cache_count);
        let order = Arc::default();
        let dispatches = Arc::default();
        let default_stream = StreamCore::new(memory.clone(), Arc::clone(&order), Arc::clone(&dispatches), limits)?;
        tracing::debug!(target: "tessl::runtime", device = %backend.info().id, profile = backend.profile().name, "runtime made");
        let inner = Inner {
            device,
            backend,
            memory,
            streams: Mutex::new(vec![Arc::downgrade(&default_stream)]),
            default_stream,
            order,
            dispatches,
            limits,
            plans: Mutex::default(),
            pipelines: RwLock::default(),
            born: process::Generation::now(),
        };
        Ok(GpuRuntime { inner: Arc::new(inner) })
    }

    /// A runtime whose own kernels come from a compiled Metal library as well.
    ///
    /// # Errors
    /// `Unsupported` where the device is not Metal, `Io`, `Name` for a kernel that exists already.
    pub fn from_metallib_path(path: &Path) -> Result<Self> {
        let rt = Self::new()?;
        rt.add_metallib(path)?;
        Ok(rt)
    }

    /// Adds the kernels of a compiled Metal library.
    ///
    /// # Errors
    /// As [`from_metallib_path`](Self::from_metallib_path).
    pub fn add_metallib(&self, path: &Path) -> Result<()> {
        self.add_library(Library::metallib(path))
    }

    /// Adds own kernels. Loading is safe; running one is [`Stream::dispatch`].
    ///
    /// # Errors
    /// `Name` when a kernel of that name exists, `Unsupported` for a library made for another device, `Device` with the
    /// compiler's text.
    pub fn add_library(&self, library: Library) -> Result<()> {
        self.check_process("GpuRuntime::add_library")?;
        self.inner.backend.add_library(library)
    }

    /// One of the kernels added with [`add_library`](Self::add_library).
    ///
    /// # Errors
    /// `Name` when neither the library nor the kernel exists.
    pub fn kernel(&self, library: &str, name: &str) -> Result<Kernel> {
        self.check_process("GpuRuntime::kernel")?;
        let key = KernelKey { module: library.to_owned().into(), name: name.to_owned().into(), constants: smallvec![] };
        let pipeline = self.pipeline(&key)?;
        Ok(Kernel { rt: self.clone(), pipeline, label: process::intern(name) })
    }

    /// The device string (`cpu`, `cuda:0`, ..).
    pub fn device(&self) -> String {
        self.inner.device.as_ref().map_or_else(|| self.info().id.clone(), ToString::to_string)
    }

    /// The device's product name.
    pub fn device_name(&self) -> &str {
        &self.info().name
    }

    /// What the device is.
    pub fn info(&self) -> &DeviceInfo {
        self.inner.backend.info()
    }

    /// What plans for this device are made from.
    pub fn profile(&self) -> &DeviceProfile {
        self.inner.backend.profile()
    }

    /// Memory counters.
    pub fn memory_stats(&self) -> MemoryStats {
        self.inner.memory.stats()
    }

    /// Gives cached memory back to the device.
    pub fn trim(&self) {
        self.inner.memory.trim();
    }

    /// Changes how many bytes of Cold memory are kept for reuse.
    pub fn set_cache_limit(&self, bytes: u64) {
        self.inner.memory.set_cache_limit(bytes);
    }

    /// Kernel launches encoded so far. A rejected call does not count.
    pub fn dispatch_count(&self) -> u64 {
        self.inner.dispatches.load(Ordering::Relaxed)
    }

    /// As [`dispatch_count`](Self::dispatch_count), starting again from zero.
    pub fn take_dispatch_count(&self) -> u64 {
        self.inner.dispatches.swap(0, Ordering::Relaxed)
    }

    /// Kernel variants compiled so far; independent of shapes.
    pub fn pipeline_count(&self) -> usize {
        self.inner.pipelines.read().unwrap_or_else(|e| e.into_inner()).len()
    }

    /// A new stream.
    ///
    /// # Errors
    /// `Device` or `OutOfMemory`.
    pub fn stream(&self) -> Result<Stream> {
        self.check_process("GpuRuntime::stream")?;
        let inner = &self.inner;
        let core = StreamCore::new(inner.memory.clone(), inner.order.clone(), inner.dispatches.clone(), inner.limits)?;
        let mut streams = lock(&inner.streams);
        streams.retain(|s| s.strong_count() > 0);
        streams.push(Arc::downgrade(&core));
        drop(streams);
        Ok(Stream::new(core, self.clone()))
    }

    /// Packs commands (the default), or submits each one by itself.
    pub fn set_async_encode(&self, packed: bool) {
        self.inner.default_stream.set_packed(packed);
    }

    /// Waits for all streams.
    ///
    /// # Errors
    /// The first failure found; all streams are waited for nevertheless.
    pub fn synchronize(&self) -> Result<()> {
        self.check_process("GpuRuntime::synchronize")?;
        let streams: Vec<_> = lock(&self.inner.streams).iter().filter_map(Weak::upgrade).collect();
        let mut outcome = Ok(());
        for stream in streams {
            let one = if stream.is_capturing() { Ok(()) } else { stream.synchronize() };
            outcome = outcome.and(one);
        }
        outcome
    }

    /// Clears the default stream's failure after it has been reported; as [`Stream::recover`].
    ///
    /// # Errors
    /// As `Stream::recover`.
    pub fn recover(&self) -> Result<()> {
        self.inner.default_stream.recover()
    }

    /// A zeroed Cold tensor of f32.
    ///
    /// # Errors
    /// `Shape` for an impossible size, `OutOfMemory`.
    pub fn alloc_tensor_f32(&self, shape: &[usize]) -> Result<Tensor> {
        self.zeros(DType::F32, shape, BufferKind::Cold)
    }

    /// A zeroed Cold tensor of bf16.
    ///
    /// # Errors
    /// As `alloc_tensor_f32`.
    pub fn alloc_tensor_bf16(&self, shape: &[usize]) -> Result<Tensor> {
        self.zeros(DType::Bf16, shape, BufferKind::Cold)
    }

    /// A zeroed Cold tensor of f16.
    ///
    /// # Errors
    /// As `alloc_tensor_f32`.
    pub fn alloc_tensor_f16(&self, shape: &[usize]) -> Result<Tensor> {
        self.zeros(DType::F16, shape, BufferKind::Cold)
    }

    /// A zeroed tensor.
    ///
    /// # Errors
    /// `Shape` for an impossible size, `OutOfMemory`, `Capture` for a kind that is not made here.
    pub fn zeros(&self, dtype: DType, shape: &[usize], kind: BufferKind) -> Result<Tensor> {
        let tensor = self.uninit(dtype, shape, kind)?;
        if !tensor.is_empty() {
            let work = Work::Fill(0);
            let bindings = smallvec![tensor.binding(Access::Write)];
            self.encode_default(Encoded { label: "GpuRuntime::zeros", work, args: &[], bindings })?;
        }
        Ok(tensor)
    }

    /// A tensor whose contents are unspecified until they are written.
    ///
    /// # Errors
    /// As [`zeros`](Self::zeros).
    pub fn uninit(&self, dtype: DType, shape: &[usize], kind: BufferKind) -> Result<Tensor> {
        let op = "GpuRuntime::tensor";
        self.check_process(op)?;
        refuse_bump(kind)?;
        let bytes = bytes_of(op, dtype, shape)?;
        let memory = self.inner.memory.allocate(bytes, kind)?;
        Ok(Tensor::new(self, memory, dtype, shape, 0))
    }

    /// A Cold tensor with these elements in row-major order.
    ///
    /// # Errors
    /// `Shape` when the number of elements does not match, `OutOfMemory`.
    pub fn from_slice<T: Element>(&self, data: &[T], shape: &[usize]) -> Result<Tensor> {
        let tensor = self.uninit(T::DTYPE, shape, BufferKind::Cold)?;
        tensor.write(data)?;
        Ok(tensor)
    }

    /// Imports memory of the caller's as a tensor of bytes; views give it its real shape. Imports that overlap share
    /// one hazard identity.
    ///
    /// # Safety
    /// `ptr` is memory that this device can use, `bytes` long, and stays so until `keep_alive` is dropped, which happens
    /// when the last tensor and the last command using it are gone. Nobody else writes it, or reads what commands
    /// write, without waiting for them. Work of others on it has finished (`ready`) before this call.
    ///
    /// # Errors
    /// `Layout` for a null pointer.
    pub unsafe fn from_external(
        &self,
        ptr: *mut u8,
        bytes: usize,
        keep_alive: impl Any + Send + Sync,
    ) -> Result<Tensor> {
        let op = "GpuRuntime::from_external";
        self.check_process(op)?;
        if ptr.is_null() {
            return Err(Error::layout(op, "ptr", "null", "it must point to device memory"));
        }
        // SAFETY: the caller's promise: the memory stays valid while `keep_alive` lives, which the allocation holds.
        let raw = unsafe { self.inner.backend.import(ptr, bytes as u64) }?;
        let memory = self.inner.memory.import(raw, Box::new(keep_alive));
        Ok(Tensor::new(self, memory, DType::U8, &[bytes], 0))
    }

    pub(crate) fn memory(&self) -> &Arc<Memory> {
        &self.inner.memory
    }

    pub(crate) fn is_same(&self, other: &GpuRuntime) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    pub(crate) fn check_process(&self, op: &'static str) -> Result<()> {
        if self.inner.born.is_this_process() { Ok(()) } else { Err(Error::Forked { op }) }
    }

    /// A number that no other living runtime of this process has.
    pub(crate) fn identity(&self) -> usize {
        Arc::as_ptr(&self.inner) as usize
    }

    pub(crate) fn encode_default(&self, encoded: Encoded<'_>) -> Result<()> {
        refuse_default(self, encoded.label)?;
        self.inner.default_stream.encode(encoded)
    }

    /// The stream an op goes to: the one it names, or the default one.
    pub(crate) fn encode_on(&self, stream: Option<&Stream>, encoded: Encoded<'_>) -> Result<()> {
        match stream {
            Some(stream) => stream.encode(encoded),
            None => self.encode_default(encoded),
        }
    }

    /// As [`encode_on`](Self::encode_on), for commands that nothing may come between.
    pub(crate) fn encode_all_on<const N: usize>(
        &self,
        stream: Option<&Stream>,
        commands: [Encoded<'_>; N],
    ) -> Result<()> {
        if let Some(stream) = stream {
            return stream.encode_all(commands);
        }
        commands.iter().try_for_each(|c| refuse_default(self, c.label))?;
        self.inner.default_stream.encode_all(commands)
    }

    /// Waits for the stream that an op goes to; does nothing while that stream captures.
    pub(crate) fn finish(&self, stream: Option<&Stream>) -> Result<()> {
        let core = stream.map_or(&self.inner.default_stream, |s| s.core());
        if core.is_capturing() { Ok(()) } else { core.synchronize() }
    }

    /// Scratch memory of the stream an op goes to, as a binding; `None` when the plan needs none.
    pub(crate) fn scratch(&self, stream: Option<&Stream>, op: &'static str, bytes: u64) -> Result<Option<Binding>> {
        if bytes == 0 {
            return Ok(None);
        }
        let core = stream.map_or(&self.inner.default_stream, |s| s.core());
        let memory = core.scratch(op, bytes)?;
        Ok(Some(Binding { memory, rect: Rect::linear(0, bytes), access: Access::Write }))
    }

    /// The plan for a problem, its kernel compiled; from the cache after the first time.
    pub(crate) fn prepare(&self, desc: &Desc) -> Result<Arc<Prepared>> {
        {
            let mut plans = lock(&self.inner.plans);
            plans.clock += 1;
            let clock = plans.clock;
            if let Some((prepared, used)) = plans.map.get_mut(desc) {
                *used = clock;
                return Ok(prepared.clone());
            }
        }
        let plan = crate::plan::plan(desc, self.profile())?;
        tracing::debug!(target: "tessl::plan", kernel = %plan.kernel.name, tile = ?plan.tile, grid = ?plan.grid,
            scratch = plan.scratch_bytes, reason = plan.reason, "planned");
        let pipeline = self.pipeline(&plan.kernel)?;
        let prepared = Arc::new(Prepared { plan, pipeline });
        let mut plans = lock(&self.inner.plans);
        let clock = plans.clock;
        if plans.map.len() >= PLAN_CACHE {
            let mut ages: Vec<u64> = plans.map.values().map(|(_, used)| *used).collect();
            let (_, &mut bound, _) = ages.select_nth_unstable(PLAN_CACHE / 4);
            plans.map.retain(|_, (_, used)| *used > bound);
        }
        plans.map.insert(desc.clone(), (prepared.clone(), clock));
        Ok(prepared)
    }

    /// A plan given by the caller, which must be one that the problem could have.
    pub(crate) fn prepare_candidate(&self, op: &'static str, desc: &Desc, plan: &Plan) -> Result<Arc<Prepared>> {
        if !crate::plan::candidates(desc, self.profile())?.contains(plan) {
            let what = format!("plan `{}`, which is none of the candidates of this problem", plan.reason);
            return Err(Error::unsupported(op, what, self.info().kind.name()));
        }
        Ok(Arc::new(Prepared { plan: plan.clone(), pipeline: self.pipeline(&plan.kernel)? }))
    }

    fn pipeline(&self, key: &KernelKey) -> Result<PipelineId> {
        if let Some(&id) = self.inner.pipelines.read().unwrap_or_else(|e| e.into_inner()).get(key) {
            return Ok(id);
        }
        let id = self.inner.backend.pipeline(key)?;
        self.inner.pipelines.write().unwrap_or_else(|e| e.into_inner()).insert(key.clone(), id);
        Ok(id)
    }

    /// Waits until no unfinished command conflicts with a host access of `tensor`. No such command can be encoded while
    /// the answer is held.
    pub(crate) fn host_access<'t>(
        &self,
        tensor: &'t Tensor,
        access: Access,
        op: &'static str,
    ) -> Result<MutexGuard<'t, Hazards>> {
        let memory = tensor.memory();
        let mut rect = tensor.rect();
        rect.offset += memory.identity_offset();
        loop {
            let hazards = memory.hazards();
            let waits = hazards.host_access(access, rect);
            if waits.is_empty() {
                return Ok(hazards);
            }
            drop(hazards);
            for wait in waits {
                match wait.progress.core.upgrade() {
                    Some(core) => {
                        core.refuse_in_capture(op)?;
                        core.wait(wait.seq, None)?;
                    }
                    None if wait.progress.has_failed(wait.seq) => {
                        return Err(Error::Poisoned {
                            op,
                            failed: "a stream that was dropped before it was recovered",
                        });
                    }
                    None => {
                        wait.progress.queue.wait(wait.seq, None)?;
                    }
                }
            }
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.default_stream.retire_for_good();
    }
}
