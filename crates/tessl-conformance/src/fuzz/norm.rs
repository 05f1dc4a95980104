//! Random normalisations.

use super::Problem;
use crate::data::Mem;
use crate::env::{Env, NORM_PAIRS};
use crate::norm::NormProblem;
use crate::norm::fused::{FusedNorm, Norm};
use crate::rowwise::RowCase;
use tessl::BufferKind;
use tessl_oracle::Rng;

/// A normalisation as a fuzz problem.
pub(super) type NormFuzz = NormProblem;

/// Elements of one problem, at most.
const LIMIT: u64 = 200_000;

/// Kernels that some problem within the limit takes.
pub(super) fn reachable_kernels(env: &Env) -> Vec<String> {
    let rows = env.norm_rows().iter().filter(|(_, d)| d.rows * u64::from(d.n) <= LIMIT);
    let mut kernels: Vec<String> = rows.map(|(row, _)| row.kernel.clone()).collect();
    kernels.sort();
    kernels.dedup();
    kernels
}

impl Problem for NormFuzz {
    fn make(env: &Env, rng: &mut Rng, turn: usize) -> Self {
        let n = match rng.below(4) {
            0 => rng.between(1, 40),
            1 => (1usize << rng.between(3, 12)) - 2 + rng.below(5),
            2 => 8 * rng.between(1, 200),
            _ => rng.between(1, 3000),
        };
        // Types in turn, so that each kernel is taken; aligned ones as well as not.
        let pair = NORM_PAIRS[turn % NORM_PAIRS.len()];
        let aligned = (turn / NORM_PAIRS.len()).is_multiple_of(2);
        let mut p = NormProblem::new(rng.between(1, 9), if aligned { n.next_multiple_of(64) } else { n }, pair);
        if !aligned {
            p.pad = [*rng.pick(&[0, 1, 3, 8]), *rng.pick(&[0, 2, 5, 8])];
            p.offset = *rng.pick(&[0, 1, 2, 8]);
            p.outer = (0..rng.between(0, 3)).map(|_| rng.between(1, 6)).collect();
            p.permuted = rng.one_in(2);
        }
        p.in_place = rng.one_in(3);
        p.eps = *rng.pick(&[1e-6, 1e-5, 0.0, 0.1]);
        p.weight_offset = *rng.pick(&[0.0, 0.0, 1.0]);
        p.scale = *rng.pick(&[1.0, 0.01, 50.0]);
        let kinds = [BufferKind::Cold, BufferKind::Cold, BufferKind::Hot, BufferKind::Bump, BufferKind::External];
        p.kind = *rng.pick(&kinds);
        if !Mem::available(env, p.kind) {
            p.kind = BufferKind::Cold;
        }
        if rng.one_in(40) {
            p.outer = vec![2, 0];
        }
        p.seed = rng.bits();
        while p.cost() > LIMIT {
            p.n = p.n / 2 + 1;
        }
        p
    }

    fn check(&self, env: &Env) -> Result<(), String> {
        NormProblem::check(self, env)
    }

    fn simpler(&self) -> Vec<Self> {
        let keep = |f: &dyn Fn(&mut NormProblem)| {
            let mut p = self.clone();
            f(&mut p);
            p
        };
        let mut all = vec![
            keep(&|p| p.outer = vec![1]),
            keep(&|p| p.outer.truncate(1)),
            keep(&|p| p.kind = BufferKind::Cold),
            keep(&|p| p.pad = [0, 0]),
            keep(&|p| p.offset = 0),
            keep(&|p| p.permuted = false),
            keep(&|p| p.in_place = false),
            keep(&|p| p.weight_offset = 0.0),
            keep(&|p| p.eps = 1e-6),
            keep(&|p| p.scale = 1.0),
            keep(&|p| p.n = (p.n / 2).max(1)),
            keep(&|p| p.n = (p.n - 1).max(1)),
        ];
        all.retain(|p| p != self);
        all
    }
}

impl Problem for FusedNorm {
    fn make(env: &Env, rng: &mut Rng, turn: usize) -> Self {
        // Kernels in turn, each aligned and not.
        let all = Norm::ALL.len() * NORM_PAIRS.len();
        let (norm, pair) = (Norm::ALL[turn % Norm::ALL.len()], NORM_PAIRS[turn / Norm::ALL.len() % NORM_PAIRS.len()]);
        let rows = RowCase::random(env, rng, turn / all, 60_000);
        let summed = !matches!(norm, Norm::Layer | Norm::Qk);
        FusedNorm {
            eps: *rng.pick(&[1e-5, 1e-6, 0.1]),
            offset: *rng.pick(&[0.0, 0.0, 1.0]),
            scale: rng.pick(&[None, Some((0.5, false)), Some((2.0, true))]).filter(|_| summed),
            bias: rng.one_in(2),
            ..FusedNorm::new(norm, pair, rows)
        }
    }

    fn check(&self, env: &Env) -> Result<(), String> {
        FusedNorm::check(self, env)
    }

    fn simpler(&self) -> Vec<Self> {
        let rows = self.rows.simpler().into_iter().map(|rows| FusedNorm { rows, ..self.clone() });
        let others = [
            FusedNorm { offset: 0.0, ..self.clone() },
            FusedNorm { scale: None, ..self.clone() },
            FusedNorm { bias: false, ..self.clone() },
        ];
        rows.chain(others).filter(|p| p != self).collect()
    }
}
