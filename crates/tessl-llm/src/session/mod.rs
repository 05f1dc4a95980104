//! One conversation: caches, position and the tokens that follow.

mod choice;
mod step;

pub use choice::Sampling;

use crate::error::{LlmError, Result};
use crate::model::{Cache, Model, Place, Room};
use choice::Choice;
use step::{Form, Step};
use tessl::nn::{ArgMax, Copy, LogSoftmax};
use tessl::{Buckets, BufferKind, DType, DeviceKind, GraphSet, GraphStats, Stream, Tensor};

/// Tokens that go through the layers together.
const CHUNK: usize = 512;
/// Lengths up to this one share a graph.
const LEAST_BUCKET: usize = 256;
/// Graphs of a session, at most: a dozen buckets with two sides and two ways to choose.
const GRAPHS: usize = 48;

/// The state of one sequence.
///
/// ```no_run
/// use tessl_llm::{Model, Sampling, Session, WeightFile};
///
/// # fn main() -> Result<(), tessl_llm::LlmError> {
/// let model = Model::load(&tessl::GpuRuntime::new()?, &WeightFile::open("model.gguf")?)?;
/// let mut session = Session::new(&model, 256)?;
/// session.extend(&model.tokenizer().encode("The capital of France is")?)?;
/// let sampling = Sampling { temperature: 0.8, top_p: 0.95, seed: 1, ..Sampling::GREEDY };
/// let answer = (0..16).map(|_| session.generate(&sampling)).collect::<Result<Vec<_>, _>>()?;
/// println!("{}", model.tokenizer().decode(&answer)?);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Session<'m> {
    model: &'m Model,
    stream: Stream,
    caches: Vec<Cache>,
    room: Room,
    /// Ids of a chunk.
    ids: Tensor,
    /// Where the chunk begins: one u32 that kernels read.
    start: Tensor,
    choice: Choice,
    best: Tensor,
    graphs: GraphSet<Form>,
    buckets: Buckets,
    captures: bool,
    ahead: bool,
    /// The step that takes the chosen token in has been given to the device.
    queued: bool,
    /// Tokens whose keys and values are in the caches.
    position: usize,
    /// The token of this side was chosen and has not been taken in.
    chosen: Option<usize>,
    capacity: usize,
}

impl<'m> Session<'m> {
    /// An empty sequence with room for `capacity` tokens.
    ///
    /// # Errors
    /// `Unsupported` for more tokens than the model was made for, what tessl reports.
    pub fn new(model: &'m Model, capacity: usize) -> Result<Self> {
        let (rt, c) = (model.runtime(), model.config());
        let rows = u32::try_from(capacity).ok().filter(|_| (1..=c.context).contains(&capacity));
        let Some(rows) = rows else {
            let what = format!("a sequence of {capacity} tokens");
            return Err(LlmError::unsupported(what, format!("this model takes 1 to {}", c.context)));
        };
        Ok(Session {
            stream: rt.stream()?,
            caches: (0..c.layers).map(|layer| Cache::new(rt, c, layer, capacity)).collect::<Result<_>>()?,
            room: Room::new(rt, c, CHUNK.min(capacity), capacity)?,
            ids: rt.zeros(DType::U32, &[CHUNK.min(capacity)], BufferKind::Hot)?,
            start: rt.zeros(DType::U32, &[1], BufferKind::Hot)?,
            choice: Choice::new(rt, model.tokenizer().vocabulary(), rows)?,
            best: rt.zeros(DType::U32, &[1], BufferKind::Hot)?,
            graphs: GraphSet::new(GRAPHS),
            buckets: Buckets::new(LEAST_BUCKET, capacity),
            captures: true,
            ahead: rt.profile().kind != DeviceKind::Cpu,
            queued: false,
            position: 0,
            chosen: None,
            capacity,
            model,
        })
    }

    /// Number of tokens so far, generated ones included.
    pub fn position(&self) -> usize {
        self.position + usize::from(self.chosen.is_some())
    }

    /// Takes tokens in; afterwards the logits are those of the last one.
    ///
    /// # Errors
    /// `Tokenizer` for ids outside the vocabulary, no tokens, or more than there is room for; nothing is taken in then.
    pub fn extend(&mut self, tokens: &[u32]) -> Result<()> {
        self.check(tokens)?;
        self.take_in()?;
        let mut last = 0;
        for chunk in tokens.chunks(self.ids.len()) {
            self.forward(chunk)?;
            last = chunk.len() - 1;
        }
        let (x, normed) = (self.room.x.narrow(0, last, 1)?, self.room.normed.narrow(0, last, 1)?);
        Ok(self.model.logits(&mut self.stream, &x, &normed, &self.choice.logits)?)
    }

    /// Chooses the next token and adds it to the sequence. The caches take it in with the next call, so that the last token of
    /// an answer costs no step.
    ///
    /// # Errors
    /// `Tokenizer` for a sequence that is empty or full, `Scalar` for numbers outside their domains, what tessl reports.
    pub fn generate(&mut self, sampling: &Sampling) -> Result<u32> {
        if self.position() == 0 || self.position() > self.capacity {
            let (n, room) = (self.position(), self.capacity);
            return Err(LlmError::Tokenizer(format!("a sequence of {n} tokens with room for {room} has no next one")));
        }
        let changed = self.choice.set(sampling, &mut self.stream)?;
        let side = match self.chosen {
            None => {
                let position = counted(self.position);
                self.choice.positions[0].write_on(&[position], &mut self.stream)?;
                self.choice.choose(&mut self.stream, self.choice.method(), 0)?;
                0
            }
            Some(side) => {
                if !self.queued {
                    self.step(side)?;
                } else if changed {
                    // The step took the token in, but chose the next one in the old way.
                    self.choice.choose(&mut self.stream, self.choice.method(), 1 - side)?;
                }
                (self.position, self.queued) = (self.position + 1, false);
                1 - side
            }
        };
        self.chosen = Some(side);
        if self.ahead && self.position < self.capacity {
            self.step(side)?;
            self.queued = true;
        }
        Ok(self.choice.tokens[side].read::<u32>()?[0])
    }

    /// Whether steps of [`generate`](Self::generate) are captured once and replayed (as they are to begin with) or encoded anew.
    /// The results have the same bits.
    pub fn capture(&mut self, captures: bool) {
        self.captures = captures;
    }

    /// Whether the step that takes a token in is given to the device before the token is read, so that the device does not wait
    /// for the host. To begin with it is so on GPUs; the CPU would only finish a step before it tells the token.
    pub fn run_ahead(&mut self, ahead: bool) {
        self.ahead = ahead;
    }

    /// Graphs made and steps replayed so far.
    pub fn graph_stats(&self) -> GraphStats {
        self.graphs.stats()
    }

    /// The most likely next token; it is not added.
    ///
    /// # Errors
    /// What tessl reports.
    pub fn best(&mut self) -> Result<u32> {
        self.take_in()?;
        ArgMax::new(&self.choice.logits, &self.best).run_on(&mut self.stream)?;
        Ok(self.best.read::<u32>()?[0])
    }

    /// Logits of the last token.
    ///
    /// # Errors
    /// What tessl reports.
    pub fn logits(&mut self) -> Result<Vec<f32>> {
        self.take_in()?;
        Ok(self.choice.logits.read::<f32>()?)
    }

    /// Takes tokens in and gives `-ln p(token)` for each but the first.
    ///
    /// # Errors
    /// As [`extend`](Self::extend).
    pub fn score(&mut self, tokens: &[u32]) -> Result<Vec<f32>> {
        self.check(tokens)?;
        self.take_in()?;
        let vocabulary = self.choice.logits.shape()[1];
        let mut scores = Vec::new();
        let all = self.model.runtime().uninit(DType::F32, &[self.ids.len(), vocabulary], BufferKind::Cold)?;
        for (number, chunk) in tokens.chunks(self.ids.len()).enumerate() {
            self.forward(chunk)?;
            let room = self.room.narrow(chunk.len())?;
            let logits = all.narrow(0, 0, chunk.len())?;
            self.model.logits(&mut self.stream, &room.x, &room.normed, &logits)?;
            Copy::new(&logits.narrow(0, chunk.len() - 1, 1)?, &self.choice.logits).run_on(&mut self.stream)?;
            LogSoftmax::new(&logits, &logits).run_on(&mut self.stream)?;
            let first = number * self.ids.len() + 1;
            for (row, &next) in tokens[first.min(tokens.len())..].iter().take(chunk.len()).enumerate() {
                let likely = logits.narrow(0, row, 1)?.narrow(1, next as usize, 1)?;
                scores.push(-likely.read::<f32>()?[0]);
            }
        }
        Ok(scores)
    }

    /// Forgets all tokens.
    ///
    /// # Errors
    /// What tessl reports.
    pub fn clear(&mut self) -> Result<()> {
        self.choice.forget(&mut self.stream, 0)?;
        (self.position, self.chosen, self.queued) = (0, None, false);
        Ok(())
    }

    fn check(&self, tokens: &[u32]) -> Result<()> {
        let vocabulary = self.model.tokenizer().vocabulary();
        if let Some(token) = tokens.iter().find(|&&t| t as usize >= vocabulary) {
            return Err(LlmError::Tokenizer(format!("token {token} is not one of {vocabulary}")));
        }
        if tokens.is_empty() {
            return Err(LlmError::Tokenizer("no tokens".to_owned()));
        }
        let left = self.capacity.saturating_sub(self.position());
        if tokens.len() > left {
            return Err(LlmError::Tokenizer(format!("{} tokens, there is room for {left}", tokens.len())));
        }
        Ok(())
    }

    /// Takes in the token that was chosen last, when it is not yet.
    fn take_in(&mut self) -> Result<()> {
        let Some(side) = self.chosen else { return Ok(()) };
        if self.position == self.capacity {
            return Err(LlmError::Tokenizer(format!(
                "there is room for {} tokens, the last one has none",
                self.capacity
            )));
        }
        if self.queued {
            self.choice.forget(&mut self.stream, self.position + 1)?;
        } else {
            let keys = self.keys(self.position + 1);
            let Session { model, stream, caches, room, choice, .. } = self;
            Step { model, caches, room, choice }.take_in(stream, keys, side)?;
        }
        (self.position, self.chosen, self.queued) = (self.position + 1, None, false);
        Ok(())
    }

    /// Takes in the token of `side` and chooses the one of the other side.
    fn step(&mut self, side: usize) -> Result<()> {
        let form = Form { keys: self.keys(self.position + 1), method: self.choice.method(), side };
        let Session { model, stream, caches, room, choice, graphs, .. } = self;
        let step = Step { model, caches, room, choice };
        if self.captures {
            graphs.run(stream, form, |s| step.encode(s, form))?;
        } else {
            step.encode(stream, form)?;
        }
        Ok(())
    }

    /// Keys that commands for a sequence of `length` tokens are planned for.
    fn keys(&self, length: usize) -> usize {
        self.buckets.of(length).expect("INVARIANT: the capacity was checked")
    }

    fn forward(&mut self, chunk: &[u32]) -> Result<()> {
        let ids = self.ids.narrow(0, 0, chunk.len())?;
        ids.write_on(chunk, &mut self.stream)?;
        self.choice.note(&mut self.stream, self.position, chunk)?;
        self.start.write_on(&[counted(self.position)], &mut self.stream)?;
        let room = self.room.narrow(chunk.len())?;
        let keys = self.keys(self.position + chunk.len());
        let place = Place { start: &self.start, position: Some(self.position), keys };
        self.model.forward(&mut self.stream, &ids, place, &room, &self.caches)?;
        self.position += chunk.len();
        Ok(())
    }
}

/// Positions fit into 32 bits.
fn counted(position: usize) -> u32 {
    u32::try_from(position).expect("INVARIANT: the capacity was checked")
}
