//! What plans need to know about a device. Profiles are data, so a plan for any device is made on any machine.

use super::DeviceKind;
use super::{cpu, cuda, metal};
use serde::Serialize;

/// Instruction sets of the CPU device, each including those before it on its architecture.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Isa {
    /// Plain Rust.
    Scalar,
    /// aarch64 NEON.
    Neon,
    /// AVX2, FMA and F16C.
    Avx2,
    /// AVX-512 F, BW, DQ and VL.
    Avx512,
    /// AVX-512 with AMX tiles for bf16 and int8.
    Amx,
}

/// A device as data.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DeviceProfile {
    /// Name on the command line (`h200`, `spr-amx`, ..).
    pub name: &'static str,
    /// Family.
    pub kind: DeviceKind,
    /// SMs, GPU cores or hardware threads. Plans may shape grids by it on GPUs; CPU plans never depend on it.
    pub cores: u32,
    /// Threads of one threadgroup, at most.
    pub max_threads: u32,
    /// Threadgroup memory that a kernel can have, in bytes (on GPUs).
    pub shared_bytes: u32,
    /// Threadgroups along x, at most.
    pub max_grid: u32,
    /// CUDA compute capability times ten (90 = 9.0); 0 elsewhere.
    pub compute_capability: u32,
    /// Instruction set; `Scalar` on GPUs.
    pub isa: Isa,
    /// Private cache of one core (CPU) or the whole L2 (GPU), in bytes.
    pub l2_bytes: u64,
    /// Matrix units usable (`wgmma`, MPP TensorOps, AMX).
    pub tensor_ops: bool,
}

/// Every profile, by device family.
pub const PROFILES: &[&[DeviceProfile]] = &[cpu::PROFILES, cuda::PROFILES, metal::PROFILES];

/// The profile with this name.
pub(crate) fn by_name(name: &str) -> Option<&'static DeviceProfile> {
    PROFILES.iter().copied().flatten().find(|p| p.name == name)
}
