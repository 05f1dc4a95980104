//! Lookup in a quantised table: `y[r] = table[ids[r]]`, times a factor where one is given. Faults as in `embed.rs` of the
//! dense tables.

use super::super::call::KernelCall;
use super::super::convert::narrow;
use super::super::rows::{Part, for_each_part, row_offset};
use super::super::simd::{Simd, Task};
use super::operands::{DecodeFn, STRIP, Weights, address};
use crate::args::QuantEmbedArgs;
use crate::dtype::DType;
use crate::error::FaultKind;

#[derive(Clone, Copy)]
struct Lookup<'a> {
    table: Weights,
    ids: *const u32,
    y: *mut u8,
    output: DType,
    args: &'a QuantEmbedArgs,
    part: Part,
}

// SAFETY: threads write disjoint parts of y, which is apart from table and ids.
unsafe impl Sync for Lookup<'_> {}

impl Lookup<'_> {
    fn id(&self, row: u64) -> u32 {
        let a = self.args;
        // SAFETY: ids has an element for each row.
        unsafe { self.ids.add(row_offset(row, [a.r1, a.r2], [a.i_s0, a.i_s1, a.i_s2])).read_unaligned() }
    }
}

impl Task for Lookup<'_> {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let (a, part) = (self.args, self.part);
        let mut strip = [0.0f32; STRIP];
        for row in part.row..part.row + part.rows {
            let id = self.id(row);
            if id >= a.vocabulary {
                continue;
            }
            let to = row_offset(row, [a.r1, a.r2], [a.y_s0, a.y_s1, a.y_s2]) + part.column;
            // SAFETY: the row of the table exists, and that of y. Parts start at multiples of 256 elements or at 0.
            unsafe {
                let to = self.y.add(to * self.output.size());
                for at in (0..part.columns).step_by(STRIP) {
                    let count = STRIP.min(part.columns - at);
                    self.table.decode(id as usize, part.column + at, count, strip.as_mut_ptr());
                    if a.scaled != 0 {
                        for w in strip.iter_mut() {
                            *w *= a.scale;
                        }
                    }
                    narrow::<S>(strip.as_ptr(), to.add(at * self.output.size()), self.output, count);
                }
            }
        }
    }
}

/// One launch on vectors of `S`.
///
/// # Safety
/// The bindings are codes, scales and biases of a table that `decode` decodes, ids, and y.
pub(super) unsafe fn run<S: Simd>(call: &KernelCall<'_>, output: DType, decode: DecodeFn) {
    let args: &QuantEmbedArgs = call.args();
    let table = Weights::new(call, 0, [args.n as usize, address(args.row)], [args.group, args.factors], decode);
    let (ids, y) = (call.binding(3).ptr.cast(), call.binding(4).ptr);
    let part = Part { row: 0, rows: 0, column: 0, columns: 0 };
    let all = Lookup { table, ids, y, output, args, part };
    // On one thread, so that the first bad id is the one reported.
    if let Some(row) = (0..args.rows).find(|&row| all.id(row) >= args.vocabulary) {
        let id = all.id(row);
        let value = if args.is_signed != 0 { id.cast_signed().into() } else { id.into() };
        call.fault(FaultKind::IndexOutOfRange, row, value);
    }
    for_each_part(call, args.rows, args.n, &|part| {
        let all = &all;
        // SAFETY: forwarded; parts are disjoint.
        unsafe { S::vectorize(Lookup { part, ..*all }) };
    });
}
