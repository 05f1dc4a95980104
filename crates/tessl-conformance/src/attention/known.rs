//! Faults that public code bases have shipped, and what is found on the device.

use super::cases::FLOATS;
use crate::data::{encode, read_bytes, representable, write_bytes};
use crate::env::Env;
use crate::suite::Case;
use tessl::nn::Attention;
use tessl::{BufferKind, DType, Error, FaultKind, Tensor};

type Result<T = ()> = std::result::Result<T, String>;

fn text(error: Error) -> String {
    error.to_string()
}

fn tensor(env: &Env, dtype: DType, shape: &[usize], value: impl Fn(usize) -> f64) -> Result<Tensor> {
    let t = env.rt.uninit(dtype, shape, BufferKind::Cold).map_err(text)?;
    write_bytes(&t, &encode(dtype, (0..t.len()).map(|i| representable(dtype, value(i)))), None)?;
    Ok(t)
}

/// Compares with values that may be off by `tolerance`, exactly where that is 0.
fn equal(env: &Env, what: &str, out: &Tensor, tolerance: f64, want: impl Fn(usize) -> f64) -> Result {
    if !env.computes {
        return env.rt.synchronize().map_err(text);
    }
    let bytes = read_bytes(out)?;
    for at in 0..out.len() {
        let (got, want) = (crate::data::decode(out.dtype(), &bytes, at), want(at));
        if !((got - want).abs() <= tolerance || got == representable(out.dtype(), want)) {
            return Err(format!("{what}: {} element {at} is {got} instead of {want}", out.dtype()));
        }
    }
    Ok(())
}

/// pytorch/pytorch#169222: keys that are no multiple of a block; NaN behind the last one.
fn pt_169222(env: &Env) -> Result {
    for dtype in FLOATS {
        for (i, n) in [1, 31, 32, 33, 38, 39, 70, 1023, 1025].into_iter().enumerate() {
            let dim = [64, 96, 128][i % 3];
            let dim = if env.budget < 1_000_000 && n > 100 { 16 } else { dim };
            let inside = |at: usize| at / dim < n;
            let q = tensor(env, dtype, &[1, 1, 2, dim], |_| 0.0)?;
            let k = tensor(env, dtype, &[1, n + 40, 1, dim], |at| if inside(at) { (at % 7) as f64 } else { f64::NAN })?;
            let v =
                tensor(env, dtype, &[1, n + 40, 1, dim], |at| if inside(at) { (at / dim) as f64 } else { f64::NAN })?;
            let out = tensor(env, dtype, &[1, 1, 2, dim], |_| f64::NAN)?;
            let (k, v) = (k.narrow(1, 0, n).map_err(text)?, v.narrow(1, 0, n).map_err(text)?);
            Attention::new(&q, &k, &v, &out).run().map_err(text)?;
            let mean = (0..n).map(|j| representable(dtype, j as f64)).sum::<f64>() / n as f64;
            // Whole numbers have exact sums; one over their count and the product round.
            let tolerance = if dtype == DType::F32 { mean * 2f64.powi(-22) } else { mean * 2f64.powi(-7) };
            equal(env, "A-03", &out, tolerance, |_| mean)?;
        }
    }
    Ok(())
}

/// pytorch/pytorch#181133: storage [B, S, H, D], as it is and fused with two others.
fn pt_181133(env: &Env) -> Result {
    let (s, h, dim) = (3, 3, 64);
    for b in [2usize, if env.budget < 1_000_000 { 5 } else { 84 }] {
        let row = 3 * h * dim;
        // q = 0, then k, then v[b, s, h] = 100 b + 10 h + s.
        let fused = tensor(env, DType::F32, &[b, s, 3, h, dim], |at| match at % row / (h * dim) {
            0 => 0.0,
            1 => (at % 5) as f64,
            _ => (100 * (at / row / s) + 10 * (at / dim % h) + at / row % s) as f64,
        })?;
        let [q, k, v] = [0, 1, 2].map(|i| fused.select(2, i));
        let (q, k, v) = (q.map_err(text)?, k.map_err(text)?, v.map_err(text)?);
        let out = tensor(env, DType::F32, &[b, h, s, dim], |_| f64::NAN)?.permute(&[0, 2, 1, 3]).map_err(text)?;
        Attention::new(&q, &k, &v, &out).run().map_err(text)?;
        let want = |at: usize| (100 * (at / (s * h * dim)) + 10 * (at / dim % h) + 1) as f64;
        equal(env, "A-05", &out, 1e-2, want)?;
    }
    Ok(())
}

/// pytorch/pytorch#156707, ml-explore/mlx#2395: a row that sees nothing is 0.
fn pt_156707(env: &Env) -> Result {
    let eye = |at: usize| [1., 0., 0., 0., 0., 1., 0., 0.][at];
    let want = [0.0, 0.0, 0.0, 0.0, 3.489_837_3, 4.489_837_3, 5.489_837_3, 6.489_837_3];
    for dtype in FLOATS {
        let q = tensor(env, dtype, &[1, 2, 1, 4], eye)?;
        let v = tensor(env, dtype, &[1, 2, 1, 4], |at| (at + 1) as f64)?;
        let out = tensor(env, dtype, &[1, 2, 1, 4], |_| f64::NAN)?;
        for mask in [DType::U8, DType::F32, dtype] {
            let hide = if mask == DType::U8 { [0.0, 1.0] } else { [f64::NEG_INFINITY, 0.0] };
            let mask = tensor(env, mask, &[2, 1], |at| hide[at])?;
            Attention::new(&q, &q, &v, &out).mask(&mask).run().map_err(text)?;
            equal(env, "A-17", &out, if dtype == DType::F32 { 1e-6 } else { 0.03 }, |at| want[at])?;
        }
        // Positions before the first key.
        Attention::new(&q, &q.narrow(1, 0, 0).map_err(text)?, &v.narrow(1, 0, 0).map_err(text)?, &out)
            .causal(0)
            .run()
            .map_err(text)?;
        equal(env, "no keys", &out, 0.0, |_| 0.0)?;
    }
    Ok(())
}

/// pytorch/pytorch#101967: NaN in unused slots, by length and by mask.
fn pt_101967(env: &Env) -> Result {
    let nan = f64::NAN;
    for (dtype, queries) in FLOATS.into_iter().flat_map(|d| [(d, 1), (d, 20)]) {
        let q = tensor(env, dtype, &[1, queries, 1, 2], |_| 0.0)?;
        let k = tensor(env, dtype, &[1, 4, 1, 2], |at| if at < 4 { 1.0 } else { nan })?;
        let v = tensor(env, dtype, &[1, 4, 1, 2], |at| [1.0, 2.0, 3.0, 4.0, nan, nan, nan, nan][at])?;
        let out = tensor(env, dtype, &[1, queries, 1, 2], |_| nan)?;
        let lengths = env.rt.from_slice(&[2u32], &[1]).map_err(text)?;
        Attention::new(&q, &k, &v, &out).kv_lengths(&lengths).run().map_err(text)?;
        equal(env, "A-21 by length", &out, 0.0, |at| [2.0, 3.0][at % 2])?;
        let mask = env.rt.from_slice(&[1u8, 1, 0, 0], &[4]).map_err(text)?;
        Attention::new(&q, &k, &v, &out).mask(&mask).run().map_err(text)?;
        equal(env, "A-21 by mask", &out, 0.0, |at| [2.0, 3.0][at % 2])?;
        if queries == 1 {
            Attention::new(&q, &k, &v, &out).causal(1).run().map_err(text)?;
            equal(env, "A-21 by position", &out, 0.0, |at| [2.0, 3.0][at % 2])?;
        }
    }
    Ok(())
}

/// pytorch/pytorch#195910: each query hides its own future. ml-explore/mlx-lm#390: a window counts the query.
fn pt_195910(env: &Env) -> Result {
    let n = if env.budget < 1_000_000 { 24 } else { 64 };
    for dtype in FLOATS {
        let zero = tensor(env, dtype, &[1, n, 1, n], |_| 0.0)?;
        let eye = tensor(env, dtype, &[1, n, 1, n], |at| f64::from(u8::from(at / n == at % n)))?;
        let out = tensor(env, dtype, &[1, n, 1, n], |_| f64::NAN)?;
        for window in [n, 1, 2, n - 1, 2 * n] {
            let keys = u32::try_from(window).unwrap_or(1);
            Attention::new(&zero, &zero, &eye, &out).causal(0).window(keys).run().map_err(text)?;
            let want = |at: usize| {
                let (i, j) = (at / n, at % n);
                let seen = (i + 1).min(window);
                if j <= i && j + seen > i { 1.0 / seen as f64 } else { 0.0 }
            };
            let tolerance = if dtype == DType::F32 { 1e-7 } else { 0.0 };
            equal(env, "A-28, A-32", &out, tolerance, |at| if want(at) == 0.0 { 0.0 } else { want(at) })?;
            if env.computes {
                let bytes = read_bytes(&out)?;
                let hidden = (0..n * n).find(|&at| want(at) == 0.0 && crate::data::decode(dtype, &bytes, at) != 0.0);
                hidden.map_or(Ok(()), |at| Err(format!("A-28: element {at} is not exactly 0")))?;
            }
        }
    }
    Ok(())
}

/// onnx/onnx#7274: query heads are grouped by blocks.
fn onnx_7274(env: &Env) -> Result {
    for queries in [1, 17] {
        let q = tensor(env, DType::F32, &[1, queries, 4, 8], |_| 0.0)?;
        let k = tensor(env, DType::F32, &[1, 3, 2, 8], |_| 1.0)?;
        let v = tensor(env, DType::F32, &[1, 3, 2, 8], |at| (at / 8 % 2 + 1) as f64)?;
        let out = tensor(env, DType::F32, &[1, queries, 4, 8], |_| f64::NAN)?;
        Attention::new(&q, &k, &v, &out).run().map_err(text)?;
        equal(env, "A-29", &out, 1e-6, |at| (at / 8 % 4 / 2 + 1) as f64)?;
    }
    Ok(())
}

/// Lengths and pages outside of their bounds: reported, good sequences written, bad ones not.
fn faults(env: &Env) -> Result {
    for (queries, n) in [(1, 3u32), (20, 60)] {
        let shape = [3, queries, 2, 8];
        let q = tensor(env, DType::F32, &shape, |_| 0.0)?;
        let k = tensor(env, DType::F32, &[3, 32, 1, 8], |_| 1.0)?;
        let v = tensor(env, DType::F32, &[3, 32, 1, 8], |_| 5.0)?;
        let lengths = env.rt.from_slice(&[32u32, 33, 1], &[3]).map_err(text)?;
        let out = tensor(env, DType::F32, &shape, |_| -1.0)?;
        let mut stream = env.rt.stream().map_err(text)?;
        Attention::new(&q, &k, &v, &out).kv_lengths(&lengths).run_on(&mut stream).map_err(text)?;
        expect(env, &mut stream, FaultKind::BadLength, 1, 33)?;
        let size = queries * 16;
        equal(env, "bad length", &out, 1e-5, |at| if at / size == 1 { -1.0 } else { 5.0 })?;

        // Pages: the second sequence names one that does not exist.
        let pages = tensor(env, DType::F32, &[6, 16, 1, 8], |_| 1.0)?;
        let table = env.rt.from_slice(&[5u32, 0, 3, 6, 1, 9], &[3, 2]).map_err(text)?;
        let lengths = env.rt.from_slice(&[20u32, 17, 16], &[3]).map_err(text)?;
        let out = tensor(env, DType::F32, &shape, |_| -1.0)?;
        Attention::new(&q, &pages, &pages, &out)
            .kv_lengths(&lengths)
            .table(&table)
            .run_on(&mut stream)
            .map_err(text)?;
        expect(env, &mut stream, FaultKind::IndexOutOfRange, 3, 6)?;
        equal(env, "bad page", &out, 1e-5, |at| if at / size == 1 { -1.0 } else { 1.0 })?;

        // Cumulative lengths that fall, and that pass the end.
        let flat = q.reshape(&[3 * queries, 2, 8]).map_err(text)?;
        let cu_k = env.rt.from_slice(&[0u32, 2, 2, 32], &[4]).map_err(text)?;
        let keys = k.select(0, 0).map_err(text)?;
        for (cu, place, value) in [([0, n, 1, n], 2, 1), ([0, 1, 1, n + 1], 3, n + 1)] {
            let out = tensor(env, DType::F32, &[3 * queries, 2, 8], |_| -1.0)?;
            let cu_q = env.rt.from_slice(&cu, &[4]).map_err(text)?;
            Attention::new(&flat, &keys, &keys, &out).varlen(&cu_q, &cu_k).run_on(&mut stream).map_err(text)?;
            expect(env, &mut stream, FaultKind::BadLength, place, value.into())?;
        }
    }
    Ok(())
}

/// Threads that share the default stream share its scratch memory: nothing comes between the two steps of a call.
fn threads(env: &Env) -> Result {
    let (keys, dim) = (600, 16);
    let k = tensor(env, DType::F32, &[1, keys, 1, dim], |at| (at % 13) as f64 / 13.0)?;
    let v = tensor(env, DType::F32, &[1, keys, 1, dim], |at| (at % 17) as f64)?;
    let attend = |q: &Tensor| -> Result<Vec<f32>> {
        let out = env.rt.alloc_tensor_f32(&[1, 1, 1, dim]).map_err(text)?;
        Attention::new(q, &k, &v, &out).run().map_err(text)?;
        out.read().map_err(text)
    };
    let queries = (0..4).map(|i| tensor(env, DType::F32, &[1, 1, 1, dim], |at| ((at + i) % 5) as f64 - 2.0));
    let queries = queries.collect::<Result<Vec<_>>>()?;
    let want = queries.iter().map(attend).collect::<Result<Vec<_>>>()?;
    let turns = if env.budget < 1_000_000 { 3 } else { 50 };
    std::thread::scope(|scope| {
        let mut running = Vec::new();
        for (q, want) in queries.iter().zip(&want) {
            let attend = &attend;
            running.push(scope.spawn(move || -> Result {
                for _ in 0..turns {
                    if attend(q)? != *want && env.computes {
                        return Err("a thread got another's numbers".into());
                    }
                }
                Ok(())
            }));
        }
        running.into_iter().try_for_each(|t| t.join().unwrap_or_else(|_| Err("a thread panicked".into())))
    })
}

fn expect(env: &Env, stream: &mut tessl::Stream, kind: FaultKind, index: u64, value: i64) -> Result {
    let outcome = stream.synchronize();
    if !env.computes {
        return outcome.map_err(text);
    }
    match outcome {
        Err(Error::Fault { op: "attention", kind: k, index: i, value: v }) if (k, i, v) == (kind, index, value) => {
            stream.recover().map_err(text)
        }
        other => Err(format!("{kind:?} at {index} of {value} gave {other:?}")),
    }
}

pub(super) fn cases() -> Vec<Case> {
    let known = |name: &str, body: fn(&Env) -> Result| {
        Case::fixed(format!("known/{name}"), "attention", 100_000, move |env| body(env).into()).tagged(&["quick"])
    };
    vec![
        known("pt_169222", pt_169222),
        known("pt_181133", pt_181133),
        known("pt_156707", pt_156707),
        known("pt_101967", pt_101967),
        known("pt_195910", pt_195910),
        known("onnx_7274", onnx_7274),
        known("attention_faults", faults),
        known("attention_threads", threads),
    ]
}
