//! A device's primary context, and the calls that need nothing but it.

use super::driver::{CUcontext, Code, Driver, SUCCESS, number};
use super::profiles::Limits;
use crate::error::Result;
use std::ffi::{CStr, c_int};
use std::ptr;

/// The retained primary context of one device; other libraries of the process share it.
pub(super) struct Context {
    pub(super) driver: &'static Driver,
    pub(super) raw: CUcontext,
    device: c_int,
    /// Largest pitch that two-dimensional copies take, in bytes.
    pub(super) max_pitch: u64,
}

// SAFETY: a context may be used from any thread that has made it current, which every user does first.
unsafe impl Send for Context {}
// SAFETY: as for Send; the driver locks inside.
unsafe impl Sync for Context {}

impl Context {
    /// Retains the primary context of the `index`-th device.
    pub(super) fn new(driver: &'static Driver, index: u32) -> Result<Self> {
        let device = handle(driver, index)?;
        let mut raw = ptr::null_mut();
        // SAFETY: the device handle is valid; the pointer is valid for one handle.
        let code = unsafe { (driver.f.primary_retain)(&mut raw, device) };
        driver.check(code, "cuDevicePrimaryCtxRetain", String::new)?;
        let max_pitch = attribute(driver, device, number::MAX_PITCH)?;
        Ok(Context { driver, raw, device, max_pitch: u64::try_from(max_pitch).unwrap_or(0) })
    }

    /// Makes the context current on this thread. Other libraries may have changed it since the last call, so the driver
    /// is asked each time, which costs some 20 ns.
    pub(super) fn enter(&self) -> Result<()> {
        let f = &self.driver.f;
        let mut current = ptr::null_mut();
        // SAFETY: the pointer is valid for one handle.
        if unsafe { (f.context_current)(&mut current) } == SUCCESS && current == self.raw {
            return Ok(());
        }
        // SAFETY: the context is retained by self.
        let code = unsafe { (f.context_set)(self.raw) };
        self.driver.check(code, "cuCtxSetCurrent", String::new)
    }

    /// [`enter`](Self::enter) for destructors, which report nothing.
    pub(super) fn enter_quietly(&self) -> bool {
        self.enter().inspect_err(|e| tracing::debug!(target: "tessl::cuda", "{e}")).is_ok()
    }

    /// Checks a call that names no kernel.
    pub(super) fn check(&self, code: Code, op: &'static str) -> Result<()> {
        self.driver.check(code, op, String::new)
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: retained once in `new`, released once here. Failure leaves nothing to do.
        unsafe { (self.driver.f.primary_release)(self.device) };
    }
}

/// The driver's handle of a device.
fn handle(driver: &Driver, index: u32) -> Result<c_int> {
    let mut device = 0;
    // SAFETY: the pointer is valid for one handle; a bad index is an error code.
    let code = unsafe { (driver.f.device_get)(&mut device, c_int::try_from(index).unwrap_or(c_int::MAX)) };
    driver.check(code, "cuDeviceGet", || format!("device {index}"))?;
    Ok(device)
}

fn attribute(driver: &Driver, device: c_int, attribute: c_int) -> Result<c_int> {
    let mut value = 0;
    // SAFETY: the pointer is valid for one int; unknown attributes are an error code.
    let code = unsafe { (driver.f.device_attribute)(&mut value, attribute, device) };
    driver.check(code, "cuDeviceGetAttribute", || format!("attribute {attribute}"))?;
    Ok(value)
}

/// How many devices the driver sees.
pub(super) fn count(driver: &Driver) -> Result<u32> {
    let mut n = 0;
    // SAFETY: the pointer is valid for one int.
    let code = unsafe { (driver.f.device_count)(&mut n) };
    driver.check(code, "cuDeviceGetCount", String::new)?;
    Ok(u32::try_from(n).unwrap_or(0))
}

/// What the driver says about a device, and its memory in bytes.
pub(super) fn describe(driver: &Driver, index: u32) -> Result<(Limits, u64)> {
    let device = handle(driver, index)?;
    let mut name = [0u8; 256];
    // SAFETY: the buffer has the size told; the driver terminates the name.
    let code = unsafe { (driver.f.device_name)(name.as_mut_ptr().cast(), 256, device) };
    driver.check(code, "cuDeviceGetName", String::new)?;
    let name = CStr::from_bytes_until_nul(&name).map_or_else(|_| "NVIDIA".into(), CStr::to_string_lossy);
    let mut memory = 0usize;
    // SAFETY: the pointer is valid for one size.
    let code = unsafe { (driver.f.device_memory)(&mut memory, device) };
    driver.check(code, "cuDeviceTotalMem", String::new)?;
    let get = |which| attribute(driver, device, which).map(|v| u32::try_from(v).unwrap_or(0));
    let limits = Limits {
        name: name.into_owned(),
        cores: get(number::SM_COUNT)?,
        max_threads: get(number::MAX_THREADS)?,
        shared_bytes: get(number::SHARED_OPTIN)?,
        max_grid: get(number::MAX_GRID_X)?,
        compute_capability: get(number::CC_MAJOR)? * 10 + get(number::CC_MINOR)?,
        l2_bytes: get(number::L2_BYTES)?.into(),
    };
    Ok((limits, memory as u64))
}
