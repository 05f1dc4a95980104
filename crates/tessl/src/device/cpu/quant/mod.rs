//! Products with quantised weights, and lookups in quantised tables.
//!
//! `quantized_dot_{code}_{x}_{isa}` multiplies the codes of a few rows as whole numbers (`dot.rs`);
//! `quantized_few_{code}_{x}_{isa}` decodes the weights in place for a few rows of x (`few.rs`);
//! `quantized_many_{code}_{x}_{isa}` decodes blocks of them into scratch memory for the dense product (`many.rs`). All do
//! every operation of the family. Bindings: x; codes, scales, biases of each matrix; a bias of each; the residual; the outputs;
//! scratch memory. `quantized_embedding_{code}_{y}_{isa}` has codes, scales, biases, ids, y. A code ending in `x16` has sixteen
//! rows side by side (`QLayout::Rows16`).

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
use operands::decode_rows16;
use operands::{DecodeFn, decode};

pub(super) use few::{MAX_ROWS, tile_k, tile_n};
pub(super) use operands::dtype;

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

/// Whether there are kernels for sixteen rows side by side.
pub(super) fn reads_rows16(isa: crate::device::Isa) -> bool {
    matches!(isa, crate::device::Isa::Avx512 | crate::device::Isa::Amx)
}

/// Whether they are the fastest on this processor.
pub(in crate::device) fn prefers_rows16(isa: crate::device::Isa) -> bool {
    #[cfg(target_arch = "x86_64")]
    return reads_rows16(isa) && fixed::usable();
    #[cfg(not(target_arch = "x86_64"))]
    return reads_rows16(isa);
}

/// Hands every code to macro `$then`, in the order of their numbers, with what `dot` reads it as.
macro_rules! codes {
    ($then:ident; $($first:tt)*) => {
        $then! { $($first)*
        "affine4" Affine4 dot::Kernel::of::<dot::Nibbles<false>>(), "affine8" Affine8 dot::Kernel::of::<dot::Bytes<false>>(),
        "signed4" Signed4 dot::Kernel::of::<dot::Nibbles<true>>(), "q8" Q8 dot::Kernel::of::<dot::Bytes<true>>(),
        "q4_0" Q4_0 dot::Kernel::of::<dot::Blocks<18, 2, 0, false, 8>>(),
        "q4_1" Q4_1 dot::Kernel::of::<dot::Blocks<20, 4, 0, true, 0>>(),
        "q5_0" Q5_0 dot::Kernel::of::<dot::Blocks<22, 6, 2, false, 16>>(),
        "q5_1" Q5_1 dot::Kernel::of::<dot::Blocks<24, 8, 4, true, 0>>(),
        "q8_0" Q8_0 dot::Kernel::of::<dot::Eights>(), "q4_k" Q4K dot::Kernel::of::<dot::Supers<false>>(),
        "q5_k" Q5K dot::Kernel::of::<dot::Supers<true>>(), "q6_k" Q6K dot::Kernel::of::<dot::Supers6>() }
    };
}

/// The same for those that can lie with sixteen rows side by side: q4_0, number 4, and the ones after it.
#[cfg(target_arch = "x86_64")]
macro_rules! codes16 {
    ($then:ident; $($first:tt)*) => {
        $then! { $($first)*
        "q4_0x16" Q4_0 dot::FOURS16, "q4_1x16" Q4_1 dot::FOURS16_MIN, "q5_0x16" Q5_0 dot::FIVES16,
        "q5_1x16" Q5_1 dot::FIVES16_MIN, "q8_0x16" Q8_0 dot::EIGHTS16 }
    };
}

/// Kernels of every format on vectors of `$s`.
macro_rules! formats {
    ($isa:literal, $which:expr, $s:ty) => {
        codes! { kernels; $isa, $which, $s; }
    };
}

macro_rules! kernels {
    ($isa:literal, $which:expr, $s:ty; $($name:literal $code:ident $kernel:expr),*) => {
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

/// Whole codes times x in fixed point. The codes as `dot` reads them stand last.
#[cfg(target_arch = "x86_64")]
macro_rules! dots {
    ($decode:ident; $($name:literal $code:ident $kernel:expr),*) => {
        &[$(
            kernel!("dot_", $name, "_f32_", "avx512", Isa::Avx512, |call| {
                dot::run(call, DType::F32, $decode::<Avx512, $code>, const { &$kernel })
            }),
            kernel!("dot_", $name, "_f16_", "avx512", Isa::Avx512, |call| {
                dot::run(call, DType::F16, $decode::<Avx512, $code>, const { &$kernel })
            }),
            kernel!("dot_", $name, "_bf16_", "avx512", Isa::Avx512, |call| {
                dot::run(call, DType::Bf16, $decode::<Avx512, $code>, const { &$kernel })
            }),
        )*]
    };
}

/// What the order of sixteen rows has beside dot products.
#[cfg(target_arch = "x86_64")]
macro_rules! sixteens {
    ($($name:literal $code:ident $kernel:expr),*) => {
        &[$(
            kernel!("many_", $name, "_f32_", "avx512", Isa::Avx512, |call| {
                many::run::<Avx512>(call, DType::F32, Isa::Avx512, decode_rows16::<Avx512, $code>)
            }),
            kernel!("many_", $name, "_f16_", "avx512", Isa::Avx512, |call| {
                many::run::<Avx512>(call, DType::F16, Isa::Avx512, decode_rows16::<Avx512, $code>)
            }),
            kernel!("many_", $name, "_bf16_", "avx512", Isa::Avx512, |call| {
                many::run::<Avx512>(call, DType::Bf16, Isa::Avx512, decode_rows16::<Avx512, $code>)
            }),
            kernel!("embedding_", $name, "_f32_", "avx512", Isa::Avx512, |call| {
                embed::run::<Avx512>(call, DType::F32, decode_rows16::<Avx512, $code>)
            }),
            kernel!("embedding_", $name, "_f16_", "avx512", Isa::Avx512, |call| {
                embed::run::<Avx512>(call, DType::F16, decode_rows16::<Avx512, $code>)
            }),
            kernel!("embedding_", $name, "_bf16_", "avx512", Isa::Avx512, |call| {
                embed::run::<Avx512>(call, DType::Bf16, decode_rows16::<Avx512, $code>)
            }),
        )*]
    };
}

/// The dense product of bf16 rows on AMX tiles.
#[cfg(target_arch = "x86_64")]
macro_rules! amx {
    ($decode:ident; $($name:literal $code:ident $kernel:expr),*) => {
        &[$(kernel!("many_", $name, "_bf16_", "amx", Isa::Amx, |call| {
            many::run::<Avx512>(call, DType::Bf16, Isa::Amx, $decode::<Avx512, $code>)
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
pub(super) const NATIVE: &[&[Builtin]] = &[
    codes! { amx; decode; },
    codes! { dots; decode; },
    codes16! { amx; decode_rows16; },
    codes16! { dots; decode_rows16; },
    codes16! { sixteens; },
];

/// No such kernels on other architectures.
#[cfg(not(target_arch = "x86_64"))]
pub(super) const NATIVE: &[&[Builtin]] = &[];

/// The decoders of codes on vectors of `$s`.
macro_rules! decoders {
    ($decode:ident, $s:ty; $($name:literal $code:ident $kernel:expr),*) => { [$($decode::<$s, $code> as DecodeFn),*] };
}

/// Codes as `dot` reads them.
#[cfg(target_arch = "x86_64")]
macro_rules! dot_kernels {
    ($($name:literal $code:ident $kernel:expr),*) => { [$($kernel),*] };
}

/// The first of the codes whose rows lie sixteen side by side: 16 more than q4_0 has otherwise.
#[cfg(target_arch = "x86_64")]
const FIRST16: u32 = 16 + 4;

/// The decoder of weights by the number of their code; dense f32, f16 and bf16 come after the codes, then those with sixteen
/// rows side by side.
fn decoder<S: Simd>(number: u32) -> DecodeFn {
    let coded: [DecodeFn; 12] = codes! { decoders; decode, S; };
    #[cfg(target_arch = "x86_64")]
    if number >= FIRST16 {
        let side_by_side: [DecodeFn; 5] = codes16! { decoders; decode_rows16, S; };
        return side_by_side[(number - FIRST16) as usize];
    }
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
    static SIDE_BY_SIDE: [dot::Kernel; 5] = codes16! { dot_kernels; };
    let kernel = match number.checked_sub(FIRST16) {
        Some(at) => &SIDE_BY_SIDE[at as usize],
        None => &KERNELS[number as usize],
    };
    // SAFETY: forwarded.
    unsafe { dot::run(call, DType::F32, decoder::<Avx512>(number), kernel) }
}
