//! Matrix products on the CPU.
//!
//! `gemm_{input}_{output}_{isa}` is the blocked kernel (`driver.rs`), `gemm_small_{input}_{output}_{isa}` the one for few
//! rows (`small.rs`). Bindings: A, B, C, the bias (element type f32, or C's where `GemmArgs::bias_typed` is 1; C again
//! where there is none), and scratch memory where the plan asks for it.

pub(super) mod activation;
#[cfg(target_arch = "x86_64")]
pub(super) mod amx;
mod driver;
mod epilogue;
pub(super) mod micro;
mod operands;
pub(super) mod pack;
pub(super) mod small;
#[cfg(test)]
mod tests;

use super::call::{KernelCall, KernelFn};
use super::registry::Builtin;
use super::simd::{Scalar, Simd};
use crate::device::Isa;
use crate::dtype::DType;
use micro::Micro;

/// What the planner has to know about a micro-kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Geometry {
    /// Rows of a tile.
    pub(super) rows: u32,
    /// Columns of a tile.
    pub(super) cols: u32,
    /// Panels have a multiple of this many steps.
    pub(super) step: u32,
    /// Bytes of a packed element.
    pub(super) bytes: u32,
}

/// The geometry of the blocked kernel of `isa`, on any machine: plans for other processors need it too.
pub(super) const fn geometry(isa: Isa) -> Geometry {
    match isa {
        Isa::Scalar => Geometry { rows: 4, cols: 8, step: 1, bytes: 4 },
        Isa::Neon => Geometry { rows: 8, cols: 12, step: 1, bytes: 4 },
        Isa::Avx2 => Geometry { rows: 6, cols: 16, step: 1, bytes: 4 },
        Isa::Avx512 => Geometry { rows: 12, cols: 32, step: 1, bytes: 4 },
        Isa::Amx => Geometry { rows: 32, cols: 32, step: 32, bytes: 2 },
    }
}

/// A micro-kernel agrees with what plans assume.
const fn agrees<M: Micro>(isa: Isa) -> bool {
    let g = geometry(isa);
    g.rows as usize == M::ROWS
        && g.cols as usize == M::COLS
        && g.step as usize == M::STEP
        && g.bytes as usize == M::BYTES
}

const _: () = assert!(agrees::<micro::ScalarTile>(Isa::Scalar));
#[cfg(target_arch = "aarch64")]
const _: () = assert!(agrees::<micro::NeonTile>(Isa::Neon));
#[cfg(target_arch = "x86_64")]
const _: () = assert!(
    agrees::<micro::Avx2Tile>(Isa::Avx2)
        && agrees::<micro::Avx512Tile>(Isa::Avx512)
        && agrees::<amx::AmxTile>(Isa::Amx)
);

const F32: u8 = 0;
const F16: u8 = 1;
const BF16: u8 = 2;

const fn dtype(code: u8) -> DType {
    match code {
        F16 => DType::F16,
        BF16 => DType::Bf16,
        _ => DType::F32,
    }
}

unsafe fn blocked<M: Micro, const IN: u8, const OUT: u8>(call: &KernelCall<'_>) {
    // SAFETY: forwarded.
    unsafe { driver::run::<M>(call, dtype(IN), dtype(OUT)) }
}

unsafe fn few_rows<S: Simd, const IN: u8, const OUT: u8>(call: &KernelCall<'_>) {
    // SAFETY: forwarded.
    unsafe { small::run::<S>(call, dtype(IN), dtype(OUT)) }
}

/// One row of the kernel table.
macro_rules! kernel {
    ($prefix:literal, $isa:literal, $which:expr, $function:ident, $kernel:ty, $input:literal $in:ident, $output:literal $out:ident) => {
        Builtin {
            module: "gemm",
            name: concat!($prefix, "_", $input, "_", $output, "_", $isa),
            isa: $which,
            function: $function::<$kernel, $in, $out> as KernelFn,
        }
    };
}

/// Rows for every output of one input.
macro_rules! outputs {
    ($prefix:literal, $isa:literal, $which:expr, $function:ident, $kernel:ty, $input:literal $in:ident) => {
        &[
            kernel!($prefix, $isa, $which, $function, $kernel, $input $in, "f32" F32),
            kernel!($prefix, $isa, $which, $function, $kernel, $input $in, "f16" F16),
            kernel!($prefix, $isa, $which, $function, $kernel, $input $in, "bf16" BF16),
        ]
    };
}

/// Every kernel of this file, by instruction set and input.
pub(super) const BUILTINS: &[&[Builtin]] = &[
    outputs!("gemm", "scalar", Isa::Scalar, blocked, micro::ScalarTile, "f32" F32),
    outputs!("gemm", "scalar", Isa::Scalar, blocked, micro::ScalarTile, "f16" F16),
    outputs!("gemm", "scalar", Isa::Scalar, blocked, micro::ScalarTile, "bf16" BF16),
    outputs!("gemm_small", "scalar", Isa::Scalar, few_rows, Scalar, "f32" F32),
    outputs!("gemm_small", "scalar", Isa::Scalar, few_rows, Scalar, "f16" F16),
    outputs!("gemm_small", "scalar", Isa::Scalar, few_rows, Scalar, "bf16" BF16),
];

/// The kernels of aarch64.
#[cfg(target_arch = "aarch64")]
pub(super) const NATIVE: &[&[Builtin]] = &[
    outputs!("gemm", "neon", Isa::Neon, blocked, micro::NeonTile, "f32" F32),
    outputs!("gemm", "neon", Isa::Neon, blocked, micro::NeonTile, "f16" F16),
    outputs!("gemm", "neon", Isa::Neon, blocked, micro::NeonTile, "bf16" BF16),
    outputs!("gemm_small", "neon", Isa::Neon, few_rows, super::simd::Neon, "f32" F32),
    outputs!("gemm_small", "neon", Isa::Neon, few_rows, super::simd::Neon, "f16" F16),
    outputs!("gemm_small", "neon", Isa::Neon, few_rows, super::simd::Neon, "bf16" BF16),
];

/// The kernels of x86-64.
#[cfg(target_arch = "x86_64")]
pub(super) const NATIVE: &[&[Builtin]] = &[
    outputs!("gemm", "avx2", Isa::Avx2, blocked, micro::Avx2Tile, "f32" F32),
    outputs!("gemm", "avx2", Isa::Avx2, blocked, micro::Avx2Tile, "f16" F16),
    outputs!("gemm", "avx2", Isa::Avx2, blocked, micro::Avx2Tile, "bf16" BF16),
    outputs!("gemm_small", "avx2", Isa::Avx2, few_rows, super::simd::Avx2, "f32" F32),
    outputs!("gemm_small", "avx2", Isa::Avx2, few_rows, super::simd::Avx2, "f16" F16),
    outputs!("gemm_small", "avx2", Isa::Avx2, few_rows, super::simd::Avx2, "bf16" BF16),
    outputs!("gemm", "avx512", Isa::Avx512, blocked, micro::Avx512Tile, "f32" F32),
    outputs!("gemm", "avx512", Isa::Avx512, blocked, micro::Avx512Tile, "f16" F16),
    outputs!("gemm", "avx512", Isa::Avx512, blocked, micro::Avx512Tile, "bf16" BF16),
    outputs!("gemm_small", "avx512", Isa::Avx512, few_rows, super::simd::Avx512, "f32" F32),
    outputs!("gemm_small", "avx512", Isa::Avx512, few_rows, super::simd::Avx512, "f16" F16),
    outputs!("gemm_small", "avx512", Isa::Avx512, few_rows, super::simd::Avx512, "bf16" BF16),
    outputs!("gemm", "amx", Isa::Amx, blocked, amx::AmxTile, "bf16" BF16),
];

/// The blocked kernel of these types.
///
/// # Panics
/// When there is none.
pub(super) fn blocked_kernel(input: DType, output: DType, isa: Isa) -> KernelFn {
    let name = format!("gemm_{input}_{output}_{}", super::plan::suffix(isa));
    let mut all = BUILTINS.iter().chain(NATIVE).copied().flatten();
    all.find(|b| b.name == name).expect("INVARIANT: plans name kernels that exist").function
}

/// No kernels of other architectures.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
pub(super) const NATIVE: &[&[Builtin]] = &[];
