//! Tokens to their experts and back; kernels/simt/experts.metal has the formulas.
//!
//! Kernels are `sort_by_expert_{isa}` (bindings experts, offsets, tokens, places), the same on every instruction set, and
//! `combine_experts_{dtype}_{isa}` (rows of experts, places, weights, residual or y, y).

use super::call::{KernelCall, KernelFn};
use super::convert::{element, narrow, widen};
use super::registry::Builtin;
use super::rows::{Part, RUN, for_each_isa, for_each_part, row_offset};
use super::simd::{Simd, Task};
use crate::args::{CombineExpertsArgs, SortByExpertArgs};
use crate::dtype::DType;
use crate::error::FaultKind;

/// Counts, then sums up, then places: offsets hold where the next choice of each expert goes, one expert further on.
unsafe fn sort(call: &KernelCall<'_>) {
    let a: &SortByExpertArgs = call.args();
    let words = |i: usize| call.binding(i).ptr.cast::<u32>();
    let (chosen, offsets, tokens, places) = (words(0), words(1), words(2), words(3));
    let at = |choice: u32, strides: [u64; 3]| {
        row_offset((choice / a.each).into(), [a.r1, a.r2], strides) + (choice % a.each) as usize
    };
    // SAFETY: there is an expert and a place for each choice, and one offset more than there are experts.
    unsafe {
        let expert = |choice: u32| chosen.add(at(choice, [a.e_s0, a.e_s1, a.e_s2])).read_unaligned();
        let offset = |i: u32| offsets.add(i as usize);
        for i in 0..=a.experts {
            offset(i).write_unaligned(0);
        }
        let add = |i: u32, count: u32| {
            let old = offset(i).read_unaligned();
            offset(i).write_unaligned(old + count);
            old
        };
        for choice in 0..a.choices {
            let id = expert(choice);
            if id < a.experts {
                add(id + 1, 1);
            } else {
                let value = if a.is_signed != 0 { id.cast_signed().into() } else { id.into() };
                call.fault(FaultKind::IndexOutOfRange, choice.into(), value);
            }
        }
        let mut first = 0;
        for i in 1..=a.experts {
            let count = offset(i).read_unaligned();
            offset(i).write_unaligned(first);
            first += count;
        }
        for choice in 0..a.choices {
            let id = expert(choice);
            let place = if id < a.experts { add(id + 1, 1) } else { u32::MAX };
            places.add(at(choice, [a.p_s0, a.p_s1, a.p_s2])).write_unaligned(place);
            if place != u32::MAX {
                tokens.add(place as usize).write_unaligned(choice / a.each);
            }
        }
    }
}

#[derive(Clone, Copy)]
struct Combine<'a> {
    x: *const u8,
    places: *const u32,
    weights: *const u8,
    residual: *const u8,
    y: *mut u8,
    dtype: DType,
    args: &'a CombineExpertsArgs,
    part: Part,
}

// SAFETY: threads write disjoint parts of y, which is apart from the inputs or exactly the residual.
unsafe impl Sync for Combine<'_> {}

impl Combine<'_> {
    /// The place of choice `j` of a token.
    fn place(&self, row: u64, j: u32) -> u32 {
        let a = self.args;
        let at = row_offset(row, [a.r1, a.r2], [a.p_s0, a.p_s1, a.p_s2]) + j as usize;
        // SAFETY: there is a place for each choice.
        unsafe { self.places.add(at).read_unaligned() }
    }

    fn weight(&self, row: u64, j: u32) -> f32 {
        let a = self.args;
        let dtype = if a.weights_typed != 0 { self.dtype } else { DType::F32 };
        let at = row_offset(row, [a.r1, a.r2], [a.w_s0, a.w_s1, a.w_s2]) + j as usize;
        // SAFETY: there is a weight for each choice.
        unsafe { element(self.weights.add(at * dtype.size()), dtype) }
    }

    /// The first choice of a token that has no row.
    fn wrong(&self, row: u64) -> Option<u32> {
        (0..self.args.each).find(|&j| self.place(row, j) >= self.args.places)
    }
}

impl Task for Combine<'_> {
    #[inline(always)]
    #[allow(clippy::cast_possible_truncation)] // Offsets of operands in memory fit the address space.
    unsafe fn run<S: Simd>(self) {
        let (a, part, size) = (self.args, self.part, self.dtype.size());
        let (mut sum, mut term) = ([0.0f32; RUN], [0.0f32; RUN]);
        for row in part.row..part.row + part.rows {
            if self.wrong(row).is_some() {
                continue;
            }
            let at = |strides| row_offset(row, [a.r1, a.r2], strides) + part.column;
            let (r, y) = (at([a.r_s0, a.r_s1, a.r_s2]), at([a.y_s0, a.y_s1, a.y_s2]));
            for start in (0..part.columns).step_by(RUN) {
                let count = RUN.min(part.columns - start);
                // SAFETY: the row is inside every operand, and its places are rows of x. A run of the residual is read
                // before it is written.
                unsafe {
                    if a.residual != 0 {
                        widen::<S>(self.residual.add((r + start) * size), self.dtype, sum.as_mut_ptr(), count);
                    } else {
                        sum.fill(0.0);
                    }
                    for j in 0..a.each {
                        let from = self.place(row, j) as usize * a.x_s as usize + part.column + start;
                        widen::<S>(self.x.add(from * size), self.dtype, term.as_mut_ptr(), count);
                        let w = S::splat(self.weight(row, j));
                        for i in (0..RUN).step_by(S::LANES) {
                            let to = sum.as_mut_ptr().add(i);
                            S::store(to, S::fma(w, S::load(term.as_ptr().add(i)), S::load(to)));
                        }
                    }
                    narrow::<S>(sum.as_ptr(), self.y.add((y + start) * size), self.dtype, count);
                }
            }
        }
    }
}

/// One launch on vectors of `S`. Reports the first choice without a row, then sums the others.
unsafe fn combine<S: Simd>(call: &KernelCall<'_>, dtype: DType) {
    let args: &CombineExpertsArgs = call.args();
    let p = |i: usize| call.binding(i).ptr;
    let part = Part { row: 0, rows: 0, column: 0, columns: 0 };
    let (x, places, weights, residual) = (p(0), p(1).cast_const().cast(), p(2), p(3));
    let all = Combine { x, places, weights, residual, y: p(4), dtype, args, part };
    if let Some((row, j)) = (0..args.rows).find_map(|row| all.wrong(row).map(|j| (row, j))) {
        let choice = row * u64::from(args.each) + u64::from(j);
        call.fault(FaultKind::IndexOutOfRange, choice, all.place(row, j).into());
    }
    for_each_part(call, args.rows, args.n, &|part| {
        let all = &all;
        // SAFETY: forwarded; parts are disjoint.
        unsafe { S::vectorize(Combine { part, ..*all }) };
    });
}

macro_rules! kernels {
    ($isa:literal, $which:expr, $s:ty) => {
        kernels! { $isa, $which, $s;
            "sort_by_expert" |call| sort(call),
            "combine_experts_f32" |call| combine::<$s>(call, DType::F32),
            "combine_experts_f16" |call| combine::<$s>(call, DType::F16),
            "combine_experts_bf16" |call| combine::<$s>(call, DType::Bf16)
        }
    };
    ($isa:literal, $which:expr, $s:ty; $($name:literal |$call:ident| $body:expr),*) => {
        &[$({
            unsafe fn entry($call: &KernelCall<'_>) {
                // SAFETY: forwarded.
                unsafe { $body }
            }
            Builtin { module: "experts", name: concat!($name, "_", $isa), isa: $which, function: entry as KernelFn }
        }),*]
    };
}

/// Every kernel of this file, by instruction set.
pub(super) const BUILTINS: &[&[Builtin]] = for_each_isa!(kernels);
