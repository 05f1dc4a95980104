//! Memory for what stands between the operations of a pass.

use super::cache::Place;
use crate::config::ModelConfig;
use crate::error::Result;
use tessl::nn::{GatherRows, RmsNorm};
use tessl::{BufferKind, DType, GpuRuntime, Stream, Tensor};

/// Room for what stands between the operations, for up to some number of tokens.
#[derive(Clone, Debug)]
pub(crate) struct Room {
    /// The residual stream [T, width].
    pub(crate) x: Tensor,
    /// Where it is while it alternates.
    other: Tensor,
    /// A norm of it, or what is added to it [T, width].
    pub(crate) normed: Tensor,
    /// Queries, keys and values side by side [T, heads, head].
    pub(super) qkv: Tensor,
    pub(super) attended: Tensor,
    pub(super) gate: Tensor,
    pub(super) up: Tensor,
    pub(super) ring: Option<Ring>,
}

impl Room {
    /// For passes of up to `tokens` tokens of a sequence of up to `capacity`.
    pub(crate) fn new(rt: &GpuRuntime, c: &ModelConfig, tokens: usize, capacity: usize) -> Result<Self> {
        let zeros = |shape: &[usize]| rt.zeros(c.activations, shape, BufferKind::Hot);
        let window = c.window.filter(|w| *w < capacity && (0..c.layers).any(|layer| c.has_window(layer)));
        let ring = |window: usize| -> Result<Ring> {
            let slots = u32::try_from(window).expect("INVARIANT: dimensions were checked");
            let filled: Vec<u32> = (1..=slots).chain(std::iter::repeat(slots)).take(capacity).collect();
            let both = [1, window - 1 + tokens, c.kv_heads, c.head_dim];
            Ok(Ring {
                filled_at: rt.from_slice(&filled, &[capacity, 1])?,
                filled: rt.zeros(DType::U32, &[1], BufferKind::Hot)?,
                k: zeros(&both)?,
                v: zeros(&both)?,
            })
        };
        Ok(Room {
            ring: window.map(ring).transpose()?,
            x: zeros(&[tokens, c.width])?,
            other: zeros(&[tokens, c.width])?,
            normed: zeros(&[tokens, c.width])?,
            qkv: zeros(&[tokens, c.heads + 2 * c.kv_heads, c.head_dim])?,
            attended: zeros(&[tokens, c.heads, c.head_dim])?,
            gate: zeros(&[tokens, c.feed_forward])?,
            up: zeros(&[tokens, c.feed_forward])?,
        })
    }

    /// The same room for fewer tokens.
    pub(crate) fn narrow(&self, tokens: usize) -> tessl::Result<Self> {
        let part = |t: &Tensor| t.narrow(0, 0, tokens);
        Ok(Room {
            x: part(&self.x)?,
            other: part(&self.other)?,
            normed: part(&self.normed)?,
            qkv: part(&self.qkv)?,
            attended: part(&self.attended)?,
            gate: part(&self.gate)?,
            up: part(&self.up)?,
            ring: self.ring.clone(),
        })
    }

    /// Reads the place of a single token.
    pub(super) fn look(&self, s: &mut Stream, place: Place<'_>) -> tessl::Result<()> {
        match &self.ring {
            Some(ring) if self.x.shape()[0] == 1 => {
                Ok(GatherRows::new(&ring.filled_at, place.start, &ring.filled.reshape(&[1, 1])?).run_on(s)?)
            }
            _ => Ok(()),
        }
    }
}

/// The residual stream on its way through the layers.
#[derive(Debug)]
pub(super) struct Hidden<'a> {
    pub(super) x: &'a Tensor,
    /// Other memory of its size.
    pub(super) other: &'a Tensor,
    /// The weight of a norm: that of `Room::normed` is still to be added.
    pub(super) owed: Option<&'a Tensor>,
}

impl<'a> Hidden<'a> {
    pub(super) fn new(room: &'a Room) -> Self {
        Hidden { x: &room.x, other: &room.other, owed: None }
    }

    pub(super) fn swap(&mut self) {
        std::mem::swap(&mut self.x, &mut self.other);
    }

    /// Adds what is owed, and writes the norm of the stream over `normed`.
    pub(super) fn normalise(
        &mut self,
        s: &mut Stream,
        c: &ModelConfig,
        weight: &Tensor,
        normed: &Tensor,
    ) -> tessl::Result<()> {
        let norm = match self.owed.take() {
            None => RmsNorm::new(self.x, weight, normed),
            Some(owed) => RmsNorm::new(normed, owed, self.x).then_add(self.x).then_norm(weight, normed),
        };
        norm.eps(c.eps).run_on(s)
    }

    /// Adds what is owed, with the sum in `to`, which is where the stream is when nothing is owed.
    pub(super) fn settle(&mut self, s: &mut Stream, c: &ModelConfig, added: &Tensor, to: &Tensor) -> tessl::Result<()> {
        let Some(norm) = self.owed.take() else { return Ok(()) };
        RmsNorm::new(added, norm, to).eps(c.eps).then_add(self.x).run_on(s)
    }
}

/// What rings need beside themselves.
#[derive(Clone, Debug)]
pub(super) struct Ring {
    /// Filled slots after the token at each position [capacity, 1], and for the current token [1].
    filled_at: Tensor,
    pub(super) filled: Tensor,
    /// The last keys and values in the order of their positions, and those of a chunk [1, window - 1 + T, KV heads, head].
    pub(super) k: Tensor,
    pub(super) v: Tensor,
}
