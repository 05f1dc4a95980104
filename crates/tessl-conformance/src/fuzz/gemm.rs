//! Random products.

use super::Problem;
use crate::data::Mem;
use crate::env::{Env, GEMM_PAIRS};
use crate::gemm::{BACKENDS, Data, Place, Problem as Gemm};
use crate::rows::{self, Row};
use tessl::{Activation, BufferKind, GemmDesc, Precision};
use tessl_oracle::Rng;

/// A product as a fuzz problem.
pub(super) type GemmFuzz = Gemm;

/// Multiply-adds of one problem, at most.
fn limit(env: &Env) -> u64 {
    (env.budget / 20).clamp(100_000, 4_000_000)
}

/// Rows with a problem within the limit.
fn witnesses(env: &Env) -> Vec<(&Row, &GemmDesc)> {
    let most = limit(env);
    env.gemm_rows().iter().filter(|(_, d)| rows::macs(d) <= most).collect()
}

/// Kernels that some problem within the limit takes.
pub(super) fn reachable_kernels(env: &Env) -> Vec<String> {
    let mut kernels: Vec<String> = witnesses(env).into_iter().map(|(row, _)| row.kernel.clone()).collect();
    kernels.sort();
    kernels.dedup();
    kernels
}

/// Mostly small; now and then around a power of two or a multiple of 48.
fn size(rng: &mut Rng) -> usize {
    match rng.below(6) {
        0 => rng.between(1, 4),
        1 | 2 => rng.between(1, 40),
        3 => rng.between(1, 300),
        4 => (1usize << rng.between(3, 9)) - 2 + rng.below(5),
        _ => 48 * rng.between(1, 6) - 1 + rng.below(3),
    }
}

fn place(rng: &mut Rng, shared: bool) -> Place {
    let pads = [0, 0, 0, 1, 3, 7, 8, 16, 64];
    Place {
        transposed: rng.one_in(2),
        pad: *rng.pick(&pads),
        offset: *rng.pick(&[0, 0, 0, 1, 2, 3, 8]),
        gap: *rng.pick(&[0, 0, 1, 5, 64]),
        shared,
    }
}

impl Problem for GemmFuzz {
    fn make(env: &Env, rng: &mut Rng, turn: usize) -> Self {
        // Every other problem starts from the witness of a plan row, each in its turn.
        let rows = witnesses(env);
        let guided = turn.is_multiple_of(2) && !rows.is_empty();
        let mut p = if guided {
            Gemm::of(rows[turn / 2 % rows.len()].1)
        } else {
            let (pair, backend) = (*rng.pick(&GEMM_PAIRS), *rng.pick(&BACKENDS));
            let mut p = Gemm::new(size(rng), size(rng), size(rng), pair, backend);
            if rng.one_in(3) {
                p.batch = Some(rng.between(1, 9));
            }
            let (share_a, share_b) = (rng.one_in(4), rng.one_in(3));
            (p.a, p.b, p.c) = (place(rng, share_a), place(rng, share_b), place(rng, false));
            p.precision = *rng.pick(&[Precision::Exact, Precision::Exact, Precision::Split]);
            if rng.one_in(30) {
                let axis = rng.below(3);
                *[&mut p.m, &mut p.n, &mut p.k][axis] = 0;
            }
            let kinds = [BufferKind::Cold, BufferKind::Cold, BufferKind::Hot, BufferKind::Bump, BufferKind::External];
            p.kind = *rng.pick(&kinds);
            if !Mem::available(env, p.kind) {
                p.kind = BufferKind::Cold;
            }
            p
        };
        if rng.one_in(2) && !guided {
            p.alpha = *rng.pick(&[1.0, 0.0, -1.0, 0.7, 2.5]);
            p.beta = *rng.pick(&[0.0, 1.0, 1.3, -0.5]);
            p.bias = *rng.pick(&[None, Some(tessl::DType::F32), Some(p.output)]);
            p.activation = *rng.pick(&Activation::ALL);
        }
        p.data = *rng.pick(&[Data::Integers, Data::Normal, Data::Pattern]);
        p.seed = rng.bits();
        p.fit(limit(env), [1, 1, 1])
    }

    fn check(&self, env: &Env) -> Result<(), String> {
        Gemm::check(self, env)
    }

    fn simpler(&self) -> Vec<Self> {
        let base = Gemm::new(self.m, self.n, self.k, (self.input, self.output), self.backend);
        let keep = |f: &dyn Fn(&mut Gemm)| {
            let mut p = self.clone();
            f(&mut p);
            p
        };
        let mut all = vec![
            keep(&|p| p.batch = None),
            keep(&|p| p.kind = base.kind),
            keep(&|p| p.activation = base.activation),
            keep(&|p| p.bias = None),
            keep(&|p| p.beta = 0.0),
            keep(&|p| p.alpha = 1.0),
            keep(&|p| p.precision = base.precision),
            keep(&|p| p.a = Place { transposed: p.a.transposed, ..Place::default() }),
            keep(&|p| p.b = Place { transposed: p.b.transposed, ..Place::default() }),
            keep(&|p| p.c = Place { transposed: p.c.transposed, ..Place::default() }),
            keep(&|p| p.a.transposed = false),
            keep(&|p| p.b.transposed = false),
            keep(&|p| p.c.transposed = false),
            keep(&|p| p.data = Data::Integers),
            keep(&|p| p.batch = p.batch.map(|b| b.div_ceil(2))),
        ];
        for cut in [|x: usize| x / 2, |x: usize| x.saturating_sub(1)] {
            all.push(keep(&|p| p.m = cut(p.m)));
            all.push(keep(&|p| p.n = cut(p.n)));
            all.push(keep(&|p| p.k = cut(p.k)));
        }
        all.retain(|p| p != self);
        all
    }
}
