//! From products to weights: what the tiles of scores go through between the two products.

use super::super::convert::{bf16_bits, narrow, widen};
use super::super::gemm::activation::{exp, tanh};
use super::super::gemm::micro::Micro;
use super::super::reduce::larger;
use super::super::simd::{Simd, Task};
use super::tiles::LANES;
use super::{Attention, Sequence};
use crate::dtype::DType;
use std::marker::PhantomData;

/// Running maxima and sums of one panel of queries.
#[derive(Clone, Copy)]
pub(super) struct Lanes {
    pub(super) most: [f32; LANES],
    pub(super) sum: [f32; LANES],
    /// Some key has been added to the results.
    pub(super) started: bool,
}

/// What is hidden in a block of scores.
pub(super) struct Hide<'a> {
    pub(super) a: &'a Attention<'a>,
    pub(super) s: &'a Sequence,
    pub(super) head: u64,
    pub(super) first: u64,
    pub(super) count: usize,
    pub(super) key: i64,
}

impl Hide<'_> {
    #[inline(always)]
    #[allow(clippy::cast_possible_wrap)]
    unsafe fn run<M: Micro>(&self, scores: &mut [f32]) {
        let mut seen = [(0i64, i64::MAX); LANES];
        for (lane, seen) in seen[..self.count].iter_mut().enumerate() {
            *seen = self.a.visible(self.s, self.first + lane as u64);
        }
        for (j, row) in scores.chunks_exact_mut(M::COLS).enumerate() {
            let key = self.key + j as i64;
            for (x, &(low, high)) in row.iter_mut().zip(&seen) {
                *x = if key >= low && key < high { *x } else { f32::NEG_INFINITY };
            }
            if self.a.args.mask != 0 {
                for (lane, x) in row[..self.count].iter_mut().enumerate() {
                    *x = self.a.masked(*x, self.s, self.first + lane as u64, self.head, key);
                }
            }
        }
    }
}

/// Products become weights; `scale` is what earlier results have to be multiplied by.
pub(super) struct Weigh<'a, M> {
    pub(super) a: &'a Attention<'a>,
    pub(super) scores: *mut f32,
    pub(super) keys: usize,
    /// Of keys that are codes.
    pub(super) scales: Option<&'a [[f32; 2]]>,
    pub(super) lanes: &'a mut Lanes,
    pub(super) scale: &'a mut [f32; LANES],
    pub(super) hide: Option<Hide<'a>>,
    pub(super) micro: PhantomData<M>,
}

impl<M: Micro> Task for Weigh<'_, M> {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let args = self.a.args;
        // SAFETY: forwarded.
        let scores = unsafe { std::slice::from_raw_parts_mut(self.scores, self.keys * M::COLS) };
        if let Some(scales) = self.scales {
            for (row, [scale, _]) in scores.chunks_exact_mut(M::COLS).zip(scales) {
                for x in row {
                    *x *= scale;
                }
            }
        }
        for x in scores.iter_mut() {
            *x *= args.scale;
        }
        if args.softcap > 0.0 {
            for x in scores.iter_mut() {
                *x = args.softcap * tanh(*x * args.inverse_softcap);
            }
        }
        if let Some(hide) = &self.hide {
            // SAFETY: forwarded.
            unsafe { hide.run::<M>(scores) };
        }
        let mut most = self.lanes.most;
        for row in scores.chunks_exact(M::COLS) {
            for (most, &x) in most[..M::COLS].iter_mut().zip(row) {
                *most = larger(x, *most);
            }
        }
        // Where nothing has been seen yet, the maximum is no number to subtract.
        let mut shift = most;
        for x in shift.iter_mut() {
            *x = if *x == f32::NEG_INFINITY { 0.0 } else { *x };
        }
        for ((scale, most), shift) in self.scale[..M::COLS].iter_mut().zip(&self.lanes.most).zip(&shift) {
            *scale = exp(most - shift);
        }
        let mut sum = self.lanes.sum;
        for (sum, scale) in sum[..M::COLS].iter_mut().zip(&self.scale[..M::COLS]) {
            *sum *= scale;
        }
        for row in scores.chunks_exact_mut(M::COLS) {
            for ((x, shift), sum) in row.iter_mut().zip(&shift[..M::COLS]).zip(&mut sum[..M::COLS]) {
                *x = exp(*x - shift);
                *sum += *x;
            }
        }
        (self.lanes.most, self.lanes.sum) = (most, sum);
    }
}

/// Multiplies weights by the scales of their values.
pub(super) struct Scale<'a, M> {
    pub(super) scores: *mut f32,
    pub(super) scales: &'a [[f32; 2]],
    pub(super) micro: PhantomData<M>,
}

impl<M: Micro> Task for Scale<'_, M> {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        // SAFETY: forwarded.
        let scores = unsafe { std::slice::from_raw_parts_mut(self.scores, self.scales.len() * M::COLS) };
        for (row, [_, scale]) in scores.chunks_exact_mut(M::COLS).zip(self.scales) {
            for x in row {
                *x *= scale;
            }
        }
    }
}

/// Codes as numbers of `dtype`.
pub(super) struct Decode {
    pub(super) from: *const i8,
    pub(super) to: *mut u8,
    pub(super) dtype: DType,
    pub(super) n: usize,
}

impl Task for Decode {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        const RUN: usize = 64;
        let mut values = [0.0f32; RUN];
        for start in (0..self.n).step_by(RUN) {
            let count = RUN.min(self.n - start);
            // SAFETY: forwarded.
            unsafe {
                widen::<S>(self.from.add(start).cast(), DType::I8, values.as_mut_ptr(), count);
                narrow::<S>(values.as_ptr(), self.to.add(start * self.dtype.size()), self.dtype, count);
            }
        }
    }
}

pub(super) struct Rescale<'a, M> {
    pub(super) results: *mut f32,
    pub(super) rows: usize,
    pub(super) scale: &'a [f32; LANES],
    pub(super) micro: PhantomData<M>,
}

impl<M: Micro> Task for Rescale<'_, M> {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        // SAFETY: forwarded.
        let results = unsafe { std::slice::from_raw_parts_mut(self.results, self.rows * M::COLS) };
        for row in results.chunks_exact_mut(M::COLS) {
            for (x, scale) in row.iter_mut().zip(&self.scale[..M::COLS]) {
                *x *= scale;
            }
        }
    }
}

/// Whether every value is finite; takes back what is not true any more.
pub(super) struct Finite<'a> {
    pub(super) ptr: *const u8,
    pub(super) dtype: DType,
    pub(super) token: usize,
    pub(super) keys: usize,
    pub(super) dim: usize,
    pub(super) finite: &'a mut bool,
}

impl Task for Finite<'_> {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        // No early exit, so that the loops are vectorised.
        let mut finite = true;
        for j in 0..self.keys {
            let row = self.ptr.wrapping_add(j * self.token * self.dtype.size());
            for d in 0..self.dim {
                // SAFETY: forwarded.
                finite &= unsafe {
                    match self.dtype {
                        DType::F16 => row.cast::<u16>().add(d).read_unaligned() & 0x7c00 != 0x7c00,
                        DType::Bf16 => row.cast::<u16>().add(d).read_unaligned() & 0x7f80 != 0x7f80,
                        _ => row.cast::<u32>().add(d).read_unaligned() & 0x7f80_0000 != 0x7f80_0000,
                    }
                };
            }
        }
        *self.finite &= finite;
    }
}

/// Weights as sums of two bf16, each packed as a panel of B: `[32 steps][2 tiles][16 pairs][16 lanes]`.
pub(super) struct Halves {
    pub(super) scores: *const f32,
    pub(super) keys: usize,
    pub(super) steps: usize,
    pub(super) halves: [*mut u32; 2],
}

impl Task for Halves {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        const WIDE: usize = 32;
        const ZEROS: [f32; WIDE] = [0.0; WIDE];
        for pair in 0..self.steps / 2 {
            let at = pair / 16 * 512 + pair % 16 * 16;
            // SAFETY: forwarded; keys behind the last one have weight 0.
            unsafe {
                let row = |j: usize| if j < self.keys { self.scores.add(j * WIDE) } else { ZEROS.as_ptr() };
                let (low, high) = (row(2 * pair), row(2 * pair + 1));
                for lane in 0..WIDE {
                    let to = at + lane / 16 * 256 + lane % 16;
                    let (a, b) = (*low.add(lane), *high.add(lane));
                    let (x, y) = (bf16_bits(a), bf16_bits(b));
                    let rest = |w: f32, half: u16| bf16_bits(w - f32::from_bits(u32::from(half) << 16));
                    *self.halves[0].add(to) = u32::from(x) | u32::from(y) << 16;
                    *self.halves[1].add(to) = u32::from(rest(a, x)) | u32::from(rest(b, y)) << 16;
                }
            }
        }
    }
}
