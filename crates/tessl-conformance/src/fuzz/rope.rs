//! Random rotary embeddings.

use super::Problem;
use crate::env::Env;
use crate::rope::{RopeProblem, Source, random};
use tessl_oracle::Rng;

impl Problem for RopeProblem {
    fn make(env: &Env, rng: &mut Rng, turn: usize) -> Self {
        random(env, rng, turn)
    }

    fn check(&self, env: &Env) -> Result<(), String> {
        RopeProblem::check(self, env)
    }

    fn simpler(&self) -> Vec<Self> {
        let fits = |p: &RopeProblem| p.rows.n >= p.dims && p.rows.outer.len() > p.axis && p != self;
        let rows = self.rows.simpler().into_iter().map(|rows| RopeProblem { rows, ..self.clone() });
        let others = [
            RopeProblem { dims: (self.dims / 4 * 2).max(2), ..self.clone() },
            RopeProblem { source: Source::Host(1), ..self.clone() },
            RopeProblem { axis: 0, ..self.clone() },
        ];
        rows.chain(others).filter(fits).collect()
    }
}
