//! Cases of the family `mlp`.

use crate::env::{Env, Outcome};
use crate::rowwise::{self, Operand, RowCase};
use crate::suite::Case;
use tessl::nn::{Activate, Glu, MlpDesc, MlpOp};
use tessl::plan::Desc;
use tessl::{Activation, DType, Stream, Tensor};
use tessl_oracle::{bound, glu};

const FLOATS: [DType; 3] = [DType::F32, DType::F16, DType::Bf16];

/// An activation with everything that decides how it is computed.
#[derive(Clone, Debug, PartialEq)]
pub struct MlpProblem {
    /// Plain or gated.
    pub op: MlpOp,
    /// The function.
    pub activation: Activation,
    /// Type of every operand.
    pub dtype: DType,
    /// Rows and their places.
    pub rows: RowCase,
}

pub(crate) fn oracle(activation: Activation) -> tessl_oracle::Activation {
    match activation {
        Activation::Relu => tessl_oracle::Activation::Relu,
        Activation::Silu => tessl_oracle::Activation::Silu,
        Activation::Gelu => tessl_oracle::Activation::Gelu,
        Activation::GeluTanh => tessl_oracle::Activation::GeluTanh,
        _ => tessl_oracle::Activation::None,
    }
}

fn run(op: MlpOp, activation: Activation, t: &[Tensor], stream: Option<&mut Stream>) -> tessl::Result<Desc> {
    macro_rules! run {
        ($op:expr) => {{
            let op = $op;
            match stream {
                Some(stream) => op.run_on(stream)?,
                None => op.run()?,
            }
            Ok(Desc::Mlp(op.desc()?))
        }};
    }
    match op {
        MlpOp::Glu => run!(Glu::new(&t[0], &t[1], &t[2], activation)),
        _ => run!(Activate::new(&t[0], &t[1], activation)),
    }
}

impl MlpProblem {
    /// Operands read.
    fn inputs(&self) -> usize {
        if self.op == MlpOp::Glu { 2 } else { 1 }
    }

    /// Runs the problem twice and compares: values, slack, bits.
    ///
    /// # Errors
    /// What was wrong, with the problem.
    pub fn check(&self, env: &Env) -> Result<(), String> {
        let rows = Operand::Rows(self.dtype);
        let act = oracle(self.activation);
        let want = |data: &[Vec<f64>]| match self.op {
            MlpOp::Glu => {
                let pair = |(&g, &u): (&f64, &f64)| (glu(act, g, u), bound::gated(act, g, u));
                data[0].iter().zip(&data[1]).map(pair).collect()
            }
            _ => data[0].iter().map(|&x| (act.apply(x), act.error(x))).collect(),
        };
        let call: rowwise::Run<'_> = &|t, stream| run(self.op, self.activation, t, stream);
        let inputs = vec![rows; self.inputs()];
        let checked = self.rows.check(env, (&inputs, rows), |rng, _| 3.0 * rng.normal(), call, want);
        checked.map_err(|e| format!("{e}\n  {self:?}"))
    }
}

/// Every problem class that takes a kernel or row of its own.
pub(crate) fn descs() -> Vec<Desc> {
    let mut all = Vec::new();
    for (dtype, op) in FLOATS.into_iter().flat_map(|d| MlpOp::ALL.map(|op| (d, op))) {
        for align in [1, 7] {
            let align = if dtype == DType::F32 { align.max(2) } else { align };
            all.push(Desc::Mlp(MlpDesc { op, rows: 3, n: 33, dtype, activation: Activation::Silu, align }));
        }
    }
    all
}

fn check_all(env: &Env, op: MlpOp, dtype: DType, cases: Vec<RowCase>) -> Outcome {
    // Functions in turn: each meets every kind of case.
    let turn = std::cell::Cell::new(0);
    rowwise::check_all(env, cases, |rows| {
        turn.set(turn.get() + 1);
        let activation = Activation::ALL[turn.get() % Activation::ALL.len()];
        MlpProblem { op, activation, dtype, rows: rows.clone() }.check(env)
    })
}

/// apache/tvm#16438, huggingface/candle#2475: saturation, NaN and infinities, for every function.
fn special(env: &Env, op: MlpOp, dtype: DType) -> Result<(), String> {
    let big = if dtype == DType::F16 { 6e4 } else { 1e30 };
    let mut x: Vec<f64> = [0.0, 9.0, 20.0, 44.0, 45.0, 88.8, 100.0, 1e4, big, f64::INFINITY]
        .iter()
        .flat_map(|&x| [x, -x])
        .map(|x| crate::data::representable(dtype, x))
        .collect();
    x.extend([f64::NAN, -1.0]);
    let up: Vec<f64> = x.iter().enumerate().map(|(i, _)| if i + 1 == x.len() { f64::NAN } else { 0.5 }).collect();
    for activation in Activation::ALL {
        let act = oracle(activation);
        let n = x.len();
        let shape = [1, n];
        let inputs = [(dtype, &shape[..], &x[..]), (dtype, &shape[..], &up[..])];
        let inputs = if op == MlpOp::Glu { &inputs[..] } else { &inputs[..1] };
        let call: rowwise::Run<'_> = &|t, stream| run(op, activation, t, stream);
        let Some(got) = rowwise::small(env, inputs, (dtype, &shape), call)? else { continue };
        for i in 0..n {
            let (want, error) = match op {
                MlpOp::Glu => (glu(act, x[i], up[i]), bound::gated(act, x[i], up[i])),
                _ => (act.apply(x[i]), act.error(x[i])),
            };
            // The limits at infinity are exact.
            let error = if x[i].is_infinite() { 0.0 } else { error };
            let right = if want.is_nan() {
                got[i].is_nan()
            } else if want.is_infinite() {
                got[i] == want
            } else {
                (got[i] - want).abs() <= bound::stored(error, want, crate::format_of(dtype))
            };
            if !right {
                return Err(format!("{activation:?}({}) gave {} instead of {want}", x[i], got[i]));
            }
        }
    }
    Ok(())
}

/// Every case of this family.
pub(crate) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for (op, dtype) in MlpOp::ALL.into_iter().flat_map(|op| FLOATS.map(|d| (op, d))) {
        let name = |case: &str| format!("{}/{case}/{dtype}", op.name());
        let inputs = if op == MlpOp::Glu { 2 } else { 1 };
        let case = |label: &str, body: fn(&Env, usize) -> Vec<RowCase>| {
            Case::new(name(label), op.name(), move |env| check_all(env, op, dtype, body(env, inputs)))
        };
        cases.push(case("sizes", |env, _| rowwise::sizes(env.seed)));
        cases.push(case("views", rowwise::views).tagged(&["quick"]));
        cases.push(case("memory", |env, _| rowwise::memory(env)).tagged(&["quick"]));
        cases.push(Case::new(name("special"), op.name(), move |env| special(env, op, dtype).into()).tagged(&["quick"]));
    }
    cases
}
