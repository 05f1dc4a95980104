//! Rotary embedding: pairs of elements turn by position times frequency; kernels/simt/rope.metal has the formulas.
//!
//! Kernels are `rope_half_` and `rope_interleaved_{dtype}_{isa}`; bindings x, frequencies, positions, y, where y may be
//! exactly x.

use super::call::{KernelCall, KernelFn};
use super::convert::{narrow, widen};
use super::registry::Builtin;
use super::rows::{RUN, for_each_isa, row_offset};
use super::simd::{Simd, Task};
use crate::args::RopeArgs;
use crate::dtype::DType;

#[cfg(test)]
mod tests;

/// Elements that one chunk turns, about.
const CHUNK: u64 = 16 << 10;
/// Pairs of a row, at most; the API keeps to it.
const PAIRS: usize = 512;

/// Rows of one chunk: depends on the row length alone.
pub(super) fn rows_of_chunk(n: u32) -> u64 {
    (CHUNK / u64::from(n.max(1))).max(1)
}

#[derive(Clone, Copy)]
struct Rope<'a> {
    x: *const u8,
    frequencies: *const u64,
    positions: *const u32,
    y: *mut u8,
    dtype: DType,
    interleaved: bool,
    args: &'a RopeArgs,
    first: u64,
    count: u64,
}

// SAFETY: threads write disjoint rows of y, and y is apart from x or the same rows.
unsafe impl Sync for Rope<'_> {}

impl Rope<'_> {
    /// The position of a row; a negative one is its 64-bit complement.
    fn position(&self, row: u64) -> u64 {
        let a = self.args;
        let at = row_offset(row, [a.r1, a.r2], [a.p_s0, a.p_s1, a.p_s2]);
        let read = |i: usize| {
            // SAFETY: the operand has one element, or one for each row.
            let value = unsafe { self.positions.add(i).read_unaligned() };
            let negative = a.mode & 4 != 0 && value >> 31 != 0;
            u64::from(value) | if negative { 0xffff_ffff_0000_0000 } else { 0 }
        };
        match a.mode & 3 {
            0 => a.offset.wrapping_add(at as u64),
            1 => read(0).wrapping_add(at as u64),
            _ => read(at),
        }
    }
}

/// Sine and cosine of `angle / 2^64` turns, within 2^-23. The nearest quarter turn is taken off; what is left, at most
/// pi / 4, goes through the polynomials of Cephes' `sinf` and `cosf`.
#[inline(always)]
#[allow(clippy::cast_possible_truncation, clippy::cast_precision_loss)] // The upper half is what is asked for.
pub(super) fn turn(angle: u64) -> [f32; 2] {
    /// 2 pi / 2^32.
    const UNIT: f32 = 1.462_918_1e-9;
    let quarter = angle.wrapping_add(1 << 61) >> 62;
    let rest = (angle.wrapping_sub(quarter << 62) >> 32) as u32;
    let a = rest.cast_signed() as f32 * UNIT;
    let z = a * a;
    let sine = ((-1.951_529_6e-4 * z + 8.332_161e-3) * z - 0.166_666_55) * z * a + a;
    let cosine = ((2.443_315_7e-5 * z - 1.388_731_6e-3) * z + 4.166_664_6e-2) * z * z + (1.0 - 0.5 * z);
    let (s, c) = if quarter & 1 != 0 { (cosine, sine) } else { (sine, cosine) };
    [if quarter >= 2 { -s } else { s }, if quarter == 1 || quarter == 2 { -c } else { c }]
}

impl Task for Rope<'_> {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let (a, size) = (self.args, self.dtype.size());
        let (n, dims) = (a.n as usize, a.dims as usize);
        let (mut sines, mut cosines, mut last) = ([0.0f32; PAIRS], [0.0f32; PAIRS], None);
        for row in self.first..self.first + self.count {
            let position = self.position(row);
            // The heads of a token follow each other and share its angles.
            if last != Some(position) {
                for i in 0..dims / 2 {
                    // SAFETY: there is a frequency for each pair.
                    let frequency = unsafe { self.frequencies.add(i).read_unaligned() };
                    [sines[i], cosines[i]] = turn(position.wrapping_mul(frequency));
                }
                last = Some(position);
            }
            let at = |strides| row_offset(row, [a.r1, a.r2], strides) * size;
            // SAFETY: the row is inside x and y; a run is read before it is written.
            unsafe {
                let x = self.x.add(at([a.x_s0, a.x_s1, a.x_s2]));
                let y = self.y.add(at([a.y_s0, a.y_s1, a.y_s2]));
                if self.interleaved {
                    interleaved::<S>(x, y, self.dtype, &sines[..dims / 2], &cosines[..dims / 2]);
                } else {
                    half_split::<S>(x, y, self.dtype, &sines[..dims / 2], &cosines[..dims / 2]);
                }
                std::ptr::copy(x.add(dims * size), y.add(dims * size), (n - dims) * size);
            }
        }
    }
}

/// # Safety
/// `x` and `y` have twice as many elements as there are sines.
#[inline(always)]
pub(super) unsafe fn half_split<S: Simd>(x: *const u8, y: *mut u8, dtype: DType, sines: &[f32], cosines: &[f32]) {
    let (size, half) = (dtype.size(), sines.len());
    let (mut a, mut b) = ([0.0f32; RUN], [0.0f32; RUN]);
    for start in (0..half).step_by(RUN) {
        let count = RUN.min(half - start);
        let (s, c) = (&sines[start..][..count], &cosines[start..][..count]);
        // SAFETY: forwarded.
        unsafe {
            widen::<S>(x.add(start * size), dtype, a.as_mut_ptr(), count);
            widen::<S>(x.add((half + start) * size), dtype, b.as_mut_ptr(), count);
            for ((a, b), (s, c)) in a.iter_mut().zip(&mut b).zip(s.iter().zip(c)) {
                (*a, *b) = (*a * c - *b * s, *b * c + *a * s);
            }
            narrow::<S>(a.as_ptr(), y.add(start * size), dtype, count);
            narrow::<S>(b.as_ptr(), y.add((half + start) * size), dtype, count);
        }
    }
}

/// # Safety
/// As [`half_split`].
#[inline(always)]
pub(super) unsafe fn interleaved<S: Simd>(x: *const u8, y: *mut u8, dtype: DType, sines: &[f32], cosines: &[f32]) {
    let (size, half) = (dtype.size(), sines.len());
    let mut v = [0.0f32; RUN];
    for start in (0..half).step_by(RUN / 2) {
        let count = (RUN / 2).min(half - start);
        let (s, c) = (&sines[start..][..count], &cosines[start..][..count]);
        // SAFETY: forwarded.
        unsafe {
            widen::<S>(x.add(2 * start * size), dtype, v.as_mut_ptr(), 2 * count);
            for (pair, (s, c)) in v.chunks_exact_mut(2).zip(s.iter().zip(c)) {
                (pair[0], pair[1]) = (pair[0] * c - pair[1] * s, pair[1] * c + pair[0] * s);
            }
            narrow::<S>(v.as_ptr(), y.add(2 * start * size), dtype, 2 * count);
        }
    }
}

/// One launch on vectors of `S`.
unsafe fn rope<S: Simd>(call: &KernelCall<'_>, dtype: DType, interleaved: bool) {
    let args: &RopeArgs = call.args();
    let all = Rope {
        x: call.binding(0).ptr,
        frequencies: call.binding(1).ptr.cast(),
        positions: call.binding(2).ptr.cast(),
        y: call.binding(3).ptr,
        dtype,
        interleaved,
        args,
        first: 0,
        count: args.rows,
    };
    let step = rows_of_chunk(args.n);
    let chunks = usize::try_from(args.rows.div_ceil(step)).expect("INVARIANT: rows lie in memory");
    call.pool().run(chunks, &|chunk| {
        let all = &all;
        let first = chunk as u64 * step;
        // SAFETY: forwarded; chunks write disjoint rows.
        unsafe { S::vectorize(Rope { first, count: step.min(all.count - first), ..*all }) };
    });
}

macro_rules! kernels {
    ($isa:literal, $which:expr, $s:ty) => {
        kernels! { $isa, $which, $s;
            "rope_half_f32" F32 false, "rope_half_f16" F16 false, "rope_half_bf16" Bf16 false,
            "rope_interleaved_f32" F32 true, "rope_interleaved_f16" F16 true, "rope_interleaved_bf16" Bf16 true
        }
    };
    ($isa:literal, $which:expr, $s:ty; $($name:literal $dtype:ident $interleaved:literal),*) => {
        &[$({
            unsafe fn entry(call: &KernelCall<'_>) {
                // SAFETY: forwarded.
                unsafe { rope::<$s>(call, DType::$dtype, $interleaved) }
            }
            Builtin { module: "rope", name: concat!($name, "_", $isa), isa: $which, function: entry as KernelFn }
        }),*]
    };
}

/// Every kernel of this file, by instruction set.
pub(super) const BUILTINS: &[&[Builtin]] = for_each_isa!(kernels);
