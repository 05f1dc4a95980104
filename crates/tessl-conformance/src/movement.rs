//! Cases of the family `movement`: here strided copies, transposition and concatenation.

pub(crate) mod rows;

use crate::data::{Mem, Placed, compare};
use crate::env::{Env, Outcome};
use crate::suite::Case;
use tessl::nn::{Concat, Copy, MovementDesc, MovementOp, Transpose};
use tessl::plan::Desc;
use tessl::{BufferKind, DType, Tensor};
use tessl_oracle::Rng;

/// Types of each size of element.
pub(crate) const TYPES: [DType; 5] = [DType::U8, DType::F16, DType::Bf16, DType::F32, DType::I32];

/// A copy between two layouts.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct CopyProblem {
    /// Extents.
    pub(crate) shape: Vec<usize>,
    /// Axes from the one with the largest stride to that with the smallest, in x and in y.
    pub(crate) orders: [Vec<usize>; 2],
    /// Stride of the last of them.
    pub(crate) steps: [usize; 2],
    /// Elements of slack behind each of its runs.
    pub(crate) pads: [usize; 2],
    /// Axes along which x is broadcast, as bits.
    pub(crate) broadcast: usize,
    /// Elements from an aligned place to the first one.
    pub(crate) offset: usize,
    /// Element type.
    pub(crate) dtype: DType,
    /// Kind of memory.
    pub(crate) kind: BufferKind,
    /// Seed of the contents.
    pub(crate) seed: u64,
}

impl CopyProblem {
    /// Contiguous on both sides.
    pub(crate) fn new(shape: &[usize], dtype: DType) -> Self {
        let order: Vec<usize> = (0..shape.len()).collect();
        CopyProblem {
            shape: shape.to_vec(),
            orders: [order.clone(), order],
            steps: [1; 2],
            pads: [0; 2],
            broadcast: 0,
            offset: 0,
            dtype,
            kind: BufferKind::Cold,
            seed: 1,
        }
    }

    /// Elements.
    pub(crate) fn cost(&self) -> u64 {
        self.shape.iter().fold(1, |p: u64, &x| p.saturating_mul(x as u64))
    }

    fn placed(&self, side: usize) -> Placed {
        let mut strides = vec![0; self.shape.len()];
        let mut reach = self.steps[side];
        for (i, &axis) in self.orders[side].iter().rev().enumerate() {
            if side == 0 && self.broadcast >> axis & 1 == 1 {
                continue;
            }
            strides[axis] = reach;
            reach = reach * self.shape[axis].max(1) + if i == 0 { self.pads[side] } else { 0 };
        }
        Placed::new(self.dtype, &self.shape, &strides, self.offset)
    }

    /// Runs the problem twice and compares: every element, slack, bits.
    pub(crate) fn check(&self, env: &Env) -> Result<(), String> {
        Mem::with(env, self.kind, |mem| self.check_in(mem)).map_err(|e| format!("{e}\n  {self:?}"))
    }

    fn check_in(&self, mem: &mut Mem<'_>) -> Result<(), String> {
        let (mut x, mut y) = (self.placed(0), self.placed(1));
        let mut rng = Rng::new(self.seed);
        // What is broadcast depends on the other axes alone.
        let distinct: Vec<f64> = (0..x.len()).map(|_| rng.integer(0, 200)).collect();
        let value = |at: usize| {
            let (mut rest, mut own, mut step) = (at, 0, 1);
            for (axis, &extent) in self.shape.iter().enumerate().rev() {
                if self.broadcast >> axis & 1 == 0 {
                    own += rest % extent * step;
                    step *= extent;
                }
                rest /= extent;
            }
            distinct[own]
        };
        x.allocate(mem)?;
        y.allocate(mem)?;
        x.fill_input(mem, value)?;
        let (tx, ty) = (x.view()?, y.view()?);
        let op = Copy::new(&tx, &ty);
        if self.cost() > 0 {
            mem.env.cover(&Desc::Movement(op.desc().map_err(|e| e.to_string())?))?;
        }
        for _ in 0..2 {
            y.fill_output(mem, |_| f64::NAN)?;
            match mem.stream.as_deref_mut() {
                Some(stream) => op.run_on(stream),
                None => op.run(),
            }
            .map_err(|e| e.to_string())?;
            if mem.env.computes {
                compare(self.dtype, &y.fetch_output()?, &self.shape, |at| (value(at), 0.0))?;
            }
        }
        Ok(())
    }

    /// A random problem of at most `limit` elements.
    pub(crate) fn random(rng: &mut Rng, turn: usize, limit: u64) -> Self {
        let rank = rng.between(0, 5);
        let long = *rng.pick(&[4, 9, 40, 150]);
        let shape: Vec<usize> = (0..rank).map(|_| rng.between(1, long)).collect();
        let mut p = CopyProblem::new(&shape, TYPES[turn % TYPES.len()]);
        let shuffled = |rng: &mut Rng| {
            let mut order: Vec<usize> = (0..rank).collect();
            (1..rank).for_each(|i| order.swap(i, rng.below(i + 1)));
            order
        };
        p.orders = [shuffled(rng), shuffled(rng)];
        if rng.one_in(3) {
            p.orders[1] = p.orders[0].clone();
        }
        p.steps = [*rng.pick(&[1, 1, 1, 2]), *rng.pick(&[1, 1, 1, 3])];
        p.pads = [*rng.pick(&[0, 0, 1, 8]), *rng.pick(&[0, 0, 5, 16])];
        p.broadcast = if rng.one_in(4) { rng.below(32) } else { 0 };
        p.offset = *rng.pick(&[0, 0, 1, 3, 8]);
        p.kind = *rng.pick(&[BufferKind::Cold, BufferKind::Hot, BufferKind::Bump]);
        p.seed = rng.bits();
        if rng.one_in(40) && rank > 0 {
            p.shape[0] = 0;
        }
        // Every type is transposed as well.
        if (turn / TYPES.len()).is_multiple_of(4) {
            let shape = [rng.between(8, 100), rng.between(8, 100)];
            let orders = [vec![1, 0], vec![0, 1]];
            p = CopyProblem { orders, seed: p.seed, kind: p.kind, ..CopyProblem::new(&shape, p.dtype) };
        }
        while p.cost() > limit {
            p.shape.iter_mut().for_each(|extent| *extent = *extent / 2 + 1);
        }
        p
    }
}

/// Every problem class that takes a kernel or row of its own.
pub(crate) fn descs() -> Vec<Desc> {
    let mut all = Vec::new();
    for (op, dtype) in MovementOp::ALL.into_iter().flat_map(|op| TYPES.map(|dtype| (op, dtype))) {
        for align in [0, 7] {
            let natural = u8::try_from(dtype.size().ilog2()).unwrap_or(0);
            let m = if op == MovementOp::Transpose { 40 } else { 1 };
            if op != MovementOp::ScatterAdd || dtype.is_float() {
                let desc = MovementDesc { op, rows: 3, m, n: 33, dtype, align: align.max(natural) };
                all.push(Desc::Movement(desc));
            }
        }
    }
    all
}

/// Every order of the axes of some shapes, with the sizes of tiles and vectors among them.
fn layouts(env: &Env, dtype: DType) -> Outcome {
    let mut problems = Vec::new();
    let shapes: [&[usize]; 9] =
        [&[], &[77], &[33, 64], &[65, 31], &[8, 9], &[7, 300], &[3, 40, 66], &[2, 17, 3, 35], &[2, 3, 4, 5, 6]];
    for shape in shapes {
        let rank = shape.len();
        let orders: Vec<Vec<usize>> = match rank {
            0 | 1 => vec![(0..rank).collect()],
            2 => vec![vec![0, 1], vec![1, 0]],
            3 => vec![vec![0, 1, 2], vec![0, 2, 1], vec![2, 0, 1], vec![1, 2, 0]],
            _ => {
                let up: Vec<usize> = (0..rank).collect();
                let (mut swapped, down) = (up.clone(), up.iter().rev().copied().collect());
                swapped.swap(1, rank - 1);
                vec![up, swapped, down]
            }
        };
        for x in &orders {
            for y in &orders {
                for (i, (pads, steps)) in
                    [([0, 0], [1, 1]), ([3, 8], [1, 1]), ([0, 0], [2, 1]), ([1, 0], [1, 3])].into_iter().enumerate()
                {
                    let base = CopyProblem::new(shape, dtype);
                    let orders = [x.clone(), y.clone()];
                    problems.push(CopyProblem { orders, pads, steps, offset: i, seed: env.seed, ..base });
                }
            }
            let broadcast = [1, 2, 4, 5][rank % 4] & ((1 << rank) - 1);
            problems.push(CopyProblem { broadcast, ..CopyProblem::new(shape, dtype) });
        }
    }
    env.thin(problems).iter().try_for_each(|p| p.check(env)).into()
}

/// Around the tiles of transpositions, in one matrix and in several.
fn transpositions(env: &Env, dtype: DType) -> Outcome {
    let mut problems = Vec::new();
    let sizes = [8, 9, 31, 32, 33, 63, 64, 65, 255, 256, 257, 300];
    for (i, m) in sizes.into_iter().enumerate() {
        for n in [sizes[(i * 5 + 1) % sizes.len()], sizes[(i * 7 + 4) % sizes.len()]] {
            let p = CopyProblem::new(&[m, n], dtype);
            problems.push(CopyProblem { orders: [vec![1, 0], vec![0, 1]], pads: [i % 3, i % 2], ..p });
            let p = CopyProblem::new(&[2, m, 2, n / 4 + 8], dtype);
            problems.push(CopyProblem { orders: [vec![0, 2, 3, 1], vec![2, 0, 1, 3]], ..p });
        }
    }
    let kinds = [BufferKind::Hot, BufferKind::External, BufferKind::Bump];
    for kind in kinds.into_iter().filter(|&kind| Mem::available(env, kind)) {
        let p = CopyProblem { kind, offset: 1, ..CopyProblem::new(&[20, 30], dtype) };
        problems.push(CopyProblem { orders: [vec![1, 0], vec![0, 1]], ..p });
    }
    env.thin(problems).iter().try_for_each(|p| p.check(env)).into()
}

/// Transpose and Concat are copies of views: their own part is the view.
fn views(env: &Env) -> Result<(), String> {
    let text = |e: tessl::Error| e.to_string();
    let data: Vec<f32> = (0..2 * 9 * 10u8).map(f32::from).collect();
    let x = env.rt.from_slice(&data, &[2, 9, 10]).map_err(text)?;
    let same = |what: &str, y: &Tensor, want: &Tensor| {
        if !env.computes || y.read::<f32>().map_err(text)? == want.read::<f32>().map_err(text)? {
            return Ok(());
        }
        Err(format!("{what} is wrong"))
    };
    let y = env.rt.alloc_tensor_f32(&[2, 10, 9]).map_err(text)?;
    Transpose::new(&x, &y).run().map_err(text)?;
    same("the transpose", &y, &x.t().map_err(text)?)?;
    let y = env.rt.alloc_tensor_f32(&[10, 2, 9]).map_err(text)?;
    Transpose::new(&x, &y).order(&[2, 0, 1]).run().map_err(text)?;
    same("the permutation", &y, &x.permute(&[2, 0, 1]).map_err(text)?)?;
    for axis in 0..3 {
        let length = x.shape()[axis];
        let cut = length / 2;
        let (a, b) = (x.narrow(axis, 0, cut).map_err(text)?, x.narrow(axis, cut, length - cut).map_err(text)?);
        let none = x.narrow(axis, 0, 0).map_err(text)?;
        let mut shape = x.shape().to_vec();
        shape[axis] = length + cut;
        let y = env.rt.alloc_tensor_f32(&shape).map_err(text)?;
        Concat::new(&[&b, &none, &a, &a], axis, &y).run().map_err(text)?;
        same("the first part", &y.narrow(axis, 0, length - cut).map_err(text)?, &b)?;
        for start in [length - cut, length] {
            same("a later part", &y.narrow(axis, start, cut).map_err(text)?, &a)?;
        }
    }
    // A cache grows: the old part is there already.
    let old = x.narrow(1, 0, 8).map_err(text)?;
    let new = env.rt.from_slice(&[7.0f32; 20], &[2, 1, 10]).map_err(text)?;
    Concat::new(&[&old, &new], 1, &x).run().map_err(text)?;
    same("the new part", &x.narrow(1, 8, 1).map_err(text)?, &new)
}

/// Every case of this family.
pub(crate) fn cases() -> Vec<Case> {
    let mut cases = rows::cases();
    cases.push(Case::fixed("copy/views", "copy", 2000, |env| views(env).into()).tagged(&["quick"]));
    for dtype in TYPES {
        let case = |label: &str, body: fn(&Env, DType) -> Outcome| {
            Case::new(format!("copy/{label}/{dtype}"), "copy", move |env| body(env, dtype)).tagged(&["quick"])
        };
        cases.push(case("layouts", layouts));
        cases.push(case("transpositions", transpositions));
    }
    cases
}
