//! Embedding lookup: `y[r] = table[ids[r]]`, times a factor where one is given.
//!
//! Kernels are `embedding_{dtype}_{isa}` and, for elements of any type, `gather_{bits}_{isa}`; bindings table, ids, y. An id outside of the table is a fault, and its row of y
//! is not written.

use super::call::{KernelCall, KernelFn};
use super::convert::{narrow, widen};
use super::registry::Builtin;
use super::rows::{Part, RUN, for_each_isa, for_each_part, row_offset};
use super::simd::{Simd, Task};
use crate::args::EmbedArgs;
use crate::dtype::DType;
use crate::error::FaultKind;

#[cfg(test)]
mod tests;

#[derive(Clone, Copy)]
struct Embed<'a> {
    table: *const u8,
    ids: *const u32,
    y: *mut u8,
    dtype: DType,
    args: &'a EmbedArgs,
    part: Part,
}

// SAFETY: threads write disjoint parts of y, which is apart from table and ids.
unsafe impl Sync for Embed<'_> {}

impl Embed<'_> {
    fn id(&self, row: u64) -> u32 {
        let a = self.args;
        // SAFETY: ids has an element for each row.
        unsafe { self.ids.add(row_offset(row, [a.r1, a.r2], [a.i_s0, a.i_s1, a.i_s2])).read_unaligned() }
    }
}

impl Task for Embed<'_> {
    #[inline(always)]
    #[allow(clippy::cast_possible_truncation)] // Offsets of operands in memory fit the address space.
    unsafe fn run<S: Simd>(self) {
        let (a, part, size) = (self.args, self.part, self.dtype.size());
        let mut v = [0.0f32; RUN];
        for row in part.row..part.row + part.rows {
            let id = self.id(row);
            if id >= a.vocabulary {
                continue;
            }
            let start = id as usize * a.t_s as usize + part.column;
            let to = row_offset(row, [a.r1, a.r2], [a.y_s0, a.y_s1, a.y_s2]) + part.column;
            // SAFETY: the row of the table exists, and that of y.
            unsafe {
                let (from, to) = (self.table.add(start * size), self.y.add(to * size));
                if a.scaled == 0 {
                    std::ptr::copy_nonoverlapping(from, to, part.columns * size);
                    continue;
                }
                for at in (0..part.columns).step_by(RUN) {
                    let count = RUN.min(part.columns - at);
                    widen::<S>(from.add(at * size), self.dtype, v.as_mut_ptr(), count);
                    for v in v.iter_mut() {
                        *v *= a.scale;
                    }
                    narrow::<S>(v.as_ptr(), to.add(at * size), self.dtype, count);
                }
            }
        }
    }
}

/// One launch on vectors of `S`.
unsafe fn embed<S: Simd>(call: &KernelCall<'_>, dtype: DType) {
    let args: &EmbedArgs = call.args();
    let (table, ids, y) = (call.binding(0).ptr, call.binding(1).ptr.cast(), call.binding(2).ptr);
    let part = Part { row: 0, rows: 0, column: 0, columns: 0 };
    let all = Embed { table, ids, y, dtype, args, part };
    // On one thread, so that the first bad id is the one reported.
    if let Some(row) = (0..args.rows).find(|&row| all.id(row) >= args.vocabulary) {
        let id = all.id(row);
        let value = if args.is_signed != 0 { id.cast_signed().into() } else { id.into() };
        call.fault(FaultKind::IndexOutOfRange, row, value);
    }
    for_each_part(call, args.rows, args.n, &|part| {
        let all = &all;
        // SAFETY: forwarded; parts are disjoint.
        unsafe { S::vectorize(Embed { part, ..*all }) };
    });
}

macro_rules! kernels {
    ($isa:literal, $which:expr, $s:ty) => {
        kernels! { $isa, $which, $s;
            "embedding_f32" F32, "embedding_f16" F16, "embedding_bf16" Bf16,
            // Without a factor only the size matters.
            "gather_8" U8, "gather_16" F16, "gather_32" F32
        }
    };
    ($isa:literal, $which:expr, $s:ty; $($name:literal $dtype:ident),*) => {
        &[$({
            unsafe fn entry(call: &KernelCall<'_>) {
                // SAFETY: forwarded.
                unsafe { embed::<$s>(call, DType::$dtype) }
            }
            Builtin { module: "embed", name: concat!($name, "_", $isa), isa: $which, function: entry as KernelFn }
        }),*]
    };
}

/// Every kernel of this file, by instruction set.
pub(super) const BUILTINS: &[&[Builtin]] = for_each_isa!(kernels);
