//! Cases of the family `elementwise`.

use crate::env::{Env, Outcome};
use crate::rowwise::{self, Operand, RowCase};
use crate::suite::Case;
use tessl::nn::{Add, Cast, ElementwiseDesc, ElementwiseOp, Mul, Scale};
use tessl::plan::Desc;
use tessl::{BufferKind, DType, Scalar, Stream, Tensor};
use tessl_oracle::{Rng, add, bound, mul};

const FLOATS: [DType; 3] = [DType::F32, DType::F16, DType::Bf16];
const FACTOR: f32 = -1.7;

/// What is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Function {
    /// `a + b`.
    Add,
    /// `a * b`.
    Mul,
    /// `factor * x`, the factor from the host.
    Scale,
    /// The same, the factor from memory.
    ScaleFromDevice,
    /// `x` in another type, or copied.
    Cast,
}

impl Function {
    /// Every function.
    pub const ALL: [Function; 5] =
        [Function::Add, Function::Mul, Function::Scale, Function::ScaleFromDevice, Function::Cast];

    fn op(self) -> ElementwiseOp {
        match self {
            Function::Add => ElementwiseOp::Add,
            Function::Mul => ElementwiseOp::Mul,
            Function::Scale | Function::ScaleFromDevice => ElementwiseOp::Scale,
            Function::Cast => ElementwiseOp::Cast,
        }
    }

    fn inputs(self) -> usize {
        if matches!(self, Function::Add | Function::Mul) { 2 } else { 1 }
    }
}

/// Arithmetic with everything that decides how it is computed.
#[derive(Clone, Debug, PartialEq)]
pub struct ElementwiseProblem {
    /// What is computed.
    pub function: Function,
    /// Type of the inputs.
    pub input: DType,
    /// Type of the output.
    pub output: DType,
    /// Rows and their places.
    pub rows: RowCase,
}

fn run(function: Function, t: &[Tensor], stream: Option<&mut Stream>) -> tessl::Result<Desc> {
    macro_rules! run {
        ($op:expr) => {{
            let op = $op;
            match stream {
                Some(stream) => op.run_on(stream)?,
                None => op.run()?,
            }
            Ok(Desc::Elementwise(op.desc()?))
        }};
    }
    match function {
        Function::Add => run!(Add::new(&t[0], &t[1], &t[2])),
        Function::Mul => run!(Mul::new(&t[0], &t[1], &t[2])),
        Function::Scale => run!(Scale::new(&t[0], FACTOR, &t[1])),
        Function::ScaleFromDevice => {
            let factor = t[0].runtime().from_slice(&[FACTOR], &[1])?;
            run!(Scale::new(&t[0], Scalar::Device(&factor), &t[1]))
        }
        Function::Cast => run!(Cast::new(&t[0], &t[1])),
    }
}

impl ElementwiseProblem {
    /// Runs the problem twice and compares: values, slack, bits.
    ///
    /// # Errors
    /// What was wrong, with the problem.
    pub fn check(&self, env: &Env) -> Result<(), String> {
        let (input, output) = (Operand::Rows(self.input), Operand::Rows(self.output));
        // One rounding to f32 before that of the store; with an f32 store, or a product of short numbers, none.
        let rounded = |y: f64| (y, if self.output == DType::F32 { 0.0 } else { bound::rounding(y) });
        let want = |data: &[Vec<f64>]| match self.function {
            Function::Add => data[0].iter().zip(&data[1]).map(|(a, b)| rounded(add(*a, *b))).collect(),
            Function::Mul => data[0].iter().zip(&data[1]).map(|(a, b)| (mul(*a, *b), 0.0)).collect(),
            Function::Cast => data[0].iter().map(|x| (*x, 0.0)).collect(),
            _ => data[0].iter().map(|x| rounded(mul(*x, FACTOR.into()))).collect(),
        };
        let value = |rng: &mut Rng, _: usize| match self.input {
            DType::U8 => rng.integer(0, 255),
            DType::U32 | DType::I32 => rng.integer(0, i32::MAX),
            _ => 3.0 * rng.normal(),
        };
        let call: rowwise::Run<'_> = &|t, stream| run(self.function, t, stream);
        let inputs = vec![input; self.function.inputs()];
        let checked = self.rows.check(env, (&inputs, output), value, call, want);
        checked.map_err(|e| format!("{e}\n  {self:?}"))
    }
}

/// The types of each function: arithmetic on floats, conversion between them, copies of every size of element.
pub(crate) fn types(function: Function) -> Vec<(DType, DType)> {
    if function != Function::Cast {
        return FLOATS.map(|d| (d, d)).to_vec();
    }
    let pairs = FLOATS.into_iter().flat_map(|x| FLOATS.map(|y| (x, y)));
    pairs.chain([DType::U8, DType::U32, DType::I32].map(|d| (d, d))).collect()
}

/// Every problem class that takes a kernel or row of its own.
pub(crate) fn descs() -> Vec<Desc> {
    let mut all = Vec::new();
    for function in Function::ALL {
        for (input, output) in types(function) {
            for align in [0, 7] {
                let natural = if input.size().max(output.size()) == 4 { 2 } else { 1 };
                let align = if input == DType::U8 { align } else { align.max(natural) };
                let desc = ElementwiseDesc { op: function.op(), rows: 3, n: 33, input, output, align };
                all.push(Desc::Elementwise(desc));
            }
        }
    }
    all
}

/// Infinities and NaN, overflow on conversion, and NaN that rounding would turn into a number.
fn special(env: &Env) -> Result<(), String> {
    let (inf, nan) = (f64::INFINITY, f64::NAN);
    let (a, b) = ([1.0, inf, -inf, nan, 1.0, 0.0], [inf, -inf, -inf, 1.0, nan, inf]);
    for dtype in FLOATS {
        for (function, want) in
            [(Function::Add, [inf, nan, -inf, nan, nan, inf]), (Function::Mul, [inf, -inf, inf, nan, nan, nan])]
        {
            let operands = [(dtype, &[6][..], &a[..]), (dtype, &[6][..], &b[..])];
            let call: rowwise::Run<'_> = &|t, s| run(function, t, s);
            let Some(got) = rowwise::small(env, &operands, (dtype, &[6]), call)? else { continue };
            if got.iter().zip(want).any(|(g, w)| *g != w && !(g.is_nan() && w.is_nan())) {
                return Err(format!("{function:?} of {dtype}: {got:?} instead of {want:?}"));
            }
        }
    }
    Ok(())
}

/// tile-ai/tilelang#2481, dotnet/runtime#130583, on the conversion kernels.
fn tilelang_2481(env: &Env) -> Result<(), String> {
    let text = |e: tessl::Error| e.to_string();
    let bits = [0x7FFF_8C22u32, 0x7F80_0001, 0xFFC0_0000, 0x7F80_0000, 0xFF80_0000, 0x8000_0000, 0x477F_F000];
    let x = env.rt.from_slice(&bits, &[7]).and_then(|x| x.bitcast(DType::F32)).map_err(text)?;
    let same = env.rt.zeros(DType::F32, &[7], BufferKind::Cold).map_err(text)?;
    Cast::new(&x, &same).run().map_err(text)?;
    let copied = same.bitcast(DType::U32).and_then(|y| y.read::<u32>()).map_err(text)?;
    if env.computes && copied != bits {
        return Err(format!("a copy changed bits: {copied:x?}"));
    }
    for (dtype, inf, zero, largest) in [(DType::Bf16, 0x7F80, 0x8000, 0x4780), (DType::F16, 0x7C00, 0x8000, 0x7C00)] {
        let y = env.rt.zeros(dtype, &[7], BufferKind::Cold).map_err(text)?;
        Cast::new(&x, &y).run().map_err(text)?;
        // Read as plain numbers of 16 bits.
        let halves = y.bitcast(DType::U8).and_then(|y| y.read::<u8>()).map_err(text)?;
        let got: Vec<u16> = halves.chunks(2).map(|b| u16::from_ne_bytes([b[0], b[1]])).collect();
        let nan = |v: u16| v & 0x7fff > inf;
        let right = got[..3].iter().all(|v| nan(*v)) && got[3..] == [inf, inf | 0x8000, zero, largest];
        if env.computes && !right {
            return Err(format!("{dtype}: {got:04x?}"));
        }
    }
    Ok(())
}

/// Every case of this family.
pub(crate) fn cases() -> Vec<Case> {
    let mut cases = vec![
        Case::fixed("elementwise/special", "add", 100, |env| special(env).into()).tagged(&["quick"]),
        Case::fixed("known/tilelang_2481/cast", "cast", 100, |env| tilelang_2481(env).into()).tagged(&["quick"]),
    ];
    for function in Function::ALL {
        for (input, output) in types(function) {
            let op = function.op().name();
            let case = |label: &str, body: fn(&Env, usize) -> Vec<RowCase>| {
                let name = format!("{function:?}/{label}/{input}_{output}").to_lowercase();
                Case::new(name, op, move |env| -> Outcome {
                    rowwise::check_all(env, body(env, function.inputs()), |rows| {
                        ElementwiseProblem { function, input, output, rows: rows.clone() }.check(env)
                    })
                })
            };
            cases.push(case("sizes", |env, _| rowwise::sizes(env.seed)));
            cases.push(case("views", rowwise::views).tagged(&["quick"]));
            cases.push(case("memory", |env, _| rowwise::memory(env)));
        }
    }
    cases
}
