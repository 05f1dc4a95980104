//! Random sorts by expert, and sums of their rows.

use super::Problem;
use crate::env::Env;
use crate::experts::{ExpertsProblem, random};
use tessl::{BufferKind, DType};
use tessl_oracle::Rng;

impl Problem for ExpertsProblem {
    fn make(_: &Env, rng: &mut Rng, turn: usize) -> Self {
        random(rng, turn)
    }

    fn check(&self, env: &Env) -> Result<(), String> {
        ExpertsProblem::check(self, env)
    }

    fn simpler(&self) -> Vec<Self> {
        let base = || self.clone();
        let mut all = vec![
            ExpertsProblem { outer: vec![1], ..base() },
            ExpertsProblem { each: 1, ..base() },
            ExpertsProblem { experts: 1, ..base() },
            ExpertsProblem { n: (self.n / 2).max(1), ..base() },
            ExpertsProblem { n: (self.n - 1).max(1), ..base() },
            ExpertsProblem { residual: None, ..base() },
            ExpertsProblem { weights: DType::F32, ..base() },
            ExpertsProblem { pad: 0, ..base() },
            ExpertsProblem { offset: 0, ..base() },
            ExpertsProblem { kind: BufferKind::Cold, ..base() },
        ];
        all.retain(|p| p != self);
        all
    }
}
