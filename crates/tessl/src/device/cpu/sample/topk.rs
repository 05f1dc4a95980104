//! The largest elements of rows.

use super::super::call::{KernelCall, KernelFn};
use super::super::reduce::{HELD, LANES, load_block};
use super::super::registry::Builtin;
use super::super::rows::{for_each_isa, row_offset};
use super::super::simd::{Simd, Task};
use super::order_key;
use crate::args::TopKArgs;
use crate::dtype::DType;

/// Elements that may be among the k largest; k is at most 256.
const CANDIDATES: usize = 1024;

#[derive(Clone, Copy)]
struct Row<'a> {
    x: *const u8,
    values: *mut u8,
    indices: *mut u32,
    dtype: DType,
    args: &'a TopKArgs,
    row: u64,
}

// SAFETY: threads write disjoint rows of the outputs, which are apart from x.
unsafe impl Sync for Row<'_> {}

impl Task for Row<'_> {
    #[inline(always)]
    #[allow(clippy::cast_possible_truncation)] // Rows have fewer than 2^31 elements.
    unsafe fn run<S: Simd>(self) {
        let (a, size) = (self.args, self.dtype.size());
        let (n, k) = (a.n as usize, a.k as usize);
        let at = |strides| row_offset(self.row, [a.r1, a.r2], strides);
        let x = self.x.wrapping_add(at([a.x_s0, a.x_s1, a.x_s2]) * size);
        let values = self.values.wrapping_add(at([a.v_s0, a.v_s1, a.v_s2]) * size);
        let indices = self.indices.wrapping_add(at([a.i_s0, a.i_s1, a.i_s2]));
        // Key and inverted index: larger is earlier.
        let mut found = [0u64; CANDIDATES];
        let mut count = 0;
        // Elements of this key or less come too late: there are k before them.
        let mut beaten = None;
        let mut held = [0.0f32; HELD];
        for start in (0..n).step_by(HELD) {
            // SAFETY: the row is inside x.
            let used = unsafe { load_block::<S>(x, self.dtype, start, n, f32::NEG_INFINITY, &mut held) };
            for (i, block) in held[..used].chunks_exact(LANES).enumerate() {
                let least = beaten.unwrap_or(0);
                let any = block.iter().fold(beaten.is_none(), |any, &v| any | (order_key(v) > least));
                if !any {
                    continue;
                }
                for (j, &v) in block.iter().enumerate() {
                    let (at, key) = (start + i * LANES + j, order_key(v));
                    if at < n && beaten.is_none_or(|least| key > least) {
                        found[count] = u64::from(key) << 32 | u64::from(!(at as u32));
                        count += 1;
                        if count == CANDIDATES {
                            let (_, last, _) = found.select_nth_unstable_by(k - 1, |a, b| b.cmp(a));
                            (beaten, count) = (Some((*last >> 32) as u32), k);
                        }
                    }
                }
            }
        }
        found[..count].sort_unstable_by(|a, b| b.cmp(a));
        for (rank, pair) in found[..k].iter().enumerate() {
            let index = !(*pair as u32);
            // SAFETY: the index is one of the row, and both outputs have k elements.
            unsafe {
                std::ptr::copy_nonoverlapping(x.add(index as usize * size), values.add(rank * size), size);
                indices.add(rank).write_unaligned(index);
            }
        }
    }
}

/// One launch on vectors of `S`.
unsafe fn top_k<S: Simd>(call: &KernelCall<'_>, dtype: DType) {
    let args: &TopKArgs = call.args();
    let (x, values, indices) = (call.binding(0).ptr, call.binding(1).ptr, call.binding(2).ptr.cast());
    let all = Row { x, values, indices, dtype, args, row: 0 };
    call.pool().run(usize::try_from(args.rows).expect("INVARIANT: rows lie in memory"), &|row| {
        let all = &all;
        // SAFETY: forwarded; rows are disjoint.
        unsafe { S::vectorize(Row { row: row as u64, ..*all }) };
    });
}

macro_rules! kernels {
    ($isa:literal, $which:expr, $s:ty) => {
        kernels! { $isa, $which, $s; "top_k_f32" F32, "top_k_f16" F16, "top_k_bf16" Bf16 }
    };
    ($isa:literal, $which:expr, $s:ty; $($name:literal $dtype:ident),*) => {
        &[$({
            unsafe fn entry(call: &KernelCall<'_>) {
                // SAFETY: forwarded.
                unsafe { top_k::<$s>(call, DType::$dtype) }
            }
            Builtin { module: "sample", name: concat!($name, "_", $isa), isa: $which, function: entry as KernelFn }
        }),*]
    };
}

/// Every kernel of this file, by instruction set.
pub(in super::super) const BUILTINS: &[&[Builtin]] = for_each_isa!(kernels);
