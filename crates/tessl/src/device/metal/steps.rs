//! What a replay of a graph does, step by step: commands to encode, and stretches of indirect commands to execute.

use crate::options::GraphOptions;
use std::ops::Range;

/// Commands of one execution, at most.
const RANGE: usize = 16_384;

/// How far one execution goes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Reach {
    /// One command: its bindings are those of the encoder.
    One,
    /// Up to the next barrier, which the encoder makes.
    Level,
    /// As far as commands are indirect; they have their barriers themselves.
    All,
}

impl Reach {
    pub(super) fn of(options: &GraphOptions) -> Self {
        match (options.freeze_binds, options.range_batch) {
            (Some(true), Some(true)) => Reach::All,
            (Some(true), _) => Reach::Level,
            _ => Reach::One,
        }
    }

    /// Whether an execution of `length` commands goes on with one that has this barrier.
    pub(super) fn takes(self, length: usize, barrier: bool) -> bool {
        let open = match self {
            Reach::One => false,
            Reach::Level => !barrier,
            Reach::All => true,
        };
        open && length < RANGE
    }
}

/// One step of a replay.
#[derive(Debug, PartialEq)]
pub(super) enum Step {
    /// Encodes a command.
    Encode { command: usize, barrier: bool },
    /// Runs indirect commands, which stand for these of the batch.
    Execute { slots: Range<usize>, commands: Range<usize>, barrier: bool },
}

impl Step {
    pub(super) fn commands(&self) -> Range<usize> {
        match self {
            Step::Encode { command, .. } => *command..command + 1,
            Step::Execute { commands, .. } => commands.clone(),
        }
    }
}

/// The steps of a replay, from (command, whether it waits for all before it, whether it is indirect).
pub(super) fn steps(commands: impl Iterator<Item = (usize, bool, bool)>, reach: Reach) -> Vec<Step> {
    let mut steps = Vec::new();
    let mut slot = 0;
    for (command, barrier, indirect) in commands {
        if !indirect {
            steps.push(Step::Encode { command, barrier });
            continue;
        }
        match steps.last_mut() {
            Some(Step::Execute { slots, commands, barrier: first }) if reach.takes(slots.len(), barrier) => {
                slots.end += 1;
                commands.end = command + 1;
                // A barrier inside an execution does not look at what is before the execution.
                *first |= barrier;
            }
            _ => steps.push(Step::Execute { slots: slot..slot + 1, commands: command..command + 1, barrier }),
        }
        slot += 1;
    }
    steps
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn executions_end_where_the_reach_does() {
        // Barriers before 1 and 4; command 3 is not indirect, command 2 does nothing.
        let commands = || [(0, false, true), (1, true, true), (3, false, false), (4, true, true), (5, false, true)];
        let live = || Step::Encode { command: 3, barrier: false };
        let run = |slots: Range<usize>, commands, barrier| Step::Execute { slots, commands, barrier };
        let all = steps(commands().into_iter(), Reach::All);
        assert_eq!(all, [run(0..2, 0..2, true), live(), run(2..4, 4..6, true)]);
        let level = steps(commands().into_iter(), Reach::Level);
        assert_eq!(level, [run(0..1, 0..1, false), run(1..2, 1..2, true), live(), run(2..4, 4..6, true)]);
        let one = steps(commands().into_iter(), Reach::One);
        assert_eq!(one.len(), 5);
        let many = steps((0..40_000).map(|i| (i, i == 39_999, true)), Reach::All);
        assert_eq!(many.len(), 3);
        assert_eq!(many[2], run(32_768..40_000, 32_768..40_000, true));
    }
}
