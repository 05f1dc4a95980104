//! Processors that plans can be made for.

use crate::device::{DeviceKind, DeviceProfile, Isa};

const fn cpu(name: &'static str, isa: Isa, cores: u32, l2_bytes: u64) -> DeviceProfile {
    DeviceProfile {
        name,
        kind: DeviceKind::Cpu,
        cores,
        max_threads: 1,
        shared_bytes: 0,
        max_grid: u32::MAX,
        compute_capability: 0,
        isa,
        l2_bytes,
        tensor_ops: matches!(isa, Isa::Amx),
    }
}

/// Every CPU profile, best first. The number of cores is that of a common machine; plans do not depend on it.
pub const PROFILES: &[DeviceProfile] = &[
    cpu("spr-amx", Isa::Amx, 56, 2 << 20),
    cpu("avx512", Isa::Avx512, 16, 1 << 20),
    cpu("avx2", Isa::Avx2, 8, 512 << 10),
    cpu("neon", Isa::Neon, 8, 1 << 20),
    cpu("scalar", Isa::Scalar, 4, 256 << 10),
];
