//! Element-wise arithmetic, conversion and copies.
//!
//! Kernels are `add_`, `mul_` and `scale_{dtype}_{isa}`, `cast_{from}_{to}_{isa}` and `copy_{bits}_{isa}`. Bindings are
//! the inputs (for scale x and the factor, which is read in mode 1), then y.

use super::call::{KernelCall, KernelFn};
use super::registry::Builtin;
use super::rows::{Function, for_each_isa, for_each_part, map_kernels, row_offset};
use crate::args::MapArgs;

#[cfg(test)]
mod tests;

#[derive(Clone, Copy)]
struct Add;

impl Function for Add {
    const INPUTS: usize = 2;
    #[inline(always)]
    fn apply(self, a: &mut [f32], b: &[f32]) {
        for (a, b) in a.iter_mut().zip(b) {
            *a += b;
        }
    }
}

#[derive(Clone, Copy)]
struct Mul;

impl Function for Mul {
    const INPUTS: usize = 2;
    #[inline(always)]
    fn apply(self, a: &mut [f32], b: &[f32]) {
        for (a, b) in a.iter_mut().zip(b) {
            *a *= b;
        }
    }
}

#[derive(Clone, Copy)]
struct Scale(f32);

impl Function for Scale {
    const INPUTS: usize = 1;
    const OUTPUT: usize = 2;
    #[inline(always)]
    fn apply(self, x: &mut [f32], _: &[f32]) {
        for x in x.iter_mut() {
            *x *= self.0;
        }
    }
}

fn factor(call: &KernelCall<'_>) -> Scale {
    let args: &MapArgs = call.args();
    // SAFETY: in mode 1 the second binding is a tensor of one f32.
    Scale(if args.mode == 1 { unsafe { call.binding(1).ptr.cast::<f32>().read() } } else { args.scale })
}

#[derive(Clone, Copy)]
struct Cast;

impl Function for Cast {
    const INPUTS: usize = 1;
    #[inline(always)]
    fn apply(self, _: &mut [f32], _: &[f32]) {}
}

/// Pointers that the pool's threads share.
#[derive(Clone, Copy)]
struct Ends(*const u8, *mut u8);

// SAFETY: threads copy disjoint parts of rows.
unsafe impl Sync for Ends {}

/// Copies elements of `SIZE` bytes: memory moves on every instruction set.
unsafe fn copy<const SIZE: usize>(call: &KernelCall<'_>) {
    let args: &MapArgs = call.args();
    let ends = Ends(call.binding(0).ptr, call.binding(1).ptr);
    for_each_part(call, args.rows, args.n, &|part| {
        let Ends(x, y) = *{ &ends };
        for row in part.row..part.row + part.rows {
            let at = |strides| (row_offset(row, [args.r1, args.r2], strides) + part.column) * SIZE;
            let (from, to) = (at([args.a_s0, args.a_s1, args.a_s2]), at([args.y_s0, args.y_s1, args.y_s2]));
            // SAFETY: both runs lie inside their operands; `copy` allows that they are the same.
            unsafe { std::ptr::copy(x.add(from), y.add(to), part.columns * SIZE) };
        }
    });
}

macro_rules! kernels {
    ($isa:literal, $which:expr, $s:ty) => {
        map_kernels! { "elementwise", $isa, $which, $s;
            "add_f32", F32 => F32, |_call| Add;
            "add_f16", F16 => F16, |_call| Add;
            "add_bf16", Bf16 => Bf16, |_call| Add;
            "mul_f32", F32 => F32, |_call| Mul;
            "mul_f16", F16 => F16, |_call| Mul;
            "mul_bf16", Bf16 => Bf16, |_call| Mul;
            "scale_f32", F32 => F32, |call| factor(call);
            "scale_f16", F16 => F16, |call| factor(call);
            "scale_bf16", Bf16 => Bf16, |call| factor(call);
            "cast_f32_f16", F32 => F16, |_call| Cast;
            "cast_f32_bf16", F32 => Bf16, |_call| Cast;
            "cast_f16_f32", F16 => F32, |_call| Cast;
            "cast_f16_bf16", F16 => Bf16, |_call| Cast;
            "cast_bf16_f32", Bf16 => F32, |_call| Cast;
            "cast_bf16_f16", Bf16 => F16, |_call| Cast;
        }
    };
}

macro_rules! copies {
    ($isa:literal, $which:expr, $s:ty) => {
        &[
            Builtin {
                module: "elementwise",
                name: concat!("copy_8_", $isa),
                isa: $which,
                function: copy::<1> as KernelFn,
            },
            Builtin {
                module: "elementwise",
                name: concat!("copy_16_", $isa),
                isa: $which,
                function: copy::<2> as KernelFn,
            },
            Builtin {
                module: "elementwise",
                name: concat!("copy_32_", $isa),
                isa: $which,
                function: copy::<4> as KernelFn,
            },
        ]
    };
}

/// Every kernel of this file, by instruction set.
pub(super) const BUILTINS: &[&[Builtin]] = for_each_isa!(kernels);
/// The copies.
pub(super) const COPIES: &[&[Builtin]] = for_each_isa!(copies);
