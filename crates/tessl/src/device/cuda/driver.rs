//! The driver's functions, resolved once through our own table.
//!
//! Every symbol is looked up when the library is opened, so a missing one is data. Types of structures come from
//! cudarc's generated bindings; results are plain integers, because a code that a newer driver invents would not be a
//! value of a Rust enum.

use super::loader::{self, Wanted};
use crate::error::{Error, Result, Scope};
use cudarc::driver::sys;
use libloading::Library;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::path::Path;

pub(super) use sys::{
    CUDA_KERNEL_NODE_PARAMS_v2 as KernelNode, CUDA_MEMCPY2D_v2 as Copy2d, CUDA_MEMCPY3D_v2 as Copy3d,
    CUDA_MEMSET_NODE_PARAMS_v1 as FillNode, CUcontext, CUevent, CUfunction, CUgraph, CUgraphEdgeData, CUgraphExec,
    CUgraphNode, CUlaunchAttribute, CUlaunchAttributeID, CUlaunchAttributeValue, CUlaunchConfig, CUmemorytype,
    CUmodule, CUstream,
};

/// A driver result.
pub(super) type Code = c_uint;

pub(super) const SUCCESS: Code = 0;
pub(super) const OUT_OF_MEMORY: Code = 2;
pub(super) const NOT_READY: Code = 600;

/// Codes after which every later call of the process fails: the context is lost.
const STICKY: &[Code] = &[3, 4, 46, 214, 220, 226, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 721, 999];

/// Numbers of driver enumerations that are passed as integers.
pub(super) mod number {
    use super::{c_int, c_uint};

    pub(in super::super) const MAX_GRID_X: c_int = 5;
    pub(in super::super) const MAX_PITCH: c_int = 11;
    pub(in super::super) const SM_COUNT: c_int = 16;
    pub(in super::super) const L2_BYTES: c_int = 38;
    pub(in super::super) const MAX_THREADS: c_int = 1;
    pub(in super::super) const CC_MAJOR: c_int = 75;
    pub(in super::super) const CC_MINOR: c_int = 76;
    pub(in super::super) const SHARED_OPTIN: c_int = 97;
    pub(in super::super) const STREAM_NON_BLOCKING: c_uint = 1;
    pub(in super::super) const EVENT_DISABLE_TIMING: c_uint = 2;
    pub(in super::super) const HOST_PORTABLE_MAPPED: c_uint = 3;
    pub(in super::super) const TENSOR_UINT16: c_uint = 1;
    pub(in super::super) const TENSOR_UINT32: c_uint = 2;
    pub(in super::super) const TENSOR_NO_INTERLEAVE: c_uint = 0;
    pub(in super::super) const TENSOR_SWIZZLE_128: c_uint = 3;
    pub(in super::super) const TENSOR_PROMOTE_256: c_uint = 3;
    pub(in super::super) const TENSOR_FILL_ZERO: c_uint = 0;
    pub(in super::super) const FUNC_STATIC_SHARED: c_int = 1;
    pub(in super::super) const FUNC_MAX_DYNAMIC_SHARED: c_int = 8;
}

/// `CUtensorMap`: what the copy engine knows about one operand, opaque. Aligned as the newest header asks.
#[derive(Clone, Copy)]
#[repr(C, align(128))]
pub(super) struct TensorMap(pub(super) [u64; 16]);

macro_rules! symbols {
    ($(fn $name:ident = $symbol:literal ($($arg:ty),* $(,)?);)*) => {
        /// The functions that this crate calls.
        #[derive(Clone, Copy)]
        pub(super) struct Functions {
            $(pub(super) $name: unsafe extern "C" fn($($arg),*) -> Code,)*
        }

        impl Functions {
            /// Resolves every symbol.
            ///
            /// # Safety
            /// `library` is the CUDA driver and stays open for as long as the table is used.
            unsafe fn resolve(library: &Library) -> Result<Self, String> {
                Ok(Functions {
                    $($name: {
                        // SAFETY: the caller says that this is the driver, whose versioned symbols have these types.
                        let found = unsafe { library.get::<unsafe extern "C" fn($($arg),*) -> Code>($symbol.as_bytes()) };
                        *found.map_err(|_| concat!("symbol ", $symbol, " is missing (driver too old)").to_owned())?
                    },)*
                })
            }
        }
    };
}

symbols! {
    fn init = "cuInit"(c_uint);
    fn driver_version = "cuDriverGetVersion"(*mut c_int);
    fn error_name = "cuGetErrorName"(Code, *mut *const c_char);
    fn error_string = "cuGetErrorString"(Code, *mut *const c_char);
    fn device_count = "cuDeviceGetCount"(*mut c_int);
    fn device_get = "cuDeviceGet"(*mut c_int, c_int);
    fn device_name = "cuDeviceGetName"(*mut c_char, c_int, c_int);
    fn device_memory = "cuDeviceTotalMem_v2"(*mut usize, c_int);
    fn device_attribute = "cuDeviceGetAttribute"(*mut c_int, c_int, c_int);
    fn primary_retain = "cuDevicePrimaryCtxRetain"(*mut CUcontext, c_int);
    fn primary_release = "cuDevicePrimaryCtxRelease_v2"(c_int);
    fn context_current = "cuCtxGetCurrent"(*mut CUcontext);
    fn context_set = "cuCtxSetCurrent"(CUcontext);
    fn memory_allocate = "cuMemAlloc_v2"(*mut u64, usize);
    fn memory_free = "cuMemFree_v2"(u64);
    fn host_allocate = "cuMemHostAlloc"(*mut *mut c_void, usize, c_uint);
    fn host_device_address = "cuMemHostGetDevicePointer_v2"(*mut u64, *mut c_void, c_uint);
    fn host_free = "cuMemFreeHost"(*mut c_void);
    fn module_load = "cuModuleLoadData"(*mut CUmodule, *const c_void);
    fn module_function = "cuModuleGetFunction"(*mut CUfunction, CUmodule, *const c_char);
    fn module_unload = "cuModuleUnload"(CUmodule);
    fn function_set = "cuFuncSetAttribute"(CUfunction, c_int, c_int);
    fn function_get = "cuFuncGetAttribute"(*mut c_int, c_int, CUfunction);
    fn stream_create = "cuStreamCreate"(*mut CUstream, c_uint);
    fn stream_destroy = "cuStreamDestroy_v2"(CUstream);
    fn stream_wait_event = "cuStreamWaitEvent"(CUstream, CUevent, c_uint);
    fn event_create = "cuEventCreate"(*mut CUevent, c_uint);
    fn event_record = "cuEventRecord"(CUevent, CUstream);
    fn event_query = "cuEventQuery"(CUevent);
    fn event_wait = "cuEventSynchronize"(CUevent);
    fn event_destroy = "cuEventDestroy_v2"(CUevent);
    fn launch = "cuLaunchKernelEx"(*const CUlaunchConfig, CUfunction, *mut *mut c_void, *mut *mut c_void);
    fn copy = "cuMemcpyAsync"(u64, u64, usize, CUstream);
    fn copy_2d = "cuMemcpy2DAsync_v2"(*const Copy2d, CUstream);
    fn fill = "cuMemsetD8Async"(u64, u8, usize, CUstream);
    fn fill_2d = "cuMemsetD2D8Async"(u64, usize, u8, usize, usize, CUstream);
    fn tensor_map = "cuTensorMapEncodeTiled"(
        *mut TensorMap, c_uint, c_uint, u64, *const u64, *const u64, *const c_uint, *const c_uint, c_uint, c_uint, c_uint, c_uint,
    );
    fn graph_create = "cuGraphCreate"(*mut CUgraph, c_uint);
    fn graph_kernel = "cuGraphAddKernelNode_v2"(*mut CUgraphNode, CUgraph, *const CUgraphNode, usize, *const KernelNode);
    fn graph_copy = "cuGraphAddMemcpyNode"(*mut CUgraphNode, CUgraph, *const CUgraphNode, usize, *const Copy3d, CUcontext);
    fn graph_fill = "cuGraphAddMemsetNode"(*mut CUgraphNode, CUgraph, *const CUgraphNode, usize, *const FillNode, CUcontext);
    fn graph_empty = "cuGraphAddEmptyNode"(*mut CUgraphNode, CUgraph, *const CUgraphNode, usize);
    fn graph_instantiate = "cuGraphInstantiateWithFlags"(*mut CUgraphExec, CUgraph, u64);
    fn graph_launch = "cuGraphLaunch"(CUgraphExec, CUstream);
    fn graph_exec_destroy = "cuGraphExecDestroy"(CUgraphExec);
    fn graph_destroy = "cuGraphDestroy"(CUgraph);
}

/// Tells how many parameters a kernel has; drivers since 12.4.
type ParamInfo = unsafe extern "C" fn(CUfunction, usize, *mut usize, *mut usize) -> Code;

/// Adds edges of a kind to a graph; drivers since 12.3.
pub(super) type AddEdges =
    unsafe extern "C" fn(CUgraph, *const CUgraphNode, *const CUgraphNode, *const CUgraphEdgeData, usize) -> Code;

/// The opened driver. Never closed: its threads and exit handlers outlive every owner.
pub(super) struct Driver {
    /// The functions.
    pub(super) f: Functions,
    /// `cuFuncGetParamInfo` where the driver has it.
    param_info: Option<ParamInfo>,
    /// `cuGraphAddDependencies_v2` where the driver has it.
    pub(super) add_edges: Option<AddEdges>,
    /// 13000 for CUDA 13.0.
    pub(super) version: c_int,
    _library: std::mem::ManuallyDrop<Library>,
}

impl Driver {
    /// Opens and initialises the driver.
    ///
    /// # Errors
    /// One line that names every path tried, or the driver's own answer.
    pub(super) fn load(user: Option<&Path>) -> Result<Self, String> {
        let mut driver = loader::find(Wanted::Driver, user, |library, _| {
            // SAFETY: a library of this name with these symbols is the driver; it is never closed.
            let f = unsafe { Functions::resolve(&library)? };
            // SAFETY: as above; the symbol's type is that of the CUDA header.
            let param_info = unsafe { library.get::<ParamInfo>(b"cuFuncGetParamInfo") }.ok().map(|s| *s);
            // SAFETY: as above.
            let add_edges = unsafe { library.get::<AddEdges>(b"cuGraphAddDependencies_v2") }.ok().map(|s| *s);
            Ok(Driver { f, param_info, add_edges, version: 0, _library: std::mem::ManuallyDrop::new(library) })
        })?;
        // SAFETY: no other driver call comes before this one; the flag word must be 0.
        let code = unsafe { (driver.f.init)(0) };
        if code != SUCCESS {
            return Err(format!("cuInit: {}", driver.text(code)));
        }
        // SAFETY: the pointer is valid for one int.
        let code = unsafe { (driver.f.driver_version)(&mut driver.version) };
        if code != SUCCESS {
            return Err(format!("cuDriverGetVersion: {}", driver.text(code)));
        }
        Ok(driver)
    }

    /// The code's name and explanation.
    pub(super) fn text(&self, code: Code) -> String {
        let look_up = |function: unsafe extern "C" fn(Code, *mut *const c_char) -> Code| {
            let mut text = std::ptr::null();
            // SAFETY: the driver stores a pointer to a static string, or null for codes it does not know.
            let found = unsafe { function(code, &mut text) } == SUCCESS && !text.is_null();
            // SAFETY: not null, hence a static C string.
            found.then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
        };
        match (look_up(self.f.error_name), look_up(self.f.error_string)) {
            (Some(name), Some(text)) => format!("{name}: {text}"),
            _ => format!("unknown driver code {code}"),
        }
    }

    /// An error for anything but success; `detail` is only computed for errors.
    pub(super) fn check(&self, code: Code, op: &'static str, detail: impl FnOnce() -> String) -> Result<()> {
        if code == SUCCESS { Ok(()) } else { Err(self.error(code, op, Scope::Call, &detail())) }
    }

    /// The typed error of a code. Sticky codes cost the runtime, others what `scope` says.
    pub(super) fn error(&self, code: Code, op: &'static str, scope: Scope, detail: &str) -> Error {
        let scope = if sticky(code) { Scope::Runtime } else { scope };
        let separator = if detail.is_empty() { "" } else { ": " };
        Error::device(op, i64::from(code), format!("{detail}{separator}{}", self.text(code)), scope)
    }

    /// The number of a kernel's parameters, where the driver can tell.
    pub(super) fn parameters(&self, function: CUfunction) -> Option<usize> {
        let ask = self.param_info?;
        (0..)
            // SAFETY: the driver checks the index and stores two sizes.
            .position(|i| unsafe { ask(function, i, &mut 0, &mut 0) } != SUCCESS)
    }
}

/// Whether the context is lost after this code.
pub(super) fn sticky(code: Code) -> bool {
    STICKY.contains(&code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sticky_codes_are_those_of_a_lost_context() {
        assert!([700, 719, 716].into_iter().all(sticky));
        // Invalid value, out of memory, not ready, launch out of resources: the context goes on.
        assert!(![0, 1, 2, 600, 701].into_iter().any(sticky));
    }

    #[test]
    fn a_library_that_is_not_the_driver_is_refused_with_the_symbol() {
        let libc = if cfg!(windows) { "kernel32.dll" } else { "libc.so.6" };
        let Ok(library) = loader::open(Path::new(libc)) else {
            println!("skipped: no {libc}");
            return;
        };
        // SAFETY: no function is called, because the first symbol is missing.
        let error = unsafe { Functions::resolve(&library) }.err().unwrap();
        assert!(error.contains("cuInit"), "{error}");
    }
}
