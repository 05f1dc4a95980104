//! What goes beyond the plain product: packed weights, gates, scales, residuals, groups, types of 8 bits.

use super::extra::{Extra, Gate, Groups, Residual};
use super::problem::{Data, Place, Problem};
use super::{BACKENDS, Variant, backend_name, check_all};
use crate::env::{Env, FP8_PAIRS, GEMM_PAIRS, INT8_PAIRS, Outcome};
use crate::suite::Case;
use tessl::plan::{Desc, plan};
use tessl::{Activation, BufferKind, DType, Error, Gemm, GemmExtras, max_k_i32};

const FLAGS: [bool; 2] = [false, true];
const SIZES: [[usize; 3]; 6] = [[1, 33, 65], [5, 70, 40], [16, 130, 96], [37, 47, 129], [130, 100, 70], [33, 16, 300]];

/// Cases of this page.
pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    let mut each = |pairs: &[(DType, DType)], name: &str, body: fn(&Env, Variant) -> Outcome| {
        for (&pair, backend) in pairs.iter().flat_map(|pair| BACKENDS.map(|backend| (pair, backend))) {
            let name = format!("gemm/{name}/{}_{}/{}", pair.0, pair.1, backend_name(backend));
            cases.push(Case::new(name, "gemm", move |env| body(env, Variant { pair, backend })).tagged(&["quick"]));
        }
    };
    each(&GEMM_PAIRS, "packed", packed);
    each(&GEMM_PAIRS, "fused", fused);
    each(&GEMM_PAIRS, "gated", gated);
    each(&GEMM_PAIRS, "groups", groups);
    each(&INT8_PAIRS, "types", eight_bits);
    each(&FP8_PAIRS, "types", eight_bits);
    each(&INT8_PAIRS, "rows", super::sweep::rows);
    each(&FP8_PAIRS, "rows", super::sweep::rows);
    each(&FP8_PAIRS, "blocks", blocks);
    cases.push(Case::new("gemm/int8_bound", "gemm", |env| int8_bound(env).into()).tagged(&["quick", "plans"]));
    cases.push(Case::new("gemm/bad_offsets", "gemm", |env| bad_offsets(env).into()).tagged(&["quick"]));
    cases
}

/// Whether the device has kernels for this.
fn missing(env: &Env, v: Variant, extras: GemmExtras) -> Option<Outcome> {
    let mut desc = crate::rows::plain_gemm(64, 64, 64, v.pair.0, v.pair.1, v.backend);
    desc.extras = extras;
    match plan(&Desc::Gemm(desc), env.rt.profile()) {
        Err(Error::Unsupported { .. }) => Some(Outcome::Skipped("the device has no kernel for it".into())),
        _ => None,
    }
}

/// Packed weights of every layout, alone and in batches, against few and many rows.
fn packed(env: &Env, v: Variant) -> Outcome {
    let mut problems = Vec::new();
    for [m, n, k] in SIZES {
        for (transposed, batch) in FLAGS.into_iter().flat_map(|t| [None, Some(3)].map(|b| (t, b))) {
            for (shared, data) in [(false, Data::Pattern), (true, Data::Normal)] {
                let base = v.problem(m, n, k);
                let b = Place { transposed, pad: 3, offset: 1, shared: shared && batch.is_some(), ..Place::default() };
                let extra = Extra { packed: true, ..Extra::default() };
                problems.push(Problem { b, batch, data, extra, seed: env.seed, ..base });
            }
        }
    }
    for m in 1..=18 {
        let extra = Extra { packed: true, ..Extra::default() };
        problems.push(Problem { extra, ..v.problem(m, 67, 35) });
    }
    // Enough columns for several chunks, and a sum in several blocks.
    let extra = Extra { packed: true, ..Extra::default() };
    problems.push(Problem { extra: extra.clone(), bias: Some(DType::F32), ..v.problem(19, 1100, 33) });
    problems.push(Problem { extra, ..v.problem(3, 40, 2100) });
    check_all(env, problems, [1, 1, 1])
}

/// Residuals, scales and biases of either axis and type, with every layout of C.
fn fused(env: &Env, v: Variant) -> Outcome {
    if let Some(outcome) = missing(env, v, GemmExtras { residual: true, ..GemmExtras::default() }) {
        return outcome;
    }
    let mut problems = Vec::new();
    let mut turn = 0;
    for residual in [Residual::None, Residual::Other, Residual::InPlace] {
        for row_scale in [None, Some(DType::F32), Some(v.pair.1)] {
            for col_scale in [None, Some(v.pair.1), Some(DType::F32)] {
                for (row_bias, bias) in [(false, None), (true, Some(v.pair.1)), (false, Some(DType::F32))] {
                    turn += 1;
                    let [m, n, k] = SIZES[turn % SIZES.len()];
                    let activation = Activation::ALL[turn % Activation::ALL.len()];
                    let c = Place { transposed: turn % 3 == 0, pad: turn % 4, ..Place::default() };
                    let batch = (turn % 5 == 0).then_some(2);
                    let (alpha, beta) = [(1.0, 0.0), (0.5, 1.0), (0.7, 0.3)][turn % 3];
                    let beta = if residual == Residual::InPlace { 0.0 } else { beta };
                    let odd_scales = turn % 4 == 1;
                    let extra = Extra { residual, row_scale, col_scale, row_bias, odd_scales, ..Extra::default() };
                    let base = v.problem(m, n, k);
                    problems.push(Problem {
                        alpha,
                        beta,
                        bias,
                        activation,
                        c,
                        batch,
                        extra,
                        data: Data::Integers,
                        ..base
                    });
                }
            }
        }
    }
    check_all(env, problems, [1, 1, 1])
}

/// Gated products: two tensors, one tensor, packed; with bias, scales and a residual.
fn gated(env: &Env, v: Variant) -> Outcome {
    if let Some(outcome) = missing(env, v, GemmExtras { gated: true, ..GemmExtras::default() }) {
        return outcome;
    }
    let mut problems = Vec::new();
    let mut turn = 0;
    for [m, n, k] in SIZES {
        for (gate, packed) in [(Gate::Two, false), (Gate::Half, false), (Gate::Two, true)] {
            for (transposed, full) in FLAGS.into_iter().flat_map(|t| FLAGS.map(|f| (t, f))) {
                turn += 1;
                let activation = Activation::ALL[turn % Activation::ALL.len()];
                let mut extra = Extra { gate, packed, ..Extra::default() };
                let mut base = Problem { activation, data: Data::Integers, seed: 7, ..v.problem(m, n, k) };
                // The largest f16 is 65504.
                base.alpha = if v.pair.1 == DType::F16 { 2f32.powi(-4) } else { 1.0 };
                base.b.transposed = transposed;
                base.batch = (turn % 3 == 0).then_some(2);
                if full {
                    base.bias = Some(if turn % 2 == 0 { DType::F32 } else { v.pair.1 });
                    (extra.row_scale, extra.col_scale) = (Some(DType::F32), Some(v.pair.1));
                    extra.residual = if turn % 2 == 0 { Residual::Other } else { Residual::InPlace };
                    extra.row_bias = turn % 4 == 0;
                    base.data = Data::Normal;
                }
                problems.push(Problem { extra, ..base });
            }
        }
    }
    check_all(env, problems, [1, 1, 1])
}

/// Groups of rows, their bounds on the host and on the device: empty ones, rows that no group has, packed weights.
fn groups(env: &Env, v: Variant) -> Outcome {
    let on_device = GemmExtras { groups: 2, ..GemmExtras::default() };
    let host_only = missing(env, v, on_device).is_some();
    let mut problems = Vec::new();
    for (first, sizes) in [(0, vec![3, 0, 17, 40]), (2, vec![1]), (1, vec![0, 0, 30, 5]), (0, vec![64, 33])] {
        let m = first + sizes.iter().sum::<usize>() + first;
        for (on_device, packed) in FLAGS.into_iter().flat_map(|d| FLAGS.map(|p| (d, p))) {
            if on_device && host_only {
                continue;
            }
            let groups = Some(Groups { first, sizes: sizes.clone(), on_device });
            let extra = Extra { groups, packed, ..Extra::default() };
            let base = v.problem(m, 45, 37);
            problems.push(Problem { extra: extra.clone(), data: Data::Integers, ..base.clone() });
            if host_only {
                continue;
            }
            let full = Extra {
                residual: Residual::Other,
                row_scale: Some(DType::F32),
                col_scale: Some(v.pair.1),
                gate: if packed { Gate::Two } else { Gate::Half },
                ..extra
            };
            problems.push(Problem { extra: full, bias: Some(DType::F32), data: Data::Normal, ..base });
        }
    }
    check_all(env, problems, [1, 1, 1])
}

/// i8 and u8, e4m3 and e5m2: every pair, full-range integers with `==`, tails of every tile, every epilogue.
fn eight_bits(env: &Env, v: Variant) -> Outcome {
    if let Some(outcome) = missing(env, v, GemmExtras::default()) {
        return outcome;
    }
    let whole = matches!(v.pair.0, DType::I8 | DType::U8);
    let [one, two] = if whole { [DType::I8, DType::U8] } else { [DType::F8E4M3, DType::F8E5M2] };
    let mut problems = Vec::new();
    let mut turn = 0;
    for [m, n, k] in
        [[1, 1, 1], [3, 7, 2], [16, 32, 64], [17, 33, 65], [31, 30, 63], [32, 64, 128], [65, 40, 67], [1, 70, 300]]
    {
        for (a, b) in [(one, one), (one, two), (two, one), (two, two)] {
            for (packed, transposed) in FLAGS.into_iter().flat_map(|p| FLAGS.map(|t| (p, t))) {
                turn += 1;
                let variant = Variant { pair: (a, v.pair.1), backend: v.backend };
                let mut extra = Extra { packed, other_b: (a != b).then_some(b), ..Extra::default() };
                let mut base =
                    Problem { data: Data::Integers, seed: env.seed + turn as u64, ..variant.problem(m, n, k) };
                base.a = Place { transposed: turn % 3 == 0, pad: turn % 5, offset: turn % 2, ..Place::default() };
                base.b = Place { transposed, pad: turn % 4, ..Place::default() };
                base.c.transposed = turn % 7 == 0 && !packed;
                if v.pair.1 != DType::I32 && turn % 2 == 0 {
                    (extra.row_scale, extra.col_scale) = (Some(DType::F32), Some(v.pair.1));
                    extra.odd_scales = turn % 4 == 0;
                    extra.residual = [Residual::None, Residual::Other, Residual::InPlace][turn % 3];
                    extra.gate = if packed { Gate::None } else { [Gate::None, Gate::Two, Gate::Half][turn / 2 % 3] };
                    base.bias = (turn % 3 == 0).then_some(DType::F32);
                    base.activation = Activation::ALL[turn % Activation::ALL.len()];
                    base.batch = (turn % 6 == 0).then_some(2);
                    base.c.transposed &= extra.gate == Gate::None;
                } else if !whole && turn % 2 == 1 {
                    base.data = Data::Normal;
                }
                problems.push(Problem { extra, ..base });
            }
        }
    }
    // Odd scales may leave the range of f16: keep its results small.
    if v.pair.1 == DType::F16 && whole {
        problems.iter_mut().for_each(|p| p.alpha = 2f32.powi(-14));
        problems.iter_mut().filter(|p| p.extra.gate != Gate::None).for_each(|p| p.alpha = 2f32.powi(-20));
    } else if v.pair.1 == DType::F16 {
        problems.iter_mut().filter(|p| p.extra.gate != Gate::None).for_each(|p| p.alpha = 2f32.powi(-5));
    }
    check_all(env, problems, [1, 1, 1])
}

/// Scales of 128 steps, and of 128 columns of B.
fn blocks(env: &Env, v: Variant) -> Outcome {
    if let Some(outcome) = missing(env, v, GemmExtras { block_scales: true, ..GemmExtras::default() }) {
        return outcome;
    }
    let mut problems = Vec::new();
    // The third and the sixth are what `thin` keeps for slow devices: several blocks along both axes of B.
    let sizes =
        [[3, 130, 127], [20, 127, 128], [2, 140, 260], [37, 129, 129], [5, 257, 400], [4, 40, 300], [100, 40, 1100]];
    for [m, n, k] in sizes {
        for transposed in FLAGS {
            let extra = Extra { blocks: true, ..Extra::default() };
            let b = Place { transposed, pad: 2, ..Place::default() };
            problems.push(Problem { extra, b, data: Data::Normal, bias: Some(DType::F32), ..v.problem(m, n, k) });
        }
    }
    check_all(env, problems, [1, 1, 1])
}

/// The longest exact sum is right at its extremes, and one more step is refused.
fn int8_bound(env: &Env) -> Result<(), String> {
    let text = |e: Error| e.to_string();
    let v = Variant { pair: (DType::I8, DType::I32), backend: tessl::GemmBackend::TensorOps };
    for (a, b, x, y) in [
        (DType::I8, DType::I8, -128i64, -128i64),
        (DType::U8, DType::I8, 255, -128),
        (DType::I8, DType::U8, -128, 255),
        (DType::U8, DType::U8, 255, 255),
    ] {
        let bound = max_k_i32(a, b) as usize;
        for k in [bound, bound + 1] {
            let make = |dtype: DType, value: i64, shape: &[usize]| {
                let len = shape.iter().product();
                #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // Values of 8 bits.
                let tensor = match dtype {
                    DType::I8 => env.rt.from_slice(&vec![value as i8; len], shape),
                    _ => env.rt.from_slice(&vec![value as u8; len], shape),
                };
                tensor.map_err(text)
            };
            let (ta, tb) = (make(a, x, &[1, k])?, make(b, y, &[k, 2])?);
            let tc = env.rt.zeros(DType::I32, &[1, 2], BufferKind::Cold).map_err(text)?;
            match (Gemm::new(&ta, &tb, &tc).run(), k > bound) {
                (Err(Error::TooLarge { value, limit, .. }), true) if (value, limit) == (k as u64, bound as u64) => {}
                (Err(Error::Unsupported { .. }), false) if missing(env, v, GemmExtras::default()).is_some() => {}
                (Ok(()), false) => {
                    let want = i32::try_from(k as i64 * x * y).map_err(|_| "the bound is not one")?;
                    if env.computes && tc.read::<i32>().map_err(text)? != [want; 2] {
                        return Err(format!("{a} x {b}, k = {k}: {:?} instead of {want}", tc.read::<i32>()));
                    }
                }
                (other, _) => return Err(format!("{a} x {b}, k = {k}: {other:?}")),
            }
        }
    }
    Ok(())
}

/// Bounds on the device that decrease or pass the last row: a fault, nothing written, and the stream works on.
fn bad_offsets(env: &Env) -> Result<(), String> {
    let text = |e: Error| e.to_string();
    let v = Variant { pair: (DType::F32, DType::F32), backend: tessl::GemmBackend::TensorOps };
    if missing(env, v, GemmExtras { groups: 2, ..GemmExtras::default() }).is_some() {
        return Ok(());
    }
    let a = env.rt.from_slice(&[1.0f32; 12], &[4, 3]).map_err(text)?;
    let b = env.rt.from_slice(&[1.0f32; 12], &[2, 3, 2]).map_err(text)?;
    for (values, index) in [([0u32, 5, 5], 1), ([3, 2, 4], 1), ([0, 2, u32::MAX], 2), ([5, 5, 5], 0)] {
        let c = env.rt.from_slice(&[7.0f32; 8], &[4, 2]).map_err(text)?;
        let offsets = env.rt.from_slice(&values, &[3]).map_err(text)?;
        let mut stream = env.rt.stream().map_err(text)?;
        Gemm::new(&a, &b, &c).grouped(&offsets).run_on(&mut stream).map_err(text)?;
        let outcome = stream.synchronize();
        if !env.computes {
            continue;
        }
        match outcome {
            Err(Error::Fault { index: found, .. }) if found == index => {}
            other => return Err(format!("{values:?}: {other:?} instead of a fault at {index}")),
        }
        stream.recover().map_err(text)?;
        if c.read::<f32>().map_err(text)? != [7.0; 8] {
            return Err(format!("{values:?}: something was written"));
        }
        let good = env.rt.from_slice(&[0u32, 1, 4], &[3]).map_err(text)?;
        Gemm::new(&a, &b, &c).grouped(&good).run().map_err(text)?;
        if c.read::<f32>().map_err(text)? != [3.0; 8] {
            return Err("the next good call is wrong".into());
        }
    }
    Ok(())
}
