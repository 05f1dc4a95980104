//! Special values, empty axes, activations over their range, large products.

use super::problem::{Data, Problem, oracle_activation};
use super::{BACKENDS, Variant, backend_name};
use crate::data::{Mem, Placed, decode, format_of};
use crate::env::{Env, Outcome};
use crate::suite::Case;
use tessl::{Activation, BufferKind, DType, DeviceKind, Epilogue, Gemm};
use tessl_oracle::{Rng, bound, freivalds, positions};

/// An m x n x k product of given values; returns the output as numbers.
fn product(
    env: &Env,
    v: Variant,
    [m, n, k]: [usize; 3],
    a: impl Fn(usize, usize) -> f64,
    b: impl Fn(usize, usize) -> f64,
    epilogue: Epilogue<'_>,
    old: f64,
) -> Result<Vec<f64>, String> {
    Mem::with(env, BufferKind::Cold, |mem| {
        let mut ops = [
            Placed::new(v.pair.0, &[m, k], &[k.max(1) + 1, 1], 0),
            Placed::new(v.pair.0, &[k, n], &[n.max(1) + 1, 1], 0),
            Placed::new(v.pair.1, &[m, n], &[n.max(1) + 1, 1], 0),
        ];
        for op in &mut ops {
            op.allocate(mem)?;
        }
        let (ak, bn) = (k.max(1), n.max(1));
        ops[0].fill_input(mem, |at| a(at / ak, at % ak))?;
        ops[1].fill_input(mem, |at| b(at / bn, at % bn))?;
        ops[2].fill_output(mem, |_| old)?;
        let (ta, tb, tc) = (ops[0].view()?, ops[1].view()?, ops[2].view()?);
        mem.gemm(&Gemm::new(&ta, &tb, &tc).backend(v.backend).epilogue(epilogue))?;
        if !env.computes {
            return Ok(Vec::new());
        }
        let bytes = ops[2].fetch_output()?;
        Ok((0..m * n).map(|at| decode(v.pair.1, &bytes, at)).collect())
    })
}

fn activated(activation: Activation) -> Epilogue<'static> {
    Epilogue { activation, ..Epilogue::default() }
}

fn expect(env: &Env, what: &str, got: &[f64], right: impl Fn(usize, f64) -> bool) -> Result<(), String> {
    if !env.computes {
        return Ok(());
    }
    match got.iter().enumerate().find(|&(at, &x)| !right(at, x)) {
        Some((at, x)) => Err(format!("{what}: element {at} is {x}")),
        None => Ok(()),
    }
}

/// NaN and infinity in the operands and in an unread C, denormals, empty axes.
pub(super) fn special(env: &Env, v: Variant) -> Outcome {
    special_values(env, v).and_then(|()| empty_axes(env, v)).into()
}

fn special_values(env: &Env, v: Variant) -> Result<(), String> {
    let plain = Epilogue::default();
    for (m, n, k) in [(5, 7, 9), (40, 70, 33), (1, 33, 65)] {
        let shape = [m, n, k];
        // One NaN in row 0 of A poisons row 0 and nothing else; the same for B's last column.
        let a = |i: usize, p: usize| if (i, p) == (0, k - 1) { f64::NAN } else { 1.0 };
        let got = product(env, v, shape, a, |_, _| 1.0, plain, f64::NAN)?;
        expect(env, "NaN in A", &got, |at, x| if at / n == 0 { x.is_nan() } else { x == k as f64 })?;
        let b = |p: usize, j: usize| if (p, j) == (0, n - 1) { f64::NAN } else { 1.0 };
        for activation in Activation::ALL {
            let got = product(env, v, shape, |_, _| 1.0, b, activated(activation), f64::NAN)?;
            let full = format_of(v.pair.1).round(oracle_activation(activation).apply(k as f64));
            let near = |x: f64| (x - full).abs() <= format_of(v.pair.1).spacing(full);
            expect(env, "NaN in B", &got, |at, x| if at % n == n - 1 { x.is_nan() } else { near(x) })?;
        }
        // Infinity, and infinity times zero.
        let inf = |i: usize, p: usize| if (i, p) == (m - 1, 0) { f64::INFINITY } else { 1.0 };
        let got = product(env, v, shape, inf, |p, j| if p == 0 && j == 0 { 0.0 } else { 1.0 }, plain, 0.0)?;
        expect(env, "inf in A", &got, |at, x| match (at / n == m - 1, at % n == 0) {
            (true, true) => x.is_nan(),
            (true, false) => x == f64::INFINITY,
            (false, first) => x == (k - usize::from(first)) as f64,
        })?;
        // beta = 0 does not read C; beta = 1 does.
        for old in [f64::NAN, f64::INFINITY] {
            let got = product(env, v, shape, |_, _| 1.0, |_, _| 1.0, plain, old)?;
            expect(env, "beta = 0", &got, |_, x| x == k as f64)?;
            let got = product(env, v, shape, |_, _| 1.0, |_, _| 1.0, Epilogue { beta: 1.0, ..plain }, old)?;
            expect(env, "beta = 1", &got, |_, x| if old.is_nan() { x.is_nan() } else { x == old })?;
        }
        // -0.0 as beta is zero as well.
        let got = product(env, v, shape, |_, _| 1.0, |_, _| 1.0, Epilogue { beta: -0.0, ..plain }, f64::NAN)?;
        expect(env, "beta = -0", &got, |_, x| x == k as f64)?;
    }
    // Denormal inputs and results are not flushed (Metal may flush f32 ones).
    if env.rt.info().kind != DeviceKind::Metal {
        let format = format_of(v.pair.0);
        let tiny = 2f64.powi(format.min_exponent - format.bits + 1);
        let scale = if v.pair.0 == DType::F16 { 1024.0 } else { 2f64.powi(60) };
        let got = product(env, v, [3, 18, 2], |_, _| 3.0 * tiny, |_, _| scale, plain, f64::NAN)?;
        let want = format_of(v.pair.1).round(6.0 * tiny * scale);
        expect(env, "denormal inputs", &got, |_, x| x == want)?;
        let out = format_of(v.pair.1);
        let smallest = 2f64.powi(out.min_exponent - out.bits + 1);
        if v.pair.0 == v.pair.1 {
            let half = 2f64.powi(out.min_exponent / 2);
            let other = 4.0 * smallest / half;
            let got = product(env, v, [3, 18, 1], |_, _| half, |_, _| other, plain, f64::NAN)?;
            expect(env, "denormal results", &got, |_, x| x == 4.0 * smallest)?;
        }
    }
    Ok(())
}

fn empty_axes(env: &Env, v: Variant) -> Result<(), String> {
    let plain = Epilogue::default();
    let before = env.rt.dispatch_count();
    for shape in [[0, 5, 3], [4, 0, 3], [0, 0, 0]] {
        product(env, v, shape, |_, _| 1.0, |_, _| 1.0, plain, 7.0)?;
    }
    if env.rt.dispatch_count() != before {
        return Err("an empty product was launched".into());
    }
    for (m, n) in [(1, 1), (3, 5), (40, 33)] {
        let got = product(env, v, [m, n, 0], |_, _| 1.0, |_, _| 1.0, plain, f64::NAN)?;
        expect(env, "k = 0", &got, |_, x| x == 0.0)?;
        let got = product(env, v, [m, n, 0], |_, _| 1.0, |_, _| 1.0, Epilogue { beta: 2.0, ..plain }, 3.0)?;
        expect(env, "k = 0, beta = 2", &got, |_, x| x == 6.0)?;
        let got = product(
            env,
            v,
            [m, n, 0],
            |_, _| 1.0,
            |_, _| 1.0,
            Epilogue { beta: 1.0, ..activated(Activation::Relu) },
            -3.0,
        )?;
        expect(env, "k = 0, relu", &got, |_, x| x == 0.0)?;
    }
    Ok(())
}

/// Each activation at exactly known arguments (K = 1, one operand 1), over its whole range.
pub(super) fn activations(env: &Env, v: Variant) -> Outcome {
    let format = format_of(v.pair.0);
    let mut xs: Vec<f64> = vec![0.0, 9.0, 20.0, 44.0, 45.0, 88.8, 100.0, 1e4, f64::INFINITY];
    xs.extend((1..300).map(|i| f64::from(i) * 0.037));
    xs.extend((1..40).map(|i| 2f64.powi(i - 30)));
    let mut all: Vec<f64> = xs.iter().flat_map(|&x| [x, -x]).map(|x| format.round(x)).collect();
    all.push(f64::NAN);
    let check = |activation: Activation| {
        let n = all.len();
        let got = product(env, v, [2, n, 1], |_, _| 1.0, |_, j| all[j], activated(activation), f64::NAN)?;
        let oracle = oracle_activation(activation);
        let out = format_of(v.pair.1);
        expect(env, activation_name(activation), &got, |at, y| {
            let x = all[at % n];
            let exact = oracle.apply(x);
            if exact.is_nan() || exact.is_infinite() {
                return y.is_nan() == exact.is_nan() && (exact.is_nan() || y == exact);
            }
            let error = oracle.error(if x.is_finite() { x } else { 0.0 });
            let target = out.round(exact);
            (y - exact).abs() <= bound::stored(error, exact, out) || (target.is_infinite() && y == target)
        })
    };
    Activation::ALL.into_iter().try_for_each(check).into()
}

fn activation_name(activation: Activation) -> &'static str {
    match activation {
        Activation::Relu => "relu",
        Activation::Silu => "silu",
        Activation::Gelu => "gelu",
        Activation::GeluTanh => "gelu-tanh",
        _ => "none",
    }
}

/// Model-sized products: patterns in full, random data by samples and Freivalds' check.
pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for (name, [m, n, k]) in [("qkv_proj", [512, 768, 768]), ("mlp_up", [512, 3072, 768]), ("square_1024", [1024; 3])] {
        for pair in [(DType::F32, DType::F32), (DType::Bf16, DType::F32), (DType::F16, DType::F16)] {
            for backend in BACKENDS {
                let v = Variant { pair, backend };
                let name = format!("gemm/model/{name}/{}_{}/{}", pair.0, pair.1, backend_name(backend));
                let case = Case::new(name, "gemm", move |env| model(env, v, [m, n, k]).into()).tagged(&["model"]);
                cases.push(case);
            }
        }
    }
    cases
}

fn model(env: &Env, v: Variant, [m, n, k]: [usize; 3]) -> Result<(), String> {
    let fit = |p: Problem| p.fit(env.budget.max(8 * crate::SMALL_BUDGET) / 4, [64, 64, 64]);
    let pattern = fit(v.problem(m, n, k));
    pattern.check(env)?;
    let (m, n, k) = (pattern.m, pattern.n, pattern.k);
    let random = Problem { data: Data::Normal, seed: env.seed, ..pattern };
    sampled(env, v, &random, [m, n, k])
}

/// Random data: 4,096 outputs computed again, and one check of the whole.
fn sampled(env: &Env, v: Variant, problem: &Problem, [m, n, k]: [usize; 3]) -> Result<(), String> {
    let format = format_of(v.pair.0);
    let mut rng = Rng::new(problem.seed);
    let a: Vec<f64> = (0..m * k).map(|_| format.round(rng.normal())).collect();
    let b: Vec<f64> = (0..k * n).map(|_| format.round(rng.normal())).collect();
    let got = product(env, v, [m, n, k], |i, p| a[i * k + p], |p, j| b[p * n + j], Epilogue::default(), f64::NAN)?;
    if !env.computes {
        return Ok(());
    }
    let out = format_of(v.pair.1);
    for (i, j) in positions(m, n, tessl_oracle::SAMPLES, problem.seed) {
        let terms = || (0..k).map(|p| a[i * k + p] * b[p * n + j]);
        let (exact, magnitude) = (terms().sum::<f64>(), terms().map(f64::abs).sum::<f64>());
        let allowed = bound::stored(bound::sum(k) * magnitude, exact, out);
        let difference = (got[i * n + j] - exact).abs();
        if difference.is_nan() || difference > allowed {
            return Err(format!(
                "C[{i}, {j}] is {} instead of {exact} (allowed: {allowed:e}) at {m}x{n}x{k}",
                got[i * n + j]
            ));
        }
    }
    // |a| |b| summed over k is about 2k/pi for normal data; twice that bounds it here.
    let each = bound::sum(k) * 1.3 * k as f64 + 0.5 * out.spacing(6.0 * (k as f64).sqrt());
    let worst =
        freivalds(m, n, k, |i, p| a[i * k + p], |p, j| b[p * n + j], |i, j| got[i * n + j], |_, _| each, env.seed);
    if worst > 1.0 { Err(format!("Freivalds' check: {worst} times what is allowed at {m}x{n}x{k}")) } else { Ok(()) }
}
