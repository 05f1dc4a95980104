//! Tensor maps: what the copy engine of Hopper knows about the operands of a product or an attention.
//!
//! A map holds an address, so it is made where addresses are known, right before the launch (and once, when a captured
//! batch becomes a graph, whose addresses are frozen). The core knows nothing of them.

use super::driver::{Code, Driver, SUCCESS, TensorMap, number};
use crate::args::{AttentionArgs, GemmArgs};
use crate::plan::KernelKey;

/// Columns of a box: what the 128-byte swizzle spans.
const SPAN: u64 = 128;
/// Rows of a panel: 64 steps of k, or 64 rows of C.
const PANEL: u32 = 64;

/// Which maps a kernel wants; made once per kernel from its constants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Maps {
    Gemm(GemmMaps),
    Attention(AttentionMaps),
}

impl Maps {
    /// `None` for kernels without maps.
    pub(super) fn of(key: &KernelKey) -> Option<Self> {
        match &*key.module {
            "gemm_wgmma" => Some(Maps::Gemm(GemmMaps::of(key))),
            "attention_wgmma" => Some(Maps::Attention(AttentionMaps::of(key))),
            _ => None,
        }
    }

    /// The maps of one launch: A, B and C, the last empty where the kernel stores C itself, or q, k and v.
    ///
    /// # Errors
    /// The driver's code and the operand.
    pub(super) fn encode(
        self,
        driver: &Driver,
        args: &[u8],
        addresses: &[u64],
    ) -> Result<[TensorMap; 3], (Code, &'static str)> {
        let encode = |operand: Operand, name| operand.encode(driver).map_err(|code| (code, name));
        match self {
            Maps::Gemm(maps) => {
                let (a, b, c) = maps.operands(bytemuck::from_bytes(args), addresses);
                Ok([encode(a, "a")?, encode(b, "b")?, c.map_or(Ok(TensorMap([0; 16])), |c| encode(c, "c"))?])
            }
            Maps::Attention(maps) => {
                let [q, k, v] = maps.operands(bytemuck::from_bytes(args), addresses);
                Ok([encode(q, "q")?, encode(k, "k")?, encode(v, "v")?])
            }
        }
    }
}

/// Those of a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct GemmMaps {
    /// The rows of A (of B) are contiguous.
    rows: [bool; 2],
    /// Bytes of an element of C, where the copy engine stores C.
    stored: Option<u64>,
}

/// Those of an attention: keys of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AttentionMaps {
    block: u32,
}

impl AttentionMaps {
    fn of(key: &KernelKey) -> Self {
        let block = key.constants.iter().find(|(name, _)| *name == "BLOCK");
        AttentionMaps { block: block.expect("INVARIANT: the plan names it").1 }
    }

    /// q in boxes of 64 queries of a head, k and v in boxes of a block's keys; 64 elements of each row.
    fn operands(self, args: &AttentionArgs, addresses: &[u64]) -> [Operand; 3] {
        let a = args;
        let one = |packed: bool| if packed { 1 } else { a.sequences };
        let (queries, keys) = ((a.queries, a.heads, one(a.packed == 1)), (a.keys, a.kv_heads, one(a.length_mode == 2)));
        let operand = |at: usize, (tokens, heads, batch), strides: [u64; 3], rows| {
            Operand::new(addresses[at], 2, &[a.dim, tokens, heads, batch], &strides, rows)
        };
        [
            operand(0, queries, [a.q_t, a.q_h, a.q_b], PANEL),
            operand(1, keys, [a.k_t, a.k_h, a.k_b], self.block),
            operand(2, keys, [a.v_t, a.v_h, a.v_b], self.block),
        ]
    }
}

/// One operand as the engine sees it: runs of `extents[0]` elements along up to three other axes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Operand {
    address: u64,
    bytes: u64,
    rank: u32,
    extents: [u64; 4],
    /// Distances in bytes along the other axes.
    strides: [u64; 3],
    rows_of_box: u32,
}

impl GemmMaps {
    fn of(key: &KernelKey) -> Self {
        let constant = |name| key.constants.iter().any(|&(n, value)| n == name && value == 1);
        let bytes = if key.name.ends_with("_f32") { 4 } else { 2 };
        let stored = (constant("C_WIDE") && constant("SPLIT")).then_some(bytes);
        GemmMaps { rows: [constant("A_ROWS"), constant("B_ROWS")], stored }
    }

    fn operands(self, args: &GemmArgs, addresses: &[u64]) -> (Operand, Operand, Option<Operand>) {
        debug_assert!(args.k > 0 && args.m > 0 && args.n > 0, "planned for other kernels");
        let GemmArgs { m, n, k, batch, tile_m, tile_n, .. } = *args;
        // Contiguous along k: one box of 64 k by a tile's rows. Otherwise panels of 64 columns by the tile's depth. A
        // matrix that serves the whole batch is addressed by the kernel as number 0.
        let input = |at: usize, k_inner: bool, [mn, tile]: [u32; 2], [mn_stride, k_stride, batch_stride]: [u64; 3]| {
            let (lines, stride, rows) = if k_inner { ([k, mn], mn_stride, tile) } else { ([mn, k], k_stride, PANEL) };
            let batch = if batch_stride == 0 { 1 } else { batch };
            Operand::new(addresses[at], 2, &[lines[0], lines[1], batch], &[stride, batch_stride], rows)
        };
        let a = input(0, self.rows[0], [m, tile_m], [args.a_rs, args.a_cs, args.a_bs]);
        let b = input(1, !self.rows[1], [n, tile_n], [args.b_cs, args.b_rs, args.b_bs]);
        let c =
            self.stored.map(|bytes| Operand::new(addresses[2], bytes, &[n, m, batch], &[args.c_rs, args.c_bs], PANEL));
        (a, b, c)
    }
}

impl Operand {
    /// Strides count elements; extents begin with the contiguous axis, which has none. A stride that is never followed
    /// becomes one that the engine takes.
    fn new(address: u64, bytes: u64, extents: &[u32], strides: &[u64], rows_of_box: u32) -> Self {
        debug_assert_eq!(extents.len(), strides.len() + 1);
        let own = (u64::from(extents[0]) * bytes).next_multiple_of(16);
        let of = |axis: usize| match (extents.get(axis + 1), strides.get(axis)) {
            (Some(extent), Some(stride)) if *extent > 1 => stride * bytes,
            _ => own,
        };
        Operand {
            address,
            bytes,
            rank: u32::try_from(extents.len()).expect("INVARIANT: at most 4"),
            extents: std::array::from_fn(|i| extents.get(i).map_or(1, |&n| n.into())),
            strides: std::array::from_fn(of),
            rows_of_box,
        }
    }

    fn encode(&self, driver: &Driver) -> Result<TensorMap, Code> {
        let Operand { address, bytes, rank, extents, strides, rows_of_box } = *self;
        debug_assert!(address % 16 == 0 && strides.iter().all(|s| s % 16 == 0), "{self:?}");
        let mut map = TensorMap([0; 16]);
        let kind = if bytes == 2 { number::TENSOR_UINT16 } else { number::TENSOR_UINT32 };
        let columns = u32::try_from(SPAN / bytes).expect("INVARIANT: at most 128");
        let (box_size, steps) = ([columns, rows_of_box, 1, 1], [1u32; 4]);
        // SAFETY: the arrays hold at least as many numbers as the rank says (strides one less), and the map is writable.
        // The driver only computes; the memory behind `address` is not touched.
        let code = unsafe {
            (driver.f.tensor_map)(
                &mut map,
                kind,
                rank,
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
        assert_eq!((a.extents, a.strides, a.rows_of_box), ([72, 100, 3, 1], [160, 16_000, 144], 128));
        assert_eq!((b.extents, b.strides, b.rows_of_box), ([200, 72, 1, 1], [416, 400, 400], 64), "one B serves all");
        let c = c.unwrap();
        assert_eq!((c.extents, c.rank, c.rows_of_box, c.address), ([200, 100, 3, 1], 3, 64, 48));
        assert_eq!(c.strides[..2], [800, 80_000]);
    }

    #[test]
    fn a_stride_that_is_never_followed_is_replaced() {
        let maps = GemmMaps { rows: [true, false], stored: None };
        let one_row = GemmArgs { m: 1, a_rs: 3, b_rs: 1, b_cs: 72, ..args() };
        let (a, b, c) = maps.operands(&one_row, &[16, 32, 48, 0]);
        assert_eq!((a.extents, a.strides[0]), ([72, 1, 3, 1], 144));
        assert_eq!((b.extents, b.strides[0], b.rows_of_box, c), ([72, 200, 1, 1], 144, 256, None));
    }

    #[test]
    fn kernels_take_the_maps_of_their_constants() {
        let key = |stem, name: &'static str| KernelKey::builtin(stem, name).constant("A_ROWS", 1).constant("C_WIDE", 1);
        assert_eq!(Maps::of(&key("gemm_mma", "gemm_mma_bf16_f32")), None);
        let wgmma = key("gemm_wgmma", "gemm_wgmma_bf16_f32");
        let split = Maps::of(&wgmma.clone().constant("SPLIT", 2)).unwrap();
        assert_eq!(split, Maps::Gemm(GemmMaps { rows: [true, false], stored: None }));
        let whole = Maps::of(&wgmma.constant("SPLIT", 1)).unwrap();
        assert_eq!(whole, Maps::Gemm(GemmMaps { rows: [true, false], stored: Some(4) }));
        let attention = KernelKey::builtin("attention_wgmma", "attention_wgmma_bf16").constant("BLOCK", 160);
        assert_eq!(Maps::of(&attention), Some(Maps::Attention(AttentionMaps { block: 160 })));
    }

    #[test]
    fn operands_of_an_attention_have_four_axes() {
        let args = AttentionArgs {
            sequences: 3,
            queries: 100,
            keys: 200,
            heads: 8,
            kv_heads: 2,
            dim: 72,
            q_b: 80_000,
            q_t: 800,
            q_h: 72,
            k_b: 40_000,
            k_t: 144,
            k_h: 72,
            v_t: 160,
            v_h: 80,
            ..AttentionArgs::default()
        };
        let maps = AttentionMaps { block: 128 };
        let [q, k, v] = maps.operands(&AttentionArgs { v_b: 32_000, ..args }, &[16, 32, 48]);
        assert_eq!((q.rank, q.extents, q.strides, q.rows_of_box), (4, [72, 100, 8, 3], [1600, 144, 160_000], 64));
        assert_eq!((k.extents, k.strides, k.rows_of_box), ([72, 200, 2, 3], [288, 144, 80_000], 128));
        assert_eq!((v.address, v.strides), (48, [320, 160, 64_000]));
        let packed = AttentionArgs { packed: 1, length_mode: 2, q_b: 0, k_b: 0, kv_heads: 1, k_h: 1, ..args };
        let [q, k, _] = maps.operands(&packed, &[16, 32, 48]);
        assert_eq!((q.extents[3], k.extents), (1, [72, 200, 1, 1]));
        assert_eq!((q.strides[2], k.strides), (144, [288, 144, 144]), "strides that nobody follows");
    }
}
