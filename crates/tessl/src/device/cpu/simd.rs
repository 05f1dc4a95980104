//! One body, many instruction sets.
//!
//! A kernel body is a [`Task`], written once over [`Simd`] and inlined into `Simd::vectorize`, whose
//! `target_feature` turns the calls into single instructions. Plain loops in a body are vectorised for the same set.

#[cfg(target_arch = "aarch64")]
mod neon;
#[cfg(target_arch = "x86_64")]
mod x86;

#[cfg(target_arch = "aarch64")]
pub(super) use neon::Neon;
#[cfg(target_arch = "x86_64")]
pub(super) use x86::{Avx2, Avx512, Vnni};

use super::convert::bf16_bits;
use crate::dtype::DType;
use half::f16;

/// A body to run with the instructions of `S`. Implementations are `#[inline(always)]`.
pub(super) trait Task {
    /// Runs the body.
    ///
    /// # Safety
    /// Whatever the pointers in the task ask for.
    unsafe fn run<S: Simd>(self);
}

/// Vectors of f32 of one instruction set.
///
/// # Safety of all functions
/// The processor has the instruction set, and pointers are valid for the elements named; no alignment is needed.
pub(super) trait Simd: Copy + 'static {
    /// A register.
    type V: Copy;
    /// f32 elements of a register.
    const LANES: usize;

    /// Runs `task` with this instruction set enabled.
    unsafe fn vectorize<T: Task>(task: T);
    /// `x` in every lane.
    unsafe fn splat(x: f32) -> Self::V;
    /// Loads `LANES` elements.
    unsafe fn load(p: *const f32) -> Self::V;
    /// Stores `LANES` elements.
    unsafe fn store(p: *mut f32, v: Self::V);
    /// `a + b`.
    unsafe fn add(a: Self::V, b: Self::V) -> Self::V;
    /// `a * b + c`, rounded once where the instruction set can.
    unsafe fn fma(a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// Loads and widens `LANES` bf16 elements.
    unsafe fn load_bf16(p: *const u16) -> Self::V;
    /// Rounds to nearest even and stores `LANES` bf16 elements.
    unsafe fn store_bf16(p: *mut u16, v: Self::V);
    /// Loads and widens `LANES` f16 elements.
    unsafe fn load_f16(p: *const u16) -> Self::V;
    /// Rounds to nearest even and stores `LANES` f16 elements.
    unsafe fn store_f16(p: *mut u16, v: Self::V);
    /// Loads and widens `LANES` i8 elements.
    #[inline(always)]
    unsafe fn load_i8(p: *const i8) -> Self::V {
        let mut lanes = [0.0f32; 16];
        for (i, lane) in lanes[..Self::LANES].iter_mut().enumerate() {
            // SAFETY: forwarded.
            *lane = f32::from(unsafe { *p.add(i) });
        }
        // SAFETY: no instruction set has more than 16 lanes.
        unsafe { Self::load(lanes.as_ptr()) }
    }
    /// Transposes 4 x 4 words: `dst[j * to + i] = src[i * from + j]`.
    unsafe fn transpose4(src: *const u32, from: usize, dst: *mut u32, to: usize);

    /// Brings the line at `p` near; `p` need not be valid.
    #[inline(always)]
    unsafe fn prefetch(_p: *const u8) {}

    /// The same, but not into the first-level cache.
    #[inline(always)]
    unsafe fn prefetch_far(_p: *const u8) {}

    /// The same as `prefetch` for a line that will be written.
    #[inline(always)]
    unsafe fn prefetch_write(_p: *const u8) {}

    /// Whether [`stream`](Self::stream) goes past the caches.
    const STREAMS: bool = false;

    /// Stores `LANES` elements past the caches where the instruction set can; `p` is aligned to the register.
    #[inline(always)]
    unsafe fn stream(p: *mut f32, v: Self::V) {
        // SAFETY: forwarded.
        unsafe { Self::store(p, v) }
    }

    /// Rounds two registers to f16 or bf16 and stores them side by side, as `stream` does.
    #[inline(always)]
    unsafe fn stream_short(p: *mut u16, halves: [Self::V; 2], dtype: DType) {
        for (i, v) in halves.into_iter().enumerate() {
            let p = p.wrapping_add(i * Self::LANES);
            // SAFETY: forwarded.
            unsafe { if dtype == DType::Bf16 { Self::store_bf16(p, v) } else { Self::store_f16(p, v) } }
        }
    }

    /// Orders earlier `stream`s before later stores.
    #[inline(always)]
    unsafe fn stream_end() {}

    /// The sum of the lanes, in a fixed order.
    #[inline(always)]
    unsafe fn sum(v: Self::V) -> f32 {
        let mut lanes = [0.0f32; 16];
        // SAFETY: no instruction set has more than 16 lanes.
        unsafe { Self::store(lanes.as_mut_ptr(), v) };
        let mut width = Self::LANES;
        while width > 1 {
            width /= 2;
            for i in 0..width {
                lanes[i] += lanes[i + width];
            }
        }
        lanes[0]
    }
}

/// Four lanes in plain Rust: the twin that every instruction set is tested against. Products and sums round apart.
#[derive(Clone, Copy)]
pub(super) struct Scalar;

impl Simd for Scalar {
    type V = [f32; 4];
    const LANES: usize = 4;

    #[inline(always)]
    unsafe fn vectorize<T: Task>(task: T) {
        // SAFETY: forwarded.
        unsafe { task.run::<Self>() }
    }
    #[inline(always)]
    unsafe fn splat(x: f32) -> [f32; 4] {
        [x; 4]
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> [f32; 4] {
        // SAFETY: forwarded.
        unsafe { p.cast::<[f32; 4]>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn store(p: *mut f32, v: [f32; 4]) {
        // SAFETY: forwarded.
        unsafe { p.cast::<[f32; 4]>().write_unaligned(v) }
    }
    #[inline(always)]
    unsafe fn add(a: [f32; 4], b: [f32; 4]) -> [f32; 4] {
        std::array::from_fn(|i| a[i] + b[i])
    }
    #[inline(always)]
    unsafe fn fma(a: [f32; 4], b: [f32; 4], c: [f32; 4]) -> [f32; 4] {
        std::array::from_fn(|i| a[i] * b[i] + c[i])
    }
    #[inline(always)]
    unsafe fn load_bf16(p: *const u16) -> [f32; 4] {
        // SAFETY: forwarded.
        let v = unsafe { p.cast::<[u16; 4]>().read_unaligned() };
        v.map(|x| f32::from_bits(u32::from(x) << 16))
    }
    #[inline(always)]
    unsafe fn store_bf16(p: *mut u16, v: [f32; 4]) {
        // SAFETY: forwarded.
        unsafe { p.cast::<[u16; 4]>().write_unaligned(v.map(bf16_bits)) }
    }
    #[inline(always)]
    unsafe fn load_f16(p: *const u16) -> [f32; 4] {
        // SAFETY: forwarded.
        let v = unsafe { p.cast::<[u16; 4]>().read_unaligned() };
        v.map(|x| f16::from_bits(x).to_f32())
    }
    #[inline(always)]
    unsafe fn store_f16(p: *mut u16, v: [f32; 4]) {
        // SAFETY: forwarded.
        unsafe { p.cast::<[u16; 4]>().write_unaligned(v.map(|x| f16::from_f32(x).to_bits())) }
    }
    #[inline(always)]
    unsafe fn transpose4(src: *const u32, from: usize, dst: *mut u32, to: usize) {
        for i in 0..4 {
            for j in 0..4 {
                // SAFETY: forwarded.
                unsafe { *dst.add(j * to + i) = src.add(i * from + j).read_unaligned() };
            }
        }
    }
}
