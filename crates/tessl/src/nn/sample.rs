//! Choosing: the largest elements, and tokens from logits.

mod topk;

pub use topk::TopK;

use super::SampleDesc;
use super::check::{Call, Launch, Rows};
use crate::args::SampleArgs;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::plan::Desc;
use crate::stream::Stream;
use crate::tensor::{Scalar, Tensor};

const OP: &str = "sample";
/// Masses are counted in 32 bits at most so many times.
const MAX_TOKENS: usize = 1 << 21;

/// One token of each row of logits, drawn on the device.
///
/// | operand | shape | dtypes |
/// | --- | --- | --- |
/// | logits | `[.., n]`, n at most 2^21 | f32, f16, bf16 |
/// | previous | `[.., L]`, or broadcast to it | u32, i32 |
/// | temperature, top_p, min_p, repetition_penalty | a number, one element, or `[..]` | f32 |
/// | top_k, position | a number, one element, or `[..]` | u32 |
/// | seed | a number, `[2]`, or `[.., 2]` (low word, high word) | u64; u32 |
/// | tokens | `[..]` | u32 |
///
/// In this order: `t = softcap * tanh(logit / softcap)`; tokens among the previous ones are divided by the penalty where
/// `t > 0`, else multiplied with it, once; `t = t / temperature`. Kept are the `top_k` largest (0 for all), of these the
/// fewest largest whose probabilities reach `top_p`, of these the ones whose probability is at least `min_p` of the
/// largest; ties go to the lowest index, and the largest always stays. One of those is drawn with its probability.
/// Temperature 0 takes the largest.
///
/// Scores are f32. Weights `exp(t - max t)` are whole numbers of 2^-31, so what is below that is never drawn, and their sums
/// are exact: the token does not depend on threads or grids, and devices can differ only where their f32 exponentials do
/// (an ulp or two). The random number is Philox4x32-10 with counter (position, row, 0, 0) and the seed as key, row being the
/// number of the row: 24 bits of its first word, in `[0, 1)`. `top_p` counts in units of 2^-24.
///
/// Infinity among the logits is the only choice, a row of -infinity alone is uniform. A NaN, or a parameter in memory that
/// is outside its domain, is found on the device: the token of that row is not written, and the next wait or read returns
/// [`Error::Fault`], [`BadValue`](crate::FaultKind::BadValue), with the element or row and the bits. So is a previous token
/// outside of the row ([`IndexOutOfRange`](crate::FaultKind::IndexOutOfRange)); `u32::MAX`, or -1, stands for none.
///
/// The last stride of logits and previous is 1; up to three other axes may be strided on their own. Parameters in memory
/// are contiguous.
///
/// ```
/// use tessl::{nn::Sample, BufferKind, Device, DType, GpuRuntime};
/// let rt = GpuRuntime::with_device(&Device::cpu())?;
/// let logits = rt.from_slice(&[0.0f32, 3.0, 2.0, 0.0, 9.0, 9.0], &[2, 3])?;
/// let tokens = rt.zeros(DType::U32, &[2], BufferKind::Cold)?;
/// Sample::new(&logits, &tokens).temperature(0.0).run()?;
/// assert_eq!(tokens.read::<u32>()?, [1, 1]);
///
/// Sample::new(&logits, &tokens).temperature(0.7).top_k(2).top_p(0.9).seed(42).position(7).run()?;
/// let first = tokens.read::<u32>()?;
/// assert!(first[0] != 0 && first[1] != 0);
/// Sample::new(&logits, &tokens).temperature(0.7).top_k(2).top_p(0.9).seed(42).position(7).run()?;
/// assert_eq!(tokens.read::<u32>()?, first);
/// # Ok::<(), tessl::Error>(())
/// ```
#[derive(Clone, Debug)]
#[must_use = "a Sample does nothing until run() or run_on()"]
pub struct Sample<'a> {
    logits: &'a Tensor,
    tokens: &'a Tensor,
    previous: Option<&'a Tensor>,
    softcap: Option<f32>,
    temperature: Scalar<'a, f32>,
    top_k: Scalar<'a, u32>,
    top_p: Scalar<'a, f32>,
    min_p: Scalar<'a, f32>,
    penalty: Scalar<'a, f32>,
    seed: Scalar<'a, u64>,
    position: Scalar<'a, u32>,
}

/// A call that has passed all checks.
struct Checked<'a> {
    call: Call<'a, 10>,
    desc: SampleDesc,
    /// Logits, previous, tokens.
    rows: Rows<3>,
    /// Bits of the parameters that are read from memory, and of those that have one element for each row.
    from_memory: u32,
    per_row: u32,
}

impl<'a> Sample<'a> {
    /// Temperature 1, everything kept, no penalty, seed and position 0.
    pub fn new(logits: &'a Tensor, tokens: &'a Tensor) -> Self {
        Sample {
            logits,
            tokens,
            previous: None,
            softcap: None,
            temperature: 1.0.into(),
            top_k: 0.into(),
            top_p: 1.0.into(),
            min_p: 0.0.into(),
            penalty: 1.0.into(),
            seed: 0.into(),
            position: 0.into(),
        }
    }

    /// Bends logits into `-softcap..softcap`.
    pub fn softcap(mut self, softcap: f32) -> Self {
        self.softcap = Some(softcap);
        self
    }

    /// Divides the scores, 0 or above; 0 takes the largest.
    pub fn temperature(mut self, temperature: impl Into<Scalar<'a, f32>>) -> Self {
        self.temperature = temperature.into();
        self
    }

    /// Keeps so many, 0 for all.
    pub fn top_k(mut self, top_k: impl Into<Scalar<'a, u32>>) -> Self {
        self.top_k = top_k.into();
        self
    }

    /// Keeps the fewest that together have this probability, above 0 and at most 1.
    pub fn top_p(mut self, top_p: impl Into<Scalar<'a, f32>>) -> Self {
        self.top_p = top_p.into();
        self
    }

    /// Keeps what is at least so probable as this part of the most probable, 0 to 1.
    pub fn min_p(mut self, min_p: impl Into<Scalar<'a, f32>>) -> Self {
        self.min_p = min_p.into();
        self
    }

    /// Makes the previous tokens less probable (above 1), or more.
    pub fn repetition_penalty(mut self, penalty: impl Into<Scalar<'a, f32>>, previous: &'a Tensor) -> Self {
        (self.penalty, self.previous) = (penalty.into(), Some(previous));
        self
    }

    /// The key of the random numbers.
    pub fn seed(mut self, seed: impl Into<Scalar<'a, u64>>) -> Self {
        self.seed = seed.into();
        self
    }

    /// The first word of their counter: the position of the token in its sequence.
    pub fn position(mut self, position: impl Into<Scalar<'a, u32>>) -> Self {
        self.position = position.into();
        self
    }

    fn check(&self) -> Result<Checked<'a>> {
        let x = self.logits;
        // What is not there, or known on the host, has its place taken by the logits, which are then not read there.
        let previous = self.previous.unwrap_or(x);
        let params = [
            ("temperature", memory(self.temperature)),
            ("top_k", memory(self.top_k)),
            ("top_p", memory(self.top_p)),
            ("min_p", memory(self.min_p)),
            ("repetition_penalty", memory(self.penalty)),
            ("seed", memory(self.seed)),
            ("position", memory(self.position)),
        ];
        let [a, b, c, d, e, f, g] = params.map(|(name, tensor)| (name, tensor.unwrap_or(x)));
        let operands = [("logits", x), ("previous", previous), a, b, c, d, e, f, g, ("tokens", self.tokens)];
        let call = Call::new(OP, operands)?;
        call.float(0)?;
        call.dtype(9, &[DType::U32], "u32")?;
        let Some((&n, outer)) = x.shape().split_last() else {
            return Err(Error::shape(OP, "logits", "a scalar", "it must have rows along its last axis"));
        };
        if n == 0 && !outer.contains(&0) {
            let actual = format_args!("{:?}", x.shape());
            return Err(Error::shape(OP, "logits", actual, "a row without elements has no token"));
        }
        if n > MAX_TOKENS {
            let (value, limit) = (n as u64, MAX_TOKENS as u64);
            return Err(Error::TooLarge { op: OP, what: "the number of tokens", value, limit });
        }
        if self.tokens.shape() != outer {
            let expected = format!("it must be {outer:?} (`logits` {:?} without its last axis)", x.shape());
            return Err(Error::shape(OP, "tokens", format_args!("{:?}", self.tokens.shape()), expected));
        }
        self.check_previous(&call, outer)?;
        let (mut from_memory, mut per_row) = (0, 0);
        for (i, (name, tensor)) in params.into_iter().enumerate() {
            let Some(tensor) = tensor else { continue };
            let (expected, own) = match name {
                "top_k" | "position" => (DType::U32, 1),
                "seed" => (DType::U32, 2),
                _ => (DType::F32, 1),
            };
            call.dtype(2 + i, &[expected], if expected == DType::U32 { "u32" } else { "f32" })?;
            let each = tensor.shape().iter().product::<usize>() == outer.iter().product::<usize>() * own;
            if !(tensor.len() == own || each) || !tensor.is_contiguous() {
                let expected = format!("it must be contiguous, with {own} for all rows or for each of {outer:?}");
                return Err(Error::shape(OP, name, format_args!("{:?}", tensor.shape()), expected));
            }
            from_memory |= 1 << i;
            per_row |= u32::from(tensor.len() != own) << i;
        }
        self.check_numbers()?;
        call.unit_stride(0)?;
        call.output(9, &[])?;
        let rows = Rows::strided(OP, "logits", x.shape(), [x.strides(), previous.strides(), self.tokens.strides()])?;
        let (count, penalised) = (rows.count, self.previous.is_some_and(|p| !p.is_empty()));
        let desc = SampleDesc { rows: count, n: rows.n, penalised, dtype: x.dtype() };
        Ok(Checked { call, desc, rows, from_memory, per_row })
    }

    fn check_previous(&self, call: &Call<'_, 10>, outer: &[usize]) -> Result<()> {
        let Some(previous) = self.previous else { return Ok(()) };
        call.dtype(1, &[DType::U32, DType::I32], "u32 or i32")?;
        call.unit_stride(1)?;
        match previous.shape().split_last() {
            Some((&length, rows)) if rows == outer && length <= MAX_TOKENS => Ok(()),
            _ => {
                let expected = format!("it must be {outer:?} and then the number of tokens, at most {MAX_TOKENS}");
                let error = Error::shape(OP, "previous", format_args!("{:?}", previous.shape()), expected);
                let wanted: Vec<usize> = outer.iter().chain(previous.shape().last()).copied().collect();
                let fits = previous.rank() > 0 && previous.broadcast_to(&wanted).is_ok();
                Err(if fits { error.help(format!("did you mean previous.broadcast_to({wanted:?})?")) } else { error })
            }
        }
    }

    /// The numbers known on the host.
    fn check_numbers(&self) -> Result<()> {
        let domains = [
            ("temperature", self.temperature, 0.0..=f32::MAX, "0 or above, and finite"),
            ("top_p", self.top_p, f32::from_bits(1)..=1.0, "above 0 and at most 1"),
            ("min_p", self.min_p, 0.0..=1.0, "from 0 to 1"),
            ("repetition_penalty", self.penalty, f32::from_bits(1)..=f32::MAX, "above 0, and finite"),
        ];
        for (name, value, domain, expected) in domains {
            if let Scalar::Host(value) = value
                && !domain.contains(&value)
            {
                return Err(Error::Scalar { op: OP, name, value: value.into(), expected });
            }
        }
        if let Some(softcap) = self.softcap.filter(|c| !(*c > 0.0 && c.is_normal() && c.recip().is_normal())) {
            let expected = "above 0, with a normal number as its inverse";
            return Err(Error::Scalar { op: OP, name: "softcap", value: softcap.into(), expected });
        }
        Ok(())
    }

    fn encode(&self, stream: Option<&mut Stream>) -> Result<()> {
        let Checked { call, desc, rows, from_memory, per_row } = self.check()?;
        let stream = call.stream(stream)?;
        if rows.is_empty() {
            return Ok(());
        }
        let rt = self.logits.runtime();
        let previous =
            if desc.penalised { self.previous.and_then(|p| p.shape().last().copied()).unwrap_or(0) } else { 0 };
        let prepared = rt.prepare(&Desc::Sample(desc))?;
        let plan = &prepared.plan;
        let [[x_s0, x_s1, x_s2], [p_s0, p_s1, p_s2], [y_s0, y_s1, y_s2]] = [0, 1, 2].map(|i| rows.strides(i));
        let [r1, r2] = rows.splits();
        let seed = host(self.seed, 0);
        #[allow(clippy::cast_possible_truncation)] // Two words of one number.
        let (seed_low, seed_high) = (seed as u32, (seed >> 32) as u32);
        let (softcap, inverse_softcap) = self.softcap.map_or((0.0, 0.0), |c| (c, 1.0 / c));
        let args = SampleArgs {
            x_s0,
            x_s1,
            x_s2,
            p_s0,
            p_s1,
            p_s2,
            y_s0,
            y_s1,
            y_s2,
            rows: rows.count,
            r1,
            r2,
            n: rows.n,
            groups: plan.grid[0],
            previous: u32::try_from(previous).expect("INVARIANT: checked against the limit"),
            is_signed: u32::from(self.previous.is_some_and(|p| p.dtype() == DType::I32)),
            from_memory,
            per_row,
            seed_low,
            seed_high,
            position: host(self.position, 0),
            top_k: host(self.top_k, 0),
            softcap,
            inverse_softcap,
            temperature: host(self.temperature, 1.0),
            top_p: host(self.top_p, 1.0),
            min_p: host(self.min_p, 0.0),
            penalty: host(self.penalty, 1.0),
        };
        let inputs: [&Tensor; 9] = std::array::from_fn(|i| call.operands[i].1);
        Launch { op: OP, rt, plan, pipeline: prepared.pipeline, args: bytemuck::bytes_of(&args) }.run(
            stream,
            &inputs,
            &[self.tokens],
        )
    }
}

operation!(Sample, SampleDesc, |checked| checked.desc);

fn memory<T>(value: Scalar<'_, T>) -> Option<&Tensor> {
    match value {
        Scalar::Device(tensor) => Some(tensor),
        Scalar::Host(_) => None,
    }
}

fn host<T>(value: Scalar<'_, T>, otherwise: T) -> T {
    match value {
        Scalar::Host(value) => value,
        Scalar::Device(_) => otherwise,
    }
}
