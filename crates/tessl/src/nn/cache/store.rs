//! New tokens into a cache.

use super::{KvShape, MAX_COUNT, Start, counted, narrow, strides};
use crate::args::CacheArgs;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::nn::check::{Call, Launch, steps};
use crate::nn::{CacheDesc, CacheOp};
use crate::plan::Desc;
use crate::stream::Stream;
use crate::tensor::{Scalar, Tensor};

const OP: &str = "kv_store";
const NAMES: [&str; 8] = ["k", "v", "start", "table", "k_cache", "v_cache", "k_scales", "v_scales"];

/// `cache[b, start + t] = rows[b, t]`: writes the keys (and values) of new tokens into a cache.
///
/// | operand | shape | dtypes |
/// | --- | --- | --- |
/// | k, v | `[B, T, Hkv, D]` | f32, f16, bf16 |
/// | caches | `[B, capacity, Hkv, D]`, or pages `[N, 16 \| 32 \| 64, Hkv, D]` | those of k and v, or i8 with scales |
/// | k_scales, v_scales | those of the caches without D | f32 |
/// | start | a number, one element, or `[B]` | u32 |
/// | table | `[B, pages]` | u32 |
///
/// Bits are copied. With [`k_scales`](Self::k_scales) (and [`v_scales`](Self::v_scales)) rows become codes of 8 bits:
/// `scale = max_i |x_i| / 127`, `code_i = x_i / scale`, rounded to nearest even, so that `code_i * scale` is within half a scale
/// of x_i. A row whose largest element is below 2^-100 becomes zeros, one with NaN or infinity gets NaN as scale.
///
/// The last stride of each operand is 1, other strides are free. With [`ring`](Self::ring) token p goes to
/// slot `p % capacity`; with [`table`](Self::table) to row `p % page` of page `table[b, p / page]`. Pages that several
/// sequences share must not be written by two of them in one call.
///
/// A token beyond the capacity is an error where the host knows the position. Where the device does, its rows are not
/// written, and the next wait returns [`Error::Fault`] (`CacheOverflow`; the number of the token, `b * T + t`, and its
/// position; `IndexOutOfRange` for a page outside of memory, with its place in the table).
///
/// ```
/// use tessl::{nn::KvStore, BufferKind, Device, DType, GpuRuntime};
/// let rt = GpuRuntime::with_device(&Device::cpu())?;
/// let k = rt.from_slice(&[1.0f32, 2.0], &[1, 1, 1, 2])?;
/// let cache = rt.zeros(DType::F32, &[1, 3, 1, 2], BufferKind::Hot)?;
/// KvStore::new(&k, &cache, 1).run()?;
/// assert_eq!(cache.read::<f32>()?, [0.0, 0.0, 1.0, 2.0, 0.0, 0.0]);
/// KvStore::new(&k, &cache, 3).ring().run()?;
/// assert_eq!(cache.read::<f32>()?, [1.0, 2.0, 1.0, 2.0, 0.0, 0.0]);
/// # Ok::<(), tessl::Error>(())
/// ```
#[derive(Clone, Debug)]
#[must_use = "a KvStore does nothing until run() or run_on()"]
pub struct KvStore<'a> {
    k: &'a Tensor,
    k_cache: &'a Tensor,
    v: Option<(&'a Tensor, &'a Tensor)>,
    start: Start<'a>,
    ring: bool,
    table: Option<&'a Tensor>,
    scales: [Option<&'a Tensor>; 2],
}

/// A call that has passed all checks.
struct Checked<'a> {
    call: Call<'a, 8>,
    desc: CacheDesc,
    args: CacheArgs,
}

impl<'a> KvStore<'a> {
    /// Stores the rows of one tensor, the first token of each sequence at `start`.
    pub fn new(rows: &'a Tensor, cache: &'a Tensor, start: impl Into<Start<'a>>) -> Self {
        KvStore { k: rows, k_cache: cache, v: None, start: start.into(), ring: false, table: None, scales: [None; 2] }
    }

    /// Stores keys and values in one command.
    pub fn pair(
        k: &'a Tensor,
        k_cache: &'a Tensor,
        v: &'a Tensor,
        v_cache: &'a Tensor,
        start: impl Into<Start<'a>>,
    ) -> Self {
        KvStore { v: Some((v, v_cache)), ..KvStore::new(k, k_cache, start) }
    }

    /// The cache is a ring: the token at position p takes slot `p % capacity`.
    pub fn ring(mut self) -> Self {
        self.ring = true;
        self
    }

    /// The caches are pages; the table names those of each sequence.
    pub fn table(mut self, table: &'a Tensor) -> Self {
        self.table = Some(table);
        self
    }

    /// The cache of `k` (or of the only rows) keeps i8 codes, and these the scale of each row.
    pub fn k_scales(mut self, scales: &'a Tensor) -> Self {
        self.scales[0] = Some(scales);
        self
    }

    /// The cache of `v` keeps i8 codes as well, and these the scale of each row.
    pub fn v_scales(mut self, scales: &'a Tensor) -> Self {
        self.scales[1] = Some(scales);
        self
    }

    /// Encodes the operation on the default stream.
    ///
    /// # Errors
    /// `Shape`, `Layout`, `DType`, `Overlap`, `WrongRuntime`, `Expired` or `TooLarge` for arguments that do not fit;
    /// nothing is encoded then.
    pub fn run(&self) -> Result<()> {
        self.encode(None)
    }

    /// Encodes the operation on `stream`.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub fn run_on(&self, stream: &mut Stream) -> Result<()> {
        self.encode(Some(stream))
    }

    /// The problem as data.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub fn desc(&self) -> Result<CacheDesc> {
        Ok(self.check()?.desc)
    }

    fn check(&self) -> Result<Checked<'a>> {
        // What is absent is replaced by k or its cache, which kernels then do not touch there.
        let (v, v_cache) = self.v.unwrap_or((self.k, self.k_cache));
        let (start, table) = (self.start.tensor().unwrap_or(self.k), self.table.unwrap_or(self.k));
        let coded = self.scales[0].is_some() || self.scales[1].is_some();
        let k_scales = self.scales[0].unwrap_or(self.k_cache);
        let v_scales = self.scales[1].unwrap_or(if self.v.is_some() { v_cache } else { k_scales });
        let tensors = [self.k, v, start, table, self.k_cache, v_cache, k_scales, v_scales];
        let call = Call::new(OP, std::array::from_fn(|i| (NAMES[i], tensors[i])))?;
        [0, 1].into_iter().try_for_each(|i| call.float(i))?;
        call.dtype(1, &[self.k.dtype()], "the dtype of `k`")?;
        if coded {
            [4, 5].into_iter().try_for_each(|i| call.dtype(i, &[DType::I8], "i8, as it comes with scales"))?;
            [6, 7].into_iter().try_for_each(|i| call.dtype(i, &[DType::F32], "f32, a scale for each row"))?;
        } else {
            call.dtype(4, &[self.k.dtype()], "the dtype of `k`")?;
            call.dtype(5, &[v.dtype()], "the dtype of `v`")?;
        }
        let numbers = [(2, self.start.tensor()), (3, self.table)];
        numbers.into_iter().filter(|(_, t)| t.is_some()).try_for_each(|(i, _)| call.dtype(i, &[DType::U32], "u32"))?;
        let wrong = |i: usize, expected: String| {
            Err(Error::shape(OP, NAMES[i], format_args!("{:?}", tensors[i].shape()), expected))
        };
        let &[sequences, tokens, heads, dim] = self.k.shape() else {
            return wrong(0, "it must be [B, T, Hkv, D]".into());
        };
        call.same_shape(1, 0)?;
        let KvShape { capacity, page, pages, width } =
            KvShape::new(OP, ("k_cache", self.k_cache), self.table, [sequences, heads, dim])?;
        call.same_shape(5, 4)?;
        [0, 1, 4, 5].into_iter().try_for_each(|i| call.unit_stride(i))?;
        if self.table.is_some() {
            call.unit_stride(3)?;
        }
        if self.scales[1].is_some() && self.v.is_none() {
            return wrong(7, "there is no `v`".into());
        }
        let rows_of_cache = &self.k_cache.shape()[..3];
        for (i, scales) in [(6, self.scales[0]), (7, self.scales[1])] {
            if scales.is_some_and(|scales| scales.shape() != rows_of_cache) {
                return wrong(i, format!("it must be {rows_of_cache:?}, one for each row of the cache"));
            }
        }
        // What is absent stands beside what is there: k's beside v's, caches beside scales.
        let both = self.v.is_some();
        let beside = |i: usize| -> &[usize] {
            match (i, both, coded) {
                (4, true, false) => &[6],
                (5, true, false) => &[7],
                (4 | 5, false, false) => &[4, 5, 6, 7],
                (4 | 5, false, true) => &[4, 5],
                (6 | 7, false, true) => &[6, 7],
                _ => &[],
            }
        };
        [4, 5].into_iter().try_for_each(|i| call.output(i, beside(i)))?;
        if coded {
            [6, 7].into_iter().try_for_each(|i| call.output(i, beside(i)))?;
        }
        let rows = sequences.saturating_mul(tokens).saturating_mul(heads);
        counted(
            OP,
            &[
                ("the number of rows", rows),
                ("the capacity", capacity),
                ("the pages", pages),
                ("the elements of a row", dim),
            ],
        )?;
        if self.ring && tokens > capacity {
            return wrong(0, format!("the ring of `k_cache` has room for {capacity} tokens at once"));
        }
        let start_stride = self.start.stride(OP, narrow(sequences.min(MAX_COUNT)))?;
        if let Start::At(Scalar::Host(start)) = self.start
            && !self.ring
            && start as usize + tokens > capacity
        {
            let (value, limit) = (u64::from(start) + tokens as u64, capacity as u64);
            return Err(Error::TooLarge { op: OP, what: "the end of the new tokens", value, limit });
        }
        let ([a_b, a_t, a_h], [c_b, c_t, c_h]) = (strides(self.k), strides(self.k_cache));
        let ([b_b, b_t, b_h], [d_b, d_t, d_h]) = (strides(v), strides(v_cache));
        let scale_strides = |scales: &Tensor| -> [u64; 3] {
            if coded { std::array::from_fn(|i| scales.strides()[i] as u64) } else { [0; 3] }
        };
        let ([e_b, e_t, e_h], [f_b, f_t, f_h]) = (scale_strides(k_scales), scale_strides(v_scales));
        let args = CacheArgs {
            a_b,
            a_t,
            a_h,
            b_b,
            b_t,
            b_h,
            c_b,
            c_t,
            c_h,
            d_b,
            d_t,
            d_h,
            e_b,
            e_t,
            e_h,
            f_b,
            f_t,
            f_h,
            table_s: self.table.map_or(0, |t| t.strides()[0] as u64),
            start_s: start_stride,
            start: if let Start::At(Scalar::Host(start)) = self.start { start.into() } else { 0 },
            rows: rows as u64,
            tokens: narrow(tokens),
            heads: narrow(heads),
            n: narrow(dim),
            capacity: narrow(capacity),
            page: narrow(page),
            pages: narrow(pages),
            width: narrow(width),
            ring: u32::from(self.ring),
            start_known: u32::from(self.start.tensor().is_none()),
            ..CacheArgs::default()
        };
        let align = |t: &Tensor| t.alignment(t.strides()[..3].iter().copied());
        let desc = CacheDesc {
            op: CacheOp::Store,
            rows: rows as u64,
            n: narrow(dim),
            dtype: self.k.dtype(),
            coded,
            pair: self.v.is_some(),
            align: [self.k, v, self.k_cache, v_cache].into_iter().map(align).min().unwrap_or(0),
        };
        Ok(Checked { call, desc, args })
    }

    fn encode(&self, stream: Option<&mut Stream>) -> Result<()> {
        let Checked { call, desc, args } = self.check()?;
        let stream = call.stream(stream)?;
        if desc.rows == 0 || desc.n == 0 {
            return Ok(());
        }
        let rt = self.k.runtime();
        let prepared = rt.prepare(&Desc::Cache(desc.clone()))?;
        let plan = &prepared.plan;
        let vectors_of_one = desc.n.div_ceil(plan.tile[1]);
        let vectors = vectors_of_one * (1 + u32::from(desc.pair));
        let [step_rows, step_vectors] = steps(plan, vectors);
        let args = CacheArgs { vectors, vectors_of_one, step_rows, step_vectors, groups: plan.grid[0], ..args };
        let [k, v, start, table, k_cache, v_cache, k_scales, v_scales] = call.operands.map(|(_, tensor)| tensor);
        let outputs = [k_cache, v_cache, k_scales, v_scales];
        Launch { op: OP, rt, plan, pipeline: prepared.pipeline, args: bytemuck::bytes_of(&args) }.run(
            stream,
            &[k, v, start, table],
            if desc.coded { &outputs } else { &outputs[..2] },
        )
    }
}
