//! Cases of the family `quant`: products with quantised weights, and lookups in quantised tables.

mod known;
mod lookup;
mod rows16;
pub(crate) mod weights;

pub use lookup::QuantEmbedProblem;
pub(crate) use lookup::random as random_lookup;

use crate::data::{Mem, Placed, compare, representable};
use crate::env::{Env, Outcome};
use crate::suite::Case;
use tessl::nn::{QuantDesc, QuantEmbedDesc, QuantOp, QuantizedGlu, QuantizedMatmul, QuantizedQkv};
use tessl::plan::{Desc, plan};
use tessl::{Activation, BufferKind, DType, QFormat, QLayout, QTensor, Stream, Tensor};
use tessl_oracle::Rng;
use weights::Matrix;

pub(crate) const FLOATS: [DType; 3] = [DType::F32, DType::F16, DType::Bf16];

/// A residual, if any.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Residual {
    /// None.
    None,
    /// In memory of its own.
    Apart,
    /// The output's old contents.
    InPlace,
}

/// A product with everything that decides how it is computed.
#[derive(Clone, Debug, PartialEq)]
pub struct QuantProblem {
    /// Operation.
    pub op: QuantOp,
    /// Axes of x before K.
    pub outer: Vec<usize>,
    /// Rows of each matrix; those that the operation has.
    pub n: [usize; 3],
    /// Length of the sums.
    pub k: usize,
    /// How weights are coded.
    pub format: QFormat,
    /// The order of their bytes.
    pub layout: QLayout,
    /// Type of factors that lie apart.
    pub factors: DType,
    /// Type of x.
    pub input: DType,
    /// Type of the outputs.
    pub output: DType,
    /// The function.
    pub activation: Activation,
    /// Type of the biases.
    pub bias: Option<DType>,
    /// What is added last.
    pub residual: Residual,
    /// Elements of slack after each row of x and of the outputs.
    pub pads: [usize; 2],
    /// Elements from an aligned place to the first one of x and of the outputs.
    pub offset: usize,
    /// Whole numbers, so that sums are exact.
    pub whole: bool,
    /// Kind of memory of x and the outputs.
    pub kind: BufferKind,
    /// Seed of the contents.
    pub seed: u64,
}

impl QuantProblem {
    /// One product without extras, contiguous and aligned.
    pub fn new(op: QuantOp, m: usize, n: [usize; 3], k: usize, format: QFormat, input: DType) -> Self {
        QuantProblem {
            op,
            outer: vec![m],
            n,
            k,
            format,
            layout: QLayout::Rows,
            factors: DType::F16,
            input,
            output: input,
            activation: if op == QuantOp::Glu { Activation::Silu } else { Activation::None },
            bias: None,
            residual: Residual::None,
            pads: [0; 2],
            offset: 0,
            whole: false,
            kind: BufferKind::Cold,
            seed: 1,
        }
    }

    fn m(&self) -> usize {
        self.outer.iter().product()
    }

    /// Multiply-adds.
    pub fn cost(&self) -> u64 {
        self.n[..self.op.weights()].iter().map(|&n| (self.m() * n * self.k) as u64).sum()
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
        let count = self.op.weights();
        let matrices: Vec<Matrix> = self.n[..count]
            .iter()
            .map(|&n| Matrix::random(&mut rng, self.format, self.factors, [n, self.k], self.whole))
            .collect();
        let weights: Vec<QTensor> =
            matrices.iter().map(|w| w.place(&mem.env.rt, self.layout)).collect::<Result<_, _>>()?;
        let number = |rng: &mut Rng, dtype: DType| {
            if self.whole { rng.integer(-2, 2) } else { representable(dtype, rng.normal()) }
        };
        let (m, k) = (self.m(), self.k);
        let x: Vec<f64> = (0..m * k).map(|_| number(&mut rng, self.input)).collect();
        let outputs = if self.op == QuantOp::Qkv { 3 } else { 1 };
        let bias_type = self.bias.unwrap_or(DType::F32);
        let biases: Vec<Vec<f64>> =
            self.n[..count].iter().map(|&n| (0..n).map(|_| number(&mut rng, bias_type)).collect()).collect();
        let old: Vec<f64> = (0..m * self.n[0]).map(|_| number(&mut rng, self.output)).collect();

        let place = |dtype: DType, columns: usize, pad: usize| {
            let mut strides = vec![1usize, columns + pad];
            self.outer[1..].iter().rev().for_each(|d| strides.push(strides[strides.len() - 1] * d.max(&1)));
            let shape: Vec<usize> = self.outer.iter().copied().chain([columns]).collect();
            let strides: Vec<usize> = strides.into_iter().rev().collect();
            Placed::new(dtype, &shape, &strides[strides.len() - shape.len()..], self.offset)
        };
        let mut px = place(self.input, k, self.pads[0]);
        let mut py: Vec<Placed> = self.n[..outputs].iter().map(|&n| place(self.output, n, self.pads[1])).collect();
        let mut residual = place(self.output, self.n[0], self.pads[1]);
        let mut pb: Vec<Placed> = self.n[..count].iter().map(|&n| Placed::new(bias_type, &[n], &[1], 0)).collect();
        px.allocate(mem)?;
        residual.allocate(mem)?;
        py.iter_mut().chain(&mut pb).try_for_each(|p| p.allocate(mem))?;
        px.fill_input(mem, |at| x[at])?;
        residual.fill_input(mem, |at| old[at])?;
        pb.iter().zip(&biases).try_for_each(|(p, b)| p.fill_input(mem, |at| b[at]))?;
        let (xv, rv) = (px.view()?, residual.view()?);
        let ys: Vec<Tensor> = py.iter().map(Placed::view).collect::<Result<_, _>>()?;
        let bs: Vec<Tensor> = pb.iter().map(Placed::view).collect::<Result<_, _>>()?;
        let call = Call { problem: self, x: &xv, weights: &weights, biases: &bs, residual: &rv, outputs: &ys };
        let desc = call.desc().map_err(|e| e.to_string())?;
        if m > 0 && desc.n != [0; 3] {
            mem.env.cover(&Desc::Quant(desc.clone()))?;
        }
        let mut runs = Vec::new();
        for _ in 0..2 {
            py.iter().try_for_each(|y| {
                y.fill_output(mem, |at| if self.residual == Residual::InPlace { old[at] } else { f64::NAN })
            })?;
            call.run(mem.stream.as_deref_mut()).map_err(|e| e.to_string())?;
            if mem.env.computes {
                runs.push(py.iter().map(Placed::fetch_output).collect::<Result<Vec<_>, _>>()?);
            }
        }
        let [first, second] = runs.as_slice() else { return Ok(()) };
        if first != second {
            return Err("two runs differ".into());
        }
        let reason = plan(&Desc::Quant(desc), mem.env.rt.profile()).map_err(|e| e.to_string())?.reason;
        let rounded = reason.contains("rounded");
        let digits = reason.contains("fixed point").then_some(if self.input == DType::F32 { 3 } else { 2 });
        let sums: Vec<Vec<(f64, f64)>> =
            matrices.iter().map(|w| w.products(&x, m, rounded.then_some(self.input), digits)).collect();
        for (i, bytes) in first.iter().enumerate() {
            let n = self.n[i];
            let shape: Vec<usize> = self.outer.iter().copied().chain([n]).collect();
            compare(self.output, bytes, &shape, |at| self.want(&sums, &biases, &old, i, at))
                .map_err(|e| format!("output {i}: {e}"))?;
        }
        Ok(())
    }

    /// Exact value and error allowed of element `at` of output `i`.
    fn want(&self, sums: &[Vec<(f64, f64)>], biases: &[Vec<f64>], old: &[f64], i: usize, at: usize) -> (f64, f64) {
        let (u, act) = (2f64.powi(-24), crate::mlp::oracle(self.activation));
        let linear = |matrix: usize| {
            let (sum, error) = sums[matrix][at];
            match self.bias {
                Some(_) => {
                    let bias = biases[matrix][at % self.n[matrix]];
                    let rounding = if self.whole { 0.0 } else { u * (sum.abs() + bias.abs()) };
                    (sum + bias, error + rounding)
                }
                None => (sum, error),
            }
        };
        let (t, error) = linear(i);
        let (mut y, mut error) = (act.apply(t), act.slope() * error + act.error(t));
        if self.op == QuantOp::Glu {
            let (up, up_error) = linear(1);
            error = error * up.abs() + y.abs() * up_error + error * up_error;
            y *= up;
            if !self.whole || y.abs() >= 2f64.powi(24) {
                error += u * y.abs();
            }
        }
        if self.residual != Residual::None {
            if !self.whole {
                error += u * (y.abs() + old[at].abs());
            }
            y += old[at];
        }
        (y, error)
    }
}

/// The operands of one call.
struct Call<'a> {
    problem: &'a QuantProblem,
    x: &'a Tensor,
    weights: &'a [QTensor],
    biases: &'a [Tensor],
    residual: &'a Tensor,
    outputs: &'a [Tensor],
}

impl Call<'_> {
    fn matmul(&self) -> QuantizedMatmul<'_> {
        let p = self.problem;
        let op = QuantizedMatmul::new(self.x, &self.weights[0], &self.outputs[0]).activation(p.activation);
        let op = if p.bias.is_some() { op.bias(&self.biases[0]) } else { op };
        match p.residual {
            Residual::None => op,
            Residual::Apart => op.residual(self.residual),
            Residual::InPlace => op.residual(&self.outputs[0]),
        }
    }

    fn glu(&self) -> QuantizedGlu<'_> {
        let op =
            QuantizedGlu::new(self.x, &self.weights[0], &self.weights[1], &self.outputs[0], self.problem.activation);
        match self.biases {
            [gate, up] if self.problem.bias.is_some() => op.biases([gate, up]),
            _ => op,
        }
    }

    fn qkv(&self) -> QuantizedQkv<'_> {
        let ([w0, w1, w2], [y0, y1, y2]) = (self.weights, self.outputs) else { panic!("three of each") };
        let op = QuantizedQkv::new(self.x, [w0, w1, w2], [y0, y1, y2]);
        match self.biases {
            [b0, b1, b2] if self.problem.bias.is_some() => op.biases([b0, b1, b2]),
            _ => op,
        }
    }

    fn desc(&self) -> tessl::Result<QuantDesc> {
        match self.problem.op {
            QuantOp::Glu => self.glu().desc(),
            QuantOp::Qkv => self.qkv().desc(),
            _ => self.matmul().desc(),
        }
    }

    fn run(&self, stream: Option<&mut Stream>) -> tessl::Result<()> {
        macro_rules! run {
            ($op:expr) => {
                match stream {
                    Some(stream) => $op.run_on(stream),
                    None => $op.run(),
                }
            };
        }
        match self.problem.op {
            QuantOp::Glu => run!(self.glu()),
            QuantOp::Qkv => run!(self.qkv()),
            _ => run!(self.matmul()),
        }
    }
}

/// One format of each code.
pub(crate) fn codes() -> Vec<QFormat> {
    let group = 64;
    let apart = [
        QFormat::Affine { bits: 4, group },
        QFormat::Affine { bits: 8, group: 32 },
        QFormat::Signed4 { group },
        QFormat::Q8 { group: 128 },
    ];
    apart.into_iter().chain(QFormat::BLOCKS).collect()
}

/// Every problem class that takes a kernel or row of its own.
pub(crate) fn descs() -> Vec<Desc> {
    let mut all = Vec::new();
    for (format, dtype) in codes().into_iter().flat_map(|f| FLOATS.map(|d| (f, d))) {
        let factors = (format.factors() > 0).then_some(DType::F16);
        for align in [2, 7] {
            let layout = QLayout::Rows;
            let (rows, n, output) = (5, 512, dtype);
            all.push(Desc::QuantEmbed(QuantEmbedDesc { rows, n, format, layout, factors, output, align }));
            for (op, m) in QuantOp::ALL.into_iter().flat_map(|op| [1, 40].map(|m| (op, m))) {
                let n = std::array::from_fn(|i| if i < op.weights() { 8 } else { 0 });
                let (k, input, activation) = (512, dtype, Activation::None);
                let (bias, residual) = (false, false);
                let desc = QuantDesc {
                    op,
                    m,
                    n,
                    k,
                    format,
                    layout,
                    factors,
                    input,
                    output,
                    activation,
                    bias,
                    residual,
                    align,
                };
                all.push(Desc::Quant(desc));
            }
        }
    }
    all
}

/// Rows of x around the tiles and thresholds of every device, columns that no tile divides.
fn problems(op: QuantOp, format: QFormat, input: DType) -> Vec<QuantProblem> {
    let group = format.group();
    let sizes = [
        (1, [33, 31, 5], 2 * group),
        (3, [5, 1, 2], group),
        (17, [9, 4, 3], group),
        (2, [1, 7, 33], 544usize.next_multiple_of(group)),
        (16, [6, 6, 6], group),
        (33, [40, 2, 16], 3 * group),
        (5, [65, 8, 1], group),
        (1, [300, 64, 64], 1024),
    ];
    let mut all = Vec::new();
    for (i, (m, mut n, k)) in sizes.into_iter().enumerate() {
        if op == QuantOp::Glu {
            n[1] = n[0];
        }
        let p = QuantProblem::new(op, m, n, k, format, input);
        let output = FLOATS[(i + 1) % 3];
        all.push(QuantProblem {
            factors: FLOATS[i % 3],
            output,
            offset: i % 2,
            pads: if i % 3 == 1 { [1, 3] } else { [0, 0] },
            activation: if op == QuantOp::Qkv { Activation::None } else { Activation::ALL[i % 5] },
            bias: [None, Some(DType::F32), Some(output)][i % 3],
            residual: match i % 4 {
                1 if op == QuantOp::Matmul => Residual::Apart,
                2 if op == QuantOp::Matmul => Residual::InPlace,
                _ => Residual::None,
            },
            seed: i as u64 + 1,
            ..p.clone()
        });
        // Exact: no function but relu.
        let activation = if i % 2 == 0 { Activation::None } else { Activation::Relu };
        let activation = if op == QuantOp::Qkv { Activation::None } else { activation };
        let bias = Some(DType::F32).filter(|_| i % 2 == 1);
        all.push(QuantProblem { whole: true, output: DType::F32, activation, bias, offset: (i + 1) % 2, ..p });
    }
    let nested = QuantProblem::new(op, 1, if op == QuantOp::Glu { [3; 3] } else { [3, 4, 5] }, group, format, input);
    all.push(QuantProblem { outer: vec![2, 3], pads: [4, 2], ..nested.clone() });
    all.push(QuantProblem { outer: vec![0], ..nested.clone() });
    all.push(QuantProblem { k: 0, ..nested });
    all
}

fn shapes(env: &Env, op: QuantOp, format: QFormat, input: DType) -> Outcome {
    let mut left = env.budget;
    for p in problems(op, format, input) {
        if p.cost() <= left {
            left -= p.cost();
            if let Err(message) = p.check(env) {
                return Outcome::Failed(message);
            }
        }
    }
    Outcome::Passed
}

/// Every group of the formats whose factors lie apart, every type of the factors, every kind of memory.
fn groups(env: &Env, input: DType) -> Outcome {
    let kinds = [BufferKind::Hot, BufferKind::Cold, BufferKind::Bump, BufferKind::External];
    let kinds: Vec<BufferKind> = kinds.into_iter().filter(|&kind| Mem::available(env, kind)).collect();
    let apart = QFormat::all().filter(|f| f.factors() > 0);
    let mut problems = apart.flat_map(|f| FLOATS.map(|d| (f, d))).enumerate().map(|(i, (format, factors))| {
        let p = QuantProblem::new(QuantOp::Matmul, 1 + i % 3, [3, 0, 0], format.group() * (1 + i % 2), format, input);
        QuantProblem { factors, kind: kinds[i % kinds.len()], seed: i as u64, ..p }
    });
    problems.try_for_each(|p| p.check(env)).into()
}

/// NaN and infinity in x reach their own rows only; NaN factors reach their own columns.
fn special(env: &Env, format: QFormat) -> Result<(), String> {
    for m in [2usize, 20] {
        let (n, k) = (5, 2 * format.group());
        let mut rng = Rng::new(7);
        let matrix = Matrix::random(&mut rng, format, DType::F32, [n, k], false);
        let w = matrix.place(&env.rt, QLayout::Rows)?;
        let mut x = vec![1.0f32; m * k];
        (x[k - 1], x[(m - 1) * k]) = (f32::NAN, 1.0);
        let text = |e: tessl::Error| e.to_string();
        let x = env.rt.from_slice(&x, &[m, k]).map_err(text)?;
        let y = env.rt.zeros(DType::F32, &[m, n], BufferKind::Cold).map_err(text)?;
        QuantizedMatmul::new(&x, &w, &y).activation(Activation::Relu).run().map_err(text)?;
        let got = y.read::<f32>().map_err(text)?;
        let right = |(at, y): (usize, &f32)| y.is_nan() == (at < n);
        if env.computes && !got.iter().enumerate().all(right) {
            return Err(format!("{format}, {m} rows: NaN went astray: {got:?}"));
        }
    }
    Ok(())
}

/// Every case of this family.
pub(crate) fn cases() -> Vec<Case> {
    let mut cases = known::cases();
    for (op, input) in QuantOp::ALL.into_iter().flat_map(|op| FLOATS.map(|d| (op, d))) {
        for format in codes() {
            let name = format!("{}/shapes/{}/{input}", op.name(), format.code());
            let case = Case::new(name, op.name(), move |env| shapes(env, op, format, input));
            cases.push(if format == QFormat::Q4_0 || format == QFormat::Q6K { case.tagged(&["quick"]) } else { case });
        }
    }
    for input in FLOATS {
        let op = QuantOp::Matmul.name();
        cases.push(Case::new(format!("{op}/groups/{input}"), op, move |env| groups(env, input)).tagged(&["quick"]));
    }
    let all = |env: &Env| codes().into_iter().try_for_each(|format| special(env, format)).into();
    let op = QuantOp::Matmul.name();
    cases.push(Case::new(format!("{op}/special"), op, all).tagged(&["quick"]));
    cases.extend(lookup::cases());
    cases.extend(rows16::cases());
    cases
}

/// A random problem.
pub(crate) fn random(rng: &mut Rng, turn: usize) -> QuantProblem {
    let format = if rng.one_in(3) { *rng.pick(&QFormat::all().collect::<Vec<_>>()) } else { codes()[turn / 6 % 12] };
    let op = *rng.pick(&QuantOp::ALL);
    let input = FLOATS[turn % 3];
    // Each kernel in turn: few rows, many rows.
    let m = if (turn / 3).is_multiple_of(2) { rng.between(1, 16) } else { rng.between(17, 40) };
    let mut n: [usize; 3] = std::array::from_fn(|_| rng.between(1, 40));
    if op == QuantOp::Glu {
        n[1] = n[0];
    }
    let k = format.group() * rng.between(1, (1024 / format.group()).min(8));
    let mut p = QuantProblem::new(op, m, n, k, format, input);
    p.factors = *rng.pick(&FLOATS);
    p.whole = rng.one_in(3);
    // Whole numbers may pass the range of f16.
    p.output = *rng.pick(if p.whole { &[DType::F32, DType::Bf16] } else { &FLOATS[..] });
    let functions = if p.whole { &Activation::ALL[..2] } else { &Activation::ALL[..] };
    if op != QuantOp::Qkv {
        p.activation = *rng.pick(functions);
    }
    p.bias = *rng.pick(&[None, Some(DType::F32), Some(p.output)]);
    if op == QuantOp::Matmul {
        p.residual = *rng.pick(&[Residual::None, Residual::Apart, Residual::InPlace]);
    }
    if rng.one_in(2) {
        p.pads = [rng.below(9), rng.below(9)];
        p.offset = rng.below(4);
    }
    p.kind = *rng.pick(&[BufferKind::Cold, BufferKind::Hot, BufferKind::Bump]);
    p.seed = rng.bits();
    p
}
