//! Operations on rows: where operands lie, running an op twice, comparing every element.
//!
//! Lists of cases walk axes whose lengths share no factor with the step of `Env::thin`.

use crate::data::{Mem, Placed, compare, decode, representable};
use crate::env::{Env, Outcome};
use tessl::plan::Desc;
use tessl::{BufferKind, DType, Stream, Tensor};
use tessl_oracle::Rng;

/// The rows of an operation and where they lie in memory.
#[derive(Clone, Debug, PartialEq)]
pub struct RowCase {
    /// Axes before the last.
    pub outer: Vec<usize>,
    /// Elements of a row.
    pub n: usize,
    /// Elements of slack after each row, by operand in turn.
    pub pads: [usize; 3],
    /// Elements from an aligned place to the first one.
    pub offset: usize,
    /// Storage order of the outer axes of inputs is reversed.
    pub permuted: bool,
    /// The last input has one row for all.
    pub broadcast: bool,
    /// The output is this input.
    pub in_place: Option<usize>,
    /// Kind of memory.
    pub kind: BufferKind,
    /// Seed of the contents.
    pub seed: u64,
}

/// What an operand is: its type, and whether it has whole rows, one element for each, or one row for all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operand {
    Rows(DType),
    Column(DType),
    Vector(DType),
    /// Rows of another length.
    Some(DType, usize),
}

impl Operand {
    fn dtype(self) -> DType {
        match self {
            Operand::Rows(dtype) | Operand::Column(dtype) | Operand::Vector(dtype) | Operand::Some(dtype, _) => dtype,
        }
    }
}

/// Builds the op from its operands (inputs, then outputs), runs it and says what it was.
pub(crate) type Run<'a> = &'a dyn Fn(&[Tensor], Option<&mut Stream>) -> tessl::Result<Desc>;

/// Exact value and error of every element of an output.
pub(crate) type Wanted = Vec<(f64, f64)>;

/// Those of each output, from the inputs.
type Want<'a> = &'a dyn Fn(&[Vec<f64>]) -> Vec<Wanted>;

impl RowCase {
    /// `rows` contiguous, aligned rows of `n` elements.
    pub fn new(rows: usize, n: usize) -> Self {
        RowCase {
            outer: vec![rows],
            n,
            pads: [0; 3],
            offset: 0,
            permuted: false,
            broadcast: false,
            in_place: None,
            kind: BufferKind::Cold,
            seed: 1,
        }
    }

    /// Elements of an operand.
    pub fn cost(&self) -> u64 {
        self.outer.iter().fold(self.n as u64, |p, &x| p.saturating_mul(x as u64))
    }

    fn shape(&self, operand: Operand) -> Vec<usize> {
        match operand {
            Operand::Rows(_) => self.outer.iter().copied().chain([self.n]).collect(),
            Operand::Column(_) => self.outer.clone(),
            Operand::Vector(_) => vec![self.n],
            Operand::Some(_, n) => self.outer.iter().copied().chain([n]).collect(),
        }
    }

    fn placed(&self, operand: Operand, index: usize, permuted: bool, broadcast: bool) -> Placed {
        let shape = self.shape(operand);
        if let Operand::Vector(dtype) = operand {
            return Placed::new(dtype, &shape, &[1], self.offset);
        }
        let row = match operand {
            Operand::Rows(_) => self.n,
            Operand::Some(_, n) => n,
            _ => 1,
        };
        let mut strides = vec![usize::from(!matches!(operand, Operand::Column(_))); shape.len()];
        let mut reach = (row + self.pads[index % 3]).max(1);
        let order: Vec<usize> = (0..self.outer.len()).collect();
        let order: Vec<usize> = if permuted { order } else { order.into_iter().rev().collect() };
        for axis in order.into_iter().filter(|_| !broadcast) {
            strides[axis] = reach;
            // An element between planes keeps axes from joining.
            reach = reach * self.outer[axis].max(1) + usize::from(permuted);
        }
        if broadcast {
            strides[..self.outer.len()].fill(0);
        }
        Placed::new(operand.dtype(), &shape, &strides, self.offset)
    }

    /// Runs an op twice and compares: values, slack, bits. `value(rng, input)` draws the contents, `want(inputs)` gives
    /// exact value and error of every element.
    ///
    /// # Errors
    /// What was wrong, with the case.
    pub(crate) fn check(
        &self,
        env: &Env,
        (inputs, output): (&[Operand], Operand),
        value: impl Fn(&mut Rng, usize) -> f64,
        run: Run<'_>,
        want: impl Fn(&[Vec<f64>]) -> Wanted,
    ) -> Result<(), String> {
        self.check_outputs(env, (inputs, &[output]), value, run, |data| vec![want(data)])
    }

    /// The same for several outputs, of which the first may be an input.
    ///
    /// # Errors
    /// What was wrong, with the case.
    pub(crate) fn check_outputs(
        &self,
        env: &Env,
        operands: (&[Operand], &[Operand]),
        value: impl Fn(&mut Rng, usize) -> f64,
        run: Run<'_>,
        want: impl Fn(&[Vec<f64>]) -> Vec<Wanted>,
    ) -> Result<(), String> {
        let body = |mem: &mut Mem<'_>| self.check_in(mem, operands, &value, run, &want);
        Mem::with(env, self.kind, body).map_err(|e| format!("{e}\n  {self:?}"))
    }

    fn check_in(
        &self,
        mem: &mut Mem<'_>,
        (inputs, outputs): (&[Operand], &[Operand]),
        value: &dyn Fn(&mut Rng, usize) -> f64,
        run: Run<'_>,
        want: Want<'_>,
    ) -> Result<(), String> {
        let mut rng = Rng::new(self.seed);
        let in_place = self.in_place.filter(|&i| i < inputs.len() && inputs[i] == outputs[0]);
        let last = inputs.len() - 1;
        let mut places = Vec::new();
        let mut data: Vec<Vec<f64>> = Vec::new();
        for (i, &operand) in inputs.iter().enumerate() {
            let vector = matches!(operand, Operand::Vector(_));
            let broadcast = self.broadcast && i == last && in_place != Some(i) && !vector;
            let place = self.placed(operand, i, self.permuted, broadcast);
            let row = if matches!(operand, Operand::Rows(_)) { self.n } else { 1 };
            let distinct = if broadcast { place.len().min(row) } else { place.len() };
            let values: Vec<f64> = (0..distinct).map(|_| representable(operand.dtype(), value(&mut rng, i))).collect();
            data.push((0..place.len()).map(|at| values[at % distinct.max(1)]).collect());
            places.push(place);
        }
        let numbered = outputs.iter().enumerate();
        let mut own: Vec<Placed> =
            numbered.map(|(i, &output)| self.placed(output, inputs.len() + i, false, false)).collect();
        places.iter_mut().chain(&mut own).try_for_each(|p| p.allocate(mem))?;
        let targets: Vec<&Placed> = own
            .iter()
            .enumerate()
            .map(|(i, place)| in_place.filter(|_| i == 0).map_or(place, |input| &places[input]))
            .collect();
        let views: Vec<Tensor> =
            places.iter().chain(targets.iter().copied()).map(Placed::view).collect::<Result<_, _>>()?;
        let mut runs = Vec::new();
        for turn in 0..2 {
            for (i, place) in places.iter().enumerate() {
                if in_place == Some(i) {
                    place.fill_output(mem, |at| data[i][at])?;
                } else {
                    place.fill_input(mem, |at| data[i][at])?;
                }
            }
            own.iter().try_for_each(|y| y.fill_output(mem, |_| f64::NAN))?;
            let desc = run(&views, mem.stream.as_deref_mut()).map_err(|e| e.to_string())?;
            if turn == 0 && self.cost() > 0 {
                mem.env.cover(&desc)?;
            }
            if mem.env.computes {
                runs.push(targets.iter().map(|y| y.fetch_output()).collect::<Result<Vec<_>, _>>()?);
            }
        }
        let [first, second] = runs.as_slice() else { return Ok(()) };
        if first != second {
            return Err("two runs differ".into());
        }
        for (i, (want, &output)) in want(&data).iter().zip(outputs).enumerate() {
            compare(output.dtype(), &first[i], &self.shape(output), |at| want[at])
                .map_err(|e| if i == 0 { e } else { format!("output {i}: {e}") })?;
        }
        Ok(())
    }

    /// A random case of at most `limit` elements; every other `turn` is aligned to 128 bytes.
    pub(crate) fn random(env: &Env, rng: &mut Rng, turn: usize, limit: u64) -> Self {
        let n = match rng.below(4) {
            0 => rng.between(1, 40),
            1 => (1usize << rng.between(3, 12)) - 2 + rng.below(5),
            2 => 8 * rng.between(1, 200),
            _ => rng.between(1, 3000),
        };
        let aligned = turn.is_multiple_of(2);
        let mut p = RowCase::new(rng.between(1, 9), if aligned { n.next_multiple_of(64) } else { n });
        if !aligned {
            p.pads = [(); 3].map(|()| *rng.pick(&[0, 1, 3, 8]));
            p.offset = *rng.pick(&[0, 1, 2, 8]);
            p.outer = (0..rng.between(0, 3)).map(|_| rng.between(1, 6)).collect();
            p.permuted = rng.one_in(2);
        }
        p.broadcast = rng.one_in(4);
        p.in_place = *rng.pick(&[None, None, Some(0), Some(1)]);
        let kinds = [BufferKind::Cold, BufferKind::Cold, BufferKind::Hot, BufferKind::Bump, BufferKind::External];
        p.kind = *rng.pick(&kinds);
        if !Mem::available(env, p.kind) {
            p.kind = BufferKind::Cold;
        }
        if rng.one_in(40) {
            p.outer = vec![2, 0];
        }
        p.seed = rng.bits();
        while p.cost() > limit {
            p.n = p.n / 2 + 1;
        }
        p
    }

    /// Simpler cases, the simplest first.
    pub(crate) fn simpler(&self) -> Vec<Self> {
        let keep = |f: &dyn Fn(&mut RowCase)| {
            let mut p = self.clone();
            f(&mut p);
            p
        };
        let mut all = vec![
            keep(&|p| p.outer = vec![1]),
            keep(&|p| p.outer.truncate(1)),
            keep(&|p| p.kind = BufferKind::Cold),
            keep(&|p| p.pads = [0; 3]),
            keep(&|p| p.offset = 0),
            keep(&|p| p.permuted = false),
            keep(&|p| p.broadcast = false),
            keep(&|p| p.in_place = None),
            keep(&|p| p.n = (p.n / 2).max(1)),
            keep(&|p| p.n = (p.n - 1).max(1)),
        ];
        all.retain(|p| p != self);
        all
    }
}

/// Lengths on both sides of vectors, threadgroups and chunks.
pub(crate) fn sizes(seed: u64) -> Vec<RowCase> {
    let mut lengths: Vec<usize> = (1..=35).collect();
    lengths.extend([64, 128, 256, 512, 1024, 4096].into_iter().flat_map(|n| n - 2..=n + 2));
    lengths.extend([1000, 32_767, 32_768, 70_001]);
    let case = |n: usize| {
        let rows = [1, 2, 3, 5, 17][n % 5].min(1 + 5000 / n);
        RowCase { seed: seed ^ n as u64, pads: [n % 2, 0, n % 3], ..RowCase::new(rows, n) }
    };
    lengths.into_iter().map(case).chain([1000, 9001].map(|rows| RowCase::new(rows, 3))).collect()
}

/// Strides, offsets, nested and permuted axes, broadcast and in place; thinned here and again by [`check_all`], because
/// every kernel of every family walks this list.
pub(crate) fn views(env: &Env, inputs: usize) -> Vec<RowCase> {
    let mut cases = Vec::new();
    let places = [None, Some(0), Some(1)];
    for n in [1, 8, 33, 300] {
        for (pads, offset) in
            [([0, 0, 0], 0), ([3, 0, 1], 0), ([0, 5, 2], 1), ([8, 8, 8], 0), ([1, 2, 3], 3), ([64, 64, 64], 8)]
        {
            for outer in [vec![], vec![5], vec![2, 1, 3], vec![3, 2, 4]] {
                for (permuted, broadcast) in [(false, false), (true, false), (false, true)] {
                    for &in_place in &places[..=inputs] {
                        let base = RowCase::new(1, n);
                        cases.push(RowCase {
                            outer: outer.clone(),
                            pads,
                            offset,
                            permuted,
                            broadcast,
                            in_place,
                            ..base
                        });
                    }
                }
            }
        }
    }
    env.thin(cases)
}

/// Each kind of memory.
pub(crate) fn memory(env: &Env) -> Vec<RowCase> {
    let kinds = [BufferKind::Hot, BufferKind::Cold, BufferKind::Bump, BufferKind::External];
    let kinds = kinds.into_iter().filter(|&kind| Mem::available(env, kind));
    let cases = |kind| [(0, 128), (1, 128), (1, 77)].map(|(offset, n)| RowCase { kind, offset, ..RowCase::new(4, n) });
    kinds.flat_map(cases).collect()
}

/// Checks cases until the budget is used up, skipping those that are too large for what is left.
pub(crate) fn check_all(
    env: &Env,
    cases: impl IntoIterator<Item = RowCase>,
    check: impl Fn(&RowCase) -> Result<(), String>,
) -> Outcome {
    let mut left = env.budget;
    for case in env.thin(cases.into_iter().collect()) {
        if case.cost() > left {
            continue;
        }
        left -= case.cost();
        if let Err(message) = check(&case) {
            return Outcome::Failed(message);
        }
    }
    Outcome::Passed
}

/// Runs an op on small contiguous operands and returns the output, or nothing where nothing is computed.
///
/// # Errors
/// Text of the call's error.
pub(crate) fn small(
    env: &Env,
    inputs: &[(DType, &[usize], &[f64])],
    output: (DType, &[usize]),
    run: Run<'_>,
) -> Result<Option<Vec<f64>>, String> {
    Mem::with(env, BufferKind::Cold, |mem| {
        let contiguous = |dtype, shape: &[usize]| {
            let strides: Vec<usize> = (0..shape.len()).map(|i| shape[i + 1..].iter().product()).collect();
            Placed::new(dtype, shape, &strides, 0)
        };
        let mut places: Vec<Placed> = inputs.iter().map(|&(dtype, shape, _)| contiguous(dtype, shape)).collect();
        let mut y = contiguous(output.0, output.1);
        for (place, (_, _, values)) in places.iter_mut().zip(inputs) {
            place.allocate(mem)?;
            place.fill_input(mem, |at| values[at])?;
        }
        y.allocate(mem)?;
        y.fill_output(mem, |_| f64::NAN)?;
        let views: Vec<Tensor> = places.iter().chain([&y]).map(Placed::view).collect::<Result<_, _>>()?;
        run(&views, mem.stream.as_deref_mut()).map_err(|e| e.to_string())?;
        if !env.computes {
            return Ok(None);
        }
        let bytes = y.fetch_output()?;
        Ok(Some((0..y.len()).map(|at| decode(output.0, &bytes, at)).collect()))
    })
}
