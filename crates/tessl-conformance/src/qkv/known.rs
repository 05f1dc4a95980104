//! Cases with a story: faults, NaN, and the same numbers as the ops that it stands for.

use crate::data::{encode, read_bytes, write_bytes};
use crate::env::Env;
use crate::suite::Case;
use tessl::nn::{
    KvPlaces, KvStore, NormQkvRope, QkNorm, QuantizedQkv, RmsNorm, Rope, RopeFrequencies, RopeScaling, Start,
};
use tessl::{BufferKind, DType, Error, FaultKind, QFormat, QTensor, Scalar, Tensor};

fn text(error: Error) -> String {
    error.to_string()
}

fn numbers(env: &Env, shape: &[usize], f: impl Fn(usize) -> f32) -> Result<Tensor, String> {
    let values: Vec<f32> = (0..shape.iter().product()).map(f).collect();
    env.rt.from_slice(&values, shape).map_err(text)
}

/// Positions and pages outside of the cache: told, not stored; queries and the other tokens are.
fn faults(env: &Env) -> Result<(), String> {
    let x = numbers(env, &[2, 2, 32], |i| (i % 7) as f32 + 1.0)?;
    let norm = numbers(env, &[32], |_| 1.0)?;
    let w = numbers(env, &[4, 32], |i| (i % 5) as f32)?;
    let frequencies = RopeFrequencies::new(&env.rt, 4, 10_000.0, RopeScaling::None).map_err(text)?;
    let starts = env.rt.from_slice(&[3u32, 15], &[2]).map_err(text)?;
    let table = env.rt.from_slice(&[1u32, 2], &[2, 1]).map_err(text)?;
    let q = numbers(env, &[2, 2, 1, 4], |_| -1.0)?;
    let (k, v) = (numbers(env, &[2, 16, 1, 4], |_| -1.0)?, numbers(env, &[2, 16, 1, 4], |_| -1.0)?);
    let op = |start| NormQkvRope::new(&x, &norm, [&w, &w, &w], &frequencies, start, [&q, &k, &v]);
    let plain = op(Start::Each(&starts)).kv(KvPlaces::Cache);
    let paged = op(3.into()).kv(KvPlaces::Pages(&table));
    let first = (FaultKind::CacheOverflow, 3, 16, vec![3, 4, 16 + 15]);
    let second = (FaultKind::IndexOutOfRange, 1, 2, vec![16 + 3, 16 + 4]);
    let mut stream = env.rt.stream().map_err(text)?;
    for (op, (kind, index, value, written)) in [(plain, first), (paged, second)] {
        let old = encode(DType::F32, std::iter::repeat_n(-1.0, 128));
        [&k, &v].into_iter().try_for_each(|t| write_bytes(t, &old, None))?;
        op.run_on(&mut stream).map_err(text)?;
        let outcome = stream.synchronize();
        if !env.computes {
            outcome.map_err(text)?;
            continue;
        }
        match outcome {
            Err(Error::Fault { op: "norm_qkv_rope", kind: k, index: i, value: v })
                if (k, i, v) == (kind, index, value) => {}
            other => return Err(format!("{kind:?} at {index} of {value} gave {other:?}")),
        }
        stream.recover().map_err(text)?;
        for (name, cache) in [("k", &k), ("v", &v)] {
            let bytes = read_bytes(cache)?;
            let kept: Vec<usize> = (0..32).filter(|row| bytes[row * 16..][..16] != old[..16]).collect();
            if kept != written {
                return Err(format!("{name}: rows {kept:?} were written instead of {written:?}"));
            }
        }
        if q.read::<f32>().map_err(text)?.iter().any(|&q| q == -1.0) {
            return Err("a query was not written".into());
        }
    }
    Ok(())
}

/// NaN in a row of x reaches its own heads only, through the norm of heads too.
fn special(env: &Env) -> Result<(), String> {
    for bad in [f32::NAN, f32::INFINITY] {
        let x = numbers(env, &[1, 2, 64], |i| if i == 40 { bad } else { 1.0 })?;
        let (norm, head) = (numbers(env, &[64], |_| 1.0)?, numbers(env, &[8], |_| 1.0)?);
        let w = QTensor::quantize(&numbers(env, &[8, 64], |i| (i % 3) as f32 - 1.0)?, QFormat::Q8_0).map_err(text)?;
        let frequencies = RopeFrequencies::new(&env.rt, 8, 10_000.0, RopeScaling::None).map_err(text)?;
        let outputs = [0, 1, 2].map(|_| env.rt.zeros(DType::F32, &[1, 2, 1, 8], BufferKind::Cold));
        let [q, k, v] = outputs.map(|t| t.map_err(text));
        let (q, k, v) = (q?, k?, v?);
        let op = NormQkvRope::new(&x, &norm, [&w, &w, &w], &frequencies, 0, [&q, &k, &v]).head_norms(&head, &head);
        op.run().map_err(text)?;
        for t in [q, k, v] {
            let got = t.read::<f32>().map_err(text)?;
            if env.computes && !got.iter().enumerate().all(|(i, y)| y.is_nan() == (i < 8)) {
                return Err(format!("{bad} went astray: {got:?}"));
            }
        }
    }
    Ok(())
}

/// A captured step with its position in memory equals the five ops that it stands for, position after position.
fn stands_for_five_ops(env: &Env) -> Result<(), String> {
    let rt = &env.rt;
    let (n, d) = (64, 32);
    let wave = |scale: f32| move |i: usize| ((i * 37 % 101) as f32 / 50.0 - 1.0) * scale;
    let x = numbers(env, &[1, 1, n], wave(3.0))?;
    let (norm, head) = (numbers(env, &[n], wave(1.0))?, numbers(env, &[d], wave(1.0))?);
    let w = QTensor::quantize(&numbers(env, &[4 * d, n], wave(0.5))?, QFormat::Q4_1).map_err(text)?;
    let part = |from, heads| w.narrow(0, from * d, heads * d).map_err(text);
    let (wq, wk, wv) = (part(0, 2)?, part(2, 1)?, part(3, 1)?);
    let frequencies = RopeFrequencies::new(rt, d, 10_000.0, RopeScaling::None).map_err(text)?;
    let zeros = |shape: &[usize]| rt.zeros(DType::F32, shape, BufferKind::Hot).map_err(text);
    let (q, k, v) = (zeros(&[1, 1, 2, d])?, zeros(&[1, 6, 1, d])?, zeros(&[1, 6, 1, d])?);
    let (q2, k2, v2) = (zeros(&[1, 1, 2, d])?, zeros(&[1, 6, 1, d])?, zeros(&[1, 6, 1, d])?);
    let (normed, all) = (zeros(&[1, n])?, zeros(&[1, 4 * d])?);
    let position = rt.from_slice(&[0u32], &[1]).map_err(text)?;
    let mut stream = rt.stream().map_err(text)?;
    let at = Scalar::Device(&position);
    let fused = NormQkvRope::new(&x, &norm, [&wq, &wk, &wv], &frequencies, at, [&q, &k, &v]);
    let fused = fused.head_norms(&head, &head).weight_offset(1.0).kv(KvPlaces::Cache);
    stream.reserve(1 << 16).map_err(text)?;
    let graph = stream.capture(|s| fused.run_on(s)).map_err(text)?;
    for p in 0..6u32 {
        position.write_on(&[p], &mut stream).map_err(text)?;
        graph.replay(&mut stream).map_err(text)?;
        let view = |from: usize, heads: usize| all.narrow(1, from * d, heads * d);
        let heads = |from: usize, heads: usize| all.view(&[1, 1, heads, d], &[4 * d, 4 * d, d, 1], from * d);
        let apart = |s: &mut tessl::Stream| -> tessl::Result<()> {
            let row = x.reshape(&[1, n])?;
            RmsNorm::new(&row, &norm, &normed).weight_offset(1.0).run_on(s)?;
            QuantizedQkv::new(&normed, [&wq, &wk, &wv], [&view(0, 2)?, &view(2, 1)?, &view(3, 1)?]).run_on(s)?;
            let (hq, hk, hv) = (heads(0, 2)?, heads(2, 1)?, heads(3, 1)?);
            QkNorm::new(&hq, &hk, &head, &head).weight_offset(1.0).run_on(s)?;
            Rope::new(&hq, &frequencies, tessl::nn::Positions::From(at), &q2).run_on(s)?;
            Rope::new(&hk, &frequencies, tessl::nn::Positions::From(at), &hk).run_on(s)?;
            KvStore::pair(&hk, &k2, &hv, &v2, at).run_on(s)
        };
        apart(&mut stream).map_err(text)?;
        for (name, a, b) in [("q", &q, &q2), ("k", &k, &k2), ("v", &v, &v2)] {
            let (a, b) = (a.read::<f32>().map_err(text)?, b.read::<f32>().map_err(text)?);
            let near = a.iter().zip(&b).all(|(a, b)| (a - b).abs() <= 2e-5 * (1.0 + b.abs()));
            if env.computes && !(near && a.iter().any(|&a| a != 0.0)) {
                return Err(format!("{name} at position {p}: {a:?} instead of {b:?}"));
            }
        }
    }
    Ok(())
}

pub(super) fn cases() -> Vec<Case> {
    let op = "norm_qkv_rope";
    let case = |name: &str, body: fn(&Env) -> Result<(), String>| {
        Case::fixed(format!("{op}/{name}"), op, 100_000, move |env| body(env).into()).tagged(&["quick"])
    };
    vec![case("faults", faults), case("special", special), case("stands_for_five_ops", stands_for_five_ops)]
}
