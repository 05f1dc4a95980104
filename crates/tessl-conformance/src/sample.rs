//! Cases of the family `sample`.

use crate::data::{Mem, representable};
use crate::env::{Env, Outcome};
use crate::rowwise::{self, Operand, RowCase};
use crate::suite::Case;
use tessl::nn::{Sample, SampleDesc, TopK, TopKDesc};
use tessl::plan::Desc;
use tessl::{BufferKind, DType, Error, FaultKind, Scalar, Stream, Tensor};
use tessl_oracle::{Rng, Sampling, philox, top_k};

const FLOATS: [DType; 3] = [DType::F32, DType::F16, DType::Bf16];

/// The largest elements of rows, with everything that decides how they are found.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct TopKProblem {
    /// How many.
    pub(crate) k: usize,
    /// Element type.
    pub(crate) dtype: DType,
    /// Distinct values: few of them make many ties.
    pub(crate) values: i32,
    /// Rows and their places.
    pub(crate) rows: RowCase,
}

impl TopKProblem {
    /// Runs the problem twice and compares: values, indices, slack, bits.
    pub(crate) fn check(&self, env: &Env) -> Result<(), String> {
        let k = self.k.min(self.rows.n);
        let outputs = [Operand::Some(self.dtype, k), Operand::Some(DType::U32, k)];
        let value = |rng: &mut Rng, _: usize| match rng.below(200) {
            0 => f64::NAN,
            1 => f64::NEG_INFINITY,
            _ => rng.integer(-self.values, self.values) / 4.0,
        };
        let call: rowwise::Run<'_> = &|t, stream| {
            let op = TopK::new(&t[0], &t[1], &t[2]);
            match stream {
                Some(stream) => op.run_on(stream)?,
                None => op.run()?,
            }
            Ok(Desc::TopK(op.desc()?))
        };
        let want = |data: &[Vec<f64>]| {
            let rows = data[0].chunks(self.rows.n.max(1));
            let picked: Vec<(f64, usize)> =
                rows.flat_map(|row| top_k(row, k).into_iter().map(|i| (row[i], i))).collect();
            vec![
                picked.iter().map(|(x, _)| (*x, 0.0)).collect(),
                picked.iter().map(|(_, i)| (*i as f64, 0.0)).collect(),
            ]
        };
        let rows = RowCase { in_place: None, broadcast: false, ..self.rows.clone() };
        let checked = rows.check_outputs(env, (&[Operand::Rows(self.dtype)], &outputs), value, call, want);
        checked.map_err(|e| format!("{e}\n  {self:?}"))
    }

    /// A random problem.
    pub(crate) fn random(env: &Env, rng: &mut Rng, turn: usize) -> Self {
        let rows = RowCase::random(env, rng, turn / FLOATS.len(), 30_000);
        let (k, values) = (*rng.pick(&[1, 2, 5, 40, 255, 256]), *rng.pick(&[2, 100, 30_000]));
        TopKProblem { k, dtype: FLOATS[turn % FLOATS.len()], values, rows }
    }
}

fn largest(env: &Env, dtype: DType) -> Outcome {
    let views = rowwise::views(env, 0).into_iter().map(|rows| TopKProblem { k: 7, dtype, values: 9, rows });
    let mut problems: Vec<TopKProblem> = views.collect();
    for n in [1, 2, 33, 255, 256, 257, 1000, 4096, 5000, 40_000] {
        for k in [1, 3, 64, 256] {
            for values in [0, 3, 30_000] {
                let rows = RowCase { seed: env.seed ^ n as u64, pads: [n % 2, 1, 0], ..RowCase::new(1 + 300 / n, n) };
                problems.push(TopKProblem { k, dtype, values, rows });
            }
        }
    }
    let mut left = env.budget;
    for p in env.thin(problems) {
        let cost = 4 * p.rows.cost();
        if cost <= left {
            left -= cost;
            if let Err(message) = p.check(env) {
                return Outcome::Failed(message);
            }
        }
    }
    Outcome::Passed
}

/// A draw with everything that decides it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct SampleProblem {
    /// Rows.
    pub(crate) rows: usize,
    /// Tokens.
    pub(crate) n: usize,
    /// Type of the logits.
    pub(crate) dtype: DType,
    /// Options. Temperatures and penalties that are powers of two keep scores exact.
    pub(crate) options: Sampling,
    /// Previous tokens of a row.
    pub(crate) previous: usize,
    /// Parameters come from memory, one for each row.
    pub(crate) on_device: bool,
    /// Logits are whole eighths between these, or normal where 0.
    pub(crate) range: i32,
    /// Elements of slack after each row of logits.
    pub(crate) pad: usize,
    /// Seed of contents and draws.
    pub(crate) seed: u64,
}

/// Everything kept as it is.
pub(crate) const PLAIN: Sampling =
    Sampling { softcap: None, temperature: 1.0, top_k: 0, top_p: 1.0, min_p: 0.0, penalty: 1.0 };

impl SampleProblem {
    /// Without options.
    pub(crate) fn new(rows: usize, n: usize, dtype: DType) -> Self {
        let (options, previous, on_device, range, pad, seed) = (PLAIN, 0, false, 24, 0, 1);
        SampleProblem { rows, n, dtype, options, previous, on_device, range, pad, seed }
    }

    #[allow(clippy::cast_possible_truncation)] // Parameters are chosen as f32 values.
    fn run(
        &self,
        logits: &Tensor,
        previous: Option<&Tensor>,
        tokens: &Tensor,
        stream: Option<&mut Stream>,
    ) -> tessl::Result<Desc> {
        let (o, position, rt) = (self.options, 5u32, logits.runtime());
        let top_k = u32::try_from(o.top_k).unwrap_or(u32::MAX);
        let numbers = [o.temperature, o.top_p, o.min_p, o.penalty].map(|x| x as f32);
        let words = [self.seed as u32, (self.seed >> 32) as u32];
        let rows = self.rows;
        let floats = |x: f32| rt.from_slice(&vec![x; rows], &[rows]);
        let [temperature, top_p, min_p, penalty] = numbers;
        let memory = if self.on_device {
            let seeds: Vec<u32> = (0..rows).flat_map(|_| words).collect();
            Some((
                numbers.map(floats),
                rt.from_slice(&vec![top_k; rows], &[rows])?,
                rt.from_slice(&seeds, &[rows, 2])?,
                rt.from_slice(&[position], &[1])?,
            ))
        } else {
            None
        };
        let mut op = Sample::new(logits, tokens);
        if let Some(softcap) = o.softcap {
            op = op.softcap(softcap as f32);
        }
        match &memory {
            Some(([Ok(t), Ok(p), Ok(m), Ok(r)], k, seed, position)) => {
                op = op.temperature(Scalar::Device(t)).top_p(Scalar::Device(p)).min_p(Scalar::Device(m));
                op = op.top_k(Scalar::Device(k)).seed(Scalar::Device(seed)).position(Scalar::Device(position));
                if let Some(previous) = previous {
                    op = op.repetition_penalty(Scalar::Device(r), previous);
                }
            }
            _ => {
                op = op.temperature(temperature).top_p(top_p).min_p(min_p).top_k(top_k);
                op = op.seed(self.seed).position(position);
                if let Some(previous) = previous {
                    op = op.repetition_penalty(penalty, previous);
                }
            }
        }
        match stream {
            Some(stream) => op.run_on(stream)?,
            None => op.run()?,
        }
        Ok(Desc::Sample(op.desc()?))
    }

    /// Runs the problem twice: the same tokens, and those that the definition allows within rounding.
    pub(crate) fn check(&self, env: &Env) -> Result<(), String> {
        Mem::with(env, BufferKind::Cold, |mem| self.check_in(mem)).map_err(|e| format!("{e}\n  {self:?}"))
    }

    #[allow(clippy::cast_possible_truncation)] // Two words of one number.
    fn check_in(&self, mem: &mut Mem<'_>) -> Result<(), String> {
        let text = |e: Error| e.to_string();
        let (rows, n) = (self.rows, self.n);
        let mut rng = Rng::new(self.seed);
        let mut logit = || match self.range {
            0 => 3.0 * rng.normal(),
            range => rng.integer(-range, range) / 8.0,
        };
        let logits: Vec<f64> = (0..rows * n).map(|_| representable(self.dtype, logit())).collect();
        let previous: Vec<u32> =
            (0..rows * self.previous).map(|i| if i % 7 == 6 { u32::MAX } else { rng.below(n) as u32 }).collect();
        let mut place = crate::data::Placed::new(self.dtype, &[rows, n], &[n + self.pad, 1], self.pad);
        place.allocate(mem)?;
        place.fill_input(mem, |at| logits[at])?;
        let x = place.view()?;
        let rt = &mem.env.rt;
        let history = if self.previous > 0 {
            Some(rt.from_slice(&previous, &[rows, self.previous]).map_err(text)?)
        } else {
            None
        };
        let mut runs = Vec::new();
        for turn in 0..2 {
            let tokens = rt.from_slice(&vec![u32::MAX; rows], &[rows]).map_err(text)?;
            let desc = self.run(&x, history.as_ref(), &tokens, None).map_err(text)?;
            if turn == 0 {
                mem.env.cover(&desc)?;
            }
            if mem.env.computes {
                runs.push(tokens.read::<u32>().map_err(text)?);
            }
        }
        let [first, second] = runs.as_slice() else { return Ok(()) };
        if first != second {
            return Err("two runs differ".into());
        }
        let exact = self.range != 0 && self.options.softcap.is_none();
        // Exponentials within 4 u and their integers; scores that are rounded move them by as much again as they are large.
        let slack = if exact { 1e-6 } else { 1e-4 };
        for (row, &token) in first.iter().enumerate() {
            let history = &previous[row * self.previous..][..self.previous];
            let history: Vec<usize> = history.iter().map(|&t| t as usize).collect();
            let scores = self.options.scores(&logits[row * n..][..n], &history);
            if self.options.temperature == 0.0 {
                if token as usize != top_k(&scores, 1)[0] {
                    return Err(format!("row {row}: {token} is not the largest"));
                }
                continue;
            }
            let words = philox([5, row as u32, 0, 0], [self.seed as u32, (self.seed >> 32) as u32]);
            let u = f64::from(words[0] >> 8) / f64::from(1 << 24);
            let bounds = [-slack, 0.0, slack];
            let kept = bounds.map(|s| self.options.kept(&scores, s));
            let allowed: Vec<[usize; 2]> = kept.iter().map(|k| [k.token(u - slack), k.token(u + slack)]).collect();
            if !allowed.iter().any(|[low, high]| (*low..=*high).contains(&(token as usize))) {
                return Err(format!("row {row}: {token} instead of {allowed:?} (u = {u})"));
            }
            if !kept.iter().any(|k| k.0.iter().any(|(i, _)| *i == token as usize)) {
                return Err(format!("row {row}: {token} is not kept"));
            }
        }
        Ok(())
    }

    /// A random problem.
    pub(crate) fn random(rng: &mut Rng, turn: usize) -> Self {
        let n = *rng.pick(&[1, 5, 33, 300, 4096, 5000]);
        let mut p = SampleProblem::new(rng.between(1, 1 + 6000 / n), n, FLOATS[turn % FLOATS.len()]);
        p.options = Sampling {
            softcap: *rng.pick(&[None, None, Some(30.0)]),
            temperature: *rng.pick(&[1.0, 0.5, 2.0, 0.0]),
            top_k: *rng.pick(&[0, 0, 1, 3, 50, 100_000]),
            top_p: *rng.pick(&[1.0, 0.9375, 0.5, 0.125]),
            min_p: *rng.pick(&[0.0, 0.0, 0.0625, 1.0]),
            penalty: *rng.pick(&[1.0, 2.0, 0.5]),
        };
        p.previous = *rng.pick(&[0, 0, 1, 40]);
        p.on_device = rng.one_in(3);
        p.range = *rng.pick(&[24, 24, 0, 2]);
        p.pad = rng.below(3);
        p.seed = rng.bits();
        // Ties at a bound of min_p, and scores that are not exact, would be a matter of the last bit.
        if p.options.softcap.is_some() || p.range == 0 {
            p.options.min_p = 0.0;
        }
        p
    }
}

/// Every option alone and with others.
fn options(env: &Env, dtype: DType) -> Outcome {
    let mut problems = Vec::new();
    for n in [33, 1, 2, 256, 1000, 4097] {
        let base = SampleProblem { seed: env.seed ^ n as u64, ..SampleProblem::new(2 + 100 / n, n, dtype) };
        let o = PLAIN;
        for options in [
            o,
            Sampling { temperature: 0.0, ..o },
            Sampling { temperature: 0.5, ..o },
            Sampling { top_k: 1, ..o },
            Sampling { top_k: 20, temperature: 4.0, ..o },
            Sampling { top_p: 0.75, ..o },
            Sampling { top_p: 0.001, ..o },
            Sampling { min_p: 0.25, ..o },
            Sampling { min_p: 1.0, ..o },
            Sampling { top_k: 50, top_p: 0.9375, min_p: 0.0625, temperature: 2.0, ..o },
            Sampling { penalty: 2.0, ..o },
            Sampling { penalty: 2.0, temperature: 0.0, ..o },
            Sampling { softcap: Some(2.0), temperature: 0.7, ..o },
        ] {
            let previous = if options.penalty == 1.0 { 0 } else { 9 };
            for (on_device, range) in [(false, 24), (true, 24), (false, 3)] {
                problems.push(SampleProblem { options, previous, on_device, range, pad: n % 2, ..base.clone() });
            }
        }
    }
    let mut left = env.budget;
    for p in env.thin(problems) {
        let cost = 4 * (p.rows * p.n) as u64;
        if cost <= left {
            left -= cost;
            if let Err(message) = p.check(env) {
                return Outcome::Failed(message);
            }
        }
    }
    Outcome::Passed
}

/// Draws have the distribution: chi-square with 7 degrees of freedom, which passes 24.3 once in a thousand. The seed is
/// fixed, so this passes always or never.
fn distribution(env: &Env) -> Result<(), String> {
    let text = |e: Error| e.to_string();
    let weights = [1.0f64, 2.0, 4.0, 8.0, 1.0, 0.5, 0.25, 16.0];
    #[allow(clippy::cast_possible_truncation)] // Logits are f32.
    let logits: Vec<f32> = weights.iter().map(|w| w.ln() as f32).collect();
    let draws = if env.budget < 1_000_000 { 2000 } else { 40_000 };
    let x = env.rt.from_slice(&logits, &[8]).and_then(|x| x.broadcast_to(&[draws, 8])).map_err(text)?;
    let tokens = env.rt.zeros(DType::U32, &[draws], BufferKind::Cold).map_err(text)?;
    Sample::new(&x, &tokens).seed(0x1234_5678_9abc_def0).position(3).run().map_err(text)?;
    if !env.computes {
        return Ok(());
    }
    let mut seen = [0u32; 8];
    tokens.read::<u32>().map_err(text)?.iter().for_each(|&t| seen[t as usize] += 1);
    let total: f64 = weights.iter().sum();
    let term = |(w, &count): (&f64, &u32)| {
        let expected = w / total * draws as f64;
        (f64::from(count) - expected).powi(2) / expected
    };
    let chi: f64 = weights.iter().zip(&seen).map(term).sum();
    if chi < 24.3 { Ok(()) } else { Err(format!("chi-square {chi}: {seen:?}")) }
}

/// Infinities, rows of nothing, NaN, bad parameters and bad tokens.
fn special(env: &Env, dtype: DType) -> Result<(), String> {
    let text = |e: Error| e.to_string();
    let (inf, nan) = (f64::INFINITY, f64::NAN);
    let tensor = |rows: &[f64], n: usize| -> Result<Tensor, String> {
        let x = env.rt.uninit(dtype, &[rows.len() / n, n], BufferKind::Cold).map_err(text)?;
        crate::data::write_bytes(&x, &crate::data::encode(dtype, rows.iter().copied()), None)?;
        Ok(x)
    };
    let tokens = env.rt.from_slice(&[77u32; 3], &[3]).map_err(text)?;
    let x = tensor(&[0.0, inf, 1.0, inf, -inf, -inf, -inf, -inf, 1.0, -inf, -inf, -inf], 4)?;
    let plain = |seed: u64| Sample::new(&x, &tokens).seed(seed).run().map_err(text);
    let mut seen = [[false; 4]; 3];
    for seed in 0..40 {
        plain(seed)?;
        if env.computes {
            tokens.read::<u32>().map_err(text)?.iter().zip(&mut seen).for_each(|(&t, row)| row[t as usize] = true);
        }
    }
    let want = [[false, true, false, true], [true; 4], [true, false, false, false]];
    if env.computes && seen != want {
        return Err(format!("infinities: {seen:?}"));
    }
    let fault = |what: &str, op: Sample<'_>, kind: FaultKind, at: u64, value: Option<i64>| -> Result<(), String> {
        let tokens_before = [77u32; 3];
        tokens.write(&tokens_before).map_err(text)?;
        let mut stream = env.rt.stream().map_err(text)?;
        op.run_on(&mut stream).map_err(text)?;
        let outcome = stream.synchronize();
        if !env.computes {
            return outcome.map_err(text);
        }
        match outcome {
            Err(Error::Fault { op: "sample", kind: k, index, value: v })
                if (k, index) == (kind, at) && value.is_none_or(|value| value == v) => {}
            other => return Err(format!("{what}: {other:?}")),
        }
        stream.recover().map_err(text)?;
        let got = tokens.read::<u32>().map_err(text)?;
        if got[0] == 77 || got[1] != 77 || got[2] == 77 {
            return Err(format!("{what}: the other rows are written, this one is not; {got:?}"));
        }
        Ok(())
    };
    let broken = tensor(&[0.0, 1.0, 2.0, 0.0, nan, nan, 1.0, 0.0, 3.0], 3)?;
    fault("NaN", Sample::new(&broken, &tokens), FaultKind::BadValue, 4, None)?;
    fault("NaN, greedy", Sample::new(&broken, &tokens).temperature(0.0), FaultKind::BadValue, 4, None)?;
    let fine = tensor(&[0.0; 9], 3)?;
    let heat = env.rt.from_slice(&[1.0f32, -1.0, 0.0], &[3]).map_err(text)?;
    let bits = i64::from((-1.0f32).to_bits());
    let op = Sample::new(&fine, &tokens).temperature(Scalar::Device(&heat));
    fault("temperature", op, FaultKind::BadValue, 1, Some(bits))?;
    let history = env.rt.from_slice(&[0i32, -1, 2, 3, 1, -1], &[3, 2]).map_err(text)?;
    let op = Sample::new(&fine, &tokens).repetition_penalty(1.5, &history);
    fault("a previous token", op, FaultKind::IndexOutOfRange, 3, Some(3))
}

/// Every problem class that takes a kernel or row of its own.
pub(crate) fn descs() -> Vec<Desc> {
    let of = |dtype| {
        let choice = Desc::Sample(SampleDesc { rows: 3, n: 100, penalised: true, dtype });
        [Desc::TopK(TopKDesc { rows: 3, n: 100, k: 7, dtype }), choice]
    };
    FLOATS.into_iter().flat_map(of).collect()
}

/// Every case of this family.
pub(crate) fn cases() -> Vec<Case> {
    let mut cases =
        vec![Case::fixed("sample/distribution", "sample", 100_000, |env| distribution(env).into()).tagged(&["quick"])];
    for dtype in FLOATS {
        let case = |label: &str, op, body: fn(&Env, DType) -> Outcome| {
            Case::new(format!("{op}/{label}/{dtype}"), op, move |env| body(env, dtype)).tagged(&["quick"])
        };
        cases.push(case("largest", "top_k", largest));
        cases.push(case("options", "sample", options));
        cases.push(case("special", "sample", |env, dtype| special(env, dtype).into()));
    }
    cases
}
