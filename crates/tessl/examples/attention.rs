//! A prefill and decode steps over a cache whose position lives on the device, checked against one prefill of everything.

use tessl::nn::{Attention, KvStore};
use tessl::{BufferKind, DType, GpuRuntime, Scalar, Tensor};

const HEADS: usize = 8;
const KV_HEADS: usize = 2;
const DIM: usize = 64;
const PROMPT: usize = 40;
const TOKENS: usize = 48;
const CAPACITY: usize = 64;

/// Numbers in -1..1 without a short period.
fn numbers(rt: &GpuRuntime, heads: usize, salt: usize) -> Result<Tensor, tessl::Error> {
    let value = |i: usize| ((i * 7919 + salt * 104_729) % 1999) as f32 / 1000.0 - 1.0;
    let all: Vec<f32> = (0..TOKENS * heads * DIM).map(value).collect();
    rt.from_slice(&all, &[1, TOKENS, heads, DIM])
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let rt = GpuRuntime::new()?;
    let (q, k, v) = (numbers(&rt, HEADS, 1)?, numbers(&rt, KV_HEADS, 2)?, numbers(&rt, KV_HEADS, 3)?);

    // All tokens at once.
    let whole = rt.alloc_tensor_f32(&[1, TOKENS, HEADS, DIM])?;
    Attention::new(&q, &k, &v, &whole).causal(0).run()?;

    // The prompt first: stored, then attended to.
    let cache = || rt.zeros(DType::F32, &[1, CAPACITY, KV_HEADS, DIM], BufferKind::Hot);
    let (k_cache, v_cache) = (cache()?, cache()?);
    let out = rt.alloc_tensor_f32(&[1, TOKENS, HEADS, DIM])?;
    let part = |t: &Tensor, first, count| t.narrow(1, first, count);
    KvStore::pair(&part(&k, 0, PROMPT)?, &k_cache, &part(&v, 0, PROMPT)?, &v_cache, 0).run()?;
    Attention::new(&part(&q, 0, PROMPT)?, &k_cache, &v_cache, &part(&out, 0, PROMPT)?).causal(0).run()?;

    // Then one token at a time, by a step that is captured once. What changes is in device memory.
    let token = |heads| rt.zeros(DType::F32, &[1, 1, heads, DIM], BufferKind::Hot);
    let (q1, k1, v1, y1) = (token(HEADS)?, token(KV_HEADS)?, token(KV_HEADS)?, token(HEADS)?);
    let position = rt.from_slice(&[0u32], &[1])?;
    let mut stream = rt.stream()?;
    let attention = Attention::new(&q1, &k_cache, &v_cache, &y1).causal(Scalar::Device(&position));
    let scratch = attention.scratch_bytes()?;
    if scratch > 0 {
        stream.reserve(scratch)?;
    }
    let step = stream.capture(|s| {
        KvStore::pair(&k1, &k_cache, &v1, &v_cache, Scalar::Device(&position)).run_on(s)?;
        attention.run_on(s)
    })?;
    let mut decoded = Vec::new();
    for t in PROMPT..TOKENS {
        for (all, one) in [(&q, &q1), (&k, &k1), (&v, &v1)] {
            one.write_on(&part(all, t, 1)?.read::<f32>()?, &mut stream)?;
        }
        position.write_on(&[u32::try_from(t)?], &mut stream)?;
        step.replay(&mut stream)?;
        decoded.push(y1.read::<f32>()?);
    }

    let (want, prefilled) = (whole.read::<f32>()?, part(&out, 0, PROMPT)?.read::<f32>()?);
    let got = prefilled.iter().chain(decoded.iter().flatten());
    let largest = want.iter().zip(got).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    println!("{} tokens prefilled, {} decoded on {}: off by {largest:e} at most", PROMPT, TOKENS - PROMPT, rt.device());
    assert!(largest < 1e-5);
    Ok(())
}
