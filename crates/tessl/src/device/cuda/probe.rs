//! What there is on this machine, as data: drivers, compilers and devices, or why not.

use super::driver::Driver;
use super::nvrtc::Nvrtc;
use super::profiles::{self, Limits};
use super::{backend::CudaBackend, context, paths};
use crate::RuntimeOptions;
use crate::device::cache::{self, Cache};
use crate::device::{Backend, DeviceInfo, DeviceKind};
use crate::error::{Error, Result};
use std::sync::{Arc, Mutex, PoisonError};

const DRIVER_HELP: &str = "install the NVIDIA driver, or name its library in TESSL_CUDA_LIB";
const NVRTC_HELP: &str = "install NVRTC (part of the CUDA toolkit; `pip install nvidia-cuda-nvrtc` has it too) and name its folder in TESSL_CUDA_LIB";

/// One device that the driver sees.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) limits: Limits,
    pub(super) memory_bytes: u64,
}

/// Why a device cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Missing {
    pub(super) reason: String,
    pub(super) help: Option<&'static str>,
}

impl Missing {
    fn new(reason: impl Into<String>, help: Option<&'static str>) -> Self {
        Missing { reason: reason.into(), help }
    }

    fn into_error(self, index: u32) -> Error {
        Error::unavailable(format!("cuda:{index}"), self.reason, self.help.map(str::to_owned))
    }
}

/// A library that is opened once per process. A failure is not kept: a later caller may know a better path.
struct Once<T: 'static>(Mutex<Option<&'static T>>);

impl<T> Once<T> {
    fn get(&self, load: impl FnOnce() -> Result<T, String>) -> Result<&'static T, String> {
        let mut loaded = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(library) = *loaded {
            return Ok(library);
        }
        // Leaked once per process, as the library itself is: its threads and exit handlers outlive every owner.
        let library: &'static T = Box::leak(Box::new(load()?));
        *loaded = Some(library);
        Ok(library)
    }
}

fn driver() -> Result<&'static Driver, Missing> {
    static DRIVER: Once<Driver> = Once(Mutex::new(None));
    let loaded = DRIVER.get(|| Driver::load(paths::library().as_deref()));
    loaded.map_err(|reason| Missing::new(format!("no CUDA driver: {reason}"), Some(DRIVER_HELP)))
}

/// The compiler, opened only when there is a device to compile for.
fn nvrtc() -> Result<&'static Nvrtc, Missing> {
    static NVRTC: Once<Nvrtc> = Once(Mutex::new(None));
    let loaded = NVRTC.get(|| Nvrtc::load(paths::library().as_deref()));
    loaded.map_err(|reason| Missing::new(format!("no NVRTC: {reason}"), Some(NVRTC_HELP)))
}

/// Every device that the driver sees.
pub(super) fn probe() -> Result<(&'static Driver, Vec<Found>), Missing> {
    let driver = driver()?;
    let failed = |e: Error| Missing::new(e.to_string(), None);
    let count = context::count(driver).map_err(failed)?;
    let describe = |i| context::describe(driver, i).map(|(limits, memory_bytes)| Found { limits, memory_bytes });
    let found = (0..count).map(describe).collect::<Result<Vec<_>>>().map_err(failed)?;
    if found.is_empty() {
        return Err(Missing::new("the driver sees no device", Some("check CUDA_VISIBLE_DEVICES and `nvidia-smi`")));
    }
    Ok((driver, found))
}

/// The description of a device that is present; `missing` tells of a compiler that is not.
pub(super) fn info_of(driver: &Driver, index: u32, found: &Found) -> DeviceInfo {
    let cc = found.limits.compute_capability;
    let (major, minor) = (driver.version / 1000, driver.version % 1000 / 10);
    let missing = nvrtc().err();
    DeviceInfo {
        id: format!("cuda:{index}"),
        kind: DeviceKind::Cuda,
        name: found.limits.name.clone(),
        profile: profiles::of(&found.limits).name.to_owned(),
        memory_bytes: found.memory_bytes,
        unified_memory: false,
        driver: format!("CUDA driver {major}.{minor}, compute capability {}.{}", cc / 10, cc % 10),
        help: missing.as_ref().and_then(|m| m.help).map(str::to_owned),
        missing: missing.map(|m| m.reason),
    }
}

fn absent(index: u32, missing: Missing) -> DeviceInfo {
    DeviceInfo {
        id: format!("cuda:{index}"),
        kind: DeviceKind::Cuda,
        name: "NVIDIA".to_owned(),
        profile: String::new(),
        memory_bytes: 0,
        unified_memory: false,
        driver: String::new(),
        missing: Some(missing.reason),
        help: missing.help.map(str::to_owned),
    }
}

fn no_such_device(index: u32, count: usize) -> Missing {
    Missing::new(format!("device {index} of {count}"), Some("`tessl devices` lists them"))
}

/// Every device, or one entry that says what is missing.
pub(crate) fn enumerate() -> Vec<DeviceInfo> {
    match probe() {
        Ok((driver, found)) => (0..).zip(&found).map(|(i, f)| info_of(driver, i, f)).collect(),
        Err(missing) => vec![absent(0, missing)],
    }
}

/// The `index`-th device, or what is missing.
pub(crate) fn info(index: u32) -> DeviceInfo {
    match probe() {
        Ok((driver, found)) => match found.get(index as usize) {
            Some(f) => info_of(driver, index, f),
            None => absent(index, no_such_device(index, found.len())),
        },
        Err(missing) => absent(index, missing),
    }
}

/// Opens the `index`-th device.
///
/// # Errors
/// `Unavailable` with what is missing and every path tried; `Device` from the driver.
pub(crate) fn open(index: u32, options: &RuntimeOptions) -> Result<Arc<dyn Backend>> {
    paths::remember(options);
    let unavailable = |missing: Missing| missing.into_error(index);
    let (driver, found) = probe().map_err(unavailable)?;
    let here = found.get(index as usize).ok_or_else(|| no_such_device(index, found.len()).into_error(index))?;
    let nvrtc = nvrtc().map_err(unavailable)?;
    let cache = cache::folder(options).as_deref().and_then(Cache::open);
    Ok(Arc::new(CudaBackend::open(driver, nvrtc, index, here, cache, options.dependent_launch.unwrap_or(true))?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_without_a_driver_gets_data_and_a_typed_error() {
        let all = enumerate();
        assert_eq!(all[0].id, "cuda:0");
        assert_eq!(info(0), all[0]);
        match (&all[0].missing, open(0, &RuntimeOptions::new())) {
            (Some(reason), Err(error)) => {
                assert!(error.to_string().contains(reason.as_str()), "{error}");
                assert!(all[0].help.is_some(), "{reason}");
            }
            (None, Ok(backend)) => assert_eq!(backend.info(), &all[0]),
            (missing, opened) => panic!("info says {missing:?}, open {:?}", opened.map(|_| ())),
        }
    }

    #[test]
    fn an_index_that_does_not_exist_is_unavailable() {
        let error = open(4096, &RuntimeOptions::new()).err().unwrap();
        assert!(matches!(error, Error::Unavailable(_)), "{error}");
        assert!(info(4096).missing.is_some());
    }
}
