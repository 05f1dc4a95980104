//! Rows of f32, f16 and bf16 elements to f32 and back.

use super::simd::Simd;
use crate::dtype::DType;
use float8::{F8E4M3, F8E5M2};
use half::f16;

/// One element as f32.
///
/// # Safety
/// `p` points to an element of `dtype`.
#[inline(always)]
pub(super) unsafe fn element(p: *const u8, dtype: DType) -> f32 {
    // SAFETY: forwarded.
    unsafe {
        match dtype {
            DType::F16 => f16::from_bits(p.cast::<u16>().read_unaligned()).to_f32(),
            DType::Bf16 => f32::from_bits(u32::from(p.cast::<u16>().read_unaligned()) << 16),
            DType::I8 => f32::from(*p.cast::<i8>()),
            DType::F8E4M3 => E4M3[usize::from(*p)],
            DType::F8E5M2 => E5M2[usize::from(*p)],
            _ => p.cast::<f32>().read_unaligned(),
        }
    }
}

/// The values of an 8-bit format with this many bits of mantissa, by their bits.
const fn fp8_values(mantissa: u32) -> [f32; 256] {
    let mut values = [0.0; 256];
    let mut bits = 0u8;
    loop {
        values[bits as usize] =
            if mantissa == 3 { F8E4M3::from_bits(bits).to_f32() } else { F8E5M2::from_bits(bits).to_f32() };
        if bits == 255 {
            return values;
        }
        bits += 1;
    }
}

static E4M3: [f32; 256] = fp8_values(3);
static E5M2: [f32; 256] = fp8_values(2);

/// Loads one register of elements of `dtype`.
///
/// # Safety
/// As [`Simd`]; `p` points to `S::LANES` elements.
#[inline(always)]
pub(super) unsafe fn load<S: Simd>(p: *const u8, dtype: DType) -> S::V {
    // SAFETY: forwarded.
    unsafe {
        match dtype {
            DType::F16 => S::load_f16(p.cast()),
            DType::Bf16 => S::load_bf16(p.cast()),
            DType::I8 => S::load_i8(p.cast()),
            _ => S::load(p.cast()),
        }
    }
}

/// `dst[i] = src[i]` for `n` elements of `dtype`.
///
/// # Safety
/// As [`Simd`]; both point to `n` elements.
#[inline(always)]
pub(super) unsafe fn widen<S: Simd>(src: *const u8, dtype: DType, dst: *mut f32, n: usize) {
    // SAFETY: forwarded.
    unsafe {
        match dtype {
            DType::F16 => {
                let whole = n - n % S::LANES;
                for i in (0..whole).step_by(S::LANES) {
                    S::store(dst.add(i), S::load_f16(src.cast::<u16>().add(i)));
                }
                for i in whole..n {
                    *dst.add(i) = element(src.add(2 * i), DType::F16);
                }
            }
            DType::Bf16 => {
                for i in 0..n {
                    *dst.add(i) = element(src.add(2 * i), DType::Bf16);
                }
            }
            DType::I8 | DType::F8E4M3 | DType::F8E5M2 => {
                for i in 0..n {
                    *dst.add(i) = element(src.add(i), dtype);
                }
            }
            _ => copy::<S>(src.cast(), dst, n),
        }
    }
}

/// `dst[i] = src[i]`, rounded to nearest even, for `n` elements of `dtype`. NaN stays NaN. Past the range of an 8-bit format
/// lies its largest number, of 16 bits infinity.
///
/// # Safety
/// As [`Simd`]; both point to `n` elements.
#[inline(always)]
pub(super) unsafe fn narrow<S: Simd>(src: *const f32, dst: *mut u8, dtype: DType, n: usize) {
    // SAFETY: forwarded.
    unsafe {
        match dtype {
            DType::F16 => {
                let whole = n - n % S::LANES;
                for i in (0..whole).step_by(S::LANES) {
                    S::store_f16(dst.cast::<u16>().add(i), S::load(src.add(i)));
                }
                for i in whole..n {
                    dst.cast::<u16>().add(i).write_unaligned(f16::from_f32(*src.add(i)).to_bits());
                }
            }
            DType::Bf16 => {
                let whole = n - n % S::LANES;
                for i in (0..whole).step_by(S::LANES) {
                    S::store_bf16(dst.cast::<u16>().add(i), S::load(src.add(i)));
                }
                for i in whole..n {
                    dst.cast::<u16>().add(i).write_unaligned(bf16_bits(*src.add(i)));
                }
            }
            DType::F8E4M3 => {
                for i in 0..n {
                    *dst.add(i) = F8E4M3::from_f32(*src.add(i)).to_bits();
                }
            }
            DType::F8E5M2 => {
                for i in 0..n {
                    *dst.add(i) = F8E5M2::from_f32(*src.add(i)).to_bits();
                }
            }
            _ => copy::<S>(src, dst.cast(), n),
        }
    }
}

/// Rows of a tile are too short for a call of memcpy.
#[inline(always)]
unsafe fn copy<S: Simd>(src: *const f32, dst: *mut f32, n: usize) {
    let whole = n - n % S::LANES;
    // SAFETY: forwarded.
    unsafe {
        for i in (0..whole).step_by(S::LANES) {
            S::store(dst.add(i), S::load(src.add(i)));
        }
        for i in whole..n {
            dst.add(i).write_unaligned(src.add(i).read_unaligned());
        }
    }
}

/// `half::bf16::from_f32` without branches, so that loops over it are vectorised.
#[inline(always)]
#[allow(clippy::cast_possible_truncation)] // The upper half is what is asked for.
pub(super) fn bf16_bits(x: f32) -> u16 {
    let bits = x.to_bits();
    let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16;
    let nan = (bits >> 16) | 0x40;
    (if bits & 0x7fff_ffff > 0x7f80_0000 { nan } else { rounded }) as u16
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::cpu::simd::Task;
    use half::bf16;

    /// Bits of every kind of number, NaN of both signs and infinities among them.
    fn samples() -> impl Iterator<Item = f32> {
        let special = [0x7FFF_8C22u32, 0x7F80_0001, 0xFFC0_0000, 0x7F80_0000, 0xFF80_0000, 0x8000_0000];
        special
            .into_iter()
            .chain((0..=u32::MAX >> 12).map(|i| (i << 12) ^ (i.wrapping_mul(0x9E37_79B9) & 0x1_ffff)))
            .map(f32::from_bits)
    }

    /// Each of the samples through the vectors of an instruction set, and back.
    struct Stores<'a>(&'a [f32], DType);

    impl Task for Stores<'_> {
        #[inline(always)]
        unsafe fn run<S: Simd>(self) {
            let (mut bits, mut back) = ([0u16; 16], [0f32; 16]);
            for chunk in self.0.chunks_exact(S::LANES) {
                // SAFETY: the chunk and the arrays have as many elements as a register.
                unsafe {
                    narrow::<S>(chunk.as_ptr(), bits.as_mut_ptr().cast(), self.1, S::LANES);
                    widen::<S>(bits.as_ptr().cast(), self.1, back.as_mut_ptr(), S::LANES);
                }
                for ((x, &got), &wide) in chunk.iter().zip(&bits).zip(&back) {
                    let (want, want_wide, nan) = match self.1 {
                        DType::F16 => (f16::from_f32(*x).to_bits(), f16::from_bits(got).to_f32(), x.is_nan()),
                        _ => (bf16::from_f32(*x).to_bits(), bf16::from_bits(got).to_f32(), false),
                    };
                    // Which NaN an f16 becomes is left open.
                    assert!(
                        if nan { f16::from_bits(got).is_nan() } else { got == want },
                        "{x:?}: {got:#x}, not {want:#x}"
                    );
                    assert!(wide == want_wide || wide.is_nan() && want_wide.is_nan(), "{got:#x}: {wide:?}");
                }
            }
        }
    }

    #[test]
    fn vectors_round_as_half_does() {
        let samples: Vec<f32> = samples().collect();
        use crate::device::cpu::simd;
        #[cfg(target_arch = "x86_64")]
        use crate::device::{Isa, cpu::isa::usable};
        for dtype in [DType::F16, DType::Bf16] {
            let task = || Stores(&samples, dtype);
            // SAFETY: the processor has the instruction set.
            unsafe {
                simd::Scalar::vectorize(task());
                #[cfg(target_arch = "aarch64")]
                simd::Neon::vectorize(task());
                #[cfg(target_arch = "x86_64")]
                if usable(Isa::Avx2) {
                    simd::Avx2::vectorize(task());
                }
                #[cfg(target_arch = "x86_64")]
                if usable(Isa::Avx512) {
                    simd::Avx512::vectorize(task());
                }
            }
        }
    }

    #[test]
    fn bf16_rounding_is_that_of_half() {
        // tile-ai/tilelang#2481: NaN payloads that a plain rounding add turns into -0 and infinity.
        for x in samples() {
            assert_eq!(bf16_bits(x), bf16::from_f32(x).to_bits(), "{x:?}");
        }
    }
}
