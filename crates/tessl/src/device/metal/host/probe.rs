//! Which Apple GPUs are there, and what is missing where one cannot be used.

use super::backend::MetalBackend;
use super::objects::{Obj, items};
use super::tensor_probe;
use crate::device::cache;
use crate::device::metal::PROFILES;
use crate::device::{Backend, DeviceInfo, DeviceKind, DeviceProfile};
use crate::error::{Error, Result};
use crate::options::{GraphOptions, RuntimeOptions};
use objc2::rc::autoreleasepool;
use objc2::runtime::ProtocolObject;
use objc2_foundation::NSProcessInfo;
use objc2_metal::{MTLCopyAllDevices, MTLDevice, MTLGPUFamily};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// The first macOS with Metal 4.
const MACOS: isize = 26;

/// How a Metal device is driven.
#[derive(Clone, Debug)]
pub struct Options {
    /// A batch that has not finished this long after all before it is given up, and the runtime with it. Its memory is
    /// left to the device. 120 s by default; macOS ends kernels that run for seconds by itself.
    pub stall: Duration,
    /// After the GPU has signalled a batch, its commit feedback may take this long; then the batch counts as failed.
    /// 5 s by default.
    pub feedback: Duration,
    /// How graphs are kept.
    pub graphs: GraphOptions,
    /// Where compiled pipelines are kept; nowhere by default.
    pub cache: Option<PathBuf>,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            stall: Duration::from_secs(120),
            feedback: Duration::from_secs(5),
            graphs: GraphOptions::new(),
            cache: None,
        }
    }
}

/// A backend on a device that the caller has chosen: one of several GPUs, or a mock.
///
/// # Errors
/// `Unavailable` with what is missing; `Device` when Metal refuses an object.
pub fn with_device(device: Obj<dyn MTLDevice>, options: Options) -> Result<Arc<dyn Backend>> {
    autoreleasepool(|_| open_on(0, device, options))
}

fn open_on(index: u32, device: Obj<dyn MTLDevice>, options: Options) -> Result<Arc<dyn Backend>> {
    let info = info_of(index, &device);
    if let Some(missing) = info.missing {
        return Err(Error::unavailable(info.id, missing, info.help));
    }
    let profile = profile_of(&device);
    let opened = |profile| MetalBackend::open(device.clone(), info.clone(), profile, options.clone()).map(Arc::new);
    let backend = opened(profile.clone())?;
    let problem = if profile.tensor_ops { tensor_probe::problem(&backend) } else { None };
    match problem {
        None => Ok(backend),
        Some(problem) => {
            tracing::warn!(
                target: "tessl::metal",
                "matrix units of `{}` are not used ({problem}): products run on simdgroup_matrix",
                info.name
            );
            Ok(opened(DeviceProfile { tensor_ops: false, ..profile })?)
        }
    }
}

pub(in crate::device) fn enumerate() -> Vec<DeviceInfo> {
    autoreleasepool(|_| {
        let devices = MTLCopyAllDevices();
        if devices.count() == 0 {
            return vec![absent(0)];
        }
        items(&devices).zip(0..).map(|(device, index)| info_of(index, &device)).collect()
    })
}

pub(in crate::device) fn info(index: u32) -> DeviceInfo {
    autoreleasepool(|_| device(index).map_or_else(|| absent(index), |device| info_of(index, &device)))
}

pub(in crate::device) fn open(index: u32, options: &RuntimeOptions) -> Result<Arc<dyn Backend>> {
    autoreleasepool(|_| match device(index) {
        Some(device) => open_on(
            index,
            device,
            Options { graphs: options.graphs, cache: cache::folder(options), ..Options::default() },
        ),
        None => {
            let info = absent(index);
            Err(Error::unavailable(info.id, info.missing.unwrap_or_default(), info.help))
        }
    })
}

fn device(index: u32) -> Option<Obj<dyn MTLDevice>> {
    items(&MTLCopyAllDevices()).nth(usize::try_from(index).ok()?)
}

fn absent(index: u32) -> DeviceInfo {
    DeviceInfo {
        id: format!("metal:{index}"),
        kind: DeviceKind::Metal,
        name: "Apple GPU".to_owned(),
        profile: PROFILES[0].name.to_owned(),
        memory_bytes: 0,
        unified_memory: true,
        driver: os().1,
        missing: Some("Metal has no such device".to_owned()),
        help: Some("`tessl devices` lists those present; virtual machines may have none".to_owned()),
    }
}

/// Major version, and the whole of it in words.
fn os() -> (isize, String) {
    let version = NSProcessInfo::processInfo().operatingSystemVersion();
    let text = format!("macOS {}.{}.{}", version.majorVersion, version.minorVersion, version.patchVersion);
    (version.majorVersion, text)
}

/// Asks only what every version of Metal can answer until the system is known to be new enough.
fn info_of(index: u32, device: &ProtocolObject<dyn MTLDevice>) -> DeviceInfo {
    let (major, os) = os();
    let (missing, help) = if major < MACOS {
        (Some(format!("Metal 4 needs macOS {MACOS}; this is {os}")), Some(format!("update to macOS {MACOS}")))
    } else if !device.supportsFamily(MTLGPUFamily::Metal4) {
        let help = "Metal 4 needs Apple silicon (M1 or later)".to_owned();
        (Some(format!("`{}` does not support Metal 4", device.name())), Some(help))
    } else {
        (None, None)
    };
    DeviceInfo {
        id: format!("metal:{index}"),
        kind: DeviceKind::Metal,
        name: device.name().to_string(),
        profile: base_profile(device).name.to_owned(),
        memory_bytes: device.recommendedMaxWorkingSetSize(),
        unified_memory: device.hasUnifiedMemory(),
        driver: os,
        missing,
        help,
    }
}

fn base_profile(device: &ProtocolObject<dyn MTLDevice>) -> &'static DeviceProfile {
    let tensor_ops = device.supportsFamily(MTLGPUFamily::Apple10);
    PROFILES.iter().find(|p| p.tensor_ops == tensor_ops).unwrap_or(&PROFILES[0])
}

/// The profile of the chip family with this device's own limits.
fn profile_of(device: &ProtocolObject<dyn MTLDevice>) -> DeviceProfile {
    let base = base_profile(device).clone();
    let narrow = |n: usize, least: u32| u32::try_from(n).unwrap_or(u32::MAX).min(least);
    DeviceProfile {
        max_threads: narrow(device.maxThreadsPerThreadgroup().width, base.max_threads),
        shared_bytes: narrow(device.maxThreadgroupMemoryLength(), base.shared_bytes),
        ..base
    }
}
