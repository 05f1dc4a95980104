//! Tensor maps: what the copy engine of Hopper knows about the operands of a product.
//!
//! A map holds an address, so it is made where addresses are known, right before the launch (and once, when a captured
//! batch becomes a graph, whose addresses are frozen). The core knows nothing of them.

use super::driver::{Code, Driver, SUCCESS, TensorMap, number};
use crate::args::GemmArgs;
use crate::plan::KernelKey;

/// Columns of a box: what the 128-byte swizzle spans.
const SPAN: u64 = 128;
/// Rows of a panel: 64 steps of k, or 64 rows of C.
const PANEL: u32 = 64;

/// Which maps a kernel wants; made once per kernel from its constants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct GemmMaps {
    /// The rows of A (of B) are contiguous.
    rows: [bool; 2],
    /// Bytes of an element of C, where the copy engine stores C.
    stored: Option<u64>,
}

/// One operand as the engine sees it: `lines` runs of `inner` elements, `batch` times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Operand {
    address: u64,
    bytes: u64,
    extents: [u64; 3],
    /// Distances in bytes between lines and between matrices.
    strides: [u64; 2],
    rows_of_box: u32,
}

impl GemmMaps {
    /// `None` for kernels without maps.
    pub(super) fn of(key: &KernelKey) -> Option<Self> {
        if key.module != "gemm_wgmma" {
            return None;
        }
        let constant = |name| key.constants.iter().any(|&(n, value)| n == name && value == 1);
        let bytes = if key.name.ends_with("_f32") { 4 } else { 2 };
        let stored = (constant("C_WIDE") && constant("SPLIT")).then_some(bytes);
        Some(GemmMaps { rows: [constant("A_ROWS"), constant("B_ROWS")], stored })
    }

    /// The maps of A, B and C for one launch; C's is empty where the kernel stores C itself. Inputs have two bytes.
    ///
    /// # Errors
    /// The driver's code and the operand.
    pub(super) fn encode(
        self,
        driver: &Driver,
        args: &[u8],
        addresses: &[u64],
    ) -> Result<[TensorMap; 3], (Code, &'static str)> {
        let args: &GemmArgs = bytemuck::from_bytes(args);
        let (a, b, c) = self.operands(args, addresses);
        let none = TensorMap([0; 16]);
        let c = c.map_or(Ok(none), |c| c.encode(driver).map_err(|code| (code, "c")))?;
        Ok([a.encode(driver).map_err(|e| (e, "a"))?, b.encode(driver).map_err(|e| (e, "b"))?, c])
    }

    fn operands(self, args: &GemmArgs, addresses: &[u64]) -> (Operand, Operand, Option<Operand>) {
        debug_assert!(args.k > 0 && args.m > 0 && args.n > 0, "planned for other kernels");
        let GemmArgs { m, n, k, batch, tile_m, tile_n, .. } = *args;
        // Contiguous along k: one box of 64 k by a tile's rows. Otherwise panels of 64 columns by the tile's depth.
        let input = |at: usize, k_inner: bool, [mn, tile]: [u32; 2], [mn_stride, k_stride, batch_stride]: [u64; 3]| {
            let (extents, stride, rows) = if k_inner { ([k, mn], mn_stride, tile) } else { ([mn, k], k_stride, PANEL) };
            Operand::new(addresses[at], 2, extents, stride, (batch, batch_stride), rows)
        };
        let a = input(0, self.rows[0], [m, tile_m], [args.a_rs, args.a_cs, args.a_bs]);
        let b = input(1, !self.rows[1], [n, tile_n], [args.b_cs, args.b_rs, args.b_bs]);
        let c =
            self.stored.map(|bytes| Operand::new(addresses[2], bytes, [n, m], args.c_rs, (batch, args.c_bs), PANEL));
        (a, b, c)
    }
}

impl Operand {
    /// Strides count elements. One that is never followed (a single line, a matrix that serves the whole batch, which
    /// the kernel then addresses as number 0) becomes one that the engine takes.
    fn new(
        address: u64,
        bytes: u64,
        [inner, lines]: [u32; 2],
        stride: u64,
        (batch, batch_stride): (u32, u64),
        rows_of_box: u32,
    ) -> Self {
        let own = (u64::from(inner) * bytes).next_multiple_of(16);
        let stride = if lines > 1 { stride * bytes } else { own };
        let (batch, batch_stride) = if batch_stride == 0 { (1, stride) } else { (batch, batch_stride * bytes) };
        let extents = [inner, lines, batch].map(u64::from);
        Operand { address, bytes, extents, strides: [stride, batch_stride], rows_of_box }
    }

    fn encode(&self, driver: &Driver) -> Result<TensorMap, Code> {
        let Operand { address, bytes, extents, strides, rows_of_box } = *self;
        debug_assert!(address % 16 == 0 && strides.iter().all(|s| s % 16 == 0), "{self:?}");
        let mut map = TensorMap([0; 16]);
        let kind = if bytes == 2 { number::TENSOR_UINT16 } else { number::TENSOR_UINT32 };
        let columns = u32::try_from(SPAN / bytes).expect("INVARIANT: at most 128");
        let (box_size, steps) = ([columns, rows_of_box, 1], [1u32; 3]);
        // SAFETY: the arrays hold as many numbers as the rank says (strides one less), and the map is writable. The
        // driver only computes; the memory behind `address` is not touched.
        let code = unsafe {
            (driver.f.tensor_map)(
                &mut map,
                kind,
                3,
                address,
                extents.as_ptr(),
                strides.as_ptr(),
                box_size.as_ptr(),
                steps.as_ptr(),
                number::TENSOR_NO_INTERLEAVE,
                number::TENSOR_SWIZZLE_128,
                number::TENSOR_PROMOTE_256,
                number::TENSOR_FILL_ZERO,
            )
        };
        if code == SUCCESS { Ok(map) } else { Err(code) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args() -> GemmArgs {
        GemmArgs {
            m: 100,
            n: 200,
            k: 72,
            batch: 3,
            a_rs: 80,
            a_cs: 1,
            a_bs: 8000,
            b_rs: 208,
            b_cs: 1,
            b_bs: 0,
            c_rs: 200,
            c_bs: 20_000,
            tile_m: 128,
            tile_n: 256,
            ..GemmArgs::default()
        }
    }

    #[test]
    fn operands_follow_layout_and_batch() {
        let maps = GemmMaps { rows: [true, true], stored: Some(4) };
        let (a, b, c) = maps.operands(&args(), &[16, 32, 48, 0]);
        assert_eq!((a.extents, a.strides, a.rows_of_box), ([72, 100, 3], [160, 16_000], 128));
        assert_eq!((b.extents, b.strides, b.rows_of_box), ([200, 72, 1], [416, 416], 64), "one B serves all");
        let c = c.unwrap();
        assert_eq!((c.extents, c.strides, c.rows_of_box, c.address), ([200, 100, 3], [800, 80_000], 64, 48));
    }

    #[test]
    fn a_stride_that_is_never_followed_is_replaced() {
        let maps = GemmMaps { rows: [true, false], stored: None };
        let one_row = GemmArgs { m: 1, a_rs: 3, b_rs: 1, b_cs: 72, ..args() };
        let (a, b, c) = maps.operands(&one_row, &[16, 32, 48, 0]);
        assert_eq!((a.extents, a.strides[0]), ([72, 1, 3], 144));
        assert_eq!((b.extents, b.strides[0], b.rows_of_box, c), ([72, 200, 1], 144, 256, None));
    }

    #[test]
    fn only_one_kernel_takes_maps() {
        let key = |stem, name: &'static str| KernelKey::builtin(stem, name).constant("A_ROWS", 1).constant("C_WIDE", 1);
        assert_eq!(GemmMaps::of(&key("gemm_mma", "gemm_mma_bf16_f32")), None);
        let wgmma = key("gemm_wgmma", "gemm_wgmma_bf16_f32");
        let split = GemmMaps::of(&wgmma.clone().constant("SPLIT", 2)).unwrap();
        assert_eq!(split, GemmMaps { rows: [true, false], stored: None });
        assert_eq!(GemmMaps::of(&wgmma.constant("SPLIT", 1)).unwrap().stored, Some(4));
    }
}
