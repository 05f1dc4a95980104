//! NVIDIA devices as data.

use crate::device::{DeviceKind, DeviceProfile, Isa};

const BASE: DeviceProfile = DeviceProfile {
    name: "cuda",
    kind: DeviceKind::Cuda,
    cores: 1,
    max_threads: 1024,
    shared_bytes: 48 << 10,
    max_grid: i32::MAX as u32,
    compute_capability: 80,
    isa: Isa::Scalar,
    l2_bytes: 4 << 20,
    tensor_ops: false,
};

/// Profiles by name. `tiny-16k` is no product: it shows that plans keep to the device's limits.
pub const PROFILES: &[DeviceProfile] = &[
    DeviceProfile {
        name: "h200",
        cores: 132,
        shared_bytes: 227 << 10,
        compute_capability: 90,
        l2_bytes: 60 << 20,
        tensor_ops: true,
        ..BASE
    },
    DeviceProfile {
        name: "h100",
        cores: 132,
        shared_bytes: 227 << 10,
        compute_capability: 90,
        l2_bytes: 50 << 20,
        tensor_ops: true,
        ..BASE
    },
    DeviceProfile { name: "a100", cores: 108, shared_bytes: 163 << 10, l2_bytes: 40 << 20, ..BASE },
    DeviceProfile {
        name: "rtx4090",
        cores: 128,
        shared_bytes: 99 << 10,
        compute_capability: 89,
        l2_bytes: 72 << 20,
        ..BASE
    },
    DeviceProfile { name: "tiny-16k", cores: 4, shared_bytes: 16 << 10, l2_bytes: 1 << 20, ..BASE },
];

/// What a driver says about a device.
#[cfg(feature = "cuda")]
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Limits {
    pub(super) name: String,
    pub(super) cores: u32,
    pub(super) max_threads: u32,
    pub(super) shared_bytes: u32,
    pub(super) max_grid: u32,
    pub(super) compute_capability: u32,
    pub(super) l2_bytes: u64,
}

/// The profile of a device that is present: its own limits under the name of the product, or of its architecture.
#[cfg(feature = "cuda")]
pub(super) fn of(limits: &Limits) -> DeviceProfile {
    const PRODUCTS: &[(&str, &str)] = &[("H200", "h200"), ("H100", "h100"), ("A100", "a100"), ("RTX 4090", "rtx4090")];
    let product = PRODUCTS.iter().find(|(text, _)| limits.name.contains(text)).map(|p| p.1);
    let architecture = match limits.compute_capability {
        80 => "sm80",
        86 | 87 => "sm86",
        89 => "sm89",
        90 => "sm90",
        100..110 => "sm100",
        120.. => "sm120",
        _ => "cuda",
    };
    DeviceProfile {
        name: product.unwrap_or(architecture),
        cores: limits.cores,
        max_threads: limits.max_threads,
        shared_bytes: limits.shared_bytes,
        max_grid: limits.max_grid,
        compute_capability: limits.compute_capability,
        l2_bytes: limits.l2_bytes,
        tensor_ops: limits.compute_capability == 90,
        ..BASE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(feature = "cuda")]
    fn an_h200_that_is_present_plans_as_the_profile_does() {
        let limits = Limits {
            name: "NVIDIA H200".into(),
            cores: 132,
            max_threads: 1024,
            shared_bytes: 232_448,
            max_grid: 2_147_483_647,
            compute_capability: 90,
            l2_bytes: 62_914_560,
        };
        assert_eq!(of(&limits), PROFILES[0]);
        let other = of(&Limits { name: "Some GPU".into(), compute_capability: 86, ..limits });
        assert_eq!((other.name, other.tensor_ops), ("sm86", false));
    }

    #[test]
    fn names_are_unique() {
        for (i, p) in PROFILES.iter().enumerate() {
            assert!(PROFILES[..i].iter().all(|q| q.name != p.name));
            assert_eq!(p.kind, DeviceKind::Cuda);
        }
    }
}
