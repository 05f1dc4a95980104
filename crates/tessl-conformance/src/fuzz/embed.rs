//! Random lookups.

use super::Problem;
use crate::embed::{EmbedProblem, random};
use crate::env::Env;
use tessl::BufferKind;
use tessl_oracle::Rng;

impl Problem for EmbedProblem {
    fn make(_: &Env, rng: &mut Rng, turn: usize) -> Self {
        random(rng, turn)
    }

    fn check(&self, env: &Env) -> Result<(), String> {
        EmbedProblem::check(self, env)
    }

    fn simpler(&self) -> Vec<Self> {
        let base = || self.clone();
        let mut all = vec![
            EmbedProblem { outer: vec![1], ..base() },
            EmbedProblem { vocabulary: 1, ..base() },
            EmbedProblem { kind: BufferKind::Cold, ..base() },
            EmbedProblem { pads: [0; 2], ..base() },
            EmbedProblem { offset: 0, ..base() },
            EmbedProblem { stride: 1, ..base() },
            EmbedProblem { scaled: false, ..base() },
            EmbedProblem { n: (self.n / 2).max(1), ..base() },
            EmbedProblem { n: (self.n - 1).max(1), ..base() },
        ];
        all.retain(|p| p != self);
        all
    }
}
