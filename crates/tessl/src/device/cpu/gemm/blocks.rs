//! Scales of blocks, applied to packed f32 panels: one for each 128 steps of a row of A, one for each 128 steps by 128
//! columns of B.

use crate::gemm::BLOCK;
use std::ops::Range;

/// Multiplies a panel of A: `steps` steps from `start` on of these rows, `width` lanes a step.
///
/// # Safety
/// The panel has `steps * width` elements, `scales` a value for each row and block of the `k` steps.
pub(super) unsafe fn scale_a(
    panel: *mut f32,
    width: usize,
    rows: Range<usize>,
    start: usize,
    steps: usize,
    k: usize,
    scales: *const f32,
) {
    let of_row = k.div_ceil(BLOCK);
    for s in 0..steps {
        for (lane, row) in rows.clone().enumerate() {
            // SAFETY: forwarded.
            unsafe { *panel.add(s * width + lane) *= *scales.add(row * of_row + (start + s) / BLOCK) };
        }
    }
}

/// Multiplies a panel of B: all `k` steps of the columns from `first` on, `width` lanes a step.
///
/// # Safety
/// The panel has `k * width` elements, `scales` a value for each block of steps and columns.
pub(super) unsafe fn scale_b(panel: *mut f32, width: usize, first: usize, n: usize, k: usize, scales: *const f32) {
    let of_steps = n.div_ceil(BLOCK);
    for s in 0..k {
        for lane in 0..width.min(n - first) {
            // SAFETY: forwarded.
            unsafe { *panel.add(s * width + lane) *= *scales.add(s / BLOCK * of_steps + (first + lane) / BLOCK) };
        }
    }
}
