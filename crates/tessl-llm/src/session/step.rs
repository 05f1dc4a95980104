//! One token in, the next one chosen: the commands that a graph records.

use super::choice::{Choice, Method};
use crate::model::{Cache, Model, Place, Room};
use tessl::Stream;

/// What the commands of a step depend on; all else is in device memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Form {
    /// Keys that the commands are planned for.
    pub(super) keys: usize,
    pub(super) method: Method,
    /// The side of tokens and positions that is read.
    pub(super) side: usize,
}

/// What a step works on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Step<'a> {
    pub(super) model: &'a Model,
    pub(super) caches: &'a [Cache],
    pub(super) room: &'a Room,
    pub(super) choice: &'a Choice,
}

impl Step<'_> {
    /// Takes in the token of a side and chooses the one of the other side.
    pub(super) fn encode(self, s: &mut Stream, form: Form) -> tessl::Result<()> {
        self.take_in(s, form.keys, form.side)?;
        self.choice.advance(s, form.side)?;
        self.choice.choose(s, form.method, 1 - form.side)
    }

    /// The logits after the token of a side.
    pub(super) fn take_in(self, s: &mut Stream, keys: usize, side: usize) -> tessl::Result<()> {
        let place = Place { start: &self.choice.positions[side], position: None, keys };
        let room = self.room.narrow(1)?;
        self.model.forward(s, &self.choice.tokens[side], place, &room, self.caches)?;
        self.model.logits(s, &room.x, &room.normed, &self.choice.logits)
    }
}
