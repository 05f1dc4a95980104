//! AVX2 and AVX-512.

use super::super::gemm::int8::Pairs;
use super::{Simd, Task};
use crate::dtype::DType;
use std::arch::x86_64::*;

/// AVX2 with FMA and F16C.
#[derive(Clone, Copy)]
pub(in super::super) struct Avx2;

/// AVX-512 F, BW, DQ and VL.
#[derive(Clone, Copy)]
pub(in super::super) struct Avx512;

#[inline(always)]
unsafe fn transpose4(src: *const u32, from: usize, dst: *mut u32, to: usize) {
    // SAFETY: forwarded; SSE is part of x86-64.
    unsafe {
        let row = |i: usize| _mm_loadu_ps(src.add(i * from).cast());
        let (mut r0, mut r1, mut r2, mut r3) = (row(0), row(1), row(2), row(3));
        _MM_TRANSPOSE4_PS(&mut r0, &mut r1, &mut r2, &mut r3);
        _mm_storeu_ps(dst.cast(), r0);
        _mm_storeu_ps(dst.add(to).cast(), r1);
        _mm_storeu_ps(dst.add(2 * to).cast(), r2);
        _mm_storeu_ps(dst.add(3 * to).cast(), r3);
    }
}

// Roundings to nearest even. In bf16 a NaN is kept by its quiet bit and everything else is rounded by an addition: the
// conversion of AVX512-BF16 would make zeros of subnormal numbers.
impl Avx2 {
    #[inline(always)]
    unsafe fn bf16(v: __m256) -> __m128i {
        // SAFETY: the caller has AVX2.
        unsafe {
            let bits = _mm256_castps_si256(v);
            let odd = _mm256_and_si256(_mm256_srli_epi32::<16>(bits), _mm256_set1_epi32(1));
            let rounded = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
            let quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x40_0000));
            let nan = _mm256_castps_si256(_mm256_cmp_ps::<_CMP_UNORD_Q>(v, v));
            let upper = _mm256_srli_epi32::<16>(_mm256_blendv_epi8(rounded, quiet, nan));
            _mm_packus_epi32(_mm256_castsi256_si128(upper), _mm256_extracti128_si256::<1>(upper))
        }
    }

    #[inline(always)]
    unsafe fn half(v: __m256) -> __m128i {
        // SAFETY: the caller has F16C.
        unsafe { _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v) }
    }
}

impl Avx512 {
    #[inline(always)]
    unsafe fn bf16(v: __m512) -> __m256i {
        // SAFETY: the caller has AVX-512.
        unsafe {
            let bits = _mm512_castps_si512(v);
            let odd = _mm512_and_si512(_mm512_srli_epi32::<16>(bits), _mm512_set1_epi32(1));
            let rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
            let nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(v, v);
            let kept = _mm512_mask_or_epi32(rounded, nan, bits, _mm512_set1_epi32(0x40_0000));
            _mm512_cvtepi32_epi16(_mm512_srli_epi32::<16>(kept))
        }
    }

    #[inline(always)]
    unsafe fn half(v: __m512) -> __m256i {
        // SAFETY: the caller has AVX-512.
        unsafe { _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v) }
    }
}

impl Simd for Avx2 {
    type V = __m256;
    const LANES: usize = 8;
    const STREAMS: bool = true;

    #[inline(always)]
    unsafe fn vectorize<T: Task>(task: T) {
        #[target_feature(enable = "avx2,fma,f16c")]
        unsafe fn enabled<T: Task>(task: T) {
            // SAFETY: forwarded.
            unsafe { task.run::<Avx2>() }
        }
        // SAFETY: forwarded.
        unsafe { enabled(task) }
    }
    #[inline(always)]
    unsafe fn splat(x: f32) -> __m256 {
        // SAFETY: the caller has AVX2.
        unsafe { _mm256_set1_ps(x) }
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> __m256 {
        // SAFETY: forwarded.
        unsafe { _mm256_loadu_ps(p) }
    }
    #[inline(always)]
    unsafe fn store(p: *mut f32, v: __m256) {
        // SAFETY: forwarded.
        unsafe { _mm256_storeu_ps(p, v) }
    }
    #[inline(always)]
    unsafe fn add(a: __m256, b: __m256) -> __m256 {
        // SAFETY: the caller has AVX2.
        unsafe { _mm256_add_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn fma(a: __m256, b: __m256, c: __m256) -> __m256 {
        // SAFETY: the caller has FMA.
        unsafe { _mm256_fmadd_ps(a, b, c) }
    }
    #[inline(always)]
    unsafe fn load_bf16(p: *const u16) -> __m256 {
        // SAFETY: forwarded.
        unsafe { _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(_mm_loadu_si128(p.cast())))) }
    }
    #[inline(always)]
    unsafe fn store_bf16(p: *mut u16, v: __m256) {
        // SAFETY: forwarded.
        unsafe { _mm_storeu_si128(p.cast(), Avx2::bf16(v)) }
    }
    #[inline(always)]
    unsafe fn load_f16(p: *const u16) -> __m256 {
        // SAFETY: forwarded.
        unsafe { _mm256_cvtph_ps(_mm_loadu_si128(p.cast())) }
    }
    #[inline(always)]
    unsafe fn load_i8(p: *const i8) -> __m256 {
        // SAFETY: forwarded.
        unsafe { _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(p.cast()))) }
    }
    #[inline(always)]
    unsafe fn store_f16(p: *mut u16, v: __m256) {
        // SAFETY: forwarded.
        unsafe { _mm_storeu_si128(p.cast(), Avx2::half(v)) }
    }
    #[inline(always)]
    unsafe fn transpose4(src: *const u32, from: usize, dst: *mut u32, to: usize) {
        // SAFETY: forwarded.
        unsafe { transpose4(src, from, dst, to) }
    }
    #[inline(always)]
    unsafe fn prefetch(p: *const u8) {
        // SAFETY: a prefetch never faults.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(p.cast()) }
    }
    #[inline(always)]
    unsafe fn prefetch_far(p: *const u8) {
        // SAFETY: a prefetch never faults.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(p.cast()) }
    }
    #[inline(always)]
    unsafe fn prefetch_write(p: *const u8) {
        // SAFETY: a prefetch never faults.
        unsafe { _mm_prefetch::<_MM_HINT_ET0>(p.cast()) }
    }
    #[inline(always)]
    unsafe fn stream(p: *mut f32, v: __m256) {
        // SAFETY: forwarded.
        unsafe { _mm256_stream_ps(p, v) }
    }
    #[inline(always)]
    unsafe fn stream_short(p: *mut u16, [low, high]: [__m256; 2], dtype: DType) {
        // SAFETY: forwarded.
        unsafe {
            let [low, high] = match dtype {
                DType::Bf16 => [Avx2::bf16(low), Avx2::bf16(high)],
                _ => [Avx2::half(low), Avx2::half(high)],
            };
            _mm256_stream_si256(p.cast(), _mm256_set_m128i(high, low));
        }
    }
    #[inline(always)]
    unsafe fn stream_end() {
        // SAFETY: SSE is part of x86-64.
        unsafe { _mm_sfence() }
    }
}

impl Simd for Avx512 {
    type V = __m512;
    const LANES: usize = 16;
    const STREAMS: bool = true;

    #[inline(always)]
    unsafe fn vectorize<T: Task>(task: T) {
        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
        unsafe fn enabled<T: Task>(task: T) {
            // SAFETY: forwarded.
            unsafe { task.run::<Avx512>() }
        }
        // SAFETY: forwarded.
        unsafe { enabled(task) }
    }
    #[inline(always)]
    unsafe fn splat(x: f32) -> __m512 {
        // SAFETY: the caller has AVX-512.
        unsafe { _mm512_set1_ps(x) }
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> __m512 {
        // SAFETY: forwarded.
        unsafe { _mm512_loadu_ps(p) }
    }
    #[inline(always)]
    unsafe fn store(p: *mut f32, v: __m512) {
        // SAFETY: forwarded.
        unsafe { _mm512_storeu_ps(p, v) }
    }
    #[inline(always)]
    unsafe fn add(a: __m512, b: __m512) -> __m512 {
        // SAFETY: the caller has AVX-512.
        unsafe { _mm512_add_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn fma(a: __m512, b: __m512, c: __m512) -> __m512 {
        // SAFETY: the caller has AVX-512.
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }
    #[inline(always)]
    unsafe fn load_bf16(p: *const u16) -> __m512 {
        // SAFETY: forwarded.
        unsafe { _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(_mm256_loadu_si256(p.cast())))) }
    }
    #[inline(always)]
    unsafe fn store_bf16(p: *mut u16, v: __m512) {
        // SAFETY: forwarded.
        unsafe { _mm256_storeu_si256(p.cast(), Avx512::bf16(v)) }
    }
    #[inline(always)]
    unsafe fn load_f16(p: *const u16) -> __m512 {
        // SAFETY: forwarded.
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(p.cast())) }
    }
    #[inline(always)]
    unsafe fn load_i8(p: *const i8) -> __m512 {
        // SAFETY: forwarded.
        unsafe { _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(p.cast()))) }
    }
    #[inline(always)]
    unsafe fn store_f16(p: *mut u16, v: __m512) {
        // SAFETY: forwarded.
        unsafe { _mm256_storeu_si256(p.cast(), Avx512::half(v)) }
    }
    #[inline(always)]
    unsafe fn transpose4(src: *const u32, from: usize, dst: *mut u32, to: usize) {
        // SAFETY: forwarded.
        unsafe { transpose4(src, from, dst, to) }
    }
    #[inline(always)]
    unsafe fn prefetch(p: *const u8) {
        // SAFETY: a prefetch never faults.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(p.cast()) }
    }
    #[inline(always)]
    unsafe fn prefetch_far(p: *const u8) {
        // SAFETY: a prefetch never faults.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(p.cast()) }
    }
    #[inline(always)]
    unsafe fn prefetch_write(p: *const u8) {
        // SAFETY: a prefetch never faults.
        unsafe { _mm_prefetch::<_MM_HINT_ET0>(p.cast()) }
    }
    #[inline(always)]
    unsafe fn stream(p: *mut f32, v: __m512) {
        // SAFETY: forwarded.
        unsafe { _mm512_stream_ps(p, v) }
    }
    #[inline(always)]
    unsafe fn stream_short(p: *mut u16, [low, high]: [__m512; 2], dtype: DType) {
        // SAFETY: forwarded.
        unsafe {
            let [low, high] = match dtype {
                DType::Bf16 => [Avx512::bf16(low), Avx512::bf16(high)],
                _ => [Avx512::half(low), Avx512::half(high)],
            };
            _mm512_stream_si512(p.cast(), _mm512_inserti64x4::<1>(_mm512_castsi256_si512(low), high));
        }
    }
    #[inline(always)]
    unsafe fn stream_end() {
        // SAFETY: SSE is part of x86-64.
        unsafe { _mm_sfence() }
    }
}

/// AVX-512 with VNNI, for pairs of i16.
pub(in super::super) struct Vnni;

macro_rules! pairs {
    ($name:ident, $s:ident, $v:ty, $features:literal, $zero:ident, $load:ident, $store:ident, $splat:ident, $add:ident,
        dot($sum:ident, $a:ident, $b:ident) = $dot:expr) => {
        impl Pairs for $name {
            type S = $s;
            type V = $v;

            #[inline(always)]
            unsafe fn zero() -> $v {
                // SAFETY: the caller has the instruction set.
                unsafe { $zero() }
            }
            #[inline(always)]
            unsafe fn load(p: *const i32) -> $v {
                // SAFETY: forwarded.
                unsafe { $load(p.cast()) }
            }
            #[inline(always)]
            unsafe fn store(p: *mut i32, v: $v) {
                // SAFETY: forwarded.
                unsafe { $store(p.cast(), v) }
            }
            #[inline(always)]
            unsafe fn splat(x: i32) -> $v {
                // SAFETY: the caller has the instruction set.
                unsafe { $splat(x) }
            }
            #[inline(always)]
            unsafe fn add(a: $v, b: $v) -> $v {
                // SAFETY: the caller has the instruction set.
                unsafe { $add(a, b) }
            }
            #[inline(always)]
            unsafe fn dot($sum: $v, $a: $v, $b: $v) -> $v {
                // SAFETY: the caller has the instruction set.
                unsafe { $dot }
            }
            #[inline(always)]
            unsafe fn vectorize<T: Task>(task: T) {
                #[target_feature(enable = $features)]
                unsafe fn enabled<T: Task>(task: T) {
                    // SAFETY: forwarded.
                    unsafe { task.run::<$s>() }
                }
                // SAFETY: forwarded.
                unsafe { enabled(task) }
            }
        }
    };
}

pairs!(
    Avx2,
    Avx2,
    __m256i,
    "avx2,fma,f16c",
    _mm256_setzero_si256,
    _mm256_loadu_si256,
    _mm256_storeu_si256,
    _mm256_set1_epi32,
    _mm256_add_epi32,
    dot(sum, a, b) = _mm256_add_epi32(sum, _mm256_madd_epi16(a, b))
);
pairs!(
    Avx512,
    Avx512,
    __m512i,
    "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c",
    _mm512_setzero_si512,
    _mm512_loadu_si512,
    _mm512_storeu_si512,
    _mm512_set1_epi32,
    _mm512_add_epi32,
    dot(sum, a, b) = _mm512_add_epi32(sum, _mm512_madd_epi16(a, b))
);
pairs!(
    Vnni,
    Avx512,
    __m512i,
    "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c",
    _mm512_setzero_si512,
    _mm512_loadu_si512,
    _mm512_storeu_si512,
    _mm512_set1_epi32,
    _mm512_add_epi32,
    dot(sum, a, b) = _mm512_dpwssd_epi32(sum, a, b)
);
