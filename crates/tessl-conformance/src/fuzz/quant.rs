//! Random products with quantised weights, and lookups in quantised tables.

use super::Problem;
use crate::env::Env;
use crate::quant::{QuantEmbedProblem, QuantProblem, Residual, random, random_lookup};
use tessl::nn::QuantOp;
use tessl::{Activation, BufferKind};
use tessl_oracle::Rng;

/// One problem of either kind.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum QuantFuzz {
    Product(QuantProblem),
    Lookup(QuantEmbedProblem),
}

impl Problem for QuantFuzz {
    fn make(_: &Env, rng: &mut Rng, turn: usize) -> Self {
        // Two products for each lookup.
        if turn % 3 == 2 {
            QuantFuzz::Lookup(random_lookup(rng, turn / 3))
        } else {
            QuantFuzz::Product(random(rng, turn / 3 * 2 + turn % 3))
        }
    }

    fn check(&self, env: &Env) -> Result<(), String> {
        match self {
            QuantFuzz::Product(p) => p.check(env),
            QuantFuzz::Lookup(p) => p.check(env),
        }
    }

    fn simpler(&self) -> Vec<Self> {
        match self {
            QuantFuzz::Product(p) => products(p).into_iter().map(QuantFuzz::Product).collect(),
            QuantFuzz::Lookup(p) => lookups(p).into_iter().map(QuantFuzz::Lookup).collect(),
        }
    }
}

fn products(p: &QuantProblem) -> Vec<QuantProblem> {
    let base = || p.clone();
    let group = p.format.group();
    let mut all = vec![
        QuantProblem { op: QuantOp::Matmul, n: [p.n[0], 0, 0], ..base() },
        QuantProblem { outer: vec![1], ..base() },
        QuantProblem { outer: vec![(p.outer[0] / 2).max(1)], ..base() },
        QuantProblem { n: p.n.map(|n| n.min(1)), ..base() },
        QuantProblem { k: group, ..base() },
        QuantProblem { kind: BufferKind::Cold, ..base() },
        QuantProblem { pads: [0; 2], ..base() },
        QuantProblem { offset: 0, ..base() },
        QuantProblem { bias: None, ..base() },
        QuantProblem { residual: Residual::None, ..base() },
        QuantProblem { activation: Activation::None, ..base() },
        QuantProblem { whole: true, activation: Activation::None, ..base() },
    ];
    all.retain(|q| q != p);
    all
}

fn lookups(p: &QuantEmbedProblem) -> Vec<QuantEmbedProblem> {
    let base = || p.clone();
    let mut all = vec![
        QuantEmbedProblem { outer: vec![1], ..base() },
        QuantEmbedProblem { vocabulary: 1, ..base() },
        QuantEmbedProblem { n: p.format.group(), ..base() },
        QuantEmbedProblem { kind: BufferKind::Cold, ..base() },
        QuantEmbedProblem { pad: 0, offset: 0, ..base() },
        QuantEmbedProblem { scaled: false, ..base() },
    ];
    all.retain(|q| q != p);
    all
}
