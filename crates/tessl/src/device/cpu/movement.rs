//! Moving elements: strided copies and transposition; scattering rows is in `movement/scatter.rs`.
//!
//! Kernels are `strided_{bits}_{isa}` and `transpose_{bits}_{isa}`; bindings x, y.

mod scatter;
#[cfg(test)]
mod tests;

use super::call::{KernelCall, KernelFn};
use super::registry::Builtin;
use super::rows::{for_each_isa, for_each_part, row_offset};
use super::simd::{Simd, Task};
use crate::args::{StridedArgs, TransposeArgs};

/// Extents of one chunk of a transposition: contiguous in the target, contiguous in the source.
pub(super) const CHUNK: [u32; 2] = [64, 256];
/// Extent of the square that is turned at once.
const TILE: usize = 64;

/// Pointers that the pool's threads share.
#[derive(Clone, Copy)]
struct Ends(*const u8, *mut u8);

// SAFETY: threads write disjoint parts of y, which is apart from x or exactly x.
unsafe impl Sync for Ends {}

/// Elements from the first one to row `row`, whose number splits by r1, r2 and r3.
#[allow(clippy::cast_possible_truncation)] // Offsets of operands in memory fit the address space.
fn strided_offset(row: u64, a: &StridedArgs, [s0, s1, s2, s3]: [u64; 4]) -> usize {
    let r3 = u64::from(a.r3);
    row_offset(row / r3, [a.r1, a.r2], [s0, s1, s2]) + (row % r3 * s3) as usize
}

/// Copies elements of `SIZE` bytes one by one.
#[allow(clippy::cast_possible_truncation)] // As above.
unsafe fn strided<const SIZE: usize>(call: &KernelCall<'_>) {
    let a: &StridedArgs = call.args();
    let ends = Ends(call.binding(0).ptr, call.binding(1).ptr);
    let (from, to) = (a.x_n as usize * SIZE, a.y_n as usize * SIZE);
    for_each_part(call, a.rows, a.n, &|part| {
        let Ends(x, y) = *{ &ends };
        for row in part.row..part.row + part.rows {
            let x = x.wrapping_add(strided_offset(row, a, [a.x_s0, a.x_s1, a.x_s2, a.x_s3]) * SIZE);
            let y = y.wrapping_add(strided_offset(row, a, [a.y_s0, a.y_s1, a.y_s2, a.y_s3]) * SIZE);
            for i in part.column..part.column + part.columns {
                // SAFETY: element i of the row is inside both operands.
                unsafe { y.add(i * to).cast::<[u8; SIZE]>().write(x.add(i * from).cast::<[u8; SIZE]>().read()) };
            }
        }
    });
}

/// A chunk of one matrix: `rows` rows of x of `columns` elements become columns of y. Strides count bytes.
#[derive(Clone, Copy)]
struct Turn<const SIZE: usize> {
    ends: Ends,
    x_m: usize,
    y_n: usize,
    rows: usize,
    columns: usize,
}

impl<const SIZE: usize> Task for Turn<SIZE> {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        // Turned tiles, so that y is written in whole runs.
        let mut tile = [[0u32; TILE]; TILE];
        for start in (0..self.columns).step_by(TILE) {
            let columns = TILE.min(self.columns - start);
            // SAFETY: the tile lies inside both operands, and `tile` has room for it.
            unsafe {
                let x = self.ends.0.add(start * SIZE);
                if SIZE == 4 && columns.is_multiple_of(4) && self.rows.is_multiple_of(4) {
                    words::<S>(x, self.x_m, self.rows, columns, tile.as_mut_ptr().cast());
                } else {
                    for j in 0..self.rows {
                        let row = x.add(j * self.x_m);
                        for (i, run) in tile[..columns].iter_mut().enumerate() {
                            let v = row.add(i * SIZE).cast::<[u8; SIZE]>().read();
                            run.as_mut_ptr().cast::<[u8; SIZE]>().add(j).write(v);
                        }
                    }
                }
                for (i, run) in tile[..columns].iter().enumerate() {
                    let y = self.ends.1.add((start + i) * self.y_n);
                    std::ptr::copy_nonoverlapping(run.as_ptr().cast(), y, self.rows * SIZE);
                }
            }
        }
    }
}

/// Turns `rows` x `columns` words, both multiples of 4, into rows of [`TILE`] words.
///
/// # Safety
/// x has the rows, `x_m` bytes apart and aligned to words, and `tile` room.
#[inline(always)]
unsafe fn words<S: Simd>(x: *const u8, x_m: usize, rows: usize, columns: usize, tile: *mut u32) {
    for j in (0..rows).step_by(4) {
        for i in (0..columns).step_by(4) {
            // SAFETY: forwarded; the strides of words are multiples of 4 bytes.
            unsafe { S::transpose4(x.add(j * x_m + 4 * i).cast(), x_m / 4, tile.add(i * TILE + j), TILE) };
        }
    }
}

/// One launch on vectors of `S`.
#[allow(clippy::cast_possible_truncation)] // Offsets of operands in memory fit the address space.
unsafe fn transpose<S: Simd, const SIZE: usize>(call: &KernelCall<'_>) {
    let a: &TransposeArgs = call.args();
    let ends = Ends(call.binding(0).ptr, call.binding(1).ptr);
    let [down, across] = [u64::from(a.m.div_ceil(CHUNK[0])), u64::from(a.n.div_ceil(CHUNK[1]))];
    let count = u64::from(a.matrices) * down * across;
    let (x_m, y_n) = (a.x_m as usize * SIZE, a.y_n as usize * SIZE);
    call.pool().run(usize::try_from(count).expect("INVARIANT: elements lie in memory"), &|chunk| {
        let Ends(x, y) = *{ &ends };
        let chunk = chunk as u64;
        let (i, j) =
            ((chunk % across) as usize * CHUNK[1] as usize, (chunk / across % down) as usize * CHUNK[0] as usize);
        let at = |strides| row_offset(chunk / across / down, [a.r1, a.r2], strides) * SIZE;
        let x = x.wrapping_add(at([a.x_s0, a.x_s1, a.x_s2]) + j * x_m + i * SIZE);
        let y = y.wrapping_add(at([a.y_s0, a.y_s1, a.y_s2]) + i * y_n + j * SIZE);
        let (rows, columns) = ((a.m as usize - j).min(CHUNK[0] as usize), (a.n as usize - i).min(CHUNK[1] as usize));
        // SAFETY: forwarded; chunks are disjoint.
        unsafe { S::vectorize(Turn::<SIZE> { ends: Ends(x, y), x_m, y_n, rows, columns }) };
    });
}

macro_rules! kernels {
    ($isa:literal, $which:expr, $s:ty) => {
        kernels! { $isa, $which;
            "strided_8" strided::<1>, "strided_16" strided::<2>, "strided_32" strided::<4>,
            "transpose_8" transpose::<$s, 1>, "transpose_16" transpose::<$s, 2>, "transpose_32" transpose::<$s, 4>
        }
    };
    ($isa:literal, $which:expr; $($name:literal $function:expr),*) => {
        &[$(Builtin {
            module: "movement",
            name: concat!($name, "_", $isa),
            isa: $which,
            function: $function as KernelFn,
        }),*]
    };
}

/// Every kernel of this file, by instruction set.
pub(super) const BUILTINS: &[&[Builtin]] = for_each_isa!(kernels);
pub(super) use scatter::{BUILTINS as SCATTER, rows_of_chunk, scratch_bytes};
