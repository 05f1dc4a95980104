//! Known faults, positions beyond a cache, and rows that are no usual numbers.

use super::FLOATS;
use crate::data::{compare, encode, read_bytes, representable, write_bytes};
use crate::env::Env;
use crate::suite::Case;
use tessl::nn::{Attention, KvStore, Start};
use tessl::{BufferKind, Error, FaultKind, Scalar, Stream, Tensor};

/// huggingface/candle#3729, #3669, #3651: a captured step reads its position on the device, and equals eager steps.
fn candle_3729(env: &Env) -> Result<(), String> {
    let text = |e: Error| e.to_string();
    let rt = &env.rt;
    let new = |shape: &[usize]| rt.from_slice(&vec![-1.0f32; shape.iter().product()], shape).map_err(text);
    let (cache, eager) = (new(&[1, 4, 1, 2])?, new(&[1, 4, 1, 2])?);
    let (row, out, other) = (new(&[1, 1, 1, 2])?, new(&[1, 1, 1, 2])?, new(&[1, 1, 1, 2])?);
    let position = rt.from_slice(&[0u32], &[1]).map_err(text)?;
    let mut stream = rt.stream().map_err(text)?;
    let step = |s: &mut Stream, cache: &Tensor, out: &Tensor, start: Scalar<'_, u32>| {
        KvStore::new(&row, cache, start).run_on(s)?;
        Attention::new(&row, cache, cache, out).causal(start).run_on(s)
    };
    let graph = stream.capture(|s| step(s, &cache, &out, Scalar::Device(&position))).map_err(text)?;
    for p in 0..4u8 {
        row.write_on(&[f32::from(p); 2], &mut stream).map_err(text)?;
        position.write_on(&[u32::from(p)], &mut stream).map_err(text)?;
        graph.replay(&mut stream).map_err(text)?;
        step(&mut stream, &eager, &other, Scalar::Host(p.into())).map_err(text)?;
        let [a, b, c, d] = [&cache, &eager, &out, &other].map(|t| t.read::<f32>().map_err(text));
        let (a, c) = (a?, c?);
        let want: Vec<f32> = (0..8u8).map(|i| if i / 2 <= p { f32::from(i / 2) } else { -1.0 }).collect();
        if env.computes && (a != want || a != b? || c != d?) {
            return Err(format!("position {p}: {a:?}, {c:?}"));
        }
    }
    // A second capture, then memory.
    stream.capture(|s| step(s, &cache, &out, Scalar::Device(&position))).map_err(text)?;
    new(&[1, 64, 1, 2]).map(|_| ())
}

/// Positions and pages outside of the cache: told, not stored; the others are.
fn overflow(env: &Env) -> Result<(), String> {
    let text = |e: Error| e.to_string();
    for dtype in FLOATS {
        let put = |t: &Tensor, value: f64| {
            let values = (0..t.len()).map(|_| representable(dtype, value));
            write_bytes(t, &encode(dtype, values), None)
        };
        let rows = env.rt.uninit(dtype, &[2, 2, 1, 8], BufferKind::Cold).map_err(text)?;
        let cache = env.rt.uninit(dtype, &[2, 16, 1, 8], BufferKind::Cold).map_err(text)?;
        put(&rows, 2.0)?;
        let mut stream = env.rt.stream().map_err(text)?;
        let starts = env.rt.from_slice(&[3u32, 15], &[2]).map_err(text)?;
        let table = env.rt.from_slice(&[1u32, 2], &[2, 1]).map_err(text)?;
        let plain = KvStore::new(&rows, &cache, Start::Each(&starts));
        let paged = KvStore::new(&rows, &cache, 3).table(&table);
        let first = (FaultKind::CacheOverflow, 3, 16, vec![3, 4, 16 + 15]);
        let second = (FaultKind::IndexOutOfRange, 1, 2, vec![16 + 3, 16 + 4]);
        for (op, (kind, index, value, written)) in [(plain, first), (paged, second)] {
            put(&cache, -1.0)?;
            op.run_on(&mut stream).map_err(text)?;
            let outcome = stream.synchronize();
            if !env.computes {
                outcome.map_err(text)?;
                continue;
            }
            match outcome {
                Err(Error::Fault { op: "kv_store", kind: k, index: i, value: v })
                    if (k, i, v) == (kind, index, value) => {}
                other => return Err(format!("{kind:?} at {index} of {value} gave {other:?}")),
            }
            stream.recover().map_err(text)?;
            let bytes = read_bytes(&cache)?;
            compare(dtype, &bytes, cache.shape(), |at| (if written.contains(&(at / 8)) { 2.0 } else { -1.0 }, 0.0))?;
        }
    }
    Ok(())
}

/// Rows with NaN and infinity, of zeros and of tiny numbers, and ties between codes.
fn special_codes(env: &Env) -> Result<(), String> {
    let text = |e: Error| e.to_string();
    let x = [
        [f32::NAN, 1.0, 2.0, -3.0],
        [1.0, f32::NEG_INFINITY, 0.0, 2.0],
        [0.0, -0.0, 0.0, 0.0],
        [1e-31, -5e-31, 1e-40, 0.0],
        [127.0, 0.5, 1.5, -2.5],
        [f32::MAX, -f32::MAX, 1.0, 0.0],
    ];
    let rows = env.rt.from_slice(&x.concat(), &[1, 6, 1, 4]).map_err(text)?;
    let cache = env.rt.from_slice(&[55i8; 24], &[1, 6, 1, 4]).map_err(text)?;
    let scales = env.rt.from_slice(&[-1.0f32; 6], &[1, 6, 1]).map_err(text)?;
    KvStore::new(&rows, &cache, 0).k_scales(&scales).run().map_err(text)?;
    if !env.computes {
        return Ok(());
    }
    let (codes, factors) = (cache.read::<i8>().map_err(text)?, scales.read::<f32>().map_err(text)?);
    let want: [[i8; 4]; 6] = [[0; 4], [0; 4], [0; 4], [0; 4], [127, 0, 2, -2], [127, -127, 0, 0]];
    let right = factors[..2].iter().all(|s| s.is_nan())
        && factors[2..5] == [0.0, 0.0, 1.0]
        && (factors[5] / (f32::MAX / 127.0) - 1.0).abs() < 1e-6;
    if right && codes == want.concat() { Ok(()) } else { Err(format!("{factors:?}, {codes:?}")) }
}

/// Every case of this file.
pub(super) fn cases() -> Vec<Case> {
    let case = |name: &str, body: fn(&Env) -> Result<(), String>| {
        Case::fixed(name.to_owned(), "kv_store", 2000, move |env| body(env).into()).tagged(&["quick"])
    };
    vec![
        case("known/candle_3729", candle_3729),
        case("known/cache_overflow", overflow),
        case("kv_store/special_codes", special_codes),
    ]
}
