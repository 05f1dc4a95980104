//! Random reductions.

use super::Problem;
use crate::env::Env;
use crate::reduce::{ReduceProblem, types};
use crate::rowwise::RowCase;
use tessl::DType;
use tessl::nn::ReduceOp;
use tessl_oracle::Rng;

impl Problem for ReduceProblem {
    fn make(env: &Env, rng: &mut Rng, turn: usize) -> Self {
        // Kernels in turn, each aligned and not.
        let all: Vec<_> =
            ReduceOp::ALL.into_iter().flat_map(|op| types(op).into_iter().map(move |t| (op, t))).collect();
        let (op, pair) = all[turn % all.len()];
        let rows = RowCase::random(env, rng, turn / all.len(), 100_000);
        let plain = ReduceProblem::new(op, pair, rows);
        if !matches!(op, ReduceOp::Softmax | ReduceOp::LogSoftmax) {
            return plain;
        }
        ReduceProblem {
            mask: *rng.pick(&[None, None, Some(DType::U8), Some(DType::F32), Some(DType::F16), Some(DType::Bf16)]),
            scale: *rng.pick(&[1.0, 1.0, 0.1, -3.0]),
            softcap: *rng.pick(&[None, None, Some(50.0), Some(1.0)]),
            ..plain
        }
    }

    fn check(&self, env: &Env) -> Result<(), String> {
        ReduceProblem::check(self, env)
    }

    fn simpler(&self) -> Vec<Self> {
        let rows = self.rows.simpler().into_iter().map(|rows| ReduceProblem { rows, ..self.clone() });
        let others = [
            ReduceProblem { mask: None, ..self.clone() },
            ReduceProblem { scale: 1.0, ..self.clone() },
            ReduceProblem { softcap: None, ..self.clone() },
        ];
        rows.chain(others).filter(|p| p != self).collect()
    }
}
