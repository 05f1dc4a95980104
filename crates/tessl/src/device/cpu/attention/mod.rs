//! Attention; kernels/simt/attention.metal has the formulas.
//!
//! `attention_tiles_{dtype}_{isa}` is for many queries (`tiles.rs`), `attention_rows_{dtype}_{isa}` for a few (`rows.rs`),
//! with parts of the keys where the plan splits them; `attention_combine_{dtype}_{isa}` joins those parts (`combine.rs`).
//! Bindings: q, k, v, mask, sinks, first positions, lengths, table, cumulative queries, out, parts, scales of k and of v; what
//! is absent is q. Keys and values that are codes stay so in products; their scales multiply scores and weights.

mod combine;
mod rows;
#[cfg(test)]
mod tests;
mod tiles;
mod weights;

use super::call::{KernelCall, KernelFn};
use super::convert::element;
use super::gemm::micro;
use super::registry::Builtin;
use super::simd::Scalar;
use crate::args::AttentionArgs;
use crate::device::Isa;
use crate::dtype::DType;
use crate::error::FaultKind;

pub(super) use rows::ROWS;
pub(super) use tiles::QUERIES;

/// One launch.
#[derive(Clone, Copy)]
struct Attention<'a> {
    args: &'a AttentionArgs,
    dtype: DType,
    /// Type of k and v: codes come with scales.
    kv: DType,
    scales: Option<[*const f32; 2]>,
    q: *const u8,
    k: *const u8,
    v: *const u8,
    mask: *const u8,
    sinks: *const f32,
    starts: *const u32,
    lengths: *const u32,
    table: *const u32,
    cu_q: *const u32,
    out: *mut u8,
    parts: *mut f32,
}

// SAFETY: threads write disjoint rows of out and of the parts, which are apart from everything else.
unsafe impl Sync for Attention<'_> {}

/// What a sequence looks like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Sequence {
    /// Its number.
    index: u64,
    /// Number of its first query among the rows of q (within the sequence's own where they are not packed).
    query: u64,
    /// Number of its first row among all rows of queries.
    row: u64,
    queries: u64,
    /// Number of its first key.
    key: u64,
    keys: i64,
    /// Where its first query stands.
    first: i64,
}

/// Rows of one piece of work: queries `first..first + count` of a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Piece {
    sequence: Sequence,
    first: u64,
    count: usize,
}

/// Wrong data: its kind, place and value.
type Bad = (FaultKind, u64, i64);

#[allow(clippy::cast_possible_truncation, clippy::cast_possible_wrap)] // Offsets fit memory; counts are below 2^31.
impl<'a> Attention<'a> {
    fn new(call: &KernelCall<'a>, dtype: DType) -> Self {
        let p = |i: usize| call.binding(i).ptr;
        let args: &AttentionArgs = call.args();
        let coded = args.coded != 0;
        Attention {
            args,
            dtype,
            kv: if coded { DType::I8 } else { dtype },
            scales: coded.then(|| [p(11).cast_const().cast(), p(12).cast_const().cast()]),
            q: p(0),
            k: p(1),
            v: p(2),
            mask: p(3),
            sinks: p(4).cast(),
            starts: p(5).cast(),
            lengths: p(6).cast(),
            table: p(7).cast(),
            cu_q: p(8).cast(),
            out: p(9),
            parts: p(10).cast(),
        }
    }

    /// Element `i` of sequences' numbers.
    fn number(&self, p: *const u32, stride: u64, i: u64) -> u32 {
        // SAFETY: the tensors have an element for each sequence, those of cumulative numbers one more.
        unsafe { p.add((stride * i) as usize).read_unaligned() }
    }

    /// First and number of what lies between two cumulative numbers.
    fn between(&self, p: *const u32, stride: u64, b: u64, total: u32) -> Result<(u32, u32), Bad> {
        let (begin, end) = (self.number(p, stride, b), self.number(p, stride, b + 1));
        if begin <= end && end <= total {
            Ok((begin, end - begin))
        } else {
            Err((FaultKind::BadLength, b + 1, end.into()))
        }
    }

    /// First and number of the queries of sequence `b`.
    fn queries(&self, b: u64) -> Result<(u32, u32), Bad> {
        let a = self.args;
        if a.packed == 0 { Ok((0, a.queries)) } else { self.between(self.cu_q, a.cu_s, b, a.queries) }
    }

    /// Sequence `b`, or what is wrong with it.
    fn sequence(&self, b: u64) -> Result<Sequence, Bad> {
        let a = self.args;
        let (query, queries) = self.queries(b)?;
        let (key, keys) = match a.length_mode {
            0 => (0, a.keys),
            1 => (0, self.number(self.lengths, a.length_s, b)),
            _ => self.between(self.lengths, a.length_s, b, a.keys)?,
        };
        if keys > a.keys {
            return Err((FaultKind::BadLength, b, keys.into()));
        }
        let first = match a.start_mode {
            0 => 0,
            1 => a.start as i64,
            2 => self.number(self.starts, a.start_s, b).into(),
            _ => i64::from(keys) - i64::from(queries),
        };
        let row = if a.packed == 0 { b * u64::from(a.queries) } else { query.into() };
        let (query, queries, key, keys) = (query.into(), queries.into(), key.into(), keys.into());
        let sequence = Sequence { index: b, query, row, queries, key, keys, first };
        if a.page > 0 && queries > 0 {
            let (low, high) = (self.visible(&sequence, 0).0, self.visible(&sequence, queries - 1).1);
            let pages = low / i64::from(a.page)..(high + i64::from(a.page) - 1) / i64::from(a.page);
            for i in pages {
                let page = self.page(b, i);
                if page >= a.pages {
                    let width = u64::from(a.keys / a.page);
                    return Err((FaultKind::IndexOutOfRange, b * width + i as u64, page.into()));
                }
            }
        }
        Ok(sequence)
    }

    /// Reports the first wrong sequence.
    fn check(&self, call: &KernelCall<'_>) {
        let first = (0..u64::from(self.args.sequences)).find_map(|b| self.sequence(b).err());
        if let Some((kind, index, value)) = first {
            call.fault(kind, index, value);
        }
    }

    fn page(&self, b: u64, i: i64) -> u32 {
        // SAFETY: the table has a place for each page of a sequence.
        unsafe { self.table.add((b * self.args.table_s) as usize + i as usize).read_unaligned() }
    }

    /// The keys that query `t` sees: from, to.
    fn visible(&self, s: &Sequence, t: u64) -> (i64, i64) {
        let a = self.args;
        if a.start_mode == 0 {
            return (0, s.keys);
        }
        let end = s.first + t as i64 + 1;
        let high = end.clamp(0, s.keys);
        let low = if a.window == 0 { 0 } else { (end - i64::from(a.window)).clamp(0, high) };
        (low, high)
    }

    /// The rows of piece `tile`, whose sequences have `wide` rows for each query; `None` where there are none.
    fn piece(&self, tile: u64, wide: u64) -> Option<Result<Piece, (u64, Bad)>> {
        let a = self.args;
        let step = u64::from(a.tile);
        let of = |b: u64, sequence: Result<Sequence, Bad>, i: u64| match sequence {
            Err(bad) => Some(Err((b, bad))),
            Ok(sequence) => {
                let (first, rows) = (i * step, sequence.queries * wide);
                let count = step.min(rows.saturating_sub(first)) as usize;
                (count > 0).then_some(Ok(Piece { sequence, first, count }))
            }
        };
        if a.packed == 0 {
            let each = (u64::from(a.queries) * wide).div_ceil(step);
            return of(tile / each, self.sequence(tile / each), tile % each);
        }
        let mut left = tile;
        for b in 0..u64::from(a.sequences) {
            let Ok((_, queries)) = self.queries(b) else { continue };
            let tiles = (u64::from(queries) * wide).div_ceil(step);
            if left < tiles {
                return of(b, self.sequence(b), left);
            }
            left -= tiles;
        }
        None
    }

    /// The row of query `t` and head `h`.
    fn q_row(&self, s: &Sequence, t: u64, h: u64) -> *const u8 {
        let a = self.args;
        let at = s.index * a.q_b + (s.query + t) * a.q_t + h * a.q_h;
        self.q.wrapping_add(at as usize * self.dtype.size())
    }

    fn out_row(&self, s: &Sequence, t: u64, h: u64) -> *mut u8 {
        let a = self.args;
        let at = s.index * a.o_b + (s.query + t) * a.o_t + h * a.o_h;
        self.out.wrapping_add(at as usize * self.dtype.size())
    }

    /// Sequence or page of key `j`, and its token.
    fn kv_place(&self, s: &Sequence, j: i64) -> [u64; 2] {
        let page = i64::from(self.args.page);
        if page == 0 {
            return [s.index, s.key + j as u64];
        }
        [self.page(s.index, j / page).into(), (j % page) as u64]
    }

    /// The rows of key `j` and its value, of key head `h`.
    fn kv_rows(&self, s: &Sequence, j: i64, h: u64) -> [*const u8; 2] {
        let (a, [outer, inner], size) = (self.args, self.kv_place(s, j), self.kv.size());
        let k = outer * a.k_b + inner * a.k_t + h * a.k_h;
        let v = outer * a.v_b + inner * a.v_t + h * a.v_h;
        [self.k.wrapping_add(k as usize * size), self.v.wrapping_add(v as usize * size)]
    }

    /// What their codes are multiplied by; 1 where they are no codes.
    fn kv_scales(&self, s: &Sequence, j: i64, h: u64) -> [f32; 2] {
        let Some([k, v]) = self.scales else { return [1.0; 2] };
        let (a, [outer, inner]) = (self.args, self.kv_place(s, j));
        let (k_at, v_at) = (outer * a.ks_b + inner * a.ks_t + h * a.ks_h, outer * a.vs_b + inner * a.vs_t + h * a.vs_h);
        // SAFETY: there is a scale for each row.
        unsafe { [k.add(k_at as usize).read_unaligned(), v.add(v_at as usize).read_unaligned()] }
    }

    /// A score after the mask; -infinity where the mask hides it, NaN or not.
    #[inline(always)]
    fn masked(&self, score: f32, s: &Sequence, t: u64, h: u64, j: i64) -> f32 {
        let a = self.args;
        let dtype = [DType::U8, DType::U8, DType::F32, DType::F16, DType::Bf16][a.mask as usize];
        let at = s.index * a.m_b + h * a.m_h + t * a.m_t + j as u64 * a.m_k;
        let p = self.mask.wrapping_add(at as usize * dtype.size());
        // SAFETY: the mask, broadcast, has an element for each query and key.
        unsafe {
            match a.mask {
                0 => score,
                1 if *p == 0 => f32::NEG_INFINITY,
                1 => score,
                _ => match element(p, dtype) {
                    f32::NEG_INFINITY => f32::NEG_INFINITY,
                    added => score + added,
                },
            }
        }
    }

    /// Whether query `t` of head `h` sees key `j`.
    fn sees(&self, s: &Sequence, t: u64, h: u64, j: i64) -> bool {
        let (low, high) = self.visible(s, t);
        (low..high).contains(&j) && self.masked(0.0, s, t, h, j) != f32::NEG_INFINITY
    }

    /// What multiplies sums with the maximum `most` and the sum of exponentials `sum` of a row of head `h`.
    fn inverse(&self, h: u64, most: f32, sum: f32) -> f32 {
        // SAFETY: there is a sink for each head.
        let sink = (self.args.has_sinks != 0)
            .then(|| unsafe { self.sinks.add((h * self.args.sink_s) as usize).read_unaligned() });
        inverse(sink, most, sum)
    }
}

/// One over the sum of exponentials, a sink's included, relative to the maximum `most`; 0 for a row that sees nothing.
fn inverse(sink: Option<f32>, most: f32, sum: f32) -> f32 {
    if sum == 0.0 {
        return 0.0;
    }
    let Some(sink) = sink else { return 1.0 / sum };
    // Relative to the sink where that is larger.
    if sink > most {
        let scale = (most - sink).exp();
        scale / (sum * scale + 1.0)
    } else {
        1.0 / (sum + (sink - most).exp())
    }
}

/// Entry points of one instruction set: the tile kernels of its types, then row and join kernels.
macro_rules! table {
    ($isa:literal, $which:expr, $s:ty, $tile:ty) => {
        &[
            table!(tiles "attention_tiles_f32_", $isa, $which, $tile, F32),
            table!(tiles "attention_tiles_f16_", $isa, $which, $tile, F16),
            table!(tiles "attention_tiles_bf16_", $isa, $which, $tile, Bf16),
            table!(rows "attention_rows_f32_", $isa, $which, $s, F32),
            table!(rows "attention_rows_f16_", $isa, $which, $s, F16),
            table!(rows "attention_rows_bf16_", $isa, $which, $s, Bf16),
            table!(combine "attention_combine_f32_", $isa, $which, $s, F32),
            table!(combine "attention_combine_f16_", $isa, $which, $s, F16),
            table!(combine "attention_combine_bf16_", $isa, $which, $s, Bf16),
        ]
    };
    ($module:ident $name:literal, $isa:literal, $which:expr, $kernel:ty, $dtype:ident) => {{
        unsafe fn entry(call: &KernelCall<'_>) {
            // SAFETY: forwarded.
            unsafe { $module::run::<$kernel>(call, DType::$dtype) }
        }
        Builtin { module: "attention", name: concat!($name, $isa), isa: $which, function: entry as KernelFn }
    }};
}

/// Every kernel of this folder, by instruction set.
pub(super) const BUILTINS: &[&[Builtin]] = &[
    table!("scalar", Isa::Scalar, Scalar, micro::ScalarTile),
    #[cfg(target_arch = "aarch64")]
    table!("neon", Isa::Neon, super::simd::Neon, micro::NeonTile),
    #[cfg(target_arch = "x86_64")]
    table!("avx2", Isa::Avx2, super::simd::Avx2, micro::Avx2Tile),
    #[cfg(target_arch = "x86_64")]
    table!("avx512", Isa::Avx512, super::simd::Avx512, micro::Avx512Tile),
    #[cfg(target_arch = "x86_64")]
    &[table!(tiles "attention_tiles_bf16_", "amx", Isa::Amx, super::gemm::amx::AmxTile, Bf16)],
];
