//! Cases of the family `experts`.

use crate::data::{Mem, Placed, compare, representable};
use crate::env::{Env, Outcome};
use crate::suite::Case;
use tessl::nn::{CombineExperts, ExpertsDesc, ExpertsOp, GatherRows, SortByExpert};
use tessl::plan::Desc;
use tessl::{BufferKind, DType, Error, FaultKind, Gemm, Stream, Tensor};
use tessl_oracle::{ByExpert, Rng, bound, by_expert, combine};

const FLOATS: [DType; 3] = [DType::F32, DType::F16, DType::Bf16];

/// Tokens and their experts, with everything that decides how they are sorted or joined.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ExpertsProblem {
    /// Operation.
    pub(crate) op: ExpertsOp,
    /// Axes of tokens.
    pub(crate) outer: Vec<usize>,
    /// Experts of a token.
    pub(crate) each: usize,
    /// Experts.
    pub(crate) experts: usize,
    /// Elements of a row.
    pub(crate) n: usize,
    /// Type of the choices, or of the rows.
    pub(crate) dtype: DType,
    /// Type of the weights.
    pub(crate) weights: DType,
    /// There is a residual, and y is its memory.
    pub(crate) residual: Option<bool>,
    /// Elements of slack after each row.
    pub(crate) pad: usize,
    /// Elements from an aligned place to the first one.
    pub(crate) offset: usize,
    /// Kind of memory.
    pub(crate) kind: BufferKind,
    /// Seed of the contents.
    pub(crate) seed: u64,
}

fn text(e: Error) -> String {
    e.to_string()
}

impl ExpertsProblem {
    /// A sort of contiguous choices.
    pub(crate) fn sort(tokens: usize, each: usize, experts: usize) -> Self {
        ExpertsProblem {
            op: ExpertsOp::Sort,
            outer: vec![tokens],
            each,
            experts,
            n: 1,
            dtype: DType::U32,
            weights: DType::F32,
            residual: None,
            pad: 0,
            offset: 0,
            kind: BufferKind::Cold,
            seed: 1,
        }
    }

    /// A sum of contiguous, aligned rows.
    pub(crate) fn combine(tokens: usize, each: usize, n: usize, dtype: DType) -> Self {
        ExpertsProblem { op: ExpertsOp::Combine, n, dtype, ..ExpertsProblem::sort(tokens, each, 8) }
    }

    fn tokens(&self) -> usize {
        self.outer.iter().product()
    }

    /// Elements that are looked at.
    pub(crate) fn cost(&self) -> u64 {
        let each = if self.op == ExpertsOp::Sort { self.experts + 1 } else { self.n };
        (self.tokens() as u64).saturating_mul(self.each as u64).saturating_mul(each as u64)
    }

    /// Rows of the last axis with slack behind each, and one more element behind each plane.
    fn placed(&self, dtype: DType, last: usize) -> Placed {
        let shape: Vec<usize> = self.outer.iter().copied().chain([last]).collect();
        let mut strides = vec![1; shape.len()];
        let mut reach = (last + self.pad).max(1);
        for axis in (0..self.outer.len()).rev() {
            strides[axis] = reach;
            reach = reach * self.outer[axis].max(1) + usize::from(self.pad > 0);
        }
        Placed::new(dtype, &shape, &strides, self.offset)
    }

    /// Runs the problem twice and compares: every element, slack, bits.
    pub(crate) fn check(&self, env: &Env) -> Result<(), String> {
        let check = |mem: &mut Mem<'_>| match self.op {
            ExpertsOp::Sort => self.check_sort(mem),
            _ => self.check_combine(mem),
        };
        Mem::with(env, self.kind, check).map_err(|e| format!("{e}\n  {self:?}"))
    }

    fn check_sort(&self, mem: &mut Mem<'_>) -> Result<(), String> {
        let mut rng = Rng::new(self.seed);
        let choices = self.tokens() * self.each;
        // Some experts get many choices, some none.
        let most = 1 + rng.below(self.experts.max(1));
        let chosen: Vec<f64> = (0..choices).map(|_| (self.experts - 1 - rng.below(most)) as f64).collect();
        let (mut experts, mut places) = (self.placed(self.dtype, self.each), self.placed(DType::U32, self.each));
        let flat = |n: usize| Placed::new(DType::U32, &[n], &[1], self.offset);
        let (mut offsets, mut tokens) = (flat(self.experts + 1), flat(choices));
        [&mut experts, &mut places, &mut offsets, &mut tokens].into_iter().try_for_each(|p| p.allocate(mem))?;
        experts.fill_input(mem, |at| chosen[at])?;
        #[allow(clippy::cast_possible_truncation)] // Experts are few.
        let ids: Vec<i64> = chosen.iter().map(|&e| e as i64).collect();
        let want = by_expert(&ids, self.each.max(1), self.experts);
        let views = [experts.view()?, offsets.view()?, tokens.view()?, places.view()?];
        for turn in 0..2 {
            for place in [&offsets, &tokens, &places] {
                place.fill_output(mem, |_| 4e9)?;
            }
            let op = SortByExpert::new(&views[0], &views[1], &views[2], &views[3]);
            run(&op.desc().map(Desc::Experts), mem, turn, |stream| match stream {
                Some(stream) => op.run_on(stream),
                None => op.run(),
            })?;
            if !mem.env.computes {
                continue;
            }
            let number = |at: Option<usize>| (at.expect("every choice has a place") as f64, 0.0);
            compare(DType::U32, &offsets.fetch_output()?, &[self.experts + 1], |at| number(Some(want.offsets[at])))?;
            compare(DType::U32, &tokens.fetch_output()?, &[choices], |at| number(Some(want.tokens[at])))?;
            compare(DType::U32, &places.fetch_output()?, views[3].shape(), |at| number(want.places[at]))?;
        }
        Ok(())
    }

    fn check_combine(&self, mem: &mut Mem<'_>) -> Result<(), String> {
        let mut rng = Rng::new(self.seed);
        let (tokens, each, n) = (self.tokens(), self.each, self.n);
        let count = tokens * each + 3;
        let mut draw = |count: usize, dtype: DType| -> Vec<f64> {
            (0..count).map(|_| representable(dtype, rng.normal())).collect()
        };
        let (x, w, old) =
            (draw(count * n, self.dtype), draw(tokens * each, self.weights), draw(tokens * n, self.dtype));
        let places: Vec<usize> = (0..tokens * each).map(|_| rng.below(count)).collect();
        let mut rows = Placed::new(self.dtype, &[count, n], &[n + self.pad, 1], self.offset);
        let mut at = self.placed(DType::U32, each);
        let mut weights = self.placed(self.weights, each);
        let (mut residual, mut y) = (self.placed(self.dtype, n), self.placed(self.dtype, n));
        [&mut rows, &mut at, &mut weights, &mut residual, &mut y].into_iter().try_for_each(|p| p.allocate(mem))?;
        rows.fill_input(mem, |i| x[i])?;
        at.fill_input(mem, |i| places[i] as f64)?;
        weights.fill_input(mem, |i| w[i])?;
        let views = [rows.view()?, at.view()?, weights.view()?, residual.view()?, y.view()?];
        let in_place = self.residual == Some(true);
        let output = if in_place { &residual } else { &y };
        let mut last: Option<Vec<u8>> = None;
        for turn in 0..2 {
            if in_place {
                residual.fill_output(mem, |i| old[i])?;
            } else {
                residual.fill_input(mem, |i| old[i])?;
                y.fill_output(mem, |_| f64::NAN)?;
            }
            let op = CombineExperts::new(&views[0], &views[1], &views[2], &views[if in_place { 3 } else { 4 }]);
            let op = if self.residual.is_some() { op.residual(&views[3]) } else { op };
            run(&op.desc().map(Desc::Experts), mem, turn, |stream| match stream {
                Some(stream) => op.run_on(stream),
                None => op.run(),
            })?;
            if !mem.env.computes {
                continue;
            }
            let bytes = output.fetch_output()?;
            if last.as_ref().is_some_and(|last| *last != bytes) {
                return Err("two runs differ".into());
            }
            let mut want = Vec::new();
            for t in 0..tokens {
                let (places, w) = (&places[t * each..][..each], &w[t * each..][..each]);
                let old = self.residual.map(|_| &old[t * n..][..n]);
                let sizes: Vec<f64> = x.iter().map(|x| x.abs()).collect();
                let (w_sizes, old_sizes): (Vec<f64>, Option<Vec<f64>>) =
                    (w.iter().map(|w| w.abs()).collect(), old.map(|old| old.iter().map(|x| x.abs()).collect()));
                let value = combine(&x, n, places, w, old);
                let size = combine(&sizes, n, places, &w_sizes, old_sizes.as_deref());
                want.extend(value.into_iter().zip(size).map(|(y, size)| (y, bound::sum(each + 1) * size)));
            }
            compare(self.dtype, &bytes, views[4].shape(), |at| want[at])?;
            last = Some(bytes);
        }
        Ok(())
    }
}

/// Runs an op on the memory's stream or the default one, and counts its plan row once.
fn run(
    desc: &tessl::Result<Desc>,
    mem: &mut Mem<'_>,
    turn: usize,
    call: impl Fn(Option<&mut Stream>) -> tessl::Result<()>,
) -> Result<(), String> {
    call(mem.stream.as_deref_mut()).map_err(text)?;
    match desc {
        Ok(desc @ Desc::Experts(d)) if turn == 0 && d.rows > 0 && d.n > 0 => mem.env.cover(desc),
        Ok(_) => Ok(()),
        Err(e) => Err(e.to_string()),
    }
}

/// Every problem class that takes a kernel or row of its own.
pub(crate) fn descs() -> Vec<Desc> {
    let sort = ExpertsDesc { op: ExpertsOp::Sort, rows: 6, each: 2, n: 8, dtype: DType::U32, align: 2 };
    let sums = FLOATS.into_iter().flat_map(|dtype| {
        [2, 7].map(|align| ExpertsDesc { op: ExpertsOp::Combine, rows: 6, each: 2, n: 33, dtype, align })
    });
    sums.chain([sort]).map(Desc::Experts).collect()
}

fn check_all(env: &Env, problems: Vec<ExpertsProblem>) -> Outcome {
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

/// Numbers of tokens around those of a threadgroup, and of experts around those that a grid has.
fn sorts(env: &Env) -> Outcome {
    let mut problems = Vec::new();
    for (i, tokens) in [0usize, 1, 2, 7, 127, 128, 129, 255, 256, 257, 700].into_iter().enumerate() {
        for (each, experts) in [(1, 1), (2, 8), (8, 60), (1, 128), (3, 5)] {
            let (pad, offset) = [(0, 0), (3, 1)][(i + each) % 2];
            let dtype = if i % 3 == 0 { DType::I32 } else { DType::U32 };
            let outer = if tokens == 7 * 100 { vec![7, 5, 20] } else { vec![tokens] };
            let seed = env.seed ^ (tokens * experts) as u64;
            problems.push(ExpertsProblem { outer, pad, offset, dtype, seed, ..ExpertsProblem::sort(1, each, experts) });
        }
    }
    problems.push(ExpertsProblem { each: 0, ..ExpertsProblem::sort(4, 1, 3) });
    let kinds = [BufferKind::Hot, BufferKind::Bump, BufferKind::External];
    let kinds = kinds.into_iter().filter(|&kind| Mem::available(env, kind));
    problems.extend(kinds.map(|kind| ExpertsProblem { kind, ..ExpertsProblem::sort(9, 2, 4) }));
    check_all(env, problems)
}

fn sums(env: &Env, dtype: DType) -> Outcome {
    let mut problems = Vec::new();
    for (i, n) in [1usize, 7, 8, 33, 256, 257, 1000, 4099].into_iter().enumerate() {
        for (outer, each) in [(vec![1], 2), (vec![5], 8), (vec![2, 3], 1), (vec![2, 3, 2], 4), (vec![3], 0)] {
            for residual in [None, Some(false), Some(true)] {
                let (pad, offset) = [(0, 0), (8, 8), (3, 1)][(i + each) % 3];
                let weights = if each % 4 == 0 { dtype } else { DType::F32 };
                let seed = env.seed ^ (n + each) as u64;
                let base = ExpertsProblem::combine(1, each, n, dtype);
                problems.push(ExpertsProblem { outer: outer.clone(), residual, pad, offset, weights, seed, ..base });
            }
        }
    }
    let kinds = [BufferKind::Hot, BufferKind::Bump, BufferKind::External];
    let kinds = kinds.into_iter().filter(|&kind| Mem::available(env, kind));
    problems.extend(kinds.map(|kind| ExpertsProblem { kind, ..ExpertsProblem::combine(4, 2, 77, dtype) }));
    check_all(env, problems)
}

/// Experts and places out of range: told, left out; everything else is as without them.
fn faults(env: &Env) -> Result<(), String> {
    let new = |shape: &[usize]| env.rt.from_slice(&vec![77u32; shape.iter().product()], shape).map_err(text);
    let told = |stream: &mut Stream, op: &str, bad: &[(u64, i64)]| -> Result<(), String> {
        match stream.synchronize() {
            Err(Error::Fault { op: label, kind: FaultKind::IndexOutOfRange, index, value })
                if label == op && bad.contains(&(index, value)) => {}
            other => return Err(format!("{op}: {other:?} instead of one of {bad:?}")),
        }
        stream.recover().map_err(text)
    };
    let ids = [2i64, 0, 3, 2, -1, 1];
    #[allow(clippy::cast_possible_truncation)] // Small numbers.
    let signed: Vec<i32> = ids.iter().map(|&id| id as i32).collect();
    let experts = env.rt.from_slice(&signed, &[3, 2]).map_err(text)?;
    let (offsets, tokens, places) = (new(&[4])?, new(&[6])?, new(&[3, 2])?);
    let mut stream = env.rt.stream().map_err(text)?;
    SortByExpert::new(&experts, &offsets, &tokens, &places).run_on(&mut stream).map_err(text)?;
    // x has three rows, of which the second token asks for a fourth.
    let x = env.rt.from_slice(&[1.0f32, 2.0, 10.0, 20.0, 100.0, 200.0], &[3, 2]).map_err(text)?;
    let at = env.rt.from_slice(&[0u32, 2, 1, 3, 1, 1], &[3, 2]).map_err(text)?;
    let w = env.rt.from_slice(&[1.0f32; 6], &[3, 2]).map_err(text)?;
    let y = env.rt.from_slice(&[-1.0f32; 6], &[3, 2]).map_err(text)?;
    if !env.computes {
        stream.synchronize().map_err(text)?;
        return CombineExperts::new(&x, &at, &w, &y).run().map_err(text);
    }
    told(&mut stream, "sort_by_expert", &[(2, 3), (4, -1)])?;
    let want = by_expert(&ids, 2, 3);
    let got = [&offsets, &tokens, &places].map(|t| t.read::<u32>().map_err(text));
    let [got_offsets, got_tokens, got_places] = got;
    let word = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
    let ByExpert { offsets, tokens, places } = want;
    let right = got_offsets? == offsets.into_iter().map(word).collect::<Vec<_>>()
        && got_tokens? == tokens.into_iter().map(word).chain([77, 77]).collect::<Vec<_>>()
        && got_places? == places.into_iter().map(|p| p.map_or(u32::MAX, word)).collect::<Vec<_>>();
    if !right {
        return Err("a sort with wrong experts left something else".into());
    }
    CombineExperts::new(&x, &at, &w, &y).run_on(&mut stream).map_err(text)?;
    told(&mut stream, "combine_experts", &[(3, 3)])?;
    let got = y.read::<f32>().map_err(text)?;
    if got == [101.0, 202.0, -1.0, -1.0, 20.0, 40.0] { Ok(()) } else { Err(format!("{got:?}")) }
}

/// A layer of experts from scores to sums: sort, gather, grouped product with offsets on the device, combine.
fn layer(env: &Env, dtype: DType) -> Result<(), String> {
    let (tokens, each, experts, n) = (37, 2, 5, 24);
    let mut rng = Rng::new(env.seed);
    let mut small = |count: usize| -> Vec<f64> { (0..count).map(|_| rng.integer(-2, 2)).collect() };
    let (x, matrices) = (small(tokens * n), small(experts * n * n));
    let weights: Vec<f64> = small(tokens * each);
    let chosen: Vec<f64> = (0..tokens * each).map(|_| rng.below(experts) as f64).collect();
    let tensor = |dtype: DType, shape: &[usize], values: &[f64]| -> Result<Tensor, String> {
        let t = env.rt.uninit(dtype, shape, BufferKind::Cold).map_err(text)?;
        crate::data::write_bytes(&t, &crate::data::encode(dtype, values.iter().copied()), None)?;
        Ok(t)
    };
    let x_t = tensor(dtype, &[tokens, n], &x)?;
    let b_t = tensor(dtype, &[experts, n, n], &matrices)?;
    let (w_t, ids) = (tensor(DType::F32, &[tokens, each], &weights)?, tensor(DType::U32, &[tokens, each], &chosen)?);
    let new = |dtype, shape: &[usize]| env.rt.zeros(dtype, shape, BufferKind::Cold).map_err(text);
    let (offsets, order, places) =
        (new(DType::U32, &[experts + 1])?, new(DType::U32, &[tokens * each])?, new(DType::U32, &[tokens, each])?);
    let (sorted, answers) = (new(dtype, &[tokens * each, n])?, new(dtype, &[tokens * each, n])?);
    let y = new(dtype, &[tokens, n])?;
    SortByExpert::new(&ids, &offsets, &order, &places).run().map_err(text)?;
    GatherRows::new(&x_t, &order, &sorted).run().map_err(text)?;
    Gemm::new(&sorted, &b_t, &answers).grouped(&offsets).run().map_err(text)?;
    CombineExperts::new(&answers, &places, &w_t, &y).run().map_err(text)?;
    if !env.computes {
        return Ok(());
    }
    // Whole numbers below 256 before the sum: exact in every type.
    let bytes = crate::data::read_bytes(&y)?;
    compare(dtype, &bytes, &[tokens, n], |at| {
        let (t, i) = (at / n, at % n);
        let of = |j: usize| {
            #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // Small whole numbers.
            let b = &matrices[chosen[t * each + j] as usize * n * n..][..n * n];
            (0..n).map(|k| x[t * n + k] * b[k * n + i]).sum::<f64>()
        };
        ((0..each).map(|j| weights[t * each + j] * of(j)).sum(), 0.0)
    })
}

/// Every case of this family.
pub(crate) fn cases() -> Vec<Case> {
    let fixed = |name: &str, op, body: fn(&Env) -> Result<(), String>| {
        Case::fixed(name.to_owned(), op, 3000, move |env| body(env).into()).tagged(&["quick"])
    };
    let sort = Case::new("sort_by_expert/shapes", "sort_by_expert", sorts).tagged(&["quick"]);
    let mut cases = vec![sort, fixed("sort_by_expert/faults", "sort_by_expert", faults)];
    for dtype in FLOATS {
        let name = format!("combine_experts/shapes/{dtype}");
        cases.push(Case::new(name, "combine_experts", move |env| sums(env, dtype)).tagged(&["quick"]));
        let (name, cost) = (format!("combine_experts/layer/{dtype}"), 100_000);
        let case = Case::fixed(name, "combine_experts", cost, move |env| layer(env, dtype).into());
        cases.push(case.tagged(&["quick"]));
    }
    cases
}

/// A random problem; both operations and every type in turn.
pub(crate) fn random(rng: &mut Rng, turn: usize) -> ExpertsProblem {
    let aligned = (turn / 4).is_multiple_of(2);
    let n = if aligned { 64 * rng.between(1, 8) } else { rng.between(1, 500) };
    let each = rng.between(1, 8);
    let mut p = match turn % 4 {
        3 => ExpertsProblem::sort(1, each, rng.between(1, 70)),
        i => ExpertsProblem::combine(1, each, n, FLOATS[i]),
    };
    p.outer = (0..rng.between(0, 3)).map(|_| rng.between(1, 6)).collect();
    if p.op == ExpertsOp::Sort {
        p.dtype = *rng.pick(&[DType::U32, DType::I32]);
    } else {
        p.weights = *rng.pick(&[DType::F32, p.dtype]);
        p.residual = *rng.pick(&[None, Some(false), Some(true)]);
    }
    if !aligned {
        (p.pad, p.offset) = (rng.below(9), rng.below(4));
    }
    p.kind = *rng.pick(&[BufferKind::Cold, BufferKind::Hot, BufferKind::Bump]);
    p.seed = rng.bits();
    p
}
