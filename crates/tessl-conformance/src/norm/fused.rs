//! Cases of `rms_norm` with a residual, `layer_norm` and `qk_norm`.

use crate::data::{Mem, Placed, compare, format_of, representable};
use crate::env::{Env, NORM_PAIRS, Outcome};
use crate::rowwise::{self, Operand, RowCase, Wanted};
use crate::suite::Case;
use tessl::nn::{Add, LayerNorm, LayerNormDesc, NormResidual, QkNorm, QkNormDesc, RmsNorm, RmsNormDesc};
use tessl::plan::Desc;
use tessl::{BufferKind, DType, Scalar, Stream, Tensor};
use tessl_oracle::{Rng, bound, layer_norm, rms_norm};

/// What is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Norm {
    /// `h = (x + residual) * scale`, `y = norm(h)`.
    Before,
    /// The same, and what may be in place is y.
    BeforeIntoY,
    /// `y = (norm(x) + residual) * scale`.
    After,
    /// `h = (norm(x) + residual) * scale`, `z = norm(h)`.
    Between,
    /// The same, and what may be in place is z.
    BetweenIntoZ,
    /// With mean and bias.
    Layer,
    /// Two inputs, two weights.
    Qk,
}

impl Norm {
    /// Everything.
    pub(crate) const ALL: [Norm; 7] =
        [Norm::Before, Norm::BeforeIntoY, Norm::After, Norm::Between, Norm::BetweenIntoZ, Norm::Layer, Norm::Qk];

    /// The operation.
    pub(crate) fn op(self) -> &'static str {
        match self {
            Norm::Layer => "layer_norm",
            Norm::Qk => "qk_norm",
            _ => "rms_norm",
        }
    }
}

/// A normalisation with everything that decides how it is computed.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct FusedNorm {
    /// What is computed.
    pub(crate) norm: Norm,
    /// Types of rows and weights.
    pub(crate) pair: (DType, DType),
    /// Added to the mean square or the variance.
    pub(crate) eps: f32,
    /// Added to each weight.
    pub(crate) offset: f32,
    /// Factor of a sum with a residual, and whether the device reads it. A power of two before the norm: h is exact.
    pub(crate) scale: Option<(f32, bool)>,
    /// There is a bias.
    pub(crate) bias: bool,
    /// Rows and their places.
    pub(crate) rows: RowCase,
}

impl FusedNorm {
    /// Without options.
    pub(crate) fn new(norm: Norm, pair: (DType, DType), rows: RowCase) -> Self {
        FusedNorm { norm, pair, eps: 1e-5, offset: 0.0, scale: None, bias: true, rows }
    }

    fn is_before(&self) -> bool {
        matches!(self.norm, Norm::Before | Norm::BeforeIntoY)
    }

    fn run(&self, t: &[Tensor], stream: Option<&mut Stream>) -> tessl::Result<Desc> {
        macro_rules! run {
            ($op:expr, $desc:ident) => {{
                let op = $op;
                match stream {
                    Some(stream) => op.run_on(stream)?,
                    None => op.run()?,
                }
                Ok(Desc::$desc(op.desc()?))
            }};
        }
        let scale = match self.scale {
            Some((value, true)) => Some(t[0].runtime().from_slice(&[value], &[1])?),
            _ => None,
        };
        let rms = |y| {
            let op = RmsNorm::new(&t[0], &t[2], y).eps(self.eps).weight_offset(self.offset);
            match (&scale, self.scale) {
                (Some(tensor), _) => op.layer_scale(Scalar::Device(tensor)),
                (None, Some((value, _))) => op.layer_scale(value),
                (None, None) => op,
            }
        };
        match self.norm {
            Norm::Before => run!(rms(&t[4]).residual(&t[1], &t[3]), RmsNorm),
            Norm::BeforeIntoY => run!(rms(&t[3]).residual(&t[1], &t[4]), RmsNorm),
            Norm::After => run!(rms(&t[3]).then_add(&t[1]), RmsNorm),
            Norm::Between => run!(rms(&t[4]).then_add(&t[1]).then_norm(&t[3], &t[5]), RmsNorm),
            Norm::BetweenIntoZ => run!(rms(&t[5]).then_add(&t[1]).then_norm(&t[3], &t[4]), RmsNorm),
            Norm::Layer => {
                let op = LayerNorm::new(&t[0], &t[1], t.last().unwrap_or(&t[0])).eps(self.eps);
                run!(if self.bias { op.bias(&t[2]) } else { op }, LayerNorm)
            }
            Norm::Qk => {
                let op = QkNorm::new(&t[0], &t[1], &t[2], &t[3]).into(&t[4], &t[5]);
                run!(op.eps(self.eps).weight_offset(self.offset), QkNorm)
            }
        }
    }

    fn operands(&self) -> (Vec<Operand>, Vec<Operand>) {
        let (x, w) = (Operand::Rows(self.pair.0), Operand::Vector(self.pair.1));
        match self.norm {
            Norm::Before | Norm::BeforeIntoY => (vec![x, x, w], vec![x, x]),
            Norm::After => (vec![x, x, w], vec![x]),
            Norm::Between | Norm::BetweenIntoZ => (vec![x, x, w, w], vec![x, x]),
            Norm::Layer if self.bias => (vec![x, w, w], vec![x]),
            Norm::Layer => (vec![x, w], vec![x]),
            Norm::Qk => (vec![x, x, w, w], vec![x, x]),
        }
    }

    /// Values and errors of `norm(x)` for all rows.
    fn normal(&self, x: &[f64], weight: &[f64]) -> Wanted {
        let (n, offset) = (self.rows.n.max(1), f64::from(self.offset));
        let values = x.chunks(n).flat_map(|row| rms_norm(row, |i| weight[i], self.eps.into(), offset));
        values.enumerate().map(|(at, y)| (y, bound::rms_norm(n, y, weight[at % n], offset))).collect()
    }

    /// The same of `(norm(x) + residual) * scale`.
    fn sum(&self, data: &[Vec<f64>], scale: f64) -> Wanted {
        let sum = |((y, error), r): ((f64, f64), &f64)| {
            let t = y + r;
            let first = error + bound::rounding(t.abs() + error);
            (t * scale, scale.abs() * first + bound::rounding(t * scale))
        };
        self.normal(&data[0], &data[2]).into_iter().zip(&data[1]).map(sum).collect()
    }

    /// The same of the norm of a row of sums, which are stored with a rounding of their type.
    fn again(&self, sums: &[(f64, f64)], weight: &[f64]) -> Wanted {
        let (eps, offset) = (f64::from(self.eps), f64::from(self.offset));
        let (h, errors): (Vec<f64>, Vec<f64>) =
            sums.iter().map(|&(h, error)| (h, bound::stored(error, h, format_of(self.pair.0)))).unzip();
        let z = rms_norm(&h, |i| weight[i], eps, offset);
        let passed_on = bound::rms_norm_of(&h, &errors, |i| weight[i] + offset, eps);
        let all = z.into_iter().zip(passed_on).enumerate();
        all.map(|(i, (z, error))| (z, error + bound::rms_norm(h.len(), z.abs() + error, weight[i], offset))).collect()
    }

    fn want(&self, data: &[Vec<f64>]) -> Vec<Wanted> {
        let n = self.rows.n.max(1);
        let scale = self.scale.map_or(1.0, |(scale, _)| f64::from(scale));
        match self.norm {
            Norm::Qk => vec![self.normal(&data[0], &data[2]), self.normal(&data[1], &data[3])],
            Norm::Layer => {
                let row = |x: &[f64]| {
                    let bias = |i: usize| if self.bias { data[2][i] } else { 0.0 };
                    let y = layer_norm(x, |i| data[1][i], bias, self.eps.into());
                    let error = bound::layer_norm(x, |i| data[1][i], &y, self.eps.into());
                    y.into_iter().zip(error).collect::<Wanted>()
                };
                vec![data[0].chunks(n).flat_map(row).collect()]
            }
            Norm::After => vec![self.sum(data, scale)],
            Norm::Between | Norm::BetweenIntoZ => {
                let h = self.sum(data, scale);
                let z = h.chunks(n).flat_map(|row| self.again(row, &data[3])).collect();
                if self.norm == Norm::Between { vec![h, z] } else { vec![z, h] }
            }
            Norm::Before | Norm::BeforeIntoY => {
                // Exact in every type, by the choice of the data.
                let h: Vec<f64> = data[0].iter().zip(&data[1]).map(|(x, r)| (x + r) * scale).collect();
                let y = self.normal(&h, &data[2]);
                let h = h.into_iter().map(|h| (h, 0.0)).collect();
                if self.norm == Norm::Before { vec![h, y] } else { vec![y, h] }
            }
        }
    }

    /// Runs the problem twice and compares: values, slack, bits.
    ///
    /// # Errors
    /// What was wrong, with the problem.
    pub(crate) fn check(&self, env: &Env) -> Result<(), String> {
        let (inputs, outputs) = self.operands();
        let value = |rng: &mut Rng, i: usize| match i {
            0 | 1 if self.is_before() => rng.integer(-15, 15) / 8.0,
            0 => rng.normal(),
            _ => rng.normal() + 0.3,
        };
        // The k of an in-place call that has q's place would be q.
        let in_place = self.rows.in_place.filter(|&i| self.norm != Norm::Qk || i == 0);
        let rows = RowCase { in_place, broadcast: false, ..self.rows.clone() };
        let call: rowwise::Run<'_> = &|t, stream| self.run(t, stream);
        let checked = rows.check_outputs(env, (&inputs, &outputs), value, call, |data| self.want(data));
        checked.map_err(|e| format!("{e}\n  {self:?}"))
    }
}

/// Every problem class that takes a kernel or row of its own.
pub(crate) fn descs() -> Vec<Desc> {
    let mut all = Vec::new();
    for ((dtype, weight), align) in NORM_PAIRS.into_iter().flat_map(|p| [1, 7].map(|a| (p, a))) {
        let (rows, n) = (5, 33);
        let align = if dtype == DType::F32 { align.max(2) } else { align };
        for residual in [NormResidual::Before, NormResidual::After, NormResidual::Between] {
            all.push(Desc::RmsNorm(RmsNormDesc { rows, n, dtype, weight, residual, align }));
        }
        all.push(Desc::LayerNorm(LayerNormDesc { rows, n, dtype, weight, align }));
        all.push(Desc::QkNorm(QkNormDesc { rows, n, dtype, weight, align }));
    }
    all
}

/// eps, offsets, scales and biases together.
fn options(env: &Env, norm: Norm, pair: (DType, DType)) -> Outcome {
    let mut problems = Vec::new();
    for n in [1, 33, 256, 4099] {
        for (eps, offset) in [(0.5, 0.0), (1e-6, 1.0), (1e-5, -0.25)] {
            for scale in [None, Some((0.5, false)), Some((2.0, true)), Some((-1.0, true))] {
                let scale = scale.filter(|_| !matches!(norm, Norm::Layer | Norm::Qk));
                let bias = n % 2 == 0;
                let rows = RowCase { seed: env.seed ^ n as u64, offset: n % 2, ..RowCase::new(3, n) };
                problems.push(FusedNorm { eps, offset, scale, bias, ..FusedNorm::new(norm, pair, rows) });
            }
        }
    }
    env.thin(problems).iter().try_for_each(|p| p.check(env)).into()
}

/// A sum and its norm in one call have the bits of two calls, whether or not what is added is a norm itself.
fn as_two_calls(env: &Env, pair: (DType, DType)) -> Result<(), String> {
    let text = |e: tessl::Error| e.to_string();
    let mut rng = Rng::new(env.seed);
    for n in [33, 512, 9000] {
        let mut rows = [(); 2].map(|()| Placed::new(pair.0, &[3, n], &[n, 1], 0));
        let mut weight = Placed::new(pair.1, &[n], &[1], 0);
        let mut outputs = [(); 8].map(|()| Placed::new(pair.0, &[3, n], &[n, 1], 0));
        let same = Mem::with(env, BufferKind::Cold, |mem| {
            for place in rows.iter_mut().chain([&mut weight]) {
                place.allocate(mem)?;
                let values: Vec<f64> = (0..place.len()).map(|_| 3.0 * rng.normal()).collect();
                let dtype = place.view()?.dtype();
                place.fill_input(mem, |at| representable(dtype, values[at]))?;
            }
            outputs.iter_mut().try_for_each(|y| y.allocate(mem).and_then(|()| y.fill_output(mem, |_| f64::NAN)))?;
            let ([x, r], w) = ([rows[0].view()?, rows[1].view()?], weight.view()?);
            let y: Vec<Tensor> = outputs.iter().map(Placed::view).collect::<Result<_, _>>()?;
            RmsNorm::new(&x, &w, &y[1]).residual(&r, &y[0]).run().map_err(text)?;
            Add::new(&x, &r, &y[2]).run().map_err(text)?;
            RmsNorm::new(&y[2], &w, &y[3]).run().map_err(text)?;
            RmsNorm::new(&x, &w, &y[4]).then_add(&r).then_norm(&w, &y[5]).run().map_err(text)?;
            RmsNorm::new(&x, &w, &y[6]).then_add(&r).run().map_err(text)?;
            RmsNorm::new(&y[6], &w, &y[7]).run().map_err(text)?;
            if !env.computes {
                return Ok(true);
            }
            let bytes: Vec<Vec<u8>> = outputs.iter().map(Placed::fetch_output).collect::<Result<_, _>>()?;
            Ok(bytes[..2] == bytes[2..4] && bytes[4..6] == bytes[6..])
        })?;
        if !same {
            return Err(format!("rows of {n}: not the bits of two calls"));
        }
    }
    Ok(())
}

/// q, k and v side by side in one buffer, more heads of q than of k; v is not touched.
fn fused_buffer(env: &Env, (dtype, weight): (DType, DType)) -> Result<(), String> {
    let text = |e: tessl::Error| e.to_string();
    for (tokens, [hq, hk, hv], d) in [(1usize, [8usize, 2, 2], 128usize), (3, [4, 1, 1], 80), (2, [3, 2, 1], 33)] {
        let heads = hq + hk + hv;
        let shape = [tokens, heads, d];
        let mut rng = Rng::new(env.seed ^ d as u64);
        let data: Vec<f64> = (0..tokens * heads * d).map(|_| representable(dtype, rng.normal())).collect();
        let weights: Vec<f64> = (0..2 * d).map(|_| representable(weight, rng.normal())).collect();
        let mut buffer = Placed::new(dtype, &shape, &[heads * d, d, 1], 0);
        let mut both = Placed::new(weight, &[2, d], &[d, 1], 0);
        let bytes = Mem::with(env, BufferKind::Cold, |mem| {
            buffer.allocate(mem)?;
            both.allocate(mem)?;
            buffer.fill_output(mem, |at| data[at])?;
            both.fill_input(mem, |at| weights[at])?;
            let (all, w) = (buffer.view()?, both.view()?);
            let (q, k) = (all.narrow(1, 0, hq).map_err(text)?, all.narrow(1, hq, hk).map_err(text)?);
            let (qw, kw) = (w.select(0, 0).map_err(text)?, w.select(0, 1).map_err(text)?);
            QkNorm::new(&q, &k, &qw, &kw).eps(1e-5).run().map_err(text)?;
            if env.computes { buffer.fetch_output().map(Some) } else { Ok(None) }
        })?;
        let Some(bytes) = bytes else { continue };
        let eps = f64::from(1e-5f32);
        compare(dtype, &bytes, &shape, |at| {
            let (head, i) = (at / d % heads, at % d);
            if head >= hq + hk {
                return (data[at], 0.0);
            }
            let w = &weights[if head < hq { 0 } else { d }..][..d];
            let y = rms_norm(&data[at - i..][..d], |i| w[i], eps, 0.0)[i];
            (y, bound::rms_norm(d, y, w[i], 0.0))
        })?;
    }
    Ok(())
}

/// tracel-ai/burn#5607, ml-explore/mlx#2238: a large mean and a small spread.
fn burn_5607(env: &Env) -> Result<(), String> {
    let text = |e: tessl::Error| e.to_string();
    let known =
        [(0.0f32, -1.341_640_8, 1.341_640_8), (1e2, -1.341_527_7, 1.341_357_1), (1e3, -1.341_507_8, 1.344_237_2)];
    for (mean, first, last) in known.into_iter().chain([(1e4, -1.331_333_4, 1.331_333_4)]) {
        #[allow(clippy::cast_possible_truncation)] // The point of the case.
        let x: Vec<f32> = (0..16).map(|i| mean + (f64::from(i) * 1e-3) as f32).collect();
        let x = env.rt.from_slice(&x, &[1, 16]).map_err(text)?;
        let w = env.rt.from_slice(&[1.0f32; 16], &[16]).map_err(text)?;
        LayerNorm::new(&x, &w, &x).run().map_err(text)?;
        let y = x.read::<f32>().map_err(text)?;
        let near = |got: f32, want: f64| (f64::from(got) - want).abs() < 1e-5;
        if env.computes && !(near(y[0], first) && near(y[15], last)) {
            return Err(format!("mean {mean}: {} and {} instead of {first} and {last}", y[0], y[15]));
        }
    }
    Ok(())
}

/// NaN and infinity make their row NaN wherever they stand; equal elements give the bias.
fn special(env: &Env, pair: (DType, DType)) -> Result<(), String> {
    for n in [1usize, 4, 33, 1000] {
        let x: Vec<f64> = (0..4 * n)
            .map(|at| match (at / n, at % n) {
                (0, i) if i == n - 1 => f64::NAN,
                (1, i) if i == n / 2 => f64::INFINITY,
                (2, _) => 7.0,
                (_, i) => representable(pair.0, i as f64 / 16.0),
            })
            .collect();
        let (w, b) = (vec![1.0; n], vec![0.5; n]);
        let operands = [(pair.0, &[4, n][..], &x[..]), (pair.1, &[n][..], &w[..]), (pair.1, &[n][..], &b[..])];
        let call: rowwise::Run<'_> = &|t, _| {
            let op = LayerNorm::new(&t[0], &t[1], &t[3]).bias(&t[2]);
            op.run()?;
            Ok(Desc::LayerNorm(op.desc()?))
        };
        let Some(y) = rowwise::small(env, &operands, (pair.0, &[4, n]), call)? else { continue };
        let right = y[..2 * n].iter().all(|y| y.is_nan()) && y[2 * n..3 * n].iter().all(|y| *y == 0.5);
        if !right || y[3 * n..].iter().any(|y| y.is_nan()) {
            return Err(format!("rows of {n}: {y:?}"));
        }
    }
    Ok(())
}

/// Every case of these operations.
pub(crate) fn cases() -> Vec<Case> {
    let known = Case::fixed("known/burn_5607", "layer_norm", 100, |env| burn_5607(env).into()).tagged(&["quick"]);
    let mut cases = vec![known];
    for pair in NORM_PAIRS {
        let types = format!("{}_{}", pair.0, pair.1);
        for norm in Norm::ALL {
            let name = |label: &str| format!("norm_{norm:?}/{label}/{types}").to_lowercase();
            let case = |label: &str, body: fn(&Env) -> Vec<RowCase>| {
                Case::new(name(label), norm.op(), move |env| {
                    let one = |rows: &RowCase| FusedNorm::new(norm, pair, rows.clone()).check(env);
                    rowwise::check_all(env, body(env), one)
                })
            };
            cases.push(case("sizes", |env| rowwise::sizes(env.seed)));
            cases.push(case("views", |env| rowwise::views(env, 2)).tagged(&["quick"]));
            cases.push(case("memory", rowwise::memory));
            cases.push(Case::new(name("options"), norm.op(), move |env| options(env, norm, pair)).tagged(&["quick"]));
        }
        let fixed = |label: &str, op, body: fn(&Env, (DType, DType)) -> Result<(), String>| {
            let case = Case::fixed(format!("{op}/{label}/{types}"), op, 60_000, move |env| body(env, pair).into());
            case.tagged(&["quick"])
        };
        cases.push(fixed("as_two_calls", "rms_norm", as_two_calls));
        cases.push(fixed("fused_buffer", "qk_norm", fused_buffer));
        cases.push(fixed("special", "layer_norm", special));
    }
    cases
}
