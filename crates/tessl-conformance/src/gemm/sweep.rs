//! Products by size, layout, memory and epilogue.

use super::problem::{Data, Place, Problem};
use super::{Variant, check_all};
use crate::data::Mem;
use crate::env::{Env, Outcome};
use crate::rows;
use tessl::{Activation, BufferKind, DType, Precision};
use tessl_oracle::Rng;

/// Sizes below and above everything a micro-kernel may be cut into.
pub(super) fn small(env: &Env, v: Variant) -> Outcome {
    let mut problems = Vec::new();
    let mut rng = Rng::new(env.seed);
    for m in 1..=17 {
        for n in (1..=36).step_by(if env.budget > crate::SMALL_BUDGET { 1 } else { 5 }) {
            let k = *rng.pick(&[1, 2, 3, 4, 5, 7, 8, 15, 16, 17, 31, 33]);
            problems.push(Problem { data: Data::Integers, seed: rng.bits(), ..v.problem(m, n, k) });
        }
    }
    check_all(env, problems, [1, 1, 1])
}

fn to_usize(sizes: &[u32]) -> Vec<usize> {
    sizes.iter().map(|&s| s as usize).collect()
}

/// -2..2 around every tile size that plans use, once and twice, on each axis; the other axes small and odd.
pub(super) fn tiles(env: &Env, v: Variant) -> Outcome {
    let tiles = rows::tiles(env.rt.profile(), v.pair.0, v.pair.1, v.backend).map(|t| to_usize(&t));
    let mut problems = Vec::new();
    let others = [[0, 37, 45], [21, 0, 45], [19, 35, 0]];
    for (axis, sizes) in tiles.iter().enumerate() {
        for around in sizes.iter().flat_map(|&tile| [tile, 2 * tile]) {
            for size in around.saturating_sub(2).max(1)..=around + 2 {
                let mut sizes = others[axis];
                sizes[axis] = size;
                problems.push(v.problem(sizes[0], sizes[1], sizes[2]));
            }
        }
    }
    // All three axes one past a tile at once.
    for (&m, &n) in tiles[0].iter().zip(&tiles[1]) {
        problems.push(v.problem(m + 1, n + 1, 2 * tiles[2].first().copied().unwrap_or(16) + 1));
    }
    check_all(env, problems, [1, 1, 1])
}

/// Both sides of each size where the selector changes its mind.
pub(super) fn thresholds(env: &Env, v: Variant) -> Outcome {
    let mut problems = Vec::new();
    for (m, n, k) in [(40, 72, 64), (8, 200, 300), (3, 5, 7), (130, 260, 100)] {
        let base = rows::plain_gemm(m, n, k, v.pair.0, v.pair.1, v.backend);
        for axis in 0..3 {
            for t in rows::thresholds(env.rt.profile(), &base, axis, 3000) {
                for size in [t - 1, t, t + 1] {
                    let mut sizes = [m, n, k];
                    sizes[axis] = size;
                    let [m, n, k] = sizes.map(|s| s as usize);
                    problems.push(v.problem(m, n, k));
                }
            }
        }
    }
    // These sizes are the point, so they are not cut; those that pass the budget are left to faster devices.
    let (mut left, mut out) = (env.budget, Outcome::Passed);
    problems.sort_by_key(Problem::mac);
    for problem in problems {
        if problem.mac() > left {
            break;
        }
        left -= problem.mac();
        if let Err(message) = problem.check(env) {
            out = Outcome::Failed(message);
            break;
        }
    }
    out
}

const FLAGS: [bool; 2] = [false, true];

fn place(transposed: bool, pad: usize, offset: usize) -> Place {
    Place { transposed, pad, offset, ..Place::default() }
}

/// NN, NT, TN and TT, C in rows and in columns, leading dimensions with slack, views at odd offsets.
pub(super) fn layouts(env: &Env, v: Variant) -> Outcome {
    let mut problems = Vec::new();
    for (m, n, k) in [(7, 9, 11), (33, 47, 65), (1, 64, 32), (64, 1, 33), (5, 130, 70), (130, 70, 19)] {
        for (ta, tb, tc) in FLAGS.iter().flat_map(|&a| FLAGS.iter().flat_map(move |&b| FLAGS.map(|c| (a, b, c)))) {
            for (pad, offset) in [(0, 0), (3, 0), (0, 1), (5, 3), (64, 0), (8, 8)] {
                problems.push(Problem {
                    a: place(ta, pad, offset),
                    b: place(tb, pad + usize::from(pad > 0), offset),
                    c: place(tc, pad, offset),
                    data: Data::Integers,
                    ..v.problem(m, n, k)
                });
            }
        }
    }
    check_all(env, problems, [1, 1, 1])
}

/// Batches: side by side, with gaps of odd size, with one operand or both broadcast.
pub(super) fn batch(env: &Env, v: Variant) -> Outcome {
    let mut problems = Vec::new();
    for (m, n, k) in [(2, 2, 2), (3, 17, 9), (32, 32, 32), (1, 40, 64), (50, 70, 20)] {
        for batch in [1, 2, 3, 7, 9] {
            for (sa, sb) in FLAGS.iter().flat_map(|&a| FLAGS.map(|b| (a, b))) {
                for (gap, transposed) in [(0, false), (5, true)] {
                    let own = |shared| Place { transposed, gap, shared, pad: gap / 2, ..Place::default() };
                    problems.push(Problem {
                        batch: Some(batch),
                        a: own(sa),
                        b: own(sb),
                        c: Place { shared: false, ..own(false) },
                        ..v.problem(m, n, k)
                    });
                }
            }
        }
    }
    check_all(env, problems, [1, 1, 1])
}

/// Each kind of memory.
pub(super) fn memory(env: &Env, v: Variant) -> Outcome {
    let mut problems = Vec::new();
    for kind in [BufferKind::Hot, BufferKind::Cold, BufferKind::Bump, BufferKind::External] {
        if !Mem::available(env, kind) {
            continue;
        }
        for offset in [0, 1] {
            for (m, n, k) in [(17, 33, 65), (2, 100, 50), (100, 36, 64)] {
                let p = place(false, 2, offset);
                problems.push(Problem { kind, a: p, b: p, c: p, bias: Some(DType::F32), ..v.problem(m, n, k) });
            }
        }
    }
    check_all(env, problems, [1, 1, 1])
}

/// alpha and beta in {0, 1, other}, bias of either type, every activation.
pub(super) fn epilogue(env: &Env, v: Variant) -> Outcome {
    let mut problems = Vec::new();
    let mut turn = 0;
    for (alpha, beta) in [0.0, 1.0, 0.7].into_iter().flat_map(|a| [0.0, 1.0, 1.3].map(|b| (a, b))) {
        for bias in [None, Some(DType::F32), Some(v.pair.1)] {
            for activation in Activation::ALL {
                turn += 1;
                let (m, n, k) = [(19, 37, 23), (3, 70, 33), (66, 21, 9)][turn % 3];
                let c = Place { transposed: turn % 2 == 0, pad: turn % 4, ..Place::default() };
                let batch = (turn % 5 == 0).then_some(2);
                let base = v.problem(m, n, k);
                problems.push(Problem { alpha, beta, bias, activation, c, batch, data: Data::Integers, ..base });
            }
        }
    }
    check_all(env, problems, [1, 1, 1])
}

/// Random data within derived bounds; f32 at each precision.
pub(super) fn random(env: &Env, v: Variant) -> Outcome {
    let precisions: &[Precision] =
        if v.pair.0 == DType::F32 { &[Precision::Exact, Precision::Split] } else { &[Precision::Exact] };
    let mut problems = Vec::new();
    let mut rng = Rng::new(env.seed ^ 0x7a);
    for &precision in precisions {
        for (m, n, k) in [(1, 1, 1), (33, 65, 127), (96, 97, 64), (4, 200, 500), (64, 130, 256), (150, 3, 1000)] {
            for (alpha, beta, bias, activation) in [
                (1.0, 0.0, None, Activation::None),
                (-0.37, 1.9, Some(v.pair.1), Activation::GeluTanh),
                (1.7, 0.0, Some(DType::F32), Activation::Silu),
            ] {
                let seed = rng.bits();
                let base = v.problem(m, n, k);
                problems.push(Problem { alpha, beta, bias, activation, precision, data: Data::Normal, seed, ..base });
            }
        }
    }
    check_all(env, problems, [1, 1, 1])
}

/// One problem for every row that the planner can choose for these types, not cut.
pub(super) fn rows(env: &Env, v: Variant) -> Outcome {
    let mut left = env.budget.saturating_mul(4);
    let mut witnesses: Vec<_> = env
        .gemm_rows()
        .values()
        .filter(|d| (d.input, d.output, d.backend) == (v.pair.0, v.pair.1, v.backend))
        .collect();
    witnesses.sort_by_key(|d| rows::macs(d));
    let mut too_large = 0;
    for &desc in &witnesses {
        if rows::macs(desc) > left {
            too_large += 1;
            continue;
        }
        left -= rows::macs(desc);
        if let Err(message) = Problem::of(desc).check(env) {
            return Outcome::Failed(format!("{message}\n  from {desc:?}"));
        }
    }
    if too_large == witnesses.len() && too_large > 0 {
        return Outcome::Skipped("every row costs more than the budget".into());
    }
    Outcome::Passed
}
