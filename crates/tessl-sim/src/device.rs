//! A tessl device that runs Metal plans on the executor: the whole library, from API to kernel text, without a Mac.

use crate::Module;
use crate::launch::{Launch, Schedule, available, kernels, launch};
use std::alloc::Layout;
use std::any::Any;
use std::ffi::c_void;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, RwLock};
use std::time::Instant;
use tessl::device::{Backend, FaultRecord, Fence, MemoryUse, PROFILES, PipelineId, Queue, RawMemory, STATUS_WORDS};
use tessl::plan::KernelKey;
use tessl::stream::{Batch, Binding, Command, Work};
use tessl::{DeviceInfo, DeviceKind, DeviceProfile, Error, GpuRuntime, Library, Result, RuntimeOptions, Scope};

/// Allocations start at multiples of this, as on Apple GPUs.
const ALIGN: usize = 256;
/// New memory is filled with this, so that nothing works because memory happened to be zero.
const POISON: u8 = 0xA5;

/// A simulated Apple GPU.
pub struct SimDevice {
    info: DeviceInfo,
    profile: &'static DeviceProfile,
    schedule: Schedule,
    pipelines: Arc<RwLock<Vec<Pipeline>>>,
    /// Kernels that take the place of those of the same name.
    module: Option<Arc<Module>>,
}

/// A kernel with its constants.
#[derive(Clone)]
struct Pipeline {
    /// Where it is from, unless it was compiled with this crate.
    module: Option<Arc<Module>>,
    name: String,
    constants: Vec<(&'static str, f64)>,
    /// Pointers that the kernel takes.
    nargs: usize,
}

struct SimQueue {
    schedule: Schedule,
    pipelines: Arc<RwLock<Vec<Pipeline>>>,
    completed: AtomicU64,
    changed: (Mutex<()>, Condvar),
    fault: Mutex<Option<FaultRecord>>,
}

/// A runtime on a simulated Apple GPU with the named profile (`m2`, `m5-pro`), executing in the order of `schedule`.
///
/// # Errors
/// `Unavailable` where kernels could not be built or cannot run; the message says what to install.
pub fn open(profile: &str, schedule: Schedule, options: &RuntimeOptions) -> Result<GpuRuntime> {
    GpuRuntime::with_backend(Arc::new(SimDevice::new(profile, schedule)?), options)
}

impl SimDevice {
    /// A device with the named profile.
    ///
    /// # Errors
    /// As [`open`].
    pub fn new(profile: &str, schedule: Schedule) -> Result<Self> {
        available().map_err(|reason| Error::unavailable("metal-sim", reason, None))?;
        let known = PROFILES.iter().copied().flatten().find(|p| p.name == profile && p.kind == DeviceKind::Metal);
        let profile = known
            .ok_or_else(|| Error::unavailable("metal-sim", format!("no Metal profile is called `{profile}`"), None))?;
        let info = DeviceInfo {
            id: "metal-sim".to_owned(),
            kind: DeviceKind::Metal,
            name: format!("simulated Apple GPU ({}, {schedule:?})", profile.name),
            profile: profile.name.to_owned(),
            memory_bytes: 0,
            unified_memory: true,
            driver: "tessl-sim".to_owned(),
            missing: None,
            help: None,
        };
        Ok(SimDevice { info, profile, schedule, pipelines: Arc::default(), module: None })
    }

    /// The same device, with the kernels of `module` instead of those of the same name.
    pub fn with_module(mut self, module: Module) -> Self {
        self.module = Some(Arc::new(module));
        self
    }
}

fn layout(bytes: u64) -> Option<Layout> {
    Layout::from_size_align(usize::try_from(bytes.max(1)).ok()?, ALIGN).ok()
}

impl Backend for SimDevice {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn profile(&self) -> &DeviceProfile {
        self.profile
    }

    fn allocate(&self, bytes: u64, _usage: MemoryUse) -> Result<RawMemory> {
        let out_of_memory = Error::OutOfMemory { requested: bytes, in_use: 0, limit: u64::MAX };
        let Some(layout) = layout(bytes) else { return Err(out_of_memory) };
        // SAFETY: the layout has a size of at least one byte.
        let host = unsafe { std::alloc::alloc(layout) };
        if host.is_null() {
            return Err(out_of_memory);
        }
        // SAFETY: freshly allocated with this size.
        unsafe { host.write_bytes(POISON, layout.size()) };
        Ok(RawMemory { device: host as u64, host, bytes, token: bytes })
    }

    unsafe fn free(&self, memory: RawMemory) {
        if let Some(layout) = layout(memory.token) {
            // SAFETY: allocated above with the same layout (`token` is the size asked for); freed once.
            unsafe { std::alloc::dealloc(memory.host, layout) };
        }
    }

    fn pipeline(&self, key: &KernelKey) -> Result<PipelineId> {
        let own = self.module.as_ref().and_then(|m| m.kernels().into_iter().find(|k| k.name == key.name));
        let module = self.module.clone().filter(|_| own.is_some());
        let Some(kernel) = own.or_else(|| kernels().into_iter().find(|k| k.name == key.name)) else {
            return Err(Error::Name { op: "pipeline", what: "kernel", name: key.name.as_ref().into(), taken: false });
        };
        let constants = key.constants.iter().map(|&(name, value)| (name, f64::from(value))).collect();
        let nargs = usize::try_from(kernel.nargs).unwrap_or(usize::MAX);
        let mut pipelines = self.pipelines.write().unwrap_or_else(|e| e.into_inner());
        let id = u32::try_from(pipelines.len()).unwrap_or(u32::MAX);
        pipelines.push(Pipeline { module, name: kernel.name, constants, nargs });
        Ok(PipelineId(id))
    }

    fn add_library(&self, _library: Library) -> Result<()> {
        Err(Error::unsupported("add_library", "loading own kernels (use tessl_sim::Module)", "metal-sim"))
    }

    fn queue(&self) -> Result<Arc<dyn Queue>> {
        Ok(Arc::new(SimQueue {
            schedule: self.schedule,
            pipelines: self.pipelines.clone(),
            completed: AtomicU64::new(0),
            changed: (Mutex::new(()), Condvar::new()),
            fault: Mutex::new(None),
        }))
    }
}

impl SimQueue {
    /// # Safety
    /// As [`Queue::submit`] for one command.
    unsafe fn execute(&self, batch: &Batch, command: &Command) -> Result<()> {
        let bindings = batch.bindings(command);
        match &command.work {
            Work::Kernel { pipeline, grid, threads, .. } => {
                let pipelines = self.pipelines.read().unwrap_or_else(|e| e.into_inner());
                let kernel = &pipelines[pipeline.0 as usize];
                let args = batch.args(command);
                let mut pointers: Vec<*mut c_void> = bindings.iter().map(|b| b.host_address().cast()).collect();
                if !args.is_empty() {
                    pointers.push(args.as_ptr().cast_mut().cast());
                }
                let mut status = [0u32; STATUS_WORDS];
                #[allow(clippy::cast_possible_truncation, reason = "kernels get the low half of the number")]
                let mut seq = command.seq as u32;
                if kernel.nargs == pointers.len() + 2 {
                    pointers.push(status.as_mut_ptr().cast());
                    pointers.push((&raw mut seq).cast());
                }
                let description = Launch {
                    kernel: &kernel.name,
                    constants: &kernel.constants,
                    grid: *grid,
                    threads: *threads,
                    args: &pointers,
                    schedule: self.schedule,
                };
                // SAFETY: the caller's promise covers the bindings; arguments and status block outlive the call.
                let outcome = unsafe {
                    match &kernel.module {
                        Some(module) => module.launch(&description),
                        None => launch(&description),
                    }
                };
                outcome.map_err(|message| Error::device(command.label, -1, message, Scope::Stream))?;
                if let Some(record) = FaultRecord::decode(status) {
                    self.fault.lock().unwrap_or_else(|e| e.into_inner()).get_or_insert(record);
                }
            }
            Work::Copy => {
                let (from, to) = (&bindings[0], &bindings[1]);
                for row in 0..from.rect.rows {
                    // SAFETY: rectangles lie inside their allocations; `copy` allows overlap.
                    unsafe { std::ptr::copy(row_of(from, row), row_of(to, row), width(from)) };
                }
            }
            Work::Fill(byte) => {
                let to = &bindings[0];
                for row in 0..to.rect.rows {
                    // SAFETY: the rectangle lies inside its allocation.
                    unsafe { row_of(to, row).write_bytes(*byte, width(to)) };
                }
            }
        }
        Ok(())
    }
}

/// The order in which `n` independent commands run.
fn order(n: usize, schedule: Schedule) -> Vec<usize> {
    let mut order: Vec<usize> = (0..n).collect();
    match schedule {
        Schedule::Forward => {}
        Schedule::Backward => order.reverse(),
        Schedule::Random(seed) => {
            let mut state = u64::from(seed) ^ 0x9e37_79b9_7f4a_7c15;
            for i in (1..n).rev() {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let draw = usize::try_from(state >> 33).unwrap_or(0);
                order.swap(i, draw % (i + 1));
            }
        }
    }
    order
}

fn width(binding: &Binding) -> usize {
    usize::try_from(binding.rect.width).unwrap_or(usize::MAX)
}

fn row_of(binding: &Binding, row: u64) -> *mut u8 {
    let distance = usize::try_from(row * binding.rect.pitch).unwrap_or(usize::MAX);
    binding.host_address().wrapping_add(distance)
}

impl Queue for SimQueue {
    unsafe fn submit(&self, batch: &Batch, fences: &[Fence], signal: u64) -> Result<()> {
        let mut outcome = Ok(());
        for fence in fences {
            outcome = outcome.and(fence.queue.wait(fence.value, None).map(|_| ()));
        }
        // Commands that no barrier separates may run in any order on a GPU, so the schedule orders them as well: a
        // barrier that the core forgot becomes a wrong number here.
        let mut rest = batch.commands();
        while !rest.is_empty() {
            let level = 1 + rest[1..].iter().take_while(|c| !c.barrier).count();
            for index in order(level, self.schedule) {
                if outcome.is_ok() {
                    // SAFETY: the caller's promise.
                    outcome = unsafe { self.execute(batch, &rest[index]) };
                }
            }
            rest = &rest[level..];
        }
        let _guard = self.changed.0.lock().unwrap_or_else(|e| e.into_inner());
        self.completed.fetch_max(signal, Ordering::AcqRel);
        self.changed.1.notify_all();
        outcome
    }

    fn completed(&self) -> u64 {
        self.completed.load(Ordering::Acquire)
    }

    fn wait(&self, signal: u64, deadline: Option<Instant>) -> Result<bool> {
        let mut guard = self.changed.0.lock().unwrap_or_else(|e| e.into_inner());
        while self.completed() < signal {
            guard = match deadline {
                None => self.changed.1.wait(guard).unwrap_or_else(|e| e.into_inner()),
                Some(deadline) => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return Ok(false);
                    }
                    self.changed.1.wait_timeout(guard, left).unwrap_or_else(|e| e.into_inner()).0
                }
            };
        }
        Ok(true)
    }

    fn take_fault(&self) -> Option<FaultRecord> {
        self.fault.lock().unwrap_or_else(|e| e.into_inner()).take()
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
