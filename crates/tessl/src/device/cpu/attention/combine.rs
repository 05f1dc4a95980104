//! Joins the parts of rows whose keys were split, in the order of the keys.

use super::super::call::KernelCall;
use super::super::convert::narrow;
use super::super::simd::{Simd, Task};
use super::inverse;
use crate::args::CombineArgs;
use crate::dtype::DType;

/// Rows of one chunk.
const CHUNK: u64 = 16;
/// Elements of a row, at most.
const DIM: usize = 512;

#[derive(Clone, Copy)]
struct Combine<'a> {
    args: &'a CombineArgs,
    parts: *const f32,
    sinks: *const f32,
    out: *mut u8,
    dtype: DType,
    first: u64,
}

// SAFETY: chunks write disjoint rows of out.
unsafe impl Sync for Combine<'_> {}

/// One launch. Bindings: parts, sinks (or q), out.
pub(super) unsafe fn run<S: Simd>(call: &KernelCall<'_>, dtype: DType) {
    let args: &CombineArgs = call.args();
    let (parts, sinks, out) = (call.binding(0).ptr.cast(), call.binding(1).ptr.cast(), call.binding(2).ptr);
    let all = Combine { args, parts, sinks, out, dtype, first: 0 };
    let chunks = usize::try_from(args.rows.div_ceil(CHUNK)).expect("INVARIANT: rows lie in memory");
    call.pool().run(chunks, &|i| {
        let all = &all;
        // SAFETY: forwarded.
        unsafe { S::vectorize(Combine { first: i as u64 * CHUNK, ..*all }) };
    });
}

impl Task for Combine<'_> {
    #[inline(always)]
    #[allow(clippy::cast_possible_truncation)] // Offsets of operands in memory fit the address space.
    unsafe fn run<S: Simd>(self) {
        let a = self.args;
        let (split, dim) = (a.split as usize, a.dim as usize);
        let (heads, queries) = (u64::from(a.heads), u64::from(a.queries));
        for row in self.first..a.rows.min(self.first + CHUNK) {
            let (head, query) = (row % heads, row / heads);
            let at = row as usize * split;
            // SAFETY: there is a place for each part of each row, and a row of out.
            unsafe {
                let states = std::slice::from_raw_parts(self.parts.add(2 * at), 2 * split);
                let rows = self.parts.add(2 * a.rows as usize * split + at * dim);
                let sums = || states.chunks_exact(2).map(|s| (s[0], s[1]));
                // A negative sum: wrong data, nothing is written.
                if sums().any(|(_, sum)| sum < 0.0) {
                    continue;
                }
                let most = sums().fold(f32::NEG_INFINITY, |a, (b, _)| if b > a || b.is_nan() { b } else { a });
                let (mut total, mut y) = (0.0, [0.0f32; DIM]);
                for (i, (m, sum)) in sums().enumerate() {
                    // A part that saw nothing; a NaN is something.
                    if sum == 0.0 {
                        continue;
                    }
                    let scale = (m - most).exp();
                    total += sum * scale;
                    let part = std::slice::from_raw_parts(rows.add(i * dim), dim);
                    for (y, x) in y.iter_mut().zip(part) {
                        *y += x * scale;
                    }
                }
                let sink = (a.has_sinks != 0).then(|| self.sinks.add((head * a.sink_s) as usize).read_unaligned());
                let factor = inverse(sink, most, total);
                for y in &mut y[..dim] {
                    *y = if total == 0.0 { factor } else { *y * factor };
                }
                let to = query / queries * a.o_b + query % queries * a.o_t + head * a.o_h;
                narrow::<S>(y.as_ptr(), self.out.add(to as usize * self.dtype.size()), self.dtype, dim);
            }
        }
    }
}
