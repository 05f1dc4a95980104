//! Compiled libraries and pipelines of one device.

use super::archive::Compilers;
use super::backend::Gpu;
use super::objects::{Obj, error, items, ns};
use crate::device::PipelineId;
use crate::device::cache::Cache;
use crate::device::metal::{source, transfer};
use crate::error::{Error, Result, Scope};
use crate::plan::KernelKey;
use objc2::runtime::ProtocolObject;
use objc2_foundation::NSURL;
use objc2_metal::{
    MTL4ComputePipelineDescriptor, MTL4IndirectCommandBufferSupportState, MTL4LibraryDescriptor,
    MTL4LibraryFunctionDescriptor, MTL4SpecializedFunctionDescriptor, MTLCompileOptions, MTLComputePipelineState,
    MTLDataType, MTLDevice, MTLFunctionConstantValues, MTLLanguageVersion, MTLLibrary, MTLMathFloatingPointFunctions,
    MTLMathMode, MTLSize,
};
use std::collections::HashMap;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock, RwLockReadGuard};

/// Threads of a simdgroup, on which every kernel counts.
const SIMD: usize = 32;

/// The module whose kernels use matrix units.
const TENSOR_OPS: &str = "matmul_tensorops";

/// One kernel, ready to run.
pub(super) struct Pipeline {
    pub(super) state: Obj<dyn MTLComputePipelineState>,
    /// The kernel may report faults: it takes the status block and its sequence number as last buffers.
    pub(super) reports: bool,
    /// Threads of a threadgroup, at most.
    pub(super) max_threads: u32,
    /// It may be in indirect command buffers.
    pub(super) indirect: bool,
    resident: AtomicBool,
}

impl Pipeline {
    /// Indirect command buffers refer to it from now on.
    pub(super) fn make_resident(&self, gpu: &Gpu) {
        if !self.resident.swap(true, Ordering::AcqRel) {
            gpu.residency.add(ProtocolObject::from_ref(&*self.state));
        }
    }
}

struct Compiled {
    handle: Obj<dyn MTLLibrary>,
    /// The text, for what reflection does not tell; `None` for a compiled library.
    text: Option<Arc<str>>,
    builtin: bool,
}

/// A library being compiled by one thread while others wait; different libraries compile at the same time.
type Slot = Arc<Mutex<Option<Arc<Compiled>>>>;

#[derive(Default)]
struct Names {
    libraries: HashMap<String, Slot>,
    /// Kernels of the caller's libraries.
    kernels: HashMap<String, String>,
    pipelines: HashMap<KernelKey, PipelineId>,
}

/// Everything compiled for one device.
pub(super) struct Registry {
    compilers: Compilers,
    /// Kernels are made fit for indirect command buffers.
    indirect: bool,
    names: Mutex<Names>,
    pipelines: RwLock<Vec<Pipeline>>,
    transfers: [OnceLock<PipelineId>; transfer::KERNELS.len()],
}

fn taken(what: &'static str, name: &str) -> Error {
    Error::Name { op: "add_library", what, name: name.into(), taken: true }
}

impl Registry {
    pub(super) fn new(device: &ProtocolObject<dyn MTLDevice>, cache: Option<Cache>, indirect: bool) -> Result<Self> {
        let compilers = Compilers::new(device, cache)?;
        let (names, pipelines) = (Mutex::default(), RwLock::default());
        Ok(Registry { compilers, indirect, names, pipelines, transfers: Default::default() })
    }

    /// What was found out about matrix units here by an earlier process.
    pub(super) fn verdict(&self) -> Option<Vec<u8>> {
        self.compilers.verdict(&source::module(TENSOR_OPS)?)
    }

    /// Keeps it for the next process.
    pub(super) fn keep_verdict(&self, verdict: &[u8]) {
        if let Some(text) = source::module(TENSOR_OPS) {
            self.compilers.keep_verdict(&text, verdict);
        }
    }

    /// The kernels by [`PipelineId`], for the length of one batch.
    pub(super) fn pipelines(&self) -> RwLockReadGuard<'_, Vec<Pipeline>> {
        self.pipelines.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn names(&self) -> MutexGuard<'_, Names> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Compiles or finds a kernel.
    pub(super) fn pipeline(&self, key: &KernelKey) -> Result<PipelineId> {
        if let Some(id) = self.names().pipelines.get(key) {
            return Ok(*id);
        }
        let compiled = self.compiled(key)?;
        let pipeline = self.build(key, &compiled)?;
        let mut names = self.names();
        if let Some(id) = names.pipelines.get(key) {
            return Ok(*id); // another thread was faster
        }
        let mut pipelines = self.pipelines.write().unwrap_or_else(PoisonError::into_inner);
        let id = PipelineId(u32::try_from(pipelines.len()).expect("INVARIANT: fewer kernels than 2^32"));
        pipelines.push(pipeline);
        names.pipelines.insert(key.clone(), id);
        Ok(id)
    }

    /// A kernel of `transfer`, compiled when a batch first needs one.
    pub(super) fn transfer(&self, kernel: usize) -> Result<PipelineId> {
        if let Some(id) = self.transfers[kernel].get() {
            return Ok(*id);
        }
        let id = self.pipeline(&transfer::key(kernel))?;
        Ok(*self.transfers[kernel].get_or_init(|| id))
    }

    /// Compiles a caller's source and registers its kernels.
    pub(super) fn add_source(&self, name: &str, text: &str) -> Result<()> {
        self.check_new(name)?;
        let text = source::user(text);
        let handle = self.compile(name, &text)?;
        self.add(name, Compiled { handle, text: Some(text.into()), builtin: false })
    }

    /// Loads a compiled library; it goes by its file's name without the ending.
    pub(super) fn add_metallib(&self, device: &ProtocolObject<dyn MTLDevice>, path: &Path) -> Result<()> {
        if let Err(source) = std::fs::File::open(path) {
            return Err(Error::Io { op: "add_library", path: path.into(), source });
        }
        let name = path.file_stem().map(|s| s.to_string_lossy().into_owned()).unwrap_or_default();
        self.check_new(&name)?;
        let url = NSURL::fileURLWithPath(&ns(&path.to_string_lossy()));
        let handle = device
            .newLibraryWithURL_error(&url)
            .map_err(|e| Error::Device(Box::new(error("newLibrary", &e, &path.to_string_lossy(), Scope::Call))))?;
        self.add(&name, Compiled { handle, text: None, builtin: false })
    }

    fn check_new(&self, name: &str) -> Result<()> {
        let known = source::module(name).is_some() || self.names().libraries.contains_key(name);
        if known { Err(taken("library", name)) } else { Ok(()) }
    }

    fn add(&self, name: &str, compiled: Compiled) -> Result<()> {
        let kernels: Vec<String> = items(&compiled.handle.functionNames()).map(|n| n.to_string()).collect();
        let mut names = self.names();
        // Asked again under the lock, so that of two threads one gets the error.
        if names.libraries.contains_key(name) {
            return Err(taken("library", name));
        }
        if let Some(kernel) = kernels.iter().find(|k| names.kernels.contains_key(*k)) {
            return Err(taken("kernel", kernel));
        }
        names.kernels.extend(kernels.into_iter().map(|kernel| (kernel, name.to_owned())));
        names.libraries.insert(name.to_owned(), Arc::new(Mutex::new(Some(Arc::new(compiled)))));
        Ok(())
    }

    /// The library of a kernel: the caller's, or one of our own, compiled at first use.
    fn compiled(&self, key: &KernelKey) -> Result<Arc<Compiled>> {
        let text = source::module(&key.module);
        let slot = {
            let mut names = self.names();
            match (names.libraries.get(&*key.module), &text) {
                (Some(slot), _) => slot.clone(),
                (None, Some(_)) => names.libraries.entry(key.module.to_string()).or_default().clone(),
                (None, None) => return Err(missing(key)),
            }
        };
        let mut slot = slot.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(compiled) = &*slot {
            return Ok(compiled.clone());
        }
        let text = text.ok_or_else(|| missing(key))?;
        let handle = self.compile(&key.module, &text)?;
        let compiled = Arc::new(Compiled { handle, text: Some(text.into()), builtin: true });
        Ok(slot.insert(compiled).clone())
    }

    fn compile(&self, name: &str, text: &str) -> Result<Obj<dyn MTLLibrary>> {
        let started = std::time::Instant::now();
        let options = MTLCompileOptions::new();
        options.setLanguageVersion(MTLLanguageVersion::Version4_0);
        options.setMathMode(MTLMathMode::Safe);
        options.setMathFloatingPointFunctions(MTLMathFloatingPointFunctions::Precise);
        let descriptor = MTL4LibraryDescriptor::new();
        descriptor.setName(Some(&ns(name)));
        descriptor.setSource(Some(&ns(text)));
        descriptor.setOptions(Some(&options));
        let handle = self.compilers.library(name, &descriptor);
        tracing::debug!(target: "tessl::metal", "compiled {name} in {} ms", started.elapsed().as_millis());
        handle
    }

    fn build(&self, key: &KernelKey, compiled: &Compiled) -> Result<Pipeline> {
        if !items(&compiled.handle.functionNames()).any(|n| n.to_string() == *key.name) {
            return Err(missing(key));
        }
        let function = MTL4LibraryFunctionDescriptor::new();
        function.setName(Some(&ns(&key.name)));
        function.setLibrary(Some(&compiled.handle));
        let specialized = MTL4SpecializedFunctionDescriptor::new();
        specialized.setFunctionDescriptor(Some(&function));
        let values = constants(key, compiled)?;
        specialized.setConstantValues(Some(&values));
        let descriptor = MTL4ComputePipelineDescriptor::new();
        // What a GPU trace shows for each dispatch.
        descriptor.setLabel(Some(&ns(&key.name)));
        descriptor.setComputeFunctionDescriptor(Some(&specialized));
        // Our own plans launch whole simdgroups only.
        descriptor.setThreadGroupSizeIsMultipleOfThreadExecutionWidth(compiled.builtin);
        if compiled.builtin && &*key.module == TENSOR_OPS {
            // Required where cooperative tensors are used; these kernels run with as many threads as they declare.
            let threads = compiled.text.as_deref().and_then(|text| source::threads(text, &key.name));
            let size = MTLSize { width: threads.unwrap_or(SIMD), height: 1, depth: 1 };
            descriptor.setRequiredThreadsPerThreadgroup(size);
        }
        let constants = format!("{:?}", key.constants);
        let make = |indirect: bool| -> Result<_> {
            let support = MTL4IndirectCommandBufferSupportState(indirect.into());
            descriptor.setSupportIndirectCommandBuffers(support);
            let kind: &[u8] = if indirect { b"indirect" } else { b"" };
            let parts = compiled.text.as_deref();
            let parts = parts.map(|text| [text.as_bytes(), key.name.as_bytes(), constants.as_bytes(), kind]);
            let state = self.compilers.pipeline(&descriptor, parts.as_ref().map(|p| p.as_slice()))?;
            Ok(state.map(|state| (state, indirect)))
        };
        let mut made = make(self.indirect)?;
        if self.indirect && made.is_err() {
            // Metal refuses some kernels for indirect command buffers; those are encoded at each replay.
            made = make(false)?;
        }
        let (state, indirect) =
            made.map_err(|e| Error::Device(Box::new(error("newComputePipelineState", &e, &key.name, Scope::Call))))?;
        if state.threadExecutionWidth() != SIMD {
            let what = format!("{}: simdgroups of {} threads", key.name, state.threadExecutionWidth());
            return Err(Error::unsupported("pipeline", what, "metal"));
        }
        let reports = compiled.text.as_deref().is_some_and(|text| source::reports(text, &key.name));
        let max_threads = u32::try_from(state.maxTotalThreadsPerThreadgroup()).unwrap_or(u32::MAX);
        if indirect != self.indirect {
            tracing::warn!(target: "tessl::metal", "`{}` cannot be in indirect command buffers", key.name);
        }
        Ok(Pipeline { state, reports, max_threads, indirect, resident: AtomicBool::new(false) })
    }
}

fn missing(key: &KernelKey) -> Error {
    let name = format!("{}::{}", key.module, key.name).into();
    Error::Name { op: "pipeline", what: "kernel", name, taken: false }
}

/// Values of the function constants, with the types that the text declares.
fn constants(key: &KernelKey, compiled: &Compiled) -> Result<objc2::rc::Retained<MTLFunctionConstantValues>> {
    let values = MTLFunctionConstantValues::new();
    for &(name, value) in &key.constants {
        let kind = compiled.text.as_deref().and_then(|text| source::constant_type(text, name));
        let truth = u8::from(value != 0);
        let (place, kind) = match kind {
            Some("bool") => (NonNull::from(&truth).cast(), MTLDataType::Bool),
            Some("uint") => (NonNull::from(&value).cast(), MTLDataType::UInt),
            _ => {
                return Err(Error::Name { op: "pipeline", what: "function constant", name: name.into(), taken: false });
            }
        };
        // SAFETY: the place holds a value of this type, which the call copies.
        unsafe { values.setConstantValue_type_withName(place, kind, &ns(name)) };
    }
    Ok(values)
}
