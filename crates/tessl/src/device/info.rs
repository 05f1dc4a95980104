//! Names and descriptions of devices.

use super::{Backend, cpu, cuda, metal, null, profile};
use crate::error::{Error, Result};
use crate::options::RuntimeOptions;
use serde::Serialize;
use std::fmt;
use std::sync::Arc;

/// The family of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum DeviceKind {
    /// Apple silicon.
    Metal,
    /// NVIDIA.
    Cuda,
    /// The host's processor.
    Cpu,
}

impl DeviceKind {
    /// The name used in device strings.
    pub const fn name(self) -> &'static str {
        match self {
            DeviceKind::Metal => "metal",
            DeviceKind::Cuda => "cuda",
            DeviceKind::Cpu => "cpu",
        }
    }
}

impl fmt::Display for DeviceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// What a device is, and what is missing when it cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DeviceInfo {
    /// Device string (`cpu`, `cuda:0`, ..).
    pub id: String,
    /// Family.
    pub kind: DeviceKind,
    /// Product name.
    pub name: String,
    /// Profile that plans are made from.
    pub profile: String,
    /// Memory in bytes; 0 when unknown.
    pub memory_bytes: u64,
    /// Host and device share memory.
    pub unified_memory: bool,
    /// Driver or instruction-set description.
    pub driver: String,
    /// Why the device cannot be used; `None` when it can.
    pub missing: Option<String>,
    /// What to do about it.
    pub help: Option<String>,
}

/// A device by name: cheap to copy around, opened by [`GpuRuntime`](crate::GpuRuntime).
///
/// ```
/// let cpu: tessl::Device = "cpu".parse()?;
/// assert_eq!(cpu.to_string(), "cpu");
/// assert!(cpu.info().missing.is_none());
/// # Ok::<(), tessl::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Device {
    repr: Repr,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Repr {
    Cpu,
    Cuda(u32),
    Metal(u32),
    Null(String),
}

impl Device {
    /// The host's processor.
    pub fn cpu() -> Self {
        Device { repr: Repr::Cpu }
    }

    /// The `index`-th NVIDIA device.
    pub fn cuda(index: u32) -> Self {
        Device { repr: Repr::Cuda(index) }
    }

    /// The `index`-th Apple GPU.
    pub fn metal(index: u32) -> Self {
        Device { repr: Repr::Metal(index) }
    }

    /// A device that records commands and computes nothing, planning as the named profile does.
    pub fn null(profile: &str) -> Self {
        Device { repr: Repr::Null(profile.to_owned()) }
    }

    /// The best device present: metal, then cuda, then the CPU. Libraries are looked for as
    /// [`RuntimeOptions`] says by default.
    pub fn best() -> Self {
        Self::best_for(&RuntimeOptions::new())
    }

    /// The best device that a runtime with these options could use.
    pub(crate) fn best_for(options: &RuntimeOptions) -> Self {
        cuda::remember(options);
        [Device::metal(0), Device::cuda(0)].into_iter().find(|d| d.info().missing.is_none()).unwrap_or_else(Device::cpu)
    }

    /// Every device of this machine, the CPU last. Families without a usable driver appear once, with what is missing.
    pub fn enumerate() -> Vec<DeviceInfo> {
        let mut all = metal::enumerate();
        all.extend(cuda::enumerate());
        all.push(cpu::info());
        all
    }

    /// The family.
    pub fn kind(&self) -> DeviceKind {
        match &self.repr {
            Repr::Cpu => DeviceKind::Cpu,
            Repr::Cuda(_) => DeviceKind::Cuda,
            Repr::Metal(_) => DeviceKind::Metal,
            Repr::Null(name) => profile::by_name(name).map_or(DeviceKind::Cpu, |p| p.kind),
        }
    }

    /// Whether this device runs on a GPU.
    pub fn is_gpu(&self) -> bool {
        matches!(self.repr, Repr::Cuda(_) | Repr::Metal(_))
    }

    /// What this device is; `missing` says why it cannot be used.
    pub fn info(&self) -> DeviceInfo {
        match &self.repr {
            Repr::Cpu => cpu::info(),
            Repr::Cuda(i) => cuda::info(*i),
            Repr::Metal(i) => metal::info(*i),
            Repr::Null(name) => null::info(name),
        }
    }

    pub(crate) fn open(&self, options: &RuntimeOptions) -> Result<Arc<dyn Backend>> {
        match &self.repr {
            Repr::Cpu => cpu::open_with(options.isa, options.threads),
            Repr::Cuda(i) => cuda::open(*i, options),
            Repr::Metal(i) => metal::open(*i, options),
            Repr::Null(name) => null::open(name),
        }
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.repr {
            Repr::Cpu => f.pad("cpu"),
            Repr::Cuda(i) => write!(f, "cuda:{i}"),
            Repr::Metal(i) => write!(f, "metal:{i}"),
            Repr::Null(name) => write!(f, "null:{name}"),
        }
    }
}

impl std::str::FromStr for Device {
    type Err = Error;

    fn from_str(s: &str) -> Result<Self> {
        let (family, index) = s.split_once(':').unwrap_or((s, "0"));
        let parsed = match (family, index.parse::<u32>()) {
            ("cpu", Ok(0)) => Some(Device::cpu()),
            ("cuda", Ok(i)) => Some(Device::cuda(i)),
            ("metal", Ok(i)) => Some(Device::metal(i)),
            ("null", _) if profile::by_name(index).is_some() => Some(Device::null(index)),
            _ => None,
        };
        parsed.ok_or_else(|| Error::parse("device", s, "cpu, cuda, cuda:N, metal, metal:N or null:PROFILE"))
    }
}
