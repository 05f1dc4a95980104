//! tessl and Python in one process, on the same memory: the half in Rust. examples/dlpack.py is the other and says how
//! to run both.

use std::ffi::{CStr, c_char};
use std::ptr;
use tessl::dlpack::Dlpack;
use tessl::dlpack::dlpark::ffi::DLManagedTensorVersioned;
use tessl::nn::Scale;
use tessl::{BufferKind, DType, GpuRuntime};

/// Prints an error, where Python would raise one.
fn told<T>(result: tessl::Result<T>) -> Option<T> {
    result.map_err(|e| eprintln!("{e}")).ok()
}

/// A runtime on the device of this name, or null.
///
/// # Safety
/// `device` is a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn example_open(device: *const c_char) -> *mut GpuRuntime {
    // SAFETY: as the caller promises.
    let device = unsafe { CStr::from_ptr(device) }.to_string_lossy();
    let open = || GpuRuntime::with_device(&device.parse()?);
    told(open()).map_or(ptr::null_mut(), |rt| Box::into_raw(Box::new(rt)))
}

/// A tensor [rows, columns] of zeros, for another library.
///
/// # Safety
/// `rt` comes from `example_open`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn example_zeros(rt: &GpuRuntime, rows: usize, columns: usize) -> *mut DLManagedTensorVersioned {
    let zeros = || rt.zeros(DType::F32, &[rows, columns], BufferKind::Hot)?.to_dlpack();
    told(zeros()).map_or(ptr::null_mut(), Dlpack::into_raw)
}

/// Multiplies the caller's tensor by `factor`, in place; false after an error.
///
/// # Safety
/// `rt` comes from `example_open`; `tensor` is a versioned DLPack tensor that now belongs to this function, whose memory
/// nobody else uses during the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn example_scale(rt: &GpuRuntime, tensor: *mut DLManagedTensorVersioned, factor: f32) -> bool {
    // SAFETY: as the caller promises.
    let Ok(shared) = (unsafe { Dlpack::from_raw(tensor) }) else { return false };
    let scale = || {
        // SAFETY: as the caller promises.
        let t = unsafe { rt.from_dlpack(shared)? };
        Scale::new(&t, factor, &t).run()?;
        rt.synchronize()
    };
    told(scale()).is_some()
}
