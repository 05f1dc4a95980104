//! Random calls of `norm_qkv_rope`.

use super::Problem;
use crate::cache::From;
use crate::env::Env;
use crate::qkv::{QkvProblem, random};
use tessl::BufferKind;
use tessl_oracle::Rng;

impl Problem for QkvProblem {
    fn make(_: &Env, rng: &mut Rng, turn: usize) -> Self {
        random(rng, turn)
    }

    fn check(&self, env: &Env) -> Result<(), String> {
        QkvProblem::check(self, env)
    }

    fn simpler(&self) -> Vec<Self> {
        let base = || self.clone();
        let mut all = vec![
            QkvProblem { outer: [1, 1], ..base() },
            QkvProblem { heads: [1, 1], ..base() },
            QkvProblem { dims: 2, ..base() },
            QkvProblem { residual: false, ..base() },
            QkvProblem { head_norms: false, ..base() },
            QkvProblem { bias: None, ..base() },
            QkvProblem { cache: None, ..base() },
            QkvProblem { offset: 0.0, ..base() },
            QkvProblem { from: From::Host, ..base() },
            QkvProblem { pad: 0, ..base() },
            QkvProblem { shift: 0, ..base() },
            QkvProblem { kind: BufferKind::Cold, ..base() },
        ];
        all.retain(|p| p != self);
        all
    }
}
