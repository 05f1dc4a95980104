//! `C = act(alpha * sum + beta * C + bias)` on one tile of sums.

use super::super::convert::{element, narrow, widen};
use super::super::simd::{Simd, Task};
use super::activation::activate;
use crate::dtype::DType;
use crate::gemm::Activation;

/// Columns of the widest tile.
pub(super) const MAX_COLUMNS: usize = 64;

/// What happens to every sum, and where it goes.
#[derive(Clone, Copy)]
pub(super) struct Epilogue {
    /// C, from its first element of this matrix.
    pub(super) c: *mut u8,
    pub(super) c_rs: usize,
    pub(super) output: DType,
    /// 1 for an empty sum, which alpha must not turn into NaN.
    pub(super) alpha: f32,
    pub(super) beta: f32,
    /// 0 none, 1 per column, 2 per row.
    pub(super) bias_axis: u32,
    pub(super) bias: *const u8,
    pub(super) bias_dtype: DType,
    pub(super) activation: Activation,
}

// SAFETY: threads write disjoint tiles of C and only read the bias.
unsafe impl Sync for Epilogue {}

/// One tile: `rows` x `cols` sums, `ld` apart, for C from (row, col) on.
pub(super) struct Tile<'a> {
    pub(super) epilogue: &'a Epilogue,
    pub(super) sums: *mut f32,
    pub(super) ld: usize,
    pub(super) row: usize,
    pub(super) col: usize,
    pub(super) rows: usize,
    pub(super) cols: usize,
}

impl Task for Tile<'_> {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Tile { epilogue: e, sums, ld, row, col, rows, cols } = self;
        debug_assert!(cols <= MAX_COLUMNS);
        let mut bias = [0.0f32; MAX_COLUMNS];
        let mut old = [0.0f32; MAX_COLUMNS];
        // SAFETY: the driver passes tiles inside C, and sums of this tile's size.
        unsafe {
            if e.bias_axis == 1 {
                widen::<S>(e.bias.add(col * e.bias_dtype.size()), e.bias_dtype, bias.as_mut_ptr(), cols);
            }
            for i in 0..rows {
                let t = std::slice::from_raw_parts_mut(sums.add(i * ld), cols);
                let c = e.c.add(((row + i) * e.c_rs + col) * e.output.size());
                if e.alpha != 1.0 {
                    t.iter_mut().for_each(|t| *t *= e.alpha);
                }
                if e.beta != 0.0 {
                    widen::<S>(c, e.output, old.as_mut_ptr(), cols);
                    t.iter_mut().zip(&old).for_each(|(t, c)| *t += e.beta * c);
                }
                if e.bias_axis == 1 {
                    t.iter_mut().zip(&bias).for_each(|(t, b)| *t += b);
                } else if e.bias_axis == 2 {
                    let b = element(e.bias.add((row + i) * e.bias_dtype.size()), e.bias_dtype);
                    t.iter_mut().for_each(|t| *t += b);
                }
                activate(t, e.activation);
                narrow::<S>(t.as_ptr(), c, e.output, cols);
            }
        }
    }
}
