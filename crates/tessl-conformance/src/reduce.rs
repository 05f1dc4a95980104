//! Cases of the family `reduce`.

use crate::data::representable;
use crate::env::{Env, Outcome};
use crate::rowwise::{self, Operand, RowCase};
use crate::suite::Case;
use tessl::nn::{ArgMax, LogSoftmax, Reduce, ReduceDesc, ReduceOp, Reduction, Scale, Softmax};
use tessl::plan::Desc;
use tessl::{DType, Stream, Tensor};
use tessl_oracle::{Rng, bound, log_softmax, row_argmax, row_max, score, softmax};

const FLOATS: [DType; 3] = [DType::F32, DType::F16, DType::Bf16];
const MASKS: [DType; 4] = [DType::U8, DType::F32, DType::F16, DType::Bf16];

/// A reduction with everything that decides how it is computed.
#[derive(Clone, Debug, PartialEq)]
pub struct ReduceProblem {
    /// Operation.
    pub op: ReduceOp,
    /// Type of x.
    pub input: DType,
    /// Type of y.
    pub output: DType,
    /// Type of the mask of a softmax.
    pub mask: Option<DType>,
    /// Factor of x.
    pub scale: f32,
    /// Bound of the scores.
    pub softcap: Option<f32>,
    /// Rows and their places.
    pub rows: RowCase,
}

/// Input and output types of an operation.
pub(crate) fn types(op: ReduceOp) -> Vec<(DType, DType)> {
    let pairs = FLOATS.into_iter().flat_map(|x| [(x, x), (x, DType::F32)]);
    match op {
        ReduceOp::Softmax | ReduceOp::LogSoftmax => FLOATS.map(|d| (d, d)).to_vec(),
        ReduceOp::ArgMax => FLOATS.map(|d| (d, DType::U32)).to_vec(),
        _ => pairs.enumerate().filter(|(i, _)| *i != 1).map(|(_, pair)| pair).collect(),
    }
}

fn is_softmax(op: ReduceOp) -> bool {
    matches!(op, ReduceOp::Softmax | ReduceOp::LogSoftmax)
}

impl ReduceProblem {
    /// Without options.
    pub fn new(op: ReduceOp, (input, output): (DType, DType), rows: RowCase) -> Self {
        ReduceProblem { op, input, output, mask: None, scale: 1.0, softcap: None, rows }
    }

    fn run(&self, t: &[Tensor], stream: Option<&mut Stream>) -> tessl::Result<Desc> {
        macro_rules! run {
            ($op:expr) => {{
                let op = $op;
                match stream {
                    Some(stream) => op.run_on(stream)?,
                    None => op.run()?,
                }
                Ok(Desc::Reduce(op.desc()?))
            }};
        }
        macro_rules! scores {
            ($op:expr) => {{
                let mut op = $op.scale(self.scale);
                if self.mask.is_some() {
                    op = op.mask(&t[1]);
                }
                if let Some(softcap) = self.softcap {
                    op = op.softcap(softcap);
                }
                run!(op)
            }};
        }
        let y = &t[t.len() - 1];
        match self.op {
            ReduceOp::Softmax => scores!(Softmax::new(&t[0], y)),
            ReduceOp::LogSoftmax => scores!(LogSoftmax::new(&t[0], y)),
            ReduceOp::Sum => run!(Reduce::new(&t[0], y, Reduction::Sum)),
            ReduceOp::Mean => run!(Reduce::new(&t[0], y, Reduction::Mean)),
            ReduceOp::Max => run!(Reduce::new(&t[0], y, Reduction::Max)),
            _ => run!(ArgMax::new(&t[0], y)),
        }
    }

    /// Values and errors of one row.
    fn row(&self, x: &[f64], mask: Option<&[f64]>) -> Vec<(f64, f64)> {
        let (n, sum): (usize, f64) = (x.len(), x.iter().sum());
        let magnitude: f64 = x.iter().map(|x| x.abs()).sum();
        match self.op {
            ReduceOp::Sum => return vec![(sum, bound::sum(n) * magnitude)],
            // 1 / n and the product round once each.
            ReduceOp::Mean => {
                let mean = sum / n as f64;
                return vec![(mean, bound::sum(n) * magnitude / n as f64 + 2.0 * bound::rounding(mean))];
            }
            ReduceOp::Max => return vec![(row_max(x), 0.0)],
            ReduceOp::ArgMax => return vec![(row_argmax(x) as f64, 0.0)],
            _ => {}
        }
        let (scale, softcap) = (f64::from(self.scale), self.softcap.map(f64::from));
        let added = |i: usize| mask.filter(|_| self.mask != Some(DType::U8)).map(|m| m[i]);
        let hidden = |i: usize| self.mask == Some(DType::U8) && mask.is_some_and(|m| m[i] == 0.0);
        let scores: Vec<f64> = (0..n)
            .map(|i| {
                let t = score(x[i], scale, softcap) + added(i).unwrap_or(0.0);
                if hidden(i) { f64::NEG_INFINITY } else { t }
            })
            .collect();
        let errors: Vec<f64> = (0..n).map(|i| bound::score(x[i], scale, softcap, added(i))).collect();
        let log = self.op == ReduceOp::LogSoftmax;
        let values = if log { log_softmax } else { softmax }(&scores, mask.is_some());
        values.into_iter().zip(bound::softmax(&scores, &errors, log)).collect()
    }

    /// Runs the problem twice and compares: values, slack, bits.
    ///
    /// # Errors
    /// What was wrong, with the problem.
    pub fn check(&self, env: &Env) -> Result<(), String> {
        let x = Operand::Rows(self.input);
        let inputs: Vec<Operand> = [x].into_iter().chain(self.mask.map(Operand::Rows)).collect();
        let output = if is_softmax(self.op) { Operand::Rows(self.output) } else { Operand::Column(self.output) };
        // y may be x, not the mask; x itself is never repeated.
        let in_place = self.rows.in_place.filter(|&i| i == 0);
        let broadcast = self.rows.broadcast && self.mask.is_some();
        let rows = RowCase { in_place, broadcast, ..self.rows.clone() };
        let value = |rng: &mut Rng, input: usize| match (input, self.mask) {
            (1, Some(DType::U8)) => [0.0, 1.0, 7.0, 255.0][rng.below(4)],
            (1, _) if rng.one_in(4) => f64::NEG_INFINITY,
            _ => 3.0 * rng.normal(),
        };
        let want = |data: &[Vec<f64>]| {
            let n = self.rows.n.max(1);
            let masks = |r: usize| data.get(1).map(|m| &m[r * n..][..n]);
            data[0].chunks(n).enumerate().flat_map(|(r, x)| self.row(x, masks(r))).collect()
        };
        let call: rowwise::Run<'_> = &|t, stream| self.run(t, stream);
        rows.check(env, (&inputs, output), value, call, want).map_err(|e| format!("{e}\n  {self:?}"))
    }
}

/// Every problem class that takes a kernel or row of its own.
pub(crate) fn descs() -> Vec<Desc> {
    let mut all = Vec::new();
    for op in ReduceOp::ALL {
        for ((input, output), align) in types(op).into_iter().flat_map(|t| [1, 7].map(|a| (t, a))) {
            let align = if input == DType::F32 { align.max(2) } else { align };
            all.push(Desc::Reduce(ReduceDesc { op, rows: 3, n: 33, input, output, mask: None, align }));
        }
    }
    all
}

/// Masks, scales and softcaps together.
fn options(env: &Env, op: ReduceOp, dtype: DType) -> Outcome {
    let mut problems = Vec::new();
    for n in [1, 33, 64, 1000, 4097] {
        for mask in [None].into_iter().chain(MASKS.map(Some)) {
            for (scale, softcap) in [(1.0, None), (0.125, None), (-2.0, Some(30.0)), (1.0, Some(0.5))] {
                for broadcast in [false, true] {
                    let rows = RowCase { broadcast, offset: n % 2, seed: env.seed ^ n as u64, ..RowCase::new(3, n) };
                    problems.push(ReduceProblem {
                        mask,
                        scale,
                        softcap,
                        ..ReduceProblem::new(op, (dtype, dtype), rows)
                    });
                }
            }
        }
    }
    env.thin(problems).iter().try_for_each(|p| p.check(env)).into()
}

fn run_small(
    env: &Env,
    p: &ReduceProblem,
    x: &[f64],
    mask: Option<&[f64]>,
    n: usize,
) -> Result<Option<Vec<f64>>, String> {
    let shape = [x.len() / n, n];
    let x: Vec<f64> = x.iter().map(|&x| representable(p.input, x)).collect();
    let mut inputs = vec![(p.input, &shape[..], &x[..])];
    if let (Some(dtype), Some(mask)) = (p.mask, mask) {
        inputs.push((dtype, &shape[..], mask));
    }
    let output = if is_softmax(p.op) { &shape[..] } else { &shape[..1] };
    rowwise::small(env, &inputs, (p.output, output), &|t, s| p.run(t, s))
}

fn near(what: &str, got: Option<Vec<f64>>, want: &[f64], tolerance: f64) -> Result<(), String> {
    let Some(got) = got else { return Ok(()) };
    let right = |(g, w): (&f64, &f64)| g == w || (g.is_nan() && w.is_nan()) || (g - w).abs() <= tolerance;
    if got.iter().zip(want).all(right) { Ok(()) } else { Err(format!("{what}: {got:?} instead of {want:?}")) }
}

/// pytorch/pytorch#94043: finite far below the maximum.
fn pt_94043(env: &Env) -> Result<(), String> {
    for dtype in FLOATS {
        let p = ReduceProblem::new(ReduceOp::LogSoftmax, (dtype, dtype), RowCase::new(1, 1));
        let (first, second) = ([0.0, 100.0, -250.0], [0.0, 88.0, 104.0, 1000.0]);
        near(
            "A-19",
            run_small(env, &p, &first, None, 3)?,
            &[-100.0, 0.0, -350.0].map(|x| representable(dtype, x)),
            0.0,
        )?;
        let want = [-1000.0, -912.0, -896.0, 0.0].map(|x| representable(dtype, x));
        near("A-19", run_small(env, &p, &second, None, 4)?, &want, 0.0)?;
    }
    Ok(())
}

/// pytorch/pytorch#130295: the first NaN wins, else the lowest index; also across threads and vectors.
fn pt_130295(env: &Env) -> Result<(), String> {
    let (nan, inf) = (f64::NAN, f64::INFINITY);
    for dtype in FLOATS {
        let p = ReduceProblem::new(ReduceOp::ArgMax, (dtype, DType::U32), RowCase::new(1, 1));
        near("A-36", run_small(env, &p, &[1.0, nan, 3.0], None, 3)?, &[1.0], 0.0)?;
        near("A-36", run_small(env, &p, &[nan, nan, -inf, -inf], None, 2)?, &[0.0, 0.0], 0.0)?;
        for n in [40, 2500, 9000] {
            let mut x = vec![0.0; 4 * n];
            (x[n - 1], x[2 * n - 3], x[2 * n - 1]) = (1.0, 2.0, 2.0);
            (x[2 * n + 7], x[2 * n + 9], x[3 * n - 2], x[3 * n + 30]) = (5.0, nan, nan, -1.0);
            let want = [n - 1, n - 3, 9, 0].map(|i| i as f64);
            near("argmax", run_small(env, &p, &x, None, n)?, &want, 0.0)?;
            let max = ReduceProblem { op: ReduceOp::Max, output: dtype, ..p.clone() };
            near("max", run_small(env, &max, &x, None, n)?, &[1.0, 2.0, nan, 0.0], 0.0)?;
        }
    }
    Ok(())
}

/// mindspore-ai/mindspore#378: a NaN stays visible. Then the policies of rows without a number.
fn mindspore_378(env: &Env) -> Result<(), String> {
    let (nan, inf) = (f64::NAN, f64::INFINITY);
    let x = [nan, 1.0, -inf, -0.066_347_010_4, 0.132_114_097_5, -0.041_013_501_6];
    let log = [nan, nan, nan, -1.177_171_4, -0.978_710_2, -1.151_837_8];
    for dtype in FLOATS {
        let tolerance = [1e-6, 2e-3, 1e-2][FLOATS.iter().position(|d| *d == dtype).unwrap_or(0)];
        for op in [ReduceOp::Softmax, ReduceOp::LogSoftmax] {
            let of = |y: f64| if op == ReduceOp::Softmax { y.exp() } else { y };
            let p = ReduceProblem::new(op, (dtype, dtype), RowCase::new(1, 1));
            near("A-40", run_small(env, &p, &x, None, 3)?, &log.map(of), tolerance)?;
            let flat = [of(-(4f64.ln())); 4];
            near("all -inf", run_small(env, &p, &[-inf; 4], None, 4)?, &flat, tolerance)?;
            near("+inf", run_small(env, &p, &[inf, 0.0], None, 2)?, &[nan, nan], 0.0)?;
            for mask in MASKS {
                let p = ReduceProblem { mask: Some(mask), ..p.clone() };
                let hide = if mask == DType::U8 { 0.0 } else { -inf };
                let show = if mask == DType::U8 { 1.0 } else { 0.0 };
                near("all hidden", run_small(env, &p, &[1.0; 4], Some(&[hide; 4]), 4)?, &[of(-inf); 4], 0.0)?;
                let some = run_small(env, &p, &[5.0, 1.0, 1.0, 9.0], Some(&[hide, show, show, hide]), 4)?;
                let half = of(-(2f64.ln()));
                near("two left", some, &[of(-inf), half, half, of(-inf)], tolerance)?;
                // What a u8 mask hides is not looked at.
                let row = run_small(env, &p, &[nan, 1.0], Some(&[hide, show]), 2)?;
                let want = if mask == DType::U8 { [of(-inf), of(0.0)] } else { [nan, nan] };
                near("a hidden NaN", row, &want, 0.0)?;
            }
        }
    }
    Ok(())
}

/// ml-explore/mlx#3630: a reduction reads g while a later op overwrites g in place.
fn mlx_3630(env: &Env) -> Result<(), String> {
    let text = |e: tessl::Error| e.to_string();
    for (rows, n, turns) in [(5usize, 4usize, 200), (64, 1024, 10)] {
        let data: Vec<f32> = (0..rows * n).map(|i| [-1.0, 0.0, 1.0][(i / n + i % n) % 3]).collect();
        let want: Vec<f32> = data.chunks(n).map(|row| row.iter().sum()).collect();
        for turn in 0..turns {
            let g = env.rt.from_slice(&data, &[rows, n]).map_err(text)?;
            let sums = env.rt.alloc_tensor_f32(&[rows]).map_err(text)?;
            Reduce::new(&g, &sums, Reduction::Sum).run().map_err(text)?;
            Scale::new(&g, 3.0, &g).run().map_err(text)?;
            let got = sums.read::<f32>().map_err(text)?;
            if env.computes && got != want {
                return Err(format!("turn {turn}: {got:?}"));
            }
        }
    }
    Ok(())
}

/// Every case of this family.
pub(crate) fn cases() -> Vec<Case> {
    let known = |name: &str, op, body: fn(&Env) -> Result<(), String>| {
        Case::fixed(format!("known/{name}"), op, 20_000, move |env| body(env).into()).tagged(&["quick"])
    };
    let mut cases = vec![
        known("pt_94043", "log_softmax", pt_94043),
        known("pt_130295", "row_argmax", pt_130295),
        known("mindspore_378", "softmax", mindspore_378),
        known("mlx_3630", "row_sum", mlx_3630),
    ];
    for op in ReduceOp::ALL {
        for types in types(op) {
            let case = |label: &str, body: fn(&Env) -> Vec<RowCase>| {
                let name = format!("{}/{label}/{}_{}", op.name(), types.0, types.1);
                Case::new(name, op.name(), move |env| {
                    rowwise::check_all(env, body(env), |rows| ReduceProblem::new(op, types, rows.clone()).check(env))
                })
            };
            cases.push(case("sizes", |env| rowwise::sizes(env.seed)));
            cases.push(case("views", |env| rowwise::views(env, 1)).tagged(&["quick"]));
            cases.push(case("memory", rowwise::memory));
            if is_softmax(op) {
                let name = format!("{}/options/{}", op.name(), types.0);
                cases.push(Case::new(name, op.name(), move |env| options(env, op, types.0)).tagged(&["quick"]));
            }
        }
    }
    cases
}
