//! Columns of B, and of up where a product is gated, as panels.

use super::micro::{Micro, Panel, Side};
use super::operands::Operands;
use super::pack::Source;
use std::ops::Range;

/// Panels of B that one chunk packs.
pub(super) const PACK_PANELS: usize = 4;
/// Steps along k that it packs before it goes on to the next panel: a multiple of every `Micro::STEP`.
const PACK_STEPS: usize = 64;

/// Packed columns of B.
#[derive(Clone, Copy)]
pub(super) struct PackedB {
    pub(super) base: *mut u8,
    /// Bytes of one panel.
    pub(super) panel: usize,
    /// Bytes from one matrix to the next, where all are packed.
    matrix: usize,
}

// SAFETY: threads pack disjoint panels, and only read them in later regions.
unsafe impl Sync for PackedB {}

impl PackedB {
    /// Memory for panels of a B with `padded_k` steps.
    pub(super) fn new<M: Micro>(base: *mut u8, padded_k: usize, panels: usize) -> Self {
        let panel = padded_k * M::COLS * M::BYTES;
        PackedB { base, panel, matrix: panels * panel }
    }

    /// The same from matrix `z` on.
    pub(super) fn matrix(self, z: usize) -> Self {
        PackedB { base: self.base.wrapping_add(z * self.matrix), ..self }
    }
}

/// B, and up where the product is gated.
#[derive(Clone, Copy)]
pub(super) struct Columns {
    pub(super) b: Source,
    pub(super) up: Option<Source>,
    pub(super) n: usize,
}

impl Columns {
    /// Columns of C that a panel is for.
    pub(super) fn of_panel<M: Micro>(&self) -> usize {
        if self.up.is_some() { M::COLS / 2 } else { M::COLS }
    }

    /// Packs steps `range` of `panels`; the memory starts with the first step of panel `first`.
    ///
    /// # Safety
    /// The operands have `n` columns and these steps, the memory has room for the panels, the processor has `M`.
    pub(super) unsafe fn pack<M: Micro>(&self, to: PackedB, first: usize, panels: Range<usize>, range: Range<usize>) {
        let width = self.of_panel::<M>();
        // All panels of a few steps at a time: the pieces of one row of B lie side by side.
        for first_step in range.clone().step_by(PACK_STEPS) {
            let steps = PACK_STEPS.min(range.end - first_step);
            for panel in panels.clone() {
                let first_lane = panel * width;
                let lanes = width.min(self.n - first_lane);
                // SAFETY: forwarded; the panel is inside the packed memory.
                unsafe {
                    let at = (first_step - range.start) * M::COLS * M::BYTES;
                    let dst = to.base.add((panel - first) * to.panel + at);
                    let half = |source, place| Panel {
                        source,
                        side: Side::B,
                        first_lane,
                        lanes,
                        first_step,
                        steps,
                        place,
                        width,
                        dst,
                    };
                    M::pack(half(self.b, 0));
                    if let Some(up) = self.up {
                        M::pack(half(up, width));
                    }
                }
            }
        }
    }
}

impl Operands {
    /// B and up of matrix `z`.
    pub(super) fn columns(&self, z: usize) -> Columns {
        Columns { b: self.b(z), up: self.gated.then(|| self.up(z)), n: self.n }
    }
}
