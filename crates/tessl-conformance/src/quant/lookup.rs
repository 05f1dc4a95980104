//! Lookups in quantised tables.

use super::weights::Matrix;
use super::{FLOATS, codes};
use crate::data::{Mem, Placed, compare};
use crate::env::{Env, Outcome};
use crate::suite::Case;
use tessl::nn::QuantizedEmbedding;
use tessl::plan::Desc;
use tessl::{BufferKind, DType, Error, FaultKind, QFormat, QLayout};
use tessl_oracle::Rng;

const OP: &str = "quantized_embedding";
const SCALE: f32 = 1.7;

/// A lookup with everything that decides how it is computed.
#[derive(Clone, Debug, PartialEq)]
pub struct QuantEmbedProblem {
    /// Axes of ids.
    pub outer: Vec<usize>,
    /// Rows of the table.
    pub vocabulary: usize,
    /// Elements of a row.
    pub n: usize,
    /// How the table is coded.
    pub format: QFormat,
    /// The order of its bytes.
    pub layout: QLayout,
    /// Type of factors that lie apart.
    pub factors: DType,
    /// Type of the output.
    pub output: DType,
    /// Type of ids.
    pub ids: DType,
    /// Elements are multiplied.
    pub scaled: bool,
    /// Elements of slack after each row of the output.
    pub pad: usize,
    /// Elements from an aligned place to the first one.
    pub offset: usize,
    /// Kind of memory.
    pub kind: BufferKind,
    /// Seed of the contents.
    pub seed: u64,
}

impl QuantEmbedProblem {
    /// Contiguous and aligned.
    pub fn new(ids: usize, vocabulary: usize, n: usize, format: QFormat, output: DType) -> Self {
        QuantEmbedProblem {
            outer: vec![ids],
            vocabulary,
            n,
            format,
            layout: QLayout::Rows,
            factors: DType::F16,
            output,
            ids: DType::U32,
            scaled: false,
            pad: 0,
            offset: 0,
            kind: BufferKind::Cold,
            seed: 1,
        }
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
        let matrix = Matrix::random(&mut rng, self.format, self.factors, [self.vocabulary, self.n], false);
        let table = matrix.place(&mem.env.rt, self.layout)?;
        let ids: Vec<usize> = (0..count).map(|_| rng.below(self.vocabulary)).collect();
        let nested = |row: usize| {
            let mut strides = vec![row; self.outer.len()];
            (1..strides.len()).rev().for_each(|i| strides[i - 1] = strides[i] * self.outer[i].max(1));
            strides
        };
        let shape: Vec<usize> = self.outer.iter().copied().chain([self.n]).collect();
        let strides: Vec<usize> = nested(self.n + self.pad).into_iter().chain([1]).collect();
        let mut places = [
            Placed::new(self.ids, &self.outer, &nested(1), 0),
            Placed::new(self.output, &shape, &strides, self.offset),
        ];
        places.iter_mut().try_for_each(|p| p.allocate(mem))?;
        let [i, y] = &places;
        i.fill_input(mem, |at| ids[at] as f64)?;
        let (ids_view, out) = (i.view()?, y.view()?);
        let op = QuantizedEmbedding::new(&table, &ids_view, &out);
        let op = if self.scaled { op.scale(SCALE) } else { op };
        if count > 0 && self.n > 0 {
            mem.env.cover(&Desc::QuantEmbed(op.desc().map_err(|e| e.to_string())?))?;
        }
        let mut runs = Vec::new();
        for _ in 0..2 {
            y.fill_output(mem, |_| f64::NAN)?;
            match mem.stream.as_deref_mut() {
                Some(stream) => op.run_on(stream),
                None => op.run(),
            }
            .map_err(|e| e.to_string())?;
            if mem.env.computes {
                runs.push(y.fetch_output()?);
            }
        }
        let [first, second] = runs.as_slice() else { return Ok(()) };
        if first != second {
            return Err("two runs differ".into());
        }
        let (u, scale) = (2f64.powi(-24), if self.scaled { f64::from(SCALE) } else { 1.0 });
        let rows: Vec<_> = ids.iter().map(|&id| matrix.row(id)).collect();
        compare(self.output, first, &shape, |at| {
            let w = rows[at / self.n][at % self.n];
            // Three roundings of the weight and one of the factor; below them what a denormal loses.
            (w.value() * scale, 4.0 * u * w.magnitude() * scale + 2f64.powi(-148))
        })
    }
}

fn shapes(env: &Env, format: QFormat, output: DType) -> Outcome {
    let group = format.group();
    let mut problems = Vec::new();
    for (i, n) in [group, 2 * group, 5 * group, 1024].into_iter().enumerate() {
        let p = QuantEmbedProblem::new(5, 7, n, format, output);
        problems.push(QuantEmbedProblem { factors: FLOATS[i % 3], scaled: i % 2 == 1, seed: i as u64, ..p.clone() });
        problems.push(QuantEmbedProblem { outer: vec![2, 3], ids: DType::I32, pad: 3, offset: 1 + i % 3, ..p });
    }
    let one = QuantEmbedProblem::new(1, 1, group, format, output);
    problems.push(QuantEmbedProblem { outer: vec![], ..one.clone() });
    problems.push(QuantEmbedProblem { outer: vec![0], ..one.clone() });
    for kind in [BufferKind::Hot, BufferKind::Bump, BufferKind::External] {
        if Mem::available(env, kind) {
            problems.push(QuantEmbedProblem { kind, outer: vec![4], vocabulary: 9, ..one.clone() });
        }
    }
    problems.into_iter().try_for_each(|p| p.check(env)).into()
}

/// As known/pt_571 of the dense lookup: bad ids are told with op, position and value; their rows are not written.
fn faults(env: &Env) -> Result<(), String> {
    let text = |e: Error| e.to_string();
    let matrix = Matrix::random(&mut Rng::new(3), QFormat::Q4_0, DType::F16, [10, 64], false);
    let table = matrix.place(&env.rt, QLayout::Rows)?;
    let ids = env.rt.from_slice(&[3i32, -1, 9, 10], &[4]).map_err(text)?;
    let out = env.rt.from_slice(&[-1e9f32; 4 * 64], &[4, 64]).map_err(text)?;
    let mut stream = env.rt.stream().map_err(text)?;
    QuantizedEmbedding::new(&table, &ids, &out).run_on(&mut stream).map_err(text)?;
    let outcome = stream.synchronize();
    if !env.computes {
        return outcome.map_err(text);
    }
    match outcome {
        Err(Error::Fault { op: OP, kind: FaultKind::IndexOutOfRange, index, value })
            if [(1, -1), (3, 10)].contains(&(index, value)) => {}
        other => return Err(format!("ids out of range gave {other:?}")),
    }
    stream.recover().map_err(text)?;
    let got = out.read::<f32>().map_err(text)?;
    let untouched = |row: usize| got[row * 64..][..64].iter().all(|&y| y == -1e9);
    if [0, 1, 2, 3].map(untouched) != [false, true, false, true] {
        return Err("rows of bad ids, and no others, keep their contents".into());
    }
    Ok(())
}

/// Every case of this page.
pub(super) fn cases() -> Vec<Case> {
    let mut cases = vec![Case::fixed(format!("{OP}/faults"), OP, 2000, |env| faults(env).into()).tagged(&["quick"])];
    for (format, output) in codes().into_iter().flat_map(|f| FLOATS.map(|d| (f, d))) {
        let name = format!("{OP}/shapes/{}/{output}", format.code());
        let case = Case::new(name, OP, move |env| shapes(env, format, output));
        cases.push(if format == QFormat::Q5K { case.tagged(&["quick"]) } else { case });
    }
    cases
}

/// A random problem.
pub(crate) fn random(rng: &mut Rng, turn: usize) -> QuantEmbedProblem {
    let format = codes()[turn / 3 % 12];
    let n = format.group() * rng.between(1, 4);
    let mut p = QuantEmbedProblem::new(1, rng.between(1, 20), n, format, FLOATS[turn % 3]);
    p.outer = (0..rng.between(0, 3)).map(|_| rng.between(1, 4)).collect();
    p.factors = *rng.pick(&FLOATS);
    p.ids = *rng.pick(&[DType::U32, DType::I32]);
    p.scaled = rng.one_in(2);
    if rng.one_in(2) {
        (p.pad, p.offset) = (rng.below(9), rng.below(4));
    }
    p.kind = *rng.pick(&[BufferKind::Cold, BufferKind::Hot, BufferKind::Bump]);
    p.seed = rng.bits();
    p
}
