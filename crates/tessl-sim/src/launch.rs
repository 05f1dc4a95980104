//! Launches of the kernels that were compiled with this crate, and the C interface to the executor.

use std::ffi::{CStr, CString, c_char, c_int, c_void};

/// The order in which lanes, simdgroups and threadgroups run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Schedule {
    /// Lowest index first.
    Forward,
    /// Highest index first.
    Backward,
    /// An order drawn from this seed, the same on every machine.
    Random(u32),
}

impl Schedule {
    fn seed(self) -> u32 {
        match self {
            Schedule::Forward => 0,
            Schedule::Backward => 1,
            Schedule::Random(seed) => (seed & 0x7fff_ffff) + 2,
        }
    }
}

/// One kernel launch.
#[derive(Clone, Copy, Debug)]
pub struct Launch<'a> {
    /// Name of the kernel.
    pub kernel: &'a str,
    /// Values of its function constants; booleans are 0 and 1.
    pub constants: &'a [(&'a str, f64)],
    /// Threadgroups along x, y and z.
    pub grid: [u32; 3],
    /// Threads of a threadgroup: a multiple of 32, at most 1024.
    pub threads: u32,
    /// One pointer per kernel parameter, in order of their indices: buffers, then the argument block, then, for a
    /// kernel with `STATUS`, the status block and a `u32` command sequence.
    pub args: &'a [*mut c_void],
    /// The order of execution.
    pub schedule: Schedule,
}

/// A kernel that can be launched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelInfo {
    /// Its name.
    pub name: String,
    /// How many pointers [`Launch::args`] needs.
    pub nargs: u32,
    /// Bit i is set when parameter i points to memory that the kernel may write.
    pub writes_mask: u32,
}

#[repr(C)]
struct RawConstant {
    name: *const c_char,
    value: f64,
}

/// `tessl_sim_launch_desc` of launch.h.
#[repr(C)]
pub(crate) struct RawLaunch {
    kernel: *const c_char,
    constants: *const RawConstant,
    constant_count: usize,
    grid: [u32; 3],
    threads: u32,
    args: *const *mut c_void,
    arg_count: usize,
    seed: u32,
}

pub(crate) type LaunchFn = unsafe extern "C" fn(*const RawLaunch, *mut c_char, usize) -> c_int;
pub(crate) type KernelFn = unsafe extern "C" fn(usize, *mut *const c_char, *mut u32, *mut u32) -> bool;

#[cfg(tessl_sim_kernels)]
mod linked {
    use super::{RawLaunch, c_char, c_int};

    unsafe extern "C" {
        pub(super) fn tessl_sim_launch(launch: *const RawLaunch, error: *mut c_char, bytes: usize) -> c_int;
        pub(super) fn tessl_sim_kernel(
            index: usize,
            name: *mut *const c_char,
            nargs: *mut u32,
            writes: *mut u32,
        ) -> bool;
    }
}

/// Whether kernels can run here; the error says what to install or why this machine cannot.
pub fn available() -> Result<(), String> {
    #[cfg(tessl_sim_kernels)]
    {
        let cpu = std::arch::is_x86_feature_detected!("avx2")
            && std::arch::is_x86_feature_detected!("fma")
            && std::arch::is_x86_feature_detected!("f16c");
        if cpu { Ok(()) } else { Err("the simulator's kernels need a CPU with AVX2, FMA and F16C".into()) }
    }
    #[cfg(not(tessl_sim_kernels))]
    Err(env!("TESSL_SIM_MISSING").into())
}

/// Whether this build has AddressSanitizer and UndefinedBehaviorSanitizer in it.
pub fn sanitized() -> bool {
    cfg!(tessl_sim_sanitize)
}

/// Runs a kernel of the repository to its end. May be called from several threads at once.
///
/// # Errors
/// An unknown kernel or constant, a wrong number of arguments or threads, and whatever the executor finds: divergence,
/// threads missing at a barrier, too much threadgroup memory, a constant without a value.
///
/// # Safety
/// Each pointer must be valid for what the kernel reads and writes through it, aligned for its type, and not written by
/// others during the call.
pub unsafe fn launch(launch: &Launch) -> Result<(), String> {
    available()?;
    #[cfg(tessl_sim_kernels)]
    {
        // SAFETY: passed on to the caller.
        unsafe { launch_with(linked::tessl_sim_launch, launch) }
    }
    #[cfg(not(tessl_sim_kernels))]
    {
        let _ = (launch, launch_with);
        Ok(())
    }
}

/// The repository's kernels in order of their names; empty where the simulator is not available.
pub fn kernels() -> Vec<KernelInfo> {
    #[cfg(tessl_sim_kernels)]
    {
        // SAFETY: the function is the one of launch.h.
        unsafe { list_with(linked::tessl_sim_kernel) }
    }
    #[cfg(not(tessl_sim_kernels))]
    {
        let _ = list_with;
        Vec::new()
    }
}

/// # Safety
/// As [`launch`]; `entry` is a `tessl_sim_launch`.
pub(crate) unsafe fn launch_with(entry: LaunchFn, launch: &Launch) -> Result<(), String> {
    let c_string = |s: &str| CString::new(s).map_err(|_| format!("a NUL byte in the name {s:?}"));
    let kernel = c_string(launch.kernel)?;
    let names = launch.constants.iter().map(|(name, _)| c_string(name)).collect::<Result<Vec<_>, _>>()?;
    let constants: Vec<RawConstant> = names
        .iter()
        .zip(launch.constants)
        .map(|(name, (_, value))| RawConstant { name: name.as_ptr(), value: *value })
        .collect();
    let raw = RawLaunch {
        kernel: kernel.as_ptr(),
        constants: constants.as_ptr(),
        constant_count: constants.len(),
        grid: launch.grid,
        threads: launch.threads,
        args: launch.args.as_ptr(),
        arg_count: launch.args.len(),
        seed: launch.schedule.seed(),
    };
    let mut error = [0u8; 512];
    // SAFETY: `raw` and what it points to outlive the call; the executor writes a terminated string of at most
    // `error.len()` bytes; the kernel's own accesses are the caller's promise.
    match unsafe { entry(&raw, error.as_mut_ptr().cast(), error.len()) } {
        0 => Ok(()),
        _ => Err(CStr::from_bytes_until_nul(&error).unwrap_or_default().to_string_lossy().into_owned()),
    }
}

/// # Safety
/// `entry` is a `tessl_sim_kernel`.
pub(crate) unsafe fn list_with(entry: KernelFn) -> Vec<KernelInfo> {
    let mut list = Vec::new();
    loop {
        let (mut name, mut nargs, mut writes_mask) = (std::ptr::null(), 0, 0);
        // SAFETY: three valid places to write to; on true `name` is a C string that lives as long as the library.
        let name = unsafe {
            if !entry(list.len(), &mut name, &mut nargs, &mut writes_mask) {
                return list;
            }
            CStr::from_ptr(name)
        };
        list.push(KernelInfo { name: name.to_string_lossy().into_owned(), nargs, writes_mask });
    }
}
