//! Random element-wise arithmetic.

use super::Problem;
use crate::elementwise::{ElementwiseProblem, Function, types};
use crate::env::Env;
use crate::rowwise::RowCase;
use tessl_oracle::Rng;

impl Problem for ElementwiseProblem {
    fn make(env: &Env, rng: &mut Rng, turn: usize) -> Self {
        // Kernels in turn, each aligned and not.
        let all: Vec<_> = Function::ALL.into_iter().flat_map(|f| types(f).into_iter().map(move |t| (f, t))).collect();
        let (function, (input, output)) = all[turn % all.len()];
        ElementwiseProblem { function, input, output, rows: RowCase::random(env, rng, turn / all.len(), 100_000) }
    }

    fn check(&self, env: &Env) -> Result<(), String> {
        ElementwiseProblem::check(self, env)
    }

    fn simpler(&self) -> Vec<Self> {
        self.rows.simpler().into_iter().map(|rows| ElementwiseProblem { rows, ..self.clone() }).collect()
    }
}
