//! Which instruction sets this process may use.

use crate::device::Isa;
use std::sync::OnceLock;

/// The best instruction set that this processor and its system offer.
pub(super) fn detect() -> Isa {
    static BEST: OnceLock<Isa> = OnceLock::new();
    *BEST.get_or_init(probe)
}

/// Whether code for `isa` can run here.
pub(super) fn usable(isa: Isa) -> bool {
    match isa {
        Isa::Scalar => true,
        Isa::Neon => detect() == Isa::Neon,
        Isa::Avx2 | Isa::Avx512 | Isa::Amx => detect() >= isa,
    }
}

#[cfg(target_arch = "x86_64")]
fn probe() -> Isa {
    use std::arch::is_x86_feature_detected as has;
    let avx2 = has!("avx2") && has!("fma") && has!("f16c");
    let avx512 = avx2 && has!("avx512f") && has!("avx512bw") && has!("avx512dq") && has!("avx512vl");
    match (avx2, avx512) {
        (true, true) if amx() => Isa::Amx,
        (_, true) => Isa::Avx512,
        (true, _) => Isa::Avx2,
        _ => Isa::Scalar,
    }
}

#[cfg(target_arch = "aarch64")]
fn probe() -> Isa {
    if std::arch::is_aarch64_feature_detected!("neon") { Isa::Neon } else { Isa::Scalar }
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn probe() -> Isa {
    Isa::Scalar
}

/// AMX with bf16 and int8 tiles: the processor has them, and Linux lets this process use tile registers. The system
/// hands out that permission per process and may refuse it.
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
fn amx() -> bool {
    use std::arch::x86_64::{__cpuid, __cpuid_count, _xgetbv};
    const ARCH_REQ_XCOMP_PERM: libc::c_long = 0x1023;
    const XFEATURE_XTILEDATA: libc::c_long = 18;
    const BF16_TILE_INT8: u32 = 1 << 22 | 1 << 24 | 1 << 25;
    const TILE_STATE: u64 = 1 << 17 | 1 << 18;

    #[target_feature(enable = "xsave")]
    fn enabled_state() -> u64 {
        // SAFETY: register 0 exists wherever XSAVE does.
        unsafe { _xgetbv(0) }
    }
    if __cpuid(0).eax < 7 || __cpuid_count(7, 0).edx & BF16_TILE_INT8 != BF16_TILE_INT8 {
        return false;
    }
    // SAFETY: every processor with AVX-512, which the caller has checked, has XSAVE.
    if unsafe { enabled_state() } & TILE_STATE != TILE_STATE {
        return false;
    }
    // SAFETY: asks for a permission; touches no memory.
    unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0 }
}

#[cfg(all(target_arch = "x86_64", not(target_os = "linux")))]
fn amx() -> bool {
    false
}
