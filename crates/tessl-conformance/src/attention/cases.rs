//! Lists of problems.

use super::{AttentionProblem, Causal, Packed, known};
use crate::data::Mem;
use crate::env::{Env, Outcome};
use crate::suite::Case;
use tessl::nn::AttentionDesc;
use tessl::plan::Desc;
use tessl::{BufferKind, DType};
use tessl_oracle::Rng;

pub(super) const FLOATS: [DType; 3] = [DType::F32, DType::F16, DType::Bf16];
const MASKS: [DType; 4] = [DType::U8, DType::F32, DType::F16, DType::Bf16];

/// Every problem class that takes a kernel or row of its own.
pub(crate) fn descs() -> Vec<Desc> {
    let mut all = Vec::new();
    for (dtype, dim) in FLOATS.into_iter().flat_map(|d| [64, 96, 128, 192, 256, 512].map(|n| (d, n))) {
        let forms = [(64, 64, 7), (64, 64, 2), (1, 64, 7), (1, 64, 2), (1, 8192, 7)];
        for ((queries, keys, align), coded) in forms.into_iter().flat_map(|form| [(form, false), (form, true)]) {
            let desc = AttentionDesc {
                sequences: 1,
                queries,
                keys,
                heads: 1,
                kv_heads: 1,
                dim,
                dtype,
                coded,
                causal: true,
                window: false,
                packed: false,
                page: 0,
                mask: None,
                align,
            };
            all.extend([Desc::Combine(desc.combine(2)), Desc::Attention(desc)]);
        }
    }
    all
}

/// Runs what the budget allows. A simulated thread does many of these multiply-adds between two barriers, so that its
/// budget buys more of them than of a product's.
fn check_all(env: &Env, problems: Vec<AttentionProblem>) -> Outcome {
    let mut left = env.budget.max(2_000_000);
    for p in env.thin(problems) {
        if p.cost() > left {
            continue;
        }
        left -= p.cost();
        if let Err(message) = p.check(env) {
            return Outcome::Failed(message);
        }
    }
    Outcome::Passed
}

/// Queries and keys around tiles.
fn sizes(env: &Env, dtype: DType) -> Outcome {
    let mut problems = Vec::new();
    let sizes = [[1, 1], [1, 31], [1, 33], [2, 64], [3, 65], [7, 97], [8, 8], [15, 40], [16, 95], [17, 96]];
    let more =
        [[31, 97], [33, 33], [64, 64], [65, 100], [96, 192], [191, 96], [193, 200], [1, 257], [4, 600], [1, 1025]];
    for (i, size) in sizes.into_iter().chain(more).enumerate() {
        for (heads, dim) in [([1, 1], 64), ([2, 4], 16), ([1, 3], 33), ([1, 9], 8)] {
            let causal = [Causal::Full, Causal::End, Causal::Host(3)][i % 3];
            let batch = 1 + i % 2;
            let p = AttentionProblem::new(dtype, size, heads, dim);
            problems.push(AttentionProblem { batch, causal, seed: env.seed ^ i as u64, ..p });
        }
    }
    check_all(env, problems)
}

/// Sizes of heads: every usual one, and others.
fn dims(env: &Env, dtype: DType) -> Outcome {
    let mut problems = Vec::new();
    for (i, dim) in [64, 80, 96, 128, 192, 256, 512, 1, 7, 36, 100, 130, 511].into_iter().enumerate() {
        for (size, pad, offset) in [([20, 40], 0, 0), ([1, 70], 0, 0), ([33, 35], 8, 8), ([2, 20], 1, 3)] {
            let p = AttentionProblem::new(dtype, size, [1 + i % 2, 2], dim);
            problems.push(AttentionProblem { pad, offset, causal: Causal::End, seed: env.seed ^ dim as u64, ..p });
        }
    }
    check_all(env, problems)
}

/// Each kernel, on the smallest problems that take it. Rows of codes are whole vectors too.
fn kernels(env: &Env, dtype: DType) -> Outcome {
    let mut problems = Vec::new();
    for dim in [64, 208, 512] {
        for (queries, keys, (pad, offset)) in
            [1, 9, 16].into_iter().flat_map(|q| [(0, 0), (1, 1)].map(|place| (q, 3, place))).chain([(1, 512, (0, 0))])
        {
            let dim = if keys > 3 { 16 } else { dim };
            let base = AttentionProblem::new(dtype, [queries, keys], [1, 1], dim);
            problems.extend([false, true].map(|coded| AttentionProblem { pad, offset, coded, ..base.clone() }));
        }
    }
    problems.iter().try_for_each(|p| p.check(env)).into()
}

/// Masks, positions, windows, sinks, softcaps, scales together.
fn options(env: &Env, dtype: DType) -> Outcome {
    let mut problems = Vec::new();
    let causals = [Causal::Full, Causal::Host(0), Causal::Device(5), Causal::Each, Causal::End, Causal::Host(40)];
    let sizes = [[1, 40], [5, 37], [20, 50], [40, 40]];
    for (i, causal) in causals.into_iter().enumerate() {
        for (j, mask) in [None].into_iter().chain(MASKS.map(Some)).enumerate() {
            for (k, size) in sizes.into_iter().enumerate() {
                let n = i + j + k;
                let window = [None, Some(1), Some(7), Some(1000)][n % 4].filter(|_| causal != Causal::Full);
                let (softcap, scale) = ([None, Some(5.0), Some(0.5)][n % 3], [None, Some(0.3), Some(-1.5)][n / 2 % 3]);
                let repeated = [0b0000, 0b0011, 0b0100, 0b1000, 0b0111][n % 5];
                let base = AttentionProblem::new(dtype, size, [2, 2], 24);
                problems.push(AttentionProblem {
                    batch: 2,
                    causal,
                    mask,
                    window,
                    softcap,
                    scale,
                    repeated,
                    sinks: n % 2 == 0,
                    permuted: n % 3 == 0,
                    poison: n % 4 == 1,
                    coded: n % 3 == 1,
                    offset: n % 2,
                    seed: env.seed ^ n as u64,
                    ..base
                });
            }
        }
    }
    check_all(env, problems)
}

/// Caches that are not full, pages, and sequences one after the other.
fn caches(env: &Env, dtype: DType) -> Outcome {
    let mut problems = Vec::new();
    for (i, size) in [[1, 70], [3, 130], [20, 100], [70, 70], [1, 600]].into_iter().enumerate() {
        for (j, page) in [None, Some(16), Some(32), Some(64)].into_iter().enumerate() {
            for packed in [Packed::No, Packed::Queries, Packed::Both] {
                let n = i + j;
                let page = page.filter(|_| packed != Packed::Both);
                let base = AttentionProblem::new(dtype, size, [2, 1 + n % 3], 40);
                problems.push(AttentionProblem {
                    batch: 3,
                    lengths: packed != Packed::Both,
                    page,
                    packed,
                    causal: [Causal::End, Causal::Full, Causal::Each][n % 3],
                    window: (n % 3 == 0).then_some(50),
                    sinks: n % 2 == 1,
                    pad: n % 3,
                    coded: (n / 2 + packed as usize).is_multiple_of(2),
                    permuted: n % 2 == 0,
                    seed: env.seed ^ n as u64,
                    ..base
                });
            }
        }
    }
    check_all(env, problems)
}

fn memory(env: &Env, dtype: DType) -> Outcome {
    let kinds = [BufferKind::Hot, BufferKind::Cold, BufferKind::Bump, BufferKind::External];
    let kinds = kinds.into_iter().filter(|&kind| Mem::available(env, kind));
    let problems = kinds.flat_map(|kind| {
        [[1, 30], [18, 30]].map(|size| {
            let base = AttentionProblem::new(dtype, size, [1, 2], 32);
            AttentionProblem { kind, offset: 1, sinks: true, mask: Some(DType::U8), lengths: true, ..base }
        })
    });
    check_all(env, problems.collect())
}

/// Keys split into parts, on every device.
fn parts(env: &Env, dtype: DType) -> Outcome {
    let mut problems = Vec::new();
    for (i, keys) in [512, 700, 1024, 1025, 5000].into_iter().enumerate() {
        for causal in [Causal::Full, Causal::End, Causal::Each] {
            let base = AttentionProblem::new(dtype, [1 + i % 2, keys], [1, 1 + i % 2], 16);
            let lengths = causal == Causal::Each;
            let window = (i == 3 && causal == Causal::End).then_some(300);
            problems.push(AttentionProblem {
                batch: 1 + i % 2,
                causal,
                lengths,
                window,
                sinks: true,
                coded: i % 2 == 0,
                seed: env.seed ^ i as u64,
                ..base
            });
        }
    }
    check_all(env, problems)
}

/// Queries and keys around the tiles of matrix units, for every size of head that has tiles of its own; options in turn.
fn tiles(env: &Env, dtype: DType) -> Outcome {
    let queries = [9, 63, 64, 65, 127, 128, 129, 191, 192, 193, 257];
    let keys = [64, 80, 96, 112, 128, 160, 176, 192, 320, 384];
    let causals = [Causal::End, Causal::Full, Causal::Host(0), Causal::Host(70), Causal::Device(5), Causal::Each];
    let mut problems = Vec::new();
    for (i, dim) in [64, 128, 256, 96, 192, 80, 136, 8].into_iter().enumerate() {
        for (j, queries) in queries.into_iter().enumerate() {
            let n = 3 * i + j;
            let keys = keys[n % keys.len()] + [0, 1, 15, 0, 17][n % 5] - n % 2;
            let packed = [Packed::No, Packed::No, Packed::Queries, Packed::Both][n % 4];
            let causal = causals[n % causals.len()];
            problems.push(AttentionProblem {
                batch: 1 + n % 3,
                causal,
                packed,
                window: (causal != Causal::Full && n % 3 == 0).then_some([1, 20, 65, 150][n / 3 % 4]),
                lengths: packed == Packed::Queries || n % 5 == 4,
                sinks: n % 4 == 1,
                softcap: [None, None, Some(20.0), None, Some(1.0)][n % 5],
                scale: [None, None, Some(0.3), Some(-0.2), Some(0.0)][n / 2 % 5],
                permuted: n % 3 == 1,
                poison: n % 5 == 2,
                pad: n % 2 * 8,
                offset: n / 2 % 2 * 8,
                seed: env.seed ^ n as u64,
                ..AttentionProblem::new(dtype, [queries, keys], [1, 1 + n % 2], dim)
            });
        }
    }
    check_all(env, problems)
}

/// Every case of this family.
pub(crate) fn cases() -> Vec<Case> {
    let mut cases = known::cases();
    for dtype in FLOATS {
        let case = |label: &str, body: fn(&Env, DType) -> Outcome| {
            Case::new(format!("attention/{label}/{dtype}"), "attention", move |env| body(env, dtype))
        };
        cases.push(case("kernels", kernels).tagged(&["quick"]));
        cases.push(case("sizes", sizes));
        cases.push(case("dims", dims));
        cases.push(case("options", options).tagged(&["quick"]));
        cases.push(case("caches", caches).tagged(&["quick"]));
        cases.push(case("parts", parts));
        if dtype != DType::F32 {
            cases.push(case("tiles", tiles));
        }
        cases.push(case("memory", memory));
    }
    cases
}

/// A random problem; every kernel in turn.
pub(crate) fn random(env: &Env, rng: &mut Rng, turn: usize) -> AttentionProblem {
    let dtype = FLOATS[turn % 3];
    let few = (turn / 3).is_multiple_of(2);
    let largest = [128, 256, 512][turn / 6 % 3];
    let aligned = (turn / 18).is_multiple_of(2);
    let dim = if aligned { largest - 8 * rng.below(largest / 16) } else { largest - rng.below(largest / 2) };
    let queries = if few { rng.between(1, 7) } else { rng.between(16, 70) };
    let mut p =
        AttentionProblem::new(dtype, [queries, rng.between(1, 150)], [rng.between(1, 3), rng.between(1, 5)], dim);
    p.batch = rng.between(1, 3);
    if few && rng.one_in(3) {
        // Enough keys for parts.
        (p.batch, p.kv_heads, p.group, p.keys) = (1, 1, rng.between(1, 2), rng.between(512, 1500));
    }
    p.causal = *rng.pick(&[
        Causal::Full,
        Causal::Host(0),
        Causal::Host(17),
        Causal::Device(3),
        Causal::Each,
        Causal::End,
        Causal::End,
    ]);
    p.window = (p.causal != Causal::Full && rng.one_in(3)).then(|| [1, 5, 64, 100][rng.below(4)]);
    p.packed = *rng.pick(&[Packed::No, Packed::No, Packed::Queries, Packed::Both]);
    p.page = (p.packed != Packed::Both && rng.one_in(3)).then(|| [16, 32, 64][rng.below(3)]);
    p.lengths = p.page.is_some() || (p.packed != Packed::Both && rng.one_in(2));
    p.mask = (p.packed == Packed::No && rng.one_in(3)).then(|| MASKS[rng.below(4)]);
    p.repeated = [0, 0b0011, 0b0001, 0b0100, 0b1000][rng.below(5)];
    p.sinks = rng.one_in(3);
    p.scale = *rng.pick(&[None, None, Some(0.05), Some(-1.0)]);
    p.softcap = *rng.pick(&[None, None, Some(20.0), Some(1.0)]);
    p.coded = !(turn / 36).is_multiple_of(2);
    p.permuted = rng.one_in(3);
    p.poison = rng.one_in(4);
    if !aligned {
        (p.pad, p.offset) = (rng.below(9), rng.below(4));
    }
    p.kind = *rng.pick(&[BufferKind::Cold, BufferKind::Hot, BufferKind::Bump]);
    p.seed = rng.bits();
    while p.cost() > env.budget.min(4_000_000) && p.keys + p.queries > 2 {
        (p.keys, p.queries) = (p.keys.div_ceil(2), if few { p.queries } else { p.queries.div_ceil(2).max(16) });
        if p.keys == 1 {
            break;
        }
    }
    p
}
