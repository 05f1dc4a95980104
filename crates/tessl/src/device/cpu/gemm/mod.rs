//! Matrix products on the CPU.
//!
//! `gemm_{input}_{output}_{isa}` is the blocked kernel (`driver.rs`), `gemm_small_{input}_{output}_{isa}` the one for few
//! rows (`small.rs`), `gemm_piecewise_{input}_{output}_amx` multiplies few rows by pieces of B that are packed on the way, and
//! `pack_{input}_{isa}` packs weights for the blocked kernel (`weights.rs`). Bindings: A, B, C, the bias (C
//! again where there is none), those of `Operands::new` where the product goes beyond the plain formula, and scratch
//! memory where the plan asks for it.

pub(super) mod activation;
mod ahead;
#[cfg(target_arch = "x86_64")]
pub(super) mod amx;
mod blocks;
mod columns;
mod driver;
mod epilogue;
pub(super) mod int8;
mod late;
pub(super) mod micro;
mod operands;
pub(super) mod pack;
pub(super) mod small;
#[cfg(test)]
mod tests;
mod weights;

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

/// The geometry of the blocked kernel of `isa` for this input, on any machine: plans for other processors need it too.
pub(super) const fn geometry(isa: Isa, input: DType) -> Geometry {
    let whole = matches!(input, DType::I8 | DType::U8);
    let (rows, cols) = match isa {
        Isa::Scalar => (4, 8),
        Isa::Neon => (8, 12),
        Isa::Avx2 => (6, 16),
        Isa::Avx512 => (12, 32),
        Isa::Amx => (32, 32),
    };
    match isa {
        Isa::Amx if whole => Geometry { rows, cols, step: 64, bytes: 1 },
        Isa::Amx => Geometry { rows, cols, step: 32, bytes: 2 },
        _ if whole => Geometry { rows, cols, step: 2, bytes: 2 },
        _ => Geometry { rows, cols, step: 1, bytes: 4 },
    }
}

/// A micro-kernel agrees with what plans assume.
const fn agrees<M: Micro>(isa: Isa, input: DType) -> bool {
    let g = geometry(isa, input);
    g.rows as usize == M::ROWS
        && g.cols as usize == M::COLS
        && g.step as usize == M::STEP
        && g.bytes as usize == M::BYTES
}

const _: () =
    assert!(agrees::<micro::ScalarTile>(Isa::Scalar, DType::F32) && agrees::<int8::ScalarInt8>(Isa::Scalar, DType::I8));
#[cfg(target_arch = "aarch64")]
const _: () =
    assert!(agrees::<micro::NeonTile>(Isa::Neon, DType::F32) && agrees::<int8::NeonInt8>(Isa::Neon, DType::I8));
#[cfg(target_arch = "x86_64")]
const _: () = assert!(
    agrees::<micro::Avx2Tile>(Isa::Avx2, DType::F32)
        && agrees::<micro::Avx512Tile>(Isa::Avx512, DType::F32)
        && agrees::<amx::AmxTile>(Isa::Amx, DType::Bf16)
        && agrees::<int8::Avx2Int8>(Isa::Avx2, DType::I8)
        && agrees::<int8::Avx512Int8>(Isa::Avx512, DType::I8)
        && agrees::<int8::VnniInt8>(Isa::Avx512, DType::I8)
        && agrees::<amx::Amx<amx::SignedSigned>>(Isa::Amx, DType::I8)
);

const F32: u8 = 0;
const F16: u8 = 1;
const BF16: u8 = 2;
/// i8 and u8, as the arguments say.
const INT8: u8 = 3;
/// e4m3 and e5m2, as the arguments say.
const FP8: u8 = 4;
const I32: u8 = 5;

const fn dtype(code: u8) -> DType {
    match code {
        F16 => DType::F16,
        BF16 => DType::Bf16,
        INT8 => DType::I8,
        FP8 => DType::F8E4M3,
        I32 => DType::I32,
        _ => DType::F32,
    }
}

unsafe fn blocked<M: Micro, const IN: u8, const OUT: u8>(call: &KernelCall<'_>) {
    // SAFETY: forwarded.
    unsafe { driver::run::<M>(call, dtype(IN), dtype(OUT)) }
}

#[cfg(target_arch = "x86_64")]
unsafe fn piecewise<M: Micro, const IN: u8, const OUT: u8>(call: &KernelCall<'_>) {
    // SAFETY: forwarded.
    unsafe { driver::run_few_rows::<M>(call, dtype(IN), dtype(OUT)) }
}

unsafe fn few_rows<S: Simd, const IN: u8, const OUT: u8>(call: &KernelCall<'_>) {
    // SAFETY: forwarded.
    unsafe { small::run::<S>(call, dtype(IN), dtype(OUT)) }
}

unsafe fn packed<M: Micro, const IN: u8>(call: &KernelCall<'_>) {
    // SAFETY: forwarded.
    unsafe { weights::run::<M>(call, dtype(IN)) }
}

/// AMX has an instruction for each pair of types.
#[cfg(target_arch = "x86_64")]
macro_rules! amx_int8 {
    ($name:ident, $function:ident) => {
        unsafe fn $name<const OUT: u8>(call: &KernelCall<'_>) {
            let args: &crate::args::GemmArgs = call.args();
            // SAFETY: forwarded.
            unsafe {
                match (args.a_type, args.b_type) {
                    (0, 0) => $function::<amx::Amx<amx::SignedSigned>, INT8, OUT>(call),
                    (0, _) => $function::<amx::Amx<amx::SignedUnsigned>, INT8, OUT>(call),
                    (_, 0) => $function::<amx::Amx<amx::UnsignedSigned>, INT8, OUT>(call),
                    _ => $function::<amx::Amx<amx::UnsignedUnsigned>, INT8, OUT>(call),
                }
            }
        }
    };
}
#[cfg(target_arch = "x86_64")]
amx_int8!(amx_int8, blocked);
#[cfg(target_arch = "x86_64")]
amx_int8!(amx_int8_piecewise, piecewise);

/// Some processors with AVX-512 multiply and add in one instruction; the sums are the same.
#[cfg(target_arch = "x86_64")]
unsafe fn avx512_int8<const OUT: u8>(call: &KernelCall<'_>) {
    // SAFETY: forwarded.
    unsafe {
        if std::arch::is_x86_feature_detected!("avx512vnni") {
            blocked::<int8::VnniInt8, INT8, OUT>(call)
        } else {
            blocked::<int8::Avx512Int8, INT8, OUT>(call)
        }
    }
}

/// One row of the kernel table.
macro_rules! kernel {
    ($name:expr, $isa:literal, $which:expr, $function:expr) => {
        Builtin { module: "gemm", name: concat!($name, "_", $isa), isa: $which, function: $function as KernelFn }
    };
}

/// Every kernel on floats for an instruction set with tiles of `$tile` and vectors of `$simd`.
macro_rules! floats {
    ($isa:literal, $which:expr, $tile:ty, $simd:ty) => {
        &[
            kernel!("gemm_f32_f32", $isa, $which, blocked::<$tile, F32, F32>),
            kernel!("gemm_f32_f16", $isa, $which, blocked::<$tile, F32, F16>),
            kernel!("gemm_f32_bf16", $isa, $which, blocked::<$tile, F32, BF16>),
            kernel!("gemm_f16_f32", $isa, $which, blocked::<$tile, F16, F32>),
            kernel!("gemm_f16_f16", $isa, $which, blocked::<$tile, F16, F16>),
            kernel!("gemm_f16_bf16", $isa, $which, blocked::<$tile, F16, BF16>),
            kernel!("gemm_bf16_f32", $isa, $which, blocked::<$tile, BF16, F32>),
            kernel!("gemm_bf16_f16", $isa, $which, blocked::<$tile, BF16, F16>),
            kernel!("gemm_bf16_bf16", $isa, $which, blocked::<$tile, BF16, BF16>),
            kernel!("gemm_fp8_f32", $isa, $which, blocked::<$tile, FP8, F32>),
            kernel!("gemm_fp8_f16", $isa, $which, blocked::<$tile, FP8, F16>),
            kernel!("gemm_fp8_bf16", $isa, $which, blocked::<$tile, FP8, BF16>),
            kernel!("gemm_fp8_fp8", $isa, $which, blocked::<$tile, FP8, FP8>),
            kernel!("gemm_small_f32_f32", $isa, $which, few_rows::<$simd, F32, F32>),
            kernel!("gemm_small_f32_f16", $isa, $which, few_rows::<$simd, F32, F16>),
            kernel!("gemm_small_f32_bf16", $isa, $which, few_rows::<$simd, F32, BF16>),
            kernel!("gemm_small_f16_f32", $isa, $which, few_rows::<$simd, F16, F32>),
            kernel!("gemm_small_f16_f16", $isa, $which, few_rows::<$simd, F16, F16>),
            kernel!("gemm_small_f16_bf16", $isa, $which, few_rows::<$simd, F16, BF16>),
            kernel!("gemm_small_bf16_f32", $isa, $which, few_rows::<$simd, BF16, F32>),
            kernel!("gemm_small_bf16_f16", $isa, $which, few_rows::<$simd, BF16, F16>),
            kernel!("gemm_small_bf16_bf16", $isa, $which, few_rows::<$simd, BF16, BF16>),
            kernel!("pack_f32", $isa, $which, packed::<$tile, F32>),
            kernel!("pack_f16", $isa, $which, packed::<$tile, F16>),
            kernel!("pack_bf16", $isa, $which, packed::<$tile, BF16>),
            kernel!("pack_fp8", $isa, $which, packed::<$tile, FP8>),
        ]
    };
}

/// The kernels that every processor has.
pub(super) const BUILTINS: &[&[Builtin]] = &[
    floats!("scalar", Isa::Scalar, micro::ScalarTile, Scalar),
    &[
        kernel!("gemm_int8_i32", "scalar", Isa::Scalar, blocked::<int8::ScalarInt8, INT8, I32>),
        kernel!("gemm_int8_f32", "scalar", Isa::Scalar, blocked::<int8::ScalarInt8, INT8, F32>),
        kernel!("gemm_int8_f16", "scalar", Isa::Scalar, blocked::<int8::ScalarInt8, INT8, F16>),
        kernel!("gemm_int8_bf16", "scalar", Isa::Scalar, blocked::<int8::ScalarInt8, INT8, BF16>),
        kernel!("pack_int8", "scalar", Isa::Scalar, packed::<int8::ScalarInt8, INT8>),
    ],
];

/// The kernels of aarch64.
#[cfg(target_arch = "aarch64")]
pub(super) const NATIVE: &[&[Builtin]] = &[
    floats!("neon", Isa::Neon, micro::NeonTile, super::simd::Neon),
    &[
        kernel!("gemm_int8_i32", "neon", Isa::Neon, blocked::<int8::NeonInt8, INT8, I32>),
        kernel!("gemm_int8_f32", "neon", Isa::Neon, blocked::<int8::NeonInt8, INT8, F32>),
        kernel!("gemm_int8_f16", "neon", Isa::Neon, blocked::<int8::NeonInt8, INT8, F16>),
        kernel!("gemm_int8_bf16", "neon", Isa::Neon, blocked::<int8::NeonInt8, INT8, BF16>),
        kernel!("pack_int8", "neon", Isa::Neon, packed::<int8::NeonInt8, INT8>),
    ],
];

/// The kernels of x86-64.
#[cfg(target_arch = "x86_64")]
pub(super) const NATIVE: &[&[Builtin]] = &[
    floats!("avx2", Isa::Avx2, micro::Avx2Tile, super::simd::Avx2),
    floats!("avx512", Isa::Avx512, micro::Avx512Tile, super::simd::Avx512),
    &[
        kernel!("gemm_int8_i32", "avx2", Isa::Avx2, blocked::<int8::Avx2Int8, INT8, I32>),
        kernel!("gemm_int8_f32", "avx2", Isa::Avx2, blocked::<int8::Avx2Int8, INT8, F32>),
        kernel!("gemm_int8_f16", "avx2", Isa::Avx2, blocked::<int8::Avx2Int8, INT8, F16>),
        kernel!("gemm_int8_bf16", "avx2", Isa::Avx2, blocked::<int8::Avx2Int8, INT8, BF16>),
        kernel!("pack_int8", "avx2", Isa::Avx2, packed::<int8::Avx2Int8, INT8>),
        kernel!("gemm_int8_i32", "avx512", Isa::Avx512, avx512_int8::<I32>),
        kernel!("gemm_int8_f32", "avx512", Isa::Avx512, avx512_int8::<F32>),
        kernel!("gemm_int8_f16", "avx512", Isa::Avx512, avx512_int8::<F16>),
        kernel!("gemm_int8_bf16", "avx512", Isa::Avx512, avx512_int8::<BF16>),
        kernel!("pack_int8", "avx512", Isa::Avx512, packed::<int8::Avx512Int8, INT8>),
        kernel!("gemm_int8_i32", "amx", Isa::Amx, amx_int8::<I32>),
        kernel!("gemm_int8_f32", "amx", Isa::Amx, amx_int8::<F32>),
        kernel!("gemm_int8_f16", "amx", Isa::Amx, amx_int8::<F16>),
        kernel!("gemm_int8_bf16", "amx", Isa::Amx, amx_int8::<BF16>),
        kernel!("gemm_piecewise_int8_i32", "amx", Isa::Amx, amx_int8_piecewise::<I32>),
        kernel!("gemm_piecewise_int8_f32", "amx", Isa::Amx, amx_int8_piecewise::<F32>),
        kernel!("gemm_piecewise_int8_f16", "amx", Isa::Amx, amx_int8_piecewise::<F16>),
        kernel!("gemm_piecewise_int8_bf16", "amx", Isa::Amx, amx_int8_piecewise::<BF16>),
        kernel!("gemm_piecewise_bf16_f32", "amx", Isa::Amx, piecewise::<amx::AmxTile, BF16, F32>),
        kernel!("gemm_piecewise_bf16_f16", "amx", Isa::Amx, piecewise::<amx::AmxTile, BF16, F16>),
        kernel!("gemm_piecewise_bf16_bf16", "amx", Isa::Amx, piecewise::<amx::AmxTile, BF16, BF16>),
        kernel!("pack_int8", "amx", Isa::Amx, packed::<amx::Amx<amx::SignedSigned>, INT8>),
        kernel!("gemm_bf16_f32", "amx", Isa::Amx, blocked::<amx::AmxTile, BF16, F32>),
        kernel!("gemm_bf16_f16", "amx", Isa::Amx, blocked::<amx::AmxTile, BF16, F16>),
        kernel!("gemm_bf16_bf16", "amx", Isa::Amx, blocked::<amx::AmxTile, BF16, BF16>),
        kernel!("pack_bf16", "amx", Isa::Amx, packed::<amx::AmxTile, BF16>),
    ],
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
