//! Random activations.

use super::Problem;
use crate::env::Env;
use crate::mlp::MlpProblem;
use crate::rowwise::RowCase;
use tessl::nn::MlpOp;
use tessl::{Activation, DType};
use tessl_oracle::Rng;

impl Problem for MlpProblem {
    fn make(env: &Env, rng: &mut Rng, turn: usize) -> Self {
        MlpProblem {
            op: MlpOp::ALL[turn % 2],
            activation: *rng.pick(&Activation::ALL),
            dtype: [DType::F32, DType::F16, DType::Bf16][turn / 2 % 3],
            rows: RowCase::random(env, rng, turn / 6, 200_000),
        }
    }

    fn check(&self, env: &Env) -> Result<(), String> {
        MlpProblem::check(self, env)
    }

    fn simpler(&self) -> Vec<Self> {
        let rows = self.rows.simpler().into_iter().map(|rows| MlpProblem { rows, ..self.clone() });
        let plain = MlpProblem { activation: Activation::None, ..self.clone() };
        rows.chain([plain]).filter(|p| p != self).collect()
    }
}
