//! Random products.

use super::Problem;
use crate::data::Mem;
use crate::env::{Env, FP8_PAIRS, GEMM_PAIRS, INT8_PAIRS};
use crate::gemm::{BACKENDS, Data, Extra, Gate, Groups, Place, Problem as Gemm, Residual};
use crate::rows::{self, Row};
use std::collections::BTreeMap;
use tessl::{Activation, BufferKind, DType, DeviceKind, GemmDesc, Precision};
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

/// Each kernel in its turn, and its rows one after the other.
fn in_turn<'a>(rows: &[(&Row, &'a GemmDesc)], turn: usize) -> &'a GemmDesc {
    let mut kernels: BTreeMap<&str, Vec<&GemmDesc>> = BTreeMap::new();
    rows.iter().for_each(|(row, desc)| kernels.entry(&row.kernel).or_default().push(desc));
    let count = kernels.len();
    let of_kernel = kernels.into_values().nth(turn % count).expect("INVARIANT: below the count");
    of_kernel[turn / count % of_kernel.len()]
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

/// Something beyond the plain formula, for devices that have it.
fn extra(rng: &mut Rng, p: &mut Gemm) {
    let whole = p.input == DType::I8;
    let mut e = Extra { packed: rng.one_in(3), ..Extra::default() };
    if p.input.size() == 1 {
        let other = if whole { DType::U8 } else { DType::F8E5M2 };
        e.other_b = rng.one_in(2).then_some(other);
    }
    if p.output != DType::I32 {
        let types = [None, None, Some(DType::F32), Some(p.output)];
        (e.row_scale, e.col_scale) = (*rng.pick(&types), *rng.pick(&types));
        e.odd_scales = rng.one_in(2);
        e.residual = *rng.pick(&[Residual::None, Residual::Other, Residual::InPlace]);
        e.row_bias = p.bias.is_some() && rng.one_in(2);
        if rng.one_in(3) {
            e.gate = if e.packed { Gate::Two } else { *rng.pick(&[Gate::Two, Gate::Half]) };
            p.beta = 0.0;
        }
    }
    if p.batch.is_none() && rng.one_in(4) {
        let first = rng.below(3);
        let sizes = (0..rng.between(1, 5)).map(|_| rng.below(40)).collect();
        e.groups = Some(Groups { first, sizes, on_device: rng.one_in(2) });
    }
    if e.keeps_rows() {
        p.c.transposed = false;
    }
    p.extra = e;
}

impl Problem for GemmFuzz {
    fn make(env: &Env, rng: &mut Rng, turn: usize) -> Self {
        // Every other problem starts from the witness of a plan row, each in its turn.
        let rows = witnesses(env);
        let on_cpu = env.rt.info().kind == DeviceKind::Cpu;
        let guided = turn.is_multiple_of(2) && !rows.is_empty();
        let mut p = if guided {
            Gemm::of(in_turn(&rows, turn / 2))
        } else {
            let eight_bits = on_cpu && rng.one_in(4);
            let short = [INT8_PAIRS.as_slice(), FP8_PAIRS.as_slice()].concat();
            let (pair, backend) = (*rng.pick(if eight_bits { &short } else { &GEMM_PAIRS }), *rng.pick(&BACKENDS));
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
        if rng.one_in(2) && !guided && p.output != DType::I32 {
            p.alpha = *rng.pick(&[1.0, 0.0, -1.0, 0.7, 2.5]);
            p.beta = *rng.pick(&[0.0, 1.0, 1.3, -0.5]);
            p.bias = *rng.pick(&[None, Some(tessl::DType::F32), Some(p.output)]);
            p.activation = *rng.pick(&Activation::ALL);
        }
        p.data = *rng.pick(&[Data::Integers, Data::Normal, Data::Pattern]);
        p.seed = rng.bits();
        if on_cpu && !guided && rng.one_in(3) {
            extra(rng, &mut p);
        }
        if p.input == DType::I8 {
            p.data = Data::Integers;
            if p.output == DType::F16 {
                // Its largest number is 65504.
                p.alpha = if p.extra.gate == Gate::None { 2f32.powi(-14) } else { 2f32.powi(-20) };
            }
        }
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
            keep(&|p| p.extra = Extra { other_b: p.extra.other_b, ..Extra::default() }),
            keep(&|p| p.extra.packed = false),
            keep(&|p| p.extra.residual = Residual::None),
            keep(&|p| (p.extra.row_scale, p.extra.col_scale) = (None, None)),
            keep(&|p| p.extra.groups = None),
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
