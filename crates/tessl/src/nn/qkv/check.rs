//! What a call of `norm_qkv_rope` must fulfil.

use super::{KvPlaces, NormQkvRope, NormQkvRopeDesc, OP, Weights, WeightsDesc};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::nn::cache::{KvShape, Start};
use crate::nn::check::{Call, MAX_EXTENT};
use crate::nn::norm::check_scalars;
use crate::tensor::{Scalar, Tensor};

/// Operands, and the places of the outputs among them.
const COUNT: usize = 25;
pub(super) const Q: usize = 21;
const K: usize = 22;
const V: usize = 23;
const SUM: usize = 24;
const ADDED: usize = 2;
const POST: usize = 3;
const BIAS: usize = 13;
const HEAD_NORM: usize = 16;
const START: usize = 19;
const TABLE: usize = 20;
const NAMES: [&str; COUNT] = [
    "x",
    "norm_weight",
    "added",
    "weight of added",
    "wq",
    "wq",
    "wq",
    "wk",
    "wk",
    "wk",
    "wv",
    "wv",
    "wv",
    "bias of q",
    "bias of k",
    "bias of v",
    "q_weight",
    "k_weight",
    "frequencies",
    "start",
    "table",
    "q",
    "k",
    "v",
    "sum",
];
const WEIGHTS: [&str; 3] = ["wq", "wk", "wv"];

/// A call that has passed all checks.
pub(super) struct Checked<'a> {
    pub(super) call: Call<'a, COUNT>,
    pub(super) desc: NormQkvRopeDesc,
    pub(super) places: Places,
}

/// What is not part of the description: distances, and where keys and values go.
pub(super) struct Places {
    /// Bytes between rows of weights.
    pub(super) row: usize,
    pub(super) table_stride: u64,
    pub(super) start_stride: u64,
    pub(super) capacity: u32,
    pub(super) page: u32,
    pub(super) pages: u32,
    pub(super) width: u32,
}

/// A size that has been checked.
pub(super) fn narrow(n: usize) -> u32 {
    u32::try_from(n).expect("INVARIANT: checked against the limit")
}

fn wrong(operand: &'static str, shape: &[usize], expected: impl Into<String>) -> Error {
    Error::shape(OP, operand, format_args!("{shape:?}"), expected)
}

impl<'a> Weights<'a> {
    fn shape(self) -> &'a [usize] {
        match self {
            Weights::Dense(t) => t.shape(),
            Weights::Quantized(t) => t.shape(),
        }
    }

    /// Codes, scales and biases as kernels bind them.
    fn bound(self) -> [&'a Tensor; 3] {
        match self {
            Weights::Dense(t) => [t; 3],
            Weights::Quantized(t) => t.bound(),
        }
    }

    fn desc(self) -> WeightsDesc {
        match self {
            Weights::Dense(t) => WeightsDesc::Dense(t.dtype()),
            Weights::Quantized(t) => {
                let (format, layout, factors) = (t.format(), t.layout(), t.factors_dtype());
                WeightsDesc::Quantized { format, layout, factors }
            }
        }
    }
}

impl<'a> NormQkvRope<'a> {
    pub(super) fn check(&self) -> Result<Checked<'a>> {
        let call = self.call()?;
        self.types(&call)?;
        let (x, [q, k, _]) = (self.x, self.outputs);
        let &[sequences, tokens, depth] = x.shape() else {
            return Err(wrong("x", x.shape(), "it must be [B, T, K]"));
        };
        let m = sequences.saturating_mul(tokens);
        if m > NormQkvRope::MAX_TOKENS {
            let (value, limit) = (m as u64, NormQkvRope::MAX_TOKENS as u64);
            return Err(Error::TooLarge { op: OP, what: "the number of rows", value, limit });
        }
        let &[_, _, heads, dim] = q.shape() else {
            return Err(wrong("q", q.shape(), "it must be [B, T, Hq, D]"));
        };
        if q.shape()[..2] != [sequences, tokens] || heads == 0 || dim == 0 {
            return Err(wrong("q", q.shape(), format!("it must be [{sequences}, {tokens}, Hq, D]")));
        }
        let &[_, _, kv_heads, _] = k.shape() else {
            return Err(wrong("k", k.shape(), "it must have four axes, the last two [Hkv, D]"));
        };
        self.limits([depth, heads, kv_heads, dim])?;
        let kv = self.kv_shape([sequences, tokens, kv_heads, dim])?;
        call.same_shape(V, K)?;
        let row = self.weights(depth, [heads, kv_heads, kv_heads].map(|h| h * dim))?;
        self.vectors(&call, [depth, dim], [heads, kv_heads, kv_heads].map(|h| h * dim))?;
        let dims = self.frequencies.dims();
        if dims > dim {
            return Err(wrong("q", q.shape(), format!("`frequencies` turns {dims} elements of each head")));
        }
        if self.residual.is_some() {
            [ADDED, SUM].into_iter().try_for_each(|i| call.same_shape(i, 0))?;
        }
        [0, ADDED, Q, K, V, SUM].into_iter().try_for_each(|i| call.unit_stride(i))?;
        // What is absent takes the place of another operand and is not touched.
        let absent = self.residual.is_none();
        call.output(Q, if absent { &[SUM] } else { &[] })?;
        [K, V].into_iter().try_for_each(|i| call.output(i, &[]))?;
        call.output(SUM, if absent { &[Q] } else { &[] })?;
        check_scalars(OP, self.eps, self.offset)?;
        let start_stride = self.start.stride(OP, narrow(sequences))?;
        if let (Start::At(Scalar::Host(start)), Some(capacity)) = (self.start, kv.bound)
            && start as usize + tokens > capacity
        {
            let (value, limit) = (u64::from(start) + tokens as u64, capacity as u64);
            return Err(Error::TooLarge { op: OP, what: "the end of the new tokens", value, limit });
        }
        let desc = NormQkvRopeDesc {
            m: narrow(m),
            k: narrow(depth),
            heads: narrow(heads),
            kv_heads: narrow(kv_heads),
            dim: narrow(dim),
            dims: narrow(dims),
            style: self.style,
            weights: self.weights[0].desc(),
            dtype: x.dtype(),
            norm: self.norm_weight.dtype(),
            align: self.align(),
        };
        let places = Places {
            row,
            table_stride: if let KvPlaces::Pages(table) = self.kv { table.strides()[0] as u64 } else { 0 },
            start_stride,
            capacity: narrow(kv.shape.capacity),
            page: narrow(kv.shape.page),
            pages: narrow(kv.shape.pages),
            width: narrow(kv.shape.width),
        };
        Ok(Checked { call, desc, places })
    }

    /// Every operand in its place; x stands for inputs that are absent, and q for a sum that is.
    fn call(&self) -> Result<Call<'a, COUNT>> {
        let (x, [q, k, v]) = (self.x, self.outputs);
        let mut tensors = [x; COUNT];
        tensors[1] = self.norm_weight;
        for (i, weights) in self.weights.iter().enumerate() {
            tensors[4 + 3 * i..][..3].copy_from_slice(&weights.bound());
        }
        if let Some([added, weight, _]) = self.residual {
            (tensors[ADDED], tensors[POST]) = (added, weight);
        }
        if let Some(biases) = self.biases {
            tensors[BIAS..][..3].copy_from_slice(&biases);
        }
        if let Some(norms) = self.head_norms {
            tensors[HEAD_NORM..][..2].copy_from_slice(&norms);
        }
        tensors[18] = self.frequencies.table();
        tensors[START] = self.start.tensor().unwrap_or(x);
        if let KvPlaces::Pages(table) = self.kv {
            tensors[TABLE] = table;
        }
        (tensors[Q], tensors[K], tensors[V]) = (q, k, v);
        tensors[SUM] = self.residual.map_or(q, |[_, _, sum]| sum);
        Call::new(OP, std::array::from_fn(|i| (NAMES[i], tensors[i])))
    }

    fn types(&self, call: &Call<'a, COUNT>) -> Result<()> {
        call.float(0)?;
        let (dtype, norm) = (self.x.dtype(), self.norm_weight.dtype());
        call.dtype(1, &[DType::F32, dtype], "f32 or the dtype of `x`")?;
        [Q, K, V].into_iter().try_for_each(|i| call.dtype(i, &[dtype], "the dtype of `x`"))?;
        if self.residual.is_some() {
            [ADDED, SUM].into_iter().try_for_each(|i| call.dtype(i, &[dtype], "the dtype of `x`"))?;
            call.dtype(POST, &[norm], "the dtype of `norm_weight`")?;
        }
        if self.head_norms.is_some() {
            [0, 1].into_iter().try_for_each(|i| call.dtype(HEAD_NORM + i, &[norm], "the dtype of `norm_weight`"))?;
        }
        if let Some([bias, ..]) = self.biases {
            call.dtype(BIAS, &[DType::F32, dtype], "f32 or the dtype of `x`")?;
            let same = |i| call.dtype(BIAS + i, &[bias.dtype()], "the dtype of `bias of q`");
            [1, 2].into_iter().try_for_each(same)?;
        }
        if self.start.tensor().is_some() {
            call.dtype(START, &[DType::U32], "u32")?;
        }
        if matches!(self.kv, KvPlaces::Pages(_)) {
            call.dtype(TABLE, &[DType::U32], "u32")?;
            call.unit_stride(TABLE)?;
        }
        Ok(())
    }

    fn limits(&self, [depth, heads, kv_heads, dim]: [usize; 4]) -> Result<()> {
        let too_large =
            |what, value: usize, limit: u64| Err(Error::TooLarge { op: OP, what, value: value as u64, limit });
        if dim > NormQkvRope::MAX_HEAD_DIM {
            return too_large("the elements of a head", dim, NormQkvRope::MAX_HEAD_DIM as u64);
        }
        if depth == 0 {
            return Err(wrong("x", self.x.shape(), "K must not be 0"));
        }
        if depth as u64 > MAX_EXTENT {
            return too_large("K", depth, MAX_EXTENT);
        }
        let columns = kv_heads.saturating_mul(2).saturating_add(heads).saturating_mul(dim);
        if columns as u64 > MAX_EXTENT {
            return too_large("the columns of all products", columns, MAX_EXTENT);
        }
        Ok(())
    }

    /// Where keys and values go.
    fn kv_shape(&self, [sequences, tokens, kv_heads, dim]: [usize; 4]) -> Result<Kv> {
        let k = self.outputs[1];
        let wanted = [sequences, kv_heads, dim];
        let table = match self.kv {
            KvPlaces::Rows => {
                if *k.shape() != [sequences, tokens, kv_heads, dim] {
                    let expected = format!("it must be [{sequences}, {tokens}, Hkv, {dim}] (see KvPlaces for caches)");
                    return Err(wrong("k", k.shape(), expected));
                }
                let shape = KvShape { capacity: 0, page: 0, pages: 0, width: 0 };
                return Ok(Kv { shape, bound: None });
            }
            KvPlaces::Cache | KvPlaces::Ring => None,
            KvPlaces::Pages(table) => Some(table),
        };
        let shape = KvShape::new(OP, ("k", k), table, wanted)?;
        let ring = matches!(self.kv, KvPlaces::Ring);
        if ring && tokens > shape.capacity {
            return Err(wrong("x", self.x.shape(), format!("the ring of `k` has room for {} tokens", shape.capacity)));
        }
        Ok(Kv { shape, bound: (!ring).then_some(shape.capacity) })
    }

    /// The matrices: of one class, and in rows of one distance, which is returned in bytes.
    fn weights(&self, depth: usize, rows: [usize; 3]) -> Result<usize> {
        let class = self.weights[0].desc();
        let mut distance = None;
        for ((weights, name), n) in self.weights.iter().zip(WEIGHTS).zip(rows) {
            if weights.desc() != class {
                let expected = format!("`wq` is {class:?}, and one launch reads one kind");
                return Err(Error::layout(OP, name, format_args!("{:?}", weights.desc()), expected));
            }
            if *weights.shape() != [n, depth] {
                return Err(wrong(name, weights.shape(), format!("it must be [{n}, {depth}]")));
            }
            let Weights::Dense(t) = weights else { continue };
            if !t.dtype().is_float() {
                let (operand, actual) = (name, t.dtype());
                return Err(Error::DType { op: OP, operand, actual, expected: "f32, f16 or bf16, or a QTensor" });
            }
            if !depth.is_multiple_of(NormQkvRope::DENSE_COLUMNS) {
                let expected = format!("K must be a multiple of {}", NormQkvRope::DENSE_COLUMNS);
                return Err(wrong(name, t.shape(), expected));
            }
            let bytes = t.strides()[0] * t.dtype().size();
            if t.strides()[1] != 1 || (n > 1 && *distance.get_or_insert(bytes) != bytes) {
                let actual = format!("{:?} with strides {:?}", t.shape(), t.strides());
                let expected = "the last stride must be 1 and rows as far apart as those of the other matrices";
                return Err(Error::layout(OP, name, actual, expected));
            }
        }
        Ok(distance.unwrap_or(class.row_bytes(depth)))
    }

    /// Weights of norms and biases: whole vectors of these lengths.
    fn vectors(&self, call: &Call<'a, COUNT>, [depth, dim]: [usize; 2], columns: [usize; 3]) -> Result<()> {
        let length = |i: usize, n: usize| {
            let (name, t) = call.operands[i];
            if *t.shape() != [n] {
                return Err(wrong(name, t.shape(), format!("it must be [{n}]")));
            }
            call.unit_stride(i)
        };
        length(1, depth)?;
        if self.residual.is_some() {
            length(POST, depth)?;
        }
        if self.head_norms.is_some() {
            [0, 1].into_iter().try_for_each(|i| length(HEAD_NORM + i, dim))?;
        }
        if self.biases.is_some() {
            (0..3).try_for_each(|i| length(BIAS + i, columns[i]))?;
        }
        Ok(())
    }

    fn align(&self) -> u8 {
        let rows = |t: &Tensor| t.alignment(t.strides()[..t.rank() - 1].iter().copied());
        let dense = self.weights.iter().filter_map(|w| if let Weights::Dense(t) = w { Some(*t) } else { None });
        dense.chain([self.x, self.norm_weight]).map(rows).min().unwrap_or(0)
    }
}

/// Places of keys and values, and the capacity where a position can pass it.
struct Kv {
    shape: KvShape,
    bound: Option<usize>,
}
