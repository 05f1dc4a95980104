//! Compiler, libraries and pipelines. A text of the repository runs as compiled with the simulator; any other is compiled
//! by it now.

use crate::archive::RecorderBody;
use crate::encoder::Size;
use crate::foundation::{Bag, array, class, fail, imp, properties, string, text};
use crate::memory::{Allocation, DEVICE, DeviceBody};
use crate::report::count;
use crate::runtime::{Class, Header, Methods, Sel, autorelease, body, make, release, retain};
use crate::sim::{Sabotage, Sim, Support};
use std::ffi::CStr;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use tessl_sim::{KernelInfo, Module};

static COMPILER: Class = Class::inner(c"MTL4Compiler");
static LIBRARY: Class = Class::inner(c"MTLLibrary");
pub static PIPELINE: Class = Class::inner(c"MTLComputePipelineState");
class!(OPTIONS, "_OBJC_CLASS_MTLCompileOptions", c"MTLCompileOptions", || make(&OPTIONS, Bag::default()));
class!(LIBRARY_DESCRIPTOR, "_OBJC_CLASS_MTL4LibraryDescriptor", c"MTL4LibraryDescriptor", || make(
    &LIBRARY_DESCRIPTOR,
    Bag::default()
));
class!(FUNCTION, "_OBJC_CLASS_MTL4LibraryFunctionDescriptor", c"MTL4LibraryFunctionDescriptor", || make(
    &FUNCTION,
    Bag::default()
));
class!(SPECIALIZED, "_OBJC_CLASS_MTL4SpecializedFunctionDescriptor", c"MTL4SpecializedFunctionDescriptor", || make(
    &SPECIALIZED,
    Bag::default()
));
class!(PIPELINE_DESCRIPTOR, "_OBJC_CLASS_MTL4ComputePipelineDescriptor", c"MTL4ComputePipelineDescriptor", || make(
    &PIPELINE_DESCRIPTOR,
    Bag::default()
));
class!(CONSTANTS, "_OBJC_CLASS_MTLFunctionConstantValues", c"MTLFunctionConstantValues", || make(
    &CONSTANTS,
    Constants::default()
));

/// `MTLLanguageVersion4_0`.
const VERSION_4: usize = 4 << 16;
/// `MTLDataTypeUInt` and `MTLDataTypeBool`.
const UINT: usize = 33;
const BOOL: usize = 53;
/// What every text of the repository starts with.
const PRELUDE: [&str; 8] = [
    include_str!("../../../tessl/kernels/prelude/metal.h"),
    include_str!("../../../tessl/kernels/prelude/args.h"),
    include_str!("../../../tessl/kernels/prelude/pack.h"),
    include_str!("../../../tessl/kernels/prelude/rows.h"),
    include_str!("../../../tessl/kernels/prelude/activation.h"),
    include_str!("../../../tessl/kernels/prelude/turn.h"),
    include_str!("../../../tessl/kernels/prelude/weights.h"),
    include_str!("../../../tessl/kernels/prelude/epilogue.h"),
];

/// The property that holds the width of the required threadgroup.
const REQUIRED: &CStr = c"setRequiredThreadsPerThreadgroup:";

/// A kernel with its constants.
pub struct Pipeline {
    pub name: String,
    pub constants: Vec<(String, f64)>,
    pub nargs: usize,
    pub writes: u32,
    pub max_threads: usize,
    /// The only number of threads it may be dispatched with; kernels with cooperative tensors need one.
    pub required: Option<usize>,
    pub module: Option<Arc<Module>>,
    /// Made for indirect command buffers.
    pub indirect: bool,
}

pub struct PipelineBody {
    pub pipeline: Arc<Pipeline>,
    pub allocation: Allocation,
}

struct CompilerBody {
    sim: Arc<Sim>,
    /// A serializer, or nil.
    recorder: *mut Header,
}

impl Drop for CompilerBody {
    fn drop(&mut self) {
        release(self.recorder);
    }
}

struct LibraryBody {
    /// Kernels with the threads that they allow.
    kernels: Vec<(KernelInfo, usize)>,
    module: Option<Arc<Module>>,
}

#[derive(Default)]
struct Constants(Mutex<Vec<(String, f64)>>);

/// Threads of `KERNEL(name, threads, ..`.
fn threads_of(source: &str, kernel: &str) -> usize {
    let after = source.split(&format!("KERNEL({kernel},")).nth(1).unwrap_or_default();
    after.split(',').next().and_then(|n| n.trim().parse().ok()).unwrap_or(1024)
}

fn library(name: &str, source: &str) -> Result<LibraryBody, String> {
    let own = source.replacen(&PRELUDE.join("\n"), "", 1);
    let names: Vec<&str> =
        own.lines().filter_map(|l| l.strip_prefix("KERNEL(")).filter_map(|l| l.split(',').next()).collect();
    let known = tessl_sim::kernels();
    let in_tree = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tessl/kernels");
    let is_ours = ["simt", "metal"].iter().any(|folder| {
        std::fs::read_to_string(in_tree.join(folder).join(format!("{name}.metal"))).is_ok_and(|t| own.ends_with(&t))
    });
    let (found, module) = if is_ours {
        (known.into_iter().filter(|k| names.contains(&k.name.as_str())).collect(), None)
    } else {
        let module = Arc::new(Module::compile(name, &own)?);
        (module.kernels(), Some(module))
    };
    let kernels: Vec<(KernelInfo, usize)> = found
        .into_iter()
        .map(|k: KernelInfo| {
            let threads = threads_of(&own, &k.name);
            (k, threads)
        })
        .collect();
    Ok(LibraryBody { kernels, module })
}

/// What a compile option must be for the numbers that the plans promise.
fn check_options(sim: &Sim, name: &str, options: *mut Header) {
    if options.is_null() {
        sim.report.add(format!("library `{name}` without compile options: fast math"));
        return;
    }
    // SAFETY: the property is an MTLCompileOptions.
    let options = unsafe { body::<Bag>(options) };
    let wanted = [(c"setLanguageVersion:", VERSION_4), (c"setMathMode:", 0), (c"setMathFloatingPointFunctions:", 1)];
    for (setter, value) in wanted {
        let forgotten = sim.is(Sabotage::FastMath) && setter == c"setMathMode:";
        let set = options.get(setter).filter(|_| !forgotten);
        if set != Some(value) {
            sim.report.add(format!("library `{name}`: {setter:?} is {set:?}, not {value}"));
        }
    }
}

/// How the names of kernels with cooperative tensors start.
pub const TENSOR_KERNELS: &str = "gemm_mpp";

/// The name of the kernel that a descriptor asks for.
fn kernel_name<'a>(d: *mut Header) -> &'a str {
    // SAFETY: the argument is a descriptor, its function a specialised one.
    unsafe {
        let function = body::<Bag>(body::<Bag>(d).object(c"setComputeFunctionDescriptor:"));
        text(body::<Bag>(function.object(c"setFunctionDescriptor:")).object(c"setName:"))
    }
}

/// The pipeline that a descriptor asks for.
pub fn pipeline(sim: &Sim, d: *mut Header) -> Result<Pipeline, String> {
    // SAFETY: the argument is a descriptor, its function one of the two kinds.
    let descriptor = unsafe { body::<Bag>(d) };
    // SAFETY: as above.
    let mut function = unsafe { body::<Bag>(descriptor.object(c"setComputeFunctionDescriptor:")) };
    let mut constants = Vec::new();
    if function.get(c"setFunctionDescriptor:").is_some() {
        let values = function.object(c"setConstantValues:");
        if !values.is_null() {
            // SAFETY: the property is an MTLFunctionConstantValues.
            constants = unsafe { body::<Constants>(values) }.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        }
        // SAFETY: as above.
        function = unsafe { body::<Bag>(function.object(c"setFunctionDescriptor:")) };
    }
    let name = text(function.object(c"setName:"));
    let wanted = descriptor.get(c"setSupportIndirectCommandBuffers:").unwrap_or(0) == 1;
    if wanted && sim.state().faults.no_indirect.as_deref().is_some_and(|start| name.starts_with(start)) {
        return Err(format!("`{name}` is not usable with indirect command buffers"));
    }
    // SAFETY: the property is a library.
    let library = unsafe { body::<LibraryBody>(function.object(c"setLibrary:")) };
    let found = library.kernels.iter().find(|k| k.0.name == name);
    let (kernel, max_threads) = found.ok_or_else(|| format!("no function `{name}`"))?;
    let constants = if sim.is(Sabotage::NoConstants) { Vec::new() } else { constants };
    Ok(Pipeline {
        name: name.to_owned(),
        constants,
        nargs: kernel.nargs as usize,
        writes: kernel.writes_mask,
        max_threads: *max_threads,
        required: descriptor.get(REQUIRED).filter(|_| !sim.is(Sabotage::NoRequiredThreads)),
        module: library.module.clone(),
        indirect: wanted && !sim.is(Sabotage::NoIndirectSupport),
    })
}

pub fn finish(sim: &Arc<Sim>, made: Pipeline) -> *mut Header {
    let allocation = Allocation::inner(sim, "a pipeline", 4096);
    make(&PIPELINE, PipelineBody { pipeline: Arc::new(made), allocation })
}

pub fn device_methods(m: &mut Methods) {
    m.add(
        &DEVICE,
        c"newCompilerWithDescriptor:error:",
        imp!(|this: *mut Header, _s: Sel, d: *mut Header, _e: *mut *mut Header| -> *mut Header {
            // SAFETY: the receiver is a device, the argument a descriptor.
            let (sim, descriptor) = unsafe { (&body::<DeviceBody>(this).0, body::<Bag>(d)) };
            let recorder = retain(descriptor.object(c"setPipelineDataSetSerializer:"));
            make(&COMPILER, CompilerBody { sim: sim.clone(), recorder })
        }),
    );
    m.add(
        &DEVICE,
        c"newLibraryWithURL:error:",
        imp!(|this: *mut Header, _s: Sel, url: *mut Header, out: *mut *mut Header| -> *mut Header {
            // SAFETY: the receiver is a device.
            let _ = unsafe { body::<DeviceBody>(this) };
            // A compiled library, for the mock, is its source.
            let name = Path::new(text(url)).file_stem().map(|s| s.to_string_lossy().into_owned()).unwrap_or_default();
            let made = std::fs::read_to_string(text(url)).map_err(|e| e.to_string()).and_then(|s| library(&name, &s));
            match made {
                Ok(made) => make(&LIBRARY, made),
                // SAFETY: the caller's error pointer.
                Err(message) => unsafe { fail(out, 3, &message) },
            }
        }),
    );
}

pub fn register(m: &mut Methods) {
    m.add(
        &COMPILER,
        c"newLibraryWithDescriptor:error:",
        imp!(|this: *mut Header, _s: Sel, d: *mut Header, out: *mut *mut Header| -> *mut Header {
            // SAFETY: the receiver is a compiler, the argument a descriptor.
            let (sim, descriptor) = unsafe { (&body::<CompilerBody>(this).sim, body::<Bag>(d)) };
            let name = text(descriptor.object(c"setName:"));
            check_options(sim, name, descriptor.object(c"setOptions:"));
            let injected = sim.state().faults.compile.take();
            let made = match injected {
                Some(message) => Err(message),
                None => library(name, text(descriptor.object(c"setSource:"))),
            };
            match made {
                Ok(made) => make(&LIBRARY, made),
                // SAFETY: the caller's error pointer.
                Err(message) => unsafe { fail(out, 3, &message) },
            }
        }),
    );
    m.add(
        &COMPILER,
        c"newComputePipelineStateWithDescriptor:compilerTaskOptions:error:",
        imp!(|this: *mut Header, _s: Sel, d: *mut Header, _o: *mut Header, out: *mut *mut Header| -> *mut Header {
            // SAFETY: the receiver is a compiler.
            let compiler = unsafe { body::<CompilerBody>(this) };
            let sim = &compiler.sim;
            count(&sim.counters.pipelines);
            let now = sim.counters.compiling.fetch_add(1, Ordering::SeqCst) + 1;
            sim.counters.compiling_peak.fetch_max(now, Ordering::SeqCst);
            std::thread::sleep(sim.config.compile_time);
            sim.counters.compiling.fetch_sub(1, Ordering::SeqCst);
            let tensors = sim.config.tensor_ops == Support::Refused && kernel_name(d).starts_with(TENSOR_KERNELS);
            let injected = sim.state().faults.pipeline.take();
            if let Some(message) = injected.or(tensors.then(|| "no matrix units".to_owned())) {
                // SAFETY: the caller's error pointer.
                return unsafe { fail(out, 2, &message) };
            }
            match pipeline(sim, d) {
                Ok(made) => {
                    if !compiler.recorder.is_null() {
                        // SAFETY: the property is a serializer.
                        unsafe { body::<RecorderBody>(compiler.recorder) }.push(&made);
                    }
                    finish(sim, made)
                }
                // SAFETY: the caller's error pointer.
                Err(message) => unsafe { fail(out, 1, &message) },
            }
        }),
    );
    m.add(
        &LIBRARY,
        c"functionNames",
        imp!(|this: *mut Header, _s: Sel| -> *mut Header {
            // SAFETY: the receiver is a library.
            let library = unsafe { body::<LibraryBody>(this) };
            autorelease(array(library.kernels.iter().map(|k| string(&k.0.name)).collect()))
        }),
    );
    m.add(&PIPELINE, c"threadExecutionWidth", imp!(|_this: *mut Header, _s: Sel| -> usize { 32 }));
    m.add(
        &PIPELINE,
        c"maxTotalThreadsPerThreadgroup",
        imp!(|this: *mut Header, _s: Sel| -> usize {
            // SAFETY: the receiver is a pipeline.
            unsafe { body::<PipelineBody>(this) }.pipeline.max_threads
        }),
    );
    m.add(
        &CONSTANTS,
        c"setConstantValue:type:withName:",
        imp!(|this: *mut Header, _s: Sel, value: *const u8, kind: usize, name: *mut Header| -> () {
            // SAFETY: the caller passes a value of this type.
            let value = unsafe {
                match kind {
                    UINT => f64::from(value.cast::<u32>().read_unaligned()),
                    BOOL => f64::from(*value),
                    other => panic!("function constants of type {other}"),
                }
            };
            // SAFETY: the receiver is an MTLFunctionConstantValues.
            let constants = unsafe { body::<Constants>(this) };
            constants.0.lock().unwrap_or_else(PoisonError::into_inner).push((text(name).to_owned(), value));
        }),
    );
    m.add(
        &PIPELINE_DESCRIPTOR,
        REQUIRED,
        imp!(|this: *mut Header, sel: Sel, size: Size| -> () {
            // SAFETY: the receiver is a descriptor.
            unsafe { body::<Bag>(this) }.set_word(sel, size.width * size.height * size.depth);
        }),
    );
    properties(m, &OPTIONS, &[], &[c"setLanguageVersion:", c"setMathMode:", c"setMathFloatingPointFunctions:"]);
    properties(m, &LIBRARY_DESCRIPTOR, &[c"setName:", c"setSource:", c"setOptions:"], &[]);
    properties(m, &FUNCTION, &[c"setName:", c"setLibrary:"], &[]);
    properties(m, &SPECIALIZED, &[c"setFunctionDescriptor:", c"setConstantValues:"], &[]);
    properties(
        m,
        &PIPELINE_DESCRIPTOR,
        &[c"setLabel:", c"setComputeFunctionDescriptor:"],
        &[c"setThreadGroupSizeIsMultipleOfThreadExecutionWidth:", c"setSupportIndirectCommandBuffers:"],
    );
}
