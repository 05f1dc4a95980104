//! Copies and fills as the driver takes them: linear, pitched, or row by row where a pitch is beyond the driver's limit.

use super::driver::{CUmemorytype, Copy2d, Copy3d};
use crate::device::RawMemory;
use crate::stream::{Binding, Rect};
use std::ffi::c_void;
use std::ptr;

/// Where a run of bytes starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// The device's address, valid for every copy and fill.
    pub(super) device: u64,
    /// The host's address, 0 for memory that is on the device.
    host: u64,
}

impl Place {
    fn of(memory: &RawMemory, offset: u64) -> Self {
        let host = if memory.host.is_null() { 0 } else { memory.host as u64 + offset };
        Place { device: memory.device + offset, host }
    }

    fn advance(self, bytes: u64) -> Self {
        Place { device: self.device + bytes, host: if self.host == 0 { 0 } else { self.host + bytes } }
    }

    /// Two- and three-dimensional copies want the kind of memory by name.
    fn kind(self) -> CUmemorytype {
        if self.host == 0 { CUmemorytype::CU_MEMORYTYPE_DEVICE } else { CUmemorytype::CU_MEMORYTYPE_HOST }
    }
}

/// `rows` runs of `width` bytes; one run when the memory is contiguous.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Piece<const SIDES: usize> {
    pub(super) places: [Place; SIDES],
    pub(super) pitches: [u64; SIDES],
    pub(super) width: u64,
    pub(super) rows: u64,
}

/// From binding 0 to binding 1.
pub(super) type CopyPiece = Piece<2>;
/// Into binding 0.
pub(super) type FillPiece = Piece<1>;

/// Cuts the bindings into pieces whose pitches are within `max_pitch`.
pub(super) fn pieces<const SIDES: usize>(
    bindings: [&Binding; SIDES],
    max_pitch: u64,
) -> impl Iterator<Item = Piece<SIDES>> {
    let places = bindings.map(|b| Place::of(b.memory.raw(), b.rect.offset));
    let rects = bindings.map(|b| b.rect);
    cut(places, rects, max_pitch)
}

fn cut<const SIDES: usize>(
    places: [Place; SIDES],
    rects: [Rect; SIDES],
    max_pitch: u64,
) -> impl Iterator<Item = Piece<SIDES>> {
    let Rect { width, rows, .. } = rects[0];
    debug_assert!(rects.iter().all(|r| (r.width, r.rows) == (width, rows)), "{rects:?}");
    let contiguous = rows == 1 || rects.iter().all(|r| r.pitch == width);
    let pitches = rects.map(|r| r.pitch);
    let (count, piece) = if width == 0 || rows == 0 {
        (0, Piece { places, pitches, width, rows })
    } else if contiguous {
        let bytes = width * rows;
        (1, Piece { places, pitches: [bytes; SIDES], width: bytes, rows: 1 })
    } else if pitches.iter().all(|p| *p <= max_pitch) {
        (1, Piece { places, pitches, width, rows })
    } else {
        (rows, Piece { places, pitches: [width; SIDES], width, rows: 1 })
    };
    (0..count).map(move |row| {
        let mut place = 0;
        let places = piece.places.map(|p| {
            place += 1;
            p.advance(row * pitches[place - 1])
        });
        Piece { places, ..piece }
    })
}

/// A byte count as the driver takes it; this device exists on 64-bit hosts only.
pub(super) fn size(bytes: u64) -> usize {
    usize::try_from(bytes).expect("INVARIANT: CUDA hosts are 64-bit")
}

impl CopyPiece {
    /// For streams.
    pub(super) fn pitched(&self) -> Copy2d {
        let [source, target] = self.places;
        Copy2d {
            srcXInBytes: 0,
            srcY: 0,
            srcMemoryType: source.kind(),
            srcHost: source.host as *const c_void,
            srcDevice: source.device,
            srcArray: ptr::null_mut(),
            srcPitch: size(self.pitches[0]),
            dstXInBytes: 0,
            dstY: 0,
            dstMemoryType: target.kind(),
            dstHost: target.host as *mut c_void,
            dstDevice: target.device,
            dstArray: ptr::null_mut(),
            dstPitch: size(self.pitches[1]),
            WidthInBytes: size(self.width),
            Height: size(self.rows),
        }
    }

    /// For graphs, which know three-dimensional copies only.
    pub(super) fn node(&self) -> Copy3d {
        let [source, target] = self.places;
        Copy3d {
            srcXInBytes: 0,
            srcY: 0,
            srcZ: 0,
            srcLOD: 0,
            srcMemoryType: source.kind(),
            srcHost: source.host as *const c_void,
            srcDevice: source.device,
            srcArray: ptr::null_mut(),
            reserved0: ptr::null_mut(),
            srcPitch: size(self.pitches[0]),
            srcHeight: size(self.rows),
            dstXInBytes: 0,
            dstY: 0,
            dstZ: 0,
            dstLOD: 0,
            dstMemoryType: target.kind(),
            dstHost: target.host as *mut c_void,
            dstDevice: target.device,
            dstArray: ptr::null_mut(),
            reserved1: ptr::null_mut(),
            dstPitch: size(self.pitches[1]),
            dstHeight: size(self.rows),
            WidthInBytes: size(self.width),
            Height: size(self.rows),
            Depth: 1,
        }
    }

    /// The same copy in runs that stay below `limit` bytes where it is linear; graph nodes have no linear form, and
    /// their pitch is limited.
    pub(super) fn runs(self, limit: u64) -> impl Iterator<Item = CopyPiece> {
        let step = if self.rows == 1 { limit } else { self.width };
        let count = self.width.div_ceil(step);
        (0..count).map(move |i| {
            let (start, width) = (i * step, step.min(self.width - i * step));
            let pitches = if self.rows == 1 { [width; 2] } else { self.pitches };
            CopyPiece { places: self.places.map(|p| p.advance(start)), pitches, width, rows: self.rows }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(device: u64) -> Place {
        Place { device, host: 0 }
    }

    fn rect(width: u64, pitch: u64, rows: u64) -> Rect {
        Rect { offset: 0, width, pitch, rows }
    }

    #[test]
    fn contiguous_memory_is_one_run_and_nothing_is_no_run() {
        let all: Vec<_> = cut([place(100), place(900)], [rect(8, 8, 4), rect(8, 8, 4)], 1 << 20).collect();
        assert_eq!(all, [Piece { places: [place(100), place(900)], pitches: [32, 32], width: 32, rows: 1 }]);
        assert_eq!(cut([place(0)], [rect(0, 8, 4)], 1 << 20).count(), 0);
        assert_eq!(cut([place(0)], [rect(8, 8, 0)], 1 << 20).count(), 0);
        assert_eq!(cut([place(0)], [rect(8, 640, 1)], 16).next().unwrap().width, 8);
    }

    #[test]
    fn a_pitch_beyond_the_limit_goes_row_by_row() {
        let sides = || ([place(0), place(1000)], [rect(8, 16, 3), rect(8, 100, 3)]);
        let (places, rects) = sides();
        let one: Vec<_> = cut(places, rects, 100).collect();
        assert_eq!((one.len(), one[0].pitches, one[0].rows), (1, [16, 100], 3));
        let (places, rects) = sides();
        let rows: Vec<_> = cut(places, rects, 99).map(|p| (p.places[0].device, p.places[1].device, p.width)).collect();
        assert_eq!(rows, [(0, 1000, 8), (16, 1100, 8), (32, 1200, 8)]);
    }

    #[test]
    fn graph_runs_cover_a_linear_copy_once() {
        let piece = Piece { places: [place(0), place(500)], pitches: [10, 10], width: 10, rows: 1 };
        let runs: Vec<_> = piece.runs(4).map(|p| (p.places[0].device, p.places[1].device, p.width)).collect();
        assert_eq!(runs, [(0, 500, 4), (4, 504, 4), (8, 508, 2)]);
        let pitched = Piece { rows: 3, pitches: [16, 32], ..piece };
        assert_eq!(pitched.runs(4).collect::<Vec<_>>(), [pitched]);
    }

    #[test]
    fn staging_is_named_as_host_memory() {
        let staging = Place { device: 64, host: 64 };
        let piece = Piece { places: [staging, place(128)], pitches: [16, 32], width: 8, rows: 2 };
        let copy = piece.pitched();
        assert_eq!(copy.srcMemoryType, CUmemorytype::CU_MEMORYTYPE_HOST);
        assert_eq!(copy.dstMemoryType, CUmemorytype::CU_MEMORYTYPE_DEVICE);
        assert_eq!((copy.srcHost as u64, copy.dstDevice, copy.srcPitch, copy.dstPitch), (64, 128, 16, 32));
        assert_eq!((piece.node().Height, piece.node().Depth), (2, 1));
    }
}
