//! Cases of the family `cache`.

use crate::data::{Mem, Placed, compare, encode, read_bytes, representable, write_bytes};
use crate::env::{Env, Outcome};
use crate::suite::Case;
use tessl::nn::{Attention, CacheDesc, CacheOp, KvStore, RingDensify, Start};
use tessl::plan::Desc;
use tessl::{BufferKind, DType, Error, FaultKind, Scalar, Stream, Tensor};
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
    fn placed(&self, shape: [usize; 4], which: usize) -> Placed {
        let row = self.dim + self.pad + 16 * which;
        let token = row * shape[2] + self.pad;
        Placed::new(self.dtype, &shape, &[token * shape[1].max(1) + self.pad, token, row, 1], self.offset)
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
            let mut value = || representable(self.dtype, rng.normal());
            (0..shape.iter().product()).map(|_| value()).collect()
        };
        let rows: Vec<Vec<f64>> = (0..count).map(|_| fill(token_shape)).collect();
        let caches: Vec<Vec<f64>> = (0..count).map(|_| fill(cache_shape)).collect();
        let mut row_places: Vec<Placed> = (0..count).map(|i| self.placed(token_shape, i)).collect();
        let mut cache_places: Vec<Placed> = (0..count).map(|i| self.placed(cache_shape, i)).collect();
        row_places.iter_mut().chain(&mut cache_places).try_for_each(|p| p.allocate(mem))?;
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
            let bytes: Vec<Vec<u8>> = outputs.iter().map(Placed::fetch_output).collect::<Result<_, _>>()?;
            if last.as_ref().is_some_and(|last| *last != bytes) {
                return Err("two runs differ".into());
            }
            last = Some(bytes);
        }
        let row = self.heads * self.dim;
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
    all.map(|(op, dtype, align)| Desc::Cache(CacheDesc { op, rows: 6, n: 64, dtype, pair: false, align })).collect()
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
        [0, 1].map(|offset| CacheProblem { op, kind, offset, cache, ..CacheProblem::new(dtype, 3, 20, 2, 40) })
    });
    problems.try_for_each(|p| p.check(env)).into()
}

/// huggingface/candle#3729, #3669, #3651: a captured step reads its position on the device, and equals eager steps.
fn candle_3729(env: &Env) -> Result<(), String> {
    let text = |e: Error| e.to_string();
    let rt = &env.rt;
    let new = |shape: &[usize]| rt.from_slice(&vec![-1.0f32; shape.iter().product()], shape).map_err(text);
    let (cache, eager) = (new(&[1, 4, 1, 2])?, new(&[1, 4, 1, 2])?);
    let (row, out, other) = (new(&[1, 1, 1, 2])?, new(&[1, 1, 1, 2])?, new(&[1, 1, 1, 2])?);
    let position = rt.from_slice(&[0u32], &[1]).map_err(text)?;
    let mut stream = rt.stream().map_err(text)?;
    let step = |s: &mut Stream, cache: &Tensor, out: &Tensor, start: Scalar<'_, u32>| {
        KvStore::new(&row, cache, start).run_on(s)?;
        Attention::new(&row, cache, cache, out).causal(start).run_on(s)
    };
    let graph = stream.capture(|s| step(s, &cache, &out, Scalar::Device(&position))).map_err(text)?;
    for p in 0..4u8 {
        row.write_on(&[f32::from(p); 2], &mut stream).map_err(text)?;
        position.write_on(&[u32::from(p)], &mut stream).map_err(text)?;
        graph.replay(&mut stream).map_err(text)?;
        step(&mut stream, &eager, &other, Scalar::Host(p.into())).map_err(text)?;
        let [a, b, c, d] = [&cache, &eager, &out, &other].map(|t| t.read::<f32>().map_err(text));
        let (a, c) = (a?, c?);
        let want: Vec<f32> = (0..8u8).map(|i| if i / 2 <= p { f32::from(i / 2) } else { -1.0 }).collect();
        if env.computes && (a != want || a != b? || c != d?) {
            return Err(format!("position {p}: {a:?}, {c:?}"));
        }
    }
    // A second capture, then memory.
    stream.capture(|s| step(s, &cache, &out, Scalar::Device(&position))).map_err(text)?;
    new(&[1, 64, 1, 2]).map(|_| ())
}

/// Positions and pages outside of the cache: told, not stored; the others are.
fn overflow(env: &Env) -> Result<(), String> {
    let text = |e: Error| e.to_string();
    for dtype in FLOATS {
        let put = |t: &Tensor, value: f64| {
            let values = (0..t.len()).map(|_| representable(dtype, value));
            write_bytes(t, &encode(dtype, values), None)
        };
        let rows = env.rt.uninit(dtype, &[2, 2, 1, 8], BufferKind::Cold).map_err(text)?;
        let cache = env.rt.uninit(dtype, &[2, 16, 1, 8], BufferKind::Cold).map_err(text)?;
        put(&rows, 2.0)?;
        let mut stream = env.rt.stream().map_err(text)?;
        let starts = env.rt.from_slice(&[3u32, 15], &[2]).map_err(text)?;
        let table = env.rt.from_slice(&[1u32, 2], &[2, 1]).map_err(text)?;
        let plain = KvStore::new(&rows, &cache, Start::Each(&starts));
        let paged = KvStore::new(&rows, &cache, 3).table(&table);
        let first = (FaultKind::CacheOverflow, 3, 16, vec![3, 4, 16 + 15]);
        let second = (FaultKind::IndexOutOfRange, 1, 2, vec![16 + 3, 16 + 4]);
        for (op, (kind, index, value, written)) in [(plain, first), (paged, second)] {
            put(&cache, -1.0)?;
            op.run_on(&mut stream).map_err(text)?;
            let outcome = stream.synchronize();
            if !env.computes {
                outcome.map_err(text)?;
                continue;
            }
            match outcome {
                Err(Error::Fault { op: "kv_store", kind: k, index: i, value: v })
                    if (k, i, v) == (kind, index, value) => {}
                other => return Err(format!("{kind:?} at {index} of {value} gave {other:?}")),
            }
            stream.recover().map_err(text)?;
            let bytes = read_bytes(&cache)?;
            compare(dtype, &bytes, cache.shape(), |at| (if written.contains(&(at / 8)) { 2.0 } else { -1.0 }, 0.0))?;
        }
    }
    Ok(())
}

/// Every case of this family.
pub(crate) fn cases() -> Vec<Case> {
    let known = |name: &str, body: fn(&Env) -> Result<(), String>| {
        Case::fixed(format!("known/{name}"), "kv_store", 2000, move |env| body(env).into()).tagged(&["quick"])
    };
    let mut cases = vec![known("candle_3729", candle_3729), known("cache_overflow", overflow)];
    for (op, dtype) in CacheOp::ALL.into_iter().flat_map(|op| FLOATS.map(|d| (op, d))) {
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
    if !aligned {
        (p.pad, p.offset) = (rng.below(9), rng.below(4));
    }
    p.kind = *rng.pick(&[BufferKind::Cold, BufferKind::Hot, BufferKind::Bump]);
    p.seed = rng.bits();
    p
}
