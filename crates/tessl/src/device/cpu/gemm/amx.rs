//! bf16 and 8-bit products on AMX tiles: 2 x 2 tiles of 16 x 16 sums, 64 bytes along k at a time.
//!
//! std has no stable AMX intrinsics, so the tile loop is one `asm!` block. TDPBF16PS treats subnormal inputs as zeros
//! and flushes subnormal sums; it rounds to nearest even whatever MXCSR says. The 8-bit products are exact.

mod pack;

use super::super::simd::{Avx512, Simd, Task};
use super::micro::{Beside, Micro, Panel, Product};
use pack::Pack;
use std::arch::asm;
use std::marker::PhantomData;

/// An instruction that multiplies two tiles, and its operands' bytes per element.
pub(in super::super) trait Dot: 'static {
    const BYTES: usize;

    /// Adds the product of two panels of `count` pairs of tiles to the first 16 rows of sums, or stores it when `first`.
    ///
    /// # Safety
    /// As [`Micro::tile`].
    unsafe fn upper_half(count: usize, a: *const u8, b: *const u8, acc: *mut f32, first: bool);

    /// Adds the product of two pairs of tiles to the sums in TMM0 to TMM3.
    ///
    /// # Safety
    /// Both pairs have 2048 bytes; the tiles are configured.
    unsafe fn step(a: *const u8, b: *const u8, ahead: *const u8);
}

/// Tiles multiplied by `D`.
pub(in super::super) struct Amx<D>(PhantomData<D>);

/// bf16.
pub(in super::super) struct Bf16;
/// bf16 on AMX.
pub(in super::super) type AmxTile = Amx<Bf16>;
/// i8 x i8.
pub(in super::super) struct SignedSigned;
/// i8 x u8.
pub(in super::super) struct SignedUnsigned;
/// u8 x i8.
pub(in super::super) struct UnsignedSigned;
/// u8 x u8.
pub(in super::super) struct UnsignedUnsigned;

/// Bytes along k of one tile product.
const DEPTH: usize = 64;
/// Lanes of one tile.
const LANES: usize = 16;

#[repr(C, align(64))]
struct TileConfig {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

/// All eight tiles have 16 rows of 64 bytes.
static CONFIG: TileConfig = TileConfig {
    palette: 1,
    start_row: 0,
    reserved: [0; 14],
    row_bytes: [64, 64, 64, 64, 64, 64, 64, 64, 0, 0, 0, 0, 0, 0, 0, 0],
    rows: [16, 16, 16, 16, 16, 16, 16, 16, 0, 0, 0, 0, 0, 0, 0, 0],
};

/// Bytes between rows of sums.
const LD: usize = 4 * 2 * LANES;

macro_rules! dot {
    ($name:ident, $bytes:literal, $op:literal) => {
        impl Dot for $name {
            const BYTES: usize = $bytes;

            #[inline(always)]
            unsafe fn upper_half(count: usize, a: *const u8, b: *const u8, acc: *mut f32, first: bool) {
                // SAFETY: forwarded. Half of the sums; B comes from far away, so it is fetched ahead.
                unsafe {
                    asm!(
                        "test {first:e}, {first:e}",
                        "jz 3f",
                        "tilezero tmm0",
                        "tilezero tmm1",
                        "jmp 2f",
                        "3:",
                        "tileloadd tmm0, [{c} + {ld}]",
                        "tileloadd tmm1, [{c} + {ld} + 64]",
                        "2:",
                        "mov {p}, {b}",
                        "4:",
                        "prefetcht0 [{p} + 4096]",
                        "prefetcht0 [{p} + 4160]",
                        "prefetcht0 [{p} + 4224]",
                        "prefetcht0 [{p} + 4288]",
                        "add {p}, 256",
                        "lea {q}, [{b} + 2048]",
                        "cmp {p}, {q}",
                        "jb 4b",
                        "tileloadd tmm4, [{a} + {s}]",
                        "tileloadd tmm6, [{b} + {s}]",
                        concat!($op, " tmm0, tmm4, tmm6"),
                        "tileloadd tmm7, [{b} + {s} + 1024]",
                        concat!($op, " tmm1, tmm4, tmm7"),
                        "add {a}, 2048",
                        "add {b}, 2048",
                        "dec {n}",
                        "jnz 2b",
                        "tilestored [{c} + {ld}], tmm0",
                        "tilestored [{c} + {ld} + 64], tmm1",
                        first = in(reg) u32::from(first),
                        a = inout(reg) a => _,
                        b = inout(reg) b => _,
                        n = inout(reg) count => _,
                        p = out(reg) _,
                        q = out(reg) _,
                        s = in(reg) 64usize,
                        c = in(reg) acc,
                        ld = in(reg) LD,
                        out("tmm0") _, out("tmm1") _, out("tmm4") _, out("tmm6") _, out("tmm7") _,
                        options(nostack),
                    );
                }
            }

            #[inline(always)]
            unsafe fn step(a: *const u8, b: *const u8, ahead: *const u8) {
                // SAFETY: forwarded; prefetches may point anywhere.
                unsafe {
                    asm!(
                        "tileloadd tmm6, [{b} + {s}]",
                        "tileloadd tmm4, [{a} + {s}]",
                        concat!($op, " tmm0, tmm4, tmm6"),
                        "prefetcht1 [{p}]",
                        "prefetcht0 [{a} + 4096]",
                        "prefetcht0 [{a} + 4160]",
                        "prefetcht0 [{a} + 4224]",
                        "prefetcht0 [{a} + 4288]",
                        "prefetcht0 [{a} + 4352]",
                        "prefetcht0 [{a} + 4416]",
                        "prefetcht0 [{a} + 4480]",
                        "prefetcht0 [{a} + 4544]",
                        "tileloadd tmm7, [{b} + {s} + 1024]",
                        concat!($op, " tmm1, tmm4, tmm7"),
                        "prefetcht1 [{p} + 64]",
                        "prefetcht0 [{a} + 4608]",
                        "prefetcht0 [{a} + 4672]",
                        "prefetcht0 [{a} + 4736]",
                        "prefetcht0 [{a} + 4800]",
                        "prefetcht0 [{a} + 4864]",
                        "prefetcht0 [{a} + 4928]",
                        "prefetcht0 [{a} + 4992]",
                        "prefetcht0 [{a} + 5056]",
                        "tileloadd tmm5, [{a} + {s} + 1024]",
                        concat!($op, " tmm2, tmm5, tmm6"),
                        "prefetcht0 [{a} + 5120]",
                        "prefetcht0 [{a} + 5184]",
                        "prefetcht0 [{a} + 5248]",
                        "prefetcht0 [{a} + 5312]",
                        "prefetcht0 [{a} + 5376]",
                        "prefetcht0 [{a} + 5440]",
                        "prefetcht0 [{a} + 5504]",
                        "prefetcht0 [{a} + 5568]",
                        concat!($op, " tmm3, tmm5, tmm7"),
                        "prefetcht0 [{a} + 5632]",
                        "prefetcht0 [{a} + 5696]",
                        "prefetcht0 [{a} + 5760]",
                        "prefetcht0 [{a} + 5824]",
                        "prefetcht0 [{a} + 5888]",
                        "prefetcht0 [{a} + 5952]",
                        "prefetcht0 [{a} + 6016]",
                        "prefetcht0 [{a} + 6080]",
                        a = in(reg) a,
                        b = in(reg) b,
                        p = in(reg) ahead,
                        s = in(reg) 64usize,
                        out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                        out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                        options(nostack, readonly),
                    );
                }
            }
        }
    };
}

dot!(Bf16, 2, "tdpbf16ps");
dot!(SignedSigned, 1, "tdpbssd");
dot!(SignedUnsigned, 1, "tdpbsud");
dot!(UnsignedSigned, 1, "tdpbusd");
dot!(UnsignedUnsigned, 1, "tdpbuud");

impl<D: Dot> Micro for Amx<D> {
    type S = Avx512;
    const ROWS: usize = 2 * LANES;
    const COLS: usize = 2 * LANES;
    const STEP: usize = DEPTH / D::BYTES;
    const BYTES: usize = D::BYTES;
    const AHEAD: usize = 128;
    const FETCHES_B: bool = false;

    #[inline(always)]
    unsafe fn pack(panel: Panel) {
        // SAFETY: forwarded.
        unsafe {
            if D::BYTES == 2 {
                Avx512::vectorize(Pack::<2>(panel));
            } else {
                Avx512::vectorize(Pack::<1>(panel));
            }
        }
    }

    #[inline(always)]
    unsafe fn begin() {
        // SAFETY: AMX is usable; the configuration is valid for palette 1.
        unsafe { asm!("ldtilecfg [{}]", in(reg) &raw const CONFIG, options(nostack, readonly)) };
    }

    #[inline(always)]
    unsafe fn end() {
        // SAFETY: AMX is usable.
        unsafe { asm!("tilerelease", options(nostack, nomem)) };
    }

    const OVERLAPS: bool = true;

    #[inline(always)]
    unsafe fn tile(product: Product) {
        // SAFETY: forwarded.
        unsafe { Self::tile_beside(product, Nothing) }
    }

    #[inline(always)]
    unsafe fn tile_beside<B: Beside>(product: Product, beside: B) {
        let Product { steps, a, b, acc, first, rows, .. } = product;
        debug_assert!(steps.is_multiple_of(Self::STEP));
        let count = steps / Self::STEP;
        // SAFETY: forwarded.
        unsafe {
            if count > 0 && rows > LANES {
                return Avx512::vectorize(Sums::<D, B> { product, beside, kind: PhantomData });
            }
            if count > 0 {
                D::upper_half(count, a, b, acc, first);
            } else if first {
                std::ptr::write_bytes(acc, 0, Self::ROWS * Self::COLS);
            }
            for i in 0..count {
                Avx512::vectorize(beside.part(i));
            }
        }
    }
}

/// No work at all.
#[derive(Clone, Copy)]
struct Nothing;

impl Beside for Nothing {
    #[inline(always)]
    fn part(&self, _: usize) -> Self {
        Nothing
    }
}

impl Task for Nothing {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {}
}

/// All 32 rows of sums, and other work between the steps.
struct Sums<D, B> {
    product: Product,
    beside: B,
    kind: PhantomData<D>,
}

impl<D: Dot, B: Beside> Task for Sums<D, B> {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Product { steps, a, b, acc, first, ahead, .. } = self.product;
        let lower = acc.wrapping_add(LANES * 2 * LANES);
        // SAFETY: each panel has 2048 bytes per pair of tiles, `acc` 32 rows of 128 bytes. No compiled code uses tiles, and
        // `beside` has none either, so they keep what they hold from one block to the next.
        unsafe {
            if first {
                asm!(
                    "tilezero tmm0",
                    "tilezero tmm1",
                    "tilezero tmm2",
                    "tilezero tmm3",
                    out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                    options(nostack, nomem),
                );
            } else {
                asm!(
                    "tileloadd tmm0, [{c} + {ld}]",
                    "tileloadd tmm1, [{c} + {ld} + 64]",
                    "tileloadd tmm2, [{c2} + {ld}]",
                    "tileloadd tmm3, [{c2} + {ld} + 64]",
                    c = in(reg) acc,
                    c2 = in(reg) lower,
                    ld = in(reg) LD,
                    out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                    options(nostack, readonly),
                );
            }
            for i in 0..steps * D::BYTES / DEPTH {
                D::step(a.add(i * 2048), b.add(i * 2048), ahead.wrapping_add(i * 128));
                self.beside.part(i).run::<S>();
            }
            asm!(
                "tilestored [{c} + {ld}], tmm0",
                "tilestored [{c} + {ld} + 64], tmm1",
                "tilestored [{c2} + {ld}], tmm2",
                "tilestored [{c2} + {ld} + 64], tmm3",
                c = in(reg) acc,
                c2 = in(reg) lower,
                ld = in(reg) LD,
                options(nostack),
            );
        }
    }
}
