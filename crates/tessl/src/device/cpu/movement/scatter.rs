//! Scattering rows: `y[ids[r]] = x[r]` (the last row with an id stays) and `y[ids[r]] += w[r] x[r]` (in order, in f32).
//!
//! Kernels are `scatter_{bits}_{isa}` (bindings x, ids, y) and `scatter_add_{dtype}_{isa}` (x, ids, weights of rows, y), then scratch
//! memory, where rows are sorted by id. An id outside of y is a fault, and nothing is written for it.

use super::super::call::{KernelCall, KernelFn};
use super::super::convert::{element, narrow, widen};
use super::super::registry::Builtin;
use super::super::rows::{RUN, for_each_isa, row_offset};
use super::super::simd::{Simd, Task};
use crate::args::ScatterArgs;
use crate::dtype::DType;
use crate::error::FaultKind;

/// Elements that one chunk takes to y, about.
const CHUNK: u64 = 16 << 10;

/// Rows of one chunk: depends on the row length alone.
pub(in super::super) fn rows_of_chunk(n: u32) -> u64 {
    (CHUNK / u64::from(n.max(1))).max(1)
}

/// An id and a row number for each row.
pub(in super::super) fn scratch_bytes(rows: u64) -> u64 {
    rows.saturating_mul(8).max(64)
}

/// Ids in the upper half, row numbers in the lower.
#[derive(Clone, Copy)]
struct Scatter<'a> {
    x: *const u8,
    weights: *const u8,
    y: *mut u8,
    /// In memory and, for sums, as a float.
    size: usize,
    float: Option<DType>,
    args: &'a ScatterArgs,
    pairs: &'a [u64],
    first: usize,
    count: usize,
}

// SAFETY: threads write disjoint rows of y, which is apart from x.
unsafe impl Sync for Scatter<'_> {}

impl Task for Scatter<'_> {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let end = self.first + self.count;
        let id = |at: usize| self.pairs[at] >> 32;
        // A chunk does the ids that begin in it.
        let mut at = self.first;
        while at > 0 && at < end && id(at) == id(at - 1) {
            at += 1;
        }
        while at < end {
            let same = self.pairs[at..].iter().take_while(|pair| *pair >> 32 == id(at)).count();
            // SAFETY: ids are rows of y, and row numbers rows of x.
            unsafe { self.one::<S>(id(at), &self.pairs[at..at + same]) };
            at += same;
        }
    }
}

impl Scatter<'_> {
    #[inline(always)]
    #[allow(clippy::cast_possible_truncation)] // Offsets of operands in memory fit the address space.
    unsafe fn one<S: Simd>(&self, id: u64, rows: &[u64]) {
        let (a, n) = (self.args, self.args.n as usize);
        let from = |pair: u64| {
            let row = pair & u64::from(u32::MAX);
            self.x.wrapping_add(row_offset(row, [a.r1, a.r2], [a.x_s0, a.x_s1, a.x_s2]) * self.size)
        };
        let weight = |pair: u64, dtype: DType| {
            let dtype = if a.weights == 1 { DType::F32 } else { dtype };
            let at = row_offset(pair & u64::from(u32::MAX), [a.r1, a.r2], [a.w_s0, a.w_s1, a.w_s2]);
            // SAFETY: there is a weight for each row, where there are weights.
            if a.weights == 0 { 1.0 } else { unsafe { element(self.weights.add(at * dtype.size()), dtype) } }
        };
        let y = self.y.wrapping_add(id as usize * a.y_s as usize * self.size);
        // SAFETY: forwarded.
        unsafe {
            let Some(dtype) = self.float else {
                let last = rows[rows.len() - 1];
                return std::ptr::copy_nonoverlapping(from(last), y, n * self.size);
            };
            let (mut sum, mut term) = ([0.0f32; RUN], [0.0f32; RUN]);
            for start in (0..n).step_by(RUN) {
                let (count, at) = (RUN.min(n - start), start * self.size);
                widen::<S>(y.add(at), dtype, sum.as_mut_ptr(), count);
                for &pair in rows {
                    widen::<S>(from(pair).add(at), dtype, term.as_mut_ptr(), count);
                    let w = weight(pair, dtype);
                    // One rounding, as on GPUs; a weight of 1 is as good as none.
                    for (s, t) in sum.iter_mut().zip(&term) {
                        *s = if w == 1.0 { *s + t } else { w.mul_add(*t, *s) };
                    }
                }
                narrow::<S>(sum.as_ptr(), y.add(at), dtype, count);
            }
        }
    }
}

/// One launch on vectors of `S`.
unsafe fn scatter<S: Simd>(call: &KernelCall<'_>, size: usize, float: Option<DType>) {
    let a: &ScatterArgs = call.args();
    let (x, ids) = (call.binding(0).ptr, call.binding(1).ptr.cast::<u32>());
    // Only sums have weights.
    let at = if float.is_some() { 3 } else { 2 };
    let (weights, y) = (call.binding(2).ptr, call.binding(at).ptr);
    let count = usize::try_from(a.rows).expect("INVARIANT: rows lie in memory");
    // SAFETY: scratch memory has a pair for each row, is aligned, and nobody else uses it during this command.
    let pairs = unsafe {
        let pairs = call.binding(at + 1).ptr.cast::<u64>();
        pairs.write_bytes(0, count);
        std::slice::from_raw_parts_mut(pairs, count)
    };
    let mut used = 0;
    for row in 0..a.rows {
        // SAFETY: ids has an element for each row.
        let id = unsafe { ids.add(row_offset(row, [a.r1, a.r2], [a.i_s0, a.i_s1, a.i_s2])).read_unaligned() };
        if id < a.targets {
            pairs[used] = u64::from(id) << 32 | row;
            used += 1;
        } else {
            let value = if a.is_signed != 0 { id.cast_signed().into() } else { id.into() };
            call.fault(FaultKind::IndexOutOfRange, row, value);
        }
    }
    let pairs = &mut pairs[..used];
    pairs.sort_unstable();
    let step = usize::try_from(rows_of_chunk(a.n)).unwrap_or(1);
    let all = Scatter { x, weights, y, size, float, args: a, pairs, first: 0, count: 0 };
    call.pool().run(used.div_ceil(step), &|chunk| {
        let all = &all;
        let first = chunk * step;
        // SAFETY: forwarded; chunks write disjoint rows.
        unsafe { S::vectorize(Scatter { first, count: step.min(used - first), ..*all }) };
    });
}

macro_rules! kernels {
    ($isa:literal, $which:expr, $s:ty) => {
        kernels! { $isa, $which, $s;
            "scatter_8" 1 None, "scatter_16" 2 None, "scatter_32" 4 None,
            "scatter_add_f32" 4 Some(DType::F32), "scatter_add_f16" 2 Some(DType::F16),
            "scatter_add_bf16" 2 Some(DType::Bf16)
        }
    };
    ($isa:literal, $which:expr, $s:ty; $($name:literal $size:literal $float:expr),*) => {
        &[$({
            unsafe fn entry(call: &KernelCall<'_>) {
                // SAFETY: forwarded.
                unsafe { scatter::<$s>(call, $size, $float) }
            }
            Builtin { module: "movement", name: concat!($name, "_", $isa), isa: $which, function: entry as KernelFn }
        }),*]
    };
}

/// Every kernel of this file, by instruction set.
pub(in super::super) const BUILTINS: &[&[Builtin]] = for_each_isa!(kernels);
