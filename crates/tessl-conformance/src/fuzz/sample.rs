//! Random selections and draws.

use super::Problem;
use crate::env::Env;
use crate::sample::{PLAIN, SampleProblem, TopKProblem};
use tessl_oracle::{Rng, Sampling};

/// A problem of the family.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Choice {
    TopK(TopKProblem),
    Sample(SampleProblem),
}

impl Problem for Choice {
    fn make(env: &Env, rng: &mut Rng, turn: usize) -> Self {
        if turn.is_multiple_of(2) {
            Choice::TopK(TopKProblem::random(env, rng, turn / 2))
        } else {
            Choice::Sample(SampleProblem::random(rng, turn / 2))
        }
    }

    fn check(&self, env: &Env) -> Result<(), String> {
        match self {
            Choice::TopK(p) => p.check(env),
            Choice::Sample(p) => p.check(env),
        }
    }

    fn simpler(&self) -> Vec<Self> {
        let mut all: Vec<Self> = match self {
            Choice::TopK(p) => {
                let rows = p.rows.simpler().into_iter().map(|rows| TopKProblem { rows, ..p.clone() });
                let others = [TopKProblem { k: 1, ..p.clone() }, TopKProblem { k: p.k.div_ceil(2), ..p.clone() }];
                rows.chain(others).map(Choice::TopK).collect()
            }
            Choice::Sample(p) => {
                let (o, base) = (p.options, || p.clone());
                let mut options = vec![
                    Sampling { softcap: None, ..o },
                    Sampling { temperature: 1.0, ..o },
                    Sampling { top_k: 0, ..o },
                    Sampling { top_p: 1.0, ..o },
                    Sampling { min_p: 0.0, ..o },
                    Sampling { penalty: 1.0, ..o },
                ];
                options.push(PLAIN);
                let options = options.into_iter().map(|options| SampleProblem { options, ..base() });
                let others = [
                    SampleProblem { rows: 1, ..base() },
                    SampleProblem { rows: p.rows.div_ceil(2), ..base() },
                    SampleProblem { previous: 0, ..base() },
                    SampleProblem { on_device: false, ..base() },
                    SampleProblem { pad: 0, ..base() },
                    SampleProblem { n: p.n.div_ceil(2), ..base() },
                ];
                options.chain(others).map(Choice::Sample).collect()
            }
        };
        all.retain(|p| p != self);
        all
    }
}
