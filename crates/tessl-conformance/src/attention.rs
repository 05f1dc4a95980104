//! Cases of the family `attention`.

mod cases;
mod data;
mod known;

pub(crate) use cases::{cases, descs, random};

use crate::data::{Mem, Placed, compare, format_of};
use crate::env::Env;
use data::Data;
use tessl::nn::{Attention, Start};
use tessl::plan::{Desc, Plan};
use tessl::{BufferKind, DType, Scalar, Stream, Tensor};
use tessl_oracle::bound::Weights;
use tessl_oracle::{Key, Scores, attention, bound};

/// Where queries stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Causal {
    /// Every query sees every key.
    Full,
    /// From this position on, told by the host.
    Host(u32),
    /// From this position on, told by the device.
    Device(u32),
    /// From a position of each sequence on.
    Each,
    /// The last query at the last key.
    End,
}

/// Which sequences lie one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Packed {
    /// None.
    No,
    /// Queries.
    Queries,
    /// Queries and keys.
    Both,
}

/// An attention with everything that decides how it is computed.
#[derive(Clone, Debug, PartialEq)]
pub struct AttentionProblem {
    /// Type of q, k, v and out.
    pub dtype: DType,
    /// Sequences.
    pub batch: usize,
    /// Queries of each, at most where they are packed.
    pub queries: usize,
    /// Keys of each, at most.
    pub keys: usize,
    /// Heads of keys.
    pub kv_heads: usize,
    /// Query heads for each.
    pub group: usize,
    /// Elements of a head.
    pub dim: usize,
    /// Positions.
    pub causal: Causal,
    /// Keys that a query sees.
    pub window: Option<u32>,
    /// Sequences have fewer keys than there is room for.
    pub lengths: bool,
    /// Keys of a page.
    pub page: Option<usize>,
    /// Packed sequences.
    pub packed: Packed,
    /// Type of the mask.
    pub mask: Option<DType>,
    /// Axes along which the mask is repeated, as bits.
    pub repeated: u32,
    /// Logits of heads.
    pub sinks: bool,
    /// Factor of products; else the default.
    pub scale: Option<f32>,
    /// Bound of scores.
    pub softcap: Option<f32>,
    /// Keys and values are codes of 8 bits with scales.
    pub coded: bool,
    /// Heads lie outside of tokens in memory.
    pub permuted: bool,
    /// Elements of slack after each row.
    pub pad: usize,
    /// Elements from an aligned place to the first one.
    pub offset: usize,
    /// One value that some queries see is NaN.
    pub poison: bool,
    /// Kind of memory.
    pub kind: BufferKind,
    /// Seed of the contents.
    pub seed: u64,
}

impl AttentionProblem {
    /// Contiguous, aligned, every query sees every key; `[queries, keys]`, `[key heads, query heads for each]`.
    pub fn new(dtype: DType, [queries, keys]: [usize; 2], [kv_heads, group]: [usize; 2], dim: usize) -> Self {
        AttentionProblem {
            dtype,
            batch: 1,
            queries,
            keys,
            kv_heads,
            group,
            dim,
            causal: Causal::Full,
            window: None,
            lengths: false,
            page: None,
            packed: Packed::No,
            mask: None,
            repeated: 0,
            sinks: false,
            scale: None,
            softcap: None,
            coded: false,
            permuted: false,
            pad: 0,
            offset: 0,
            poison: false,
            kind: BufferKind::Cold,
            seed: 1,
        }
    }

    /// Multiply-adds, at most.
    pub fn cost(&self) -> u64 {
        let all = [self.batch, self.queries.max(1), self.keys.max(1), self.kv_heads, self.group, self.dim.max(1), 2];
        all.iter().fold(1, |p, &x| p.saturating_mul(x as u64))
    }

    fn heads(&self) -> usize {
        self.kv_heads * self.group
    }

    /// Runs every plan that takes the problem twice and compares: values, slack, bits.
    ///
    /// # Errors
    /// What was wrong, with the problem.
    pub fn check(&self, env: &Env) -> Result<(), String> {
        Mem::with(env, self.kind, |mem| self.check_in(mem)).map_err(|e| format!("{e}\n  {self:?}"))
    }

    fn check_in(&self, mem: &mut Mem<'_>) -> Result<(), String> {
        let data = Data::new(self);
        let mut places = Places::new(self, &data);
        for (place, value) in places.inputs.iter_mut().zip(&data.inputs) {
            place.allocate(mem)?;
            place.fill_input(mem, |at| value[at])?;
        }
        let out = &mut places.out;
        out.allocate(mem)?;
        let views: Vec<Tensor> = places.inputs.iter().map(Placed::view).collect::<Result<_, _>>()?;
        let y = out.view()?;
        let op = self.op(&views, &y);
        self.cover(mem.env, &op)?;
        for plan in self.plans(mem.env, &op)? {
            let op = op.clone().with_plan(&plan);
            let mut runs = Vec::new();
            for _ in 0..2 {
                out.fill_output(mem, |_| f64::NAN)?;
                run(&op, mem.stream.as_deref_mut()).map_err(|e| format!("{}: {e}", plan.reason))?;
                if mem.env.computes {
                    runs.push(out.fetch_output()?);
                }
            }
            let [first, second] = runs.as_slice() else { continue };
            if first != second {
                return Err(format!("{}: two runs differ", plan.reason));
            }
            let want = self.want(&data, weights_of(&plan, self.dtype));
            compare(self.dtype, first, &data.q_shape, |at| want[at]).map_err(|e| format!("{}: {e}", plan.reason))?;
        }
        Ok(())
    }

    fn plans(&self, env: &Env, op: &Attention<'_>) -> Result<Vec<Plan>, String> {
        let desc = op.desc().map_err(|e| e.to_string())?;
        tessl::plan::candidates(&Desc::Attention(desc), env.rt.profile()).map_err(|e| e.to_string())
    }

    fn op<'a>(&self, t: &'a [Tensor], out: &'a Tensor) -> Attention<'a> {
        let mut op = Attention::new(&t[0], &t[1], &t[2], out);
        op = match self.causal {
            Causal::Full => op,
            Causal::Host(start) => op.causal(start),
            Causal::Device(_) => op.causal(Scalar::Device(&t[data::START])),
            Causal::Each => op.causal(Start::Each(&t[data::START])),
            Causal::End => op.causal_at_end(),
        };
        if let Some(window) = self.window {
            op = op.window(window);
        }
        op = match self.packed {
            Packed::No => op,
            Packed::Queries => op.varlen_queries(&t[data::CU_Q]),
            Packed::Both => op.varlen(&t[data::CU_Q], &t[data::LENGTHS]),
        };
        if self.lengths && self.packed != Packed::Both {
            op = op.kv_lengths(&t[data::LENGTHS]);
        }
        if self.page.is_some() {
            op = op.table(&t[data::TABLE]);
        }
        if self.mask.is_some() {
            op = op.mask(&t[data::MASK]);
        }
        if self.sinks {
            op = op.sinks(&t[data::SINKS]);
        }
        if let Some(scale) = self.scale {
            op = op.scale(scale);
        }
        if let Some(softcap) = self.softcap {
            op = op.softcap(softcap);
        }
        if self.coded {
            op = op.kv_scales(&t[data::K_SCALES], &t[data::V_SCALES]);
        }
        op
    }

    /// Counts the plan rows: also that of the second step, where keys are split.
    fn cover(&self, env: &Env, op: &Attention<'_>) -> Result<(), String> {
        let desc = op.desc().map_err(|e| e.to_string())?;
        if self.cost() == 0 || desc.queries == 0 {
            return Ok(());
        }
        let attention = Desc::Attention(desc.clone());
        let plan = tessl::plan::plan(&attention, env.rt.profile()).map_err(|e| e.to_string())?;
        env.cover(&attention)?;
        if plan.split > 1 {
            env.cover(&Desc::Combine(desc.combine(plan.split)))?;
        }
        Ok(())
    }

    /// Value and error of every element of out.
    fn want(&self, data: &Data, form: Weights) -> Vec<(f64, f64)> {
        let (heads, dim) = (self.heads(), self.dim);
        let mut all = vec![(f64::NAN, 0.0); data.q_shape.iter().product()];
        #[allow(clippy::cast_possible_truncation)] // The default is an f32, too.
        let scale = self.scale.map_or_else(|| f64::from((dim.max(1) as f64).sqrt().recip() as f32), f64::from);
        for (b, sequence) in data.sequences.iter().enumerate() {
            for (t, h) in (0..sequence.queries).flat_map(|t| (0..heads).map(move |h| (t, h))) {
                let sink = self.sinks.then(|| data.inputs[data::SINKS][h]);
                let scores = Scores { scale, softcap: self.softcap.map(f64::from), sink };
                let keys: Vec<Key<'_>> = (0..sequence.keys)
                    .filter_map(|j| Some((j, self.added(data, [b, h, t, j])?)))
                    .map(|(j, added)| {
                        let [k, v] = data.kv(self, b, j, h / self.group);
                        Key { k, v, added }
                    })
                    .collect();
                let row = ((sequence.first_query + t) * heads + h) * dim;
                let q = &data.inputs[0][row..][..dim];
                let values = attention(q, &keys, scores, dim);
                let mut errors =
                    if keys.is_empty() { vec![0.0; dim] } else { bound::attention(q, &keys, scores, form) };
                if self.coded {
                    errors.iter_mut().zip(bound::coded(q, &keys, scores)).for_each(|(error, more)| *error += more);
                }
                for ((to, value), error) in all[row..][..dim].iter_mut().zip(values).zip(errors) {
                    *to = (value, error);
                }
            }
        }
        all
    }

    /// What the mask adds to a score; `None` where the key is hidden.
    fn added(&self, data: &Data, [b, h, t, j]: [usize; 4]) -> Option<f64> {
        let s = &data.sequences[b];
        if let Some(first) = s.start {
            let end = first + t as i64 + 1;
            let low = self.window.map_or(0, |w| end - i64::from(w));
            if j as i64 >= end || (j as i64) < low {
                return None;
            }
        }
        let Some(dtype) = self.mask else { return Some(0.0) };
        let at = data.mask_at(self, [b, h, t, j]);
        let value = data.inputs[data::MASK][at];
        match dtype {
            DType::U8 => (value != 0.0).then_some(0.0),
            _ => (value != f64::NEG_INFINITY).then_some(value),
        }
    }
}

/// How the kernel of a plan rounds weights.
pub fn weights_of(plan: &Plan, dtype: DType) -> Weights {
    match dtype {
        _ if plan.kernel.module == "attention_wgmma" => Weights::Rounded(format_of(dtype)),
        DType::Bf16 => Weights::TwoBf16,
        _ => Weights::Single,
    }
}

/// Calls the op on a stream or the default one.
fn run(op: &Attention<'_>, stream: Option<&mut Stream>) -> tessl::Result<()> {
    match stream {
        Some(stream) => op.run_on(stream),
        None => op.run(),
    }
}

/// Operands in memory, in the order of [`Data::inputs`].
struct Places {
    inputs: Vec<Placed>,
    out: Placed,
}

impl Places {
    fn new(p: &AttentionProblem, data: &Data) -> Self {
        let rows = |dtype, shape: &[usize], permuted: bool| {
            let strides = strides(shape, p.pad, permuted);
            Placed::new(dtype, shape, &strides, p.offset)
        };
        let kv = if p.coded { DType::I8 } else { p.dtype };
        let scales = &data.k_shape[..data.k_shape.len() - 1];
        let flat = |dtype, shape: &[usize]| Placed::new(dtype, shape, &contiguous(shape), p.offset);
        let mask = p.mask.unwrap_or(DType::U8);
        let inputs = vec![
            rows(p.dtype, &data.q_shape, p.permuted),
            rows(kv, &data.k_shape, p.permuted),
            rows(kv, &data.k_shape, false),
            flat(mask, &data.mask_shape),
            flat(DType::F32, &[p.heads()]),
            flat(DType::U32, &data.start_shape),
            flat(DType::U32, &[data.inputs[data::LENGTHS].len()]),
            flat(DType::U32, &data.table_shape),
            flat(DType::U32, &[p.batch + 1]),
            flat(DType::F32, scales),
            flat(DType::F32, scales),
        ];
        debug_assert!(format_of(p.dtype).bits > 0);
        Places { inputs, out: rows(p.dtype, &data.q_shape, p.permuted) }
    }
}

fn contiguous(shape: &[usize]) -> Vec<usize> {
    let mut strides = vec![1; shape.len()];
    (1..shape.len()).rev().for_each(|i| strides[i - 1] = strides[i] * shape[i].max(1));
    strides
}

/// Rows of the last axis with `pad` elements between them; `permuted` puts heads outside of tokens.
fn strides(shape: &[usize], pad: usize, permuted: bool) -> Vec<usize> {
    let n = shape.len();
    let mut strides = vec![1; n];
    let (dim, heads, tokens) = (shape[n - 1], shape[n - 2], shape[n - 3]);
    let row = (dim + pad).max(1);
    let (head, token) = if permuted { (row * tokens.max(1) + pad, row) } else { (row, row * heads.max(1) + pad) };
    (strides[n - 2], strides[n - 3]) = (head, token);
    if n == 4 {
        strides[0] = if permuted { head * heads.max(1) } else { token * tokens.max(1) };
    }
    strides
}
