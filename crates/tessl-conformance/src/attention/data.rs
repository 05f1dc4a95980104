//! The contents of a problem's operands.

use super::{AttentionProblem, Causal, Packed};
use crate::data::representable;
use tessl::DType;
use tessl_oracle::Rng;

/// Places of operands.
pub(super) const MASK: usize = 3;
pub(super) const SINKS: usize = 4;
pub(super) const START: usize = 5;
pub(super) const LENGTHS: usize = 6;
pub(super) const TABLE: usize = 7;
pub(super) const CU_Q: usize = 8;
pub(super) const K_SCALES: usize = 9;
pub(super) const V_SCALES: usize = 10;

/// One sequence.
#[derive(Clone, Debug)]
pub(super) struct Sequence {
    /// Number of its first query among all of them.
    pub(super) first_query: usize,
    pub(super) queries: usize,
    /// Number of its first key among packed ones.
    first_key: usize,
    pub(super) keys: usize,
    /// Where its first query stands.
    pub(super) start: Option<i64>,
}

/// Values of q, k, v, mask, sinks, first positions, lengths (or cumulative ones), table, cumulative queries, and scales of
/// codes of k and of v.
pub(super) struct Data {
    pub(super) inputs: Vec<Vec<f64>>,
    /// Keys and values, decoded.
    kv: [Vec<f64>; 2],
    pub(super) sequences: Vec<Sequence>,
    pub(super) q_shape: Vec<usize>,
    pub(super) k_shape: Vec<usize>,
    pub(super) mask_shape: Vec<usize>,
    pub(super) start_shape: Vec<usize>,
    pub(super) table_shape: Vec<usize>,
}

impl Data {
    pub(super) fn new(p: &AttentionProblem) -> Self {
        let mut rng = Rng::new(p.seed);
        let sequences = sequences(p, &mut rng);
        let sum = |f: fn(&Sequence) -> usize| sequences.iter().map(f).sum::<usize>();
        let heads = p.kv_heads * p.group;
        let q_shape = match p.packed {
            Packed::No => vec![p.batch, p.queries, heads, p.dim],
            _ => vec![sum(|s| s.queries), heads, p.dim],
        };
        let pages = p.page.map(|page| p.keys.div_ceil(page));
        let k_shape = match (p.packed, p.page, pages) {
            (_, Some(page), Some(pages)) => vec![p.batch * pages + 2, page, p.kv_heads, p.dim],
            (Packed::Both, ..) => vec![sum(|s| s.keys), p.kv_heads, p.dim],
            _ => vec![p.batch, p.keys, p.kv_heads, p.dim],
        };
        let table_shape = vec![p.batch, pages.unwrap_or(1)];
        let table = shuffled(table_shape.iter().product(), &mut rng);
        let mask_shape = if p.mask.is_some() {
            let capacity = p.page.map_or(p.keys, |page| p.keys.div_ceil(page) * page);
            let whole = [p.batch, heads, p.queries, capacity];
            (0..4).map(|i| if p.repeated >> i & 1 == 1 { 1 } else { whole[i] }).collect()
        } else {
            vec![1; 4]
        };
        let mask = (0..mask_shape.iter().product()).map(|_| mask_value(p.mask, &mut rng)).collect();
        let sinks = (0..heads).map(|_| representable(DType::F32, 2.0 * rng.normal())).collect();
        let starts: Vec<f64> = sequences.iter().map(|s| s.start.unwrap_or(0).max(0) as f64).collect();
        let starts = if p.causal == Causal::Each { starts } else { vec![starts.first().copied().unwrap_or(0.0)] };
        let cumulative = |f: fn(&Sequence) -> usize| -> Vec<f64> {
            let ends = sequences.iter().scan(0, |end, s| {
                *end += f(s);
                Some(*end as f64)
            });
            [0.0].into_iter().chain(ends).collect()
        };
        let lengths: Vec<f64> = match p.packed {
            Packed::Both => cumulative(|s| s.keys),
            _ => sequences.iter().map(|s| s.keys as f64).collect(),
        };
        let value = |rng: &mut Rng| representable(p.dtype, rng.normal());
        let q: Vec<f64> = (0..q_shape.iter().product()).map(|_| value(&mut rng)).collect();
        let mut data = Data {
            start_shape: vec![starts.len()],
            inputs: vec![
                q,
                vec![],
                vec![],
                mask,
                sinks,
                starts,
                lengths,
                table,
                cumulative(|s| s.queries),
                vec![],
                vec![],
            ],
            kv: [vec![], vec![]],
            sequences,
            q_shape,
            k_shape,
            mask_shape,
            table_shape,
        };
        data.fill_keys(p, &mut rng);
        data
    }

    /// Numbers where some query sees the key, NaN everywhere else.
    fn fill_keys(&mut self, p: &AttentionProblem, rng: &mut Rng) {
        let size: usize = self.k_shape.iter().product();
        let (mut k, mut v) = (vec![f64::NAN; size], vec![f64::NAN; size]);
        for b in 0..p.batch {
            for (j, h) in (0..self.sequences[b].keys).flat_map(|j| (0..p.kv_heads).map(move |h| (j, h))) {
                let seen = (0..self.sequences[b].queries)
                    .any(|t| (h * p.group..(h + 1) * p.group).any(|head| p.added(self, [b, head, t, j]).is_some()));
                let at = self.kv_at(p, b, j, h);
                for d in (0..p.dim).filter(|_| seen) {
                    k[at + d] = representable(p.dtype, rng.normal());
                    v[at + d] = representable(p.dtype, 3.0 * rng.normal());
                }
                if p.poison && seen && rng.one_in(self.sequences[b].keys) {
                    v[at + p.dim / 2] = f64::NAN;
                }
            }
        }
        if p.coded {
            self.code(p.dim, [&mut k, &mut v], rng);
        } else {
            (self.inputs[1], self.inputs[2]) = (k.clone(), v.clone());
            let rows = self.k_shape[..self.k_shape.len() - 1].iter().product();
            (self.inputs[K_SCALES], self.inputs[V_SCALES]) = (vec![1.0; rows], vec![1.0; rows]);
        }
        self.kv = [k, v];
    }

    /// Rows become codes and a scale: what is NaN gets any codes and a scale of NaN.
    fn code(&mut self, dim: usize, kv: [&mut Vec<f64>; 2], rng: &mut Rng) {
        for (i, values) in kv.into_iter().enumerate() {
            let (mut codes, mut scales) = (Vec::new(), Vec::new());
            for row in values.chunks_mut(dim.max(1)) {
                let number = row.iter().all(|x| x.is_finite());
                let scale = if number { representable(DType::F32, 0.02 + 0.01 * rng.normal()) } else { f64::NAN };
                for x in row {
                    let code = rng.integer(-127, 127);
                    codes.push(code);
                    *x = code * scale;
                }
                scales.push(scale);
            }
            if dim == 0 {
                scales = vec![1.0; self.k_shape[..self.k_shape.len() - 1].iter().product()];
            }
            (self.inputs[1 + i], self.inputs[K_SCALES + i]) = (codes, scales);
        }
    }

    /// Where key `j` of a sequence is, in row-major order.
    fn kv_at(&self, p: &AttentionProblem, b: usize, j: usize, h: usize) -> usize {
        let s = &self.sequences[b];
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // Small whole numbers.
        let row = match p.page {
            Some(page) => self.inputs[TABLE][b * self.table_shape[1] + j / page] as usize * page + j % page,
            None if p.packed == Packed::Both => s.first_key + j,
            None => b * p.keys + j,
        };
        (row * p.kv_heads + h) * p.dim
    }

    pub(super) fn kv(&self, p: &AttentionProblem, b: usize, j: usize, h: usize) -> [&[f64]; 2] {
        let at = self.kv_at(p, b, j, h);
        [&self.kv[0][at..][..p.dim], &self.kv[1][at..][..p.dim]]
    }

    /// Where the mask's element for a score is.
    pub(super) fn mask_at(&self, p: &AttentionProblem, index: [usize; 4]) -> usize {
        let axis = |at: usize, i: usize| {
            let index = if p.repeated >> i & 1 == 1 { 0 } else { index[i] };
            at * self.mask_shape[i] + index
        };
        (0..4).fold(0, axis)
    }
}

fn sequences(p: &AttentionProblem, rng: &mut Rng) -> Vec<Sequence> {
    let (mut first_query, mut first_key) = (0, 0);
    let mut all = Vec::new();
    for b in 0..p.batch {
        // The first sequence is as long as allowed; one in four has nothing.
        let mut some = |most: usize, fixed: bool| {
            if fixed || b == 0 { most } else { rng.below(most + 1) * usize::from(!rng.one_in(4)) }
        };
        let queries = some(p.queries, p.packed == Packed::No);
        let keys = some(p.keys, !p.lengths && p.packed != Packed::Both);
        let start = match p.causal {
            Causal::Full => None,
            Causal::Host(start) | Causal::Device(start) => Some(start.into()),
            Causal::Each => Some(rng.below(p.keys + 2) as i64),
            Causal::End => Some(keys as i64 - queries as i64),
        };
        all.push(Sequence { first_query, queries, first_key, keys, start });
        first_query += queries;
        first_key += keys;
    }
    all
}

/// The numbers below `n`, as pages of the second page on.
fn shuffled(n: usize, rng: &mut Rng) -> Vec<f64> {
    let mut all: Vec<f64> = (0..n).map(|i| (i + 1) as f64).collect();
    (1..n).for_each(|i| all.swap(i, rng.below(i + 1)));
    all
}

fn mask_value(dtype: Option<DType>, rng: &mut Rng) -> f64 {
    match dtype {
        None | Some(DType::U8) => [0.0, 1.0, 7.0, 255.0][rng.below(4)],
        Some(_) if rng.one_in(3) => f64::NEG_INFINITY,
        Some(dtype) => representable(dtype, 2.0 * rng.normal()),
    }
}
