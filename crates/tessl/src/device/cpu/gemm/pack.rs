//! Copies of A and B in the order that the micro-kernels read them.
//!
//! Both operands are packed in the same way: panels of `width` lanes (rows of A, columns of B), and for each step along
//! k the lanes side by side. Missing lanes and steps are zeros, so that what lies outside the matrix, NaN included, is
//! neither read nor multiplied.

use super::super::convert::{element, widen};
use super::super::simd::{Simd, Task};
use crate::dtype::DType;

/// One operand seen from its panels.
#[derive(Clone, Copy)]
pub(in super::super) struct Source {
    pub(in super::super) ptr: *const u8,
    pub(in super::super) dtype: DType,
    /// Elements from one lane to the next (between rows of A, between columns of B).
    pub(in super::super) lane: usize,
    /// Elements from one step along k to the next.
    pub(in super::super) step: usize,
}

// SAFETY: only read.
unsafe impl Sync for Source {}

impl Source {
    /// The operand from lane `lane` and step `step` on; perhaps behind its end, for prefetches.
    #[inline(always)]
    pub(in super::super) fn at(&self, lane: usize, step: usize) -> *const u8 {
        self.ptr.wrapping_add((lane * self.lane + step * self.step) * self.dtype.size())
    }
}

/// Packs one panel of f32, or lanes of one: `dst[s * stride + l]`.
pub(in super::super) struct PackF32 {
    pub(in super::super) source: Source,
    pub(in super::super) first_lane: usize,
    pub(in super::super) lanes: usize,
    pub(in super::super) first_step: usize,
    pub(in super::super) steps: usize,
    /// Lanes that are filled, with zeros where the operand ends.
    pub(in super::super) width: usize,
    pub(in super::super) stride: usize,
    pub(in super::super) dst: *mut f32,
}

/// Steps that are fetched ahead.
pub(in super::super) const AHEAD: usize = 16;
/// Steps that are widened before they are transposed.
const RUN: usize = 64;
/// Lanes of the widest panel.
const MAX_WIDTH: usize = 64;

impl Task for PackF32 {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let PackF32 { source, first_lane, lanes, first_step, steps, width, stride, dst } = self;
        debug_assert!(lanes <= width && width <= stride.min(MAX_WIDTH));
        // SAFETY: the driver passes lanes and steps inside the operand, and room for `steps * stride` elements.
        unsafe {
            if source.lane == 1 {
                for s in 0..steps {
                    let row = dst.add(s * stride);
                    S::prefetch(source.at(first_lane, first_step + s + AHEAD));
                    S::prefetch(source.at(first_lane, first_step + s + AHEAD).wrapping_add(64));
                    widen::<S>(source.at(first_lane, first_step + s), source.dtype, row, lanes);
                    std::ptr::write_bytes(row.add(lanes), 0, width - lanes);
                }
            } else if source.step == 1 && source.dtype == DType::F32 {
                let src = source.at(first_lane, first_step).cast();
                transpose::<S>(src, source.lane, [lanes, width], steps, dst.cast(), stride);
            } else if source.step == 1 {
                let mut run = [0.0f32; RUN * MAX_WIDTH];
                for s in (0..steps).step_by(RUN) {
                    let count = RUN.min(steps - s);
                    for l in 0..lanes {
                        let src = source.at(first_lane + l, first_step + s);
                        widen::<S>(src, source.dtype, run.as_mut_ptr().add(l * RUN), count);
                    }
                    transpose::<S>(run.as_ptr().cast(), RUN, [lanes, width], count, dst.add(s * stride).cast(), stride);
                }
            } else {
                for s in 0..steps {
                    for l in 0..width {
                        let inside = l < lanes;
                        let x =
                            if inside { element(source.at(first_lane + l, first_step + s), source.dtype) } else { 0.0 };
                        *dst.add(s * stride + l) = x;
                    }
                }
            }
        }
    }
}

/// `dst[s * stride + l] = src[l * from + s]` for words; lanes up to `width` are zeros.
///
/// # Safety
/// `src` has `lanes` rows of `steps` words, `from` apart; `dst` has `steps * stride` words.
#[inline(always)]
pub(in super::super) unsafe fn transpose<S: Simd>(
    src: *const u32,
    from: usize,
    [lanes, width]: [usize; 2],
    steps: usize,
    dst: *mut u32,
    stride: usize,
) {
    let (whole_lanes, whole_steps) = (lanes - lanes % 4, steps - steps % 4);
    // SAFETY: forwarded; every index below is inside both blocks.
    unsafe {
        for s in (0..whole_steps).step_by(4) {
            if s % 16 == 0 {
                for l in 0..lanes {
                    S::prefetch(src.wrapping_add(l * from + s + 64).cast());
                }
            }
            for l in (0..whole_lanes).step_by(4) {
                S::transpose4(src.wrapping_add(l * from + s), from, dst.add(s * stride + l), stride);
            }
        }
        for l in 0..lanes {
            let begin = if l < whole_lanes { whole_steps } else { 0 };
            for s in begin..steps {
                *dst.add(s * stride + l) = src.wrapping_add(l * from + s).read_unaligned();
            }
        }
        if lanes < width {
            for s in 0..steps {
                std::ptr::write_bytes(dst.add(s * stride + lanes), 0, width - lanes);
            }
        }
    }
}
