//! Cases of the family `cache`.

mod known;

use crate::data::{Mem, Placed, compare, decode, representable};
use crate::env::{Env, Outcome};
use crate::suite::Case;
use tessl::nn::{CacheDesc, CacheOp, KvStore, RingDensify, Start};
use tessl::plan::Desc;
use tessl::{BufferKind, DType, Error, Scalar, Stream, Tensor};
use tessl_oracle::{Rng, paged_row, slot};

const FLOATS: [DType; 3] = [DType::F32, DType::F16, DType::Bf16];

/// How a cache keeps tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Token p in slot p.
    Plain,
    /// Token p in slot p modulo the capacity.
    Ring,
    /// In pages of this many.
    Paged(usize),
}

/// Who knows the first position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum From {
    /// The host.
    Host,
    /// The device, one for all sequences.
    Device,
    /// The device, one for each.
    Each,
}

/// A store or a densify with everything that decides how it is done.
#[derive(Clone, Debug, PartialEq)]
pub struct CacheProblem {
    /// Operation.
    pub op: CacheOp,
    /// Element type.
    pub dtype: DType,
    /// Sequences.
    pub batch: usize,
    /// Tokens of each.
    pub tokens: usize,
    /// Tokens that each has room for.
    pub capacity: usize,
    /// Heads.
    pub heads: usize,
    /// Elements of a row.
    pub dim: usize,
    /// How the cache keeps them.
    pub cache: Kind,
    /// Who knows the first position.
    pub from: From,
    /// Keys and values.
    pub pair: bool,
    /// The cache keeps codes of 8 bits.
    pub coded: bool,
    /// Elements of slack after each row.
    pub pad: usize,
    /// Elements from an aligned place to the first one.
    pub offset: usize,
    /// Kind of memory.
    pub kind: BufferKind,
    /// Seed of the contents.
    pub seed: u64,
}

impl CacheProblem {
    /// A store of `tokens` tokens of one sequence, contiguous and aligned.
    pub fn new(dtype: DType, tokens: usize, capacity: usize, heads: usize, dim: usize) -> Self {
        CacheProblem {
            op: CacheOp::Store,
            dtype,
            batch: 1,
            tokens,
            capacity,
            heads,
            dim,
            cache: Kind::Plain,
            from: From::Host,
            pair: false,
            coded: false,
            pad: 0,
            offset: 0,
            kind: BufferKind::Cold,
            seed: 1,
        }
    }

    /// Elements of the cache.
    pub fn cost(&self) -> u64 {
        [self.batch, self.capacity + self.tokens, self.heads, self.dim].iter().fold(2, |p, &x| p * x as u64)
    }

    /// Runs the problem twice and compares: values, slack, bits.
    ///
    /// # Errors
    /// What was wrong, with the problem.
    pub fn check(&self, env: &Env) -> Result<(), String> {
        Mem::with(env, self.kind, |mem| self.check_in(mem)).map_err(|e| format!("{e}\n  {self:?}"))
    }

    /// An operand of keys (0) or of values (1), whose strides differ.
    fn placed(&self, dtype: DType, shape: [usize; 4], which: usize) -> Placed {
        let row = self.dim + self.pad + 16 * which;
        let token = row * shape[2] + self.pad;
        Placed::new(dtype, &shape, &[token * shape[1].max(1) + self.pad, token, row, 1], self.offset)
    }

    /// Compares codes and scales; `kept` says which row of the cache has which of the rows, from where on.
    fn check_codes(
        &self,
        rows: &[f64],
        [codes, scales]: [&[u8]; 2],
        kept: Vec<(usize, usize)>,
        shape: [usize; 4],
    ) -> Result<(), String> {
        let (heads, dim) = (self.heads, self.dim);
        let mut want = vec![(-77.0, 0.0); shape.iter().product()];
        let mut factors = vec![(-3.0, 0.0); shape[..3].iter().product()];
        for (to, from) in kept {
            for h in 0..heads {
                let (scale, exact) = tessl_oracle::codes(&rows[from + h * dim..][..dim]);
                // A largest element and its division round once each.
                factors[to * heads + h] = (scale, scale.abs() * 2f64.powi(-23));
                for (d, code) in exact.into_iter().enumerate() {
                    // Half a step, and the roundings of the inverse and of the product.
                    want[(to * heads + h) * dim + d] = (code, 0.5 + 127.0 * 2f64.powi(-22));
                }
            }
        }
        compare(DType::F32, scales, &shape[..3], |at| factors[at])?;
        for (at, (code, error)) in want.into_iter().enumerate() {
            let got = decode(DType::I8, codes, at);
            if (got - code).abs() > error {
                return Err(format!("code {at} is {got} instead of {code}"));
            }
        }
        Ok(())
    }

    /// Scales of keys (0) or of values (1).
    fn scales(&self, shape: &[usize], which: usize) -> Placed {
        let head = 1 + self.pad % 2 + which;
        let token = head * shape[2] + self.pad;
        Placed::new(DType::F32, shape, &[token * shape[1].max(1) + self.pad, token, head], self.offset)
    }

    fn check_in(&self, mem: &mut Mem<'_>) -> Result<(), String> {
        let mut rng = Rng::new(self.seed);
        let page = if let Kind::Paged(page) = self.cache { page } else { self.capacity };
        let (width, paged) = (self.capacity.div_ceil(page.max(1)), matches!(self.cache, Kind::Paged(_)));
        let token_shape = [self.batch, self.tokens, self.heads, self.dim];
        let cache_shape = if paged {
            [self.batch * width + 1, page, self.heads, self.dim]
        } else {
            [self.batch, self.capacity, self.heads, self.dim]
        };
        let room = if self.cache == Kind::Ring { 3 * self.capacity } else { self.capacity - self.tokens };
        let starts: Vec<usize> = (0..self.batch).map(|_| rng.below(room + 1)).collect();
        let starts: Vec<usize> = starts.iter().map(|&s| if self.from == From::Each { s } else { starts[0] }).collect();
        let mut table: Vec<usize> = (0..self.batch * width).collect();
        (1..table.len()).for_each(|i| table.swap(i, rng.below(i + 1)));

        let count = 1 + usize::from(self.pair);
        let mut fill = |shape: [usize; 4]| -> Vec<f64> {
            let mut value = || match self.dtype {
                DType::I8 => rng.integer(-127, 127),
                dtype => representable(dtype, rng.normal()),
            };
            (0..shape.iter().product()).map(|_| value()).collect()
        };
        let rows: Vec<Vec<f64>> = (0..count).map(|_| fill(token_shape)).collect();
        let kept = if self.coded { DType::I8 } else { self.dtype };
        let caches: Vec<Vec<f64>> = if self.coded {
            vec![vec![-77.0; cache_shape.iter().product()]; count]
        } else {
            (0..count).map(|_| fill(cache_shape)).collect()
        };
        let mut row_places: Vec<Placed> = (0..count).map(|i| self.placed(self.dtype, token_shape, i)).collect();
        let mut cache_places: Vec<Placed> = (0..count).map(|i| self.placed(kept, cache_shape, i)).collect();
        let mut scale_places: Vec<Placed> = (0..count).map(|i| self.scales(&cache_shape[..3], i)).collect();
        let places = row_places.iter_mut().chain(&mut cache_places).chain(&mut scale_places);
        for place in places {
            place.allocate(mem)?;
        }
        let scales: Vec<Tensor> = scale_places.iter().map(Placed::view).collect::<Result<_, _>>()?;
        let (t, c): (Vec<Tensor>, Vec<Tensor>) = (
            row_places.iter().map(Placed::view).collect::<Result<_, _>>()?,
            cache_places.iter().map(Placed::view).collect::<Result<_, _>>()?,
        );
        let word = |x: &usize| u32::try_from(*x).unwrap_or(0);
        let text = |e: Error| e.to_string();
        let numbers = |x: &[usize], shape: &[usize]| {
            mem.env.rt.from_slice(&x.iter().map(word).collect::<Vec<_>>(), shape).map_err(text)
        };
        let (each, one) = (numbers(&starts, &[self.batch])?, numbers(&starts[..1], &[1])?);
        let table_tensor = numbers(&table, &[self.batch, width])?;
        let start = match self.from {
            From::Host => Start::from(word(&starts[0])),
            From::Device => Start::At(Scalar::Device(&one)),
            From::Each => Start::Each(&each),
        };
        // Where token t of a sequence is kept.
        let place = |b: usize, t: usize| {
            let position = starts[b] + t;
            let row = match self.cache {
                Kind::Paged(page) => paged_row(position, page, &table[b * width..][..width]),
                kind => slot(position, self.capacity, kind == Kind::Ring).map(|slot| b * self.capacity + slot),
            };
            row.expect("starts are drawn so that tokens fit")
        };
        let run = |stream: Option<&mut Stream>| -> tessl::Result<CacheDesc> {
            macro_rules! run {
                ($op:expr) => {{
                    let op = $op;
                    match stream {
                        Some(stream) => op.run_on(stream)?,
                        None => op.run()?,
                    }
                    op.desc()
                }};
            }
            if self.op == CacheOp::Densify {
                return run!(RingDensify::new(&c[0], start, &t[0]));
            }
            let op = if self.pair {
                KvStore::pair(&t[0], &c[0], &t[1], &c[1], start)
            } else {
                KvStore::new(&t[0], &c[0], start)
            };
            let op = match (self.coded, self.pair) {
                (false, _) => op,
                (true, false) => op.k_scales(&scales[0]),
                (true, true) => op.k_scales(&scales[0]).v_scales(&scales[1]),
            };
            match self.cache {
                Kind::Plain => run!(op),
                Kind::Ring => run!(op.ring()),
                Kind::Paged(_) => run!(op.table(&table_tensor)),
            }
        };
        let mut last: Option<Vec<Vec<u8>>> = None;
        let outputs = if self.op == CacheOp::Store { &cache_places } else { &row_places };
        for _ in 0..2 {
            for i in 0..count {
                if self.op == CacheOp::Store {
                    row_places[i].fill_input(mem, |at| rows[i][at])?;
                    cache_places[i].fill_output(mem, |at| caches[i][at])?;
                    scale_places[i].fill_output(mem, |_| -3.0)?;
                } else {
                    cache_places[i].fill_input(mem, |at| caches[i][at])?;
                    row_places[i].fill_output(mem, |_| f64::NAN)?;
                }
            }
            let desc = run(mem.stream.as_deref_mut()).map_err(text)?;
            if desc.rows > 0 && desc.n > 0 {
                mem.env.cover(&Desc::Cache(desc))?;
            }
            if !mem.env.computes {
                continue;
            }
            let mut bytes: Vec<Vec<u8>> = outputs.iter().map(Placed::fetch_output).collect::<Result<_, _>>()?;
            if self.coded {
                bytes.extend(scale_places.iter().map(Placed::fetch_output).collect::<Result<Vec<_>, _>>()?);
            }
            if last.as_ref().is_some_and(|last| *last != bytes) {
                return Err("two runs differ".into());
            }
            last = Some(bytes);
        }
        let row = self.heads * self.dim;
        if self.coded {
            let Some(bytes) = last else { return Ok(()) };
            let (codes, scales) = bytes.split_at(count);
            return (0..count).try_for_each(|i| {
                let tokens = (0..self.batch).flat_map(|b| (0..self.tokens).map(move |t| (b, t)));
                let kept = tokens.map(|(b, t)| (place(b, t), (b * self.tokens + t) * row));
                self.check_codes(&rows[i], [&codes[i], &scales[i]], kept.collect(), cache_shape)
            });
        }
        for (i, bytes) in last.into_iter().flatten().enumerate() {
            let (mut want, shape) = if self.op == CacheOp::Store {
                (caches[i].clone(), cache_shape)
            } else {
                (rows[i].clone(), token_shape)
            };
            for (b, t) in (0..self.batch).flat_map(|b| (0..self.tokens).map(move |t| (b, t))) {
                let (token, kept) = ((b * self.tokens + t) * row, place(b, t) * row);
                if self.op == CacheOp::Store {
                    want[kept..kept + row].copy_from_slice(&rows[i][token..token + row]);
                } else {
                    want[token..token + row].copy_from_slice(&caches[i][kept..kept + row]);
                }
            }
            compare(self.dtype, &bytes, &shape, |at| (want[at], 0.0))?;
        }
        Ok(())
    }
}

/// Every problem class that takes a kernel or row of its own.
pub(crate) fn descs() -> Vec<Desc> {
    let all = CacheOp::ALL.into_iter().flat_map(|op| FLOATS.into_iter().flat_map(move |d| [(op, d, 2), (op, d, 7)]));
    let codes = [(CacheOp::Densify, DType::I8, 2), (CacheOp::Densify, DType::I8, 7)];
    let plain = all.chain(codes).map(|(op, dtype, align)| (op, dtype, false, align));
    let coded = FLOATS.map(|dtype| (CacheOp::Store, dtype, true, 7));
    let desc = |(op, dtype, coded, align)| CacheDesc { op, rows: 6, n: 64, dtype, coded, pair: false, align };
    plain.chain(coded).map(desc).map(Desc::Cache).collect()
}

fn shapes(env: &Env, op: CacheOp, dtype: DType) -> Outcome {
    let mut problems = Vec::new();
    for (i, dim) in [1, 8, 33, 64, 128, 500].into_iter().enumerate() {
        for (tokens, capacity) in [(1, 1), (1, 40), (5, 48), (33, 33), (7, 100)] {
            let kinds = [Kind::Plain, Kind::Ring, Kind::Paged(16), Kind::Paged(32), Kind::Paged(64)];
            let taken = |&(c, kind): &(usize, Kind)| match op {
                CacheOp::Densify => kind == Kind::Ring,
                _ => (i + c + tokens).is_multiple_of(2),
            };
            for (_, cache) in kinds.into_iter().enumerate().filter(taken) {
                let from = [From::Host, From::Device, From::Each][(i + tokens) % 3];
                let (pad, offset) = [(0, 0), (8, 8), (3, 1)][(i + capacity) % 3];
                let capacity =
                    if let Kind::Paged(page) = cache { usize::next_multiple_of(capacity, page) } else { capacity };
                let pair = op == CacheOp::Store && i % 2 == 0;
                let base = CacheProblem::new(dtype, tokens, capacity, 1 + i % 3, dim);
                let seed = env.seed ^ (i * tokens) as u64;
                if op == CacheOp::Store {
                    let plain =
                        CacheProblem { op, batch: 1 + i % 3, cache, from, pair, pad, offset, seed, ..base.clone() };
                    problems.push(CacheProblem { coded: true, ..plain });
                }
                problems.push(CacheProblem { op, batch: 1 + i % 3, cache, from, pair, pad, offset, seed, ..base });
            }
        }
    }
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

fn memory(env: &Env, op: CacheOp, dtype: DType) -> Outcome {
    let kinds = [BufferKind::Hot, BufferKind::Cold, BufferKind::Bump, BufferKind::External];
    let kinds = kinds.into_iter().filter(|&kind| Mem::available(env, kind));
    let cache = if op == CacheOp::Densify { Kind::Ring } else { Kind::Plain };
    let mut problems = kinds.flat_map(|kind| {
        [0, 1].map(|offset| {
            let coded = op == CacheOp::Store && offset == 1;
            CacheProblem { op, kind, offset, cache, coded, ..CacheProblem::new(dtype, 3, 20, 2, 48) }
        })
    });
    problems.try_for_each(|p| p.check(env)).into()
}

/// Every case of this family.
pub(crate) fn cases() -> Vec<Case> {
    let mut cases = known::cases();
    let codes = [(CacheOp::Densify, DType::I8)];
    for (op, dtype) in CacheOp::ALL.into_iter().flat_map(|op| FLOATS.map(|d| (op, d))).chain(codes) {
        let case = |label: &str, body: fn(&Env, CacheOp, DType) -> Outcome| {
            Case::new(format!("{}/{label}/{dtype}", op.name()), op.name(), move |env| body(env, op, dtype))
                .tagged(&["quick"])
        };
        cases.push(case("shapes", shapes));
        cases.push(case("memory", memory));
    }
    cases
}

/// A random problem; every kernel in turn.
pub(crate) fn random(rng: &mut Rng, turn: usize) -> CacheProblem {
    let op = CacheOp::ALL[turn % 2];
    let aligned = (turn / 6).is_multiple_of(2);
    let dim = if aligned { 64 * rng.between(1, 4) } else { rng.between(1, 200) };
    let tokens = rng.between(1, 20);
    let cache = match rng.below(5) {
        _ if op == CacheOp::Densify => Kind::Ring,
        0 | 1 => Kind::Plain,
        2 => Kind::Ring,
        _ => Kind::Paged([16, 32, 64][rng.below(3)]),
    };
    let capacity = tokens + rng.below(60);
    let capacity = if let Kind::Paged(page) = cache { capacity.next_multiple_of(page) } else { capacity };
    let mut p = CacheProblem::new(FLOATS[turn / 2 % 3], tokens, capacity, rng.between(1, 4), dim);
    (p.op, p.cache, p.batch) = (op, cache, rng.between(1, 3));
    p.from = *rng.pick(&[From::Host, From::Device, From::Each]);
    p.pair = op == CacheOp::Store && rng.one_in(2);
    p.coded = op == CacheOp::Store && rng.one_in(2);
    if op == CacheOp::Densify && rng.one_in(4) {
        p.dtype = DType::I8;
    }
    if !aligned {
        (p.pad, p.offset) = (rng.below(9), rng.below(4));
    }
    p.kind = *rng.pick(&[BufferKind::Cold, BufferKind::Hot, BufferKind::Bump]);
    p.seed = rng.bits();
    p
}
