//! NEON.

use super::super::gemm::int8::Pairs;
use super::{Simd, Task};
use std::arch::aarch64::*;

/// aarch64 NEON. The conversions of f16 are part of it; arithmetic on f16 is not.
#[derive(Clone, Copy)]
pub(in super::super) struct Neon;

impl Simd for Neon {
    type V = float32x4_t;
    const LANES: usize = 4;

    #[inline(always)]
    unsafe fn vectorize<T: Task>(task: T) {
        #[target_feature(enable = "neon")]
        unsafe fn enabled<T: Task>(task: T) {
            // SAFETY: forwarded.
            unsafe { task.run::<Neon>() }
        }
        // SAFETY: forwarded.
        unsafe { enabled(task) }
    }
    #[inline(always)]
    unsafe fn splat(x: f32) -> float32x4_t {
        // SAFETY: the caller has NEON.
        unsafe { vdupq_n_f32(x) }
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> float32x4_t {
        // SAFETY: forwarded.
        unsafe { vld1q_f32(p) }
    }
    #[inline(always)]
    unsafe fn store(p: *mut f32, v: float32x4_t) {
        // SAFETY: forwarded.
        unsafe { vst1q_f32(p, v) }
    }
    #[inline(always)]
    unsafe fn add(a: float32x4_t, b: float32x4_t) -> float32x4_t {
        // SAFETY: the caller has NEON.
        unsafe { vaddq_f32(a, b) }
    }
    #[inline(always)]
    unsafe fn fma(a: float32x4_t, b: float32x4_t, c: float32x4_t) -> float32x4_t {
        // SAFETY: the caller has NEON.
        unsafe { vfmaq_f32(c, a, b) }
    }
    #[inline(always)]
    unsafe fn load_bf16(p: *const u16) -> float32x4_t {
        // SAFETY: forwarded.
        unsafe { vreinterpretq_f32_u32(vshlq_n_u32::<16>(vmovl_u16(vld1_u16(p)))) }
    }
    #[inline(always)]
    unsafe fn store_bf16(p: *mut u16, v: float32x4_t) {
        // SAFETY: forwarded. A NaN is kept by its quiet bit, everything else is rounded by an addition.
        unsafe {
            let bits = vreinterpretq_u32_f32(v);
            let odd = vandq_u32(vshrq_n_u32::<16>(bits), vdupq_n_u32(1));
            let rounded = vaddq_u32(vaddq_u32(bits, vdupq_n_u32(0x7fff)), odd);
            let quiet = vorrq_u32(bits, vdupq_n_u32(0x40_0000));
            vst1_u16(p, vshrn_n_u32::<16>(vbslq_u32(vceqq_f32(v, v), rounded, quiet)));
        }
    }
    #[inline(always)]
    unsafe fn load_f16(p: *const u16) -> float32x4_t {
        // SAFETY: forwarded.
        unsafe { vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p))) }
    }
    #[inline(always)]
    unsafe fn store_f16(p: *mut u16, v: float32x4_t) {
        // SAFETY: forwarded. Rounds to nearest even, as programs start.
        unsafe { vst1_u16(p, vreinterpret_u16_f16(vcvt_f16_f32(v))) }
    }
    #[inline(always)]
    unsafe fn transpose4(src: *const u32, from: usize, dst: *mut u32, to: usize) {
        // SAFETY: forwarded.
        unsafe {
            let row = |i: usize| vld1q_u32(src.add(i * from));
            let (ab, cd) = (vtrnq_u32(row(0), row(1)), vtrnq_u32(row(2), row(3)));
            let join = |low: uint32x4_t, high: uint32x4_t, upper: bool| {
                if upper {
                    vcombine_u32(vget_high_u32(low), vget_high_u32(high))
                } else {
                    vcombine_u32(vget_low_u32(low), vget_low_u32(high))
                }
            };
            vst1q_u32(dst, join(ab.0, cd.0, false));
            vst1q_u32(dst.add(to), join(ab.1, cd.1, false));
            vst1q_u32(dst.add(2 * to), join(ab.0, cd.0, true));
            vst1q_u32(dst.add(3 * to), join(ab.1, cd.1, true));
        }
    }
}

impl Pairs for Neon {
    type S = Neon;
    type V = int32x4_t;

    #[inline(always)]
    unsafe fn zero() -> int32x4_t {
        // SAFETY: the caller has NEON.
        unsafe { vdupq_n_s32(0) }
    }
    #[inline(always)]
    unsafe fn load(p: *const i32) -> int32x4_t {
        // SAFETY: forwarded.
        unsafe { vld1q_s32(p) }
    }
    #[inline(always)]
    unsafe fn store(p: *mut i32, v: int32x4_t) {
        // SAFETY: forwarded.
        unsafe { vst1q_s32(p, v) }
    }
    #[inline(always)]
    unsafe fn splat(x: i32) -> int32x4_t {
        // SAFETY: the caller has NEON.
        unsafe { vdupq_n_s32(x) }
    }
    #[inline(always)]
    unsafe fn add(a: int32x4_t, b: int32x4_t) -> int32x4_t {
        // SAFETY: the caller has NEON.
        unsafe { vaddq_s32(a, b) }
    }
    #[inline(always)]
    unsafe fn dot(sum: int32x4_t, a: int32x4_t, b: int32x4_t) -> int32x4_t {
        // SAFETY: the caller has NEON.
        unsafe {
            let (a, b) = (vreinterpretq_s16_s32(a), vreinterpretq_s16_s32(b));
            let (low, high) = (vmull_s16(vget_low_s16(a), vget_low_s16(b)), vmull_high_s16(a, b));
            vaddq_s32(sum, vpaddq_s32(low, high))
        }
    }
    #[inline(always)]
    unsafe fn vectorize<T: Task>(task: T) {
        // SAFETY: forwarded.
        unsafe { <Neon as Simd>::vectorize(task) }
    }
}
