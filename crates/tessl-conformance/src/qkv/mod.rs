//! Cases of the family `qkv`: everything before attention in one launch.

mod known;
mod operands;

use crate::cache::{From, Kind};
use crate::data::{Mem, compare, decode};
use crate::env::{Env, Outcome};
use crate::suite::Case;
use operands::Built;
use tessl::nn::{NormQkvRopeDesc, RopeStyle, WeightsDesc};
use tessl::plan::{Desc, plan};
use tessl::{BufferKind, DType, DeviceKind, Isa, QFormat, QLayout};
use tessl_oracle::{Head, Rng, bound, rms_norm, rope_frequency};

const FLOATS: [DType; 3] = [DType::F32, DType::F16, DType::Bf16];
const BASE: f64 = 10_000.0;
const EPS: f64 = 1e-5;

/// How weights are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stored {
    /// As they are.
    Dense(DType),
    /// Coded; factors that lie apart have this type.
    Quantized(QFormat, DType),
}

/// A call with everything that decides how it is computed.
#[derive(Clone, Debug, PartialEq)]
pub struct QkvProblem {
    /// Sequences, and tokens of each.
    pub outer: [usize; 2],
    /// Length of the sums.
    pub k: usize,
    /// Heads of q, and of k and v.
    pub heads: [usize; 2],
    /// Elements of a head.
    pub dim: usize,
    /// Elements that are turned.
    pub dims: usize,
    /// The matrices.
    pub weights: Stored,
    /// The order of quantised ones.
    pub layout: QLayout,
    /// Type of x and the outputs.
    pub dtype: DType,
    /// Type of the weights of norms.
    pub norm: DType,
    /// Heads are normalised.
    pub head_norms: bool,
    /// Type of the biases.
    pub bias: Option<DType>,
    /// Something is added to x first.
    pub residual: bool,
    /// Added to the weights of norms.
    pub offset: f32,
    /// Which elements make a pair.
    pub style: RopeStyle,
    /// How keys and values are kept; rows without.
    pub cache: Option<Kind>,
    /// Tokens that a sequence has room for.
    pub capacity: usize,
    /// Who knows the first position.
    pub from: From,
    /// Elements of slack after each row.
    pub pad: usize,
    /// Elements from an aligned place to the first one.
    pub shift: usize,
    /// Kind of memory.
    pub kind: BufferKind,
    /// Seed of the contents.
    pub seed: u64,
}

impl QkvProblem {
    /// One token without extras, contiguous and aligned.
    pub fn new(weights: Stored, k: usize, heads: [usize; 2], dim: usize, dtype: DType) -> Self {
        QkvProblem {
            outer: [1, 1],
            k,
            heads,
            dim,
            dims: dim / 2 * 2,
            weights,
            layout: QLayout::Rows,
            dtype,
            norm: dtype,
            head_norms: false,
            bias: None,
            residual: false,
            offset: 0.0,
            style: RopeStyle::HalfSplit,
            cache: None,
            capacity: 32,
            from: From::Host,
            pad: 0,
            shift: 0,
            kind: BufferKind::Cold,
            seed: 1,
        }
    }

    /// Multiply-adds.
    pub fn cost(&self) -> u64 {
        let columns = (self.heads[0] + 2 * self.heads[1]) * self.dim;
        (self.outer[0] * self.outer[1] * self.k * columns) as u64
    }

    /// Runs the problem twice and compares: values, slack, bits.
    ///
    /// # Errors
    /// What was wrong, with the problem.
    pub fn check(&self, env: &Env) -> Result<(), String> {
        Mem::with(env, self.kind, |mem| self.check_in(mem)).map_err(|e| format!("{e}\n  {self:?}"))
    }

    fn check_in(&self, mem: &mut Mem<'_>) -> Result<(), String> {
        let mut rng = Rng::new(self.seed);
        let built = Built::new(self, mem, &mut rng)?;
        let mut runs = Vec::new();
        for _ in 0..2 {
            built.poison(mem)?;
            let desc = built.run(mem.stream.as_deref_mut()).map_err(|e| e.to_string())?;
            if desc.m > 0 {
                mem.env.cover(&Desc::NormQkvRope(desc))?;
            }
            if mem.env.computes {
                runs.push(built.fetch()?);
            }
        }
        let [first, second] = runs.as_slice() else { return Ok(()) };
        if first != second {
            return Err("two runs differ".into());
        }
        let row = |r: usize| &built.x[r * self.k..][..self.k];
        let mut rows: Vec<Vec<f64>> = (0..self.outer[0] * self.outer[1]).map(|r| row(r).to_vec()).collect();
        if self.residual {
            self.compare_sum(&built, &first[3])?;
            // What is stored is what goes on: its rounding is not counted twice.
            let values: Vec<f64> = (0..built.x.len()).map(|at| decode(self.dtype, &first[3], at)).collect();
            rows = values.chunks(self.k).map(<[f64]>::to_vec).collect();
        }
        let reason = plan(&Desc::NormQkvRope(built.desc()?), mem.env.rt.profile()).map_err(|e| e.to_string())?.reason;
        let fixed = reason.contains("fixed point");
        let heads: Vec<Vec<(f64, f64)>> =
            rows.iter().enumerate().map(|(r, x)| self.heads_of(&built, r, x, fixed)).collect();
        let ([nq, nkv], dim) = (self.heads, self.dim);
        let q = |at: usize| heads[at / (nq * dim)][at % (nq * dim)];
        compare(self.dtype, &first[0], &[self.outer[0], self.outer[1], nq, dim], q).map_err(|e| format!("q: {e}"))?;
        for (i, name) in [(1usize, "k"), (2, "v")] {
            let old = &built.caches[i - 1];
            let mut want: Vec<(f64, f64)> = old.iter().map(|&v| (v, 0.0)).collect();
            for (r, heads) in heads.iter().enumerate() {
                let from = (nq + (i - 1) * nkv) * dim;
                let kept = built.place(r) * nkv * dim;
                want[kept..kept + nkv * dim].copy_from_slice(&heads[from..from + nkv * dim]);
            }
            compare(self.dtype, &first[i], &built.kv_shape, |at| want[at]).map_err(|e| format!("{name}: {e}"))?;
        }
        Ok(())
    }

    fn compare_sum(&self, built: &Built<'_>, bytes: &[u8]) -> Result<(), String> {
        let (k, offset) = (self.k, f64::from(self.offset));
        let want: Vec<(f64, f64)> = built
            .added
            .chunks(k)
            .zip(built.x.chunks(k))
            .flat_map(|(added, x)| {
                let normed = rms_norm(added, |i| built.post[i], EPS, offset);
                let one = |i: usize| {
                    let error = bound::rms_norm(k, normed[i], built.post[i], offset);
                    (x[i] + normed[i], error + bound::rounding(x[i].abs() + normed[i].abs()))
                };
                (0..k).map(one).collect::<Vec<_>>()
            })
            .collect();
        let shape = [self.outer[0], self.outer[1], k];
        compare(self.dtype, bytes, &shape, |at| want[at]).map_err(|e| format!("sum: {e}"))
    }

    /// Every head of row `r`, those of q, k and v one after the other, with the error allowed.
    fn heads_of(&self, built: &Built<'_>, r: usize, x: &[f64], fixed: bool) -> Vec<(f64, f64)> {
        let offset = f64::from(self.offset);
        let normed = rms_norm(x, |i| built.norm[i], EPS, offset);
        let frequencies: Vec<f64> = (0..self.dims / 2).map(|i| rope_frequency(i, self.dims, BASE)).collect();
        let position = built.position(r) as f64;
        let mut all = Vec::new();
        for (part, matrix) in built.matrices.iter().enumerate() {
            for h in 0..self.heads[part.min(1)] {
                let columns = h * self.dim..(h + 1) * self.dim;
                let (sums, errors): (Vec<f64>, Vec<f64>) = columns
                    .map(|col| {
                        let weights = matrix.row(col);
                        let sum: f64 = normed.iter().zip(&weights).map(|(x, w)| x * w.0).sum();
                        let magnitude: f64 = normed.iter().zip(&weights).map(|(x, w)| x.abs() * w.1).sum();
                        let digits =
                            if fixed { bound::fixed_point(&normed, weights.iter().map(|w| w.1), 3) } else { 0.0 };
                        let bias = built.biases.as_ref().map_or(0.0, |b| b[part][col]);
                        let error = bound::normed_product(self.k, magnitude) + digits;
                        (sum + bias, error + bound::rounding(sum.abs() + bias.abs()))
                    })
                    .unzip();
                let head = Head {
                    norm: built.head_norms.as_ref().filter(|_| part < 2).map(|w| w[part.min(1)].as_slice()),
                    eps: EPS,
                    offset,
                    position,
                    frequencies: if part < 2 { &frequencies } else { &[] },
                    interleaved: self.style == RopeStyle::Interleaved,
                };
                all.extend(head.of(&sums).into_iter().zip(bound::head(&head, &sums, &errors)));
            }
        }
        all
    }
}

/// One kind of weights of each code.
fn stored() -> Vec<Stored> {
    let coded = crate::quant::codes().into_iter().enumerate().map(|(i, f)| Stored::Quantized(f, FLOATS[i % 3]));
    FLOATS.into_iter().map(Stored::Dense).chain(coded).collect()
}

/// Every problem class that takes a kernel or row of its own.
pub(crate) fn descs() -> Vec<Desc> {
    let mut all = Vec::new();
    for (stored, dtype) in stored().into_iter().flat_map(|s| FLOATS.map(|d| (s, d))) {
        let weights = match stored {
            Stored::Dense(dtype) => WeightsDesc::Dense(dtype),
            Stored::Quantized(format, factors) => {
                let factors = (format.factors() > 0).then_some(factors);
                WeightsDesc::Quantized { format, layout: QLayout::Rows, factors }
            }
        };
        let (m, k, heads, kv_heads, dim, dims, style) = (1, 512, 2, 1, 64, 64, RopeStyle::HalfSplit);
        all.extend([2, 7].map(|align| {
            let norm = dtype;
            Desc::NormQkvRope(NormQkvRopeDesc { m, k, heads, kv_heads, dim, dims, style, weights, dtype, norm, align })
        }));
    }
    all
}

/// Rows, heads and options as models have them, and what no tile divides.
fn shapes(env: &Env, stored: Stored, dtype: DType) -> Outcome {
    let unit = if let Stored::Quantized(format, _) = stored { format.group() } else { 32 };
    let caches = [None, Some(Kind::Plain), Some(Kind::Ring), Some(Kind::Paged(16)), Some(Kind::Paged(32))];
    // The smallest ones first: they fit every budget.
    let tiny = QkvProblem::new(stored, unit, [1, 1], 8, dtype);
    let mut problems = vec![QkvProblem { shift: 1, pad: 1, outer: [1, 2], ..tiny.clone() }, tiny];
    for (i, (outer, heads, dim, dims)) in [
        ([1, 1], [4, 2], 64, 64),
        ([2, 3], [3, 1], 20, 12),
        ([8, 1], [2, 2], 33, 32),
        ([1, 5], [1, 1], 256, 128),
        ([1, 8], [2, 1], 6, 2),
        ([4, 1], [5, 5], 16, 16),
    ]
    .into_iter()
    .enumerate()
    {
        let p = QkvProblem::new(stored, unit * (1 + i % 3), heads, dim, dtype);
        problems.push(QkvProblem {
            outer,
            dims,
            norm: if i % 2 == 0 { dtype } else { DType::F32 },
            head_norms: i % 3 != 0,
            bias: [None, Some(DType::F32), Some(dtype)][i % 3],
            residual: i % 2 == 1,
            offset: if i % 4 == 3 { 1.0 } else { 0.0 },
            style: RopeStyle::ALL[i % 2],
            cache: caches[i % 5],
            from: [From::Host, From::Device, From::Each][i % 3],
            pad: if i % 2 == 1 { 3 } else { 0 },
            shift: i % 2,
            seed: i as u64 + 1,
            ..p
        });
    }
    let mut left = env.budget;
    for p in problems {
        if p.cost() <= left {
            left -= p.cost();
            if let Err(message) = p.check(env) {
                return Outcome::Failed(message);
            }
        }
    }
    Outcome::Passed
}

fn memory(env: &Env, dtype: DType) -> Outcome {
    let kinds = [BufferKind::Hot, BufferKind::Cold, BufferKind::Bump, BufferKind::External];
    let kinds = kinds.into_iter().filter(|&kind| Mem::available(env, kind));
    let base = QkvProblem::new(Stored::Quantized(QFormat::Q4_0, dtype), 64, [2, 1], 32, dtype);
    let base = QkvProblem { residual: true, outer: [1, 3], cache: Some(Kind::Ring), ..base };
    let mut problems = kinds.flat_map(|kind| [0, 1].map(|shift| QkvProblem { kind, shift, ..base.clone() }));
    problems.try_for_each(|p| p.check(env)).into()
}

/// Sixteen rows of weights side by side: the same numbers where the device has them, a typed error elsewhere.
fn rows16(env: &Env) -> Result<(), String> {
    let has = matches!(env.rt.profile().isa, Isa::Avx512 | Isa::Amx) && env.rt.info().kind == DeviceKind::Cpu;
    for (i, format) in
        [QFormat::Q4_0, QFormat::Q4_1, QFormat::Q5_0, QFormat::Q5_1, QFormat::Q8_0].into_iter().enumerate()
    {
        let p = QkvProblem::new(Stored::Quantized(format, DType::F16), 96, [3, 1], 32, FLOATS[i % 3]);
        let p = QkvProblem { layout: QLayout::Rows16, outer: [1, 1 + i], head_norms: i % 2 == 0, ..p };
        match p.check(env) {
            Ok(()) if has => {}
            Err(text) if !has && text.contains("is not supported on device") => {}
            other => return Err(format!("{format}: {other:?}")),
        }
    }
    Ok(())
}

/// Every case of this family.
pub(crate) fn cases() -> Vec<Case> {
    let op = "norm_qkv_rope";
    let mut cases = known::cases();
    for (stored, dtype) in stored().into_iter().flat_map(|s| FLOATS.map(|d| (s, d))) {
        let code = match stored {
            Stored::Dense(dtype) => dtype.name(),
            Stored::Quantized(format, _) => format.code(),
        };
        let case = Case::new(format!("{op}/shapes/{code}/{dtype}"), op, move |env| shapes(env, stored, dtype));
        cases.push(if code == "q4_0" || code == "bf16" { case.tagged(&["quick"]) } else { case });
    }
    let sixteens = Case::fixed(format!("{op}/rows16"), op, 100_000, |env| rows16(env).into());
    cases.push(sixteens.tagged(&["quick"]));
    for dtype in FLOATS {
        cases.push(Case::new(format!("{op}/memory/{dtype}"), op, move |env| memory(env, dtype)).tagged(&["quick"]));
    }
    cases
}

/// A random problem; every kind of weights in turn.
pub(crate) fn random(rng: &mut Rng, turn: usize) -> QkvProblem {
    let all = stored();
    let stored = all[turn % all.len()];
    let unit = if let Stored::Quantized(format, _) = stored { format.group() } else { 32 };
    let tokens = rng.between(1, 4);
    let dim = if rng.one_in(2) { 16 * rng.between(1, 8) } else { rng.between(2, 100) };
    let kv = rng.between(1, 2);
    let k = unit * rng.between(1, (512 / unit).max(1));
    let mut p = QkvProblem::new(stored, k, [kv * rng.between(1, 3), kv], dim, FLOATS[turn / all.len() % 3]);
    p.outer = [rng.between(1, 8 / tokens), tokens];
    p.dims = 2 * rng.between(1, dim / 2);
    p.norm = *rng.pick(&[DType::F32, p.dtype]);
    p.bias = *rng.pick(&[None, Some(DType::F32), Some(p.dtype)]);
    (p.head_norms, p.residual) = (rng.one_in(2), rng.one_in(3));
    p.offset = *rng.pick(&[0.0, 1.0]);
    p.style = *rng.pick(&RopeStyle::ALL);
    p.cache = *rng.pick(&[None, Some(Kind::Plain), Some(Kind::Ring), Some(Kind::Paged(16)), Some(Kind::Paged(64))]);
    p.capacity = if let Some(Kind::Paged(page)) = p.cache { page * rng.between(1, 3) } else { tokens + rng.below(30) };
    p.from = *rng.pick(&[From::Host, From::Device, From::Each]);
    if rng.one_in(2) {
        (p.pad, p.shift) = (rng.below(9), rng.below(4));
    }
    p.kind = *rng.pick(&[BufferKind::Cold, BufferKind::Hot, BufferKind::Bump]);
    p.seed = rng.bits();
    p
}
