//! Products with quantised weights, and lookups in quantised tables.
//!
//! `quantized_few_{code}_{x}_{isa}` decodes the weights in place for a few rows of x (`few.rs`);
//! `quantized_many_{code}_{x}_{isa}` decodes blocks of them into scratch memory for the dense product (`many.rs`). Both do all
//! of the family's operations. Bindings: x; codes, scales, biases of each matrix; a bias of each; the residual; the outputs;
//! scratch memory. `quantized_embedding_{code}_{y}_{isa}` has codes, scales, biases, ids, y.

mod embed;
mod few;
mod finish;
pub(super) mod many;
mod operands;

use super::call::{KernelCall, KernelFn};
use super::registry::Builtin;
use super::rows::for_each_isa;
#[cfg(target_arch = "x86_64")]
use crate::device::Isa;
use crate::dtype::DType;
use crate::quant::formats::{Affine4, Affine8, Q4_0, Q4_1, Q4K, Q5_0, Q5_1, Q5K, Q6K, Q8, Q8_0, Signed4};

#[cfg(target_arch = "x86_64")]
use super::simd::Avx512;
use operands::decode;

pub(super) use few::{MAX_ROWS, tile_k, tile_n};

/// Kernels of every format on vectors of `$s`.
macro_rules! formats {
    ($isa:literal, $which:expr, $s:ty) => {
        kernels! { $isa, $which, $s;
        "affine4" Affine4, "affine8" Affine8, "signed4" Signed4, "q8" Q8, "q4_0" Q4_0, "q4_1" Q4_1, "q5_0" Q5_0,
        "q5_1" Q5_1, "q8_0" Q8_0, "q4_k" Q4K, "q5_k" Q5K, "q6_k" Q6K }
    };
}

macro_rules! kernels {
    ($isa:literal, $which:expr, $s:ty; $($name:literal $code:ident),*) => {
        &[$(
            kernel!("few_", $name, "_f32_", $isa, $which, |call| few::run::<$s>(call, DType::F32, decode::<$s, $code>)),
            kernel!("few_", $name, "_f16_", $isa, $which, |call| few::run::<$s>(call, DType::F16, decode::<$s, $code>)),
            kernel!("few_", $name, "_bf16_", $isa, $which, |call| few::run::<$s>(call, DType::Bf16, decode::<$s, $code>)),
            kernel!("many_", $name, "_f32_", $isa, $which, |call| many::run::<$s>(call, DType::F32, $which, decode::<$s, $code>)),
            kernel!("many_", $name, "_f16_", $isa, $which, |call| many::run::<$s>(call, DType::F16, $which, decode::<$s, $code>)),
            kernel!("many_", $name, "_bf16_", $isa, $which, |call| many::run::<$s>(call, DType::Bf16, $which, decode::<$s, $code>)),
            kernel!("embedding_", $name, "_f32_", $isa, $which, |call| embed::run::<$s>(call, DType::F32, decode::<$s, $code>)),
            kernel!("embedding_", $name, "_f16_", $isa, $which, |call| embed::run::<$s>(call, DType::F16, decode::<$s, $code>)),
            kernel!("embedding_", $name, "_bf16_", $isa, $which, |call| embed::run::<$s>(call, DType::Bf16, decode::<$s, $code>)),
        )*]
    };
}

/// The dense product of bf16 rows on AMX tiles.
#[cfg(target_arch = "x86_64")]
macro_rules! amx {
    ($($name:literal $code:ident),*) => {
        &[$(kernel!("many_", $name, "_bf16_", "amx", Isa::Amx, |call| {
            many::run::<Avx512>(call, DType::Bf16, Isa::Amx, decode::<Avx512, $code>)
        })),*]
    };
}

macro_rules! kernel {
    ($prefix:literal, $name:literal, $types:literal, $isa:literal, $which:expr, |$call:ident| $body:expr) => {{
        unsafe fn entry($call: &KernelCall<'_>) {
            // SAFETY: forwarded.
            unsafe { $body }
        }
        Builtin {
            module: "quant",
            name: concat!("quantized_", $prefix, $name, $types, $isa),
            isa: $which,
            function: entry as KernelFn,
        }
    }};
}

/// Every kernel of this family, by instruction set.
pub(super) const BUILTINS: &[&[Builtin]] = for_each_isa!(formats);

/// The kernels that need AMX.
#[cfg(target_arch = "x86_64")]
pub(super) const AMX: &[&[Builtin]] = &[amx! {
    "affine4" Affine4, "affine8" Affine8, "signed4" Signed4, "q8" Q8, "q4_0" Q4_0, "q4_1" Q4_1, "q5_0" Q5_0,
    "q5_1" Q5_1, "q8_0" Q8_0, "q4_k" Q4K, "q5_k" Q5K, "q6_k" Q6K
}];

/// No such kernels on other architectures.
#[cfg(not(target_arch = "x86_64"))]
pub(super) const AMX: &[&[Builtin]] = &[];
