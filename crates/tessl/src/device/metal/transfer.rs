//! Copies and fills: blits where those are exact and few, kernels for the rest.

use crate::args::TransferArgs;
use crate::plan::KernelKey;
use crate::stream::Rect;

/// Blits on macOS want offsets and sizes in multiples of this.
const BLIT: u64 = 4;
/// Rows that are worth a blit each.
const FEW: u64 = 8;
/// Threads of a threadgroup, as in `transfer.metal`.
pub(super) const THREADS: u32 = 256;
/// Threads walk over the units when there are more threadgroups than this.
const MAX_GROUPS: u64 = 1 << 16;

/// Source file stem of the kernels.
const MODULE: &str = "transfer";

/// Kernels by the bytes of their units, for `copy` and for `fill`.
pub(super) const KERNELS: [(&str, u64); 5] =
    [("copy_rows_1", 1), ("copy_rows_4", 4), ("copy_rows_16", 16), ("fill_rows_1", 1), ("fill_rows_4", 4)];

pub(super) fn key(kernel: usize) -> KernelKey {
    KernelKey::builtin(MODULE, KERNELS[kernel].0)
}

/// How rows are moved.
#[derive(Debug, PartialEq)]
pub(super) enum Way {
    /// `rows` blits of `width` bytes.
    Blit,
    /// One launch of a kernel (by its place in [`KERNELS`]) over this many threadgroups.
    Kernel { kernel: usize, args: TransferArgs, groups: u32 },
}

/// Rows without gaps on any side become one.
pub(super) fn flat<const SIDES: usize>(mut rects: [Rect; SIDES]) -> [Rect; SIDES] {
    let Rect { width, rows, .. } = rects[0];
    debug_assert!(rects.iter().all(|r| (r.width, r.rows) == (width, rows)), "{rects:?}");
    if rows > 1 && rects.iter().all(|r| r.pitch == width) {
        for rect in &mut rects {
            *rect = Rect::linear(rect.offset, width * rows);
        }
    }
    rects
}

/// `addresses` are those of the first bytes; a fill has one side, a copy two: source, then target.
pub(super) fn way<const SIDES: usize>(rects: &[Rect; SIDES], addresses: [u64; SIDES], value: u8) -> Way {
    if rects[0].rows <= FEW && divides(rects, addresses, BLIT) {
        return Way::Blit;
    }
    let (kernel, args, groups) = launch(rects, addresses, value);
    Way::Kernel { kernel, args, groups }
}

/// Whether all rows start and end on multiples of `unit` bytes.
fn divides<const SIDES: usize>(rects: &[Rect; SIDES], addresses: [u64; SIDES], unit: u64) -> bool {
    let pitches = rects.iter().filter(|r| r.rows > 1).map(|r| r.pitch);
    let all = addresses.into_iter().chain(rects.iter().map(|r| r.offset)).chain(pitches).chain([rects[0].width]);
    all.into_iter().all(|n| n.is_multiple_of(unit))
}

/// The kernel that moves these rows (by its place in [`KERNELS`]), its arguments and its threadgroups.
pub(super) fn launch<const SIDES: usize>(
    rects: &[Rect; SIDES],
    addresses: [u64; SIDES],
    value: u8,
) -> (usize, TransferArgs, u32) {
    let Rect { width, rows, .. } = rects[0];
    let kernels = if SIDES == 1 { 3..5 } else { 0..3 };
    let kernel =
        kernels.rev().find(|&k| divides(rects, addresses, KERNELS[k].1)).expect("INVARIANT: 1 divides everything");
    let unit = KERNELS[kernel].1;
    let total = width / unit * rows;
    let groups = u32::try_from(total.div_ceil(THREADS.into()).min(MAX_GROUPS)).unwrap_or(1);
    let pitch = |side: usize| if rows > 1 { rects[side].pitch / unit } else { width / unit };
    let args = TransferArgs {
        from_pitch: pitch(0),
        to_pitch: pitch(SIDES - 1),
        width: width / unit,
        total,
        groups,
        value: u32::from_ne_bytes([value; 4]),
    };
    (kernel, args, groups)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rect(offset: u64, width: u64, pitch: u64, rows: u64) -> Rect {
        Rect { offset, width, pitch, rows }
    }

    #[test]
    fn few_aligned_rows_are_blits_and_others_take_the_widest_unit() {
        let name = |way: Way| match way {
            Way::Blit => "blit",
            Way::Kernel { kernel, .. } => KERNELS[kernel].0,
        };
        let copy = |a: Rect, b: Rect| name(way(&[a, b], [a.offset + 4096, b.offset + 8192], 0));
        assert_eq!(copy(rect(0, 64, 64, 1), rect(4, 64, 64, 1)), "blit");
        assert_eq!(copy(rect(0, 64, 96, FEW), rect(4, 64, 64, FEW)), "blit");
        assert_eq!(copy(rect(0, 64, 96, FEW + 1), rect(0, 64, 64, FEW + 1)), "copy_rows_16");
        assert_eq!(copy(rect(0, 64, 96, 9), rect(4, 64, 64, 9)), "copy_rows_4");
        assert_eq!(copy(rect(2, 64, 64, 1), rect(4, 64, 64, 1)), "copy_rows_1");
        assert_eq!(copy(rect(0, 6, 6, 1), rect(0, 6, 6, 1)), "copy_rows_1");
        let fill = |r: Rect| name(way(&[r], [r.offset], 7));
        assert_eq!(
            [fill(rect(0, 8, 8, 1)), fill(rect(0, 8, 16, 99)), fill(rect(1, 8, 16, 2))],
            ["blit", "fill_rows_4", "fill_rows_1"]
        );
    }

    #[test]
    fn contiguous_rows_are_one_row() {
        assert_eq!(flat([rect(0, 8, 8, 3), rect(4, 8, 8, 3)]), [rect(0, 24, 24, 1), rect(4, 24, 24, 1)]);
        let padded = [rect(0, 8, 8, 3), rect(4, 8, 9, 3)];
        assert_eq!(flat(padded), padded);
    }

    #[test]
    fn a_kernel_counts_in_its_units() {
        let Way::Kernel { args, groups, .. } = way(&[rect(0, 4, 8, 3000)], [64], 0xab) else { panic!("not a kernel") };
        assert_eq!((args.width, args.to_pitch, args.total, groups, args.value), (1, 2, 3000, 12, 0xabab_abab));
    }
}
