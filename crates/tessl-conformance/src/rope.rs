//! Cases of the family `rope`.

use crate::env::{Env, Outcome};
use crate::rowwise::{self, Operand, RowCase};
use crate::suite::Case;
use tessl::nn::{Positions, Rope, RopeDesc, RopeFrequencies, RopeScaling, RopeStyle};
use tessl::plan::Desc;
use tessl::{DType, Scalar, Stream, Tensor, bf16};
use tessl_oracle::{Rng, bound, rope, rope_frequency, rope_ntk, rope_pair, rope_yarn};

const FLOATS: [DType; 3] = [DType::F32, DType::F16, DType::Bf16];
const BASE: f64 = 10_000.0;

/// How the positions are given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// Counted from a number.
    Host(u32),
    /// Counted from a number in memory, of this type.
    Device(u32, DType),
    /// One a row, of this type.
    Each(DType),
}

/// A rotary embedding with everything that decides how it is computed.
#[derive(Clone, Debug, PartialEq)]
pub struct RopeProblem {
    /// Which elements make a pair.
    pub style: RopeStyle,
    /// Type of x and y.
    pub dtype: DType,
    /// Elements that are turned.
    pub dims: usize,
    /// Positions.
    pub source: Source,
    /// Axis of tokens, where positions are counted.
    pub axis: usize,
    /// Rows and their places.
    pub rows: RowCase,
}

impl RopeProblem {
    fn new(style: RopeStyle, dtype: DType, dims: usize, source: Source, rows: RowCase) -> Self {
        let axis = rows.outer.len().saturating_sub(2);
        RopeProblem { style, dtype, dims, source, axis, rows }
    }

    fn run(&self, t: &[Tensor], stream: Option<&mut Stream>) -> tessl::Result<Desc> {
        let rt = t[0].runtime();
        let frequencies = RopeFrequencies::new(rt, self.dims, BASE, RopeScaling::None)?;
        let first = match self.source {
            Source::Device(first, DType::I32) => Some(rt.from_slice(&[first.cast_signed()], &[1])?),
            Source::Device(first, _) => Some(rt.from_slice(&[first], &[1])?),
            _ => None,
        };
        let positions = match (self.source, &first) {
            (Source::Host(first), _) => Positions::from(first),
            (_, Some(first)) => Positions::From(Scalar::Device(first)),
            _ => Positions::Each(&t[1]),
        };
        let op = Rope::new(&t[0], &frequencies, positions, &t[t.len() - 1]).style(self.style).token_axis(self.axis);
        match stream {
            Some(stream) => op.run_on(stream)?,
            None => op.run()?,
        }
        Ok(Desc::Rope(op.desc()?))
    }

    /// Where row `r` stands.
    fn position(&self, r: usize, each: Option<&[f64]>) -> f64 {
        let inner: usize = self.rows.outer[self.axis + 1..].iter().product();
        let token = r / inner % self.rows.outer[self.axis];
        match self.source {
            Source::Host(first) => f64::from(first) + token as f64,
            Source::Device(first, DType::I32) => f64::from(first.cast_signed()) + token as f64,
            Source::Device(first, _) => f64::from(first) + token as f64,
            Source::Each(_) => each.map_or(0.0, |p| p[r]),
        }
    }

    fn row(&self, x: &[f64], position: f64) -> Vec<(f64, f64)> {
        let frequencies: Vec<f64> = (0..self.dims / 2).map(|i| rope_frequency(i, self.dims, BASE)).collect();
        let woven = self.style == RopeStyle::Interleaved;
        let values = rope(x, position, &frequencies, woven);
        let mut errors = vec![0.0; x.len()];
        for (i, frequency) in frequencies.iter().enumerate() {
            let (a, b) = rope_pair(i, frequencies.len(), woven);
            let error = bound::rope(x[a], x[b], position, *frequency);
            (errors[a], errors[b]) = (error, error);
        }
        values.into_iter().zip(errors).collect()
    }

    /// Runs the problem twice and compares: values, slack, bits.
    ///
    /// # Errors
    /// What was wrong, with the problem.
    pub fn check(&self, env: &Env) -> Result<(), String> {
        let x = Operand::Rows(self.dtype);
        let each = if let Source::Each(dtype) = self.source { Some(Operand::Column(dtype)) } else { None };
        let inputs: Vec<Operand> = [x].into_iter().chain(each).collect();
        let in_place = self.rows.in_place.filter(|&i| i == 0);
        let broadcast = self.rows.broadcast && each.is_some();
        let rows = RowCase { in_place, broadcast, ..self.rows.clone() };
        let value = |rng: &mut Rng, input: usize| match (input, self.source) {
            (1, Source::Each(DType::I32)) => rng.integer(-1000, 1_000_000),
            (1, _) => rng.integer(0, 1_000_000),
            _ => 3.0 * rng.normal(),
        };
        let want = |data: &[Vec<f64>]| {
            let n = self.rows.n.max(1);
            let row = |(r, x): (usize, &[f64])| self.row(x, self.position(r, data.get(1).map(Vec::as_slice)));
            data[0].chunks(n).enumerate().flat_map(row).collect()
        };
        let call: rowwise::Run<'_> = &|t, stream| self.run(t, stream);
        rows.check(env, (&inputs, x), value, call, want).map_err(|e| format!("{e}\n  {self:?}"))
    }
}

/// Every problem class that takes a kernel or row of its own.
pub(crate) fn descs() -> Vec<Desc> {
    let kinds = RopeStyle::ALL.into_iter().flat_map(|s| FLOATS.map(|d| (s, d)));
    let desc = |((style, dtype), align): ((RopeStyle, DType), u8)| {
        let align = if dtype == DType::F32 { align.max(2) } else { align };
        Desc::Rope(RopeDesc { rows: 6, n: 64, dims: 64, style, dtype, align })
    };
    kinds.flat_map(|k| [(k, 1), (k, 7)]).map(desc).collect()
}

fn check_all(env: &Env, problems: Vec<RopeProblem>) -> Outcome {
    let mut left = env.budget;
    for p in env.thin(problems) {
        if p.rows.cost() <= left {
            left -= p.rows.cost();
            if let Err(message) = p.check(env) {
                return Outcome::Failed(message);
            }
        }
    }
    Outcome::Passed
}

/// Head sizes and rotary parts of models, and every small one.
fn sizes(env: &Env, style: RopeStyle, dtype: DType) -> Outcome {
    let mut problems = Vec::new();
    let small = (1..=20).map(|half| (2 * half, 2 * half + half % 3));
    for (dims, n) in
        small.chain([(64, 64), (128, 128), (32, 128), (64, 80), (96, 96), (256, 256), (20, 80), (512, 520)])
    {
        for outer in [vec![5], vec![3, 2], vec![2, 3, 4], vec![1, 70, 3]] {
            let rows = RowCase { outer, seed: env.seed ^ n as u64, ..RowCase::new(1, n) };
            problems.push(RopeProblem::new(style, dtype, dims, Source::Host(1000), rows));
        }
    }
    check_all(env, problems)
}

fn views(env: &Env, style: RopeStyle, dtype: DType) -> Outcome {
    let sources =
        [Source::Host(0), Source::Each(DType::U32), Source::Device(999_990, DType::U32), Source::Each(DType::I32)];
    let mut problems = Vec::new();
    for (i, rows) in rowwise::views(env, 1).into_iter().enumerate().filter(|(_, r)| r.outer.len() != 4) {
        let dims = [2, 2, 8, 64, 32][rows.n.min(300) % 5].min(rows.n / 2 * 2);
        if dims == 0 || rows.outer.is_empty() {
            continue;
        }
        let axis = i % rows.outer.len();
        problems.push(RopeProblem { axis, ..RopeProblem::new(style, dtype, dims, sources[i % 4], rows) });
    }
    check_all(env, problems)
}

/// Signed and unsigned positions of every source, small, large and negative.
fn positions(env: &Env, style: RopeStyle, dtype: DType) -> Outcome {
    let mut problems = Vec::new();
    for first in [0u32, 1, 257, 15_962, 999_999, 1 << 24, u32::MAX - 3] {
        for source in [Source::Host(first), Source::Device(first, DType::U32), Source::Device(first, DType::I32)] {
            let rows = RowCase { outer: vec![2, 3, 2], ..RowCase::new(1, 64) };
            problems.push(RopeProblem::new(style, dtype, 64, source, rows));
        }
    }
    for dtype in FLOATS {
        for kind in rowwise::memory(env) {
            let rows = RowCase { outer: vec![4, 2], ..kind };
            problems.push(RopeProblem::new(style, dtype, rows.n / 2 * 2, Source::Each(DType::U32), rows));
        }
    }
    problems.iter().try_for_each(|p| p.check(env)).into()
}

/// ml-explore/mlx#3494, #3795, #3949: one token in each of several batches.
fn mlx_3494(env: &Env) -> Result<(), String> {
    let want =
        [[1.242_586_5, 0.948_771_1, -0.675_262_1, 1.048_729_4], [1.242_586_5, -0.675_262_1, 0.948_771_1, 1.048_729_4]];
    for (style, want) in RopeStyle::ALL.into_iter().zip(want) {
        let shape = [3, 2, 1, 4];
        let p = RopeProblem {
            axis: 2,
            ..RopeProblem::new(
                style,
                DType::F32,
                4,
                Source::Host(5),
                RowCase { outer: vec![3, 2, 1], ..RowCase::new(1, 4) },
            )
        };
        let x = [1.0; 24];
        let run: rowwise::Run<'_> = &|t, s| p.run(t, s);
        let Some(got) = rowwise::small(env, &[(DType::F32, &shape, &x)], (DType::F32, &shape), run)? else { continue };
        if got.chunks(4).any(|row| row.iter().zip(want).any(|(g, w): (&f64, f64)| (g - w).abs() > 2e-6)) {
            return Err(format!("{style:?}: {got:?}"));
        }
    }
    Ok(())
}

/// huggingface/candle#3520: positions are not rounded to the type of x.
fn candle_3520(env: &Env) -> Result<(), String> {
    for (position, want) in [(257u32, [0.819_306, -0.573_357]), (15_962, [-0.908_016, 0.418_936])] {
        for source in [Source::Host(position), Source::Device(position, DType::I32)] {
            let rows = RowCase { outer: vec![1, 1], ..RowCase::new(1, 2) };
            let p = RopeProblem::new(RopeStyle::HalfSplit, DType::Bf16, 2, source, rows);
            let run: rowwise::Run<'_> = &|t, s| p.run(t, s);
            let operand = (DType::Bf16, &[1, 1, 2][..], &[1.0, 0.0][..]);
            let Some(got) = rowwise::small(env, &[operand], (DType::Bf16, &[1, 1, 2]), run)? else { continue };
            let right = got.iter().zip(want).all(|(g, w)| *g == f64::from(bf16::from_f64(w)));
            if !right {
                return Err(format!("position {position}: {got:?} instead of {want:?}"));
            }
        }
    }
    Ok(())
}

/// Scaled frequencies against their own formulas: a row of ones at a position shows the angle of each pair.
fn scalings(env: &Env) -> Result<(), String> {
    let text = |e: tessl::Error| e.to_string();
    let yarn = RopeScaling::Yarn { factor: 4.0, original: 2048.0, fast: 32.0, slow: 1.0 };
    for dims in [4usize, 64, 128] {
        for (scaling, frequencies) in
            [(RopeScaling::Ntk(8.0), rope_ntk(dims, BASE, 8.0)), (yarn, rope_yarn(dims, BASE, 4.0, 2048.0))]
        {
            let table = RopeFrequencies::new(&env.rt, dims, BASE, scaling).map_err(text)?;
            for position in [1u32, 777, 100_000] {
                let x = env.rt.from_slice(&vec![1.0f32; dims], &[1, 1, dims]).map_err(text)?;
                Rope::new(&x, &table, position, &x).run().map_err(text)?;
                let got = x.read::<f32>().map_err(text)?;
                let want = rope(&vec![1.0; dims], position.into(), &frequencies, false);
                // The frequencies themselves are right to a few units of f64.
                let error = 1e-6 + f64::from(position) * 1e-14;
                let near = got.iter().zip(&want).all(|(g, w)| (f64::from(*g) - w).abs() < error);
                if env.computes && !near {
                    return Err(format!("{scaling:?} at {position}: {got:?} instead of {want:?}"));
                }
            }
        }
    }
    Ok(())
}

/// Every case of this family.
pub(crate) fn cases() -> Vec<Case> {
    let known = |name: &str, body: fn(&Env) -> Result<(), String>| {
        Case::fixed(format!("known/{name}"), "rope", 100, move |env| body(env).into()).tagged(&["quick"])
    };
    let mut cases = vec![
        Case::fixed("rope/scalings", "rope", 1000, |env| scalings(env).into()).tagged(&["quick"]),
        known("mlx_3494", mlx_3494),
        known("candle_3520", candle_3520),
    ];
    for (style, dtype) in RopeStyle::ALL.into_iter().flat_map(|s| FLOATS.map(|d| (s, d))) {
        let case = |label: &str, body: fn(&Env, RopeStyle, DType) -> Outcome| {
            let name = format!("rope/{label}/{}_{dtype}", style.name());
            Case::new(name, "rope", move |env| body(env, style, dtype))
        };
        cases.push(case("sizes", sizes));
        cases.push(case("views", views).tagged(&["quick"]));
        cases.push(case("positions", positions).tagged(&["quick"]));
    }
    cases
}

/// A random problem.
pub(crate) fn random(env: &Env, rng: &mut Rng, turn: usize) -> RopeProblem {
    let (style, dtype) = (RopeStyle::ALL[turn % 2], FLOATS[turn / 2 % 3]);
    let mut rows = RowCase::random(env, rng, turn / 6, 50_000);
    rows.n = rows.n.clamp(2, 1024);
    if rows.outer.is_empty() {
        rows.outer = vec![rng.between(1, 6)];
    }
    let dims = if rng.one_in(2) { rows.n / 2 * 2 } else { 2 * rng.between(1, rows.n / 2) };
    let first = *rng.pick(&[0, 7, 999_999]);
    let source = *rng.pick(&[Source::Host(first), Source::Device(first, DType::U32), Source::Each(DType::I32)]);
    let axis = rng.below(rows.outer.len());
    RopeProblem { style, dtype, dims, source, axis, rows }
}
