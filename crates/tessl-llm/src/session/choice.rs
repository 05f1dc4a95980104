//! Choosing the next token on the device, where its position and the tokens so far are.

use crate::error::Result;
use tessl::nn::{ArgMax, GatherRows, Sample, ScatterRows};
use tessl::{BufferKind, DType, GpuRuntime, Scalar, Stream, Tensor};

/// How the next token is chosen from its logits; the fields are those of [`tessl::nn::Sample`], in the order in which they act.
///
/// The random number of a token depends on the seed and on the token's position alone, so the same seed gives the same tokens
/// on any number of threads.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling {
    /// Makes tokens that the sequence has already less probable (above 1), or more.
    pub repetition_penalty: f32,
    /// Divides the logits; 0 takes the largest.
    pub temperature: f32,
    /// Keeps so many of the most probable tokens, 0 for all.
    pub top_k: u32,
    /// Keeps the fewest that together have this probability.
    pub top_p: f32,
    /// Keeps what is at least so probable as this part of the most probable.
    pub min_p: f32,
    /// The key of the random numbers.
    pub seed: u64,
}

impl Sampling {
    /// The most probable token.
    pub const GREEDY: Sampling =
        Sampling { repetition_penalty: 1.0, temperature: 0.0, top_k: 0, top_p: 1.0, min_p: 0.0, seed: 0 };

    fn penalises(&self) -> bool {
        self.repetition_penalty != 1.0
    }

    /// The operations that it takes.
    pub(super) fn method(&self) -> Method {
        match (self.penalises(), self.temperature) {
            (false, 0.0) => Method::Largest,
            (false, _) => Method::Drawn,
            (true, _) => Method::Penalised,
        }
    }
}

impl Default for Sampling {
    fn default() -> Self {
        Self::GREEDY
    }
}

/// Which operations choose. Their parameters are in memory and change nothing about the commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Method {
    Largest,
    Drawn,
    /// Drawn, after a look at the tokens so far.
    Penalised,
}

/// Logits, what is chosen from them and what that depends on. Tokens and positions have two places: a step reads one side
/// and writes the other, so that the host can read a token while the next step runs.
#[derive(Debug)]
pub(super) struct Choice {
    /// Of the last token [1, vocabulary].
    pub(super) logits: Tensor,
    /// The token that stands at the position of its side [1].
    pub(super) tokens: [Tensor; 2],
    pub(super) positions: [Tensor; 2],
    /// The tokens so far [capacity + 1, 1], [`NONE`] beyond.
    history: Tensor,
    /// 1, 2, 3 .. [capacity + 1, 1]: the way to count on the device.
    successors: Tensor,
    /// Temperature, top-p, min-p, repetition penalty.
    floats: [Tensor; 4],
    top_k: Tensor,
    seed: Tensor,
    sampling: Sampling,
}

/// No token.
const NONE: u32 = u32::MAX;

impl Choice {
    pub(super) fn new(rt: &GpuRuntime, vocabulary: usize, capacity: u32) -> Result<Self> {
        let one = || rt.zeros(DType::U32, &[1], BufferKind::Hot);
        let number = |x: f32| rt.from_slice(&[x], &[1]);
        let rows = capacity as usize + 1;
        let s = Sampling::GREEDY;
        Ok(Choice {
            logits: rt.zeros(DType::F32, &[1, vocabulary], BufferKind::Hot)?,
            tokens: [one()?, one()?],
            positions: [one()?, one()?],
            history: rt.from_slice(&vec![NONE; rows], &[rows, 1])?,
            successors: rt.from_slice(&(1..=capacity + 1).collect::<Vec<_>>(), &[rows, 1])?,
            floats: [number(s.temperature)?, number(s.top_p)?, number(s.min_p)?, number(s.repetition_penalty)?],
            top_k: one()?,
            seed: rt.zeros(DType::U32, &[2], BufferKind::Hot)?,
            sampling: s,
        })
    }

    /// Makes this the way to choose; whether that is a change. Numbers outside their domains are refused.
    pub(super) fn set(&mut self, sampling: &Sampling, s: &mut Stream) -> Result<bool> {
        let x = sampling;
        if *x == self.sampling {
            return Ok(false);
        }
        let history = self.history.t()?;
        let call = Sample::new(&self.logits, &self.tokens[0]).temperature(x.temperature).top_p(x.top_p).min_p(x.min_p);
        call.repetition_penalty(x.repetition_penalty, &history).desc()?;
        for (tensor, value) in self.floats.iter().zip([x.temperature, x.top_p, x.min_p, x.repetition_penalty]) {
            tensor.write_on(&[value], s)?;
        }
        self.top_k.write_on(&[x.top_k], s)?;
        #[allow(clippy::cast_possible_truncation)] // Two words of one number.
        self.seed.write_on(&[x.seed as u32, (x.seed >> 32) as u32], s)?;
        self.sampling = *sampling;
        Ok(true)
    }

    pub(super) fn method(&self) -> Method {
        self.sampling.method()
    }

    /// Chooses the token for `positions[side]` into `tokens[side]`.
    pub(super) fn choose(&self, s: &mut Stream, method: Method, side: usize) -> tessl::Result<()> {
        let (token, position) = (&self.tokens[side], &self.positions[side]);
        let history = self.history.t()?;
        let [temperature, top_p, min_p, penalty] = self.floats.each_ref().map(Scalar::Device);
        let drawn = || {
            Sample::new(&self.logits, token)
                .temperature(temperature)
                .top_k(Scalar::Device(&self.top_k))
                .top_p(top_p)
                .min_p(min_p)
                .seed(Scalar::Device(&self.seed))
                .position(Scalar::Device(position))
        };
        match method {
            Method::Largest => ArgMax::new(&self.logits, token).run_on(s)?,
            Method::Drawn => drawn().run_on(s)?,
            Method::Penalised => drawn().repetition_penalty(penalty, &history).run_on(s)?,
        }
        ScatterRows::new(&token.reshape(&[1, 1])?, position, &self.history).run_on(s)
    }

    /// `positions[other side] = positions[side] + 1`.
    pub(super) fn advance(&self, s: &mut Stream, side: usize) -> tessl::Result<()> {
        let next = self.positions[1 - side].reshape(&[1, 1])?;
        GatherRows::new(&self.successors, &self.positions[side], &next).run_on(s)
    }

    /// Notes tokens that were given, or that the one at `from` is no longer there.
    pub(super) fn note(&self, s: &mut Stream, from: usize, tokens: &[u32]) -> tessl::Result<()> {
        self.history.narrow(0, from, tokens.len())?.write_on(tokens, s)
    }

    /// Forgets the tokens from `from` on.
    pub(super) fn forget(&self, s: &mut Stream, from: usize) -> tessl::Result<()> {
        let rows = self.history.shape()[0];
        self.note(s, from, &vec![NONE; rows - from])
    }
}
