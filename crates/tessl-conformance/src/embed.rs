//! Cases of the family `embed`.

use crate::data::{Mem, Placed, compare, representable};
use crate::env::{Env, Outcome};
use crate::suite::Case;
use tessl::nn::{EmbedDesc, Embedding};
use tessl::plan::Desc;
use tessl::{BufferKind, DType, Error, FaultKind, Stream};
use tessl_oracle::{Rng, bound, embedding};

const FLOATS: [DType; 3] = [DType::F32, DType::F16, DType::Bf16];
const SCALE: f32 = 1.7;

/// A lookup with everything that decides how it is computed.
#[derive(Clone, Debug, PartialEq)]
pub struct EmbedProblem {
    /// Axes of ids.
    pub outer: Vec<usize>,
    /// Rows of the table.
    pub vocabulary: usize,
    /// Elements of a row.
    pub n: usize,
    /// Type of table and output.
    pub dtype: DType,
    /// Type of ids.
    pub ids: DType,
    /// Elements are multiplied.
    pub scaled: bool,
    /// Elements of slack after each row of table and output.
    pub pads: [usize; 2],
    /// Elements from an aligned place to the first one.
    pub offset: usize,
    /// Distance of neighbouring ids.
    pub stride: usize,
    /// Kind of memory.
    pub kind: BufferKind,
    /// Seed of the contents.
    pub seed: u64,
}

impl EmbedProblem {
    /// Contiguous and aligned.
    pub fn new(ids: usize, vocabulary: usize, n: usize, dtype: DType) -> Self {
        EmbedProblem {
            outer: vec![ids],
            vocabulary,
            n,
            dtype,
            ids: DType::U32,
            scaled: false,
            pads: [0; 2],
            offset: 0,
            stride: 1,
            kind: BufferKind::Cold,
            seed: 1,
        }
    }

    /// Elements written.
    pub fn cost(&self) -> u64 {
        self.outer.iter().fold(self.n as u64, |p, &x| p.saturating_mul(x as u64))
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
        let count: usize = self.outer.iter().product();
        let table: Vec<f64> =
            (0..self.vocabulary * self.n).map(|_| representable(self.dtype, 3.0 * rng.normal())).collect();
        let ids: Vec<f64> = (0..count).map(|_| rng.below(self.vocabulary) as f64).collect();
        let nested = |row: usize| {
            let mut strides = vec![row; self.outer.len()];
            (1..strides.len()).rev().for_each(|i| strides[i - 1] = strides[i] * self.outer[i].max(1));
            strides
        };
        let shape: Vec<usize> = self.outer.iter().copied().chain([self.n]).collect();
        let strides: Vec<usize> = nested(self.n + self.pads[1]).into_iter().chain([1]).collect();
        let mut places = [
            Placed::new(self.dtype, &[self.vocabulary, self.n], &[self.n + self.pads[0], 1], self.offset),
            Placed::new(self.ids, &self.outer, &nested(self.stride), self.offset),
            Placed::new(self.dtype, &shape, &strides, self.offset),
        ];
        places.iter_mut().try_for_each(|p| p.allocate(mem))?;
        let [t, i, y] = &places;
        t.fill_input(mem, |at| table[at])?;
        i.fill_input(mem, |at| ids[at])?;
        let (table_view, ids_view, out) = (t.view()?, i.view()?, y.view()?);
        let op = Embedding::new(&table_view, &ids_view, &out);
        let op = if self.scaled { op.scale(SCALE) } else { op };
        if self.cost() > 0 {
            mem.env.cover(&Desc::Embed(op.desc().map_err(|e| e.to_string())?))?;
        }
        let mut runs = Vec::new();
        for _ in 0..2 {
            y.fill_output(mem, |_| f64::NAN)?;
            run(&op, mem.stream.as_deref_mut()).map_err(|e| e.to_string())?;
            if mem.env.computes {
                runs.push(y.fetch_output()?);
            }
        }
        let [first, second] = runs.as_slice() else { return Ok(()) };
        if first != second {
            return Err("two runs differ".into());
        }
        let scale = if self.scaled { f64::from(SCALE) } else { 1.0 };
        #[allow(clippy::cast_possible_truncation)] // Ids are below the vocabulary.
        let row = |r: usize| embedding(&table, self.n, ids[r] as i64, scale).unwrap_or_default();
        let want: Vec<f64> = (0..count).flat_map(row).collect();
        let exact = !self.scaled || self.dtype == DType::F32;
        let error = |y: f64| if exact { 0.0 } else { bound::rounding(y) };
        compare(self.dtype, first, &shape, |at| (want[at], error(want[at])))
    }
}

fn run(op: &Embedding<'_>, stream: Option<&mut Stream>) -> tessl::Result<()> {
    match stream {
        Some(stream) => op.run_on(stream),
        None => op.run(),
    }
}

/// Every problem class that takes a kernel or row of its own.
pub(crate) fn descs() -> Vec<Desc> {
    let desc = |(dtype, align): (DType, u8)| {
        let align = if dtype == DType::F32 { align.max(2) } else { align };
        Desc::Embed(EmbedDesc { rows: 5, n: 64, dtype, align })
    };
    FLOATS.into_iter().flat_map(|d| [(d, 1), (d, 7)]).map(desc).collect()
}

fn shapes(env: &Env, dtype: DType) -> Outcome {
    let mut problems = Vec::new();
    for n in [1, 7, 8, 33, 64, 256, 1000, 4096, 40_000] {
        for (pads, offset) in [([0, 0], 0), ([8, 64], 8), ([1, 3], 1), ([0, 5], 3)] {
            for (outer, stride) in [(vec![], 1), (vec![5], 1), (vec![2, 3], 2), (vec![2, 3, 4], 3)] {
                let scaled = usize::is_multiple_of(n + stride, 2);
                let ids = if usize::is_multiple_of(offset, 2) { DType::U32 } else { DType::I32 };
                let base = EmbedProblem::new(1, 13, n, dtype);
                problems.push(EmbedProblem { outer, pads, offset, stride, scaled, ids, ..base });
            }
        }
    }
    let mut left = env.budget;
    for p in env.thin(problems) {
        if p.cost() + 13 * p.n as u64 <= left {
            left -= p.cost() + 13 * p.n as u64;
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
    let mut problems = kinds.map(|kind| EmbedProblem { kind, offset: 1, ..EmbedProblem::new(4, 9, 77, dtype) });
    problems.try_for_each(|p| p.check(env)).into()
}

/// pytorch/pytorch#571, #71572, #16027: an id outside of the table is told with op, position and value; its row is
/// not written, the others are, and the stream works again after `recover`.
fn pt_571(env: &Env) -> Result<(), String> {
    let text = |e: Error| e.to_string();
    let data: Vec<f32> = (0..10 * 64u16).map(f32::from).collect();
    let table = env.rt.from_slice(&data, &[10, 64]).map_err(text)?;
    let check = |ids: &tessl::Tensor, good: &[Option<usize>], bad: &[(u64, i64)]| -> Result<(), String> {
        let count = ids.len();
        let out = env.rt.from_slice(&vec![-1.0f32; count * 64], &[count, 64]).map_err(text)?;
        let mut stream = env.rt.stream().map_err(text)?;
        Embedding::new(&table, ids, &out).run_on(&mut stream).map_err(text)?;
        let outcome = stream.synchronize();
        if !env.computes {
            return outcome.map_err(text);
        }
        match outcome {
            Err(Error::Fault { op: "embedding", kind: FaultKind::IndexOutOfRange, index, value })
                if bad.contains(&(index, value)) => {}
            other => return Err(format!("ids with {bad:?} gave {other:?}")),
        }
        stream.recover().map_err(text)?;
        // Good rows are written, bad ones are not touched.
        let got = out.read::<f32>().map_err(text)?;
        for (at, &x) in got.iter().enumerate() {
            let want = good[at / 64].map_or(-1.0, |id| data[id * 64 + at % 64]);
            if x != want {
                return Err(format!("[{}, {}] is {x} instead of {want}", at / 64, at % 64));
            }
        }
        let first = out.narrow(0, 0, 1).map_err(text)?;
        let fine = env.rt.from_slice(&[7u32], &[1]).map_err(text)?;
        Embedding::new(&table, &fine, &first).run_on(&mut stream).map_err(text)?;
        stream.synchronize().map_err(text)?;
        if first.read::<f32>().map_err(text)? != data[7 * 64..8 * 64] {
            return Err("the next lookup is wrong".into());
        }
        Ok(())
    };
    let u32s = |ids: &[u32]| env.rt.from_slice(ids, &[ids.len()]).map_err(text);
    let i32s = |ids: &[i32]| env.rt.from_slice(ids, &[ids.len()]).map_err(text);
    check(&u32s(&[0, 9, 10])?, &[Some(0), Some(9), None], &[(2, 10)])?;
    check(&u32s(&[u32::MAX])?, &[None], &[(0, u32::MAX.into())])?;
    check(&i32s(&[-1])?, &[None], &[(0, -1)])?;
    check(&i32s(&[3, i32::MIN, 4, 11])?, &[Some(3), None, Some(4), None], &[(1, i32::MIN.into()), (3, 11)])
}

/// Every case of this family.
pub(crate) fn cases() -> Vec<Case> {
    let mut cases = vec![Case::fixed("known/pt_571", "embedding", 2000, |env| pt_571(env).into()).tagged(&["quick"])];
    for dtype in FLOATS {
        let case = |label: &str, body: fn(&Env, DType) -> Outcome| {
            Case::new(format!("embedding/{label}/{dtype}"), "embedding", move |env| body(env, dtype)).tagged(&["quick"])
        };
        cases.push(case("shapes", shapes));
        cases.push(case("memory", memory));
    }
    cases
}

/// A random problem.
pub(crate) fn random(rng: &mut Rng, turn: usize) -> EmbedProblem {
    let aligned = (turn / 3).is_multiple_of(2);
    let n = if aligned { 64 * rng.between(1, 10) } else { rng.between(1, 600) };
    let mut p = EmbedProblem::new(1, rng.between(1, 40), n, FLOATS[turn % 3]);
    p.outer = (0..rng.between(0, 3)).map(|_| rng.between(1, 5)).collect();
    p.ids = *rng.pick(&[DType::U32, DType::I32]);
    p.scaled = rng.one_in(2);
    if !aligned {
        p.pads = [rng.below(9), rng.below(9)];
        p.offset = rng.below(4);
        p.stride = rng.between(1, 3);
    }
    p.kind = *rng.pick(&[BufferKind::Cold, BufferKind::Hot, BufferKind::Bump]);
    p.seed = rng.bits();
    if rng.one_in(40) {
        p.outer = vec![2, 0];
    }
    p
}
