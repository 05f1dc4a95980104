//! Random copies, gathers and scatters.

use super::Problem;
use crate::env::Env;
use crate::movement::CopyProblem;
use crate::movement::rows::RowsProblem;
use tessl::BufferKind;
use tessl_oracle::Rng;

/// A problem of the family.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Movement {
    Copy(CopyProblem),
    Rows(RowsProblem),
}

impl Problem for Movement {
    fn make(_: &Env, rng: &mut Rng, turn: usize) -> Self {
        if turn.is_multiple_of(2) {
            Movement::Copy(CopyProblem::random(rng, turn / 2, 60_000))
        } else {
            Movement::Rows(RowsProblem::random(rng, turn / 2))
        }
    }

    fn check(&self, env: &Env) -> Result<(), String> {
        match self {
            Movement::Copy(p) => p.check(env),
            Movement::Rows(p) => p.check(env),
        }
    }

    fn simpler(&self) -> Vec<Self> {
        let mut all = match self {
            Movement::Copy(p) => {
                let base = || p.clone();
                let halves = p.shape.iter().map(|&extent| (extent / 2).max(1)).collect();
                vec![
                    CopyProblem { broadcast: 0, ..base() },
                    CopyProblem { pads: [0; 2], ..base() },
                    CopyProblem { steps: [1; 2], ..base() },
                    CopyProblem { offset: 0, ..base() },
                    CopyProblem { kind: BufferKind::Cold, ..base() },
                    CopyProblem { orders: [p.orders[0].clone(), p.orders[0].clone()], ..base() },
                    CopyProblem { shape: halves, ..base() },
                ]
                .into_iter()
                .map(Movement::Copy)
                .collect::<Vec<_>>()
            }
            Movement::Rows(p) => {
                let base = || p.clone();
                [
                    RowsProblem { outer: vec![1], ..base() },
                    RowsProblem { table: 1, ..base() },
                    RowsProblem { kind: BufferKind::Cold, ..base() },
                    RowsProblem { pads: [0; 2], ..base() },
                    RowsProblem { offset: 0, ..base() },
                    RowsProblem { stride: 1, ..base() },
                    RowsProblem { weights: None, ..base() },
                    RowsProblem { n: (p.n / 2).max(1), ..base() },
                    RowsProblem { n: (p.n - 1).max(1), ..base() },
                ]
                .map(Movement::Rows)
                .into()
            }
        };
        all.retain(|p| p != self);
        all
    }
}
