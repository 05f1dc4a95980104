//! Cases of `gather_rows`, `scatter_rows` and `scatter_add`.

use super::TYPES;
use crate::data::{Mem, Placed, compare};
use crate::env::{Env, Outcome};
use crate::suite::Case;
use tessl::nn::{GatherRows, MovementOp, ScatterAdd, ScatterRows};
use tessl::plan::Desc;
use tessl::{BufferKind, DType, Error, FaultKind, Stream, Tensor};
use tessl_oracle::{Rng, gather_rows, scatter_rows};

/// Rows that move by ids.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct RowsProblem {
    /// Operation.
    pub(crate) op: MovementOp,
    /// Axes of ids.
    pub(crate) outer: Vec<usize>,
    /// Rows of what ids name.
    pub(crate) table: usize,
    /// Elements of a row.
    pub(crate) n: usize,
    /// Element type.
    pub(crate) dtype: DType,
    /// Type of ids.
    pub(crate) ids: DType,
    /// Elements of slack after each row of the two operands.
    pub(crate) pads: [usize; 2],
    /// Elements from an aligned place to the first one.
    pub(crate) offset: usize,
    /// Distance of neighbouring ids.
    pub(crate) stride: usize,
    /// Type of the weights of rows, for sums.
    pub(crate) weights: Option<DType>,
    /// Kind of memory.
    pub(crate) kind: BufferKind,
    /// Seed of the contents.
    pub(crate) seed: u64,
}

/// The operations.
pub(crate) const OPS: [MovementOp; 3] = [MovementOp::GatherRows, MovementOp::ScatterRows, MovementOp::ScatterAdd];

/// The element types of one of them.
pub(crate) fn types(op: MovementOp) -> Vec<DType> {
    TYPES.into_iter().filter(|d| op != MovementOp::ScatterAdd || d.is_float()).collect()
}

impl RowsProblem {
    /// Contiguous and aligned.
    pub(crate) fn new(op: MovementOp, rows: usize, table: usize, n: usize, dtype: DType) -> Self {
        RowsProblem {
            op,
            outer: vec![rows],
            table,
            n,
            dtype,
            ids: DType::U32,
            pads: [0; 2],
            offset: 0,
            stride: 1,
            weights: None,
            kind: BufferKind::Cold,
            seed: 1,
        }
    }

    /// Elements moved.
    pub(crate) fn cost(&self) -> u64 {
        self.outer.iter().fold(self.n as u64, |p, &x| p.saturating_mul(x as u64))
    }

    fn run(&self, t: &[Tensor; 4], stream: Option<&mut Stream>) -> tessl::Result<Desc> {
        macro_rules! run {
            ($op:expr) => {{
                let op = $op;
                match stream {
                    Some(stream) => op.run_on(stream)?,
                    None => op.run()?,
                }
                Ok(Desc::Movement(op.desc()?))
            }};
        }
        let [table, ids, rows, weights] = t;
        match self.op {
            MovementOp::GatherRows => run!(GatherRows::new(table, ids, rows)),
            MovementOp::ScatterRows => run!(ScatterRows::new(rows, ids, table)),
            _ if self.weights.is_some() => run!(ScatterAdd::new(rows, ids, table).weights(weights)),
            _ => run!(ScatterAdd::new(rows, ids, table)),
        }
    }

    /// Runs the problem twice and compares: every element, slack, bits.
    pub(crate) fn check(&self, env: &Env) -> Result<(), String> {
        Mem::with(env, self.kind, |mem| self.check_in(mem)).map_err(|e| format!("{e}\n  {self:?}"))
    }

    fn check_in(&self, mem: &mut Mem<'_>) -> Result<(), String> {
        let mut rng = Rng::new(self.seed);
        let count: usize = self.outer.iter().product();
        let ids: Vec<f64> = (0..count).map(|_| rng.below(self.table) as f64).collect();
        // Sums of a few small numbers are exact in every type.
        let most = if self.op == MovementOp::ScatterAdd { 3 } else { 200 };
        let least = if self.dtype == DType::U8 { 0 } else { -most };
        let table: Vec<f64> = (0..self.table * self.n).map(|_| rng.integer(least, most)).collect();
        let rows: Vec<f64> = (0..count * self.n).map(|_| rng.integer(least, most)).collect();
        let nested = |row: usize| {
            let mut strides = vec![row; self.outer.len()];
            (1..strides.len()).rev().for_each(|i| strides[i - 1] = strides[i] * self.outer[i].max(1));
            strides
        };
        let shape: Vec<usize> = self.outer.iter().copied().chain([self.n]).collect();
        let strides: Vec<usize> = nested(self.n + self.pads[1]).into_iter().chain([1]).collect();
        let whole = [self.table, self.n];
        let mut places = [
            Placed::new(self.dtype, &whole, &[self.n + self.pads[0], 1], self.offset),
            Placed::new(self.ids, &self.outer, &nested(self.stride), self.offset),
            Placed::new(self.dtype, &shape, &strides, self.offset),
            Placed::new(self.weights.unwrap_or(DType::F32), &self.outer, &nested(self.stride + 1), self.offset),
        ];
        places.iter_mut().try_for_each(|p| p.allocate(mem))?;
        let views = [places[0].view()?, places[1].view()?, places[2].view()?, places[3].view()?];
        let weights: Vec<f64> =
            (0..count).map(|_| if self.weights.is_some() { rng.integer(-2, 2) } else { 1.0 }).collect();
        places[3].fill_input(mem, |at| weights[at])?;
        places[1].fill_input(mem, |at| ids[at])?;
        #[allow(clippy::cast_possible_truncation)] // Ids are small.
        let ids: Vec<i64> = ids.iter().map(|&id| id as i64).collect();
        let (output, shape, want) = if self.op == MovementOp::GatherRows {
            let want = gather_rows(&table, self.n, &ids).into_iter().flatten().flatten().collect();
            (&places[2], &shape[..], want)
        } else {
            let mut want = table.clone();
            let weighted: Vec<f64> = rows.iter().enumerate().map(|(at, x)| x * weights[at / self.n.max(1)]).collect();
            scatter_rows(&weighted, self.n, &ids, &mut want, self.op == MovementOp::ScatterAdd);
            (&places[0], &whole[..], want)
        };
        for turn in 0..2 {
            if self.op == MovementOp::GatherRows {
                places[0].fill_input(mem, |at| table[at])?;
                places[2].fill_output(mem, |_| f64::NAN)?;
            } else {
                places[0].fill_output(mem, |at| table[at])?;
                places[2].fill_input(mem, |at| rows[at])?;
            }
            let desc = self.run(&views, mem.stream.as_deref_mut()).map_err(|e| e.to_string())?;
            if turn == 0 && self.cost() > 0 {
                mem.env.cover(&desc)?;
            }
            if mem.env.computes {
                compare(self.dtype, &output.fetch_output()?, shape, |at| (want[at], 0.0))?;
            }
        }
        Ok(())
    }

    /// A random problem.
    pub(crate) fn random(rng: &mut Rng, turn: usize) -> Self {
        let all: Vec<_> = OPS.into_iter().flat_map(|op| types(op).into_iter().map(move |d| (op, d))).collect();
        let (op, dtype) = all[turn % all.len()];
        let aligned = (turn / all.len()).is_multiple_of(2);
        let n = if aligned { 64 * rng.between(1, 10) } else { rng.between(1, 600) };
        let mut p = RowsProblem::new(op, 1, rng.between(1, 40), n, dtype);
        p.outer = (0..rng.between(0, 3)).map(|_| rng.between(1, 5)).collect();
        p.ids = *rng.pick(&[DType::U32, DType::I32]);
        if !aligned {
            p.pads = [rng.below(9), rng.below(9)];
            p.offset = rng.below(4);
            p.stride = rng.between(1, 3);
        }
        if op == MovementOp::ScatterAdd {
            p.weights = *rng.pick(&[None, Some(DType::F32), Some(dtype)]);
        }
        p.kind = *rng.pick(&[BufferKind::Cold, BufferKind::Hot, BufferKind::Bump]);
        p.seed = rng.bits();
        if rng.one_in(40) {
            p.outer = vec![2, 0];
        }
        p
    }
}

fn shapes(env: &Env, op: MovementOp, dtype: DType) -> Outcome {
    let mut problems = Vec::new();
    for n in [1, 7, 16, 33, 256, 1000, 4099] {
        for (pads, offset) in [([0, 0], 0), ([16, 64], 16), ([1, 3], 1)] {
            for (outer, stride, table) in
                [(vec![], 1, 5), (vec![5], 1, 13), (vec![40], 1, 3), (vec![2, 3], 2, 4), (vec![2, 3, 4], 3, 30)]
            {
                let ids = if usize::is_multiple_of(offset, 2) { DType::U32 } else { DType::I32 };
                let seed = env.seed ^ n as u64;
                let base = RowsProblem::new(op, 1, table, n, dtype);
                let plain = RowsProblem { outer, pads, offset, stride, ids, seed, ..base };
                if op == MovementOp::ScatterAdd {
                    let weights = Some(if offset == 0 { dtype } else { DType::F32 });
                    problems.push(RowsProblem { weights, ..plain.clone() });
                }
                problems.push(plain);
            }
        }
    }
    // More rows than threads of a group look for in one turn, many with the same id.
    problems.push(RowsProblem::new(op, 700, 9, 8, dtype));
    problems.push(RowsProblem::new(op, 600, 5000, 3, dtype));
    let kinds = [BufferKind::Hot, BufferKind::Bump, BufferKind::External];
    let kinds = kinds.into_iter().filter(|&kind| Mem::available(env, kind));
    problems.extend(kinds.map(|kind| RowsProblem { kind, offset: 1, ..RowsProblem::new(op, 6, 9, 77, dtype) }));
    let mut left = env.budget;
    for p in env.thin(problems) {
        if p.cost() <= left {
            left -= p.cost();
            if let Err(message) = p.check(env) {
                return Outcome::Failed(message);
            }
        }
    }
    Outcome::Passed
}

/// An id outside is told with op, position and value; nothing is written for it, the other rows move, and the stream works
/// again after `recover`.
fn faults(env: &Env, op: MovementOp) -> Result<(), String> {
    let text = |e: Error| e.to_string();
    let n = 40;
    let data = |count: usize, first: f32| (0..count * n).map(|i| first + i as f32).collect::<Vec<f32>>();
    let check = |ids: &Tensor, signed: &[i64], bad: &[(u64, i64)]| -> Result<(), String> {
        let (table, rows) = (data(6, 1000.0), data(ids.len(), 0.0));
        let views = [
            env.rt.from_slice(&table, &[6, n]).map_err(text)?,
            ids.clone(),
            env.rt.from_slice(&rows, &[ids.len(), n]).map_err(text)?,
            ids.clone(),
        ];
        let mut stream = env.rt.stream().map_err(text)?;
        RowsProblem::new(op, 1, 1, n, DType::F32).run(&views, Some(&mut stream)).map_err(text)?;
        let outcome = stream.synchronize();
        if !env.computes {
            return outcome.map_err(text);
        }
        match outcome {
            Err(Error::Fault { op: label, kind: FaultKind::IndexOutOfRange, index, value })
                if label == op.name() && bad.contains(&(index, value)) => {}
            other => return Err(format!("ids {signed:?} gave {other:?}")),
        }
        stream.recover().map_err(text)?;
        let as_f64 = |v: &[f32]| v.iter().map(|&x| f64::from(x)).collect::<Vec<f64>>();
        let want = if op == MovementOp::GatherRows {
            let moved = gather_rows(&as_f64(&table), n, signed);
            moved.into_iter().enumerate().flat_map(|(r, row)| row.unwrap_or(as_f64(&rows[r * n..][..n]))).collect()
        } else {
            let mut want = as_f64(&table);
            scatter_rows(&as_f64(&rows), n, signed, &mut want, op == MovementOp::ScatterAdd);
            want
        };
        let output = &views[if op == MovementOp::GatherRows { 2 } else { 0 }];
        let got = as_f64(&output.read::<f32>().map_err(text)?);
        if got == want { Ok(()) } else { Err(format!("ids {signed:?}: {got:?} instead of {want:?}")) }
    };
    let u32s = |ids: &[u32]| env.rt.from_slice(ids, &[ids.len()]).map_err(text);
    let i32s = |ids: &[i32]| env.rt.from_slice(ids, &[ids.len()]).map_err(text);
    check(&u32s(&[0, 5, 6])?, &[0, 5, 6], &[(2, 6)])?;
    check(&u32s(&[u32::MAX, 2])?, &[u32::MAX.into(), 2], &[(0, u32::MAX.into())])?;
    check(&i32s(&[3, -1, 3])?, &[3, -1, 3], &[(1, -1)])?;
    check(&i32s(&[i32::MIN, 4, 7])?, &[i32::MIN.into(), 4, 7], &[(0, i32::MIN.into()), (2, 7)])
}

/// Every case of these operations.
pub(crate) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for op in OPS {
        for dtype in types(op) {
            let name = format!("{}/shapes/{dtype}", op.name());
            cases.push(Case::new(name, op.name(), move |env| shapes(env, op, dtype)).tagged(&["quick"]));
        }
        let name = format!("{}/faults", op.name());
        cases.push(Case::fixed(name, op.name(), 2000, move |env| faults(env, op).into()).tagged(&["quick"]));
    }
    cases
}
