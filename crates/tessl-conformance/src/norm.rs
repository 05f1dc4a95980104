//! Cases of the family `norm`: here `rms_norm` without a residual.

pub(crate) mod fused;

use crate::data::{Mem, Placed, compare, format_of};
use crate::env::{Env, NORM_PAIRS, Outcome};
use crate::suite::Case;
use tessl::nn::RmsNorm;
use tessl::{BufferKind, DType};
use tessl_oracle::{Rng, bound, rms_norm};

/// A normalisation with everything that decides how it is computed.
#[derive(Clone, Debug, PartialEq)]
pub struct NormProblem {
    /// Axes before the last.
    pub outer: Vec<usize>,
    /// Elements of a row.
    pub n: usize,
    /// Type of x and y.
    pub dtype: DType,
    /// Type of the weight.
    pub weight: DType,
    /// Elements of slack after each row of x and y.
    pub pad: [usize; 2],
    /// Elements from an aligned place to the first one.
    pub offset: usize,
    /// Storage order of the outer axes of x is reversed.
    pub permuted: bool,
    /// y is x.
    pub in_place: bool,
    /// Added to the mean square.
    pub eps: f32,
    /// Added to each weight.
    pub weight_offset: f32,
    /// Standard deviation of x.
    pub scale: f64,
    /// Kind of memory.
    pub kind: BufferKind,
    /// Seed of the contents.
    pub seed: u64,
}

impl NormProblem {
    /// `rows` contiguous, aligned rows of `n` elements.
    pub fn new(rows: usize, n: usize, (dtype, weight): (DType, DType)) -> Self {
        NormProblem {
            outer: vec![rows],
            n,
            dtype,
            weight,
            pad: [0; 2],
            offset: 0,
            permuted: false,
            in_place: false,
            eps: 1e-6,
            weight_offset: 0.0,
            scale: 1.0,
            kind: BufferKind::Cold,
            seed: 1,
        }
    }

    /// Elements read.
    pub fn cost(&self) -> u64 {
        self.outer.iter().fold(self.n as u64, |p, &x| p.saturating_mul(x as u64))
    }

    fn placed(&self, pad: usize, permuted: bool) -> Placed {
        let mut strides = vec![1; self.outer.len() + 1];
        let mut reach = (self.n + pad).max(1);
        let order: Vec<usize> = (0..self.outer.len()).collect();
        let order: Vec<usize> = if permuted { order } else { order.into_iter().rev().collect() };
        for axis in order {
            strides[axis] = reach;
            // An element between planes keeps axes from joining.
            reach = reach * self.outer[axis].max(1) + usize::from(permuted);
        }
        let shape: Vec<usize> = self.outer.iter().copied().chain([self.n]).collect();
        Placed::new(self.dtype, &shape, &strides, self.offset)
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
        let (format, weight_format) = (format_of(self.dtype), format_of(self.weight));
        let mut x = self.placed(self.pad[0], self.permuted);
        let mut y = self.placed(self.pad[1], false);
        let mut w = Placed::new(self.weight, &[self.n], &[1], self.offset);
        let data: Vec<f64> = (0..x.len()).map(|_| format.round(rng.normal() * self.scale)).collect();
        let weights: Vec<f64> = (0..self.n).map(|_| weight_format.round(rng.normal() + 0.3)).collect();
        x.allocate(mem)?;
        w.allocate(mem)?;
        y.allocate(mem)?;
        w.fill_input(mem, |i| weights[i])?;
        let output = if self.in_place { &x } else { &y };
        let (tx, tw, ty) = (x.view()?, w.view()?, output.view()?);
        let op = RmsNorm::new(&tx, &tw, &ty).eps(self.eps).weight_offset(self.weight_offset);
        let mut runs = Vec::new();
        for run in 0..2 {
            if self.in_place {
                x.fill_output(mem, |at| data[at])?;
            } else {
                x.fill_input(mem, |at| data[at])?;
                y.fill_output(mem, |_| f64::NAN)?;
            }
            if run == 0 { mem.rms_norm(&op) } else { mem.rms_norm_again(&op) }?;
            if mem.env.computes {
                runs.push(output.fetch_output()?);
            }
        }
        let [first, second] = runs.as_slice() else { return Ok(()) };
        if first != second {
            return Err("two runs differ".into());
        }
        let offset = f64::from(self.weight_offset);
        let want: Vec<f64> = if self.n == 0 {
            Vec::new()
        } else {
            data.chunks(self.n).flat_map(|row| rms_norm(row, |i| weights[i], self.eps.into(), offset)).collect()
        };
        let shape: Vec<usize> = self.outer.iter().copied().chain([self.n]).collect();
        compare(self.dtype, first, &shape, |at| {
            (want[at], bound::rms_norm(self.n, want[at], weights[at % self.n.max(1)], offset))
        })
    }
}

type Pair = (DType, DType);

fn each(name: &str, tags: &'static [&'static str], body: fn(&Env, Pair) -> Outcome) -> Vec<Case> {
    let case = |pair: Pair| {
        let name = format!("rms_norm/{name}/{}_{}", pair.0, pair.1);
        Case::new(name, "rms_norm", move |env| body(env, pair)).tagged(tags)
    };
    NORM_PAIRS.into_iter().map(case).collect()
}

fn check_all(env: &Env, problems: impl IntoIterator<Item = NormProblem>) -> Outcome {
    let mut left = env.budget;
    for problem in env.thin(problems.into_iter().collect()) {
        if problem.cost() > left {
            continue;
        }
        left -= problem.cost();
        if let Err(message) = problem.check(env) {
            return Outcome::Failed(message);
        }
    }
    Outcome::Passed
}

fn sizes(env: &Env, pair: Pair) -> Outcome {
    let around = [16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384];
    let mut lengths: Vec<usize> = (1..=35).collect();
    lengths.extend(around.into_iter().flat_map(|n| n - 2..=n + 2));
    lengths.extend([100, 1000, 5000, 50257]);
    let problem = |n: usize| {
        let rows = [1, 2, 3, 5, 17][n % 5].min(1 + 100_000 / n);
        NormProblem { seed: env.seed ^ n as u64, ..NormProblem::new(rows, n, pair) }
    };
    check_all(env, lengths.into_iter().map(problem))
}

fn views(env: &Env, pair: Pair) -> Outcome {
    let mut problems = Vec::new();
    for n in [1, 7, 8, 33, 64, 128, 300, 1025] {
        for (pad, offset) in [([0, 0], 0), ([3, 0], 0), ([0, 5], 1), ([8, 8], 0), ([1, 2], 3), ([64, 64], 8)] {
            for in_place in [false, true] {
                let base = NormProblem::new(5, n, pair);
                problems.push(NormProblem { pad, offset, in_place, ..base.clone() });
                for outer in [vec![], vec![2, 3], vec![3, 2, 4], vec![1, 5, 1], vec![4, 1, 3]] {
                    for permuted in [false, true] {
                        problems.push(NormProblem {
                            outer: outer.clone(),
                            pad,
                            offset,
                            permuted,
                            in_place,
                            ..base.clone()
                        });
                    }
                }
            }
        }
    }
    check_all(env, problems)
}

fn scalars(env: &Env, pair: Pair) -> Outcome {
    let mut problems = Vec::new();
    for n in [5, 64, 1000] {
        for (eps, weight_offset) in [0.0, 1e-6, 1e-5, 0.5].into_iter().flat_map(|e| [0.0, 1.0, -0.25].map(|o| (e, o))) {
            for scale in [1e-3, 1.0, 100.0] {
                problems.push(NormProblem { eps, weight_offset, scale, ..NormProblem::new(3, n, pair) });
            }
        }
    }
    check_all(env, problems)
}

fn memory(env: &Env, pair: Pair) -> Outcome {
    let mut problems = Vec::new();
    for kind in [BufferKind::Hot, BufferKind::Cold, BufferKind::Bump, BufferKind::External] {
        if Mem::available(env, kind) {
            for (offset, n) in [(0, 128), (1, 128), (1, 77)] {
                problems.push(NormProblem { kind, offset, ..NormProblem::new(4, n, pair) });
            }
        }
    }
    check_all(env, problems)
}

fn many_rows(env: &Env, pair: Pair) -> Outcome {
    let rows = [1000, 4097, 65_537, 131_075];
    check_all(env, rows.map(|rows| NormProblem { pad: [1, 0], ..NormProblem::new(rows, 3, pair) }))
}

fn plan_rows(env: &Env, pair: Pair) -> Outcome {
    let witnesses = env.norm_rows().values().filter(|d| (d.dtype, d.weight) == pair);
    let problem = |d: &tessl::nn::RmsNormDesc| {
        let n = d.n as usize;
        let offset = if d.align >= 7 { 0 } else { (1usize << d.align) / d.dtype.size() };
        let pad = n.next_multiple_of(64) - n;
        let rows = usize::try_from(d.rows).unwrap_or(usize::MAX);
        NormProblem { offset, pad: [pad; 2], ..NormProblem::new(rows, n, pair) }
    };
    witnesses.map(problem).try_for_each(|p| p.check(env)).into()
}

/// NaN and infinity stay in their rows; zero rows give zero; huge and tiny rows.
fn special(env: &Env, pair: Pair) -> Outcome {
    let run = || -> Result<(), String> {
        for n in [4, 33, 128, 1000] {
            let huge = if pair.0 == DType::F16 { 60000.0 } else { 2f64.powi(100) };
            let rows = [1.0, f64::NAN, 0.0, f64::INFINITY, 1.0, huge];
            let value = |at: usize| if at % n == n / 2 || rows[at / n].is_finite() { rows[at / n] } else { 1.0 };
            let (mut x, mut y) = (Placed::new(pair.0, &[6, n], &[n, 1], 0), Placed::new(pair.0, &[6, n], &[n, 1], 0));
            let mut w = Placed::new(pair.1, &[n], &[1], 0);
            let bytes = Mem::with(env, BufferKind::Cold, |mem| {
                for op in [&mut x, &mut y, &mut w] {
                    op.allocate(mem)?;
                }
                x.fill_input(mem, value)?;
                y.fill_output(mem, |_| f64::NAN)?;
                w.fill_input(mem, |_| 1.0)?;
                let (tx, tw, ty) = (x.view()?, w.view()?, y.view()?);
                mem.rms_norm(&RmsNorm::new(&tx, &tw, &ty).eps(1e-6))?;
                if env.computes { y.fetch_output().map(Some) } else { Ok(None) }
            })?;
            let Some(bytes) = bytes else { continue };
            compare(pair.0, &bytes, &[6, n], |at| {
                let near = |y: f64| (y, bound::rms_norm(n, y, 1.0, 0.0));
                match at / n {
                    1 => (f64::NAN, 0.0),
                    2 => (0.0, 0.0),
                    // inf * 0 is NaN at the infinity itself; every finite element becomes 0.
                    3 if at % n == n / 2 => (f64::NAN, 0.0),
                    3 => (0.0, 0.0),
                    // The squares pass the range of f32: the formula in f32 gives 0.
                    5 if pair.0 != DType::F16 => (0.0, 0.0),
                    _ => near(1.0 / (1.0 + if at / n == 5 { 0.0 } else { 1e-6f64 }).sqrt()),
                }
            })
            .map_err(|e| format!("n = {n}: {e}"))?;
        }
        Ok(())
    };
    run().into()
}

/// Every problem class of the other norms that takes a kernel or row of its own.
pub(crate) fn descs() -> Vec<tessl::plan::Desc> {
    fused::descs()
}

/// Every case of this family.
pub(crate) fn cases() -> Vec<Case> {
    let mut cases = fused::cases();
    cases.extend(each("sizes", &[], sizes));
    cases.extend(each("views", &["quick"], views));
    cases.extend(each("scalars", &[], scalars));
    cases.extend(each("memory", &["quick"], memory));
    cases.extend(each("many_rows", &[], many_rows));
    cases.extend(each("rows", &[], plan_rows));
    cases.extend(each("special", &["quick"], special));
    cases
}
