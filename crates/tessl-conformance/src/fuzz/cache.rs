//! Random stores into caches.

use super::Problem;
use crate::cache::{CacheProblem, From, Kind, random};
use crate::env::Env;
use tessl::BufferKind;
use tessl_oracle::Rng;

impl Problem for CacheProblem {
    fn make(_: &Env, rng: &mut Rng, turn: usize) -> Self {
        random(rng, turn)
    }

    fn check(&self, env: &Env) -> Result<(), String> {
        CacheProblem::check(self, env)
    }

    fn simpler(&self) -> Vec<Self> {
        let base = || self.clone();
        let paged = matches!(self.cache, Kind::Paged(_));
        let mut all = vec![
            CacheProblem { batch: 1, ..base() },
            CacheProblem { heads: 1, ..base() },
            CacheProblem { tokens: 1, ..base() },
            CacheProblem { capacity: if paged { self.capacity } else { self.tokens }, ..base() },
            CacheProblem { dim: (self.dim / 2).max(1), ..base() },
            CacheProblem { dim: (self.dim - 1).max(1), ..base() },
            CacheProblem { pair: false, ..base() },
            CacheProblem { coded: false, ..base() },
            CacheProblem { from: From::Host, ..base() },
            CacheProblem { pad: 0, ..base() },
            CacheProblem { offset: 0, ..base() },
            CacheProblem { kind: BufferKind::Cold, ..base() },
        ];
        all.retain(|p| p != self);
        all
    }
}
