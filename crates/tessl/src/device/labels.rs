//! Names for an error that is reported for a batch without telling which command it was.

use crate::stream::Command;

/// The first and the last command of a batch.
#[derive(Clone, Copy)]
pub(super) struct Labels {
    first: &'static str,
    pub(super) last: &'static str,
    pub(super) count: usize,
}

impl Labels {
    pub(super) fn of(commands: &[Command]) -> Self {
        let label = |c: Option<&Command>| c.map_or("", |c| c.label);
        Labels { first: label(commands.first()), last: label(commands.last()), count: commands.len() }
    }

    pub(super) fn text(&self) -> String {
        match self.count {
            1 => format!("in `{}`", self.first),
            n => format!("in one of {n} commands from `{}` to `{}`", self.first, self.last),
        }
    }
}
