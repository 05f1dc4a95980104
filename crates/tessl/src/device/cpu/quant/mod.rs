//! Products with quantised weights, and lookups in quantised tables.
//!
//! `quantized_dot_{code}_{x}_{isa}` multiplies the codes of a few rows as whole numbers (`dot.rs`);
//! `quantized_few_{code}_{x}_{isa}` decodes the weights in place for a few rows of x (`few.rs`);
//! `quantized_many_{code}_{x}_{isa}` decodes blocks of them into scratch memory for the dense product (`many.rs`). All do
//! every operation of the family. Bindings: x; codes, scales, biases of each matrix; a bias of each; the residual; the outputs;
//! scratch memory. `quantized_embedding_{code}_{y}_{isa}` has codes, scales, biases, ids, y.

#[cfg(target_arch = "x86_64")]
mod dot;
mod embed;
mod few;
mod finish;
#[cfg(target_arch = "x86_64")]
mod fixed;
pub(super) mod many;
mod operands;

use super::call::{KernelCall, KernelFn};
use super::registry::Builtin;
use super::rows::for_each_isa;
use super::simd::Simd;
#[cfg(target_arch = "x86_64")]
use crate::device::Isa;
use crate::dtype::DType;
use crate::quant::formats::{Affine4, Affine8, Q4_0, Q4_1, Q4K, Q5_0, Q5_1, Q5K, Q6K, Q8, Q8_0, Signed4};

#[cfg(target_arch = "x86_64")]
use super::simd::Avx512;
#[cfg(target_arch = "x86_64")]
use dot::{Blocks, Bytes, Eights, Nibbles, Supers, Supers6};
use operands::{DecodeFn, decode};

pub(super) use operands::dtype;

pub(super) use few::{MAX_ROWS, tile_k, tile_n};

/// Elements of a row of x, at most: one row in fixed point fits the workspace of a thread.
pub(super) const FIXED_MAX_K: u32 = 1 << 17;
/// Weights of one chunk of a dot product, about.
const DOT_CHUNK: u32 = 1 << 16;
/// Rows of weights of such a chunk, at most.
const DOT_TILE: u32 = 256;

/// Rows of weights of one chunk of a dot product.
pub(super) fn dot_tile_n(k: u32) -> u32 {
    (DOT_CHUNK / k.max(1)).clamp(16, DOT_TILE) / 16 * 16
}

/// Hands every code to macro `$then`, in the order of their numbers, with what `dot` reads them as.
macro_rules! codes {
    ($then:ident; $($first:tt)*) => {
        $then! { $($first)*
        "affine4" Affine4 Nibbles<false>, "affine8" Affine8 Bytes<false>, "signed4" Signed4 Nibbles<true>,
        "q8" Q8 Bytes<true>, "q4_0" Q4_0 Blocks<18, 2, 0, false, 8>, "q4_1" Q4_1 Blocks<20, 4, 0, true, 0>,
        "q5_0" Q5_0 Blocks<22, 6, 2, false, 16>, "q5_1" Q5_1 Blocks<24, 8, 4, true, 0>, "q8_0" Q8_0 Eights,
        "q4_k" Q4K Supers<false>, "q5_k" Q5K Supers<true>, "q6_k" Q6K Supers6 }
    };
}

/// Kernels of every format on vectors of `$s`.
macro_rules! formats {
    ($isa:literal, $which:expr, $s:ty) => {
        codes! { kernels; $isa, $which, $s; }
    };
}

macro_rules! kernels {
    ($isa:literal, $which:expr, $s:ty; $($name:literal $code:ident $codes:ty),*) => {
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

/// Whole codes times x in fixed point.
#[cfg(target_arch = "x86_64")]
macro_rules! dots {
    ($($name:literal $code:ident $codes:ty),*) => {
        &[$(
            kernel!("dot_", $name, "_f32_", "avx512", Isa::Avx512, |call| {
                dot::run(call, DType::F32, decode::<Avx512, $code>, const { &dot::Kernel::of::<$codes>() })
            }),
            kernel!("dot_", $name, "_f16_", "avx512", Isa::Avx512, |call| {
                dot::run(call, DType::F16, decode::<Avx512, $code>, const { &dot::Kernel::of::<$codes>() })
            }),
            kernel!("dot_", $name, "_bf16_", "avx512", Isa::Avx512, |call| {
                dot::run(call, DType::Bf16, decode::<Avx512, $code>, const { &dot::Kernel::of::<$codes>() })
            }),
        )*]
    };
}

/// The dense product of bf16 rows on AMX tiles.
#[cfg(target_arch = "x86_64")]
macro_rules! amx {
    ($($name:literal $code:ident $codes:ty),*) => {
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

/// The kernels that need AMX, and those that need VNNI and do without where it is missing.
#[cfg(target_arch = "x86_64")]
pub(super) const NATIVE: &[&[Builtin]] = &[codes! { amx; }, codes! { dots; }];

/// No such kernels on other architectures.
#[cfg(not(target_arch = "x86_64"))]
pub(super) const NATIVE: &[&[Builtin]] = &[];

/// The decoders of every code on vectors of `$s`.
macro_rules! decoders {
    ($s:ty; $($name:literal $code:ident $codes:ty),*) => { [$(decode::<$s, $code> as DecodeFn),*] };
}

/// Every code as `dot` reads it.
#[cfg(target_arch = "x86_64")]
macro_rules! dot_kernels {
    ($($name:literal $code:ident $codes:ty),*) => { [$(dot::Kernel::of::<$codes>()),*] };
}

/// The decoder of weights by the number of their code; dense f32, f16 and bf16 come after the codes.
fn decoder<S: Simd>(number: u32) -> DecodeFn {
    let coded: [DecodeFn; 12] = codes! { decoders; S; };
    coded.get(number as usize).copied().unwrap_or_else(|| operands::dense::<S>(number))
}

/// The product of a few rows of f32 with weights of code `number`, decoded in place: as `quantized_few`.
///
/// # Safety
/// The bindings are those of a product with such weights; the processor has `S`.
pub(super) unsafe fn few<S: Simd>(call: &KernelCall<'_>, number: u32) {
    // SAFETY: forwarded.
    unsafe { few::run::<S>(call, DType::F32, decoder::<S>(number)) }
}

/// The same with whole codes times x in fixed point: as `quantized_dot`.
///
/// # Safety
/// The bindings are those of a product with weights of code `number`, which is not dense; the processor has AVX-512.
#[cfg(target_arch = "x86_64")]
pub(super) unsafe fn dot(call: &KernelCall<'_>, number: u32) {
    static KERNELS: [dot::Kernel; 12] = codes! { dot_kernels; };
    // SAFETY: forwarded.
    unsafe { dot::run(call, DType::F32, decoder::<Avx512>(number), &KERNELS[number as usize]) }
}
