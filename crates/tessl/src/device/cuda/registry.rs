//! Compiled modules and kernels of one device. A module is one source with one set of constants.

use super::context::Context;
use super::driver::{CUfunction, CUmodule, number};
use super::nvrtc::Nvrtc;
use super::tensor_map::Maps;
use super::{elf, source};
use crate::device::PipelineId;
use crate::device::cache::{self, Cache};
use crate::error::{Error, Result, Scope};
use crate::plan::KernelKey;
use std::collections::HashMap;
use std::ffi::CString;
use std::ptr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

/// One kernel, ready to launch.
#[derive(Clone, Copy)]
pub(super) struct Pipeline {
    pub(super) function: CUfunction,
    /// The kernel may report faults: it takes the status block and its sequence number as last parameters.
    pub(super) status: bool,
    /// Parameters that the kernel reads, where the driver can tell.
    pub(super) parameters: Option<usize>,
    /// The kernel takes tensor maps of its operands after the argument block.
    pub(super) maps: Option<Maps>,
    /// It waits for its predecessors itself and may be launched before they end.
    pub(super) dependent: bool,
}

// SAFETY: a function handle is valid in every thread for as long as its module is loaded.
unsafe impl Send for Pipeline {}
// SAFETY: as for Send.
unsafe impl Sync for Pipeline {}

struct Loaded {
    module: CUmodule,
    status: bool,
}

// SAFETY: a module handle is valid in every thread that has its context current.
unsafe impl Send for Loaded {}

/// A module being compiled by one thread while others wait; different modules compile at the same time.
type Slot = Arc<Mutex<Option<Loaded>>>;

/// The caller's own source.
struct UserLibrary {
    text: String,
    kernels: Vec<String>,
}

#[derive(Default)]
struct Names {
    libraries: HashMap<String, UserLibrary>,
    modules: HashMap<(String, Vec<String>), Slot>,
    pipelines: HashMap<KernelKey, PipelineId>,
}

/// Everything compiled for one device.
pub(super) struct Registry {
    context: Arc<Context>,
    nvrtc: &'static Nvrtc,
    cache: Option<Cache>,
    sm: u32,
    shared_bytes: u32,
    /// Kernels may be launched before their predecessors end.
    dependent: bool,
    names: Mutex<Names>,
    pipelines: RwLock<Vec<Pipeline>>,
}

impl Registry {
    pub(super) fn new(
        context: Arc<Context>,
        nvrtc: &'static Nvrtc,
        cache: Option<Cache>,
        sm: u32,
        shared_bytes: u32,
        dependent: bool,
    ) -> Self {
        let dependent = dependent && sm >= source::DEPENDENT_LAUNCH;
        let (names, pipelines) = Default::default();
        Registry { context, nvrtc, cache, sm, shared_bytes, dependent, names, pipelines }
    }

    /// The kernels by [`PipelineId`], for the length of one batch.
    pub(super) fn pipelines(&self) -> std::sync::RwLockReadGuard<'_, Vec<Pipeline>> {
        self.pipelines.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Compiles or finds a kernel.
    pub(super) fn pipeline(&self, key: &KernelKey) -> Result<PipelineId> {
        if let Some(id) = self.names().pipelines.get(key) {
            return Ok(*id);
        }
        let missing = || Error::Name {
            op: "pipeline",
            what: "kernel",
            name: format!("{}::{}", key.module, key.name).into(),
            taken: false,
        };
        let pipeline = if let Some(module) = source::module(&key.module) {
            let options = source::options(self.sm, key, module.one_entry());
            let status = source::module_declares_status(module);
            let pipeline = self.kernel(key, options, status, || module.source(), missing)?;
            Pipeline { dependent: self.dependent && module.waits(), ..pipeline }
        } else {
            let text = {
                let names = self.names();
                let library = names.libraries.get(&*key.module).ok_or_else(missing)?;
                library.kernels.iter().find(|k| **k == *key.name).ok_or_else(missing)?;
                library.text.clone()
            };
            let status = source::declares_status(&text);
            self.kernel(key, source::options(self.sm, key, false), status, || text, missing)?
        };
        let mut names = self.names();
        if let Some(id) = names.pipelines.get(key) {
            return Ok(*id); // another thread was faster; both kernels come from the same module
        }
        let mut pipelines = self.pipelines.write().unwrap_or_else(PoisonError::into_inner);
        let id = PipelineId(u32::try_from(pipelines.len()).expect("INVARIANT: fewer kernels than 2^32"));
        pipelines.push(pipeline);
        names.pipelines.insert(key.clone(), id);
        Ok(id)
    }

    /// Compiles a caller's source and registers its kernels.
    pub(super) fn add_source(&self, name: &str, text: String) -> Result<()> {
        let taken = |what, name: &str| Error::Name { op: "add_library", what, name: name.into(), taken: true };
        if source::module(name).is_some() || self.names().libraries.contains_key(name) {
            return Err(taken("library", name));
        }
        let key = KernelKey { module: name.to_owned().into(), name: "".into(), constants: Default::default() };
        let cubin = self.cubin(name, &text, &source::options(self.sm, &key, false))?;
        let kernels = elf::kernels(&cubin);
        let mut names = self.names();
        // Asked again under the lock, so that of two threads one gets the error.
        if names.libraries.contains_key(name) {
            return Err(taken("library", name));
        }
        let known = |kernel: &&String| names.libraries.values().any(|l| l.kernels.contains(kernel));
        if let Some(kernel) = kernels.iter().find(known) {
            return Err(taken("kernel", kernel));
        }
        names.libraries.insert(name.to_owned(), UserLibrary { text, kernels });
        Ok(())
    }

    fn names(&self) -> MutexGuard<'_, Names> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn kernel(
        &self,
        key: &KernelKey,
        options: Vec<String>,
        status: bool,
        text: impl FnOnce() -> String,
        missing: impl Fn() -> Error,
    ) -> Result<Pipeline> {
        let slot = self.names().modules.entry((key.module.to_string(), options.clone())).or_default().clone();
        let mut slot = slot.lock().unwrap_or_else(PoisonError::into_inner);
        let loaded = match &mut *slot {
            Some(loaded) => loaded,
            empty => {
                let cubin = self.cubin(&key.module, &text(), &options)?;
                empty.insert(Loaded { module: self.load(&key.module, &cubin)?, status })
            }
        };
        self.function(key, loaded, missing)
    }

    fn function(&self, key: &KernelKey, loaded: &Loaded, missing: impl Fn() -> Error) -> Result<Pipeline> {
        const NOT_FOUND: u32 = 500;
        let driver = self.context.driver;
        self.context.enter()?;
        let name = CString::new(&*key.name).map_err(|_| missing())?;
        let mut function = ptr::null_mut();
        // SAFETY: the module is loaded and the name is a C string.
        let code = unsafe { (driver.f.module_function)(&mut function, loaded.module, name.as_ptr()) };
        if code == NOT_FOUND {
            return Err(missing());
        }
        driver.check(code, "cuModuleGetFunction", || key.name.to_string())?;
        let mut fixed = 0;
        // SAFETY: the function was just found; the pointer is valid for one int.
        let code = unsafe { (driver.f.function_get)(&mut fixed, number::FUNC_STATIC_SHARED, function) };
        driver.check(code, "cuFuncGetAttribute", || key.name.to_string())?;
        // All that the device can give beside the kernel's own: the plan decides how much a launch takes.
        let dynamic = i32::try_from(self.shared_bytes).unwrap_or(i32::MAX).saturating_sub(fixed).max(0);
        // SAFETY: as above.
        let code = unsafe { (driver.f.function_set)(function, number::FUNC_MAX_DYNAMIC_SHARED, dynamic) };
        driver.check(code, "cuFuncSetAttribute", || format!("{}: {dynamic} bytes of shared memory", key.name))?;
        let (parameters, maps) = (driver.parameters(function), Maps::of(key));
        Ok(Pipeline { function, status: loaded.status, parameters, maps, dependent: false })
    }

    /// The cubin of a source, from the cache or the compiler.
    fn cubin(&self, name: &str, text: &str, options: &[String]) -> Result<Vec<u8>> {
        let prelude = source::prelude();
        let (major, minor) = self.nvrtc.version;
        let versions = format!("{} nvrtc {major}.{minor}", env!("CARGO_PKG_VERSION"));
        let fixed = [versions.as_bytes(), prelude.as_bytes(), text.as_bytes()];
        let key = cache::key(fixed.into_iter().chain(options.iter().map(String::as_bytes)));
        if let Some(found) = self.cache.as_ref().and_then(|c| c.load(&key)) {
            return Ok(found);
        }
        let started = std::time::Instant::now();
        let compiled = self.nvrtc.compile(name, text, &[(source::USER_HEADER, &prelude)], options)?;
        tracing::debug!(
            target: "tessl::cuda",
            "compiled {name} {options:?} in {} ms: {}",
            started.elapsed().as_millis(),
            compiled.log
        );
        if let Some(cache) = &self.cache {
            cache.store(&key, &compiled.cubin);
        }
        Ok(compiled.cubin)
    }

    fn load(&self, name: &str, cubin: &[u8]) -> Result<CUmodule> {
        if !elf::is_elf(cubin) {
            return Err(Error::device("cuModuleLoadData", 0, format!("{name}: not a cubin"), Scope::Call));
        }
        self.context.enter()?;
        let mut module = ptr::null_mut();
        // SAFETY: the context is current and the image is a whole ELF file, whose length the driver reads from it.
        let code = unsafe { (self.context.driver.f.module_load)(&mut module, cubin.as_ptr().cast()) };
        self.context.driver.check(code, "cuModuleLoadData", || name.to_owned())?;
        Ok(module)
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        if !self.context.enter_quietly() {
            return;
        }
        let names = self.names.get_mut().unwrap_or_else(PoisonError::into_inner);
        for slot in names.modules.values() {
            if let Some(loaded) = &*slot.lock().unwrap_or_else(PoisonError::into_inner) {
                // SAFETY: queues and graphs hold the registry, so nothing runs from this module any more.
                unsafe { (self.context.driver.f.module_unload)(loaded.module) };
            }
        }
    }
}
