//! One conversation: caches, position and the tokens that follow.

use crate::error::{LlmError, Result};
use crate::model::{Cache, Model, Room};
use tessl::nn::{ArgMax, LogSoftmax};
use tessl::{BufferKind, DType, Stream, Tensor};

/// Tokens that go through the layers together.
const CHUNK: usize = 512;

/// The state of one sequence.
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
    /// Logits of the last token [1, vocabulary].
    logits: Tensor,
    choice: Tensor,
    position: usize,
    capacity: usize,
}

impl<'m> Session<'m> {
    /// An empty sequence with room for `capacity` tokens.
    ///
    /// # Errors
    /// `Unsupported` for more tokens than the model was made for, what tessl reports.
    pub fn new(model: &'m Model, capacity: usize) -> Result<Self> {
        let (rt, c) = (model.runtime(), model.config());
        if capacity == 0 || capacity > c.context {
            let what = format!("a sequence of {capacity} tokens");
            return Err(LlmError::unsupported(what, format!("this model takes 1 to {}", c.context)));
        }
        let vocabulary = model.tokenizer().vocabulary();
        Ok(Session {
            stream: rt.stream()?,
            caches: (0..c.layers).map(|_| Cache::new(rt, c, capacity)).collect::<Result<_>>()?,
            room: Room::new(rt, c, CHUNK.min(capacity))?,
            ids: rt.zeros(DType::U32, &[CHUNK.min(capacity)], BufferKind::Hot)?,
            start: rt.zeros(DType::U32, &[1], BufferKind::Hot)?,
            logits: rt.zeros(DType::F32, &[1, vocabulary], BufferKind::Hot)?,
            choice: rt.zeros(DType::U32, &[1], BufferKind::Hot)?,
            position: 0,
            capacity,
            model,
        })
    }

    /// Number of tokens so far.
    pub fn position(&self) -> usize {
        self.position
    }

    /// Takes tokens in; afterwards the logits are those of the last one.
    ///
    /// # Errors
    /// `Tokenizer` for ids outside the vocabulary, no tokens, or more than there is room for; nothing is taken in then.
    pub fn extend(&mut self, tokens: &[u32]) -> Result<()> {
        self.check(tokens)?;
        let mut last = 0;
        for chunk in tokens.chunks(self.ids.len()) {
            self.forward(chunk)?;
            last = chunk.len() - 1;
        }
        let (x, normed) = (self.room.x.narrow(0, last, 1)?, self.room.normed.narrow(0, last, 1)?);
        self.model.logits(&mut self.stream, &x, &normed, &self.logits)
    }

    /// The most likely next token.
    ///
    /// # Errors
    /// What tessl reports.
    pub fn best(&mut self) -> Result<u32> {
        ArgMax::new(&self.logits, &self.choice).run_on(&mut self.stream)?;
        Ok(self.choice.read::<u32>()?[0])
    }

    /// Logits of the last token.
    ///
    /// # Errors
    /// What tessl reports.
    pub fn logits(&mut self) -> Result<Vec<f32>> {
        Ok(self.logits.read::<f32>()?)
    }

    /// Takes tokens in and gives `-ln p(token)` for each but the first.
    ///
    /// # Errors
    /// As [`extend`](Self::extend).
    pub fn score(&mut self, tokens: &[u32]) -> Result<Vec<f32>> {
        self.check(tokens)?;
        let vocabulary = self.logits.shape()[1];
        let mut scores = Vec::new();
        let all = self.model.runtime().uninit(DType::F32, &[self.ids.len(), vocabulary], BufferKind::Cold)?;
        for (number, chunk) in tokens.chunks(self.ids.len()).enumerate() {
            self.forward(chunk)?;
            let room = self.room.narrow(chunk.len())?;
            let logits = all.narrow(0, 0, chunk.len())?;
            self.model.logits(&mut self.stream, &room.x, &room.normed, &logits)?;
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
    pub fn clear(&mut self) {
        self.position = 0;
    }

    fn check(&self, tokens: &[u32]) -> Result<()> {
        let vocabulary = self.model.tokenizer().vocabulary();
        if let Some(token) = tokens.iter().find(|&&t| t as usize >= vocabulary) {
            return Err(LlmError::Tokenizer(format!("token {token} is not one of {vocabulary}")));
        }
        if tokens.is_empty() {
            return Err(LlmError::Tokenizer("no tokens".to_owned()));
        }
        if tokens.len() > self.capacity - self.position {
            let (n, left) = (tokens.len(), self.capacity - self.position);
            return Err(LlmError::Tokenizer(format!("{n} tokens, there is room for {left}")));
        }
        Ok(())
    }

    fn forward(&mut self, chunk: &[u32]) -> Result<()> {
        let ids = self.ids.narrow(0, 0, chunk.len())?;
        ids.write_on(chunk, &mut self.stream)?;
        let start = u32::try_from(self.position).expect("INVARIANT: the capacity was checked");
        self.start.write_on(&[start], &mut self.stream)?;
        let room = self.room.narrow(chunk.len())?;
        self.model.forward(&mut self.stream, &ids, &self.start, &room, &self.caches)?;
        self.position += chunk.len();
        Ok(())
    }
}
