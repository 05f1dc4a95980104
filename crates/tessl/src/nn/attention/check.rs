//! What a call of attention must fulfil.

use super::super::AttentionDesc;
use super::super::check::Call;
use super::{Attention, Causal, MAX_DIM, OP, PAGES};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::nn::cache::Start;
use crate::tensor::{Dims, Tensor};

/// Places in [`Checked::operands`].
pub(super) const OUT: usize = 9;
const NAMES: [&str; 12] =
    ["q", "k", "v", "mask", "sinks", "start", "kv_lengths", "table", "cu_q", "out", "k_scales", "v_scales"];
/// Rows, keys and pages are counted in 31 bits.
const MAX_COUNT: usize = (u32::MAX >> 1) as usize;

/// A call that has passed all checks.
pub(super) struct Checked<'a> {
    pub(super) call: Call<'a, 12>,
    pub(super) desc: AttentionDesc,
    /// Strides of the mask along batch, heads, queries and keys.
    pub(super) mask: [u64; 4],
    pub(super) start_stride: u64,
}

fn wrong(operand: &'static str, tensor: &Tensor, expected: impl Into<String>) -> Error {
    Error::shape(OP, operand, format_args!("{:?}", tensor.shape()), expected)
}

impl<'a> Attention<'a> {
    /// The tensor of lengths: of each sequence, or cumulative.
    fn key_lengths(&self) -> Option<&'a Tensor> {
        self.cu_k.or(self.lengths)
    }

    pub(super) fn check(&self) -> Result<Checked<'a>> {
        let start = match self.causal {
            Some(Causal::At(Start::At(crate::Scalar::Device(t)) | Start::Each(t))) => Some(t),
            _ => None,
        };
        // What is absent is replaced by q, which kernels then do not read there.
        let optional = [self.mask, self.sinks, start, self.key_lengths(), self.table, self.cu_q];
        let [mask, sinks, begin, lengths, table, cu_q] = optional.map(|t| t.unwrap_or(self.q));
        let [k_scales, v_scales] = self.scales.unwrap_or([self.q; 2]);
        let tensors = [self.q, self.k, self.v, mask, sinks, begin, lengths, table, cu_q, self.out, k_scales, v_scales];
        let call = Call::new(OP, std::array::from_fn(|i| (NAMES[i], tensors[i])))?;
        self.types(&call)?;
        let desc = self.shapes()?;
        [0, 1, 2, OUT].into_iter().try_for_each(|i| call.unit_stride(i))?;
        if self.table.is_some() {
            call.unit_stride(7)?;
        }
        call.output(OUT, &[])?;
        self.scalars()?;
        let (start, mask) = (self.start(&desc)?, self.mask_strides(&desc)?);
        Ok(Checked { call, desc, mask, start_stride: start })
    }

    fn types(&self, call: &Call<'a, 12>) -> Result<()> {
        call.float(0)?;
        call.dtype(OUT, &[self.q.dtype()], "the dtype of `q`")?;
        if self.scales.is_some() {
            [1, 2].into_iter().try_for_each(|i| call.dtype(i, &[DType::I8], "i8, as it comes with scales"))?;
            [10, 11].into_iter().try_for_each(|i| call.dtype(i, &[DType::F32], "f32"))?;
        } else {
            [1, 2].into_iter().try_for_each(|i| call.dtype(i, &[self.q.dtype()], "the dtype of `q`"))?;
        }
        if self.mask.is_some() {
            call.dtype(3, &[DType::U8, DType::F32, DType::F16, DType::Bf16], "u8, f32, f16 or bf16")?;
        }
        if self.sinks.is_some() {
            call.dtype(4, &[DType::F32], "f32")?;
        }
        let numbers = [(5, self.start_tensor()), (6, self.key_lengths()), (7, self.table), (8, self.cu_q)];
        numbers.into_iter().filter(|(_, t)| t.is_some()).try_for_each(|(i, _)| call.dtype(i, &[DType::U32], "u32"))
    }

    fn start_tensor(&self) -> Option<&'a Tensor> {
        match self.causal {
            Some(Causal::At(start)) => start.tensor(),
            _ => None,
        }
    }

    /// Shapes of everything but mask and start.
    fn shapes(&self) -> Result<AttentionDesc> {
        let (q, k) = (self.q, self.k);
        let (packed_q, packed_k) = (self.cu_q.is_some(), self.cu_k.is_some());
        let (outer, heads, dim) = match (packed_q, q.shape()) {
            (false, &[b, t, h, d]) => ([b, t], h, d),
            (true, &[t, h, d]) => ([0, t], h, d),
            (false, _) => return Err(wrong("q", q, "it must be [B, Tq, Hq, D]")),
            (true, _) => return Err(wrong("q", q, "with `cu_q` it must be [total, Hq, D]")),
        };
        let (k_outer, kv_heads, k_dim) = match (packed_k, k.shape()) {
            (false, &[b, t, h, d]) => ([b, t], h, d),
            (true, &[t, h, d]) => ([0, t], h, d),
            (false, _) => return Err(wrong("k", k, "it must be [B, Tkv, Hkv, D]")),
            (true, _) => return Err(wrong("k", k, "with `cu_k` it must be [total, Hkv, D]")),
        };
        if self.out.shape() != q.shape() {
            return Err(wrong("out", self.out, format!("`q` is {:?}", q.shape())));
        }
        if self.v.shape() != k.shape() {
            return Err(wrong("v", self.v, format!("`k` is {:?}", k.shape())));
        }
        let rows = &k.shape()[..k.rank() - 1];
        for (name, scales) in ["k_scales", "v_scales"].into_iter().zip(self.scales.into_iter().flatten()) {
            if scales.shape() != rows {
                return Err(wrong(name, scales, format!("it must be {rows:?}, one for each row of `k`")));
            }
        }
        if k_dim != dim {
            return Err(wrong("k", k, format!("`q` has heads of {dim} elements")));
        }
        if heads > 0 && (kv_heads == 0 || !heads.is_multiple_of(kv_heads)) {
            let expected = format!("the {heads} heads of `q` must be a multiple of its {kv_heads}");
            return Err(wrong("k", k, expected));
        }
        if dim > MAX_DIM {
            let (value, limit) = (dim as u64, MAX_DIM as u64);
            return Err(Error::TooLarge { op: OP, what: "the elements of a head", value, limit });
        }
        let batch = match self.cu_q.map(Tensor::shape) {
            None => outer[0],
            Some(&[n]) if n > 0 => n - 1,
            Some(_) => return Err(wrong("cu_q", self.cu_q.unwrap_or(q), "it must be [B + 1]")),
        };
        if let Some(cu_k) = self.cu_k.filter(|t| t.shape() != [batch + 1]) {
            return Err(Error::shape(
                OP,
                "cu_k",
                format_args!("{:?}", cu_k.shape()),
                format!("it must be [{}]", batch + 1),
            ));
        }
        if let Some(lengths) = self.lengths.filter(|t| t.shape() != [batch]) {
            return Err(wrong("kv_lengths", lengths, format!("it must be [{batch}], one for each sequence")));
        }
        if self.cu_k.is_some() && (self.lengths.is_some() || self.table.is_some()) {
            let operand = if self.lengths.is_some() { "kv_lengths" } else { "table" };
            let tensor = self.lengths.or(self.table).unwrap_or(q);
            return Err(wrong(operand, tensor, "`cu_k` already says where the keys of a sequence are"));
        }
        let (keys, page) = match self.table.map(|t| (t, t.shape())) {
            None if packed_k || k_outer[0] == batch => (k_outer[1], 0),
            None => return Err(wrong("k", k, format!("there are {batch} sequences"))),
            Some((_, &[b, pages])) if b == batch => {
                if !PAGES.contains(&k_outer[1]) {
                    return Err(wrong("k", k, "with `table` it must be pages [N, 16, 32 or 64, Hkv, D]"));
                }
                (pages.saturating_mul(k_outer[1]), k_outer[1])
            }
            Some((t, _)) => return Err(wrong("table", t, format!("it must be [{batch}, pages]"))),
        };
        let counts =
            [("sequences", batch), ("queries", outer[1]), ("keys", keys), ("heads", heads), ("pages", k_outer[0])];
        let large = counts.into_iter().find(|(_, n)| *n > MAX_COUNT);
        let rows =
            [if packed_q { 1 } else { batch }, outer[1], heads].iter().fold(1u64, |p, &n| p.saturating_mul(n as u64));
        if let Some((what, value)) =
            large.map(|(what, n)| (what, n as u64)).or((rows > MAX_COUNT as u64).then_some(("rows", rows)))
        {
            return Err(Error::TooLarge { op: OP, what, value, limit: MAX_COUNT as u64 });
        }
        if let Some(sinks) = self.sinks.filter(|s| s.shape() != [heads]) {
            return Err(wrong("sinks", sinks, format!("it must be [{heads}], one for each head of `q`")));
        }
        let narrow = |n: usize| u32::try_from(n).expect("INVARIANT: checked against the limit");
        // A repeated row has a stride of 0, which copy engines are not asked to take: it counts as one element.
        let steps = |t: &Tensor| {
            let axes = t.strides().iter().zip(t.shape()).take(t.rank() - 1);
            t.alignment(axes.map(|(&stride, &n)| if n > 1 { stride.max(1) } else { stride }))
        };
        Ok(AttentionDesc {
            sequences: narrow(batch),
            queries: narrow(outer[1]),
            keys: narrow(keys),
            heads: narrow(heads),
            kv_heads: narrow(kv_heads),
            dim: narrow(dim),
            dtype: q.dtype(),
            coded: self.scales.is_some(),
            causal: self.causal.is_some(),
            window: self.window.is_some(),
            packed: packed_q,
            page: narrow(page),
            mask: self.mask.map(Tensor::dtype),
            align: [q, k, self.v, self.out].into_iter().map(steps).min().unwrap_or(0),
        })
    }

    fn scalars(&self) -> Result<()> {
        let fail = |name, value: f64, expected| Err(Error::Scalar { op: OP, name, value, expected });
        if let Some(scale) = self.scale.filter(|s| !s.is_finite()) {
            return fail("scale", scale.into(), "finite");
        }
        if let Some(softcap) = self.softcap.filter(|c| !(*c > 0.0 && c.is_normal() && c.recip().is_normal())) {
            return fail("softcap", softcap.into(), "above 0, with a normal number as its inverse");
        }
        match self.window {
            Some(0) => fail("window", 0.0, "at least 1: a query sees itself"),
            Some(window) if self.causal.is_none() => fail("window", window.into(), "given together with causal()"),
            _ => Ok(()),
        }
    }

    /// The stride of the first positions.
    fn start(&self, desc: &AttentionDesc) -> Result<u64> {
        match self.causal {
            Some(Causal::At(start)) => start.stride(OP, desc.sequences),
            _ => Ok(0),
        }
    }

    fn mask_strides(&self, desc: &AttentionDesc) -> Result<[u64; 4]> {
        let Some(mask) = self.mask else { return Ok([0; 4]) };
        if self.cu_q.is_some() || self.cu_k.is_some() {
            return Err(wrong("mask", mask, "sequences one after the other take no mask"));
        }
        let shape: Dims = [desc.sequences, desc.heads, desc.queries, desc.keys].iter().map(|&n| n as usize).collect();
        let wide = mask.broadcast_to(&shape);
        let wide = wide.map_err(|_| wrong("mask", mask, format!("it must broadcast to {shape:?}")))?;
        Ok(std::array::from_fn(|i| wide.strides()[i] as u64))
    }
}
