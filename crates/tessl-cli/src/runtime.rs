//! The runtime a command works with.

use crate::error::Result;
use tessl::{Device, GpuRuntime, RuntimeOptions};

/// A runtime on `device`, or on what the environment or the machine offers; on the CPU with `threads` threads.
///
/// # Errors
/// `Unavailable` for a device that cannot be used, `Parse` for a bad environment variable.
pub fn open(device: Option<&Device>, threads: Option<usize>) -> Result<GpuRuntime> {
    let mut options = RuntimeOptions::new();
    if let Some(device) = device {
        options = options.device(device.clone());
    }
    if let Some(threads) = threads {
        options = options.threads(threads);
    }
    Ok(GpuRuntime::with_options(&options.from_env()?)?)
}

/// The devices that a command is about: `device`, or the one that `TESSL_DEVICE` asks for, or all that can be used.
///
/// # Errors
/// `Unavailable` when the environment asks for a device that cannot be used, `Parse` for a bad variable.
pub(crate) fn chosen(device: Option<&Device>) -> Result<Vec<Device>> {
    if let Some(device) = device {
        return Ok(vec![device.clone()]);
    }
    if std::env::var_os("TESSL_DEVICE").is_some_and(|name| !name.is_empty()) {
        return Ok(vec![open(None, None)?.device().parse()?]);
    }
    Ok(Device::enumerate().iter().filter(|d| d.missing.is_none()).filter_map(|d| d.id.parse().ok()).collect())
}

/// Threads of the CPU device, as [`open`] sets them up.
pub(crate) fn threads(asked: Option<usize>) -> usize {
    let from_env = || std::env::var("TESSL_THREADS").ok().and_then(|t| t.trim().parse().ok());
    asked.or_else(from_env).unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from))
}
