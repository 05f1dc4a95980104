//! Random attention.

use super::Problem;
use crate::attention::{AttentionProblem, Causal, Packed, random};
use crate::env::Env;
use tessl::BufferKind;
use tessl_oracle::Rng;

impl Problem for AttentionProblem {
    fn make(env: &Env, rng: &mut Rng, turn: usize) -> Self {
        random(env, rng, turn)
    }

    fn check(&self, env: &Env) -> Result<(), String> {
        AttentionProblem::check(self, env)
    }

    fn simpler(&self) -> Vec<Self> {
        let base = || self.clone();
        let half = |n: usize| (n / 2).max(1);
        let mut all = vec![
            AttentionProblem { batch: 1, ..base() },
            AttentionProblem { kv_heads: 1, ..base() },
            AttentionProblem { group: 1, ..base() },
            AttentionProblem { dim: half(self.dim), ..base() },
            AttentionProblem { keys: half(self.keys), ..base() },
            AttentionProblem { keys: (self.keys - 1).max(1), ..base() },
            AttentionProblem { queries: half(self.queries), ..base() },
            AttentionProblem { queries: (self.queries - 1).max(1), ..base() },
            AttentionProblem { kind: BufferKind::Cold, ..base() },
            AttentionProblem { causal: Causal::Full, window: None, ..base() },
            AttentionProblem { window: None, ..base() },
            AttentionProblem { page: None, ..base() },
            AttentionProblem { packed: Packed::No, ..base() },
            AttentionProblem { lengths: self.page.is_some(), ..base() },
            AttentionProblem { mask: None, ..base() },
            AttentionProblem { repeated: 0, ..base() },
            AttentionProblem { sinks: false, ..base() },
            AttentionProblem { scale: None, ..base() },
            AttentionProblem { softcap: None, ..base() },
            AttentionProblem { coded: false, ..base() },
            AttentionProblem { permuted: false, ..base() },
            AttentionProblem { poison: false, ..base() },
            AttentionProblem { pad: 0, ..base() },
            AttentionProblem { offset: 0, ..base() },
        ];
        all.retain(|p| p != self);
        all
    }
}
